"""What a window operator is to do, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from millstream.core.links import Link
from millstream.core.topology import WindowShape
from millstream.operators.windows import Fixed, WindowKind
from millstream.reducers import extremes, sums, values
from millstream.reducers.base import Reducer


class WindowSpec(msgspec.Struct, frozen=True):
    """fields: the names of what the key is made of; None: it is made by a function, and shown as `key`. links: by stream, what comes before.
    lateness: how long a window may still change after its end. early: how long after a record its window is told before its end; None: it is not.
    tells_parts: what the reducers have is told, and not what they show of it (`spread.py`)."""

    kind: WindowKind
    reducers: dict[str, Reducer]
    fields: tuple[str, ...] | None = None
    links: dict[str, tuple[Link, ...]] = {}
    lateness: int = 0
    early: int | None = None
    tells_parts: bool = False

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields of a result that show its key."""
        return ("key",) if self.fields is None else self.fields

    @property
    def changes(self) -> bool:
        """Whether it tells changes, and not results."""
        return self.lateness > 0 or self.early is not None


#: Builtin reducers that merge and show alike, however they were made.
REMADE: dict[str, Callable[[], Reducer]] = {
    made.__name__: made
    for made in (
        sums.count,
        sums.sum,
        sums.mean,
        sums.stats,
        extremes.min,
        extremes.max,
        extremes.first,
        extremes.last,
        values.any_value,
        values.count_distinct,
    )
}


def shape_of(kind: WindowKind, reducers: Mapping[str, Reducer]) -> WindowShape:
    """What readers of a checkpoint must know of a window operator."""
    known = {name: type(one).__name__ if REMADE.get(type(one).__name__) is type(one) else "" for name, one in reducers.items()}
    return WindowShape(msgspec.to_builtins(kind), known, isinstance(kind, Fixed) and kind.size != kind.every)
