"""Epochs on resident tasks: the seven steps of engine/epochs.py, with an order per task in the place of a Spark job.

Rules
1. Little input is read and keyed here, and goes out with the orders; more is read by the tasks, which then send each other what is whose.
2. A task is told its own part of the last manifest only.
3. An epoch of which a task was lost is run again, with the same input and the same clock, by whoever has the seats then.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from millstream.engine.columns.keying import Keying
from millstream.engine.planned import PlannedEpochs
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident.coordinator import Cluster, UnexpectedFailure
from millstream.engine.resident.messages import SeatOrder, SeatReads, SeatReceipts, encode
from millstream.engine.resident.partitioning import RouteArrays, by_seat, joined, to_bytes
from millstream.errors import MillstreamError, TaskLost
from millstream.sources.splits import SplitPlan
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import ComputationState, Manifest, ShardState

LITTLE = 1 << 20  # bytes that are read on the driver
_UNEXPECTED = 4  # tries

_EMPTY = ShardState()


class ResidentEpochs(PlannedEpochs):
    """Runs epochs on resident tasks. `cluster`, `keyings` (by injector) and `seats` are set before the first of them."""

    cluster: Cluster
    keyings: Mapping[str, Keying]
    seats: int
    pickled: Callable[[Any], bytes] = staticmethod(pickle.dumps)
    _ways: RouteArrays | None = None

    def job(self, takes: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        input = _Input()
        unexpected = 0
        while True:
            self.cluster.gather(lambda: self.stopping)
            try:
                if not input.is_made:
                    input = self._input(takes or {}, order)
                began = time.perf_counter()
                answers = self.cluster.run(partial(self._encoded, self.next_try(order), input))
                self._note_answers(answers, began)
                return [receipt for answer in answers for receipt in answer.receipts]
            except TaskLost:
                self.lost_epochs += 1
                if not self.guards.rerun:
                    takes, input = None, _Input()
            except UnexpectedFailure as error:
                unexpected += 1
                if unexpected >= _UNEXPECTED:
                    raise MillstreamError(str(error)) from error

    lost_epochs = 0  # how often an epoch was run again because a task was lost

    def mode(self) -> RunMode:
        return msgspec.structs.replace(
            self.cluster.status(), epochs_per_second=self.history.per_second(self.clock()), phases=self.history.phases()
        )

    def run_planned(self, takes: Mapping[str, SplitPlan], ranges: Any, planning: float) -> None:
        self.cluster.recycle()
        super().run_planned(takes, ranges, planning)

    def _input(self, takes: Mapping[str, SplitPlan], order: EpochOrder) -> _Input:
        """What the epoch reads: rows, or what tasks are to read. Made once, whatever is lost."""
        if not takes:
            return _Input(True)
        if sum(take.size for take in takes.values()) <= LITTLE:
            return _Input(True, self._read(takes, order))
        names = list(self.topology.injectors)
        reads: list[list[SeatReads]] = [[] for _ in range(self.seats)]
        turn = 0
        for name, take in takes.items():
            mine: list[list[Any]] = [[] for _ in range(self.seats)]
            for piece in take.splits:
                mine[turn % self.seats].append(piece)
                turn += 1
            for seat, pieces in enumerate(mine):
                if pieces:
                    reads[seat].append(SeatReads(names.index(name), self.pickled(pieces)))
        return _Input(True, {}, reads)

    def _read(self, takes: Mapping[str, SplitPlan], order: EpochOrder) -> dict[int, dict[int, Any]]:
        """Rows by seat and level, as bytes."""
        if self._ways is None:
            self._ways = RouteArrays(self.topology.routes, self.shards)
        now = next(iter(order.times.values())).now if order.times else 0
        tables: dict[int, list[Any]] = {}
        for name, take in takes.items():
            reader, keying = self.sources.readers[name], self.keyings[name]
            for piece in take.splits:
                began = time.perf_counter()
                batches = list(reader.read(piece))
                began = self.noted("read", began)
                if batches:
                    keyed = keying.keyed(pa.Table.from_batches(batches), now, reader.origin(piece))
                    for level, table in self._ways.by_level(keyed).items():
                        tables.setdefault(level, []).append(table)
                self.noted("key", began)
        began = time.perf_counter()
        found: dict[int, dict[int, Any]] = {}
        for level, some in tables.items():
            for seat, rows in by_seat(joined(some), self.shards, self.seats).items():
                found.setdefault(seat, {})[level] = bytes(to_bytes(rows))
        self.noted("key", began)
        return found

    def _encoded(self, order: EpochOrder, input: _Input, seat: int) -> list[bytes]:
        before = None if order.before is None else part_of(order.before, seat, self.seats)
        own = msgspec.structs.replace(order, before=before)
        return [encode(SeatOrder(own, input.rows.get(seat, {}), None if input.reads is None else input.reads[seat]))]

    def _note_answers(self, answers: Sequence[SeatReceipts], began: float) -> None:
        """Where the time of the slowest task went, and what is left for the way there and back."""
        whole = (time.perf_counter() - began) * 1000
        slowest = max(answers, key=lambda answer: sum(answer.phases.values()))
        for name, millis in slowest.phases.items():
            self.add_phase(f"task: {name}", millis)
        self.add_phase("orders and receipts", whole - sum(slowest.phases.values()))


class _Input(msgspec.Struct):
    """What the tasks of an epoch get: rows by seat and level, or what each reads."""

    is_made: bool = False
    rows: dict[int, dict[int, Any]] = {}
    reads: list[list[SeatReads]] | None = None


def part_of(manifest: Manifest, seat: int, seats: int) -> Manifest:
    """What the task of a seat needs of a manifest: its own shards."""
    return Manifest(
        epoch=manifest.epoch,
        token=manifest.token,
        now=manifest.now,
        runs=manifest.runs,
        injectors=manifest.injectors,
        computations={
            name: ComputationState(
                lineage=state.lineage, shards=[one if shard % seats == seat else _EMPTY for shard, one in enumerate(state.shards)]
            )
            for name, state in manifest.computations.items()
        },
        pending=[
            msgspec.structs.replace(parcel, slices=mine)
            for parcel in manifest.pending
            if (mine := {shard: one for shard, one in parcel.slices.items() if shard % seats == seat})
        ],
    )
