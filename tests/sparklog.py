"""A simulated run whose epochs are planned by a model of Spark's log, as for sources that only Spark can read: a batch that was begun is run again with
the rows that it had. The source forgets what was acknowledged; its log does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.plan import Range, Reading
from millstream.engine.program import Program
from millstream.simulation.driver import SimulatedCompaction, SimulatedPoints, claim
from millstream.simulation.fault import Fault
from millstream.simulation.loop_tasks import InputRows, LoopTasks
from millstream.simulation.simulated_run import AFTER_THE_END, MICRO_BATCH_KINDS, InputPlan, Simulation
from millstream.simulation.view_checks import EpochJudge
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage

SPARK_LOG_KINDS = tuple(kind for kind in MICRO_BATCH_KINDS if kind != "replan")


class Acknowledgement(msgspec.Struct, frozen=True):
    """What the source heard: a run told it that a batch is safe. committed: whether its manifest was there at that moment."""

    token: str
    batch: int
    committed: bool


class SparkLogDriver:
    """A driver whose epochs are planned by (a model of) Spark's log, with simulated tasks. It is the planner of its epochs, too."""

    is_ours = False

    def __init__(self, simulation: SparkLogSimulation, warn: Callable[[str], None] | None = lambda hint: None) -> None:
        log = ManifestLog(simulation.storage)
        token = claim(log)
        self.simulation = simulation
        self.compiled = simulation.compiled_at(simulation.done + 1)
        self.index = -1
        program = self.compiled.program
        latest = log.latest()
        self.tasks = LoopTasks(cast(Any, self), lambda rows: rows)
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
            points=SimulatedPoints(cast(Any, self)),
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

    def parts(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
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


class SparkLogSimulation(Simulation):
    pauses = Simulation.pauses[:-1]

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
        self._planned = plan
        self.plan = repeated(plan, schedule) if any(fault.kind == "repeat" for fault in schedule) else plan
        self.done = -1  # the last epoch that the source's own log calls done
        self.is_over = False  # event time has ended, and the clock has gone on
        self.told: list[Acknowledgement] = []

    def committed_plan(self) -> InputPlan:
        return self._planned

    def _replan_paused(self, fault: Fault) -> None:
        """A batch that was begun has its rows."""

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

    def _begin(self) -> None:
        driver = SparkLogDriver(self)
        epochs = driver.epochs
        epochs.resume()
        while self.done + 1 < len(self.plan.epochs):
            epoch = self.done + 1
            self._epoch(epoch, driver, partial(self._one, driver, epoch))
        while epochs.latest is not None and not epochs.latest.drained:
            epoch = epochs.latest.epoch + 1
            epochs.run_outside(drain=True)
            self._wake(epoch)
        self.is_over = True
        epochs.drain(lambda: False)

    def _one(self, driver: SparkLogDriver, epoch: int) -> None:
        driver.run(self._rows(epoch), epoch)
        self.done = epoch


def repeated(plan: InputPlan, schedule: Sequence[Fault]) -> InputPlan:
    """The plan with the records that the schedule brings again, in the same epoch as the first time or a later one."""
    home = [(epoch, row) for epoch, rows in enumerate(plan.epochs) for row in rows]
    epochs = [list(rows) for rows in plan.epochs]
    for fault in schedule:
        if fault.kind == "repeat":
            first, row = home[fault.later]
            epochs[max(first, fault.epoch)].append(row)
    return InputPlan(epochs, plan.clock)
