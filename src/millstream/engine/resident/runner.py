"""The tasks of an epoch in resident tasks: an order to each, and its receipts back. And a resident run, put together, with Spark or without.

Rules
1. Little input is read and keyed here, and goes out with the orders; more is read by the tasks, which then send each other what is whose.
2. A task is told its own part of the last manifest only.
3. An epoch of which a task was lost is run again, with the same input and the same clock, by whoever has the slots then.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.columns.keying import Keying
from millstream.engine.compaction_orders import TaskCompaction
from millstream.engine.epochs import Epochs
from millstream.engine.metrics import Metrics
from millstream.engine.program import Program
from millstream.engine.publishing import BackgroundUpkeep
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident import wire
from millstream.engine.resident.coordinator import Coordinator, UnexpectedFailure
from millstream.engine.resident.messages import TaskOrder, TaskReads, encode
from millstream.engine.resident.partitioning import ArrowRows, joined, read_keyed, to_bytes
from millstream.engine.resident.worker import Setup
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.worker_process import RunPlace
from millstream.errors import MillstreamError, TaskLost
from millstream.faults import CrashPoints
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog

LITTLE = 1 << 20  # bytes that are read on the driver
_UNEXPECTED = 4  # tries
_WAITED = 0.001  # seconds: what is less is no wait

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
        self._tasks, self._guards, self._stopped = tasks, guards, stopped
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
                self._tried = (order.epoch, self._tried[1] + 1 if self._tried[0] == order.epoch else 0)
                return self._tasks.attempt(read, msgspec.structs.replace(order, tries=self._tried[1]))
            except TaskLost:
                self.lost_epochs += 1
                if not self._guards.rerun:
                    read = self._tasks.read({}, order.now)
            except UnexpectedFailure as error:
                unexpected += 1
                if unexpected >= _UNEXPECTED:
                    raise MillstreamError(str(error)) from error


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
        self.recycle, self.status = self.coordinator.recycle, self.coordinator.status

    def gather(self, stopped: Callable[[], bool]) -> None:
        began = time.perf_counter()
        self.coordinator.gather(stopped)
        if time.perf_counter() - began > _WAITED:
            self.metrics.note("wait", began)

    def attempt(self, input: TaskInput, order: EpochOrder) -> list[Receipt]:
        began = time.perf_counter()
        try:
            answers = self.coordinator.run(partial(self._encoded, order, input))
        except TaskLost:
            self.metrics.note("wait", began)
            self.metrics.begin_again()
            raise
        whole = (time.perf_counter() - began) * 1000
        slowest = max(answers, key=lambda answer: sum(answer.phases.values()))  # and what is left is the way there and back
        for phase, millis in {**slowest.phases, "dispatch": whole - sum(slowest.phases.values())}.items():
            self.metrics.add_phase(phase, millis)
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
        for at, name in enumerate(self.readers):  # a split's place in its plan decides who reads it, so that connections are used again
            for slot in range(self.slots) if name in takes else ():
                if splits := takes[name].splits[(slot - at) % self.slots :: self.slots]:
                    reads[slot].append(TaskReads(at, self.pickled(splits)))
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


class ResidentParts(NamedTuple):
    """The parts of a run. Tasks come when it is started."""

    epochs: Epochs[Mapping[str, SplitPlan]]
    planner: SourcePlanner
    coordinator: Coordinator
    compaction: TaskCompaction
    setup: Setup

    def start(self, begin: Callable[[int, Sequence[int]], None]) -> None:
        """Has tasks come. begin: runs a job (its number) whose tasks have the setup and fill the slots given, until it ends."""
        self.coordinator.start(begin, self.compaction)


def assemble(
    program: Program,
    *,
    log: ManifestLog,
    latest: Manifest | None,
    token: str,
    place: RunPlace,
    slots: int,
    readers: Mapping[str, PlannedReader],
    keyings: Mapping[str, Keying],
    host: str,
    remote: bool,
    bounded: bool,
    pickled: Callable[[Any], bytes],
    ended: Callable[[bool], None] = lambda joined: None,
    session: Callable[[], Any] = lambda: None,
    points: CrashPoints | None = None,
    guards_off: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> ResidentParts:
    """host: where the driver listens; remote: tasks may be on other hosts, so connections are encrypted. pickled: how programs, readers and splits travel."""
    guards = Guards.without(guards_off) if guards_off else ALL_GUARDS
    metrics, stopping = Metrics(), threading.Event()
    planner = SourcePlanner(readers, log.storage, token, latest, bounded, guards)
    certificate, key = wire.make_certificate() if remote else (b"", b"")
    cookie = secrets.token_bytes(32)
    coordinator = Coordinator(slots, place.shards, host, cookie, tls=wire.tls_contexts(certificate, key)[0], say=say)
    compaction = TaskCompaction(token, coordinator.send_compaction)
    blob = pickled(program)
    setup = Setup(
        address=coordinator.address,
        cookie=cookie,
        slots=slots,
        digest=hashlib.blake2b(blob, digest_size=16).hexdigest(),
        program=blob,
        place=place,
        sources=[(pickled(reader), pickled(keyings[name])) for name, reader in readers.items()],
        certificate=certificate,
        private_key=key,
        guards_off=guards_off,
    )
    rows = ArrowRows(program.topology, place.shards, slots)
    tasks = RemoteTasks(coordinator, rows, slots, readers, keyings, metrics, pickled, ended)
    epochs: Epochs[Mapping[str, SplitPlan]] = Epochs(
        program,
        place.shards,
        log,
        latest,
        token,
        runner=ResidentRunner(tasks, guards, stopping.is_set),
        planner=planner,
        compaction=compaction,
        upkeep=BackgroundUpkeep(),
        guards=guards,
        points=points or CrashPoints(),
        session=session,
        metrics=metrics,
        stopping=stopping,
    )
    return ResidentParts(epochs, planner, coordinator, compaction, setup)
