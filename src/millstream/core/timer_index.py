"""The index of timers and holds while a step runs: what it changes of it, and what is the earliest in the end.

Rule: the index has a key's earliest timer of a kind, no other. A step moves each entry once at most.
"""

from __future__ import annotations

from millstream.core.keyspace import HOLD, LOW_TIMER, WALL_TIMER, Store, after, timer_entry, timer_row_key, timer_time


class TimerIndex:
    """The index of one computation's shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes: dict[
            bytes, bytes | None
        ] = {}  # apart from those of rows, which are in order already: whoever sorts all of them is faster
        self._fresh: dict[bytes, list[bytes]] = {LOW_TIMER: [], WALL_TIMER: [], HOLD: []}

    def move(self, kind: bytes, row_key: bytes, before: int | None, now: int | None) -> None:
        """A key's earliest timer of a kind is another one, or there is none any more."""
        if before is not None:
            self.changes[timer_entry(kind, before, row_key)] = None
        if now is not None:
            entry = timer_entry(kind, now, row_key)
            self.changes[entry] = b""
            self._fresh[kind].append(entry)

    def earliest(self, kind: bytes, start: bytes) -> tuple[int | None, bytes | None]:
        """The earliest timer or hold left, and its row key: stored and not deleted, or new. start: where in the index nothing older is left."""
        changes, fresh = self.changes, self._fresh[kind]
        stored = next((entry for entry, _ in self._store.scan(start, after(kind)) if changes.get(entry, b"") is not None), None)
        first = min(fresh if stored is None else [*fresh, stored], default=None)
        return (None, None) if first is None else (timer_time(first), timer_row_key(first))

    def clear(self) -> None:
        """Nothing has been moved."""
        self.changes.clear()
        for entries in self._fresh.values():
            entries.clear()
