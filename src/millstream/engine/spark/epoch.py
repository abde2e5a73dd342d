"""One epoch, from a batch of rows to a manifest. The driver's side.

    1. Manifest N exists? Then N was committed and Spark does not know it yet: redo step 7 and return.
    2. Manifest N-1 says what makes up the state, how far time is, and which timer is next.
    3. Rows go through the shuffle to their shards, one level of the topology per stage.
    4. Tasks run the step and stage.
    5. Receipts: every shard of every group exactly once, every consumer fed by the very attempts that are about to be committed.
    6. Manifest N is created exclusively. This is the commit.
    7. Sinks publish, folds are planned, leftovers are collected.

An epoch with no record and nothing due needs no Spark job: its manifest says that time has passed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from millstream import faults
from millstream.core.step import Times
from millstream.core.time import BEGINNING, END
from millstream.core.watermark import propagate
from millstream.engine.program import Program
from millstream.errors import (
    BY_NAME,
    CheckpointError,
    DamageError,
    EpochAbandoned,
    Fenced,
    HookError,
    MillstreamError,
)
from millstream.sinks.base import DriverContext
from millstream.state import folding
from millstream.state.manifest import KEEP, ComputationState, InjectorState, Manifest, ManifestLog, ShardState
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage

from . import pickling, rows
from .folds import Folds
from .offsets import SparkOffsets
from .task import EpochOrder, Place, Receipt, decode_receipt, task_function

TRIES = 5
COLLECT_EVERY = 20
KEPT_RUNS = 64  # a replica that was last brought up to date by an older run loads anew


class Stopped(Exception):
    """An epoch that was not begun because somebody said stop."""


class EpochStats(msgspec.Struct):
    """What one epoch was like."""

    epoch: int
    records: int
    millis: float
    job: bool


class Epochs:
    """Runs epochs on one checkpoint, for one run of a pipeline."""

    def __init__(
        self,
        program: Program,
        place: Place,
        storage: Storage,
        log: ManifestLog,
        latest: Manifest | None,
        token: str,
        value_types: list[T.DataType],
        offsets: SparkOffsets,
    ) -> None:
        self.program = program
        self.topology = program.topology
        self.place = place
        self.storage = storage
        self.log = log
        self.latest = latest
        self.started_at = -1 if latest is None else latest.epoch
        self.token = token
        self.value_types = value_types
        self.offsets = offsets
        self.stats: deque[EpochStats] = deque(maxlen=256)
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.stopping = False
        self.crash = faults.armed()
        self.abandoned = 0
        self.folds = Folds(place)
        self.blob = pickling.dumps(program)
        self.digest = hashlib.blake2b(self.blob, digest_size=16).hexdigest()
        self.place_bytes = msgspec.msgpack.encode(place)
        self._schemas = self._level_schemas()

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Spark's foreachBatch calls this; an error is kept for the handle, because Spark would only pass on its text."""
        with self.lock:
            if self.stopping:
                raise Stopped("the pipeline is being stopped; this epoch runs at the next start")
            try:
                self.run(batch, epoch)
            except BaseException as error:
                self.error = error
                raise

    def run(self, batch: DataFrame | None, epoch: int, drain: bool = False) -> None:
        """One epoch. With drain, event time ends."""
        began = clock.perf_counter()
        frame = batch if batch is not None and self.offsets.may_have_rows(epoch) else None
        manifest = self._committed(epoch, drain, frame is not None)  # 1
        if manifest is not None:
            self._publish(manifest, batch.sparkSession if batch is not None else None, redo=True)
            return
        faults.point("epoch.1-looked", epoch, self.crash)
        before = self.latest  # 2
        faults.point("epoch.2-read", epoch, self.crash)
        now = None if drain else self.offsets.planned_at(epoch)
        if now is None:
            now = int(clock.time() * 1000)
        if before is not None:
            now = max(now, before.now)
        times = self._times(epoch, before, now, drain)
        if before is not None and before.drained and frame is not None:
            raise self._over(before.epoch)
        spark = _spark() if batch is None else batch.sparkSession
        receipts: list[Receipt] = []
        if frame is not None or self._due(before, times, now):
            receipts = self._receipts(spark, frame, epoch, before, times)  # 3, 4, 5
        faults.point("epoch.5-checked", epoch, self.crash)
        manifest = self._manifest(epoch, before, now, times, receipts, drain)
        if not self.log.commit(manifest):  # 6
            raise self._fenced(epoch)
        self.latest = manifest
        faults.point("epoch.6-committed", epoch, self.crash)
        self._publish(manifest, spark)  # 7
        self._maintain(manifest, spark)
        records = sum(sum(r.injected.values()) for r in receipts)
        self.stats.append(EpochStats(epoch, records, (clock.perf_counter() - began) * 1000, bool(receipts)))
        faults.point("epoch.7-done", epoch, self.crash)

    # --- 1 and 2: where we are

    def _committed(self, epoch: int, drain: bool, has_rows: bool) -> Manifest | None:
        last = -1 if self.latest is None else self.latest.epoch
        if epoch > last + 1:
            if max(self.log.epochs(), default=-1) > last:
                raise self._fenced(last + 1)
            raise CheckpointError(
                f"Spark asks for epoch {epoch}, but the last manifest in {self.storage.url} is {last}: manifests are missing, or "
                f"Spark's own checkpoint belongs to something else. Restore both from the same copy, or start with a new checkpoint."
            )
        if epoch == last + 1:
            if self.log.exists(epoch):
                raise self._fenced(epoch)
            return None
        manifest = self.latest if epoch == last else self.log.read(epoch)
        assert manifest is not None
        if manifest.drain and not drain:
            if has_rows:
                raise self._over(epoch)
            return manifest
        if epoch > self.started_at and manifest.token != self.token:
            raise self._fenced(epoch)
        if manifest.offsets is not None and self.offsets.digest(epoch) not in (None, manifest.offsets):
            raise DamageError(
                f"epoch {epoch} of {self.storage.url} was committed with other source offsets than Spark's checkpoint has now. The offsets of "
                f"Spark and the manifests do not belong together: restore both from the same copy, or start with a new checkpoint."
            )
        return manifest

    def _over(self, epoch: int) -> CheckpointError:
        return CheckpointError(
            f"{self.storage.url} was drained in epoch {epoch}: its event time has ended, and there is new input. "
            f"Use a new checkpoint, or run with drain=False when more input may follow."
        )

    def _fenced(self, epoch: int) -> Fenced:
        return Fenced(
            f"another driver has committed epoch {epoch} of {self.storage.url}: it owns the checkpoint now, and this one (run {self.token}) has stopped. "
            f"Nothing of it was committed twice."
        )

    def _times(self, epoch: int, before: Manifest | None, now: int, drain: bool) -> dict[str, Times]:
        injected = {
            name: END if drain else (before.injectors[name].watermark if before and name in before.injectors else BEGINNING)
            for name in self.topology.injectors
        }
        was = {name: state.low_watermark for name, state in before.computations.items()} if before else {}
        low = propagate(self.topology, injected, was)
        return {name: Times(now, was.get(name, BEGINNING), low[name], epoch) for name in low}

    def _due(self, before: Manifest | None, times: dict[str, Times], now: int) -> bool:
        return before is not None and any(
            (shard.next_low is not None and shard.next_low <= times[name].low_watermark)
            or (shard.next_wall is not None and shard.next_wall <= now)
            for name, state in before.computations.items()
            if name in times
            for shard in state.shards
        )

    # --- 3, 4 and 5: the job

    def _level_schemas(self) -> list[tuple[T.StructType, bytes]]:
        """What the tasks of each level put out: for Spark, and the same for Arrow."""
        last = len(self.topology.levels) - 1
        injectors = list(self.topology.injectors)
        found: list[tuple[T.StructType, bytes]] = []
        for level in range(last + 1):
            if level == last:
                schema = T._parse_datatype_string("body binary")
            else:
                schema = T._parse_datatype_string(f"{rows.KEYED}, {rows.PRODUCED}")
                later = {r.stream for r in self.topology.routes if r.level > level}
                assert isinstance(schema, T.StructType)
                for at, name in enumerate(injectors):
                    if name in later:
                        schema = schema.add(f"v{at}", self.value_types[at])
            assert isinstance(schema, T.StructType)
            arrow = to_arrow_schema(schema, timezone="UTC")
            found.append((schema, arrow.serialize().to_pybytes()))
        return found

    def _receipts(self, spark: Any, frame: DataFrame | None, epoch: int, before: Manifest | None, times: dict[str, Times]) -> list[Receipt]:
        for _ in range(TRIES):
            try:
                return self._job(spark, frame, epoch, before, times)
            except EpochAbandoned as error:
                self.abandoned += 1
                last = error
        raise HookError(
            f"epoch {epoch} was abandoned {TRIES} times: {last} A computation that is not deterministic (randomness, the clock, outside "
            f"calls) cannot stand before a weak edge. Make it repeat itself: use self.now, and seed by self.key."
        )

    def _job(self, spark: Any, frame: DataFrame | None, epoch: int, before: Manifest | None, times: dict[str, Times]) -> list[Receipt]:
        order = msgspec.msgpack.encode(EpochOrder(epoch, before, times, os.getpid(), self.crash))
        shards = self.place.shards
        flow = frame
        for level, groups in enumerate(self.topology.levels):
            partitions = len(groups) * shards
            if flow is None:
                flow = rows.tick_frame(spark, partitions, self.value_types)
            else:
                flow = flow.repartitionById(partitions, "part")
            schema, arrow = self._schemas[level]
            flow = flow.mapInArrow(task_function(self.digest, self.blob, self.place_bytes, order, level, arrow), schema)
        assert flow is not None
        try:
            bodies = flow.toArrow().column("body").to_pylist()
        except Exception as error:
            if "indeterminate output" in str(error):  # a stage was lost in mid-epoch, and Spark will not mix its attempts either
                raise EpochAbandoned("a stage had to be computed again after its output had been used.") from error
            raise
        return self._checked([decode_receipt(body) for body in bodies])

    def _checked(self, receipts: list[Receipt]) -> list[Receipt]:
        for receipt in receipts:
            if receipt.failure:
                raise BY_NAME.get(receipt.failure, MillstreamError)(receipt.message)
        expected = {(level, group.index, shard) for level, groups in enumerate(self.topology.levels) for group in groups for shard in range(self.place.shards)}
        got = [(r.level, r.group, r.shard) for r in receipts]
        if len(got) != len(expected) or set(got) != expected:
            raise EpochAbandoned(f"receipts do not cover every shard once: {sorted(set(expected) ^ set(got))} missing or unknown, {len(got)} in all.")
        units = {r.unit for r in receipts}
        for receipt in receipts:
            strangers = [unit for unit in receipt.consumed if unit not in units]
            if strangers:
                names = ", ".join(self.topology.levels[receipt.level][receipt.group].computations)
                raise EpochAbandoned(f"shard {receipt.shard} of {names} consumed productions of an attempt that is not the one staged.")
        return receipts

    # --- 6: the manifest

    def _manifest(self, epoch: int, before: Manifest | None, now: int, times: dict[str, Times], receipts: Sequence[Receipt], drain: bool) -> Manifest:
        runs = list(before.runs) if before else []
        if not runs or runs[-1][1] != self.token:
            runs.append((epoch, self.token))
        injectors = {}
        for name, injector in self.topology.injectors.items():
            old = before.injectors.get(name, InjectorState()) if before else InjectorState()
            newest = max([r.newest[name] for r in receipts if name in r.newest] + ([] if old.newest is None else [old.newest]), default=None)
            watermark = END if drain else max(old.watermark, injector.watermark.watermark(newest))
            injectors[name] = InjectorState(newest, watermark, old.records + sum(r.injected.get(name, 0) for r in receipts))
        computations = {}
        for spec in self.topology.computations:
            computations[spec.name] = self._computation(spec.name, epoch, before, times, receipts)
        sinks: dict[str, list[dict[str, Any]]] = {}
        for receipt in receipts:
            for name, part in receipt.parts.items():
                sinks.setdefault(name, []).append(part)
        manifest = Manifest(epoch, self.token, now, runs[-KEPT_RUNS:], injectors, computations, sinks, drain, offsets=None if drain else self.offsets.digest(epoch))
        drained_low = all(shard.next_low is None for c in computations.values() for shard in c.shards)
        manifest.drained = (drain and drained_low) or (before is not None and before.drained)
        return manifest

    def _computation(self, name: str, epoch: int, before: Manifest | None, times: dict[str, Times], receipts: Sequence[Receipt]) -> ComputationState:
        old = before.computations.get(name) if before else None
        old = old or ComputationState(shards=[ShardState() for _ in range(self.place.shards)])
        new = ComputationState(
            times[name].low_watermark, [], self.program.codec_of(name).name, self.topology.feeds(name),
            old.records, old.late, old.fired, old.produced, old.lineage or f"{epoch}-{self.token}-{name}",
        )
        mine = {r.shard: r.deltas[name] for r in receipts if name in r.deltas}
        for shard, state in enumerate(old.shards):
            segments: list[SegmentRef] = self.folds.adopt(name, shard, state.segments)
            delta = mine.get(shard)
            if delta is None:
                new.shards.append(ShardState(segments, state.keys, state.timers, state.next_low, state.next_wall))
                continue
            counts = delta.counts
            if delta.segment is not None:
                segments = [*segments, delta.segment]
            new.shards.append(ShardState(segments, state.keys + counts.keys, state.timers + counts.timers, counts.next_low, counts.next_wall))
            new.records += counts.records
            new.late += counts.late
            new.fired += counts.fired
            new.produced += delta.produced
        return new

    # --- 7: after the commit

    def resume(self, spark: Any) -> None:
        """At the start of a run: what the last one committed in a drain and may not have published. Spark asks for all other epochs itself."""
        if self.latest is not None and self.latest.drain:
            self._publish(self.latest, spark, redo=True)

    def _publish(self, manifest: Manifest, spark: Any, redo: bool = False) -> None:
        sinks = {emission.name: emission.sink for emission in self.topology.emissions}
        for at, (name, parts) in enumerate(manifest.sinks.items()):
            if at:
                faults.point("epoch.7-publishing", manifest.epoch, self.crash)
            if name in sinks:
                context = DriverContext(self.storage, self.program.name, name, spark or _spark(), redo)
                sinks[name].commit(context, manifest.epoch, parts)
        faults.point("epoch.7-published", manifest.epoch, self.crash)

    def _maintain(self, manifest: Manifest, spark: Any) -> None:
        self.folds.plan(manifest, spark)
        if manifest.epoch % COLLECT_EVERY == 0:
            self.collect(manifest)

    def collect(self, manifest: Manifest) -> None:
        """Removes what no manifest needs, in the checkpoint and at the sinks."""
        since = self.folds.since()  # asked before what is done: a fold that ends in between is then in one of the two
        folding.collect(self.log, manifest, self.folds.in_flight(), since)
        for emission in self.topology.emissions:
            keep = [str(part["staged"]) for part in manifest.sinks.get(emission.name, ()) if "staged" in part]
            emission.sink.sweep(DriverContext(self.storage, self.program.name, emission.name), manifest.epoch - KEEP, keep)

    def drain(self, stopped: Callable[[], bool]) -> None:
        """Ends event time: epochs until no low-watermark timer is left, or somebody says stop."""
        while self.latest is not None and not self.latest.drained and not stopped():
            with self.lock:
                self.run(None, self.latest.epoch + 1, drain=True)


def _spark() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
