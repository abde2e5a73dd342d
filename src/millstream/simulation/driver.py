"""A simulated driver: the real epochs, planner, manifests, segments and compactions, over a source, tasks and a storage that are modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.engine.compaction_orders import Compaction, CompactionOrder
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.publishing import Upkeep
from millstream.engine.resident.runner import ResidentRunner
from millstream.engine.source_planner import SourcePlanner
from millstream.faults import CrashPoints
from millstream.simulation.loop_tasks import LoopTasks
from millstream.simulation.resident_tasks import SimulatedTasks
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.compaction import compact
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import runs

if TYPE_CHECKING:
    from millstream.simulation.simulated_run import Simulation

COMMITTING = "epoch.6-committing"  # behind the last look at the claims
_COLLECT_EVERY = 3


class SimulatedCompaction(Compaction):
    """Compacts at once; the next manifest adopts the result."""

    def __init__(self, simulation: Simulation, token: str) -> None:
        super().__init__(token)
        self._simulation = simulation

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
                    order = CompactionOrder(name, shard, manifest.epoch, chosen, chosen[0] == one.segments[0], self._token)
                    order.made = compact(simulation.storage, chosen, order.is_base, manifest.epoch, self._token)
                    self._take_in(order)


def claim(log: ManifestLog) -> str:
    """Takes the checkpoint over; the token of the run that begins."""
    latest = log.latest()
    return log.runs.claim(latest.token if latest is not None else None)


class SimulatedPoints(CrashPoints):
    """Tells the simulation where a driver is."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def __call__(self, name: str, epoch: int) -> None:
        self._driver.simulation.at(self._driver, name, self._driver.index)


class SimulatedReader(PlannedReader):
    """Plans and reads one stream. An offset says how many of its rows were read."""

    def __init__(self, simulation: Simulation, stream: str) -> None:
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

    driver: Driver

    def commit(self, manifest: Manifest, exclusive: bool = True) -> bool:
        simulation = self.driver.simulation
        simulation.at(self.driver, COMMITTING, self.driver.index)
        done = super().commit(manifest, exclusive)
        if done:
            simulation.committed[manifest.epoch] = manifest
        return done


class Driver:
    """A driver whose epochs are planned by Millstream, with simulated tasks."""

    def __init__(self, simulation: Simulation) -> None:
        log = _NotingLog(simulation.storage)
        log.driver = self
        token = claim(log)
        latest = log.latest()
        self.simulation = simulation
        self.compiled = simulation.compiled_at(index_of(latest))
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
        self.index = index_of(self.epochs.latest)
        reading, takes = self.planner.next(self.epochs.latest)
        self.epochs.run(takes, reading)

    def _read(self, takes: Mapping[str, SplitPlan]) -> list[list[tuple[str, dict[str, Any]]]]:
        """The rows of every split."""
        return [[(name, row) for row in self._readers[name].rows(split)] for name, take in takes.items() for split in take.splits]


def index_of(latest: Manifest | None) -> int:
    """Which of its epochs a run is at: those that read are counted."""
    return 0 if latest is None else latest.last_batch + 1
