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
from millstream.core.topology import Route
from millstream.engine.columns import arrow_rows
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.receipts import EpochOrder, encode_receipt
from millstream.engine.task import Result, Task
from millstream.engine.worker_process import PROCESS, RunPlace

_PIECE = 50_000  # rows of one Arrow batch
_decode_place = msgspec.msgpack.Decoder(RunPlace).decode
_decode_order = msgspec.msgpack.Decoder(EpochOrder).decode


def task_function(
    digest: str, blob: bytes, place: bytes, order: bytes, level: int, schema: bytes
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that Spark runs for every partition of a level. All arguments are bytes, so that pickling it is cheap."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext as SparkTask

        from millstream.engine.spark import task_function

        context = SparkTask.get()
        assert context is not None
        return task_function.run_partition(digest, blob, place, order, level, schema, context.partitionId(), batches)

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
    compiled = PROCESS.compiled(digest, blob)
    place: RunPlace = PROCESS.decoded(place_bytes, _decode_place)
    order: EpochOrder = PROCESS.decoded(order_bytes, _decode_order)
    routes = compiled.topology.routes
    layout = Layout(pa.ipc.read_schema(pa.py_buffer(schema_bytes)), routes, level, place.shards)
    shard = partition % place.shards
    task = Task(
        compiled,
        order,
        compiled.topology.levels[level][partition // place.shards],
        shard,
        shards=place.shards,
        storage=PROCESS.storage(place),
        cache=PROCESS.cache(place),
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
        PROCESS.end_task()


def _split(table: Any, routes: Sequence[Route], level: int) -> tuple[Any, Any]:
    """The rows for a task of a level, and those for later levels (records and receipts); None where there are none."""
    if table is None:
        return None, None
    route = table.column("route").to_numpy()
    receipts = route == arrow_rows.RECEIPT
    for_here = ~receipts & (np.array([r.level for r in routes])[route] == level)
    if for_here.all():
        return table, None
    later = ~for_here & ~receipts if level == 0 else ~for_here  # ticks end at the first level
    here = table.filter(pa.array(for_here)) if for_here.any() else None
    return here, (table.filter(pa.array(later)) if later.any() else None)


class Layout:
    """What a task puts out, as Arrow: its productions with the partition of the next level, its receipt, and what only passes through. Behind the last level
    only receipts are left."""

    def __init__(self, schema: Any, routes: Sequence[Route], level: int, shards: int) -> None:
        self._schema = schema
        self._last = "part" not in schema.names
        self._shards = shards
        self._offset = np.array([r.group * shards if r.level == level + 1 else 0 for r in routes], np.int32)

    def rows(self, result: Result) -> Iterator[Any]:
        receipt = encode_receipt(result.receipt)
        if self._last:
            yield pa.record_batch([pa.array([receipt], pa.binary())], schema=self._schema)
            return
        for sent in result.sent.values():
            yield from self._batches(arrow_rows.sent_table(sent, self._offset, result.receipt.unit))
        yield from self._batches(pa.table({"part": [0], "route": [arrow_rows.RECEIPT], "body": [receipt]}))

    def onward(self, table: Any) -> Iterator[Any]:
        if table is None:
            return
        if self._last:
            yield from table.select(["body"]).cast(self._schema).to_batches()
            return
        route = table.column("route").to_numpy()
        offset = np.where(route == arrow_rows.RECEIPT, 0, self._offset[route])
        part = (table.column("part").to_numpy() % self._shards + offset).astype(np.int32)
        yield from self._batches(table.set_column(table.schema.get_field_index("part"), "part", pa.array(part)))

    def _batches(self, table: Any) -> Any:
        """A table with exactly the columns of the schema: what it does not have is null."""
        has = set(table.column_names)
        arrays = [table.column(f.name).cast(f.type) if f.name in has else pa.nulls(len(table), f.type) for f in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema).to_batches(_PIECE)
