"""The graph of the page: sources, computations, streams and sinks, with how each is doing, and the path of what holds time back.

Rules
1. What is furthest behind is kept where there is too much to draw.
2. Health is one word, that of the worst that is true, and comes with the sentence that explains it.
3. A computation's lag, how far its output is behind the newest record, is split: *inherited* is what its low watermark is behind, which follows its inputs;
   *own* is how much further its holds and timers keep its output.
4. The path of what holds time back leads from the computation whose output is furthest behind up to an injector, or to a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millstream.core.time import BEGINNING, END
from millstream.core.topology import ADAPTIVE, STRONG, WEAK
from millstream.monitoring.history import SPEED, Point, RecentHistory, moment
from millstream.state.heartbeat import Backlog, Figures
from millstream.state.manifest import ComputationState, Manifest, edge_name
from millstream.status.report import ComputationStatus, InjectorStatus, Status

MOST_COMPUTATIONS = 250
MOST_STREAMS = 600
MOST_SUBS = 20
_APART = 60_000  # milliseconds that a part of a source may be behind most others
CUT = 300  # characters of a value, or of what holds time back


class InjectorNode(msgspec.Struct):
    """rate: records a second. subs: the slowest sub-sources and partitions; `more_subs` are not shown. lag: its watermark's, to its newest record."""

    name: str
    records: int
    rate: float
    newest: int | None
    watermark: int | None
    ended: bool
    lag: int | None
    idle: bool
    held_back_by: str
    subs: list[tuple[str, int | None]]
    more_subs: int
    backlog: Backlog | None
    health: str
    why: str


class ComputationNode(msgspec.Struct):
    """kind: "computation", "table", "view", "join", "window" or "interval join". millis: of its steps, of all shards, lately. held_back_by: in words; holder:
    what that is ("injector", "pending", "state", "timer"), with its name and key."""

    name: str
    kind: str
    about: dict[str, str]
    hidden: bool
    low_watermark: int | None
    output_watermark: int | None
    ended: bool
    lag: int | None
    own_lag: int | None
    inherited_lag: int | None
    records: int
    rate: float
    produced: int
    keys: int
    timers: int
    late: int
    dead_letters: int
    waiting: int
    duplicates: int
    millis: float
    segments: int
    log_bytes: int
    health: str
    why: str
    held_back_by: str
    holder: str
    holder_name: str
    holder_key: str


class StreamEdge(msgspec.Struct):
    """A stream from a node to a node: "injector:x", "computation:x" or "sink:x". kind: "weak", "strong" or "adaptive"; stored: now it is kept in the commit.
    records: so far, None where that is not counted. holds: it is on the path of what holds time back."""

    stream: str
    source: str
    target: str
    kind: str
    stored: bool
    why: str
    records: int | None
    rate: float
    holds: bool = False


class SinkNode(msgspec.Struct):
    """What goes to a sink. rows: that are published, or are about to be; waiting: committed rows that are to be published with later ones."""

    name: str
    stream: str
    place: str
    rows: int
    rate: float
    waiting: int


class Rates:
    """Speeds, as differences between two points. now: what was silent since the newer one counts, too."""

    def __init__(self, history: RecentHistory, before: Point | None, now: int) -> None:
        self._before, self._after = before, history.points[-1] if history.points else None
        self._now = now

    def of(self, count: Callable[[Point], float | None]) -> float:
        if self._before is None or self._after is None or self._after.at <= self._before.at:
            return 0.0
        now, then = count(self._after), count(self._before)
        if now is None or then is None or self._now - self._after.at > SPEED:
            return 0.0
        return round(max(0.0, now - then) * 1000 / max(self._after.at - self._before.at, self._now - self._before.at), 2)

    def grew(self, count: Callable[[Point], float | None]) -> bool:
        return self.of(count) > 0


def injector_node(one: InjectorStatus, rates: Rates, backlog: Backlog | None) -> InjectorNode:
    subs = sorted(one.sub_sources.items(), key=lambda sub: sub[1])
    rate = rates.of(lambda point: point.records.get(one.name))
    ended = one.watermark >= END
    health, why = "ok", ""
    if ended:
        health, why = "ended", "Its event time has ended."
    elif not one.records:
        health, why = "waiting", "No record has come yet."
    elif one.idle:
        health, why = "idle", "It has been silent for so long that it holds nothing back."
    elif len(subs) > 1 and subs[len(subs) // 2][1] - subs[0][1] > _APART:
        health, why = "holding", f"It waits for {one.held_back_by}, which is behind most others."
    elif backlog is not None and backlog.left:
        when = f", {backlog.seconds:,.0f} s at the present rate" if backlog.seconds is not None else ""
        health, why = "behind", f"{backlog.left:,} {backlog.counts} are there to be read{when}."
    return InjectorNode(
        name=one.name,
        records=one.records,
        rate=rate,
        newest=one.newest,
        watermark=moment(one.watermark),
        ended=ended,
        lag=max(0, one.newest - one.watermark) if one.newest is not None and moment(one.watermark) is not None else None,
        idle=one.idle,
        held_back_by=one.held_back_by,
        subs=[(name, moment(at)) for name, at in subs[:MOST_SUBS]],
        more_subs=max(0, len(subs) - MOST_SUBS),
        backlog=backlog,
        health=health,
        why=why,
    )


def computation_node(one: ComputationStatus, manifest: Manifest, rates: Rates, figures: Figures) -> ComputationNode:
    state = manifest.computations[one.name]
    newest = max((progress.newest for progress in manifest.injectors.values() if progress.newest is not None), default=None)
    own = one.low_watermark - one.output_watermark if moment(one.low_watermark) and moment(one.output_watermark) else None
    lag = max(0, newest - one.output_watermark) if newest is not None and moment(one.output_watermark) is not None else None
    health, why = _health(one, state, own, manifest, rates)
    return ComputationNode(
        name=one.name,
        kind=state.kind or "computation",
        about=state.about,
        hidden=state.hidden,
        low_watermark=moment(one.low_watermark),
        output_watermark=moment(one.output_watermark),
        ended=one.low_watermark >= END,
        lag=lag,
        own_lag=own,
        inherited_lag=one.lag,
        records=one.records,
        rate=rates.of(lambda point: point.counts.get(one.name, (None,))[0]),
        produced=one.produced,
        keys=sum(shard.keys for shard in state.shards),
        timers=one.timers,
        late=one.late,
        dead_letters=one.dead_letters,
        waiting=one.waiting,
        duplicates=one.dedup.dropped if one.dedup is not None else 0,
        millis=figures.computations.get(one.name, 0.0),
        segments=one.segments,
        log_bytes=one.log_bytes,
        health=health,
        why=why,
        held_back_by=str(one.held_back_by)[:CUT],
        holder=one.held_back_by.what,
        holder_name=one.held_back_by.name,
        holder_key=one.held_back_by.key,
    )


def _health(one: ComputationStatus, state: ComputationState, own: int | None, manifest: Manifest, rates: Rates) -> tuple[str, str]:
    name = one.name
    if rates.grew(lambda point: point.counts[name][3] if name in point.counts else None):
        return "failing", f"Its hooks raise: {one.dead_letters:,} dead letters."
    if rates.grew(lambda point: point.counts[name][2] if name in point.counts else None):
        return "late records", f"Records come too late: {one.late:,} so far."
    if name in manifest.builds and manifest.builds[name].is_filling:
        return "filling", "It is being filled, beside what it shows."
    if any(edge.stored and at.endswith(edge_name("", name)) for at, edge in manifest.edges.items()):
        return "slow", "It is slow or fails, so what it reads is stored first."
    if own:
        return "holding", f"It holds its output back: {one.held_back_by}."
    if one.low_watermark >= END:
        return "ended", "Its event time has ended."
    if not one.records and one.low_watermark <= BEGINNING:
        return "waiting", "No record has come yet."
    return "ok", ""


def furthest(nodes: Sequence[ComputationNode]) -> list[ComputationNode]:
    """Rule 1, in the order of the pipeline."""
    if len(nodes) <= MOST_COMPUTATIONS:
        return list(nodes)
    kept = {one.name for one in sorted(nodes, key=lambda one: (one.hidden, -(one.lag or 0)))[:MOST_COMPUTATIONS]}
    return [one for one in nodes if one.name in kept]


def streams_of(manifest: Manifest, rates: Rates) -> list[StreamEdge]:
    producers = {stream: name for name, state in manifest.computations.items() for stream in state.streams}

    def end_of(stream: str) -> str:
        return f"injector:{stream}" if stream in manifest.injectors else f"computation:{producers.get(stream, stream)}"

    found = []
    for name, state in manifest.computations.items():
        for stream in state.feeds:
            adaptive = manifest.edges.get(edge_name(stream, name))
            kind = STRONG if stream in state.strong else ADAPTIVE if adaptive is not None else WEAK
            is_only = len(state.feeds) == 1
            found.append(
                StreamEdge(
                    stream=stream,
                    source=end_of(stream),
                    target=f"computation:{name}",
                    kind=kind,
                    stored=kind == STRONG or (adaptive is not None and adaptive.stored),
                    why=adaptive.why if adaptive is not None else "",
                    records=state.records if is_only else state.by_stream.get(stream),
                    rate=rates.of(lambda point, key=(name, stream): point.streams.get(key)),  # type: ignore[misc]
                )
            )
    for name, output in manifest.outputs.items():
        rate = rates.of(lambda point, name=name: point.rows.get(name))  # type: ignore[misc]
        found.append(StreamEdge(output.stream, end_of(output.stream), f"sink:{name}", WEAK, False, "", output.rows, rate))
    return found


def kept(streams: Sequence[StreamEdge], hidden: set[str], path: Sequence[str]) -> list[StreamEdge]:
    """The streams between nodes that are shown. Those on the path are marked."""
    gone = {f"computation:{name}" for name in hidden}
    steps = set(zip(path[1:], path, strict=False))
    for edge in streams:
        edge.holds = (edge.source, edge.target) in steps
    return [edge for edge in streams if edge.source not in gone and edge.target not in gone][:MOST_STREAMS]


def path_of(nodes: Sequence[ComputationNode], status: Status, manifest: Manifest | None) -> tuple[list[str], str]:
    """Rule 4. A computation that nobody reads, and that holds back its own output only, is a path by itself."""
    behind = [one for one in nodes if one.lag and not one.ended]
    if not behind or manifest is None:
        return [], ""
    paths = {one.name: one.held_back_by.path for one in status.computations}
    worst = max(behind, key=lambda one: (one.lag or 0, one.inherited_lag or 0, len(paths[one.name])))
    if (worst.own_lag or 0) > (worst.inherited_lag or 0):
        holding = [shard for shard in manifest.computations[worst.name].shards if shard.holder]
        whose = min(holding, key=lambda shard: shard.output).holder if holding else "a timer"
        return [f"computation:{worst.name}"], f"{whose} of computation {worst.name!r}, which holds its output back"
    path = [f"computation:{name}" for name in paths[worst.name]]
    if worst.holder == "injector":
        path.append(f"injector:{worst.holder_name}")
    elif worst.holder in ("state", "timer") and worst.holder_name != paths[worst.name][-1]:
        path.append(f"computation:{worst.holder_name}")
    return path, worst.held_back_by


def sinks_of(manifest: Manifest | None, rates: Rates) -> list[SinkNode]:
    if manifest is None:
        return []
    found = []
    for name, output in manifest.outputs.items():
        waiting = sum(part.rows for part in manifest.waiting[name].parts) if name in manifest.waiting else 0
        rate = rates.of(lambda point, name=name: point.rows.get(name))  # type: ignore[misc]
        found.append(SinkNode(name, output.stream, output.place, output.rows, rate, waiting))
    return found
