"""Pinned epochs: the newest epochs of a checkpoint, each whole, for as long as it may be asked for.

Rules
1. A pinned epoch is one manifest over all keys, shards and computations. It is made of LMDB read transactions (`StateCache.hold`), one per shard, so it stays
   what it is while newer epochs are applied, and whatever the pipeline compacts and collects meanwhile.
2. A shard that an epoch has not changed shares the transaction of the epoch before: idle shards cost nothing.
3. The last `KEEP` epochs are pinned. All but the newest go after `MAX_AGE` seconds at the latest: what is pinned keeps LMDB from using pages again.
4. A reader takes an epoch (`take`) and closes it. It lasts until then, and no longer.
5. The copies are this server's alone: it takes the first numbered folder that no other process holds (a lock on a file). So no other process changes them,
   and the next server finds them as they are, and needs only what is new.
6. Only the thread that follows the checkpoint opens and ends transactions; ending one may have to wait for an epoch that is being applied.
7. A pinned epoch has a `generation`. Epochs of different generations are of different histories: nothing leads from one to the other.
"""

from __future__ import annotations

import heapq
import itertools
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from millstream.errors import StorageError
from millstream.state.durable import lock_folder
from millstream.state.manifest import Manifest
from millstream.state.queries import Reader
from millstream.state.segment import SegmentRef
from millstream.state.state_cache import Held, close_state_cache, open_state_cache, state_cache_root
from millstream.state.storage import Storage

KEEP = 8
MAX_AGE = 60.0  # seconds
PATIENCE = 60.0  # seconds for one answer
_MAP_SIZE = 1 << 35  # per shard: addresses, of which a process has 2**47

ShardName = tuple[str, int]  # lineage and number


class PinnedEpoch(Reader):
    """One epoch, over all keys, shards and computations. Taken by `PinnedEpochs.take`, and closed by the one that took it.

    confirmed: the last moment (of the monotonic clock) at which it was known to be the newest committed epoch.
    """

    def __init__(self, manifest: Manifest, held: dict[ShardName, Held], generation: int, given_back: Callable[[PinnedEpoch], None]) -> None:
        self.manifest, self.held, self.generation, self._given_back = manifest, held, generation, given_back
        self.confirmed = 0.0
        self.replaced: float | None = None
        self.count = 1
        self._stores = {
            (name, number): held[state.lineage or name, number]
            for name, state in manifest.computations.items()
            for number in range(len(state.shards))
            if (state.lineage or name, number) in held
        }

    def age_ms(self) -> int:
        """Milliseconds since it was last known to be the newest committed epoch: so old may the answer be."""
        return max(0, int((time.monotonic() - self.confirmed) * 1000))

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        held = self._stores.get((computation, shard))
        return None if held is None else held.get(key)

    def scan(self, computation: str, start: bytes, stop: bytes, *, shard: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        shards: Sequence[int] = range(len(self.computation(computation).shards)) if shard is None else [shard]
        found = [held.scan(start, stop) for one in shards if (held := self._stores.get((computation, one))) is not None]
        return heapq.merge(*found, key=itemgetter(0)) if len(found) != 1 else found[0]

    def close(self) -> None:
        self._given_back(self)


class PinnedEpochs:
    """The pinned epochs of one checkpoint. `folder`: where the copies are; by default where all state caches of this host are."""

    def __init__(
        self, folder: str | Path | None = None, *, keep: int = KEEP, max_age: float = MAX_AGE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = None if folder is None else str(folder)
        self._keep = keep
        self._max_age = max_age
        self._clock = clock
        self._lock = threading.Lock()
        self._pins: list[PinnedEpoch] = []
        self._alive: set[PinnedEpoch] = set()  # those that are pinned or taken
        self._over: deque[PinnedEpoch] = deque()  # those whose transactions are to end, rule 6
        self._opened: set[ShardName] = set()
        self._root: Path | None = None
        self._locks: list[int] = []
        self.generation = 0

    # --- for readers, on any thread

    @property
    def newest(self) -> PinnedEpoch | None:
        """The newest one, to look at its manifest. To read of it, take it."""
        pins = self._pins
        return pins[-1] if pins else None

    @property
    def pinned(self) -> list[int]:
        return [pin.epoch for pin in self._pins]

    def take(self, epoch: int | None = None) -> PinnedEpoch | None:
        """The newest, or the one of a number; None if it is not pinned. Rule 4."""
        with self._lock:
            for pin in reversed(self._pins):
                if epoch is None or pin.epoch == epoch:
                    pin.count += 1
                    return pin
        return None

    def confirm(self, epoch: int, when: float) -> None:
        newest = self.newest
        if newest is not None and newest.epoch == epoch:
            newest.confirmed = max(newest.confirmed, when)

    def _given_back(self, pin: PinnedEpoch) -> None:
        with self._lock:
            pin.count -= 1
            if not pin.count:
                self._over.append(pin)

    # --- for the thread that follows

    def open(self, checkpoint: str) -> Path:
        """Takes a folder for the copies of a checkpoint's state. Rule 5."""
        if self._root is None:
            self._root, lock = _own_folder(state_cache_root(checkpoint, self._folder) / "live")
            self._locks.append(lock)
        return self._root

    def prepare(self, storage: Storage, manifest: Manifest) -> PinnedEpoch:
        """Applies an epoch. It is not visible before it is published."""
        before = self.newest
        known = {} if before is None else before.held
        found: dict[ShardName, Held] = {}
        try:
            for name, state in manifest.computations.items():
                for number, shard in enumerate(state.shards):
                    own = (state.lineage or name, number)
                    if not shard.segments:
                        continue
                    if before is None or own not in known or any(ref.last > before.epoch for ref in shard.segments):
                        found[own] = self._hold(storage, own, shard.segments, manifest)
                    else:
                        found[own] = known[own]
        except BaseException:
            for own, held in found.items():
                if held is not known.get(own):
                    held.close()
            raise
        pin = PinnedEpoch(manifest, found, self.generation, self._given_back)
        self._alive.add(pin)
        return pin

    def publish(self, pin: PinnedEpoch, confirmed: float) -> None:
        pin.confirmed = confirmed
        if self._pins:
            self._pins[-1].replaced = self._clock()
        with self._lock:
            self._pins = [*self._pins, pin]
        self.trim()

    def trim(self) -> None:
        """Rule 3; and ends transactions without readers."""
        now, pins = self._clock(), self._pins
        kept = [
            pin
            for at, pin in enumerate(pins, 1)
            if at == len(pins) or (len(pins) - at < self._keep and (pin.replaced is None or now - pin.replaced <= self._max_age))
        ]
        if len(kept) < len(pins):
            self._pins = kept
            for pin in pins:
                if pin not in kept:
                    pin.close()
            self._forget_others()
        while self._over:
            over = self._over.popleft()
            self._alive.discard(over)
            shared = {held for pin in self._alive for held in pin.held.values()}
            for held in over.held.values():
                if held not in shared:
                    held.close()

    def start_over(self) -> None:
        """What comes is of another history: nothing that is pinned leads to it. It gets a folder of its own, since this one may still be read."""
        pins, self._pins = self._pins, []
        self.generation += 1
        for pin in pins:
            pin.close()
        self.trim()
        self._forget_others()
        self._root = None

    def close(self) -> None:
        """The server ends. What is still taken lasts until it is closed."""
        self.start_over()
        for lock in self._locks:
            os.close(lock)
        self._locks = []

    def _hold(self, storage: Storage, own: ShardName, chain: Sequence[SegmentRef], manifest: Manifest) -> Held:
        assert self._root is not None, "open comes first"
        self._opened.add(own)
        cache = open_state_cache(self._root, *own, _MAP_SIZE)
        held = cache.hold(storage, chain, manifest)
        if held is None:  # it is of a history that went further than this one
            shutil.rmtree(cache.folder, ignore_errors=True)
            held = open_state_cache(self._root, *own, _MAP_SIZE).hold(storage, chain, manifest)
        if held is None:
            who = f"the copy of {own[0]}, shard {own[1]}, in {cache.folder}"
            raise StorageError(f"{who} cannot grow past {_MAP_SIZE >> 30} GB. Use more shards: a new checkpoint.")
        return held

    def _forget_others(self) -> None:
        """Closes copies of what no pinned epoch has any more, and deletes those of computations that are gone."""
        if self._root is None:
            return
        needed = {own for pin in self._pins for own in pin.held}
        for own in self._opened - needed:
            close_state_cache(self._root, *own)
            if self._pins:
                shutil.rmtree(self._root / own[0] / str(own[1]), ignore_errors=True)
        self._opened &= needed


def _own_folder(base: Path) -> tuple[Path, int]:
    """The first numbered folder that no other process holds, and the handle of its lock."""
    for number in itertools.count():
        lock = lock_folder(base, f"{number}.lock")
        if lock is not None:
            return base / str(number), lock
    raise AssertionError
