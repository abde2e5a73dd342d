"""What a worker process keeps between tasks: the program, the order under way, the checkpoint's storage, replicas and filters. Losing it costs time only."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.dedup import SpanFilters
from millstream.engine.columns.arrow import ValueColumn
from millstream.engine.program import Compiled, Program
from millstream.state.manifest import Manifest
from millstream.state.replica import ReplicaView, open_replica, replica_root
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage, open_storage

_FREEZE_EVERY = 200  # tasks


class RunPlace(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    replicas: str | None
    shards: int
    values: list[list[ValueColumn]] = []


_COMPILED: dict[str, Compiled] = {}
_STORAGE: dict[str, Storage] = {}
_FILTERS: dict[tuple[str, str, int, str], SpanFilters] = {}  # checkpoint, lineage, shard, stream


def compiled_of(digest: str, blob: bytes) -> Compiled:
    found = _COMPILED.get(digest)
    if found is None:
        program: Program = pickle.loads(blob)
        _COMPILED.clear()
        found = _COMPILED[digest] = Compiled(program)
    return found


_DECODED: dict[Any, tuple[bytes, Any]] = {}
_tasks = 0


def decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What the driver says to all tasks of an epoch is decoded once per process, not once per shard and group. Nobody changes it."""
    known = _DECODED.get(decode)
    if known is None or known[0] != data:
        known = _DECODED[decode] = (data, decode(data))
    return known[1]


def freeze() -> None:
    """PySpark looks for garbage after every task, among all that a worker has loaded: about 40 ms. What is there after the first task (modules, programs,
    caches) is taken out of that search, and again from time to time what has come to stay since."""
    global _tasks
    _tasks += 1
    if _tasks == 1 or _tasks % _FREEZE_EVERY == 0:
        gc.collect()
        gc.freeze()


def storage_of(place: RunPlace) -> Storage:
    """The checkpoint's storage, opened once per process."""
    found = _STORAGE.get(place.checkpoint)
    if found is None:
        found = _STORAGE[place.checkpoint] = open_storage(place.checkpoint, place.storage_options)
    return found


class ProcessCache:
    """Replicas in LMDB and filters in memory, of the process that happens to run a shard. Implements the task's Cache."""

    def __init__(self, place: RunPlace) -> None:
        self._checkpoint_id = place.checkpoint_id
        self._root = replica_root(place.checkpoint_id, place.replicas)
        self._storage = storage_of(place)

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> ReplicaView:
        return open_replica(self._root, lineage, shard).view(self._storage, chain, before)

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return _FILTERS.setdefault((self._checkpoint_id, lineage, shard, stream), SpanFilters())
