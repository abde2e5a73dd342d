"""What the page shows of a pipeline, as data: a pure function of a manifest, of what was seen before, and of what the driver says of itself.

Rules
1. Everything that grows with a pipeline is bounded: `MOST_*`. What is left out is counted.
2. Times are milliseconds since 1970. None stands for both ends of event time; `ended` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.monitoring.graph_data import (
    CUT,
    MOST_COMPUTATIONS,
    ComputationNode,
    InjectorNode,
    Rates,
    SinkNode,
    StreamEdge,
    computation_node,
    furthest,
    injector_node,
    kept,
    path_of,
    sinks_of,
    streams_of,
)
from millstream.monitoring.history import SPEED, Bar, Point, RecentHistory, moment
from millstream.state.heartbeat import Figures, RunMode, StateCacheStats
from millstream.state.manifest import Manifest
from millstream.status.report import ComputationStatus, Overview, Status, relations_of

MOST_CELLS = 512
MOST_POINTS = 240
MOST_LINES = 12
MOST_LATE = 30


class HeatCell(msgspec.Struct):
    """Some shards, one if there are few: the most that one of them took lately (milliseconds), the records and the keys of all of them."""

    first: int
    last: int
    millis: float
    records: int
    keys: int


class LateSample(msgspec.Struct):
    """One of the last late records of a computation."""

    computation: str
    stream: str
    key: str
    timestamp: int
    low_watermark: int
    value: str


class DeadRow(msgspec.Struct):
    """One of the last dead letters of a computation. stream: empty where it was a timer."""

    computation: str
    stream: str
    key: str
    timestamp: int | None
    error: str


class Line(msgspec.Struct):
    """A line of a chart: values at the chart's times."""

    name: str
    values: list[int | None]


class EventTimes(msgspec.Struct):
    """Event time over time: for the computations furthest behind, low watermarks and lags. newest: the newest record."""

    at: list[int]
    newest: list[int | None]
    low_watermarks: list[Line]
    lags: list[Line]
    more: int


class RelationRow(msgspec.Struct):
    """A table, view or join. depth: of the deepest group."""

    name: str
    kind: str
    rows: int
    depth: int
    generation: int
    senders: list[str]
    fill: str


class PageData(msgspec.Struct):
    """All that one look at a pipeline shows. word: how it is, in one word; sentence: what that means, and what to do."""

    checkpoint: str
    id: str
    pipeline: str
    word: str
    sentence: str
    is_live: bool
    epoch: int
    committed_at: int | None
    looked_at: int
    clock: int | None
    run: str
    host: str
    shards: int
    records: int
    records_per_second: float
    epochs_per_second: float
    epoch_millis: float
    drained: bool
    refused: int
    waits_for: str
    mode: RunMode
    injectors: list[InjectorNode]
    computations: list[ComputationNode]
    more_computations: int
    streams: list[StreamEdge]
    more_streams: int
    sinks: list[SinkNode]
    path: list[str]
    path_text: str
    bars: list[Bar]
    times: EventTimes
    heat: list[HeatCell]
    busy_shards: int
    late: list[LateSample]
    dead: list[DeadRow]
    relations: list[RelationRow]
    fills: list[str]
    compactions: dict[str, Any]
    state_caches: dict[str, StateCacheStats]
    written: int


def page_data(
    found: Overview, manifest: Manifest | None, history: RecentHistory, *, now: int, live: Status | None = None, error: str = ""
) -> PageData:
    """found: the checkpoint at a glance. live: of a run in this process. error: why the run has ended, or why the checkpoint could not be looked at."""
    status, sign = found.status if live is None else live, found.last_sign
    is_live = live.state == "running" if live is not None else found.alive
    figures = Figures() if sign is None else sign.figures
    word, sentence = _word(found, live, error)
    mode = status.mode if live is not None or sign is None else sign.mode
    before = history.since(SPEED)
    rates = Rates(history, before if is_live else None, now)
    everyone = [computation_node(one, manifest, rates, figures) for one in status.computations] if manifest is not None else []
    path, path_text = path_of(everyone, status, manifest)
    shown = furthest(everyone)
    streams = streams_of(manifest, rates) if manifest is not None else []
    edges = kept(streams, {one.name for one in everyone} - {one.name for one in shown}, path)
    return PageData(
        checkpoint=found.checkpoint,
        id=found.id,
        pipeline=status.pipeline,
        word=word,
        sentence=sentence,
        is_live=is_live,
        epoch=status.epoch,
        committed_at=status.committed_at,
        looked_at=now,
        clock=status.clock,
        run=status.run,
        host="" if sign is None else f"{sign.host}, process {sign.pid}",
        shards=found.shards,
        records=status.records,
        records_per_second=(rates.of(lambda point: sum(point.records.values())) if before else status.records_per_second)
        if is_live
        else 0.0,
        epochs_per_second=(rates.of(lambda point: point.epoch) if before else mode.epochs_per_second) if is_live else 0.0,
        epoch_millis=status.epoch_millis,
        drained=status.drained,
        refused=status.refused,
        waits_for=status.waits_for or (sign.waits_for if sign is not None and is_live else ""),
        mode=mode,
        injectors=[injector_node(one, rates, figures.backlogs.get(one.name)) for one in status.injectors],
        computations=shown,
        more_computations=len(everyone) - len(shown),
        streams=edges,
        more_streams=len(streams) - len(edges),
        sinks=sinks_of(manifest, rates),
        path=path,
        path_text=path_text,
        bars=list(history.bars),
        times=_times(history, shown),
        heat=heat(manifest, figures),
        busy_shards=figures.busy,
        late=_late(status.computations),
        dead=_dead(manifest),
        relations=_relations(manifest),
        fills=[str(fill) for fill in status.fills],
        compactions=figures.compactions,
        state_caches=figures.state_caches,
        written=0 if manifest is None else manifest.written,
    )


# --- how it is, in a word


def _word(found: Overview, live: Status | None, error: str) -> tuple[str, str]:
    sign, again = found.last_sign, "The next run goes on from here."
    if error and live is None:
        return "unreadable", error
    if live is not None:
        if live.state == "failed":
            replaced = error.startswith("Fenced")
            return ("replaced", f"Another driver has taken over. {error}") if replaced else ("failed", f"{error} {again}")
        if live.state != "running":
            return live.state, f"The run has {live.state}. {again}" if live.state == "ended" else f"The run was stopped. {again}"
        return "running", f"It waits for {live.waits_for}." if live.waits_for else "Epochs are being committed."
    if sign is None:
        return ("new", "No driver has been here yet.") if found.token is None else ("stopped", f"No driver is at work. {again}")
    if found.alive:
        return "running", f"It waits for {sign.waits_for}." if sign.waits_for else f"A driver is at work on {sign.host}."
    if sign.state == "running":
        return (
            "killed",
            f"The driver on {sign.host} (process {sign.pid}) has given no sign of life since: it was killed, or its host is gone. {again}",
        )
    if sign.state == "failed":
        return "failed", f"The run has failed. {again}"
    return ("ended", f"All of its input is done. {again}") if found.status.drained else ("stopped", f"No driver is at work. {again}")


# --- charts


def _times(history: RecentHistory, nodes: Sequence[ComputationNode]) -> EventTimes:
    points = list(history.points)
    step = -(-len(points) // MOST_POINTS) if points else 1
    points = points[len(points) % step - 1 if len(points) % step else step - 1 :: step]
    visible = [one for one in nodes if not one.hidden]
    drawn = sorted(visible, key=lambda one: -(one.lag or 0))[:MOST_LINES]
    names = [one.name for one in visible if one in drawn]
    lows = [Line(name, [moment(point.lows.get(name)) for point in points]) for name in names]
    lags = [Line(name, [_lag(point, name) for point in points]) for name in names]
    return EventTimes([point.at for point in points], [point.newest for point in points], lows, lags, len(visible) - len(names))


def _lag(point: Point, name: str) -> int | None:
    low = moment(point.lows.get(name))
    return None if low is None or point.newest is None else max(0, point.newest - low)


def heat(manifest: Manifest | None, figures: Figures) -> list[HeatCell]:
    """The shards as a row of cells."""
    if manifest is None or not manifest.computations:
        return []
    count = max(len(state.shards) for state in manifest.computations.values())
    if not count:
        return []
    width = -(-count // MOST_CELLS)
    cells = [HeatCell(at, min(at + width, count) - 1, 0.0, 0, 0) for at in range(0, count, width)]
    for state in manifest.computations.values():
        for shard, one in enumerate(state.shards):
            if one.keys:
                cells[shard // width].keys += one.keys
    for load in figures.shards:
        if load.shard < count:
            cell = cells[load.shard // width]
            cell.millis, cell.records = max(cell.millis, load.millis), cell.records + load.records
    return cells


# --- what went astray, and what is derived


def _late(computations: Sequence[ComputationStatus]) -> list[LateSample]:
    found = [
        LateSample(name.name, late.stream, late.key[:CUT], late.timestamp, late.low_watermark, late.value[:CUT])
        for name in computations
        for late in name.last_late
    ]
    return sorted(found, key=lambda late: -late.low_watermark)[:MOST_LATE]


def _dead(manifest: Manifest | None) -> list[DeadRow]:
    states = manifest.computations.items() if manifest is not None else ()
    return [DeadRow(name, one.stream, one.key, moment(one.timestamp), one.error) for name, state in states for one in state.last_dead][
        -MOST_LATE:
    ]


def _relations(manifest: Manifest | None) -> list[RelationRow]:
    if manifest is None:
        return []
    return [
        RelationRow(one.name, one.kind, one.rows, max(one.depths, default=0), one.generation, one.senders, str(one.fill or ""))
        for one in relations_of(manifest).relations[:MOST_COMPUTATIONS]
    ]
