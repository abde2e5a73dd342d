"""A simulated run: the real epoch protocol, manifests, segments, stored productions and compactions, over a storage in memory, under a schedule of faults.

What is real: `engine/epochs.py`, `engine/task.py` with all it does, everything in `state/` but the disk. What is modelled: the source, which forgets
what was acknowledged; its log, which does not; the network between tasks (it delivers in any order); worker processes with their state caches; and
processes that die, stall or wake up late.
A run is determined by its plan and its schedule; both follow from a seed. After the last fault the run goes on undisturbed to its end, and is
compared with the local engine, which knows nothing of all this. Behind the end of event time the clock goes on once, for wall-clock timers.

    crash      the driver dies at a named point of an epoch; another one starts, on other workers
    pause      the driver stalls there, is replaced, and wakes up later: it must end with Fenced, and change nothing
    retry      a task's first attempt stages everything and is lost; it is run again
    recompute  a task is run again after its productions have been consumed
    zombie     a task's attempt stalls, is overtaken, and works and writes after later epochs have been committed
    repeat     the source brings a record again
    compact    a chain of segments is compacted beside the epoch
    forget     a worker loses its state caches

The run may be restarted as another version of the program on the way (`Simulation.then`), as a deployment of changed code would be.
If somebody is to judge them, after every commit all views are compared with a recomputation from what the manifest names (`simulation/view_checks.py`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.topology import Emission, Topology
from millstream.engine.contracts import Compacted, Compaction
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.plan import Range, Reading
from millstream.engine.program import Compiled, Program
from millstream.errors import Fenced
from millstream.faults import CrashPoints
from millstream.simulation.fakes import Host, HostCache, Killed, PublishedRows, Violation
from millstream.simulation.fault import Fault
from millstream.simulation.loop_tasks import InputRows, LoopTasks
from millstream.simulation.view_checks import EpochJudge, EpochRead
from millstream.state.compaction import compact
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import runs
from millstream.state.storage import Storage

AFTER_THE_END = 10_000  # milliseconds


class Acknowledgement(msgspec.Struct, frozen=True):
    """What the source heard: a run told it that a batch is safe. committed: whether its manifest was there at that moment."""

    token: str
    batch: int
    committed: bool


class InputPlan(msgspec.Struct):
    """What the source brings in each epoch, and when. idle: by epoch, how many in which nothing happened came before it."""

    epochs: list[list[tuple[str, dict[str, Any]]]]
    clock: list[int]
    idle: dict[int, int] = {}


class SimulatedCompaction(Compaction):
    """Compacts at once; the next manifest adopts the result."""

    def __init__(self, simulation: Simulation, token: str) -> None:
        self._simulation = simulation
        self._token = token
        self._done: dict[tuple[str, int], Compacted] = {}

    def plan(self, manifest: Manifest) -> None:
        simulation = self._simulation
        if not simulation.hits("compact", manifest.epoch):
            return
        for name, state in manifest.computations.items():
            for shard, one in enumerate(state.shards):
                groups = runs(one.segments)
                if len(groups) > 1:
                    first = simulation.dice("compact", manifest.epoch, name, shard).randrange(len(groups) - 1)
                    chosen = [ref for run in groups[first:] for ref in run]
                    made = compact(simulation.storage, chosen, chosen[0] == one.segments[0], manifest.epoch, self._token)
                    self._done[name, shard] = Compacted(chosen, made)

    def take_finished(self) -> dict[tuple[str, int], Compacted]:
        done, self._done = self._done, {}
        return done

    def in_flight(self) -> set[str]:
        return {ref.name for one in self._done.values() for ref in one.made}


def claim(log: ManifestLog) -> str:
    """Takes the checkpoint over; the token of the run that begins."""
    latest = log.latest()
    return log.runs.claim(latest.token if latest is not None else None)


class SimulatedPoints(CrashPoints):
    """Tells the simulation where a driver is."""

    def __init__(self, driver: SimulatedDriver) -> None:
        super().__init__()
        self._driver = driver

    def __call__(self, name: str, epoch: int) -> None:
        self._driver.simulation.at(self._driver, name, self._driver.index)


class SimulatedDriver(Protocol):
    """A driver, as what it is made of sees it. index: which of the epochs that read it is at; -1: an epoch outside the query."""

    simulation: Any
    compiled: Compiled
    epochs: Epochs[Any]
    index: int


class Driver:
    """A driver whose epochs are planned by (a model of) Spark's log, with simulated tasks. It is the planner of its epochs, too."""

    is_ours = False

    def __init__(self, simulation: Simulation, warn: Callable[[str], None] | None = lambda hint: None) -> None:
        log = ManifestLog(simulation.storage)
        token = claim(log)
        self.simulation = simulation
        self.compiled = simulation.compiled_at(simulation.done + 1)
        self.index = -1
        program = self.compiled.program
        latest = log.latest()
        self.tasks = LoopTasks(self, lambda rows: rows)
        self.epochs: Epochs[InputRows] = Epochs(
            program,
            simulation.shards,
            log,
            None if latest is None else reconciled(latest, program),
            token,
            runner=self.tasks,
            planner=self,
            compaction=SimulatedCompaction(simulation, token),
            guards=simulation.guards,
            clock=self.clock,
            points=SimulatedPoints(self),
            warn=warn,
        )

    def clock(self) -> int:
        """The wall clock."""
        return self.simulation.plan.clock[-1] + (AFTER_THE_END if self.simulation.is_over else 0)

    def run(self, rows: InputRows, number: int) -> None:
        """The epoch of a batch of Spark's log."""
        self.index = number
        try:
            self.epochs.run(rows, self.simulation.reading(number))
        finally:
            self.index = -1

    def files(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        """There are no files: such a watermark stands still until the drain, as in the local engine."""
        return {}, set()

    def acknowledge(self, batch: int, positions: Mapping[str, Any]) -> None:
        """The source hears it."""
        is_committed = self.epochs.log.exists(batch)  # epochs outside the query come behind all batches
        self.simulation.told.append(Acknowledgement(self.epochs.token, batch, is_committed))

    def took_over(self, manifest: Manifest) -> None:
        """Spark's log says what was read."""

    def close(self) -> None:
        """Nothing is open."""


class Simulation:
    """One run of a program under a schedule, on a storage in memory unless another is given."""

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
        """then: from which epoch on it runs as another program. judge: looks at all views after every commit."""
        self.storage = MemoryStorage() if storage is None else storage
        self.ledgers: dict[str, PublishedRows] = {}
        self._first = self.compiled = self._emitting(program)
        self._then = 0
        if then is not None:
            self._then, self.compiled = then[0], self._emitting(then[1])
        self.program = self.compiled.program  # what it runs as at the end
        self._judge = judge
        self._read = Host()
        self.plan = plan
        self.schedule = list(schedule)
        self.seed = seed
        self.shards = shards
        self.guards = guards
        self.used: set[Fault] = set()
        self.done = -1  # the last epoch that the source's own log calls done
        self.is_over = False  # event time has ended, and the clock has gone on
        self.told: list[Acknowledgement] = []
        self.asleep: list[tuple[int, Callable[[], Any]]] = []
        self.paused: list[tuple[int, threading.Event, threading.Thread, list[BaseException]]] = []
        self._turn = threading.Event()

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

    def compiled_at(self, epoch: int) -> Compiled:
        """What it runs as in an epoch."""
        return self._first if epoch < self._then else self.compiled

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
        self.asleep.append((until, wake))

    def at_task(self, epoch: int, name: str, task: int) -> None:
        """A point inside a task; a crash there takes the driver along."""
        for fault in self.schedule:
            here = fault.kind == "crash" and fault.epoch == epoch and fault.point == name and fault.task == task
            if here and fault not in self.used:
                self.used.add(fault)
                raise Killed(name)

    def at(self, driver: SimulatedDriver, name: str, epoch: int) -> None:
        """A point in the driver."""
        if name == "epoch.6-committed" and driver.epochs.latest is not None:
            self._look(driver.compiled, driver.epochs.latest)
        self.at_task(epoch, name, 0)
        for fault in self.schedule:
            if fault.kind == "pause" and fault.epoch == epoch and fault.point == name and fault not in self.used:
                self.used.add(fault)
                entry = next(p for p in self.paused if p[2] is threading.current_thread())
                self.paused[self.paused.index(entry)] = (epoch + fault.later, *entry[1:])
                self._turn.set()
                entry[1].wait()
                return

    def _look(self, compiled: Compiled, manifest: Manifest) -> None:
        """Views must be right in every committed epoch, whatever happens next."""
        if self._judge is not None:
            found = self._judge.first(self.epoch_read(compiled, manifest))
            if found is not None:
                raise Violation(f"after epoch {manifest.epoch}: {found}")

    def epoch_read(self, compiled: Compiled, manifest: Manifest) -> EpochRead:
        """Tables, views and joins as a manifest has them."""
        cache = HostCache(self._read, self.storage, trusting=False)
        refined = {spec.name for spec in compiled.topology.computations if spec.refines}
        stores = {
            (name, shard): cache.view(state.lineage, shard, one.segments, manifest)
            for name, state in manifest.computations.items()
            if name in refined
            for shard, one in enumerate(state.shards)
        }
        return EpochRead(compiled, stores, manifest.builds, {stored_ref.computation for stored_ref in manifest.pending})

    # --- the source, and its log

    def _rows(self, number: int) -> list[tuple[str, dict[str, Any]]]:
        """What the source still has of a batch: nothing once it was acknowledged."""
        return [] if any(told.batch == number for told in self.told) else self.plan.epochs[number]

    def reading(self, number: int) -> Reading:
        rows = number < len(self.plan.epochs) and bool(self.plan.epochs[number])
        return Reading(
            batch=number,
            planned_at=self.plan.clock[min(number, len(self.plan.clock) - 1)],
            ranges={"all": Range(str(number), str(number + 1))} if rows else {},
            digest=f"{number}",
        )

    def committed_plan(self, plan: InputPlan) -> InputPlan:
        """What was read by the epochs that were committed, without what came again: here, what was planned."""
        return plan

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
        for epoch in sorted({until for until, _ in self.asleep}):
            self._wake(epoch)
        self._resume(10**9)
        latest = ManifestLog(self.storage).latest()
        assert latest is not None
        return latest

    def _begin(self) -> None:
        """A driver's whole life, or what there is of it."""
        driver = Driver(self)
        epochs = driver.epochs
        epochs.resume()
        while self.done + 1 < len(self.plan.epochs):
            epoch = self.done + 1
            if self.compiled_at(epoch) is not driver.compiled:
                raise Killed("stopped, to be started as another program")
            self._epoch(epoch, partial(driver.run, self._rows(epoch), epoch))
            self.done = epoch
            self._wake(epoch)
            self._resume(epoch)
            if self.hits("forget", epoch):
                driver.tasks.forget()
        while epochs.latest is not None and not epochs.latest.drained:
            epoch = epochs.latest.epoch + 1
            epochs.run_outside(drain=True)
            self._wake(epoch)
        self.is_over = True
        epochs.drain(lambda: False)

    def _epoch(self, epoch: int, run: Callable[[], None]) -> None:
        """One epoch of a driver; in a thread of its own where it is going to stall."""
        if not any(f.kind == "pause" and f.epoch == epoch and f not in self.used for f in self.schedule):
            run()
            return
        go_on, raised = threading.Event(), list[BaseException]()
        self._turn = threading.Event()
        turn = self._turn

        def body() -> None:
            try:
                run()
            except BaseException as error:
                raised.append(error)
            finally:
                turn.set()

        thread = threading.Thread(target=body, daemon=True)
        self.paused.append((-1, go_on, thread, raised))
        thread.start()
        turn.wait()
        if thread.is_alive() and self.paused[-1][0] >= 0:
            raise Killed("paused, and replaced")
        thread.join()
        self.paused.pop()
        if raised:
            raise raised[0]

    def _wake(self, epoch: int) -> None:
        """Zombie attempts that have slept long enough do their work now."""
        due = [wake for until, wake in self.asleep if until <= epoch]
        self.asleep = [(until, wake) for until, wake in self.asleep if until > epoch]
        for wake in due:
            wake()

    def _resume(self, epoch: int) -> None:
        """Stalled drivers that have slept long enough go on; each must find that it was replaced."""
        for entry in [p for p in self.paused if 0 <= p[0] <= epoch]:
            self._turn = threading.Event()
            self._go_on(entry)

    def _go_on(self, entry: tuple[int, threading.Event, threading.Thread, list[BaseException]]) -> None:
        self.paused.remove(entry)
        _, go_on, thread, raised = entry
        go_on.set()
        thread.join()
        if not raised:
            raise Violation("a driver that had been replaced went on as if nothing had happened")
        if not isinstance(raised[0], Fenced):
            raise raised[0]
