"""Reducers that compare: they keep the least, the greatest, the first or the last value, or the n greatest (top) or least (bottom).

Rules
1. Values are compared as Python does. Those that it cannot compare (a number and a text, a date with a zone and one without) are an error that names
   both, and so are those that have no order at all, such as sets.
2. NaN is skipped: it is neither less nor greater than anything.
3. Of equal ones that can be told apart (1 and 1.0, two documents with one version) `order_key` decides: never the order of arrival.
4. None of them has an inverse: whoever takes the least away must look at the others.
5. A part of top and bottom is a list of at most n, the best first: what is shown, or [by, what is shown] if it goes by something else. With `ties`, those
   that equal the n-th stand behind it. Nothing else is kept. Ties are ordered by `order_key` of what is shown, least first, in both. A value counts as
   often as it comes.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain, groupby
from operator import eq, itemgetter
from typing import Any

from millstream.errors import DefinitionError, HookError
from millstream.reducers.base import Reducer
from millstream.reducers.fields import Chosen, FieldReducer, checked_number, shortened
from millstream.reducers.order import FIRM, order_key

MOST_KEPT = 1_000
_first = itemgetter(0)


def is_nan(value: Any) -> bool:
    return value.is_nan() if isinstance(value, Decimal) else isinstance(value, float) and value != value


def comparable(value: Any, reducer: Reducer) -> Any:
    """A value that is to be compared; None for NaN. Raises HookError for what has no order."""
    kind = value.__class__
    if kind in FIRM:
        return value
    if kind is float:
        return value if value == value else None
    if value is None or is_nan(value):
        return None
    if isinstance(value, (set, frozenset, dict)):
        raise HookError(
            f"{reducer.describe()}: {shortened(value)} cannot be compared: a {kind.__name__} has no order. Name a field or a function."
        )
    if isinstance(value, (list, tuple)) and any(one is None or comparable(one, reducer) is None for one in value):
        raise HookError(f"{reducer.describe()}: {shortened(value)} cannot be compared: it holds a None or a NaN")
    return value


def incomparable(values: Iterable[Any], reducer: Reducer) -> HookError:
    """What to say when Python could not compare some values."""
    found = list(values)
    for at, a in enumerate(found):
        for b in found[:at]:
            try:
                a < b  # noqa: B015
            except TypeError:
                return HookError(
                    f"{reducer.describe()}: {shortened(b)} ({type(b).__name__}) and {shortened(a)} ({type(a).__name__}) cannot be compared"
                )
    return HookError(f"{reducer.describe()}: these cannot be compared: {shortened(found)}")


def extreme(values: Sequence[Any], reducer: Reducer, greatest: bool) -> Any:
    """The least or greatest of values, in no order; None among them are skipped."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [value for value in values if value is not None]
        kinds.discard(type(None))
        if not kinds:
            return None
    try:
        found = builtins.max(values) if greatest else builtins.min(values)
    except TypeError:
        raise incomparable(values, reducer) from None
    if len(kinds) == 1 and (kinds <= FIRM or (found.__class__ is float and found != 0.0)):
        return found
    tied = [value for value in values if value == found]
    return found if len(tied) == 1 else builtins.min(tied, key=order_key)


class Extreme(FieldReducer):
    greatest = False

    def lift(self, value: Any) -> Any:
        return comparable(self.read(value), self)

    def combine(self, a: Any, b: Any) -> Any:
        try:
            if a < b:
                return b if self.greatest else a
            if b < a:
                return a if self.greatest else b
        except TypeError:
            raise incomparable((a, b), self) from None
        return a if a.__class__ in FIRM and a.__class__ is b.__class__ else extreme((a, b), self, self.greatest)

    def fold(self, parts: Iterable[Any]) -> Any:
        found = list(parts)
        return extreme(found, self, self.greatest) if found else None


class min(Extreme):
    """The least: of numbers, texts, dates, or lists of those. NaN is skipped. Of 1 and 1.0 it shows 1.

    >>> reducer = min("age")
    >>> reducer.fold(map(reducer.lift, [{"age": 9}, {"age": 7}, {"age": None}]))
    7
    """


class max(Extreme):
    """The greatest: see `min`.

    >>> reducer = max(len)
    >>> reducer.fold(map(reducer.lift, ["Sue", "Tod", "Joanna"]))
    6
    """

    greatest = True


class Endmost(FieldReducer):
    """The first or the last. Made by `first` and `last`. A part is [what it goes by, what is shown]."""

    greatest = False

    def __init__(self, field: Chosen = None, *, by: Chosen = None, where: Callable[[Any], Any] | None = None, of: Any = None) -> None:
        super().__init__(field, where=where, of=of)
        self.by = self.checked_by(by)
        self.wants_order = by is None

    def lift(self, value: Any) -> Any:
        if self.by is None:
            raise DefinitionError(
                f"{self.describe()} goes by the order of the values, and here they have none. Say by=, a field or a function."
            )
        return self.lift_at(value, None)

    def lift_at(self, value: Any, order: Any) -> Any:
        shown = self.read(value)
        if shown is None:
            return None
        by = comparable(order if self.by is None else self.read_by(value, self.by), self)
        return None if by is None else [by, shown]

    def combine(self, a: Any, b: Any) -> Any:
        x, y = a[0], b[0]
        try:
            if x < y:
                return b if self.greatest else a
            if y < x:
                return a if self.greatest else b
        except TypeError:
            raise incomparable((x, y), self) from None
        return a if _place(a) <= _place(b) else b

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        if not found:
            return None
        try:
            best = (builtins.max if self.greatest else builtins.min)(found, key=_first)
        except TypeError:
            raise incomparable(map(_first, found), self) from None
        tied = [part for part in found if part[0] == best[0]]
        return best if len(tied) == 1 else builtins.min(tied, key=_place)

    def finish(self, total: Any) -> Any:
        return total[1]


def _place(part: Any) -> tuple[Any, ...]:
    """Where one of several with equal `by` stands."""
    return order_key(part[1]), order_key(part[0])


class first(Endmost):
    """What the field says in the value with the least `by` (a field or a function); without `by` in that of the oldest version.

    Values in which the field or `by` is None are skipped. Of several with one `by`, that which comes first in the order of plain data.

    >>> reducer = first("name", by="age")
    >>> reducer.show(reducer.fold(map(reducer.lift, [{"name": "Sue", "age": 9}, {"name": "Tod", "age": 7}])))
    'Tod'
    """


class last(Endmost):
    """What the field says in the value with the greatest `by`; without `by` in that of the newest version. See `first`.

    >>> reducer = last("name")
    >>> reducer.show(reducer.combine(reducer.lift_at({"name": "Sue"}, 17), reducer.lift_at({"name": "Joe"}, 18)))
    'Joe'
    """

    greatest = True


class Best(FieldReducer):
    """The n best. Made by `top` and `bottom`."""

    empty: Any = []
    greatest = True

    def __init__(
        self,
        n: int,
        field: Chosen = None,
        *,
        by: Chosen = None,
        where: Callable[[Any], Any] | None = None,
        of: Any = None,
        ties: bool = False,
    ) -> None:
        super().__init__(field, where=where, of=of)
        self.ties = ties
        self.n = checked_number(f"{self.name}(n, ...)", "n", n, MOST_KEPT)
        self.by = self.checked_by(by)

    def lift(self, value: Any) -> Any:
        shown = self.read(value)
        if shown is None:
            return None
        if self.by is None:
            compared = comparable(shown, self)
            return None if compared is None else [compared]
        by = comparable(self.read_by(value, self.by), self)
        return None if by is None else [[by, shown]]

    def combine(self, a: Any, b: Any) -> Any:
        if len(a) >= self.n and len(b) == 1:  # most often the one is not among the best
            x, y = (a[-1], b[0]) if self.by is None else (a[-1][0], b[0][0])
            try:
                if y < x if self.greatest else x < y:
                    return a
            except TypeError:
                raise incomparable((x, y), self) from None
        return self._best([*a, *b])

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        return self._best(list(chain.from_iterable(found))) if found else None

    def finish(self, total: Any) -> Any:
        return list(total) if self.by is None else [entry[1] for entry in total]

    def _best(self, entries: list[Any]) -> list[Any]:
        """Sorts a list of one's own."""
        by = None if self.by is None else _first
        try:
            entries.sort(key=by, reverse=self.greatest)
        except TypeError:
            raise incomparable(entries if by is None else map(_first, entries), self) from None
        if self.ties:
            return self._untied(entries)
        n = self.n
        compared = entries[: n + 1] if by is None else list(map(_first, entries[: n + 1]))
        if not any(map(eq, compared, compared[1:])) or (by is None and len(kinds := set(map(type, entries))) == 1 and kinds <= FIRM):
            return entries[:n]
        return self._untied(entries)

    def _untied(self, entries: list[Any]) -> list[Any]:
        by, place = (None, order_key) if self.by is None else (_first, _place)
        found: list[Any] = []
        for _, group in groupby(entries, by):
            tied = list(group)
            found += sorted(tied, key=place) if len(tied) > 1 else tied
            if len(found) >= self.n:
                break
        if not self.ties:
            return found[: self.n]
        if len(found) > MOST_KEPT:
            raise HookError(f"{self.describe()}: more than {MOST_KEPT:,} values tie. Leave ties=True out, or go by more than one field.")
        return found


class top(Best):
    """The n values with the greatest `by` (a field or a function), the greatest first; shows the field, or the whole value.

    Without `by` it goes by what is shown. n is at most 1,000. ties: all that equal the n-th are shown, too.

    >>> reducer = top(2, "name", by="age")
    >>> people = [{"name": "Sue", "age": 9}, {"name": "Tod", "age": 7}, {"name": "Ann", "age": 9}]
    >>> reducer.show(reducer.fold(map(reducer.lift, people))), reducer
    (['Ann', 'Sue'], top(2, 'name', by='age'))
    """


class bottom(Best):
    """The n values with the least `by`, the least first. See `top`.

    >>> reducer = bottom(2)
    >>> reducer.show(reducer.fold(map(reducer.lift, [3, 1, 2, 1])))
    [1, 1]
    """

    greatest = False
