"""Totals of reducers that have an inverse: parts go in and out, and how many are inside is counted.

The count tells a total of nothing from one of values that cancel out: a sum from which everything was taken shows nothing, and not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.reducers import Reducer

Total = list[Any]  # how many parts are inside, and their total


def changed(reducer: Reducer, total: Total | None, added: Sequence[Any], removed: Sequence[Any]) -> Total | None:
    """The total with some parts more and some fewer."""
    count, inside = (0, None) if total is None else total
    more = [part for part in added if part is not None]
    less = [part for part in removed if part is not None]
    count += len(more) - len(less)
    if more:
        put = reducer.fold(more)
        inside = put if inside is None else reducer.combine(inside, put)
    if less and inside is not None:
        assert reducer.remove is not None
        inside = reducer.remove(inside, reducer.fold(less))
    return [count, inside] if count > 0 else None


def bare(total: Total | None) -> Any:
    """The reducer's own total."""
    return None if total is None else total[1]
