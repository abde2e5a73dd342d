"""One epoch, from what a source planned to a manifest. The driver's side, whatever runs the tasks.

    1. Manifest N exists? Then N was committed and Spark does not know it yet: redo step 7 and return.
    2. Manifest N-1 says what makes up the state, how far time is, which timer is next and which productions wait.
    3. Rows go through the shuffle to their shards, one level of the topology per stage. Stored productions lie in their shards already.
    4. Tasks run the step and stage.
    5. Receipts: every shard of every group exactly once, every consumer fed by the very attempts that are about to be committed.
       Sinks are prepared.
    6. Manifest N is created exclusively. This is the commit.
    7. Sinks publish, folds are planned, leftovers are collected.

Here is only what is done, in its order. What an epoch will do is decided by `plan` behind step 2; what its manifest says follows in `aftermath` from the plan
and the receipts; whose the checkpoint is, `ownership` knows; sinks are told by `publishing`. Subclasses say how tasks are run (`job`).

A bounded run adds epochs at its end, outside the query and with no input: to drain (event time ends), or to settle (whatever its input has made due is
done, as the idle epochs of a continuous run would do it). A run that was killed while it settled goes on with that before it takes new input. At its very
end a bounded run looks at the clock once, and fires the wall-clock timers that are due by then: one that sets itself again does not keep it from its end.
"""

from __future__ import annotations

import logging
import os
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.core.guards import Guards
from millstream.engine.contracts import Folding, Planner
from millstream.engine.declared import declared
from millstream.engine.hints import Hints
from millstream.engine.metrics import EpochStats, History
from millstream.engine.next_manifest import idle_after, manifest_after
from millstream.engine.ownership import Ownership
from millstream.engine.plan import NOTHING, Plan, Position, Reading, plan, to_store, unsettled
from millstream.engine.program import Program
from millstream.engine.publishing import Publishing
from millstream.engine.receipts import EpochOrder, Receipt, checked, total_stats
from millstream.errors import CheckpointError, EpochAbandoned, Fenced, HookError, SinkError, StorageError
from millstream.state.fencing import run_number
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import Manifest, ManifestLog, edge_name
from millstream.state.sink_part import Part
from millstream.state.stats import ReplicaStats

_log = logging.getLogger("millstream.input")

TRIES = 5
COLLECT_EVERY = 20
MOST_SETTLING = 1000  # epochs


class Epochs:
    """Runs epochs on one checkpoint, for one run of a pipeline."""

    is_planned = False  # whether Millstream plans all sources itself

    def __init__(
        self,
        program: Program,
        shards: int,
        log: ManifestLog,
        latest: Manifest | None,
        token: str,
        planner: Planner | None,
        folds: Folding,
        guards: Guards,
    ) -> None:
        self.program = program
        self.topology = program.topology
        self.shards = shards
        self.storage = log.storage
        self.log = log
        self.latest = latest
        self.token = token
        self.planner = planner
        self.folds = folds
        self.guards = guards
        self.ownership = Ownership(log, token, guards, latest)
        self.hints = Hints(program.topology)
        self.publishing = Publishing(program, log, token, self.session, self.point)
        self.crash = ""
        self.history = History()
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.stopping = False
        self.abandoned = 0
        self._phases: dict[str, float] = {}  # of the epoch under way: milliseconds
        self.replicas: dict[str, ReplicaStats] = {}  # by computation, over all shards, as the last epoch with tasks found them
        self._began_at = -1 if latest is None else latest.epoch
        self._listened = False  # this run has committed an epoch of its own time: not one that settles at the time of the last run

    # --- what a way of running tasks adds

    def job(self, batch: Any, order: EpochOrder) -> list[Receipt]:
        """Runs the tasks of an epoch on what came in (None: only time has moved). One receipt per group and shard. Called once per attempt at an epoch."""
        raise NotImplementedError

    def point(self, name: str, epoch: int) -> None:
        """A place where a test can have the process killed. Called between any two steps."""

    def session(self) -> Any:
        """What sinks may use on the driver. Called whenever a sink is."""
        return None

    def read_files(self, injector: str) -> tuple[dict[str, int], set[str]]:
        """The files of a file source with their times of modification, and those that have been read. Called once per epoch, if a watermark follows them."""
        raise NotImplementedError

    def acknowledge(self, number: int) -> None:
        """Tells sources what is safe: a batch is committed and published. Called in step 7, at least once for every batch."""

    def took_over(self, manifest: Manifest) -> None:
        """An outgoing run has committed one more epoch, which stands. Called before it is published."""

    def clock(self) -> int:
        """The wall clock, where the source's log does not say."""
        return int(clock.time() * 1000)

    # --- the epoch

    def run(self, batch: Any, number: int) -> None:
        """The epoch of a batch that the source's log has under a number."""
        assert self.planner is not None
        ranges = self.planner.reading(number)
        epoch = self.ownership.epoch_of(number, self.latest)
        if not self.ownership.nothing_to_do(epoch, ranges, self.latest):
            assert epoch is not None
            self._run(batch if ranges.may_have_rows else None, epoch, ranges)

    def run_reading(self, frame: Any, ranges: Reading) -> None:
        """The next epoch, of sources that Millstream plans itself. frame: what `job` gets; None if nothing came in."""
        epoch = self._next()
        if not self.ownership.nothing_to_do(epoch, ranges, self.latest):
            self._run(frame if ranges.may_have_rows else None, epoch, ranges)

    def run_outside(self, drain: bool, at: int | None = None) -> None:
        """One more epoch, outside the query: in a drain event time ends, otherwise only what is due is done. at: by the wall clock then, or by that which
        such an epoch has anyway."""
        assert self.latest is not None
        self._run(None, self.latest.epoch + 1, NOTHING if at is None else Reading(planned_at=at, ranges={}), drain)

    def _run(self, frame: Any, epoch: int, ranges: Reading, drain: bool = False) -> None:
        try:
            self._seven_steps(frame, epoch, ranges, drain)
        except (CheckpointError, StorageError, SinkError, OSError) as error:
            if not isinstance(error, Fenced) or error.culprits:  # the driver knows more of a replaced run than the task that noticed it
                self.explain(error)
            raise

    def _seven_steps(self, frame: Any, epoch: int, ranges: Reading, drain: bool) -> None:
        began = clock.perf_counter()
        done = self.ownership.committed(epoch, ranges, self.latest)  # 1
        if done is not None:
            if self.latest is None or done.epoch > self.latest.epoch:
                self.took_over(done)
                self.latest = done
            self._publish(done, redo=True)
            return
        self.point("epoch.1-looked", epoch)
        before = self.latest  # 2
        self.point("epoch.2-read", epoch)
        planned, receipts = self._worked(self._plan(before, ranges, drain), before, frame)  # 3, 4, 5
        if not self.guards.acknowledgement and ranges.batch is not None:
            self.acknowledge(ranges.batch)
        self.point("epoch.5-checked", epoch)
        upkeep = self.is_upkeep_due(epoch)
        refused = self.log.runs.refusals() if upkeep or self._began_at == epoch - 1 else []
        tasks = self.noted("tasks", began)
        manifest = manifest_after(
            self.program,
            planned,
            before,
            receipts,
            token=self.token,
            shards=self.shards,
            folded=self.folds.finished(),
            refused=len(refused),
        )
        self.publishing.prepare(manifest)
        self.ownership.check_commit(epoch)
        ours = self._commit(manifest)  # 6
        self.latest = manifest if ours else self._adopted(epoch)
        self._listened = self._listened or not planned.settles
        committed = self.noted("commit", tasks)
        self.point("epoch.6-committed", epoch)
        self._publish(self.latest, redo=not ours, instead={} if ours else manifest.sinks)  # 7
        published = self.noted("publish", committed)
        self._maintain(self.latest, refused, upkeep)
        self.noted("upkeep", published)
        self._note(planned, receipts, (clock.perf_counter() - began) * 1000)
        self.point("epoch.7-done", epoch)

    def _commit(self, manifest: Manifest) -> bool:
        manifest.committed_at = self.clock()
        return self.log.commit(manifest, self.guards.exclusive)

    # --- 2: what will be done

    def _plan(self, before: Manifest | None, ranges: Reading, drain: bool) -> Plan:
        said = {} if ranges.batch is None else declared(self.topology, self.read_files)
        position = Position.after(before, self.topology)
        return plan(self.topology, position, ranges, clock=self.clock(), drain=drain, said=said, listened=self._listened)

    # --- 3, 4 and 5: the job

    def _worked(self, planned: Plan, before: Manifest | None, frame: Any) -> tuple[Plan, list[Receipt]]:
        """The plan that was carried out, and its receipts. If a consumer behind an adaptive edge fails, the edge stores, and the epoch is planned anew."""
        while planned.has_work:
            try:
                return planned, self._receipts(planned, before, frame)
            except Exception as error:
                more = to_store(self.topology, error, planned.storing)
                if not more:
                    raise
                planned = planned.storing_too(self.topology, more)
        return planned, []

    def _receipts(self, planned: Plan, before: Manifest | None, frame: Any) -> list[Receipt]:
        order = EpochOrder(
            epoch=planned.epoch,
            token=self.token,
            before=before,
            times=planned.times,
            stored=list(planned.storing),
            driver=os.getpid(),
            crash=self.crash,
            guards=self.guards,
        )
        for _ in range(TRIES):
            try:
                return checked(self.job(frame, order), self.topology, self.shards, self.guards.receipts)
            except EpochAbandoned as error:
                self.abandoned += 1
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
            self.acknowledge(manifest.batch)

    def _maintain(self, manifest: Manifest, refused: Sequence[str], upkeep: bool) -> None:
        if refused:
            self.storage.delete(refused)
        self.folds.plan(manifest, self.session())
        if upkeep:
            self.collect(manifest)

    def is_upkeep_due(self, epoch: int) -> bool:
        """Whether this epoch is followed by a collection. Called once per epoch."""
        return epoch % COLLECT_EVERY == 0

    def collect(self, manifest: Manifest) -> None:
        """Removes what no manifest needs."""
        self.publishing.collect(manifest, self.folds)

    def _note(self, planned: Plan, receipts: Sequence[Receipt], millis: float) -> None:
        records = sum(seen.records for receipt in receipts for seen in receipt.seen.values())
        if receipts:
            self.replicas = total_stats(receipts)
        for receipt in receipts:
            late = [hint for name, work in receipt.work.items() for hint in self.hints.of_late(name, work.counts)]
            for hint in (*late, *self.hints.of_times(receipt.seen)):
                self.warn(hint)
        stored = {edge_name(*edge): why for edge, why in planned.storing.items()}
        phases, self._phases = self._phases, {}
        self.history.add(EpochStats(planned.epoch, records, millis, job=bool(receipts), stored=stored, at=self.clock(), phases=phases))

    def warn(self, hint: str) -> None:
        """Says that input looks wrong. Called after the commit."""
        _log.warning("%s: %s", self.program.name, hint)

    def noted(self, phase: str, since: float) -> float:
        """Notes how long a phase of the epoch under way took; the time now."""
        now = clock.perf_counter()
        self.add_phase(phase, (now - since) * 1000)
        return now

    def add_phase(self, phase: str, millis: float) -> None:
        """Adds to what a phase of the epoch under way took."""
        self._phases[phase] = self._phases.get(phase, 0.0) + millis

    # --- before, between and behind the epochs of the query

    def resume(self) -> None:
        """At the start of a run: what the last one committed and may not have published. Where Spark plans, it asks itself for epochs of its query.
        A run that was ended while it settled goes on with that."""
        if self.latest is not None and (self.is_planned or self.latest.batch is None):
            self._publish(self.latest, redo=True)
        if self.is_planned and run_number(self.token) > 1 and any(emission.sink.takes_back for emission in self.topology.emissions):
            self.close_off()  # nothing has been staged yet
        if self.latest is not None and self.latest.settle:
            self._settle(lambda: False, self.latest.now)

    def close_off(self) -> None:
        """Commits an epoch in which nothing happens. At the end of a run: there is nothing that the next one would publish again. At its start: a run before
        this one, which may have looked at the claims before we came and be about to commit, finds it taken. If it was faster, its epoch stands and is
        published: nobody has taken back what it prepared."""
        while True:
            before = self.latest
            if before is not None:
                manifest = idle_after(before, self.token)
            else:
                planned = self._plan(None, NOTHING, False)
                manifest = manifest_after(self.program, planned, None, [], token=self.token, shards=self.shards, folded={})
                manifest.settle = False
            self.ownership.check_commit(manifest.epoch)
            if self._commit(manifest):
                self.latest = manifest
                return
            self.latest = self._adopted(manifest.epoch)
            self._publish(self.latest, redo=True)

    def _adopted(self, epoch: int) -> Manifest:
        found = self.ownership.adopted(epoch)
        self.took_over(found)
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
        return self.latest is not None and bool(self.latest.waiting or (self.is_planned and self.latest.sinks))

    def may_repeat(self) -> bool:
        """Whether the last epoch has published parts that lie in units. What is published is told by its file alone then: one that somebody has taken away
        would be made again by the next run."""
        return self.latest is not None and any(part.in_checkpoint for parts in self.latest.sinks.values() for part in parts)

    # --- what others ask

    def mode(self) -> RunMode:
        """How epochs are run, and where their time goes."""
        return RunMode(epochs_per_second=self.history.per_second(self.clock()), phases=self.history.phases())

    @property
    def published(self) -> dict[str, tuple[str, int]]:
        """By sink: where its rows are, and how many this run has put there."""
        return {name: (one.place, one.rows) for name, one in self.publishing.published.items()}

    def fenced(self) -> Fenced | None:
        """What to say if a newer run has begun."""
        return self.ownership.fenced(self._next()) if self.ownership.is_replaced() else None

    def explain(self, error: BaseException) -> None:
        """Raises what is behind an error, if that is known: a newer run, or a checkpoint that has been deleted."""
        self.ownership.explain(error, self._next())

    def _next(self) -> int:
        return 0 if self.latest is None else self.latest.epoch + 1
