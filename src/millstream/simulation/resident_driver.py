"""A simulated resident run: the real planned epochs, sources and offsets (`engine/planned.py`, `engine/source_planner.py`), and tasks that stay
(`simulation/tasks.py`).

    lose       a task is lost in the middle of an epoch: after some of its frames, or with everything staged; the epoch is run again
    stale      the same, and what the lost attempt has sent arrives in the middle of the next one
    rejoin     a seat is taken over by a newcomer without replicas, while who sat there goes on and writes
    replan     the driver dies before the commit, and the epoch is planned anew with other rows

Beside these there are `crash`, `pause`, `repeat`, `fold` and `forget` of `simulation/driver.py`. A driver may also pause between its last look at the claims
and the commit, be replaced, and commit nevertheless.

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
from millstream.engine.planned import PlannedEpochs
from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.source_planner import Sources
from millstream.errors import TaskLost
from millstream.simulation.driver import AFTER_THE_END, Fault, InputPlan, SimulatedFolds, Simulation, claimed
from millstream.simulation.fakes import Killed, Violation
from millstream.simulation.tasks import EpochInput, SimulatedSeats
from millstream.simulation.view_checks import EpochJudge
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.compaction import collect
from millstream.state.manifest import Manifest, ManifestLog
from millstream.state.storage import Storage

RESIDENT_KINDS = ("crash", "pause", "repeat", "fold", "forget", "lose", "stale", "rejoin", "replan")
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

    def __init__(self, simulation: ResidentSimulation, stream: str) -> None:
        self._simulation = simulation
        self._stream = stream

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        begin, end = int(start), self._simulation.arrived(self._stream)
        if end <= begin:
            return SplitPlan(start)
        middle = begin + (end - begin) // 2
        return SplitPlan(str(end), [piece for piece in ((begin, middle), (middle, end)) if piece[0] < piece[1]], end - begin)

    def rows(self, piece: tuple[int, int]) -> list[dict[str, Any]]:
        """What the source still has of a piece."""
        return self._simulation.rows_of(self._stream, *piece)

    def committed(self, end: str) -> None:
        self._simulation.forgotten[self._stream] = max(int(end), self._simulation.forgotten.get(self._stream, 0))


class _NotingLog(ManifestLog):
    """Notes what is committed, by whomever; and has a place to pause behind the last check."""

    driver: ResidentDriver

    def commit(self, manifest: Manifest, exclusive: bool = True) -> bool:
        simulation = self.driver.simulation
        simulation.at(self.driver, COMMITTING, self.driver.index)
        done = super().commit(manifest, exclusive)
        if done:
            simulation.committed[manifest.epoch] = manifest
        return done


class ResidentDriver(PlannedEpochs):
    """The real protocol and planner, with simulated tasks."""

    def __init__(self, simulation: ResidentSimulation) -> None:
        log = _NotingLog(simulation.storage)
        log.driver = self
        token = claimed(log)
        latest = log.latest()
        self.compiled = simulation.compiled_at(_index(latest))
        program = self.compiled.program
        latest = None if latest is None else reconciled(latest, program)
        super().__init__(program, simulation.shards, log, latest, token, None, SimulatedFolds(simulation, token), simulation.guards)
        self.simulation = simulation
        self.sources = Sources(
            {name: SimulatedReader(simulation, name) for name in self.topology.injectors}, log.storage, token, simulation.guards
        )
        self.sources.begin(latest, True)
        self.tasks = SimulatedSeats(self, simulation.dice("seats", token.split("-")[0]).choice([1, 2, 2, 3]))
        self.index = -1
        if self.latest is not None:
            collect(log, self.latest)

    def turn(self) -> None:
        """The next epoch, whatever there is to read."""
        self.index = _index(self.latest)
        ranges, takes = self.sources.next(self.latest)
        self.run_planned({name: take for name, take in takes.items() if take.splits}, ranges, 0.0)

    def clock(self) -> int:
        return self.simulation.now

    def warn(self, hint: str) -> None:
        """Nobody listens: the same records are run many times."""

    def point(self, name: str, epoch: int) -> None:
        self.simulation.at(self, name, self.index)

    def is_upkeep_due(self, epoch: int) -> bool:
        return epoch % _COLLECT_EVERY == 0

    def collect(self, manifest: Manifest) -> None:
        Epochs.collect(self, manifest)

    def job(self, takes: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        input = self._input(takes or {})
        while True:
            self.tasks.gather()
            self.simulation.attempts += 1
            self.simulation.generations = max(self.simulation.generations, self.tasks.roster.generation)
            try:
                return self.tasks.run(input, self.next_try(order))
            except TaskLost:
                if not self.guards.rerun:
                    input = EpochInput()

    def _input(self, takes: Mapping[str, SplitPlan]) -> EpochInput:
        """Rows that the driver reads, or what each task is to read."""
        dice = self.simulation.dice("reads", self.index)
        pieces = [[(name, row) for row in self._read(name, piece)] for name, take in takes.items() for piece in take.splits]
        if dice.random() < 0.5:
            return EpochInput([row for rows in pieces for row in rows])
        seats = self.tasks.count
        return EpochInput([], [[row for rows in pieces[seat::seats] for row in rows] for seat in range(seats)])

    def _read(self, name: str, piece: Any) -> list[dict[str, Any]]:
        reader = self.sources.readers[name]
        assert isinstance(reader, SimulatedReader)
        return reader.rows(piece)


def _index(latest: Manifest | None) -> int:
    """Which of its epochs a run is at: those that read are counted."""
    return 0 if latest is None else latest.last_batch + 1


class ResidentSimulation(Simulation):
    """One resident run of a program under a schedule."""

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
    ) -> None:
        super().__init__(program, plan, schedule, seed, shards, guards, storage, then, judge)
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

    def committed_plan(self) -> InputPlan:
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
        driver = ResidentDriver(self)
        try:
            self._drive(driver)
        except Killed:
            driver.index = -1
            self.sleep(self._index + self.dice("orphans", self._index).randint(0, 2), driver.tasks.orphaned)
            raise

    def _drive(self, driver: ResidentDriver) -> None:
        self._wake_at(self._index, _STARTED)
        driver.resume()
        while _index(driver.latest) < len(self.plan.epochs) or not self._is_all_read(driver.latest):
            index = self._index = _index(driver.latest)
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
        assert driver.latest is not None
        self.now = driver.latest.now
        for _ in range(_MOST_DRAINING):
            if driver.latest.drained:
                self.now += AFTER_THE_END
                driver.drain(lambda: False)
                return
            driver.run_outside(drain=True)
            self._wake(driver.latest.epoch)
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
