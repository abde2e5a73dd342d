"""The reader: committed state by key, by range and by prefix, as of an epoch, while a pipeline goes on writing, compacting and collecting.

    committed = CommittedState(ManifestLog(storage))
    committed.at(17)              one epoch: every answer is as of it, or `Overtaken`
    committed.at()                the newest; goes on at a newer one when it must. `epoch` says which one the last answer was of
    committed.steady(read)        what `read` makes of the newest epoch; begun anew if it was overtaken

Rules
1. What is read is committed, whether the pipeline runs, has stopped, or has crashed. Nothing is ever written to the checkpoint.
2. Objects that an older manifest names may be collected at any time. That is never damage. Damage is said only if the newest manifest names an object
   that is missing or broken.
3. A scan of `at()` that is overtaken goes on behind the last key that it gave, at a newer epoch: every key comes once and in order, each as of an epoch
   that was the newest meanwhile, later keys never as of an earlier epoch. Whoever needs one cut through all of them uses `steady`, or `at(epoch)`.
4. The log answers without reading whole segments (`state/blocks.py`). With `state_caches=` an LMDB copy on this host answers (`state/state_cache.py`), brought
   up to date when it is asked, and holds its epoch: what it has begun to answer cannot be overtaken. It is not the workers' copy, whatever the folder.
5. Readers are safe for threads, and share what is in memory. Close one that uses state caches, or forget it: it holds pages.
"""

from __future__ import annotations

import heapq
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from millstream.errors import CheckpointError, DamageError, Overtaken
from millstream.state.blocks import LIMIT, CacheStats, Chain, Segments
from millstream.state.gc import named_by, second_of
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.queries import Reader
from millstream.state.state_cache import READERS_MAP_SIZE, Held, open_state_cache, state_cache_root

TRIES = 20  # how often a reader that comes to nothing is overtaken, until it gives up
_PATIENCE = 0.01  # seconds

_T = TypeVar("_T")


class AsOf(Reader):
    """Committed state as of one epoch; `Overtaken` when that is gone."""

    def __init__(self, committed: CommittedState, manifest: Manifest) -> None:
        self._committed = committed
        self._manifest = manifest
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, int], Chain | Held] = {}

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        try:
            return self._store(computation, shard).get(key)
        except DamageError as error:
            self._explain(error)
            raise

    def scan(
        self, computation: str, start: bytes, stop: bytes, *, reverse: bool = False, shard: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        shards: Sequence[int] = range(len(self.computation(computation).shards)) if shard is None else [shard]
        try:
            found = [self._store(computation, one).scan(start, stop, reverse) for one in shards]
            yield from heapq.merge(*found, key=itemgetter(0), reverse=reverse) if len(found) != 1 else found[0]
        except DamageError as error:
            self._explain(error)
            raise

    def close(self) -> None:
        with self._lock:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()

    def _store(self, computation: str, shard: int) -> Chain | Held:
        shards = self.computation(computation).shards
        if not 0 <= shard < len(shards):
            return Chain(self._committed.segments, [])
        with self._lock:
            found = self._stores.get((computation, shard))
            if found is None:
                found = self._stores[computation, shard] = self._committed.store(self._manifest, computation, shard)
        return found

    def _explain(self, error: DamageError) -> None:
        """Raises Overtaken if that is what it was."""
        newest = latest(self._committed.log)
        if newest is not None and newest.epoch != self.epoch and error.object not in named_by(newest):
            raise Overtaken(
                f"epoch {self.epoch} of {self._committed.log.storage.url} has been collected meanwhile ({error}). {_kept(self._committed.log)}"
            ) from error


class Following(Reader):
    """Committed state as of the newest epoch, and when that is gone, as of a newer one."""

    def __init__(self, committed: CommittedState, cut: AsOf) -> None:
        self._committed = committed
        self._lock = threading.Lock()
        self._cut = cut

    @property
    def manifest(self) -> Manifest:
        return self._cut.manifest

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        left = TRIES
        while True:
            cut = self._cut
            try:
                return cut.entry(computation, shard, key)
            except Overtaken:
                left -= 1
                if not left:
                    raise
                self._go_on(cut, left)

    def scan(
        self, computation: str, start: bytes, stop: bytes, *, reverse: bool = False, shard: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        last, times, left = b"", 0, TRIES  # the last key given, how often (shards may share one), and how many vain attempts are left
        while True:
            cut, skip = self._cut, times
            try:
                for key, value in cut.scan(computation, start, stop, reverse=reverse, shard=shard):
                    if skip and key == last:
                        skip -= 1
                        continue
                    last, times, skip, left = key, times + 1 if key == last and times else 1, 0, TRIES
                    yield key, value
                return
            except Overtaken:
                left -= 1
                if not left:
                    raise
                self._go_on(cut, left)
                if times and reverse:
                    stop = last + b"\0"
                elif times:
                    start = last

    def close(self) -> None:
        self._cut.close()

    def _go_on(self, cut: AsOf, left: int) -> None:
        _wait(left)
        with self._lock:
            if self._cut is cut:
                self._cut = self._committed.newer(cut)  # others may still read the one before: it goes when they are done


class CommittedState:
    """The committed state of a checkpoint. state caches: a folder for LMDB copies of what is asked for; without it the log answers.

    memory: how many bytes of the log are kept in memory at most.
    """

    def __init__(self, log: ManifestLog, *, state_caches: str | Path | None = None, memory: int = LIMIT) -> None:
        self.log = log
        self.segments = Segments(log.storage, memory)
        self._folder = state_caches
        self._state_caches: Path | None = None
        self._known = False

    def at(self, epoch: int | None = None) -> AsOf | Following:
        """A reader as of an epoch, or of the newest and then of newer ones."""
        if epoch is None:
            return Following(self, self.newest())
        self._check()
        try:
            return AsOf(self, self.log.read(epoch))
        except DamageError as error:
            if self.log.exists(epoch):
                raise
            raise Overtaken(f"{self.log.storage.url} has no epoch {epoch}. {_kept(self.log)}") from error

    def newest(self) -> AsOf:
        """A reader of the newest epoch, that stays there."""
        self._check()
        found = latest(self.log)
        if found is None:
            raise CheckpointError(f"{self.log.storage.url} has no committed epoch yet.")
        return AsOf(self, found)

    def newer(self, cut: AsOf) -> AsOf:
        """A reader to go on with, for one that was overtaken: of an epoch that lasts (`state/compaction.py`), if there is a newer one, or of the newest."""
        newest = self.newest()
        second = second_of(newest.manifest.now)
        if second_of(cut.manifest.now) != second:
            epochs = [epoch for epoch in self.log.epochs() if cut.epoch < epoch <= newest.epoch]
            try:
                at = bisect_left(epochs, second, key=lambda epoch: second_of(self.log.read(epoch).now))
                return AsOf(self, self.log.read(epochs[at]))
            except (DamageError, IndexError):
                pass  # gone meanwhile, or a clock was put back
        return newest

    def steady(self, read: Callable[[AsOf], _T]) -> _T:
        """What `read` makes of one epoch, the newest; begun anew on a newer one if that is collected meanwhile."""
        cut = self.newest()
        left = TRIES
        while True:
            left -= 1
            with cut:
                try:
                    return read(cut)
                except (Overtaken, DamageError):
                    newest = latest(self.log)
                    if not left or newest is None or newest.epoch == cut.epoch:
                        raise
            _wait(left)
            cut = self.newer(cut)

    def store(self, manifest: Manifest, computation: str, shard: int) -> Chain | Held:
        """The entries of a shard as of a manifest: from a state cache, if there is to be one and it can, or from the log."""
        state = manifest.computations[computation]
        chain = state.shards[shard].segments
        if self._folder is not None:
            if self._state_caches is None:
                self._state_caches = state_cache_root(self.log.identity().id, str(self._folder)) / "readers"
            state_cache = open_state_cache(self._state_caches, state.lineage or computation, shard, READERS_MAP_SIZE)
            held = state_cache.hold(self.log.storage, chain, manifest)
            if held is not None:
                return held
        return Chain(self.segments, chain)

    def stats(self) -> CacheStats:
        return self.segments.stats()

    def _check(self) -> None:
        if not self._known:
            self.log.identity()
            self._known = True


def steady(log: ManifestLog, read: Callable[[AsOf], _T]) -> _T:
    """What `read` makes of the newest epoch of a log, for whoever asks once."""
    return CommittedState(log).steady(read)


def latest(log: ManifestLog) -> Manifest | None:
    """The newest manifest, also while older ones are collected."""
    for _ in range(TRIES - 1):
        epochs = log.epochs()
        try:
            return log.read(epochs[-1]) if epochs else None
        except DamageError:
            if log.epochs()[-1:] == epochs[-1:]:
                raise
    return log.latest()


def _wait(left: int) -> None:
    """After some vain attempts a reader waits, a little longer each time, and over a second in all: then an epoch has come that lasts."""
    time.sleep(_PATIENCE * max(0, TRIES - 4 - left))


def _kept(log: ManifestLog) -> str:
    """Which epochs there are, in words."""
    stretches = [[epoch for _, epoch in some] for _, some in groupby(enumerate(log.epochs()), key=lambda one: one[1] - one[0])]
    said = [str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in stretches]
    return f"There are the epochs {', '.join(said)}." if said else "There are no epochs."
