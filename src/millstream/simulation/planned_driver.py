"""A simulated run as production plans it: the real epochs, planner and offsets (`engine/source_planner.py`). Its tasks run in a loop, as in a micro-batch
(`simulation/loop_tasks.py`), or stay (`simulation/resident_tasks.py`).

    replan     the driver dies before the commit, and the epoch is planned anew with other rows
    lose       where tasks stay: one is lost in the middle of an epoch, after some of its frames, or with everything staged; the epoch is run again
    stale      as `lose`, and what the lost attempt has sent arrives in the middle of the next one
    rejoin     a slot is taken over by a newcomer without state caches, while its predecessor goes on and writes

Beside these there are the faults of `simulation/driver.py`. A driver may also pause between its last look at the claims and the commit, be replaced, and commit
nevertheless.

Rules
1. The source has as many rows as have arrived; what it has of an epoch may be another amount the next time it is asked. It forgets what was acknowledged.
2. Epochs are cut by what manifests say, so a run is compared with an undisturbed one of the cuts that were *committed* (`committed_plan`): in every byte,
   as long as these cuts have every row once. Where each epoch ends is all that is taken from the run.
3. Collection, which goes by time and runs in a thread, is done in the epoch here, every few epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.engine.resident.runner import ResidentRunner
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.upkeep import Upkeep
from millstream.simulation.driver import (
    AFTER_THE_END,
    InputPlan,
    SimulatedCompaction,
    SimulatedPoints,
    Simulation,
    claim,
)
from millstream.simulation.fakes import Killed, Violation
from millstream.simulation.fault import Fault
from millstream.simulation.loop_tasks import LoopTasks
from millstream.simulation.resident_tasks import SimulatedTasks
from millstream.simulation.view_checks import EpochJudge
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage

PLANNED_KINDS = ("crash", "pause", "retry", "recompute", "zombie", "repeat", "compact", "forget", "replan")
RESIDENT_KINDS = ("crash", "pause", "repeat", "compact", "forget", "lose", "stale", "rejoin", "replan")
COMMITTING = "epoch.6-committing"  # behind the last look at the claims
BEFORE_COMMIT = ("epoch.1-looked", "epoch.2-read", "task.3-shuffled", "task.4-staging", "task.4-staged", "epoch.5-checked", COMMITTING)
_STARTED = "started"
_WAKES = (
    _STARTED,
    "epoch.1-looked",
    "epoch.2-read",
    "epoch.5-checked",
)  # of the successor, at which a driver that was about to commit wakes up
_COLLECT_EVERY = 3
_MOST_DRAINING = 1000  # epochs


class Arrived(msgspec.Struct):
    """A row, in the order of arrival. again: it was there before."""

    stream: str
    row: dict[str, Any]
    again: bool = False


class SimulatedReader(PlannedReader):
    """Plans and reads one stream. An offset says how many of its rows were read."""

    def __init__(self, simulation: PlannedSimulation, stream: str) -> None:
        self._simulation = simulation
        self._stream = stream

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        begin, end = int(start), self._simulation.arrived(self._stream)
        if end <= begin:
            return SplitPlan(start)
        middle = begin + (end - begin) // 2
        return SplitPlan(str(end), [split for split in ((begin, middle), (middle, end)) if split[0] < split[1]], end - begin)

    def rows(self, split: tuple[int, int]) -> list[dict[str, Any]]:
        """What the source still has of a split."""
        return self._simulation.rows_of(self._stream, *split)

    def committed(self, end: str) -> None:
        self._simulation.forgotten[self._stream] = max(int(end), self._simulation.forgotten.get(self._stream, 0))


class _NotingLog(ManifestLog):
    """Notes what is committed, by whomever; and has a place to pause behind the last check."""

    driver: PlannedDriver

    def commit(self, manifest: Manifest, exclusive: bool = True) -> bool:
        simulation = self.driver.simulation
        simulation.at(self.driver, COMMITTING, self.driver.index)
        done = super().commit(manifest, exclusive)
        if done:
            simulation.committed[manifest.epoch] = manifest
        return done


class PlannedDriver:
    """A driver whose epochs are planned by Millstream, with simulated tasks."""

    def __init__(self, simulation: PlannedSimulation) -> None:
        log = _NotingLog(simulation.storage)
        log.driver = self
        token = claim(log)
        latest = log.latest()
        self.simulation = simulation
        self.compiled = simulation.compiled_at(_index(latest))
        self.index = -1
        program = self.compiled.program
        latest = None if latest is None else reconciled(latest, program)
        self._readers = {name: SimulatedReader(simulation, name) for name in program.topology.injectors}
        self.planner = SourcePlanner(self._readers, log.storage, token, latest, True, simulation.guards)
        self.tasks: SimulatedTasks | LoopTasks
        if simulation.resident:
            self.tasks = SimulatedTasks(self, simulation.dice("slots", token.split("-")[0]).choice([1, 2, 2, 3]), self._read)
            runner: Any = ResidentRunner(self.tasks, simulation.guards)
        else:
            runner = self.tasks = LoopTasks(self, lambda takes: [row for rows in self._read(takes) for row in rows])
        self.epochs: Epochs[Mapping[str, SplitPlan]] = Epochs(
            program,
            simulation.shards,
            log,
            latest,
            token,
            runner=runner,
            planner=self.planner,
            compaction=SimulatedCompaction(simulation, token),
            upkeep=Upkeep(_COLLECT_EVERY),
            guards=simulation.guards,
            clock=lambda: simulation.now,
            points=SimulatedPoints(self),
            warn=lambda hint: None,
        )

    def turn(self) -> None:
        """The next epoch, whatever there is to read."""
        self.index = _index(self.epochs.latest)
        reading, takes = self.planner.next(self.epochs.latest)
        self.epochs.run(takes, reading)

    def _read(self, takes: Mapping[str, SplitPlan]) -> list[list[tuple[str, dict[str, Any]]]]:
        """The rows of every split."""
        return [[(name, row) for row in self._readers[name].rows(split)] for name, take in takes.items() for split in take.splits]


def _index(latest: Manifest | None) -> int:
    """Which of its epochs a run is at: those that read are counted."""
    return 0 if latest is None else latest.last_batch + 1


class PlannedSimulation(Simulation):
    """One run of a program under a schedule, whose epochs are planned as production does. resident: in tasks that stay; else in micro-batches."""

    def __init__(
        self,
        program: Program,
        plan: InputPlan,
        schedule: Sequence[Fault],
        seed: int,
        shards: int = 2,
        guards: Guards = ALL_GUARDS,
        storage: Storage | None = None,
        then: tuple[int, Program] | None = None,
        judge: EpochJudge | None = None,
        resident: bool = False,
    ) -> None:
        super().__init__(program, plan, schedule, seed, shards, guards, storage, then, judge)
        self.resident = resident
        epochs = _arrivals(plan, schedule)
        self.arrivals = [one for rows in epochs for one in rows]
        self._bounds = [sum(map(len, epochs[: at + 1])) for at in range(len(epochs))]
        self._other: dict[int, int] = {}  # where an epoch ends that is planned anew
        self._index = 0
        self._about_to_commit: dict[threading.Thread, tuple[int, str]] = {}
        self._woken: set[threading.Thread] = set()
        self.forgotten: dict[str, int] = {}
        self.committed: dict[int, Manifest] = {}
        self.attempts = self.generations = 0  # of all drivers
        self.now = plan.clock[0]

    # --- the source

    def arrived(self, stream: str) -> int:
        """How many rows of a stream there are for the epoch that is planned."""
        return sum(1 for one in self.arrivals[: self._end(self._index)] if one.stream == stream)

    def _end(self, index: int) -> int:
        return self._other.get(index, self._bounds[index] if index < len(self._bounds) else len(self.arrivals))

    def rows_of(self, stream: str, begin: int, end: int) -> list[dict[str, Any]]:
        """Rows of a stream, without those that the source has forgotten."""
        rows = [one.row for one in self.arrivals if one.stream == stream]
        return rows[max(begin, self.forgotten.get(stream, 0)) : end]

    def _is_all_read(self, manifest: Manifest | None) -> bool:
        return manifest is not None and all(
            manifest.sources[name].offset == str(sum(1 for one in self.arrivals if one.stream == name)) for name in manifest.sources
        )

    def _replan(self, fault: Fault) -> None:
        """The epoch under way will have other rows, and a little later."""
        dice, end = self.dice("replan", fault.epoch, fault.point), self._end(fault.epoch)
        least = max((self._end(index) for index in range(fault.epoch)), default=0)
        if fault.later % 2:
            self._other[fault.epoch] = dice.randint(min(least, end), end)
        else:
            self._other[fault.epoch] = dice.randint(min(end + 1, len(self.arrivals)), len(self.arrivals))
        self.now += dice.choice([0, 300, 3000])

    def committed_plan(self, plan: InputPlan | None = None) -> InputPlan:
        """What was read by the epochs that were committed, without what came again (rule 2)."""
        epochs: list[list[tuple[str, dict[str, Any]]]] = []
        clock: list[int] = []
        idle: dict[int, int] = {}
        outside = 0
        ends = dict.fromkeys(self.program.topology.injectors, 0)
        for _, manifest in sorted(self.committed.items()):
            if manifest.drain:
                break
            if manifest.outside > outside:
                outside, idle[len(epochs)] = manifest.outside, idle.get(len(epochs), 0) + 1
                continue
            rows: list[tuple[str, dict[str, Any]]] = []
            for name, position in manifest.sources.items():
                mine = [one for one in self.arrivals if one.stream == name]
                rows += [(name, one.row) for one in mine[ends[name] : int(position.offset)] if not one.again]
                if int(position.offset) < ends[name]:
                    raise Violation(f"epoch {manifest.epoch} ends before it begins: stream {name!r} at {position.offset}")
                ends[name] = int(position.offset)
            epochs.append(rows)
            clock.append(manifest.now)
        for name, end in ends.items():
            there = sum(1 for one in self.arrivals if one.stream == name)
            if end != there:
                raise Violation(f"stream {name!r} was read up to row {end} of {there}")
        return InputPlan(epochs, clock, idle)

    # --- faults

    def at_task(self, epoch: int, name: str, task: int) -> None:
        for fault in self.schedule:
            here = fault.kind == "replan" and fault.epoch == epoch and fault.point == name and fault.task == task
            if here and fault not in self.used:
                self.used.add(fault)
                self._replan(fault)
                raise Killed(name)
        super().at_task(epoch, name, task)

    def at(self, driver: Any, name: str, epoch: int) -> None:
        here = threading.current_thread()
        if here in self._woken:  # it has been replaced: nothing more happens to it
            return
        self._wake_at(epoch, name)
        for fault in self.schedule:
            if fault.kind == "pause" and fault.epoch == epoch and fault.point == name and fault not in self.used:
                if self.dice("replanned", epoch, name).random() < 0.6:
                    self._replan(fault)
                if name == COMMITTING:
                    self._about_to_commit[here] = (epoch, _WAKES[fault.later % len(_WAKES)])
                break
        super().at(driver, name, epoch)

    def _wake_at(self, epoch: int, name: str) -> None:
        """A driver that was about to commit may wake up when its successor is here."""
        for entry in list(self.paused):
            if entry[2] is not threading.current_thread() and self._about_to_commit.get(entry[2]) == (epoch, name):
                self._go_on(entry)

    def _go_on(self, entry: Any) -> None:
        self._about_to_commit.pop(entry[2], None)
        self._woken.add(entry[2])
        super()._go_on(entry)

    # --- the run

    def _begin(self) -> None:
        driver = PlannedDriver(self)
        try:
            self._drive(driver)
        except Killed:
            driver.index = -1
            if isinstance(driver.tasks, SimulatedTasks):
                self.sleep(self._index + self.dice("orphans", self._index).randint(0, 2), driver.tasks.run_orphans)
            raise

    def _drive(self, driver: PlannedDriver) -> None:
        epochs = driver.epochs
        self._wake_at(self._index, _STARTED)
        epochs.resume()
        while _index(epochs.latest) < len(self.plan.epochs) or not self._is_all_read(epochs.latest):
            index = self._index = _index(epochs.latest)
            if self.compiled_at(index) is not driver.compiled:
                raise Killed("stopped, to be started as another program")
            self.now = max(self.now, self.plan.clock[min(index, len(self.plan.clock) - 1)])
            self._epoch(index, driver.turn)
            self.done = index
            self._wake(index)
            self._resume(index)
            if self.hits("forget", index):
                driver.tasks.forget()
        driver.index = -1
        assert epochs.latest is not None
        self.now = epochs.latest.now
        for _ in range(_MOST_DRAINING):
            if epochs.latest.drained:
                self.now += AFTER_THE_END
                epochs.drain(lambda: False)
                return
            epochs.run_outside(drain=True)
            self._wake(epochs.latest.epoch)
        raise Violation("event time does not end")


def _arrivals(plan: InputPlan, schedule: Sequence[Fault]) -> list[list[Arrived]]:
    """Rows by epoch, with those that come again, in the same epoch as the first time or a later one."""
    home = [(epoch, row) for epoch, rows in enumerate(plan.epochs) for row in rows]
    epochs = [[Arrived(stream, row) for stream, row in rows] for rows in plan.epochs]
    for fault in schedule:
        if fault.kind == "repeat":
            first, (stream, row) = home[fault.later]
            epochs[max(first, fault.epoch)].append(Arrived(stream, row, again=True))
    return epochs
