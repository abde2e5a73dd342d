"""The reader: committed state by key, by range and by prefix, as of an epoch, while a pipeline goes on writing, compacting and collecting.

    committed = CommittedState(ManifestLog(storage))
    committed.at(17)              one epoch: every answer is as of it, or `Overtaken`
    committed.newest()            the newest, in the same way
    committed.steady(read)        what `read` makes of the newest epoch; begun anew on a newer one if it was overtaken

Rules
1. What is read is committed, whether the pipeline runs, has stopped, or has crashed. Nothing is ever written to the checkpoint.
2. Objects that an older manifest names may be collected at any time. That is never damage. Damage is said only if the newest manifest names an object
   that is missing or broken.
3. The log answers without reading whole segments (`state/blocks.py`).
4. Readers are safe for threads, and share what is in memory.
"""

from __future__ import annotations

import heapq
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from millstream.errors import CheckpointError, DamageError, Overtaken
from millstream.state.blocks import LIMIT, Chain, Segments
from millstream.state.gc import named_by, second_of
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.queries import Reader

TRIES = 20  # how often a reader that comes to nothing is overtaken, until it gives up
_PATIENCE = 0.01  # seconds

_T = TypeVar("_T")


class AsOf(Reader):
    """Committed state as of one epoch; `Overtaken` when that is gone."""

    def __init__(self, committed: CommittedState, manifest: Manifest) -> None:
        self._committed = committed
        self.manifest = manifest
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, int], Chain] = {}

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        try:
            return self._store(computation, shard).get(key)
        except DamageError as error:
            self._explain(error)
            raise

    def scan(self, computation: str, start: bytes, stop: bytes, *, shard: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        shards: Sequence[int] = range(len(self.computation(computation).shards)) if shard is None else [shard]
        try:
            found = [self._store(computation, one).scan(start, stop) for one in shards]
            yield from heapq.merge(*found, key=itemgetter(0)) if len(found) != 1 else found[0]
        except DamageError as error:
            self._explain(error)
            raise

    def _store(self, computation: str, shard: int) -> Chain:
        shards = self.computation(computation).shards
        if not 0 <= shard < len(shards):
            return Chain(self._committed.segments, [])
        with self._lock:
            found = self._stores.get((computation, shard))
            if found is None:
                found = self._stores[computation, shard] = Chain(self._committed.segments, shards[shard].segments)
        return found

    def _explain(self, error: DamageError) -> None:
        """Raises Overtaken if that is what it was."""
        newest = self._committed.log.latest()
        if newest is not None and newest.epoch != self.epoch and error.object not in named_by(newest):
            raise Overtaken(
                f"epoch {self.epoch} of {self._committed.log.storage.url} has been collected meanwhile ({error}). {_kept(self._committed.log)}"
            ) from error


class CommittedState:
    """The committed state of a checkpoint. memory: how many bytes of the log are kept in memory at most."""

    def __init__(self, log: ManifestLog, *, memory: int = LIMIT) -> None:
        self.log = log
        self.segments = Segments(log.storage, memory)

    def at(self, epoch: int) -> AsOf:
        """A reader as of an epoch."""
        self.log.identity()
        try:
            return AsOf(self, self.log.read(epoch))
        except DamageError as error:
            if self.log.exists(epoch):
                raise
            raise Overtaken(f"{self.log.storage.url} has no epoch {epoch}. {_kept(self.log)}") from error

    def newest(self) -> AsOf:
        """A reader of the newest epoch, that stays there."""
        self.log.identity()
        found = self.log.latest()
        if found is None:
            raise CheckpointError(f"{self.log.storage.url} has no committed epoch yet.")
        return AsOf(self, found)

    def newer(self, cut: AsOf) -> AsOf:
        """A reader to go on with, for one that was overtaken: of an epoch that lasts (`state/compaction.py`), if there is a newer one, or of the newest."""
        newest = self.newest()
        return newest if second_of(cut.manifest.now) == second_of(newest.manifest.now) else self.lasting(newest, cut.epoch)

    def lasting(self, newest: AsOf, after: int = -1) -> AsOf:
        """A reader of the first epoch of the newest one's second (and after an epoch), which is kept for a minute; or else of the newest."""
        second = second_of(newest.manifest.now)
        epochs = [epoch for epoch in self.log.epochs() if after < epoch <= newest.epoch]
        try:
            at = bisect_left(epochs, second, key=lambda epoch: second_of(self.log.read(epoch).now))
            return AsOf(self, self.log.read(epochs[at]))
        except (DamageError, IndexError):
            return newest  # gone meanwhile, or a clock was put back

    def steady(self, read: Callable[[AsOf], _T]) -> _T:
        """What `read` makes of one epoch, the newest; begun anew on a newer one if that is collected meanwhile."""
        cut = self.newest()
        for left in reversed(range(TRIES)):
            with cut:
                try:
                    return read(cut)
                except (Overtaken, DamageError):
                    newest = self.log.latest()
                    if not left or newest is None or newest.epoch == cut.epoch:
                        raise
            # after some vain attempts it waits, a little longer each time, and over a second in all: then an epoch has come that lasts
            time.sleep(_PATIENCE * max(0, TRIES - 4 - left))
            cut = self.newer(cut)
        raise AssertionError("unreachable")


def steady(log: ManifestLog, read: Callable[[AsOf], _T]) -> _T:
    """What `read` makes of the newest epoch of a log, for whoever asks once."""
    return CommittedState(log).steady(read)


def _kept(log: ManifestLog) -> str:
    """Which epochs there are, in words."""
    stretches = [[epoch for _, epoch in some] for _, some in groupby(enumerate(log.epochs()), key=lambda one: one[1] - one[0])]
    said = [str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in stretches]
    return f"There are the epochs {', '.join(said)}." if said else "There are no epochs."
