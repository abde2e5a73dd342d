"""A simulated run under a schedule of faults: `engine/epochs.py`, `engine/source_planner.py`, `engine/task.py` and all of `state/` but the disk are real. The
source, the network between tasks (it delivers in any order), worker processes with their state caches, and processes that die, stall or wake up late are
modelled.
A run is determined by its plan and its schedule; both follow from a seed. After the last fault it goes on undisturbed to its end, and is compared with the
local engine. Behind the end of event time the clock goes on once, for wall-clock timers.

    crash      the driver dies at a named point of an epoch; another one starts, on other workers
    pause      the driver stalls there, or between its last look at the claims and the commit, is replaced, and wakes up later: it must end with Fenced,
               and change nothing
    retry      a task's first attempt stages everything and is lost; it is run again
    recompute  a task is run again after its productions have been consumed
    zombie     a task's attempt stalls, is overtaken, and works and writes after later epochs have been committed
    repeat     the source brings a record again
    compact    a chain of segments is compacted beside the epoch
    forget     a worker loses its state caches
    replan     a driver is killed before the commit; its successor finds other rows
    lose       of tasks that stay: one is lost in the middle of an epoch, after some of its frames, or with everything staged; the epoch is run again
    stale      as `lose`, and what the lost attempt has sent arrives in the middle of the next one
    rejoin     a slot is taken over by a newcomer without state caches, while its predecessor goes on and writes

Rules
1. The source has the rows that have arrived, which may be more the next time it is asked, and forgets what was acknowledged.
2. A run is compared with an undisturbed one of the epochs that were *committed* (`committed_plan`): in every byte, as long as they have every row once. Where
   each epoch ends is all that is taken from the run.
3. Collection, which goes by time and runs in a thread, is done here every few epochs.
4. The run may be restarted as another version of the program (`then`). With a judge, after every commit all views are compared with a recomputation.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.topology import Emission, Topology
from millstream.engine.program import Compiled, Program
from millstream.errors import Fenced
from millstream.simulation.driver import COMMITTING, Driver, index_of
from millstream.simulation.fakes import Host, Killed, PublishedRows, Violation
from millstream.simulation.fault import Fault
from millstream.simulation.resident_tasks import SimulatedTasks
from millstream.simulation.view_checks import EpochJudge, EpochRead
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import Storage

MICRO_BATCH_KINDS = ("crash", "pause", "retry", "recompute", "zombie", "repeat", "compact", "forget", "replan")
RESIDENT_KINDS = ("crash", "pause", "repeat", "compact", "forget", "lose", "stale", "rejoin", "replan")
BEFORE_COMMIT = ("epoch.1-looked", "epoch.2-read", "task.3-shuffled", "task.4-staging", "task.4-staged", "epoch.5-checked", COMMITTING)
AFTER_THE_END = 10_000  # milliseconds
_STARTED = "started"
#: Points of the successor at which a driver that was about to commit wakes up.
_WAKES = (_STARTED, "epoch.1-looked", "epoch.2-read", "epoch.5-checked")
_MOST_DRAINING = 1000  # epochs


class InputPlan(msgspec.Struct):
    """What the source brings in each epoch, and when. idle: by epoch, how many in which nothing happened came before it."""

    epochs: list[list[tuple[str, dict[str, Any]]]]
    clock: list[int]
    idle: dict[int, int] = {}


class Arrived(msgspec.Struct):
    """A row, in the order of arrival. again: it was there before."""

    stream: str
    row: dict[str, Any]
    again: bool = False


class _Paused(msgspec.Struct):
    """A driver that stalls, in a thread of its own. until: the epoch after which it wakes up; -1: it has not stalled yet. wakes_at: the epoch and point of
    its successor at which it wakes up instead."""

    thread: threading.Thread
    go_on: threading.Event
    raised: list[BaseException]
    until: int = -1
    wakes_at: tuple[int, str] | None = None


class Simulation:
    """One run of a program under a schedule, on a storage in memory unless another is given."""

    pauses = ("epoch.2-read", "epoch.5-checked", "epoch.6-committed", COMMITTING)  # where a driver may stall

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
        """then: from which epoch on it runs as another program. judge: looks at all views after every commit. resident: in tasks that stay; else in
        micro-batches."""
        self.storage = MemoryStorage() if storage is None else storage
        self.ledgers: dict[str, PublishedRows] = {}
        self._first = self.compiled = self._emitting(program)
        self._then = 0
        if then is not None:
            self._then, self.compiled = then[0], self._emitting(then[1])
        self.program = self.compiled.program  # what it runs as at the end
        self._judge = judge
        self._read = Host(self.storage, trusting=False)
        self.plan = plan
        self.schedule = list(schedule)
        self.seed = seed
        self.shards = shards
        self.guards = guards
        self.resident = resident
        self.used: set[Fault] = set()
        self._asleep: list[tuple[int, Callable[[], Any]]] = []
        self._paused: list[_Paused] = []
        self._woken: set[threading.Thread] = set()
        self._turn = threading.Event()
        epochs = _arrivals(plan, schedule)
        self.arrivals = [one for rows in epochs for one in rows]
        self._bounds = [sum(map(len, epochs[: at + 1])) for at in range(len(epochs))]
        self._other: dict[int, int] = {}  # where an epoch ends that is planned anew
        self._index = 0
        self.forgotten: dict[str, int] = {}
        self.committed: dict[int, Manifest] = {}
        self.attempts = self.generations = 0  # of all drivers
        self.now = plan.clock[0] if plan.clock else 0

    def _emitting(self, program: Program) -> Compiled:
        """A program all of whose streams go to sinks, ready to run."""
        streams = [stream for spec in program.topology.computations for stream in spec.streams]
        emissions = [Emission(s, s, self.ledgers.setdefault(s, self._ledger()), ids=True) for s in streams]
        topology = Topology(list(program.topology.injectors.values()), program.topology.computations, emissions)
        emitting = Program(program.name, topology, program.codec)
        emitting.expressions = program.expressions
        return Compiled(emitting, all_ids=True)

    def _ledger(self) -> PublishedRows:
        return PublishedRows(self.storage)

    def host(self) -> Host:
        """A worker process that has just begun."""
        return Host(self.storage, trusting=not self.guards.markers)

    def compiled_at(self, epoch: int) -> Compiled:
        """What it runs as in an epoch."""
        return self._first if epoch < self._then else self.compiled

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

    # --- the schedule

    def dice(self, *what: Any) -> random.Random:
        """Randomness that depends on the seed and the place alone: taking one fault out of a schedule changes nothing else."""
        return random.Random(f"{self.seed}{what}")

    def take_due(self, kind: str, epoch: int, task: int | None = None) -> list[Fault]:
        """Faults that are due here and have not happened yet."""
        due = [f for f in self.schedule if f.kind == kind and f.epoch == epoch and (task is None or f.task == task) and f not in self.used]
        self.used.update(due)
        return due

    def hits(self, kind: str, epoch: int, task: int | None = None) -> bool:
        """Whether a fault strikes."""
        return bool(self.take_due(kind, epoch, task))

    def sleep(self, until: int, wake: Callable[[], Any]) -> None:
        """Has something happen after an epoch has been committed."""
        self._asleep.append((until, wake))

    def _strike(self, kind: str, epoch: int, point: str, task: int = 0) -> Fault | None:
        """The fault that is due at a point and has not happened yet."""
        for fault in self.schedule:
            here = fault.kind == kind and fault.epoch == epoch and fault.point == point and fault.task == task
            if here and fault not in self.used:
                self.used.add(fault)
                return fault
        return None

    def at_task(self, epoch: int, name: str, task: int) -> None:
        """A point inside a task; a crash there takes the driver along."""
        replanned = self._strike("replan", epoch, name, task)
        if replanned is not None:
            self._replan(replanned)
        if replanned is not None or self._strike("crash", epoch, name, task) is not None:
            raise Killed(name)

    def at(self, driver: Any, name: str, epoch: int) -> None:
        """A point in the driver."""
        here = threading.current_thread()
        if here in self._woken:  # it has been replaced: nothing more happens to it
            return
        for paused in list(self._paused):  # a driver that was about to commit may wake up when its successor is here
            if paused.thread is not here and paused.wakes_at == (epoch, name):
                self._go_on(paused)
        if name == "epoch.6-committed" and driver.epochs.latest is not None:
            self._look(driver.compiled, driver.epochs.latest)
        self.at_task(epoch, name, 0)
        fault = self._strike("pause", epoch, name)
        if fault is not None:
            self._replan_paused(fault)
            paused = next(one for one in self._paused if one.thread is here)
            paused.until = epoch + fault.later
            if name == COMMITTING:
                paused.wakes_at = (epoch, _WAKES[fault.later % len(_WAKES)])
            self._turn.set()
            paused.go_on.wait()

    def _replan_paused(self, fault: Fault) -> None:
        if self.dice("replanned", fault.epoch, fault.point).random() < 0.6:
            self._replan(fault)

    def _look(self, compiled: Compiled, manifest: Manifest) -> None:
        """Views must be right in every committed epoch, whatever happens next."""
        if self._judge is not None:
            found = self._judge.first(self.epoch_read(compiled, manifest))
            if found is not None:
                raise Violation(f"after epoch {manifest.epoch}: {found}")

    def epoch_read(self, compiled: Compiled, manifest: Manifest) -> EpochRead:
        """Tables, views and joins as a manifest has them."""
        refined = {spec.name for spec in compiled.topology.computations if spec.refines}
        stores = {
            (name, shard): self._read.view(state.lineage, shard, one.segments, manifest)
            for name, state in manifest.computations.items()
            if name in refined
            for shard, one in enumerate(state.shards)
        }
        return EpochRead(compiled, stores, manifest.builds, {stored_ref.computation for stored_ref in manifest.pending})

    # --- the run

    def run(self) -> Manifest:
        """From the first epoch to the end of event time, through all faults; returns the last manifest."""
        for _ in range(1000):
            try:
                self._begin()
                break
            except Killed:
                continue
        else:
            raise Violation("the run does not end")
        for epoch in sorted({until for until, _ in self._asleep}):
            self._wake(epoch)
        self._resume(10**9)
        latest = ManifestLog(self.storage).latest()
        assert latest is not None
        return latest

    def _begin(self) -> None:
        """A driver's whole life, or what there is of it."""
        driver = Driver(self)
        try:
            self._drive(driver)
        except Killed:
            driver.index = -1
            if isinstance(driver.tasks, SimulatedTasks):
                self.sleep(self._index + self.dice("orphans", self._index).randint(0, 2), driver.tasks.run_orphans)
            raise

    def _drive(self, driver: Driver) -> None:
        epochs = driver.epochs
        for paused in [one for one in self._paused if one.wakes_at == (self._index, _STARTED)]:
            self._go_on(paused)
        epochs.resume()
        while index_of(epochs.latest) < len(self.plan.epochs) or not self._is_all_read(epochs.latest):
            index = self._index = index_of(epochs.latest)
            self.now = max(self.now, self.plan.clock[min(index, len(self.plan.clock) - 1)])
            self._epoch(index, driver, driver.turn)
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

    def _epoch(self, index: int, driver: Any, run: Callable[[], None]) -> None:
        """One epoch of a driver, and what is due behind it."""
        if self.compiled_at(index) is not driver.compiled:
            raise Killed("stopped, to be started as another program")
        self._run_epoch(index, run)
        self._wake(index)
        self._resume(index)
        if self.hits("forget", index):
            driver.tasks.forget()

    def _run_epoch(self, epoch: int, run: Callable[[], None]) -> None:
        """An epoch; in a thread of its own where it is going to stall."""
        if not any(f.kind == "pause" and f.epoch == epoch and f not in self.used for f in self.schedule):
            run()
            return
        raised: list[BaseException] = []
        turn = self._turn = threading.Event()

        def body() -> None:
            try:
                run()
            except BaseException as error:
                raised.append(error)
            finally:
                turn.set()

        paused = _Paused(threading.Thread(target=body, daemon=True), threading.Event(), raised)
        self._paused.append(paused)
        paused.thread.start()
        turn.wait()
        if paused.thread.is_alive() and paused.until >= 0:
            raise Killed("paused, and replaced")
        paused.thread.join()
        self._paused.remove(paused)
        if raised:
            raise raised[0]

    def _wake(self, epoch: int) -> None:
        """Zombie attempts that have slept long enough do their work now."""
        due = [wake for until, wake in self._asleep if until <= epoch]
        self._asleep = [(until, wake) for until, wake in self._asleep if until > epoch]
        for wake in due:
            wake()

    def _resume(self, epoch: int) -> None:
        """Stalled drivers that have slept long enough go on."""
        for paused in [one for one in self._paused if 0 <= one.until <= epoch]:
            self._turn = threading.Event()
            self._go_on(paused)

    def _go_on(self, paused: _Paused) -> None:
        """A stalled driver goes on, and must find that it was replaced."""
        self._paused.remove(paused)
        self._woken.add(paused.thread)
        paused.go_on.set()
        paused.thread.join()
        if not paused.raised:
            raise Violation("a driver that had been replaced went on as if nothing had happened")
        if not isinstance(paused.raised[0], Fenced):
            raise paused.raised[0]


def _arrivals(plan: InputPlan, schedule: Sequence[Fault]) -> list[list[Arrived]]:
    """Rows by epoch, with those that come again, in the same epoch as the first time or a later one."""
    home = [(epoch, row) for epoch, rows in enumerate(plan.epochs) for row in rows]
    epochs = [[Arrived(stream, row) for stream, row in rows] for rows in plan.epochs]
    for fault in schedule:
        if fault.kind == "repeat":
            first, (stream, row) = home[fault.later]
            epochs[max(first, fault.epoch)].append(Arrived(stream, row, again=True))
    return epochs
