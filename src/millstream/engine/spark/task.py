"""One task: brings its shard's replicas up to date, runs the step, stages one unit, passes on what belongs to later levels.

Everything that a task makes is named after its attempt and invisible until a manifest names it; its receipt travels with the rows to
the driver. A failure that retrying cannot fix (a hook that raises, a null key, a full disk) travels as a receipt too; anything
unexpected is raised, and Spark tries again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream import faults
from millstream.core.arrivals import Arrivals
from millstream.core.dedup import DedupCounts, SpanFilters
from millstream.core.layout import NoEntries
from millstream.core.outcome import Outcome
from millstream.core.record import Batch, Production
from millstream.core.rejected import Rejected
from millstream.core.topology import Group, Injector, Route
from millstream.engine.program import Program, Worker
from millstream.engine.receipts import EpochOrder, Receipt, encode_receipt
from millstream.engine.staging import Sent, Staging, outgoing
from millstream.errors import MillstreamError
from millstream.state.parcel import read_slice
from millstream.state.replica import View, open_replica, replica_root
from millstream.state.storage import Storage, open_storage

from . import arrow, pickling


class Place(msgspec.Struct):
    """Where a run keeps its things; the same for every epoch."""

    checkpoint: str
    checkpoint_id: str
    storage_options: dict[str, Any] | None
    replicas: str | None
    shards: int
    values: list[list[arrow.ValueColumn]] = []


_FREEZE_EVERY = 200  # tasks

_WORKERS: dict[str, Worker] = {}
_STORAGE: dict[str, Storage] = {}
_FILTERS: dict[tuple[str, str, int, str], SpanFilters] = {}  # checkpoint, lineage, shard, stream


def _worker(digest: str, blob: bytes) -> Worker:
    found = _WORKERS.get(digest)
    if found is None:
        program: Program = pickling.loads(blob)
        _WORKERS.clear()
        found = _WORKERS[digest] = Worker(program)
    return found


_decode_place = msgspec.msgpack.Decoder(Place).decode
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


def storage_of(place: Place) -> Storage:
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
    worker = _worker(digest, blob)
    place: Place = _decoded(place_bytes, _decode_place)
    order: EpochOrder = _decoded(order_bytes, _decode_order)
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    group = worker.topology.levels[level][partition // place.shards]
    task = _Task(worker, place, order, group, partition % place.shards)
    pieces = [batch for batch in batches if batch.num_rows]
    gc.disable()  # records and rows make no cycles worth looking for thousands of times an epoch
    try:
        yield from task.run(pa.Table.from_batches(pieces) if pieces else None, schema)
    finally:
        gc.enable()
        _freeze()


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
        sent: list[Sent] = []
        try:
            outcomes, dedup, millis = self._step(here)
            productions: list[Production] = [p for outcome in outcomes.values() for p in outcome.productions]
            out = outgoing(self.worker, productions, self.group.level, self.place.shards, set(self.order.stored))
            Staging(self.worker, self.storage, self.order, self.group, self.shard, self._point).stage(
                self.receipt, outcomes, out, dedup, millis
            )
            sent = out.sent
        except MillstreamError as error:
            self.receipt = Receipt(self.group.level, self.group.index, self.shard, failure=type(error).__name__, message=str(error))
        yield from self._rows(sent, schema)
        if onward is not None:
            yield from self._aligned(onward, schema)

    def _point(self, name: str) -> None:
        faults.point(name, self.order.epoch, self.order.crash, self.order.driver)

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
            later &= route != arrow.RECEIPT  # ticks end here
        here = table.filter(pa.array(for_here)) if for_here.any() else None
        return here, (table.filter(pa.array(later)) if later.any() else None)

    def _step(self, table: Any) -> tuple[dict[str, Outcome], dict[str, DedupCounts], dict[str, float]]:
        if table is not None and "unit" in table.column_names:
            units = table.column("unit").drop_null().unique()
            self.receipt.consumed = sorted(units.to_pylist())
        table = self._with_stored(table)
        rejected: dict[str, list[Rejected]] = {}
        if table is not None:
            table, rejected = arrow.rejections(table, self.worker.topology, partial(self._batch, table=table))
            table = table if len(table) else None
        self._point("task.3-shuffled")
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
            deltas: dict[str, dict[bytes, bytes | None]] = {}
            counts: dict[str, DedupCounts] = {}
            arrivals = self._arrivals(table, views, deltas, counts)
            for name, found in rejected.items():
                arrivals[name] = msgspec.structs.replace(arrivals.get(name, Arrivals.none()), rejected=found)
            millis: dict[str, float] = {}
            outcomes = self.worker.run_group(self.group, arrivals, views, self.order.times, millis)
            for name, delta in deltas.items():
                outcomes[name].delta.update(delta)
            return outcomes, counts, millis
        finally:
            for view in views.values():
                view.close()

    def _with_stored(self, table: Any) -> Any:
        """The rows that came through the shuffle, and the productions that were stored for this shard in the epoch before."""
        before = self.order.before
        if before is None or not before.pending:
            return table
        routes = {(r.stream, r.computation): r.index for r in self.worker.topology.routes}
        pieces = [] if table is None else [table]
        for parcel in before.pending:
            if parcel.computation not in self.group.computations:
                continue
            found = read_slice(self.storage, parcel, self.shard)
            if found is not None:
                index = routes[parcel.stream, parcel.computation]
                found = found.append_column("route", pa.array(np.full(len(found), index, np.int32)))
                pieces.append(found.append_column("ord", pa.array(np.zeros(len(found), np.int64))))
        if len(pieces) < 2:
            return pieces[0] if pieces else None
        return pa.concat_tables(pieces, promote_options="default")

    def _arrivals(
        self, table: Any, views: dict[str, View | NoEntries], deltas: dict[str, dict[bytes, bytes | None]], counts: dict[str, DedupCounts]
    ) -> dict[str, Arrivals]:
        topology = self.worker.topology
        by_computation: dict[str, list[Route]] = {name: [] for name in self.group.computations if self._deduplicated(name)}
        present: list[int] = []
        if table is not None:
            route_column = table.column("route").to_numpy()
            present = np.unique(route_column).tolist()
        for index in present:
            route = topology.routes[index]
            by_computation.setdefault(route.computation, []).append(route)
            injector = topology.injectors.get(route.stream)
            if injector is not None:
                self._look(injector, route, table, None if len(present) == 1 else np.flatnonzero(route_column == index))
        found: dict[str, Arrivals] = {}
        for name, routes in by_computation.items():
            batches: dict[int, Batch] = {}
            for route in routes:
                batches[route.index] = self._batch(route, table=table)
            positions = None
            if routes and len(routes) < len(present):
                positions = np.flatnonzero(np.isin(route_column, [route.index for route in routes]))
            for stream in self._deduplicated(name):
                mine = next((r for r in routes if r.stream == stream), None)
                of = None if mine is None else positions if len(routes) == 1 else np.flatnonzero(route_column == mine.index)
                dropped = self._dedup(name, stream, mine, table, of, views[name], deltas, counts)
                if dropped is not None:
                    positions = np.setdiff1d(np.arange(len(table)) if positions is None else positions, dropped, assume_unique=True)
            if routes and (positions is None or len(positions)):
                found[name] = arrow.to_arrivals(table, batches, positions)
        return found

    def _batch(self, route: Route, *, table: Any) -> Batch:
        """The rows of a route in a table."""
        injector = self.worker.topology.injectors.get(route.stream)
        if injector is None:
            return arrow.EncodedBatch(route.stream, table, self.worker.decode_value)
        at = list(self.worker.topology.injectors).index(route.stream)
        return arrow.ColumnBatch(route.stream, table, f"v{at}", self.place.values[at], injector.value is not None)

    def _deduplicated(self, computation: str) -> list[str]:
        """The inputs of a computation whose ids are held."""
        if not self.order.guards.dedup:
            return []
        topology = self.worker.topology
        return [
            i.stream for i in topology.by_name[computation].inputs if i.stream in topology.injectors and topology.injectors[i.stream].dedup
        ]

    def _dedup(
        self,
        name: str,
        stream: str,
        route: Route | None,
        table: Any,
        positions: Any,
        view: View | NoEntries,
        deltas: dict[str, dict[bytes, bytes | None]],
        counts: dict[str, DedupCounts],
    ) -> Any:
        """Checks one input of one computation; returns the positions of duplicates, None if there are none."""
        rule = self.worker.topology.injectors[stream].dedup
        assert rule is not None
        before = self.order.before
        lineage = before.computations[name].lineage if before and name in before.computations else ""
        filters = _FILTERS.setdefault((self.place.checkpoint_id, lineage, self.shard, stream), SpanFilters())
        mine = None if route is None else arrow.Identified(table, positions)
        dropped, delta, count = arrow.deduplicated(rule, stream, view, filters, mine, self.order.times[name].now, self.order.epoch)
        deltas.setdefault(name, {}).update(delta)
        counts.setdefault(name, DedupCounts()).add(count)
        return dropped

    def _look(self, injector: Injector, route: Route, table: Any, positions: Any) -> None:
        """What the watermark policy of an injector wants to know. All its routes carry the same records; the first one counts them."""
        if self.worker.routes_of[route.stream][0] is route:
            newest = None
            if self.order.before is not None and route.stream in self.order.before.injectors:
                newest = self.order.before.injectors[route.stream].newest
            self.receipt.seen[route.stream] = arrow.seen(injector, table, positions, newest)

    def _rows(self, out: list[Sent], schema: Any) -> Iterator[Any]:
        """The productions and, last, the receipt, as Arrow."""
        receipt = encode_receipt(self.receipt)
        if "part" not in schema.names:
            yield pa.record_batch([pa.array([receipt], pa.binary())], schema=schema)
            return
        for at in range(0, len(out), 50_000):
            piece = out[at : at + 50_000]
            part, route, key, ts, ids, body = zip(*piece, strict=True)
            columns = {
                "part": part,
                "route": route,
                "key": key,
                "ts": ts,
                "id": ids,
                "body": body,
                "ord": np.zeros(len(piece), np.int64),
                "unit": np.full(len(piece), self.receipt.unit, np.int64),
            }
            yield _record_batch(columns, len(piece), schema)
        yield _record_batch({"part": [0], "route": [arrow.RECEIPT], "body": [receipt]}, 1, schema)

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
            columns[f.name].cast(f.type)
            if isinstance(columns.get(f.name), pa.ChunkedArray)
            else pa.chunked_array([pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(table), f.type)])
            for f in schema
        ]
        yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()


def _record_batch(columns: dict[str, Any], count: int, schema: Any) -> Any:
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)
