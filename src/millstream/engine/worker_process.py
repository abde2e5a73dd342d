"""What a worker process keeps between tasks: programs, what the driver says, storages, state caches and filters. Losing it costs time only.

Rule: Spark's workers outlive pipelines. What was not asked for within `IDLE`, and what is more than `MOST` of a kind, is closed; between two tasks, when
nothing of it is in use.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from millstream.core.dedup import SpanFilters
from millstream.engine.columns.batches import ValueColumn
from millstream.engine.program import Compiled
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef
from millstream.state.state_cache import StateCacheView, close_state_cache, open_state_cache, state_cache_root
from millstream.state.storage import Storage, open_storage

IDLE = 600.0  # seconds
MOST = 4096  # of a kind
_FREEZE_EVERY = 200  # tasks
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RunPlace(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    state_caches: str | None
    shards: int
    values: list[list[ValueColumn]] = []


class IdleCache(Generic[Key, Value]):
    """Values by key, each with the time at which it was last asked for, oldest first. close: lets go of what a value holds."""

    def __init__(self, clock: Callable[[], float], close: Callable[[Key, Value], None] = lambda key, value: None) -> None:
        self._clock = clock
        self._close = close
        self._kept: dict[Key, tuple[Value, float]] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there."""
        known = self._kept.pop(key, None)
        value = make() if known is None else known[0]
        self._kept[key] = (value, self._clock())
        return value

    def evict(self, idle: float = IDLE) -> None:
        """Closes what was not asked for within so many seconds, and what is more than `MOST`."""
        now, excess = self._clock(), len(self._kept) - MOST
        for at, (key, (value, used)) in enumerate(list(self._kept.items())):
            if at >= excess and now - used <= idle:
                return
            del self._kept[key]
            self._close(key, value)

    def __len__(self) -> int:
        return len(self._kept)


class WorkerProcess:
    """All that one process keeps. One object per process (`PROCESS`); tests make their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._programs: IdleCache[str, Compiled] = IdleCache(clock, _close_sinks)  # by digest
        self._storages: IdleCache[bytes, Storage] = IdleCache(clock)  # by URL and options
        self.filters: IdleCache[tuple[str, str, int, str], SpanFilters] = IdleCache(clock)  # checkpoint, lineage, shard, stream
        # root, lineage, shard; `state/state_cache` has them: a process may open one only once
        self.state_caches: IdleCache[tuple[Path, str, int], None] = IdleCache(clock, lambda key, _: close_state_cache(*key))
        self._decoded: dict[Any, tuple[bytes, Any]] = {}  # by decoder: the last bytes, and what they are
        self._tasks = 0
        self._evicted = 0.0

    def compiled(self, digest: str, blob: bytes) -> Compiled:
        return self._programs.get(digest, lambda: Compiled(pickle.loads(blob)))

    def decoded(self, data: bytes, decode: Callable[[bytes], Any]) -> Any:
        """What the driver says to all tasks of an epoch is decoded once per process, not once per shard and group. No task changes it."""
        known = self._decoded.get(decode)
        if known is None or known[0] != data:
            known = self._decoded[decode] = (data, decode(data))
        return known[1]

    def storage(self, place: RunPlace) -> Storage:
        key = msgspec.msgpack.encode([place.checkpoint, place.storage_options], order="deterministic")
        return self._storages.get(key, lambda: open_storage(place.checkpoint, place.storage_options))

    def cache(self, place: RunPlace) -> ProcessCache:
        """The task's Cache, for a checkpoint."""
        return ProcessCache(self, place)

    def end_task(self) -> None:
        """Between two tasks: lets go of what is not used any more, and keeps Python's search for garbage short. PySpark looks for it after every task, among
        all that a worker has loaded: about 40 ms. What is there after the first task (modules, programs, caches) is taken out of that search, and again from
        time to time what has come to stay since."""
        now = self._clock()
        if now - self._evicted > IDLE / 10:
            self._evicted = now
            self._evict(IDLE)
        self._tasks += 1
        if self._tasks == 1 or self._tasks % _FREEZE_EVERY == 0:
            gc.collect()
            gc.freeze()

    def _evict(self, idle: float) -> None:
        for cache in (self._programs, self._storages, self.filters, self.state_caches):
            cache.evict(idle)  # type: ignore[attr-defined]

    def stats(self) -> dict[str, int]:
        kept = {"programs": self._programs, "storages": self._storages, "filters": self.filters, "state_caches": self.state_caches}
        return {name: len(cache) for name, cache in kept.items()}  # type: ignore[arg-type]

    def close(self) -> None:
        self._evict(-1.0)


def _close_sinks(_: str, compiled: Compiled) -> None:
    for emission in compiled.topology.emissions:
        emission.sink.close()


class ProcessCache:
    """State caches in LMDB and filters in memory, of the process that happens to run a shard. Implements the task's Cache."""

    def __init__(self, process: WorkerProcess, place: RunPlace) -> None:
        self._process, self._id, self._storage = process, place.checkpoint_id, process.storage(place)
        self._root = state_cache_root(place.checkpoint_id, place.state_caches)

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> StateCacheView:
        self._process.state_caches.get((self._root, lineage, shard), lambda: None)
        return open_state_cache(self._root, lineage, shard).view(self._storage, chain, before)

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return self._process.filters.get((self._id, lineage, shard, stream), SpanFilters)


PROCESS = WorkerProcess()
