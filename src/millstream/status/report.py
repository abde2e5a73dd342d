"""The status of a pipeline, of its checkpoint, and of its tables, views and joins: data, worked out from the latest manifest and, while it runs, from its last
epochs. No row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.authority import Holder, holder
from millstream.core.dedup import DedupCounts
from millstream.core.outcome import LateRecord
from millstream.core.time import BEGINNING, END
from millstream.core.topology import INTERVAL_JOIN, EdgeState
from millstream.engine.epochs import wall_clock
from millstream.engine.metrics import EpochStats
from millstream.engine.plan import standings_of
from millstream.readable.relations import relations, rows_shown
from millstream.state.heartbeat import Alive, RunMode, last_sign
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.views.aggregate import depths
from millstream.views.dsl import TABLE, VIEW


class WindowStatus(msgspec.Struct):
    """What a window operator has open. next_end: the end of the oldest open window, which is told next; None if none is open. partial_results: how many are
    kept, one or more for every key and pane."""

    window: str
    next_end: int | None
    partial_results: int


class ComputationStatus(msgspec.Struct):
    """One computation. A window operator has `windows` instead of keys and timers, and a join of streams `kept`.

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
    windows: WindowStatus | None = None  # of a window operator
    kept: int | None = None  # of a join of streams: how many records it keeps for partners to come


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
    """A view that is being filled beside what it shows: by how many rows of those it derives from, of how many, and how fast. what: "waiting" (for senders that
    are being filled themselves), "filling" or "cutting over" (in the next epoch)."""

    name: str
    generation: int
    what: str
    rows: int
    of: int
    rows_per_second: float
    waits_for: list[str] = []

    def __str__(self) -> str:
        share = f"{100 * self.rows // self.of} %" if self.of else "0 %"
        return f"{self.what} {self.name}, {share} of {self.of:,} rows, {self.rows_per_second:,.0f} rows/s"


class Status(msgspec.Struct):
    """A pipeline at a glance. Speeds are those of the last ten seconds; epoch_millis is of the last epochs that had records.

    committed_at: the wall clock when the last epoch was committed; clock: the epoch's own, which its hooks saw as self.now. An epoch without input at the end
    of a bounded run has that of the input before it. edges: the adaptive ones, whether they store, and why. refused: writes of runs that had been replaced.
    """

    pipeline: str
    state: str = "new"
    epoch: int = -1
    drained: bool = False
    committed_at: int | None = None
    records: int = 0
    records_per_second: float = 0.0
    epoch_millis: float = 0.0
    injectors: list[InjectorStatus] = []
    computations: list[ComputationStatus] = []
    edges: dict[str, EdgeState] = {}
    run: str = ""
    refused: int = 0
    fills: list[FillStatus] = []  # views that are being filled beside what they show
    mode: RunMode = RunMode()
    clock: int | None = None
    waits_for: str = ""  # the input that a running pipeline has not had for some seconds
    parts: dict[str, dict[str, Any]] = {}  # while it runs, what its parts say of themselves: sources, sinks, compactions, state caches, log

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        from millstream.status.render import line

        return f"{line(self)}, {self.state}"

    def _repr_html_(self) -> str:
        from millstream.status.render import html, progress

        return html(progress(self))


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
        return Status(pipeline)
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
                keys=sum(s.keys for s in c.shards) if not c.keeps_columns else 0,
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
                windows=_windows(c),
                kept=sum(s.keys for s in c.shards) if c.kind == INTERVAL_JOIN else None,
            )
            for name, c in manifest.computations.items()
        ],
        edges=manifest.edges,
        run=manifest.token,
        refused=manifest.refused,
        fills=[fill for name in manifest.builds if (fill := _fill(manifest, name)) is not None],
    )


def _windows(state: ComputationState) -> WindowStatus | None:
    if state.window is None:
        return None
    next_end = min((shard.next_low for shard in state.shards if shard.next_low is not None), default=None)
    return WindowStatus(state.about.get("window", ""), next_end, sum(shard.keys for shard in state.shards))


def _fill(manifest: Manifest, name: str) -> FillStatus | None:
    build = manifest.builds.get(name)
    if build is None or not build.is_filling or name not in manifest.computations:
        return None
    senders = _senders(manifest, name)
    waits_for = [sender for sender in senders if sender in manifest.builds and manifest.builds[sender].is_filling]
    of = sum(shard.keys for sender in senders for shard in manifest.computations[sender].shards)
    what = "waiting" if waits_for else "cutting over" if build.is_scanned else "filling"
    seconds = max(1, manifest.now - build.began) / 1000
    return FillStatus(name, build.generation, what, min(build.scanned, of), of, build.scanned / seconds, waits_for)


def _senders(manifest: Manifest, name: str) -> list[str]:
    """The computations that feed one."""
    producers = {stream: producer for producer, state in manifest.computations.items() for stream in state.streams}
    return list(dict.fromkeys(producers[feed] for feed in manifest.computations[name].feeds if feed in producers))


# --- a checkpoint


class Overview(msgspec.Struct):
    """A checkpoint at a glance: its identity, the run that wrote the latest manifest, the status as of it, and its driver's last sign of life.

    alive: whether that sign is so young that the driver is at work.
    """

    checkpoint: str
    id: str
    shards: int
    token: str | None
    status: Status
    alive: bool = False
    last_sign: Alive | None = None


def overview(log: ManifestLog) -> Overview:
    """What the checkpoint says of itself and of its latest epoch."""
    return overview_of(log, log.latest())


def overview_of(log: ManifestLog, manifest: Manifest | None) -> Overview:
    """What it says of itself, and of an epoch."""
    identity = log.identity()
    status = status_of(identity.pipeline, manifest)
    if manifest is not None:
        status.state = "drained" if manifest.drained else "committed"
    sign = last_sign(log.storage)
    if sign is not None:
        status.records_per_second, status.epoch_millis = sign.records_per_second, sign.epoch_millis
    return Overview(
        checkpoint=log.storage.url,
        id=identity.id,
        shards=identity.shards,
        token=None if manifest is None else manifest.token,
        status=status,
        alive=sign is not None and sign.is_alive(wall_clock()),
        last_sign=sign,
    )


# --- tables, views and joins


class RelationStatus(msgspec.Struct):
    """A table, view or join.

    rows: documents, groups, or keys of a join's right side. contributions: of a view. depths: by depth, how many groups have leaves of their own; small ones
    stand in one row. stage: its place in an epoch's job, 1 for a table; behind a strong edge the next epoch begins anew with 1.
    messages_per_change: how many messages a change of its senders has come to. most_entries: how many entries a message to the deepest group
    reads, and writes, at most.
    """

    name: str
    kind: str
    rows: int
    generation: int
    contributions: int | None = None
    fill: FillStatus | None = None
    senders: list[str] = []
    about: dict[str, str] = {}
    is_strong: bool = False
    depths: dict[int, int] = {}
    stage: int = 1
    messages: int = 0
    messages_per_change: float | None = None
    most_entries: int | None = None
    changes: int = 0
    stale: int = 0
    mismatches: int = 0
    log_bytes: int = 0


class Relations(msgspec.Struct):
    """All of a checkpoint, as of an epoch."""

    epoch: int
    relations: list[RelationStatus]


def relations_of(manifest: Manifest) -> Relations:
    """What a manifest says of tables, views and joins."""
    return Relations(manifest.epoch, [_relation(manifest, name, state) for name, state in relations(manifest).items()])


def _relation(manifest: Manifest, name: str, state: ComputationState) -> RelationStatus:
    tallies = state.tallies
    senders = [] if state.kind == TABLE else _senders(manifest, name)
    spoken = sum(manifest.computations[sender].tallies.get("changes", 0) for sender in senders)
    deep = depths(tallies)
    build = manifest.builds.get(name)
    return RelationStatus(
        name=name,
        kind=state.kind,
        rows=rows_shown(state),
        generation=1 if build is None else build.active,
        contributions=tallies.get("contributions", 0) if state.kind == VIEW else None,
        fill=_fill(manifest, name),
        senders=senders,
        about=state.about,
        is_strong=state.relation is not None and state.relation.is_strong,
        depths=deep,
        stage=_stage(manifest, name, ()),
        messages=0 if state.kind == TABLE else state.records,
        messages_per_change=state.records / spoken if spoken and state.kind != TABLE else None,
        most_entries=_most(state, max(deep, default=0)) if state.kind == VIEW else None,
        changes=tallies.get("changes", 0),
        stale=tallies.get("stale", 0),
        mismatches=tallies.get("mismatches", 0),
        log_bytes=sum(ref.length for shard in state.shards for ref in shard.segments),
    )


def _most(state: ComputationState, deepest: int) -> int:
    """The row; its leaf; and without an inverse a node of every level above."""
    if not deepest:
        return 1
    return 2 if state.relation is not None and state.relation.inverts else 1 + deepest


def _stage(manifest: Manifest, name: str, seen: tuple[str, ...]) -> int:
    spec = manifest.computations[name].relation
    if (spec is not None and spec.is_strong) or name in seen:
        return 1
    return 1 + max((_stage(manifest, sender, (*seen, name)) for sender in _senders(manifest, name)), default=0)
