"""Rows as people and programs outside a step want them: the state with its MapStates, the timers with their holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.core import subkeys
from millstream.core.layout import STATE_HOLD, SUB, Holds, Row, Store, sub_prefix
from millstream.core.record import Timer
from millstream.core.statekind import StateKind
from millstream.core.time import LOW_WATERMARK, WALL_CLOCK


class Entries:
    """Entries that were read, as a MapState wants them. Implements the core's Store."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self._entries = entries

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self._entries[key]) for key in sorted(self._entries, reverse=reverse) if start <= key < stop)


def bound(kind: StateKind, row_key: bytes, row: Row, store: Store) -> Any:
    """The state of a row, with its MapStates bound to a store's entries."""
    state = kind.fresh() if kind.is_map else kind.decode(row.state)
    for field, sub in kind.maps(state):
        sub.bind(store, sub_prefix(row_key, field), kind.encode_sub, kind.decode_sub)
    return state


def timers_of(row: Row) -> list[Timer]:
    """The timers of a row, those of event time first, each with what it holds."""
    holds = _holds(row)
    return [
        Timer(time, tag, kind, holds.get((kind, time, tag)))
        for kind, entries in ((LOW_WATERMARK, row.low), (WALL_CLOCK, row.wall))
        for time, tag in entries
    ]


def hold_of(row: Row) -> int | None:
    """What the state of a row holds by itself."""
    return _holds(row).get(STATE_HOLD)


def _holds(row: Row) -> Holds:
    return {(kind, time, tag): hold for hold, kind, time, tag in row.holds}


def maps_prefix(row_key: bytes) -> bytes:
    """What the entries of all MapStates of a row begin with."""
    return SUB + len(row_key).to_bytes(4, "big") + row_key


def map_entry(row_key: bytes, entry: bytes) -> tuple[str, Any]:
    """The field and the sub-key of an entry of a row's MapState."""
    field, _, sub_key = entry[5 + len(row_key) :].partition(b"\0")
    return field.decode(), subkeys.decode(sub_key)
