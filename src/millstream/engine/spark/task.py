"""One task: brings its shard's replicas up to date, runs the step, stages one unit, passes on what belongs to later levels.

Everything that a task makes is named after its attempt and invisible until a manifest names it; its receipt travels with the rows to
the driver. A failure that retrying cannot mend (a hook that raises, a null key, a full disk) travels as a receipt too; anything
unexpected is raised, and Spark tries again.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream import faults
from millstream.core.keys import shard_of
from millstream.core.layout import NoEntries
from millstream.core.record import Batch, Production
from millstream.core.step import Arrivals, Counts, Outcome, Times
from millstream.core.topology import Group, Route
from millstream.engine.program import Program, Worker
from millstream.errors import MillstreamError
from millstream.sinks.base import SinkRow, TaskContext
from millstream.state.folding import unit_name
from millstream.state.manifest import Manifest
from millstream.state.replica import View, open_replica, replica_root
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.storage import Storage, open_storage

from . import pickling, rows


class Place(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    replicas: str | None
    shards: int
    values: list[list[rows.ValueColumn]] = []


class EpochOrder(msgspec.Struct):
    """What the driver tells the tasks of one epoch."""

    epoch: int
    before: Manifest | None
    times: dict[str, Times]
    driver: int
    crash: str


class Delta(msgspec.Struct):
    """What became of one computation in one task."""

    segment: SegmentRef | None
    counts: Counts
    produced: int


class Receipt(msgspec.Struct):
    """What a task did, for the driver. `unit` is a digest of content: equal for attempts that did the same."""

    level: int
    group: int
    shard: int
    unit: int = 0
    consumed: list[int] = []
    deltas: dict[str, Delta] = {}
    parts: dict[str, dict[str, Any]] = {}
    newest: dict[str, int] = {}
    injected: dict[str, int] = {}
    failure: str | None = None
    message: str = ""


encode_receipt = msgspec.msgpack.Encoder().encode
decode_receipt = msgspec.msgpack.Decoder(Receipt).decode

_WORKERS: dict[str, Worker] = {}
_STORAGE: dict[str, Storage] = {}


def _worker(digest: str, blob: bytes) -> Worker:
    found = _WORKERS.get(digest)
    if found is None:
        program: Program = pickling.loads(blob)
        _WORKERS.clear()
        found = _WORKERS[digest] = Worker(program)
    return found


def storage_of(place: Place) -> Storage:
    """The checkpoint's storage, opened once per process."""
    found = _STORAGE.get(place.checkpoint)
    if found is None:
        found = _STORAGE[place.checkpoint] = open_storage(place.checkpoint, place.storage_options)
    return found


def task_function(digest: str, blob: bytes, place: bytes, order: bytes, level: int, schema: bytes) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that Spark runs for every partition of a level. All arguments are bytes, so that pickling it is cheap."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext as SparkTask

        from millstream.engine.spark import task

        context = SparkTask.get()
        assert context is not None
        return task.run_partition(digest, blob, place, order, level, schema, context.partitionId(), batches)

    return run


def run_partition(
    digest: str, blob: bytes, place_bytes: bytes, order_bytes: bytes, level: int, schema_bytes: bytes, partition: int, batches: Iterator[Any]
) -> Iterator[Any]:
    """One partition of one level: rows in, rows for the next level and receipts out."""
    worker = _worker(digest, blob)
    place = msgspec.msgpack.decode(place_bytes, type=Place)
    order = msgspec.msgpack.decode(order_bytes, type=EpochOrder)
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    group = worker.topology.levels[level][partition // place.shards]
    task = _Task(worker, place, order, group, partition % place.shards)
    pieces = [batch for batch in batches if batch.num_rows]
    gc.disable()  # records and rows make no cycles worth looking for thousands of times an epoch
    try:
        yield from task.run(pa.Table.from_batches(pieces) if pieces else None, schema)
    finally:
        gc.enable()


class _Task:
    def __init__(self, worker: Worker, place: Place, order: EpochOrder, group: Group, shard: int) -> None:
        self.worker = worker
        self.place = place
        self.order = order
        self.group = group
        self.shard = shard
        self.storage = storage_of(place)
        self.receipt = Receipt(group.level, group.index, shard)

    def run(self, table: Any, schema: Any) -> Iterator[Any]:
        """Runs the step, then yields what goes on."""
        here, onward = self._split(table)
        productions: list[Production] = []
        try:
            outcomes = self._step(here)
            productions = [p for outcome in outcomes.values() for p in outcome.productions]
            out = self._outgoing(productions)
            self._stage(outcomes)
        except MillstreamError as error:
            self.receipt = Receipt(self.group.level, self.group.index, self.shard, failure=type(error).__name__, message=str(error))
            out = []
        yield from self._rows(out, schema)
        if onward is not None:
            yield from self._aligned(onward, schema)

    def _split(self, table: Any) -> tuple[Any, Any]:
        """The rows for this task, and those for later levels (records and receipts)."""
        if table is None:
            return None, None
        route = table.column("route").to_numpy()
        levels = np.array([r.level for r in self.worker.topology.routes] + [10**6])  # the last one for -1: receipts
        for_here = levels[route] == self.group.level
        if for_here.all():
            return table, None
        later = ~for_here
        if self.group.level == 0:
            later &= route != rows.RECEIPT  # ticks end here
        here = table.filter(pa.array(for_here)) if for_here.any() else None
        return here, (table.filter(pa.array(later)) if later.any() else None)

    def _step(self, table: Any) -> dict[str, Outcome]:
        topology = self.worker.topology
        arrivals: dict[str, Arrivals] = {}
        if table is not None:
            rows.check_nulls(table, topology)
            if "unit" in table.column_names:
                units = table.column("unit").drop_null().unique()
                self.receipt.consumed = sorted(units.to_pylist())
            arrivals = self._arrivals(table)
        faults.point("task.3-shuffled", self.order.epoch, self.order.crash, self.order.driver)
        views: dict[str, View | NoEntries] = {}
        root = replica_root(self.place.checkpoint_id, self.place.replicas)
        try:
            before = self.order.before
            for name in self.group.computations:
                known = before.computations.get(name) if before else None
                if known is None:
                    views[name] = NoEntries()
                else:
                    replica = open_replica(root, known.lineage, self.shard)
                    views[name] = replica.view(self.storage, known.shards[self.shard].segments, before)
            return self.worker.run_group(self.group, arrivals, views, self.order.times)
        finally:
            for view in views.values():
                view.close()

    def _arrivals(self, table: Any) -> dict[str, Arrivals]:
        topology = self.worker.topology
        injectors = list(topology.injectors)
        route_column = table.column("route").to_numpy()
        present = np.unique(route_column).tolist()
        by_computation: dict[str, list[Route]] = {}
        for index in present:
            route = topology.routes[index]
            by_computation.setdefault(route.computation, []).append(route)
            injector = topology.injectors.get(route.stream)
            if injector is not None:
                times = table.column("ts").to_numpy()
                times = times if len(present) == 1 else times[route_column == index]
                newest = self.receipt.newest
                newest[route.stream] = max(int(times.max()), newest.get(route.stream, int(times.max())))
                if self.worker.routes_of[route.stream][0] is route:
                    self.receipt.injected[route.stream] = len(times)
        found: dict[str, Arrivals] = {}
        for name, routes in by_computation.items():
            batches: dict[int, Batch] = {}
            for route in routes:
                injector = topology.injectors.get(route.stream)
                if injector is not None:
                    at = injectors.index(route.stream)
                    batches[route.index] = rows.ColumnBatch(route.stream, table, f"v{at}", self.place.values[at], injector.value is not None)
                else:
                    batches[route.index] = rows.EncodedBatch(route.stream, table, self.worker.decode_value)
            positions = None
            if len(routes) < len(present):
                positions = np.flatnonzero(np.isin(route_column, [route.index for route in routes]))
            found[name] = rows.to_arrivals(table, batches, positions)
        return found

    def _outgoing(self, productions: list[Production]) -> list[tuple[int, int, str, int, str, bytes]]:
        """Productions for other groups, with their targets."""
        worker, shards = self.worker, self.place.shards
        out: list[tuple[int, int, str, int, str, bytes]] = []
        for p in productions:
            for route in worker.routes_of.get(p.stream, ()):
                text = worker.route_keys[route.index](p)
                shard = shard_of(text.encode(), shards)
                part = shard + route.group * shards if route.level == self.group.level + 1 else shard
                out.append((part, route.index, text, p.timestamp, p.id, p.body))
        return out

    def _stage(self, outcomes: dict[str, Outcome]) -> None:
        """Writes the unit: deltas of all computations in one object, then the sink parts. Fills the receipt."""
        order, receipt = self.order, self.receipt
        name = unit_name(order.epoch, f"{self.group.level}.{self.group.index}.{self.shard}")
        digest = blake2b(digest_size=8)
        segments: list[bytes] = []
        offset = 0
        for computation, outcome in outcomes.items():
            ref = None
            digest.update(computation.encode())
            if outcome.delta:
                data = encode_segment(sorted(outcome.delta.items()))
                digest.update(data)
                ref = SegmentRef(name, offset, len(data), len(outcome.delta), order.epoch, order.epoch)
                segments.append(data)
                offset += len(data)
            digest.update(msgspec.msgpack.encode(outcome.productions))
            receipt.deltas[computation] = Delta(ref, outcome.counts, len(outcome.productions))
        if segments:
            self.storage.put(name, b"".join(segments))
        faults.point("task.4-staging", order.epoch, order.crash, order.driver)
        digest.update(b"%d.%d.%d" % (self.group.level, self.group.index, self.shard))
        receipt.unit = int.from_bytes(digest.digest(), "big", signed=True)
        self._stage_sinks(outcomes)
        faults.point("task.4-staged", order.epoch, order.crash, order.driver)

    def _stage_sinks(self, outcomes: dict[str, Outcome]) -> None:
        decode = self.worker.decode_value
        attempt = secrets.token_hex(6)
        for emission in self.worker.topology.emissions:
            for outcome in outcomes.values():
                found = [SinkRow(p.key, p.timestamp, decode(p.body)) for p in outcome.productions if p.stream == emission.stream]
                if found:
                    label = f"{self.worker.program.name}-{emission.name}-{self.shard:04d}"
                    context = TaskContext(self.storage, emission.name, self.order.epoch, label, attempt)
                    self.receipt.parts[emission.name] = emission.sink.stage(context, found)

    def _rows(self, out: list[tuple[int, int, str, int, str, bytes]], schema: Any) -> Iterator[Any]:
        """The productions and, last, the receipt, as Arrow."""
        receipt = encode_receipt(self.receipt)
        if "part" not in schema.names:
            yield pa.record_batch([pa.array([receipt], pa.binary())], schema=schema)
            return
        for at in range(0, len(out), 50_000):
            piece = out[at : at + 50_000]
            part, route, key, ts, ids, body = zip(*piece, strict=True)
            columns = {
                "part": part, "route": route, "key": key, "ts": ts, "id": ids, "body": body,
                "ord": np.zeros(len(piece), np.int64), "unit": np.full(len(piece), self.receipt.unit, np.int64),
            }  # fmt: skip
            yield _record_batch(columns, len(piece), schema)
        yield _record_batch({"part": [0], "route": [rows.RECEIPT], "body": [receipt]}, 1, schema)

    def _aligned(self, table: Any, schema: Any) -> Iterator[Any]:
        """Rows for later levels, in the shape of this task's output."""
        if "part" not in schema.names:
            yield from table.select(["body"]).cast(schema).to_batches()
            return
        shards, routes = self.place.shards, self.worker.topology.routes
        route = table.column("route").to_numpy()
        offset = np.array([r.group * shards if r.level == self.group.level + 1 else 0 for r in routes] + [0])
        part = (table.column("part").to_numpy() % shards) + offset[route]
        columns = {name: table.column(name) for name in table.column_names if name in schema.names and name != "part"}
        columns["part"] = part.astype(np.int32)
        arrays = [
            columns[f.name].cast(f.type) if isinstance(columns.get(f.name), pa.ChunkedArray)
            else pa.chunked_array([pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(table), f.type)])
            for f in schema
        ]  # fmt: skip
        yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()


def _record_batch(columns: dict[str, Any], count: int, schema: Any) -> Any:
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)
