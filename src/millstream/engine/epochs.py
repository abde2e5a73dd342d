"""One epoch, from what a source planned to a manifest. The driver's side, whatever runs the tasks.

    1. Manifest N exists? Then N was committed and Spark does not know it yet: redo step 7 and return.
    2. Manifest N-1 says what makes up the state, how far time is, which timer is next and which productions wait.
    3. Rows go through the shuffle to their shards, one level of the topology per stage. Stored productions lie in their shards already.
    4. Tasks run the step and stage.
    5. Receipts: every shard of every group exactly once, every consumer fed by the very attempts that are about to be committed. Sinks are prepared.
    6. Manifest N is created exclusively. This is the commit.
    7. Sinks publish, compactions are planned, garbage is collected.

Here is only what is done, in its order. What an epoch will do is decided by `plan` behind step 2; what its manifest says follows in `next_manifest`; who owns
the checkpoint, `ownership` knows; sinks are told by `publishing`. All else is given: `TaskRunner` and `Planner` say when the driver calls each method.

A bounded run adds epochs at its end, outside the query and with no input: to drain (event time ends), or to settle (what its input has made due is done, as
the idle epochs of a continuous run would do it). A run that was killed while it settled goes on with that first. At its very end a bounded run looks at the
clock once, and fires the wall-clock timers that are due by then: one that sets itself again does not keep it from its end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.compaction_orders import Compaction
from millstream.engine.hints import Hints
from millstream.engine.metrics import EpochStats, Metrics
from millstream.engine.next_manifest import idle_after, manifest_after
from millstream.engine.ownership import Ownership
from millstream.engine.plan import NOTHING, Plan, Position, Reading, declared, plan, to_store, unsettled
from millstream.engine.program import Program
from millstream.engine.publishing import Publishing, Upkeep
from millstream.engine.receipts import EpochOrder, Receipt, checked, total_stats
from millstream.errors import CheckpointError, EpochAbandoned, Fenced, HookError, MillstreamError, SinkError, StorageError
from millstream.faults import CrashPoints
from millstream.state.fencing import run_number
from millstream.state.heartbeat import Backlog, Figures, RunMode, StateCacheStats
from millstream.state.manifest import Manifest, Part, SourcePosition, edge_name
from millstream.state.manifest_log import ManifestLog

_log = logging.getLogger("millstream.input")

TRIES = 5
MOST_SETTLING = 1000  # epochs

_In = TypeVar("_In")
_Given = TypeVar("_Given", contravariant=True)


def wall_clock() -> int:
    return int(time.time() * 1000)  # milliseconds


class TaskRunner(Protocol[_Given]):
    """Runs the tasks of an epoch: as a Spark job, in resident tasks, in a loop."""

    def run(self, input: _Given | None, order: EpochOrder) -> list[Receipt]:
        """Runs all tasks on what came in (None: only time has moved). One receipt per group and shard. Once per attempt at an epoch."""

    def status(self) -> RunMode:
        """How tasks are run (whenever a status is asked for)."""

    def close(self) -> None:
        """At the end of a run."""


class Planner(Protocol):
    """What the driver asks of the sources: Millstream's own planner, or what is known of Spark's. is_ours: Millstream plans what epochs read."""

    is_ours: bool

    def parts(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        """The files of a source with their times of modification, and those that were read. Once per epoch, if a watermark follows them."""

    def backlogs(self) -> Mapping[str, Backlog]:
        """By injector, what the last epoch had to leave, where that is known. Whenever somebody looks, from any thread."""

    def acknowledge(self, batch: int, positions: Mapping[str, SourcePosition]) -> None:
        """Tells sources what is safe: a batch is committed and published up to these positions. In step 7, at least once for every batch."""

    def took_over(self, manifest: Manifest) -> None:
        """The run before this one has committed one more epoch, which stands. Before it is published."""

    def close(self) -> None:
        """At the end of a run."""


class Stopped(Exception):
    """An epoch that was not begun because the run is being stopped."""


@dataclass(eq=False)
class Epochs(Generic[_In]):
    """Runs epochs on one checkpoint, for one run of a pipeline. Its parameter is what the runner of its tasks gets, where something came in. points: called
    between any two steps. session: what sinks may use on the driver. warn: hears of input that looks wrong, after the commit. stopping: set when no
    further epoch is to begin."""

    program: Program
    shards: int
    log: ManifestLog
    latest: Manifest | None
    token: str
    _: KW_ONLY
    runner: TaskRunner[_In]
    planner: Planner
    compaction: Compaction = field(default_factory=Compaction)
    upkeep: Upkeep = field(default_factory=Upkeep)
    guards: Guards = ALL_GUARDS
    clock: Callable[[], int] = wall_clock
    points: CrashPoints = field(default_factory=CrashPoints)
    session: Callable[[], Any] = lambda: None
    metrics: Metrics = field(default_factory=Metrics)
    stopping: threading.Event = field(default_factory=threading.Event)
    warn: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self.topology = self.program.topology
        self.storage = self.log.storage
        if self.latest is not None:
            self.metrics.go_on(self.latest.spent)
        self.ownership = Ownership(self.log, self.token, self.guards, self.latest)
        self.publishing = Publishing(self.program, self.log, self.token, self.session, self.points)
        self.lock = threading.Lock()
        self.under_way: float | None = None  # since when (monotonic) there is an epoch
        self.error: BaseException | None = None
        self.abandoned = 0
        self._caches: dict[tuple[str, int], StateCacheStats] = {}  # by computation and shard, as the last task that looked found them
        self._position: tuple[Manifest | None, Position] | None = None
        self._hints = Hints(self.topology)
        self._began_at = -1 if self.latest is None else self.latest.epoch
        self._listened = False  # this run has committed an epoch of its own time: not one that settles at the time of the last run

    # --- the epoch

    def run(self, input: _In | None, reading: Reading) -> None:
        """The epoch of a batch, as its planner has planned it. input: what `TaskRunner.run` gets."""
        assert reading.batch is not None
        epoch = self.ownership.epoch_of(reading.batch, self.latest)
        if not self.ownership.nothing_to_do(epoch, reading, self.latest):
            assert epoch is not None
            self._run(input if reading.may_have_rows else None, epoch, reading)

    def run_outside(self, drain: bool, at: int | None = None) -> None:
        """One more epoch, outside the query: in a drain event time ends, otherwise only what is due is done. at: by the wall clock then, or by that which
        such an epoch has anyway."""
        assert self.latest is not None
        self._run(None, self.latest.epoch + 1, NOTHING if at is None else Reading(planned_at=at, ranges={}), drain)

    def _run(self, input: _In | None, epoch: int, ranges: Reading, drain: bool = False) -> None:
        self.under_way = time.monotonic()
        try:
            self._seven_steps(input, epoch, ranges, drain)
            self.under_way = None
        except (CheckpointError, StorageError, SinkError, OSError) as error:
            if not isinstance(error, Fenced) or error.culprits:  # the driver knows more of a replaced run than the task that noticed it
                self.explain(error)
            raise

    def _seven_steps(self, input: _In | None, epoch: int, ranges: Reading, drain: bool) -> None:
        began = time.perf_counter()
        done = self.ownership.committed(epoch, ranges, self.latest)  # 1
        if done is not None:
            if self.latest is None or done.epoch > self.latest.epoch:
                self.planner.took_over(done)
                self.latest = done
            self._publish(done, redo=True)
            return
        self.points("epoch.1-looked", epoch)
        before = self.latest  # 2
        self.points("epoch.2-read", epoch)
        planned = self._plan(before, ranges, drain)
        began_tasks = self.metrics.note("plan", began)
        planned, receipts = self._work(planned, before, input)  # 3, 4, 5
        if not self.guards.acknowledgement and ranges.batch is not None:
            self.planner.acknowledge(ranges.batch, ranges.positions or {})
        self.points("epoch.5-checked", epoch)
        upkeep = self.upkeep.is_due(epoch)
        refused = self.log.runs.refusals() if upkeep or self._began_at == epoch - 1 else []
        checking = self.metrics.end_of_tasks(began_tasks, receipts)
        compacted = self.compaction.take_finished()
        manifest = manifest_after(self.program, planned, before, receipts, self.token, self.shards, compacted, len(refused))
        self.publishing.prepare(manifest)
        self.ownership.check_commit(epoch)
        committing = self.metrics.note("check", checking)
        manifest.spent = self.metrics.spent
        ours = self._commit(manifest)  # 6
        self.latest = manifest if ours else self._adopt(epoch)
        self._listened = self._listened or not planned.settles
        committed = self.metrics.note("commit", committing)
        sinks = {name: one.millis for name, one in self.publishing.published.items()}
        self.points("epoch.6-committed", epoch)
        self._publish(self.latest, redo=not ours, instead={} if ours else manifest.sinks)  # 7
        published = self.metrics.note("publish", committed)
        self.storage.delete(refused)
        self.compaction.plan(self.latest)
        if upkeep:
            self.collect()
        self.metrics.note("upkeep", published)
        published_in = {name: millis for name, one in self.publishing.published.items() if (millis := one.millis - sinks[name])}
        self._note(
            planned,
            receipts,
            (time.perf_counter() - began) * 1000,
            published_in,
            manifest.written - (before.written if before is not None else 0),
        )
        self.points("epoch.7-done", epoch)

    def _commit(self, manifest: Manifest) -> bool:
        manifest.committed_at = self.clock()
        return self.log.commit(manifest, self.guards.exclusive)

    def _plan(self, before: Manifest | None, ranges: Reading, drain: bool) -> Plan:
        said = {} if ranges.batch is None else declared(self.topology, self.planner.parts)
        return plan(self.topology, self.position(before), ranges, clock=self.clock(), drain=drain, said=said, listened=self._listened)

    def position(self, before: Manifest | None) -> Position:
        """The position after a manifest, worked out once: between two epochs it is asked for again and again."""
        if self._position is None or self._position[0] is not before:
            self._position = before, Position.after(before, self.topology)
        return self._position[1]

    # --- 3, 4 and 5: the job

    def _work(self, planned: Plan, before: Manifest | None, input: _In | None) -> tuple[Plan, list[Receipt]]:
        """The plan that was carried out, and its receipts. If a consumer behind an adaptive edge fails, the edge stores, and the epoch is planned anew."""
        while planned.has_work:
            try:
                return planned, self._receipts(planned, before, input)
            except Exception as error:
                more = to_store(self.topology, error, planned.storing)
                if not more:
                    raise
                planned = planned.storing_too(self.topology, more)
        return planned, []

    def _receipts(self, planned: Plan, before: Manifest | None, input: _In | None) -> list[Receipt]:
        order = EpochOrder(
            epoch=planned.epoch,
            now=planned.now,
            token=self.token,
            before=before,
            times=planned.times,
            stored=list(planned.storing),
            driver=os.getpid(),
            crash=self.points.armed,
            guards=self.guards,
        )
        for _ in range(TRIES):
            try:
                return checked(self.runner.run(input, order), self.topology, self.shards, self.guards.receipts)
            except EpochAbandoned as error:
                self.abandoned += 1
                self.metrics.begin_again()
                last = error
        raise HookError(
            f"epoch {order.epoch} was abandoned {TRIES} times: {last} A computation that is not deterministic (randomness, the clock, outside calls) cannot "
            f"stand before a weak edge. Make its productions strong (production=ms.STRONG), or make it deterministic: use self.now, and seed by self.key."
        )

    # --- 7: after the commit

    def _publish(self, manifest: Manifest, redo: bool, instead: Mapping[str, Sequence[Part]] | None = None) -> None:
        self.ownership.check(manifest.epoch)
        self.publishing.publish(manifest, redo, instead or {})
        if manifest.batch is not None:
            self.planner.acknowledge(manifest.batch, manifest.sources)

    def collect(self) -> None:
        """Removes what no manifest needs."""
        if self.latest is not None:
            self.upkeep.collect(self.latest, self.publishing, self.compaction)

    def _note(self, planned: Plan, receipts: Sequence[Receipt], millis: float, sinks: dict[str, float], written: int) -> None:
        self.metrics.note_work(receipts)
        records = sum(seen.records for receipt in receipts for seen in receipt.seen.values())
        for receipt in receipts:
            self._caches.update(((name, receipt.shard), one) for name, one in receipt.state_caches.items())
            late = [hint for name, work in receipt.work.items() for hint in self._hints.of_late(name, work.counts)]
            for hint in (*late, *self._hints.of_times(receipt.seen)):
                if self.warn is not None:
                    self.warn(hint)
                else:
                    _log.warning("%s: %s", self.program.name, hint)
        stored = {edge_name(*edge): why for edge, why in planned.storing.items()}
        at = self.clock()
        self.metrics.add(EpochStats(planned.epoch, records, millis, bool(receipts), stored, at, sinks=sinks, written=written))

    @property
    def state_caches(self) -> dict[str, StateCacheStats]:
        """How the state caches of each computation are doing, over all shards."""
        return total_stats(self._caches.copy())

    # --- before, between and behind the epochs of the query

    def resume(self) -> None:
        """At the start of a run: publishes what the last one committed and may not have published (where Spark plans, it asks itself for epochs of its query),
        goes on with a run that was ended while it settled, and collects garbage."""
        takes_back = any(emission.sink.takes_back for emission in self.topology.emissions)
        try:
            if self.latest is not None and (self.planner.is_ours or self.latest.batch is None):
                self._publish(self.latest, redo=True)
            if self.planner.is_ours and run_number(self.token) > 1 and takes_back:
                self.close_off()  # nothing has been staged yet
            if self.latest is not None and self.latest.settle:
                self._settle(lambda: False, self.latest.now)
            self.collect()
        except MillstreamError as error:
            self.explain(error)
            raise

    def close_off(self) -> None:
        """Commits an epoch in which nothing happens. At the end of a run: the next one has nothing to publish again. At its start: a run before this one, which
        may be about to commit, finds it taken. If it was faster, its epoch stands and is published: nobody has taken back what it prepared."""
        while True:
            before = self.latest
            if before is not None:
                manifest = idle_after(before, self.token)
            else:
                planned = self._plan(None, NOTHING, False)
                manifest = manifest_after(self.program, planned, None, [], self.token, self.shards, compacted={})
                manifest.settle = False
            self.ownership.check_commit(manifest.epoch)
            if self._commit(manifest):
                self.latest = manifest
                return
            self.latest = self._adopt(manifest.epoch)
            self._publish(self.latest, redo=True)

    def _adopt(self, epoch: int) -> Manifest:
        found = self.ownership.adoptable(epoch)
        self.planner.took_over(found)
        return found

    def drain(self, stopped: Callable[[], bool]) -> None:
        """Ends event time: epochs until no low-watermark timer, no stored production and no wall-clock timer that is due is left, or somebody says stop."""
        end: int | None = None
        while self.latest is not None and not stopped():
            if self.latest.drained:
                end = self.clock() if end is None else end
                if not self._wall_is_due(end):
                    break
            with self.lock:
                self.run_outside(drain=True, at=end)
        if self.may_repeat() and not stopped():
            with self.lock:
                self.close_off()

    def settle(self, stopped: Callable[[], bool]) -> None:
        """Epochs without input until nothing is left that the last input or the wall clock has made due, or somebody says stop; or until it is clear that
        this has no end, as in a cycle that goes round for ever: the next run goes on with it."""
        if self.latest is not None and self.latest.ended is not None:
            self.drain(stopped)
        else:
            self._settle(stopped, self.clock())

    def _settle(self, stopped: Callable[[], bool], end: int) -> None:
        for _ in range(MOST_SETTLING):
            if self.latest is None or self.latest.ended is not None or stopped():
                return
            at = end if self._wall_is_due(end) else None
            if at is None and not self.is_left_open() and not unsettled(self.topology, Position.after(self.latest, self.topology)):
                return
            with self.lock:
                self.run_outside(drain=False, at=at)

    def _wall_is_due(self, at: int) -> bool:
        """Whether the last epoch has left a wall-clock timer that is due by then."""
        assert self.latest is not None
        return any(time <= at for time in Position.after(self.latest, self.topology).next_wall.values())

    def is_left_open(self) -> bool:
        """Whether the last epoch leaves something that the next run would publish: what waits, or what it may have published already. Where Spark plans, its
        own log knows that."""
        return self.latest is not None and bool(self.latest.waiting or (self.planner.is_ours and self.latest.sinks))

    def may_repeat(self) -> bool:
        """Whether the last epoch has published parts that lie in units. What is published is told by its file alone then: one that somebody has taken away
        would be made again by the next run."""
        return self.latest is not None and any(part.in_checkpoint for parts in self.latest.sinks.values() for part in parts)

    # --- what others ask

    def mode(self) -> RunMode:
        return msgspec.structs.replace(
            self.runner.status(), epochs_per_second=self.metrics.per_second(self.clock()), phases=self.metrics.phases()
        )

    def figures(self) -> Figures:
        """What was measured lately."""
        shards, busy, computations = self.metrics.loads()
        since = self.under_way
        return Figures(
            backlogs=dict(self.planner.backlogs()),
            shards=shards,
            busy=busy,
            computations=computations,
            published={name: one.epoch for name, one in self.publishing.published.items()},
            retries=self.metrics.retries,
            under_way=0.0 if since is None else round(time.monotonic() - since, 3),
            compactions=msgspec.to_builtins(self.compaction.stats()),
            state_caches=self.state_caches,
        )

    def close(self) -> None:
        for part in (self.runner, self.compaction, self.upkeep, self.planner):
            part.close()
        for injector in self.topology.injectors.values():
            injector.source.close()
        for emission in self.topology.emissions:
            emission.sink.close()

    @property
    def published(self) -> dict[str, tuple[str, int]]:
        return {name: (one.place, one.rows) for name, one in self.publishing.published.items()}

    def fenced(self) -> Fenced | None:
        """What to say if a newer run has begun."""
        return self.ownership.fenced(self._next()) if self.ownership.is_replaced() else None

    def explain(self, error: BaseException) -> None:
        """Raises what is behind an error, if that is known: a newer run, or a checkpoint that has been deleted."""
        self.ownership.explain(error, self._next())

    def _next(self) -> int:
        return 0 if self.latest is None else self.latest.epoch + 1
