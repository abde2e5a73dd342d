"""Reducers of numbers that are added up: count, sum, mean, stats.

Rules
1. Sums are exact (`exact.py`): a result does not depend on the order of the values, nor on what came and went, and is rounded once, when it is shown.
2. ints stay ints, however large. With a float among the values the sum is a float; with a Decimal among them a Decimal. Both at once is an error.
3. A bool counts as 0 or 1, so that `sum("paid")` counts those who paid.
4. NaN and infinities among the floats are shown as in float arithmetic, and are forgotten with the value that brought them. A sum beyond the range
   of floats is infinite.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

from millstream.errors import HookError
from millstream.reducers import exact
from millstream.reducers.extremes import extreme, is_nan
from millstream.reducers.fields import FieldReducer, shortened


class count(FieldReducer):
    """Counts the values; with a field, or a function, those where it is not None.

    >>> reducer = count("age", where=lambda person: person["name"] != "Joe")
    >>> reducer.fold(map(reducer.lift, [{"name": "Sue", "age": 7}, {"name": "Joe", "age": 8}, {"name": "Ann", "age": None}]))
    1
    """

    empty = 0

    def lift(self, value: Any) -> Any:
        if self.field is None:
            return 1 if self.where is None or self.where(value) else None
        return None if self.read(value) is None else 1

    def combine(self, a: Any, b: Any) -> Any:
        return a + b

    def remove(self, total: Any, part: Any) -> Any:
        return total - part

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        return builtins.sum(found) if found else None


class Numbers(FieldReducer):
    def term(self, number: Any) -> Any:
        """A number that was read, as a sum of one; None if there is none."""
        try:
            return exact.term(number)
        except exact.NotANumber as error:
            raise HookError(f"{self.describe()}: {shortened(number)}: {error}") from None


class sum(Numbers):
    """The sum of ints, of floats or of Decimals, without rounding on the way: of floats it is what `math.fsum` gives.

    >>> reducer = sum("price")
    >>> total = reducer.fold(map(reducer.lift, [{"price": 1e16}, {"price": 1.0}, {"price": 0.5}]))
    >>> reducer.show(total), reducer.show(reducer.remove(total, 1e16))
    (1.0000000000000002e+16, 1.5)
    """

    combine = staticmethod(exact.plus)
    remove = staticmethod(exact.minus)
    fold = staticmethod(exact.total)  # type: ignore[assignment]
    finish = staticmethod(exact.shown)  # type: ignore[assignment]

    def lift(self, value: Any) -> Any:
        try:
            return exact.term(self.read(value))
        except exact.NotANumber:
            return self.term(self.read(value))  # which says more

    def add(self, total: Any, value: Any) -> Any:
        part = self.lift(value)
        return total if part is None else part if total is None else exact.plus(total, part)


class mean(Numbers):
    """The mean, rounded once: a float, or of Decimals a Decimal of 28 digits.

    >>> reducer = mean("age")
    >>> reducer.show(reducer.fold(map(reducer.lift, [{"age": 7}, {"age": 8}, {"age": None}])))
    7.5
    """

    def lift(self, value: Any) -> Any:
        x = self.term(self.read(value))
        return None if x is None else [1, x]  # how many, and their sum

    def combine(self, a: Any, b: Any) -> Any:
        return [a[0] + b[0], exact.plus(a[1], b[1])]

    def remove(self, total: Any, part: Any) -> Any:
        return [total[0] - part[0], exact.minus(total[1], part[1])]

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return [builtins.sum([part[0] for part in found]), exact.total([part[1] for part in found])]

    def finish(self, total: Any) -> Any:
        return exact.divided(total[1], total[0])


class stats(Numbers):
    """Count, min, max, sum, mean and stddev of numbers, as a dict.

    stddev is that of a sample, as SQL's stddev_samp: None below two values. It follows from exact sums of the numbers and of their squares. NaN is
    neither least nor greatest.

    >>> reducer = stats("age")
    >>> reducer.show(reducer.fold(map(reducer.lift, [{"age": 7}, {"age": 9}, {"age": 8}])))
    {'count': 3, 'min': 7, 'max': 9, 'sum': 24, 'mean': 8.0, 'stddev': 1.0}
    """

    empty = {"count": 0, "min": None, "max": None, "sum": None, "mean": None, "stddev": None}

    def lift(self, value: Any) -> Any:
        number = self.read(value)
        if number is None:
            return None
        x = self.term(number)
        if number.__class__ is bool:
            number = int(number)
        compared = None if is_nan(number) else number
        return [1, compared, compared, x, exact.squared(x)]  # how many, the least, the greatest, their sum, the sum of their squares

    def combine(self, a: Any, b: Any) -> Any:
        least, greatest = extreme((a[1], b[1]), self, False), extreme((a[2], b[2]), self, True)
        return [a[0] + b[0], least, greatest, exact.plus(a[3], b[3]), exact.plus(a[4], b[4])]

    def fold(self, parts: Iterable[Any]) -> Any:
        columns = list(zip(*[part for part in parts if part is not None], strict=True))
        if not columns:
            return None
        counts, lows, highs, sums, squares = columns
        least, greatest = extreme(lows, self, False), extreme(highs, self, True)
        return [builtins.sum(counts), least, greatest, exact.total(sums), exact.total(squares)]

    def finish(self, total: Any) -> Any:
        count, least, greatest, x, squares = total
        mean, deviation = exact.divided(x, count), exact.deviation(count, x, squares)
        return {"count": count, "min": least, "max": greatest, "sum": exact.shown(x), "mean": mean, "stddev": deviation}
