"""Rows as people and programs outside a step want them, and what can be asked of committed state (`state/reader.py` answers).

Rules
1. A question is answered from one entry, or from a range of entries. So whatever can give those can answer all of them alike.
2. Values are bytes until somebody brings the codec (`states`, with a computation's `StateKind`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from millstream.core.keys import key_bytes, key_of, shard_of
from millstream.core.keyspace import ROW, STATE_HOLD, SUB, Row, Store, after, decode_row, decode_sub_key, sub_prefix
from millstream.core.mapstate import MapState
from millstream.core.record import Timer
from millstream.core.statekind import StateKind
from millstream.core.time import LOW_WATERMARK, WALL_CLOCK
from millstream.errors import CheckpointError
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.memory_storage import MemoryStore

_R = TypeVar("_R", bound="Reader")


class Reader:
    """Committed state. The same questions for an epoch that stays and for one that goes on."""

    manifest: Manifest  # the one that answers

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        """The value of one entry of a shard."""
        raise NotImplementedError

    def scan(self, computation: str, start: bytes, stop: bytes, *, shard: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < stop in order, of one shard or of all."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def computations(self) -> list[str]:
        """The names of those that have state."""
        return sorted(self.manifest.computations)

    def computation(self, name: str) -> ComputationState:
        """What the manifest says of a computation."""
        found = self.manifest.computations.get(name)
        if found is None:
            known = ", ".join(self.computations) or "none"
            raise CheckpointError(f"the checkpoint has no computation called {name!r}. It has: {known}.")
        return found

    def shard_of(self, computation: str, row_key: bytes) -> int:
        """The shard that has a row."""
        return shard_of(row_key, len(self.computation(computation).shards) or 1)

    def get(self, computation: str, key: Any) -> Row | None:
        """The row of a key: its state as bytes, its timers and its holds. None if it has none."""
        row_key = key_bytes(key)
        raw = self.entry(computation, self.shard_of(computation, row_key), ROW + row_key)
        return None if raw is None else decode_row(raw)

    def rows(self, computation: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, Row]]:
        """The rows with start <= row key < stop, in the order of their keys' bytes. A string's are its UTF-8; see core/keys.py for the others."""
        for entry, raw in self.scan(computation, ROW + start, after(ROW) if stop is None else ROW + stop):
            yield entry[len(ROW) :], decode_row(raw)

    def prefix(self, computation: str, start: bytes) -> Iterator[tuple[bytes, Row]]:
        """The rows whose keys begin with a text."""
        return self.rows(computation, start, after(start) if start else None)

    def maps(self, computation: str, key: Any) -> Iterator[tuple[str, Any, bytes]]:
        """The entries of a key's MapStates: field, sub-key, and the value as bytes, in order."""
        row_key = key_bytes(key)
        start = maps_prefix(row_key)
        shard = self.shard_of(computation, row_key)
        for entry, raw in self.scan(computation, start, after(start), shard=shard):
            name, _, sub_key = entry[len(start) :].partition(b"\0")
            yield name.decode(), decode_sub_key(sub_key), raw

    def close(self) -> None:
        """Lets go of what holds the epoch."""

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bound(kind: StateKind, row_key: bytes, row: Row, store: Store) -> Any:
    """The state of a row, with its MapStates bound to a store's entries."""
    state = kind.fresh() if kind.is_map else kind.decode(row.state)
    for field, sub in kind.maps(state):
        sub.bind(store, sub_prefix(row_key, field), kind.encode_sub, kind.decode_sub)
    return state


def timers_of(row: Row) -> list[Timer]:
    """The timers of a row, those of event time first, each with what it holds."""
    holds = {(kind, time, tag): hold for hold, kind, time, tag in row.holds}
    return [
        Timer(time, tag, kind, holds.get((kind, time, tag)))
        for kind, entries in ((LOW_WATERMARK, row.low), (WALL_CLOCK, row.wall))
        for time, tag in entries
    ]


def hold_of(row: Row) -> int | None:
    return next((hold for hold, *whose in row.holds if tuple(whose) == STATE_HOLD), None)


def maps_prefix(row_key: bytes) -> bytes:
    """What the entries of all MapStates of a row begin with."""
    return SUB + len(row_key).to_bytes(4, "big") + row_key


def states(cut: Reader, computation: str, kind: StateKind, keys: Iterable[Any] | None = None) -> dict[Any, Any]:
    """The states of some keys, or of all, as the computation would find them. They are whole: nothing is read later. None of a computation without state. A
    state that is one MapState is given as a dict."""
    found: dict[Any, Any] = {}
    if computation not in cut.manifest.computations:
        return found
    rows = cut.rows(computation) if keys is None else ((key_bytes(key), cut.get(computation, key)) for key in keys)
    for row_key, row in rows:
        if row is not None:
            start = maps_prefix(row_key)
            has_maps = kind.is_map or kind.map_fields
            entries = cut.scan(computation, start, after(start), shard=cut.shard_of(computation, row_key)) if has_maps else ()
            state = bound(kind, row_key, row, MemoryStore(entries))
            found[key_of(row_key.decode())] = dict(state.items()) if isinstance(state, MapState) else state
    return found
