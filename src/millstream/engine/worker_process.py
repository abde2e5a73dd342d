"""What a worker process keeps between tasks: programs, the order under way, storages, replicas and filters. Losing it costs time only.

Rule: Spark's workers outlive pipelines. What nobody has asked for within `IDLE` is let go of, and closed; between two tasks, when nobody uses anything of it.
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
from millstream.engine.columns.arrow_rows import ValueColumn
from millstream.engine.program import Compiled
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef
from millstream.state.state_cache import ReplicaView, forget_replica, open_replica, replica_root
from millstream.state.storage import Storage, open_storage

IDLE = 600.0  # seconds
_FREEZE_EVERY = 200  # tasks
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RunPlace(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    replicas: str | None
    shards: int
    values: list[list[ValueColumn]] = []


class IdleCache(Generic[Key, Value]):
    """Values by key, each with the time at which it was last asked for. close: lets go of what one holds."""

    def __init__(self, close: Callable[[Key, Value], None] = lambda key, value: None) -> None:
        self._close = close
        self._kept: dict[Key, tuple[Value, float]] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there."""
        now = time.monotonic()
        found = self._kept.get(key)
        value = make() if found is None else found[0]
        self._kept[key] = (value, now)
        return value

    def sweep(self, now: float) -> None:
        """Lets go of what nobody has asked for."""
        for key in [key for key, (_, used) in self._kept.items() if now - used > IDLE]:
            self._close(key, self._kept.pop(key)[0])

    def __len__(self) -> int:
        return len(self._kept)


_COMPILED: IdleCache[str, Compiled] = IdleCache()  # by digest
_STORAGE: IdleCache[bytes, Storage] = IdleCache()  # by URL and options
_FILTERS: IdleCache[tuple[str, str, int, str], SpanFilters] = IdleCache()  # checkpoint, lineage, shard, stream
_REPLICAS: IdleCache[tuple[Path, str, int], None] = IdleCache(
    lambda key, _: forget_replica(*key)
)  # root, lineage, shard; `state/state_cache` has them


def compiled_of(digest: str, blob: bytes) -> Compiled:
    """A program, compiled once per process."""
    return _COMPILED.get(digest, lambda: Compiled(pickle.loads(blob)))


_DECODED: dict[Any, tuple[bytes, Any]] = {}
_tasks = 0
_swept = 0.0


def decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What the driver says to all tasks of an epoch is decoded once per process, not once per shard and group. Nobody changes it."""
    known = _DECODED.get(decode)
    if known is None or known[0] != data:
        known = _DECODED[decode] = (data, decode(data))
    return known[1]


def task_ended() -> None:
    """Between two tasks: lets go of what nobody uses any more, and keeps the search for garbage short."""
    global _swept
    now = time.monotonic()
    if now - _swept > IDLE / 10:
        _swept = now
        for cache in (_COMPILED, _STORAGE, _FILTERS, _REPLICAS):
            cache.sweep(now)  # type: ignore[attr-defined]
    _freeze()


def _freeze() -> None:
    """PySpark looks for garbage after every task, among all that a worker has loaded: about 40 ms. What is there after the first task (modules, programs,
    caches) is taken out of that search, and again from time to time what has come to stay since."""
    global _tasks
    _tasks += 1
    if _tasks == 1 or _tasks % _FREEZE_EVERY == 0:
        gc.collect()
        gc.freeze()


def storage_of(place: RunPlace) -> Storage:
    """The checkpoint's storage, opened once per process."""
    key = msgspec.msgpack.encode([place.checkpoint, place.storage_options], order="deterministic")
    return _STORAGE.get(key, lambda: open_storage(place.checkpoint, place.storage_options))


class ProcessCache:
    """Replicas in LMDB and filters in memory, of the process that happens to run a shard. Implements the task's Cache."""

    def __init__(self, place: RunPlace) -> None:
        self._checkpoint_id = place.checkpoint_id
        self._root = replica_root(place.checkpoint_id, place.replicas)
        self._storage = storage_of(place)

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> ReplicaView:
        _REPLICAS.get((self._root, lineage, shard), lambda: None)
        return open_replica(self._root, lineage, shard).view(self._storage, chain, before)

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return _FILTERS.get((self._checkpoint_id, lineage, shard, stream), SpanFilters)
