"""One epoch, from what a source planned to a manifest. The driver's side, whatever runs the tasks.

    1. Manifest N exists? Then N was committed and Spark does not know it yet: redo step 7 and return.
    2. Manifest N-1 says what makes up the state, how far time is, which timer is next and which productions wait.
    3. Rows go through the shuffle to their shards, one level of the topology per stage. Stored productions lie in their shards already.
    4. Tasks run the step and stage.
    5. Receipts: every shard of every group exactly once, every consumer fed by the very attempts that are about to be committed.
       Sinks are prepared.
    6. Manifest N is created exclusively. This is the commit.
    7. Sinks publish, folds are planned, leftovers are collected.

An epoch with no record and nothing due needs no job: its manifest says that time has passed. A run that has been replaced finds a newer
token before each of these writes, writes nothing, and says why. Subclasses say how tasks are run (`job`).

Epochs outside the query. The source's log numbers batches; epochs are numbered by the manifests. The two differ by the epochs that a bounded run adds
at its end, with no input: to drain (event time ends), or to settle (whatever its input has made due is done, as the idle epochs of a continuous
run would do it). A manifest says how many there were so far, so a batch finds its epoch. A run that was killed while it settled goes on with that
before it takes new input.
"""

from __future__ import annotations

import os
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from millstream.core.adaptive import EdgeState
from millstream.core.authority import Edge, Standing, propagate, times
from millstream.core.guards import Guards
from millstream.core.outcome import Times
from millstream.core.time import END
from millstream.core.topology import ADAPTIVE
from millstream.core.watermark import Progress, Seen, effective, later
from millstream.engine.aftermath import computation_after, edges_after, outside
from millstream.engine.contracts import EpochStats, Folder, Offsets
from millstream.engine.declared import declared
from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt, checked
from millstream.errors import CheckpointError, DamageError, EpochAbandoned, Fenced, HookError, MillstreamError, SinkError, StorageError
from millstream.sinks.base import DriverContext
from millstream.state import folding
from millstream.state.manifest import KEEP, Manifest, ManifestLog, edge_name
from millstream.state.runs import refuse, run_number
from millstream.status.report import standings_of

TRIES = 5
COLLECT_EVERY = 20
MOST_SETTLING = 1000  # epochs
KEPT_RUNS = 64  # a replica that was last brought up to date by an older run loads anew


class Epochs:
    """Runs epochs on one checkpoint, for one run of a pipeline."""

    def __init__(
        self,
        program: Program,
        shards: int,
        log: ManifestLog,
        latest: Manifest | None,
        token: str,
        offsets: Offsets,
        folds: Folder,
        guards: Guards,
    ) -> None:
        self.program = program
        self.topology = program.topology
        self.shards = shards
        self.storage = log.storage
        self.log = log
        self.latest = latest
        self.started_at = -1 if latest is None else latest.epoch
        self.token = token
        self.offsets = offsets
        self.folds = folds
        self.guards = guards
        self.crash = ""
        self.stats: deque[EpochStats] = deque(maxlen=256)
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.stopping = False
        self.abandoned = 0
        self._listened = False  # this run has committed an epoch of its own time: not one that settles at the time of the last run
        self.published = {
            emission.name: (emission.sink.place(), 0) for emission in self.topology.emissions
        }  # by this run: where, and how many rows
        self.adaptive: list[Edge] = [edge for edge, kind in self.topology.edges.items() if kind == ADAPTIVE]

    # --- what a way of running tasks adds

    def job(self, batch: Any, order: EpochOrder) -> list[Receipt]:
        """Runs the tasks of an epoch on what came in (None: only time has moved). One receipt per group and shard."""
        raise NotImplementedError

    def point(self, name: str, epoch: int) -> None:
        """A place where a test can have the process killed."""

    def session(self) -> Any:
        """What sinks may use on the driver."""
        return None

    def read_files(self, injector: str) -> tuple[dict[str, int], set[str]]:
        """The files of a file source with their times of modification, and those that have been read."""
        raise NotImplementedError

    def acknowledge(self, number: int) -> None:
        """Tells sources what is safe: a batch is committed and published."""

    # --- the epoch

    def run(self, batch: Any, number: int) -> None:
        """The epoch of a batch that the source's log has under a number."""
        frame = batch if batch is not None and self.offsets.may_have_rows(number) else None
        epoch = self._epoch_of(number)
        if not self._after_the_end(epoch, number, frame is not None):
            assert epoch is not None
            self._run(frame, epoch, number)

    def run_outside(self, drain: bool) -> None:
        """One more epoch, outside the query: in a drain event time ends, otherwise only what is due is done."""
        assert self.latest is not None
        self._run(None, self.latest.epoch + 1, None, drain=drain)

    def _run(self, frame: Any, epoch: int, number: int | None, drain: bool = False) -> None:
        """One epoch; and before it says that anything is damaged or missing, a look whether somebody else has the checkpoint now, and has cleared up."""
        try:
            self._seven_steps(frame, epoch, number, drain)
        except (CheckpointError, StorageError, SinkError, OSError) as error:
            if isinstance(error, Fenced):
                raise
            self.explain(error)
            raise

    def explain(self, error: BaseException) -> None:
        """Raises what is behind an error, if that is known: a newer run, or a checkpoint that has been deleted."""
        fenced = self.fenced()
        if fenced is not None:
            raise fenced from error
        if not self.log.has_claim(self.token):
            raise CheckpointError(
                f"{self.storage.url} has been deleted or moved while this run was at work on it. It has stopped. Put the directory back "
                f"as it was and run again, "
                f"or start with a new checkpoint."
            ) from error

    def _seven_steps(self, frame: Any, epoch: int, number: int | None, drain: bool) -> None:
        """number: the epoch's place in the source's log, None outside the query."""
        began = clock.perf_counter()
        manifest = self._committed(epoch, number)  # 1
        if manifest is not None:
            self._publish(manifest, redo=True)
            return
        self.point("epoch.1-looked", epoch)
        before = self.latest  # 2
        self.point("epoch.2-read", epoch)
        now = None if number is None else self.offsets.planned_at(number)
        if number is None and not drain and before is not None:
            now = before.now  # what settles, settles at the time of the last input
        if now is None:
            now = self.clock()
        if before is not None:
            now = max(now, before.now)
        said = {} if number is None else declared(self.topology, self.read_files)
        stored = self._stored(before)
        while True:
            standings, before_standings = self._standings(before, stored, drain)
            all_times = times(self.topology, standings, before_standings, now, epoch)
            receipts: list[Receipt] = []
            if frame is None and not self._due(before, all_times, now):
                break
            order = EpochOrder(epoch, self.token, before, all_times, list(stored), os.getpid(), self.crash, self.guards)
            try:
                receipts = self._receipts(frame, order)  # 3, 4, 5
                break
            except Exception as error:
                more = self._to_store(error, stored)
                if not more:
                    raise
                stored.update(more)
        self.point("epoch.5-checked", epoch)
        manifest = self._manifest(epoch, number, before, now, standings, receipts, said, stored, drain)
        self._prepare(manifest)
        if self._replaced():
            raise self._fenced(epoch)
        if not self.log.is_there(self.token):
            raise CheckpointError(f"{self.storage.url} is no longer what it was when this run began")  # `explain` says more
        ours = manifest.sinks
        if not self.log.commit(manifest, self.guards.exclusive):  # 6
            manifest = self._adopted(epoch)
        self.latest = manifest
        self._listened = self._listened or number is not None or drain
        self.point("epoch.6-committed", epoch)
        self._publish(manifest, redo=manifest.token != self.token, instead={} if manifest.sinks is ours else ours)  # 7
        self._maintain(manifest)
        records = sum(seen.records for r in receipts for seen in r.seen.values())
        self.stats.append(
            EpochStats(
                epoch, records, (clock.perf_counter() - began) * 1000, bool(receipts), {edge_name(*e): why for e, why in stored.items()}
            )
        )
        self.point("epoch.7-done", epoch)

    def clock(self) -> int:
        """The wall clock, where the source's log does not say."""
        return int(clock.time() * 1000)

    # --- 1 and 2: where we are

    def _epoch_of(self, number: int) -> int | None:
        """The epoch of a batch: the next one, or that of a batch which is committed and which Spark asks for again. None if that was so long ago that
        its manifest is no longer kept: everything after it has been published since, and so has it."""
        latest = self.latest
        if latest is None or not latest.outside:
            return number
        if number > latest.last_batch:
            return latest.epoch + (
                1 if latest.ended is not None else number - latest.last_batch
            )  # behind a drain numbers may be missing: nothing was in them
        for epoch in range(number + latest.outside, number - 1, -1):
            if self.log.exists(epoch) and self.log.read(epoch).batch == number:
                return epoch
        return None

    def _after_the_end(self, epoch: int | None, number: int, has_rows: bool) -> bool:
        """Whether there is nothing to do for a batch: it was committed so long ago that nobody keeps its manifest, or its number was taken by a drain (whose
        epochs were once numbered like batches). Input behind a drain is refused. A batch that has a manifest of its own is published again, as always."""
        latest = self.latest
        if latest is None or latest.ended is None or (epoch is not None and epoch < latest.ended):
            return epoch is None
        own = epoch is not None and (epoch > latest.epoch or (self.log.exists(epoch) and self.log.read(epoch).batch == number))
        if has_rows and (not own or (epoch is not None and epoch > latest.epoch)):
            raise self._over(latest.ended)
        return not own

    def _committed(self, epoch: int, number: int | None) -> Manifest | None:
        if self._replaced():
            raise self._fenced(epoch)
        last = -1 if self.latest is None else self.latest.epoch
        if epoch > last + 1:
            if max(self.log.epochs(), default=-1) > last:
                raise self._fenced(last + 1)
            raise CheckpointError(
                f"Spark asks for epoch {epoch}, but the last manifest in {self.storage.url} is {last}: manifests are missing, or "
                f"Spark's own checkpoint belongs to something else. Restore both from the same copy, or start with a new checkpoint."
            )
        if epoch == last + 1:
            if not self.log.exists(epoch) or not self.guards.exclusive:
                return None
            self.latest = self._adopted(epoch)
            last = epoch
        manifest = self.latest if epoch == last else self.log.read(epoch)
        assert manifest is not None
        if epoch > self.started_at and run_number(manifest.token) > run_number(self.token):
            raise self._fenced(epoch)
        if manifest.offsets is not None and number is not None and self.offsets.digest(number) not in (None, manifest.offsets):
            raise DamageError(
                f"epoch {epoch} of {self.storage.url} was committed with other source offsets than Spark's checkpoint has now. The offsets of "
                f"Spark and the manifests do not belong together: restore both from the same copy, or start with a new checkpoint."
            )
        return manifest

    def _adopted(self, epoch: int) -> Manifest:
        """An epoch that somebody else has committed: by a run before this one, which was about to end, it stands; by a newer one, we are replaced."""
        found = self.log.read(epoch)
        if run_number(found.token) >= run_number(self.token):
            raise self._fenced(epoch)
        return found

    def _replaced(self) -> bool:
        if not self.guards.tokens or not self.log.superseded(self.token):
            return False
        refuse(self.storage, self.token)
        return True

    def fenced(self) -> Fenced | None:
        """What to say if a newer run has begun."""
        return self._fenced(-1 if self.latest is None else self.latest.epoch + 1) if self._replaced() else None

    def _over(self, epoch: int) -> CheckpointError:
        return CheckpointError(
            f"{self.storage.url} was drained (from epoch {epoch} on): its event time has ended, and there is new input. "
            f"Use a new checkpoint, or run with drain=False (--no-drain on the command line) when more input may follow."
        )

    def _fenced(self, epoch: int) -> Fenced:
        return Fenced(
            f"another driver owns {self.storage.url} now: a newer run has begun, or has committed epoch {epoch}. This one (run {self.token}) has stopped. "
            f"Nothing of it was committed twice."
        )

    def _stored(self, before: Manifest | None) -> dict[Edge, str]:
        edges = before.edges if before else {}
        found = {edge: edges.get(edge_name(*edge), EdgeState()) for edge in self.adaptive}
        return {edge: state.why for edge, state in found.items() if state.stored}

    def _standings(self, before: Manifest | None, stored: dict[Edge, str], drain: bool) -> tuple[dict[str, Standing], dict[str, Standing]]:
        was = standings_of(before)
        return propagate(self.topology, self._progress(before), was, stored, drain), was

    def _progress(self, before: Manifest | None) -> dict[str, Progress]:
        known = before.injectors if before else {}
        return {name: known.get(name, Progress()) for name in self.topology.injectors}

    def _due(self, before: Manifest | None, all_times: dict[str, Times], now: int) -> bool:
        return before is not None and (
            bool(before.pending)
            or any(
                (shard.next_low is not None and shard.next_low <= all_times[name].low_watermark)
                or (shard.next_wall is not None and shard.next_wall <= now)
                for name, state in before.computations.items()
                if name in all_times
                for shard in state.shards
            )
        )

    # --- 3, 4 and 5: the job

    def _receipts(self, frame: Any, order: EpochOrder) -> list[Receipt]:
        for _ in range(TRIES):
            try:
                return checked(self.job(frame, order), self.topology, self.shards, self.guards.receipts)
            except EpochAbandoned as error:
                self.abandoned += 1
                last = error
        raise HookError(
            f"epoch {order.epoch} was abandoned {TRIES} times: {last} A computation that is not deterministic (randomness, the clock, outside "
            f"calls) cannot stand before a weak edge. Make its productions strong (production=ms.STRONG), or make it deterministic: use "
            f"self.now, and seed by self.key."
        )

    def _to_store(self, error: Exception, stored: dict[Edge, str]) -> dict[Edge, str]:
        """The adaptive edges that should store because their consumer failed: it then gets its productions from the log, in an epoch of its own."""
        if isinstance(error, MillstreamError) and not isinstance(error, (HookError, SinkError)):
            return {}
        culprits: Sequence[str] | None = getattr(error, "culprits", None)
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return {
            edge: f"its consumer failed: {text[:200]}"
            for edge in self.adaptive
            if edge not in stored and (culprits is None or edge[1] in culprits)
        }

    # --- 6: the manifest

    def _manifest(
        self,
        epoch: int,
        number: int | None,
        before: Manifest | None,
        now: int,
        standings: dict[str, Standing],
        receipts: Sequence[Receipt],
        said: dict[str, int],
        stored: dict[Edge, str],
        drain: bool,
    ) -> Manifest:
        runs = list(before.runs) if before else []
        if not runs or runs[-1][1] != self.token:
            runs.append((epoch, self.token))
        progress = self._progress(before)
        if before is not None and not self._listened:
            progress = {name: later(one, now - before.now) for name, one in progress.items()}  # while nobody listened, nobody was silent
        used = effective(progress, drain)
        injectors = {}
        for name, injector in self.topology.injectors.items():
            seen = Seen()
            for receipt in receipts:
                if name in receipt.seen:
                    seen.add(receipt.seen[name])
            after = injector.watermark.advance(progress[name], seen, now, said.get(name))
            after.used = used[name]
            if drain:
                after.watermark = END
            injectors[name] = after
        computations = {
            spec.name: computation_after(
                self.program, spec, before, epoch, self.token, standings[spec.name], receipts, self.shards, self.folds.adopt
            )
            for spec in self.topology.computations
        }
        sinks: dict[str, list[dict[str, Any]]] = {}
        for receipt in receipts:
            for name, part in receipt.parts.items():
                sinks.setdefault(name, []).append(part)
        pending = [parcel for receipt in receipts for parcel in receipt.parcels]
        refused = self.log.count_refused() if epoch % COLLECT_EVERY == 0 or self.started_at == epoch - 1 else []
        manifest = Manifest(
            epoch,
            self.token,
            now,
            runs[-KEPT_RUNS:],
            injectors,
            computations,
            sinks,
            drain,
            offsets=None if number is None else self.offsets.digest(number),
            pending=pending,
            edges=edges_after(self.topology, self.adaptive, before, receipts, stored),
            refused=(before.refused if before else 0) + len(refused),
            outside=outside(before) + 1 if number is None else epoch - number,
            settle=number is None and not drain,
        )
        self._refused = refused
        over = not pending and all(c.low_watermark == END and shard.next_low is None for c in computations.values() for shard in c.shards)
        manifest.drained = (drain and over) or (before is not None and before.drained)
        manifest.ended = before.ended if before is not None and before.ended is not None else epoch if drain else None
        return manifest

    def _prepare(self, manifest: Manifest) -> None:
        for emission in self.topology.emissions:
            parts = manifest.sinks.get(emission.name)
            if parts:
                emission.sink.prepare(self._context(emission.name), manifest.epoch, parts)

    # --- 7: after the commit

    def resume(self) -> None:
        """At the start of a run: what the last one committed outside the query and may not have published. Spark asks for all other epochs itself.
        A run that was ended while it settled goes on with that."""
        if self.latest is not None and self.latest.batch is None:
            self._publish(self.latest, redo=True)
        if self.latest is not None and self.latest.settle:
            self.settle(lambda: False)

    def _publish(self, manifest: Manifest, redo: bool = False, instead: dict[str, list[dict[str, Any]]] | None = None) -> None:
        if self._replaced():
            raise self._fenced(manifest.epoch)
        sinks = {emission.name: emission.sink for emission in self.topology.emissions}
        for at, (name, parts) in enumerate(manifest.sinks.items()):
            if at:
                self.point("epoch.7-publishing", manifest.epoch)
            if name in sinks:
                sinks[name].commit(self._context(name, redo, (instead or {}).get(name, ())), manifest.epoch, parts)
                if not redo:  # what may have been there before is not counted again
                    self.published[name] = (
                        self.published[name][0],
                        self.published[name][1] + sum(int(part.get("rows", 0)) for part in parts),
                    )
        self.point("epoch.7-published", manifest.epoch)
        if manifest.batch is not None:
            self.acknowledge(manifest.batch)

    def _context(self, emission: str, redo: bool = False, instead: Sequence[dict[str, Any]] = ()) -> DriverContext:
        return DriverContext(self.storage, self.program.name, emission, self.session(), redo, self.token, list(instead))

    def _maintain(self, manifest: Manifest) -> None:
        if self._refused:
            self.storage.delete(self._refused)
            self._refused = []
        self.folds.plan(manifest, self.session())
        if manifest.epoch % COLLECT_EVERY == 0:
            self.collect(manifest)

    _refused: list[str] = []

    def collect(self, manifest: Manifest) -> None:
        """Removes what no manifest needs, in the checkpoint and at the sinks."""
        since = self.folds.since()  # asked before what is done: a fold that ends in between is then in one of the two
        folding.collect(self.log, manifest, self.folds.in_flight(), since)
        for emission in self.topology.emissions:
            keep = [str(part["staged"]) for part in manifest.sinks.get(emission.name, ()) if "staged" in part]
            emission.sink.sweep(self._context(emission.name), manifest.epoch - KEEP, keep)

    def drain(self, stopped: Callable[[], bool]) -> None:
        """Ends event time: epochs until no low-watermark timer and no stored production is left, or somebody says stop."""
        while self.latest is not None and not self.latest.drained and not stopped():
            with self.lock:
                self.run_outside(drain=True)

    def settle(self, stopped: Callable[[], bool]) -> None:
        """Epochs without input until nothing is left that the last input has made due, or somebody says stop; or until it is clear that this has no end,
        as in a cycle that goes round for ever: the next run goes on with it."""
        for _ in range(MOST_SETTLING):
            if self.latest is None or self.latest.ended is not None or not self._unsettled(self.latest) or stopped():
                return
            with self.lock:
                self.run_outside(drain=False)

    def _unsettled(self, latest: Manifest) -> bool:
        """Whether an idle epoch would do anything: something is due, or time has still to reach an injector or a computation."""
        standings, was = self._standings(latest, self._stored(latest), False)
        progress = self._progress(latest)
        return (
            self._due(latest, times(self.topology, standings, was, latest.now, latest.epoch + 1), latest.now)
            or any(standing.low != was.get(name, Standing()).low for name, standing in standings.items())
            or any(
                injector.watermark.advance(progress[name], Seen(), latest.now).watermark != progress[name].watermark
                for name, injector in self.topology.injectors.items()
            )
        )
