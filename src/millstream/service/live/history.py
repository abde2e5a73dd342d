"""What each epoch changed, kept for those who watch.

Rules
1. Only what is watched is read. The buffer is bounded in bytes over all computations; the oldest change set goes first, the newest never.
2. A change set says what the epochs first to last changed, merged: the rows (entries of kind R), and which rows have other entries in their MapStates.
   It follows `after`: applied to the state as of that epoch, or of any later one up to `last`, it gives that of `last`.
3. What the buffer lacks the log may still have: the segments of a manifest that reach past an epoch. One that was compacted says more than was asked,
   which ends in the same rows. Only where a base (from which deletions are gone) reaches past it nothing can be said, and a watcher begins anew.
4. A computation is known by its lineage, so one that is renamed goes on, and one that takes the name of another does not.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec

from millstream.core.keyspace import ROW, SUB, after
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.segment import read_blocks
from millstream.state.storage import Storage

LIMIT = 64 << 20  # bytes
_PER_ROW = 120  # what Python adds to a key and a value, about


class ChangeSet(msgspec.Struct, frozen=True):
    """Rule 2. keys ascend; a value of None: the row is gone. touched: keys of rows whose MapStates changed, ascending."""

    after: int
    first: int
    last: int
    low_watermark: int
    keys: list[bytes]
    values: list[bytes | None]
    touched: list[bytes]
    size: int

    def shown(self, of: Wanted) -> set[bytes]:
        """The keys of wanted rows that may look different now."""
        return {self.keys[at] for at in of.places(self.keys)} | {self.touched[at] for at in of.places(self.touched)}


class Wanted(msgspec.Struct, frozen=True):
    """Which rows a watcher wants: those of some keys, or all whose keys begin with a prefix."""

    keys: tuple[bytes, ...] = ()
    prefix: bytes = b""

    def places(self, keys: Sequence[bytes]) -> Iterable[int]:
        """Where they are in a sorted list of keys.

        >>> list(Wanted(prefix=b"b").places([b"a", b"b", b"ba", b"c"])), list(Wanted((b"c", b"x")).places([b"a", b"c"]))
        ([1, 2], [1])
        """
        if self.keys:
            found = ((at, key) for key in self.keys if (at := bisect_left(keys, key)) < len(keys))
            return [at for at, key in found if keys[at] == key]
        return range(bisect_left(keys, self.prefix), bisect_left(keys, after(self.prefix)) if self.prefix else len(keys))


class ChangeHistory:
    """The buffer. `watched`: lineages of what is watched now."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._watchers: Counter[str] = Counter()
        self._sets: dict[str, deque[ChangeSet]] = {}
        self._order: deque[str] = deque()
        self._gone: dict[str, int] = {}  # by lineage: the last epoch that had to go
        self.bytes = 0

    @property
    def watched(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._watchers)

    def begin(self, lineage: str) -> None:
        with self._lock:
            self._watchers[lineage] += 1

    def end(self, lineage: str) -> None:
        with self._lock:
            self._watchers[lineage] -= 1
            self._watchers += Counter()

    def add(self, lineage: str, changes: ChangeSet) -> None:
        with self._lock:
            self._sets.setdefault(lineage, deque()).append(changes)
            self._order.append(lineage)
            self.bytes += changes.size
            while self.bytes > self.limit and len(self._order) > 1:
                oldest = self._order.popleft()
                gone = self._sets[oldest].popleft()
                self.bytes -= gone.size
                self._gone[oldest] = gone.last

    def since(self, lineage: str, epoch: int, upto: int) -> list[ChangeSet] | None:
        """What leads from one epoch to another, or None if it is not all here."""
        found: list[ChangeSet] = []
        with self._lock:
            for one in self._sets.get(lineage, ()):
                if epoch < one.last <= upto:
                    if one.after > epoch:
                        return None
                    found.append(one)
                    epoch = one.last
        return found if epoch == upto else None

    def has_dropped(self, lineage: str, epoch: int) -> bool:
        """Whether what came after an epoch was here, and had to go: a watcher that still needs it is too slow."""
        return self._gone.get(lineage, -1) > epoch

    def start_over(self) -> None:
        with self._lock:
            self._sets.clear()
            self._order.clear()
            self._gone.clear()
            self.bytes = 0


def read_changes(storage: Storage, name: str, manifest: Manifest, epoch: int, limit: int = LIMIT) -> ChangeSet | None:
    """What the log says that a computation changed between an epoch and a manifest's; None where it does not say (rule 3), or says more than can be held."""
    state: ComputationState = manifest.computations[name]
    if sum(ref.length for shard in state.shards for ref in shard.segments if ref.last > epoch) > limit:
        return None
    rows: dict[bytes, bytes | None] = {}
    touched: set[bytes] = set()
    first = epoch + 1
    end = after(ROW)
    for shard in state.shards:
        newer = [ref for ref in shard.segments if ref.last > epoch]
        if any(ref.base for ref in newer):
            return None
        for ref in newer:
            first = min(first, ref.first)
            for keys, values in read_blocks(storage, ref):
                low, high = bisect_left(keys, ROW), bisect_left(keys, end)
                rows.update(zip([key[1:] for key in keys[low:high]], values[low:high], strict=True))
                for key in keys[bisect_left(keys, SUB) : bisect_left(keys, after(SUB))]:
                    touched.add(key[5 : 5 + int.from_bytes(key[1:5], "big")])
    keys_found = sorted(rows)
    others = sorted(touched - rows.keys())
    size = sum(map(len, keys_found)) + sum(map(len, others)) + sum(len(value) for value in rows.values() if value is not None)
    return ChangeSet(
        after=epoch,
        first=first,
        last=manifest.epoch,
        low_watermark=state.low_watermark,
        keys=keys_found,
        values=[rows[key] for key in keys_found],
        touched=others,
        size=size + _PER_ROW * (len(rows) + len(others) + 4),
    )
