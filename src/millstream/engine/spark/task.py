"""A task on Spark: unpacks what the driver says, hands its rows to the task (engine/task.py), and lays out as Arrow what comes back.

Rows for later levels pass through the tasks of the levels before them; so do the receipts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream import faults
from millstream.core.dedup import SpanFilters
from millstream.core.topology import Route
from millstream.engine.columns import arrow
from millstream.engine.columns.inputs import ArrowInputs
from millstream.engine.program import Compiled, Program
from millstream.engine.receipts import EpochOrder, encode_receipt
from millstream.engine.task import Result, Task
from millstream.state.manifest import Manifest
from millstream.state.replica import ReplicaView, open_replica, replica_root
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage, open_storage

from . import pickling

_PIECE = 50_000  # rows of one Arrow batch


class RunPlace(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    replicas: str | None
    shards: int
    values: list[list[arrow.ValueColumn]] = []


_FREEZE_EVERY = 200  # tasks

_COMPILED: dict[str, Compiled] = {}
_STORAGE: dict[str, Storage] = {}
_FILTERS: dict[tuple[str, str, int, str], SpanFilters] = {}  # checkpoint, lineage, shard, stream


def _compiled(digest: str, blob: bytes) -> Compiled:
    found = _COMPILED.get(digest)
    if found is None:
        program: Program = pickling.loads(blob)
        _COMPILED.clear()
        found = _COMPILED[digest] = Compiled(program)
    return found


_decode_place = msgspec.msgpack.Decoder(RunPlace).decode
_decode_order = msgspec.msgpack.Decoder(EpochOrder).decode
_DECODED: dict[Any, tuple[bytes, Any]] = {}
_tasks = 0


def _decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What the driver says to all tasks of an epoch is decoded once per process, not once per shard and group. Nobody changes it."""
    known = _DECODED.get(decode)
    if known is None or known[0] != data:
        known = _DECODED[decode] = (data, decode(data))
    return known[1]


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
    found = _STORAGE.get(place.checkpoint)
    if found is None:
        found = _STORAGE[place.checkpoint] = open_storage(place.checkpoint, place.storage_options)
    return found


def task_function(
    digest: str, blob: bytes, place: bytes, order: bytes, level: int, schema: bytes
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that Spark runs for every partition of a level. All arguments are bytes, so that pickling it is cheap."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext as SparkTask

        from millstream.engine.spark import task

        context = SparkTask.get()
        assert context is not None
        return task.run_partition(digest, blob, place, order, level, schema, context.partitionId(), batches)

    return run


def run_partition(
    digest: str,
    blob: bytes,
    place_bytes: bytes,
    order_bytes: bytes,
    level: int,
    schema_bytes: bytes,
    partition: int,
    batches: Iterator[Any],
) -> Iterator[Any]:
    """One partition of one level: rows in, rows for the next level and receipts out."""
    compiled = _compiled(digest, blob)
    place: RunPlace = _decoded(place_bytes, _decode_place)
    order: EpochOrder = _decoded(order_bytes, _decode_order)
    routes = compiled.topology.routes
    layout = Layout(pa.ipc.read_schema(pa.py_buffer(schema_bytes)), routes, level, place.shards)
    shard = partition % place.shards
    task = Task(
        compiled,
        order,
        compiled.topology.levels[level][partition // place.shards],
        shard,
        shards=place.shards,
        storage=storage_of(place),
        cache=ProcessCache(place),
        point=lambda name: faults.point(name, order.epoch, order.crash, order.driver, level, shard),
    )
    pieces = [batch for batch in batches if batch.num_rows]
    gc.disable()  # records and rows make no cycles worth looking for thousands of times an epoch
    try:
        here, onward = _split(pa.Table.from_batches(pieces) if pieces else None, routes, level)
        yield from layout.rows(task.run(ArrowInputs(compiled, place.values, here)))
        yield from layout.onward(onward)
    finally:
        gc.enable()
        _freeze()


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


def _split(table: Any, routes: Sequence[Route], level: int) -> tuple[Any, Any]:
    """The rows for a task of a level, and those for later levels (records and receipts); None where there are none."""
    if table is None:
        return None, None
    route = table.column("route").to_numpy()
    receipts = route == arrow.RECEIPT
    for_here = ~receipts & (np.array([r.level for r in routes])[route] == level)
    if for_here.all():
        return table, None
    later = ~for_here
    if level == 0:
        later &= ~receipts  # ticks end here
    here = table.filter(pa.array(for_here)) if for_here.any() else None
    return here, (table.filter(pa.array(later)) if later.any() else None)


class Layout:
    """What a task puts out, as Arrow: its productions with the partition of the next level, its receipt, and what only passes through.

    Behind the last level only receipts are left.
    """

    def __init__(self, schema: Any, routes: Sequence[Route], level: int, shards: int) -> None:
        self._schema = schema
        self._last = "part" not in schema.names
        self._shards = shards
        self._offset = np.array([r.group * shards if r.level == level + 1 else 0 for r in routes], np.int32)

    def rows(self, result: Result) -> Iterator[Any]:
        """The productions and, last, the receipt."""
        receipt = encode_receipt(result.receipt)
        if self._last:
            yield pa.record_batch([pa.array([receipt], pa.binary())], schema=self._schema)
            return
        for sent in result.sent.values():
            for at in range(0, len(sent), _PIECE):
                piece = sent[at : at + _PIECE]
                shard, route, key, ts, ids, body = zip(*piece, strict=True)
                yield self._batch(
                    len(piece),
                    part=np.array(shard, np.int32) + self._offset[np.array(route)],
                    route=route,
                    key=key,
                    ts=ts,
                    id=ids,
                    body=body,
                    ord=np.zeros(len(piece), np.int64),
                    unit=np.full(len(piece), result.receipt.unit, np.int64),
                )
        yield self._batch(1, part=[0], route=[arrow.RECEIPT], body=[receipt])

    def onward(self, table: Any) -> Iterator[Any]:
        """Rows that only pass through."""
        if table is None:
            return
        if self._last:
            yield from table.select(["body"]).cast(self._schema).to_batches()
            return
        route = table.column("route").to_numpy()
        offset = np.where(route == arrow.RECEIPT, 0, self._offset[route])
        part = (table.column("part").to_numpy() % self._shards + offset).astype(np.int32)
        arrays = []
        for field in self._schema:
            if field.name == "part":
                arrays.append(pa.chunked_array([pa.array(part, field.type)]))
            elif field.name in table.column_names:
                arrays.append(table.column(field.name).cast(field.type))
            else:
                arrays.append(pa.chunked_array([pa.nulls(len(table), field.type)]))
        yield from pa.Table.from_arrays(arrays, schema=self._schema).to_batches()

    def _batch(self, count: int, **columns: Any) -> Any:
        arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in self._schema]
        return pa.record_batch(arrays, schema=self._schema)
