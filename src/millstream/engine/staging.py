"""Staging: what a task has worked out becomes one unit (deltas and stored productions) and sink parts, under names of its own attempt.

Rules
1. Nothing that is staged is visible until a manifest names it. Shards of one process may share a unit: then whoever has made it writes it, once.
2. Everything carries the run's token in its name. A task whose run has been replaced stages nothing: it leaves a mark and ends with `Fenced`.
3. The receipt's `unit` is a digest of all that the task made, so two attempts that did the same have the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from millstream.core.outcome import Outcome
from millstream.core.topology import Group
from millstream.engine.program import Compiled
from millstream.engine.receipts import EpochOrder, Receipt, Work
from millstream.engine.routing import Routed
from millstream.errors import Fenced
from millstream.sinks.base import IdentifiedRow, SinkRow, TaskContext
from millstream.state.compaction import unit_name
from millstream.state.fencing import refuse, run_number, superseded
from millstream.state.manifest import Part, ProductionsRef
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.storage import Storage
from millstream.state.stored_productions import encode_slice

SMALL = 256 << 10  # bytes of a part that may lie in a unit; the driver copies it from there


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


@dataclass
class Staging:
    """Stages for one task. unit: one that others stage into as well, and that somebody else writes."""

    compiled: Compiled
    storage: Storage
    order: EpochOrder
    group: Group
    shard: int
    point: Callable[[str], None]
    unit: Unit | None = None

    def stage(self, receipt: Receipt, outcomes: Mapping[str, Outcome], out: Routed) -> None:
        """Writes the unit, then the sink parts. Fills the receipt."""
        order = self.order
        if self.unit is None:
            check_token(self.storage, order)
            unit = Unit(self.storage, unit_name(order.epoch, f"{self.group.level}.{self.group.index}.{self.shard}", order.token))
        else:
            unit = self.unit
        name = unit.name
        digest = blake2b(digest_size=8)
        for computation, outcome in outcomes.items():
            ref = None
            digest.update(computation.encode())
            if outcome.delta:
                data = encode_segment(sorted(outcome.delta.items()))
                digest.update(data)
                ref = SegmentRef(
                    name=name, offset=unit.add(data), length=len(data), entries=len(outcome.delta), first=order.epoch, last=order.epoch
                )
            digest.update(msgspec.msgpack.encode(outcome.productions))
            receipt.work[computation] = Work(
                segment=ref, counts=outcome.counts, produced=len(outcome.productions), dedup=outcome.dedup, millis=outcome.millis
            )
        for (stream, computation), by_shard in sorted(out.kept.items()):
            oldest = min(row[1] for rows in by_shard.values() for row in rows)
            stored_ref = ProductionsRef(stream=stream, computation=computation, name=name, slices={}, oldest=oldest)
            for shard, rows in sorted(by_shard.items()):
                data = encode_slice(rows)
                stored_ref.slices[shard] = (unit.add(data), len(data), len(rows))
            receipt.stored_refs.append(stored_ref)
        with_parts = any(emission.sink.in_units for emission in self.compiled.topology.emissions)
        if self.unit is None and not with_parts:
            unit.write()
        self.point("task.4-staging")
        digest.update(b"%d.%d.%d" % (self.group.level, self.group.index, self.shard))
        receipt.unit = int.from_bytes(digest.digest(), "big", signed=True)
        self._stage_sinks(receipt, outcomes, unit)
        if self.unit is None and with_parts:
            unit.write()
        self.point("task.4-staged")

    def _stage_sinks(self, receipt: Receipt, outcomes: Mapping[str, Outcome], unit: Unit) -> None:
        decode = self.compiled.decode_value
        attempt = f"{run_number(self.order.token)}.{secrets.token_hex(6)}"
        for emission in self.compiled.topology.emissions:
            for outcome in outcomes.values():
                mine = [p for p in outcome.productions if p.stream == emission.stream]
                found: list[SinkRow]
                if emission.ids:
                    found = [IdentifiedRow(p.key, p.timestamp, decode(p.body), p.id) for p in mine]
                else:
                    found = [SinkRow(p.key, p.timestamp, decode(p.body)) for p in mine]
                if found:
                    name = self.compiled.program.name
                    context = TaskContext(
                        checkpoint=self.storage,
                        emission=emission.name,
                        epoch=self.order.epoch,
                        label=f"{name}-{emission.name}-{self.shard:04d}",
                        attempt=attempt,
                        token=self.order.token,
                        pipeline=name,
                        shard=self.shard,
                        tries=self.order.tries,
                    )
                    if emission.sink.in_units:
                        data = emission.sink.encode_part(context, found)
                        if len(data) > SMALL:
                            receipt.parts[emission.name] = emission.sink.stage_encoded(context, data, len(found))
                        else:
                            own = {"offset": unit.add(data), "length": len(data)}
                            receipt.parts[emission.name] = Part(rows=len(found), staged=unit.name, in_checkpoint=True, own=own)
                    else:
                        if self.unit is not None:
                            check_token(self.storage, self.order)  # others look when they write the unit, which is later
                        receipt.parts[emission.name] = emission.sink.stage(context, found)


def check_token(storage: Storage, order: EpochOrder) -> None:
    """Rule 2."""
    if order.guards.tokens and superseded(storage, order.token):
        refuse(storage, order.token)
        raise Fenced(f"a task of run {order.token} found that a newer run owns {storage.url}: it has staged nothing")
