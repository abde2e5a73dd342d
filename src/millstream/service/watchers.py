"""Who watches a partition: what is told to watchers, what is kept for those who come back, and what becomes of slow ones.

Rules
1. Changes are told in the order of their records, after the store has them. A watcher hears of every record behind the position that it began with.
2. The last changes are kept while there are watchers and for `PATIENCE` after, in `KEPT` bytes at most, so that a watcher that was cut off can
   resume. Where that is not possible it is told to forget what it has (`RESET`), and gets all that is there.
3. A watcher that does not keep up is not waited for: when what it has not taken comes to `BEHIND` bytes, its stream ends and says where to go on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from millstream.errors import Stale
from millstream.service.limits import VersionedRow
from millstream.service.messages import ENTRY, Change

KEPT = 8 << 20
BEHIND = 4 << 20  # less than what is kept, so that who is told where to go on can go on there
PATIENCE = 600.0  # seconds


class CommittedChange(NamedTuple):
    """One record's changes of users' entries: its last position, the rows, and their size in bytes."""

    lsn: int
    rows: list[VersionedRow]
    size: int


class PartitionWatcher:
    def __init__(self, wants: Callable[[bytes], bool]) -> None:
        self._wants = wants
        self._waiting: deque[CommittedChange] = deque()
        self._size = 0
        self._told = asyncio.Event()
        self._over: Stale | None = None

    def tell(self, lsn: int, rows: list[VersionedRow], kept: bool = False) -> None:
        """Rules 1 and 3. kept: from before it joined. That it has not taken this yet is not held against it, or who fell behind could never go on."""
        wanted = [row for row in rows if self._wants(row[0])]
        if self._over is not None or not wanted:
            return
        size = 0 if kept else sum(len(key) + len(value) + 64 for key, value, _ in wanted)
        self._size += size
        if self._size > BEHIND:
            first = self._waiting[0].lsn if self._waiting else lsn
            self._waiting.clear()
            self._over = Stale(f"the watcher did not keep up: {self._size:,} bytes waited for it. Watch again, after position {first - 1}")
        else:
            self._waiting.append(CommittedChange(lsn, wanted, size))
        self._told.set()

    def end(self, error: Stale) -> None:
        self._over = self._over or error
        self._told.set()

    async def next(self) -> tuple[int, list[VersionedRow]]:
        while not self._waiting:
            if self._over is not None:
                raise self._over
            self._told.clear()
            await self._told.wait()
        lsn, rows, size = self._waiting.popleft()
        self._size -= size
        return lsn, rows


class Watchers:
    def __init__(self) -> None:
        self._all: set[PartitionWatcher] = set()
        self._kept: deque[CommittedChange] = deque()
        self._kept_size = 0
        self._since = -1  # every change behind this position is kept; -1: nothing is
        self._left = 0.0  # when the last watcher left

    def __len__(self) -> int:
        return len(self._all)

    def join(self, wants: Callable[[bytes], bool], applied: int, after: int | None) -> tuple[PartitionWatcher, bool]:
        """A new watcher, and whether it goes on where it was (rule 2); if not, it needs a snapshot as of `applied` first."""
        watcher = PartitionWatcher(wants)
        resumes = after is not None and (after == applied or (0 <= self._since <= after < applied))
        if self._since < 0:
            self._since = applied
        if resumes and after is not None:
            for lsn, rows, _ in self._kept:
                if lsn > after:
                    watcher.tell(lsn, rows, kept=True)
        self._all.add(watcher)
        return watcher, resumes

    def leave(self, watcher: PartitionWatcher) -> None:
        self._all.discard(watcher)
        self._left = time.monotonic()

    def tell(self, lsn: int, changes: Iterable[Sequence[Change]]) -> None:
        """A record was applied. Costs nothing without watchers."""
        if self._since < 0:
            return
        if not self._all and time.monotonic() - self._left > PATIENCE:
            self._forget()
            return
        rows: list[VersionedRow] = []
        for part in changes:
            for entry, stored in part:
                if entry[:1] == ENTRY:
                    rows.append((entry[1:], b"", 0) if stored is None else (entry[1:], stored[8:], int.from_bytes(stored[:8], "big")))
        if not rows:
            return
        size = sum(len(key) + len(value) + 64 for key, value, _ in rows)
        self._kept.append(CommittedChange(lsn, rows, size))
        self._kept_size += size
        while self._kept_size > KEPT and self._kept:
            gone = self._kept.popleft()
            self._since, self._kept_size = gone.lsn, self._kept_size - gone.size
        for watcher in self._all:
            watcher.tell(lsn, rows)

    def close(self, why: str) -> None:
        for watcher in self._all:
            watcher.end(Stale(why))
        self._all.clear()
        self._forget()

    def _forget(self) -> None:
        self._kept.clear()
        self._kept_size, self._since = 0, -1
