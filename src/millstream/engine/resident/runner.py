"""The tasks of an epoch in resident tasks: an order to each, and its receipts back.

Rules
1. Little input is read and keyed here, and goes out with the orders; more is read by the tasks, which then send each other what is whose.
2. A task is told its own part of the last manifest only.
3. An epoch of which a task was lost is run again, with the same input and the same clock, by whoever has the slots then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.columns.keying import Keying
from millstream.engine.metrics import Metrics
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident.coordinator import Coordinator, UnexpectedFailure
from millstream.engine.resident.messages import TaskOrder, TaskReads, TaskReceipts, encode
from millstream.engine.resident.partitioning import ArrowRows, joined, read_keyed, to_bytes
from millstream.errors import MillstreamError, TaskLost
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import ComputationState, Manifest, ShardState

LITTLE = 1 << 20  # bytes that are read on the driver
_UNEXPECTED = 4  # tries

_EMPTY = ShardState()


_In = TypeVar("_In")


class ResidentTasks(Protocol[_In]):
    """The resident tasks of a run: real ones, over sockets, or simulated ones."""

    def recycle(self) -> None:
        """Replaces a task that has become old (between two epochs)."""

    def gather(self, stopped: Callable[[], bool]) -> None:
        """Waits until all tasks are there."""

    def read(self, takes: Mapping[str, SplitPlan], now: int) -> _In:
        """What an epoch reads, as tasks get it (once per epoch, whatever is lost)."""

    def attempt(self, input: _In, order: EpochOrder) -> list[Receipt]:
        """One attempt at an epoch. Raises TaskLost, or what a task failed with."""

    def status(self) -> RunMode:
        """Who is there."""

    def close(self) -> None:
        """Tells all tasks that the run is over."""


class ResidentRunner(Generic[_In]):
    """Runs the tasks of epochs in resident tasks."""

    def __init__(self, tasks: ResidentTasks[_In], guards: Guards = ALL_GUARDS, stopped: Callable[[], bool] = lambda: False) -> None:
        self._tasks = tasks
        self._guards = guards
        self._stopped = stopped
        self._tried = (-1, 0)  # epoch, and tries of it
        self.lost_epochs = 0  # how often an epoch was run again because a task was lost
        self.status, self.close = tasks.status, tasks.close

    def run(self, input: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        self._tasks.recycle()
        read: _In | None = None
        unexpected = 0
        while True:
            self._tasks.gather(self._stopped)
            try:
                if read is None:
                    read = self._tasks.read(input or {}, order.now)
                return self._tasks.attempt(read, self._next_try(order))
            except TaskLost:
                self.lost_epochs += 1
                if not self._guards.rerun:
                    read = self._tasks.read({}, order.now)
            except UnexpectedFailure as error:
                unexpected += 1
                if unexpected >= _UNEXPECTED:
                    raise MillstreamError(str(error)) from error

    def _next_try(self, order: EpochOrder) -> EpochOrder:
        """An order with the number of tries of its epoch so far."""
        self._tried = (order.epoch, self._tried[1] + 1 if self._tried[0] == order.epoch else 0)
        return msgspec.structs.replace(order, tries=self._tried[1])


class TaskInput(msgspec.Struct):
    """What the tasks of an epoch get: rows by slot and level, or what each reads."""

    rows: dict[int, dict[int, Any]] = {}
    reads: list[list[TaskReads]] | None = None


@dataclass
class RemoteTasks:
    """Tasks in other processes. ended: called when all of them have been told that the run is over, with whether all were there."""

    coordinator: Coordinator
    rows: ArrowRows
    slots: int
    readers: Mapping[str, PlannedReader]
    keyings: Mapping[str, Keying]
    metrics: Metrics
    pickled: Callable[[Any], bytes]
    ended: Callable[[bool], None]

    def __post_init__(self) -> None:
        self.recycle, self.gather, self.status = self.coordinator.recycle, self.coordinator.gather, self.coordinator.status

    def attempt(self, input: TaskInput, order: EpochOrder) -> list[Receipt]:
        began = time.perf_counter()
        answers = self.coordinator.run(partial(self._encoded, order, input))
        self._note_answers(answers, began)
        return [receipt for answer in answers for receipt in answer.receipts]

    def close(self) -> None:
        joined = not self.coordinator.status().missing
        self.coordinator.stop()
        self.ended(joined)

    def read(self, takes: Mapping[str, SplitPlan], now: int) -> TaskInput:
        if not takes:
            return TaskInput()
        if sum(take.size for take in takes.values()) <= LITTLE:
            return TaskInput(self._keyed(takes, now))
        reads: list[list[TaskReads]] = [[] for _ in range(self.slots)]
        turn = 0
        for name, take in takes.items():
            for slot in range(self.slots):
                if splits := take.splits[(slot - turn) % self.slots :: self.slots]:
                    reads[slot].append(TaskReads(list(self.readers).index(name), self.pickled(splits)))
            turn += len(take.splits)
        return TaskInput({}, reads)

    def _keyed(self, takes: Mapping[str, SplitPlan], now: int) -> dict[int, dict[int, Any]]:
        """Rows by slot and level, as bytes."""
        began = time.perf_counter()
        tables: dict[int, list[Any]] = {}
        for name, take in takes.items():
            for split in take.splits:
                for level, table in read_keyed(self.readers[name], self.keyings[name], self.rows, split, now):
                    tables.setdefault(level, []).append(table)
        found: dict[int, dict[int, Any]] = {}
        for level, some in tables.items():
            for slot, rows in self.rows.by_slot(joined(some)).items():
                found.setdefault(slot, {})[level] = bytes(to_bytes(rows))
        self.metrics.note("read", began)
        return found

    def _encoded(self, order: EpochOrder, input: TaskInput, slot: int) -> list[bytes]:
        before = None if order.before is None else part_of(order.before, slot, self.slots)
        own = msgspec.structs.replace(order, before=before)
        return [encode(TaskOrder(own, input.rows.get(slot, {}), None if input.reads is None else input.reads[slot]))]

    def _note_answers(self, answers: Sequence[TaskReceipts], began: float) -> None:
        """Where the time of the slowest task went, and what is left for the way there and back."""
        whole = (time.perf_counter() - began) * 1000
        slowest = max(answers, key=lambda answer: sum(answer.phases.values()))
        phases = {f"task: {name}": millis for name, millis in slowest.phases.items()}
        self.metrics.add_task_phases({**phases, "orders and receipts": whole - sum(phases.values())})


def part_of(manifest: Manifest, slot: int, slots: int) -> Manifest:
    """What the task of a slot needs of a manifest: its own shards."""
    return Manifest(
        epoch=manifest.epoch,
        token=manifest.token,
        now=manifest.now,
        runs=manifest.runs,
        injectors=manifest.injectors,
        computations={
            name: ComputationState(
                lineage=state.lineage, shards=[one if shard % slots == slot else _EMPTY for shard, one in enumerate(state.shards)]
            )
            for name, state in manifest.computations.items()
        },
        pending=[
            msgspec.structs.replace(stored_ref, slices=mine)
            for stored_ref in manifest.pending
            if (mine := {shard: one for shard, one in stored_ref.slices.items() if shard % slots == slot})
        ],
    )
