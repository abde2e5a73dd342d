"""The status of a pipeline: data worked out from its latest manifest and, while it runs, from its last epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.adaptive import EdgeState
from millstream.core.authority import Holder, holder
from millstream.core.dedup import DedupCounts
from millstream.core.outcome import LateRecord
from millstream.core.time import BEGINNING, END
from millstream.engine.metrics import EpochStats
from millstream.engine.plan import standings_of
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import Manifest


class ComputationStatus(msgspec.Struct):
    """One computation.

    lag: its low watermark's distance to the newest timestamp injected; behind: the same to the wall clock of the last epoch; in milliseconds.
    held_back_by: what its low watermark waits for.
    """

    name: str
    low_watermark: int
    lag: int | None
    keys: int
    timers: int
    records: int
    late: int
    fired: int
    produced: int
    segments: int
    log_bytes: int
    behind: int | None = None
    output_watermark: int = BEGINNING
    held_back_by: Holder = Holder()
    late_by: dict[str, int] = {}
    tallies: dict[str, int] = {}
    last_late: list[LateRecord] = []
    dead_letters: int = 0
    waiting: int = 0  # productions stored for it
    dedup: DedupCounts | None = None  # None where no id was checked
    ids_held: int = 0


class InjectorStatus(msgspec.Struct):
    """One injector: what its watermark waits for, and its sub-sources' watermarks."""

    name: str
    records: int
    newest: int | None
    watermark: int
    idle: bool = False
    held_back_by: str = ""
    sub_sources: dict[str, int] = {}


class FillStatus(msgspec.Struct):
    """A view that is being filled: by how many rows of those it derives from, of how many, and how fast. what: "waiting", "filling" or "switching"."""

    name: str
    generation: int
    what: str
    rows: int
    of: int
    rows_per_second: float

    def __str__(self) -> str:
        share = f"{100 * self.rows // self.of} %" if self.of else "0 %"
        return f"{self.what} {self.name}, {share} of {self.of:,} rows, {self.rows_per_second:,.0f} rows/s"


class Status(msgspec.Struct):
    """A pipeline at a glance. Speeds are over the last epochs that had records.

    committed_at: the wall clock when the last epoch was committed; clock: the epoch's own, which its hooks saw as self.now. An epoch without input at the end
    of a bounded run has that of the input before it. edges: the adaptive ones, whether they store, and why. refused: writes of runs that had been replaced.
    """

    pipeline: str
    state: str
    epoch: int
    drained: bool
    committed_at: int | None
    records: int
    records_per_second: float
    epoch_millis: float
    injectors: list[InjectorStatus]
    computations: list[ComputationStatus]
    edges: dict[str, EdgeState] = {}
    run: str = ""
    refused: int = 0
    fills: list[FillStatus] = []  # views that are being filled beside what they show
    mode: RunMode = RunMode()
    clock: int | None = None
    waits_for: str = ""  # the input that a running pipeline has not had for some seconds
    parts: dict[str, dict[str, Any]] = {}  # while it runs, what its parts say of themselves: sources, sinks, folds, replicas, log

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        from millstream.status.view import line

        return f"{line(self)}, {self.state}"

    def _repr_html_(self) -> str:
        from millstream.status.html import status

        return status(self)


def held_back_by(manifest: Manifest) -> dict[str, Holder]:
    """For every computation, what its low watermark waits for."""
    feeds = {name: c.feeds for name, c in manifest.computations.items()}
    producers = {stream: name for name, c in manifest.computations.items() for stream in c.streams}
    keys = {}
    for name, c in manifest.computations.items():
        holding = [shard for shard in c.shards if shard.holder]
        if holding:
            keys[name] = min(holding, key=lambda shard: shard.output).holder
    standings = standings_of(manifest)
    return {name: holder(name, feeds, producers, manifest.injectors, standings, keys) for name in manifest.computations}


def status_of(pipeline: str, manifest: Manifest | None, recent: Sequence[EpochStats] = ()) -> Status:
    """The status as of a manifest; `recent` are the last epochs, from which speeds are told."""
    if manifest is None:
        return Status(
            pipeline=pipeline,
            state="new",
            epoch=-1,
            drained=False,
            committed_at=None,
            records=0,
            records_per_second=0.0,
            epoch_millis=0.0,
            injectors=[],
            computations=[],
        )
    busy = [one for one in recent if one.records] or recent
    millis = sum(one.millis for one in busy)
    newest = max((i.newest for i in manifest.injectors.values() if i.newest is not None), default=None)
    holders = held_back_by(manifest)
    return Status(
        pipeline=pipeline,
        state="stopped",
        epoch=manifest.epoch,
        drained=manifest.drained,
        committed_at=manifest.now if manifest.committed_at is None else manifest.committed_at,
        clock=manifest.now,
        records=sum(i.records for i in manifest.injectors.values()),
        records_per_second=sum(one.records for one in busy) / millis * 1000 if millis else 0.0,
        epoch_millis=millis / len(busy) if busy else 0.0,
        injectors=[
            InjectorStatus(
                name=name,
                records=i.records,
                newest=i.newest,
                watermark=i.watermark,
                idle=i.idle,
                held_back_by=i.holder,
                sub_sources={sub: one.watermark for sub, one in i.subs.items()},
            )
            for name, i in manifest.injectors.items()
        ],
        computations=[
            ComputationStatus(
                name=name,
                low_watermark=c.low_watermark,
                lag=max(0, newest - c.low_watermark) if newest is not None and BEGINNING < c.low_watermark < END else None,
                keys=sum(s.keys for s in c.shards),
                timers=sum(s.timers for s in c.shards),
                records=c.records,
                late=c.late,
                fired=c.fired,
                produced=c.produced,
                segments=sum(len(s.segments) for s in c.shards),
                log_bytes=sum(ref.length for s in c.shards for ref in s.segments),
                behind=max(0, manifest.now - c.low_watermark) if BEGINNING < c.low_watermark < END else None,
                output_watermark=c.output,
                held_back_by=holders[name],
                late_by=c.late_by,
                tallies=c.tallies,
                last_late=c.last_late,
                dead_letters=c.dead,
                waiting=sum(count for p in manifest.pending if p.computation == name for _, _, count in p.slices.values()),
                dedup=c.dedup if c.dedup.checked else None,
                ids_held=sum(s.ids for s in c.shards),
            )
            for name, c in manifest.computations.items()
        ],
        edges=manifest.edges,
        run=manifest.token,
        refused=manifest.refused,
        fills=_fills(manifest),
    )


def _fills(manifest: Manifest) -> list[FillStatus]:
    producers = {stream: name for name, c in manifest.computations.items() for stream in c.streams}
    found = []
    for name, build in manifest.builds.items():
        if not build.is_filling or name not in manifest.computations:
            continue
        senders = {producers[stream] for stream in manifest.computations[name].feeds if stream in producers}
        waits = any(manifest.builds[sender].is_filling for sender in senders if sender in manifest.builds)
        of = sum(shard.keys for sender in senders for shard in manifest.computations[sender].shards)
        seconds = max(1, manifest.now - build.began) / 1000
        what = "waiting" if waits else "switching" if build.is_swept else "filling"
        found.append(FillStatus(name, build.generation, what, min(build.swept, of), of, build.swept / seconds))
    return found
