"""Staging: what a task has worked out becomes one unit (deltas and stored productions) and sink parts, under names of its own attempt.

Rules
1. Nothing that is staged is visible until a manifest names it. Shards of one process may share a unit: then whoever has made it writes it, once.
2. Everything carries the run's token in its name. A task whose run has been replaced stages nothing: it leaves a mark and ends with `Fenced`.
3. Stored productions are cut by the consumer's shard, whose task reads its slice in the next epoch; no shuffle carries it. The manifest that commits the
   producer's state names them. A slice is a CRC-32 and an Arrow stream with the columns key, ts, id, body.
4. The receipt's `unit` is a digest of all that the task made, so two attempts that did the same have the same.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import pyarrow as pa

from millstream.core.outcome import Outcome
from millstream.engine.receipts import EpochOrder, Receipt, Work
from millstream.engine.routing import Routed, StoredRow
from millstream.errors import DamageError, Fenced
from millstream.sinks.base import IdentifiedRow, ResultRows, SinkRow, TaskContext
from millstream.state.compaction import unit_name
from millstream.state.fencing import refuse, run_number, superseded
from millstream.state.manifest import Part, ProductionsRef
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.storage import Storage

if TYPE_CHECKING:
    from millstream.engine.task import Task

SMALL = 256 << 10  # bytes of a part that may lie in a unit; the driver copies it from there
_STORED = pa.schema([("key", pa.string()), ("ts", pa.int64()), ("id", pa.string()), ("body", pa.binary())])
_CHECKSUM = struct.Struct(">I")


class Unit:
    """The object into which deltas, stored productions and the parts of sinks that roll go. Written once, when all are in it."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> int:
        """Takes a piece in; where it lies."""
        at = self._size
        self._pieces.append(data)
        self._size += len(data)
        return at

    def write(self) -> None:
        if self._pieces:
            self._storage.put(self.name, b"".join(self._pieces))


def stage(task: Task, receipt: Receipt, outcomes: Mapping[str, Outcome], out: Routed) -> None:
    """Writes a task's unit, if it is its own, then the sink parts. Fills the receipt."""
    order, group, shard = task.order, task.group, task.shard
    unit = task.unit
    if unit is None:
        check_token(task.storage, order)
        unit = Unit(task.storage, unit_name(order.epoch, f"{group.level}.{group.index}.{shard}", order.token))
    digest = blake2b(digest_size=8)
    for computation, outcome in outcomes.items():
        ref = None
        digest.update(computation.encode())
        if outcome.delta:
            data = encode_segment(sorted(outcome.delta.items()))
            digest.update(data)
            ref = SegmentRef(unit.name, unit.add(data), len(data), len(outcome.delta), first=order.epoch, last=order.epoch)
        digest.update(msgspec.msgpack.encode(outcome.productions))
        for result in outcome.results:
            digest.update(result.content(task.compiled.encode_value))
        produced = len(outcome.productions) + sum(map(len, outcome.results))
        receipt.work[computation] = Work(ref, outcome.counts, produced, outcome.dedup, outcome.millis, outcome.by_stream)
    for (stream, computation), by_shard in sorted(out.kept.items()):
        oldest = min(row[1] for rows in by_shard.values() for row in rows)
        stored_ref = ProductionsRef(stream, computation, unit.name, slices={}, oldest=oldest)
        for consumer, rows in sorted(by_shard.items()):
            data = encode_slice(rows)
            stored_ref.slices[consumer] = (unit.add(data), len(data), len(rows))
        receipt.stored_refs.append(stored_ref)
    with_parts = any(emission.sink.in_units for emission in task.compiled.topology.emissions)
    if task.unit is None and not with_parts:
        unit.write()
    task.point("task.4-staging")
    digest.update(b"%d.%d.%d" % (group.level, group.index, shard))
    receipt.unit = int.from_bytes(digest.digest(), "big", signed=True)
    _stage_sinks(task, receipt, outcomes, unit)
    if task.unit is None and with_parts:
        unit.write()
    task.point("task.4-staged")


def _stage_sinks(task: Task, receipt: Receipt, outcomes: Mapping[str, Outcome], unit: Unit) -> None:
    order, decode, name = task.order, task.compiled.decode_value, task.compiled.program.name
    attempt = f"{run_number(order.token)}.{secrets.token_hex(6)}"
    for emission in task.compiled.topology.emissions:
        for outcome in outcomes.values():
            results = [result for result in outcome.results if result.stream == emission.stream]
            found: Sequence[SinkRow]
            if results:  # a stream is in columns, or it is not
                found = ResultRows(results, emission.ids)
            elif emission.ids:
                mine = [p for p in outcome.productions if p.stream == emission.stream]
                found = [IdentifiedRow(p.key, p.timestamp, decode(p.body), p.id) for p in mine]
            else:
                found = [SinkRow(p.key, p.timestamp, decode(p.body)) for p in outcome.productions if p.stream == emission.stream]
            if not found:
                continue
            context = TaskContext(
                checkpoint=task.storage,
                emission=emission.name,
                epoch=order.epoch,
                label=f"{name}-{emission.name}-{task.shard:04d}",
                attempt=attempt,
                token=order.token,
                pipeline=name,
                shard=task.shard,
                tries=order.tries,
            )
            if not emission.sink.in_units:
                if task.unit is not None:
                    check_token(task.storage, order)  # others look when they write the unit, which is later
                receipt.parts[emission.name] = emission.sink.stage(context, found)
                continue
            data = emission.sink.encode_part(context, found)
            if len(data) > SMALL:
                part = emission.sink.stage_encoded(context, data, len(found))
            else:
                own = {"offset": unit.add(data), "length": len(data)}
                part = Part(rows=len(found), staged=unit.name, in_checkpoint=True, own=own)
            if emission.sink.form:
                part.own["form"] = emission.sink.form
            receipt.parts[emission.name] = part


def check_token(storage: Storage, order: EpochOrder) -> None:
    """Rule 2."""
    if order.guards.tokens and superseded(storage, order.token):
        refuse(storage, order.token)
        raise Fenced(f"a task of run {order.token} found that a newer run owns {storage.url}: it has staged nothing")


def encode_slice(rows: Sequence[StoredRow]) -> bytes:
    """The bytes of one shard's slice."""
    columns = zip(*rows, strict=True)
    batch = pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, _STORED, strict=True)], schema=_STORED)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _STORED) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return _CHECKSUM.pack(crc32(data)) + data


def read_slice(storage: Storage, stored_ref: ProductionsRef, shard: int) -> Any:
    """What is stored for a shard, as an Arrow table; None if nothing."""
    where = stored_ref.slices.get(shard)
    if where is None:
        return None
    offset, length, count = where
    data = storage.read(stored_ref.name, offset, length)
    body = memoryview(data)[_CHECKSUM.size :]
    if len(data) != length or _CHECKSUM.unpack_from(data)[0] != crc32(body):
        raise DamageError(
            f"productions of stream {stored_ref.stream!r} stored in {stored_ref.name} of {storage.url} are damaged: {stored_ref.computation!r} cannot "
            f"consume them. Restore that object from a copy."
        )
    table = pa.ipc.open_stream(body).read_all()
    assert len(table) == count
    return table
