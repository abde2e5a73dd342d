"""Reducers that look at the values themselves: count_distinct, any_value, collect.

Rules
1. Values may be any plain data: numbers, texts, dates, lists, dicts. None is skipped.
2. `count_distinct` goes by `identity`: values that are equal are one. `any_value` and `collect` go by `order_key`, which tells 1 from 1.0.
3. What is kept of many is always the least of them, so that nothing depends on the order of arrival.
4. Nothing is cut that was not asked for: `collect` without a limit refuses more than 10,000 values.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from millstream.errors import HookError
from millstream.reducers.fields import Chosen, FieldReducer, checked_number
from millstream.reducers.order import FIRM, identity, order_key

MOST_COLLECTED = 10_000


class count_distinct(FieldReducer):
    """The exact number of different values: 1, 1.0 and True are one, because they are equal; NaN is one.

    >>> reducer = count_distinct("name")
    >>> reducer.show(reducer.fold(map(reducer.lift, [{"name": "Sue"}, {"name": "Tod"}, {"name": "Sue"}, {"name": None}])))
    2
    """

    empty = 0
    indexed = True  # a part is the sorted list of their texts

    def lift(self, value: Any) -> Any:
        found = self.read(value)
        return None if found is None else [identity(found)]

    def combine(self, a: Any, b: Any) -> Any:
        if len(b) == 1 or len(a) == 1:
            many, one = (a, b[0]) if len(b) == 1 else (b, a[0])
            at = bisect_left(many, one)
            return many if at < len(many) and many[at] == one else [*many[:at], one, *many[at:]]
        return sorted({*a, *b})

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        return sorted(set(chain.from_iterable(found))) if found else None

    def finish(self, total: Any) -> Any:
        return len(total)


def _least(values: list[Any]) -> Any:
    kinds = set(map(type, values))
    return builtins.min(values) if len(kinds) == 1 and kinds <= FIRM else builtins.min(values, key=order_key)


class any_value(FieldReducer):
    """One of the values, always the same one (the least): for groups in which all are the same.

    >>> reducer = any_value("country")
    >>> reducer.fold(map(reducer.lift, [{"country": None}, {"country": "IS"}, {"country": "IS"}]))
    'IS'
    """

    def lift(self, value: Any) -> Any:
        return self.read(value)

    def combine(self, a: Any, b: Any) -> Any:
        return _least([a, b])

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        return _least(found) if found else None


class collect(FieldReducer):
    """The values as a sorted list, each as often as it comes. With a limit (at most 10,000) the least of them; without one all, and more than 10,000 in a group
    are an error.

    >>> reducer = collect("name")
    >>> reducer.fold(map(reducer.lift, [{"name": "Tod"}, {"name": "Sue"}, {"name": "Tod"}]))
    ['Sue', 'Tod', 'Tod']
    """

    empty: Any = []

    def __init__(
        self, field: Chosen = None, limit: int | None = None, *, where: Callable[[Any], Any] | None = None, of: Any = None
    ) -> None:
        super().__init__(field, where=where, of=of)
        self.limit = None if limit is None else checked_number("collect(limit=...)", "limit", limit, MOST_COLLECTED)

    def lift(self, value: Any) -> Any:
        found = self.read(value)
        return None if found is None else [found]

    def combine(self, a: Any, b: Any) -> Any:
        return self._least([*a, *b])

    def fold(self, parts: Iterable[Any]) -> Any:
        found = [part for part in parts if part is not None]
        return self._least(list(chain.from_iterable(found))) if found else None

    def finish(self, total: Any) -> Any:
        return list(total)

    def _least(self, values: list[Any]) -> list[Any]:
        kinds = set(map(type, values))
        values.sort(key=None if len(kinds) == 1 and kinds <= FIRM else order_key)
        if self.limit is None and len(values) > MOST_COLLECTED:
            raise HookError(
                f"{self.describe()}: a group has more than {MOST_COLLECTED:,} values. With limit=N the least N of them are kept."
            )
        return values[: self.limit]
