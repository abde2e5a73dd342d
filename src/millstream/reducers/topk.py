"""Reducers that keep the n greatest or least values: top and bottom.

Rules
1. A part is a list of at most n, the best first: what is shown, or [by, what is shown] if it goes by something else. Nothing behind the n-th is kept.
2. Whoever ties is ordered by `order_key` of what is shown, least first, in `top` as in `bottom`. So the list does not depend on the order of arrival.
3. A value counts as often as it comes.
4. What is said of comparing in `extremes.py` holds here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import eq, itemgetter
from typing import Any

from millstream.reducers.extremes import comparable, incomparable
from millstream.reducers.fields import Chosen, FieldReducer, checked_number
from millstream.reducers.order import FIRM, order_key

MOST_KEPT = 1_000
_first = itemgetter(0)


class Best(FieldReducer):
    """The n best. Made by `top` and `bottom`."""

    empty: Any = []
    greatest = True

    def __init__(self, n: int, field: Chosen = None, *, by: Chosen = None, where: Callable[[Any], Any] | None = None) -> None:
        super().__init__(field, where=where)
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
        if len(a) == self.n and len(b) == 1:  # most often the one is not among the best
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
        n = self.n
        compared = entries[: n + 1] if by is None else list(map(_first, entries[: n + 1]))
        if not any(map(eq, compared, compared[1:])) or (by is None and len(kinds := set(map(type, entries))) == 1 and kinds <= FIRM):
            return entries[:n]
        return self._untied(entries)

    def _untied(self, entries: list[Any]) -> list[Any]:
        found: list[Any] = []
        at = 0
        while at < len(entries) and len(found) < self.n:
            end = at + 1
            if self.by is None:
                while end < len(entries) and entries[end] == entries[at]:
                    end += 1
                found += sorted(entries[at:end], key=order_key)
            else:
                while end < len(entries) and entries[end][0] == entries[at][0]:
                    end += 1
                found += sorted(entries[at:end], key=_tie) if end > at + 1 else entries[at:end]
            at = end
        return found[: self.n]

    def _written(self) -> list[str]:
        return [str(self.n)]


def _tie(entry: list[Any]) -> tuple[Any, ...]:
    return order_key(entry[1]), order_key(entry[0])


class top(Best):
    """The n values with the greatest `by` (a field or a function), the greatest first; shows the field, or the whole value.

    Without `by` it goes by what is shown. n is at most 1,000.

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
