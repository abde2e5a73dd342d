"""What an epoch will do, decided before anything is done. Pure: from what the last epoch left, the clock, and what sources said.

Rules
1. A plan says all that the tasks are told and all that the manifest will need: what is read, the time, where every computation stands, which
   adaptive edges store. Whoever plans may be Spark (its log says what a batch reads) or a planner of our own.
2. The wall clock never goes back. An epoch that settles has the time of the last input: nobody was there to listen since. Only the last look at the
   clock, at the end of a bounded run, gives such an epoch a time of its own.
3. An epoch with no record and nothing due has no work: its manifest says that time has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from millstream.core import step
from millstream.core.authority import Edge, Standing, propagate, times
from millstream.core.backfill import BuildOrders, BuildState, begun, orders
from millstream.core.outcome import Times
from millstream.core.topology import ADAPTIVE, EdgeState, Topology
from millstream.core.watermark import Progress, Said, Seen, later
from millstream.errors import HookError, InputError, MillstreamError, SinkError
from millstream.state.manifest import Manifest, SourcePosition, edge_name


class Range(msgspec.Struct, frozen=True):
    """What an epoch reads of one source: from one offset (None: from the beginning, or not known) up to another, as the source writes them."""

    start: str | None
    end: str


class Reading(msgspec.Struct, frozen=True):
    """What an epoch reads. batch: its number in the source's log, None for an epoch outside the query, which reads nothing. planned_at: the wall clock when it
    was planned, where the log says so. ranges: by injector; None where the log cannot be read, so that there may be records. digest: tells one content of a
    batch from another, None where that cannot be told. positions: where planned sources stand behind it; None: Spark's log says what is read. flush: sinks
    that roll publish what waits."""

    batch: int | None = None
    planned_at: int | None = None
    ranges: dict[str, Range] | None = None
    digest: str | None = None
    positions: dict[str, SourcePosition] | None = None
    flush: bool = False

    @property
    def may_have_rows(self) -> bool:
        """False only if nothing came in."""
        return self.batch is not None and (
            self.ranges is None or any(one.start is None or one.start != one.end for one in self.ranges.values())
        )


NOTHING = Reading(ranges={})


class Position(msgspec.Struct):
    """What the last epoch has left, as planning sees it. next_wall: the earliest wall-clock timer; storing: the adaptive edges that store, and why."""

    progress: dict[str, Progress]
    epoch: int = -1
    now: int | None = None
    standings: dict[str, Standing] = {}
    next_wall: dict[str, int] = {}
    storing: dict[Edge, str] = {}
    builds: dict[str, BuildState] = {}

    @classmethod
    def after(cls, manifest: Manifest | None, topology: Topology) -> Position:
        """The position after a committed epoch; at the very beginning, without one."""
        if manifest is None:
            return cls({name: Progress() for name in topology.injectors}, builds=begun(topology.derived, {}, ()))
        edges = {edge: manifest.edges.get(edge_name(*edge), EdgeState()) for edge in adaptive_edges(topology)}
        return cls(
            progress={name: manifest.injectors.get(name, Progress()) for name in topology.injectors},
            epoch=manifest.epoch,
            now=manifest.now,
            standings=standings_of(manifest),
            next_wall={
                name: min(due)
                for name, state in manifest.computations.items()
                if (due := [shard.next_wall for shard in state.shards if shard.next_wall is not None])
            },
            storing={edge: state.why for edge, state in edges.items() if state.stored},
            builds=manifest.builds,
        )


class Plan(msgspec.Struct):
    """One epoch, decided. now: its wall clock; ranges: what it reads; storing: the adaptive edges that store in it, and why."""

    epoch: int
    now: int
    ranges: Reading
    drain: bool
    position: Position
    standings: dict[str, Standing]
    times: dict[str, Times]
    storing: dict[Edge, str]
    said: dict[str, Said]
    due: bool
    told: BuildOrders

    @property
    def has_work(self) -> bool:
        return self.due or self.ranges.may_have_rows

    @property
    def settles(self) -> bool:
        """Whether it runs outside the query, at the end of a bounded run, and event time goes on."""
        return self.ranges.batch is None and not self.drain

    def storing_too(self, topology: Topology, more: Mapping[Edge, str]) -> Plan:
        """This epoch, in which more adaptive edges store."""
        return plan(
            topology, self.position, self.ranges, clock=self.now, drain=self.drain, said=self.said, storing={**self.storing, **more}
        )


def declared(topology: Topology, parts: Callable[[str], tuple[Mapping[str, int], set[str]]]) -> dict[str, Said]:
    """By injector, what its source declares now. parts: the files or partitions of a source, and those that have been read."""
    found: dict[str, Said] = {}
    for name, injector in topology.injectors.items():
        known = parts(name) if injector.watermark.wants_parts else ({}, set[str]())
        try:
            said = injector.watermark.said(*known)
        except MillstreamError:
            raise
        except Exception as error:
            raise InputError(
                f"injected stream {name!r}: the callable that declares its watermark raised {type(error).__name__}: {error}"
            ) from error
        if said is not None and said.__class__ not in (int, tuple):
            raise InputError(f"injected stream {name!r}: its watermark was declared as {said!r}: give milliseconds as an int, or None")
        if said is not None:
            found[name] = said
    return found


def to_store(topology: Topology, error: Exception, storing: Mapping[Edge, str]) -> dict[Edge, str]:
    """The adaptive edges that should store because their consumer failed: it then gets its productions from the log, in an epoch of its own."""
    if isinstance(error, MillstreamError) and not isinstance(error, (HookError, SinkError)):
        return {}
    culprits: Sequence[str] | None = getattr(error, "culprits", None)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return {
        edge: f"its consumer failed: {text[:200]}"
        for edge in adaptive_edges(topology)
        if edge not in storing and (culprits is None or edge[1] in culprits)
    }


def adaptive_edges(topology: Topology) -> list[Edge]:
    return [edge for edge, kind in topology.edges.items() if kind == ADAPTIVE]


def plan(
    topology: Topology,
    position: Position,
    ranges: Reading = NOTHING,
    *,
    clock: int,
    drain: bool = False,
    said: Mapping[str, Said] | None = None,
    listened: bool = True,
    storing: Mapping[Edge, str] | None = None,
) -> Plan:
    """The next epoch. clock: the wall clock, where the reading does not say. said: what sources declare. listened: whether this run was there since the
    last epoch. storing: edges that store besides those that did before."""
    settles = ranges.batch is None and not drain
    now = ranges.planned_at
    if now is None:
        now = position.now if settles and position.now is not None else clock
    if position.now is not None:
        now = max(now, position.now)
        if not listened:
            silent = now - position.now
            position = msgspec.structs.replace(position, progress={name: later(one, silent) for name, one in position.progress.items()})
    stores = {**position.storing, **(storing or {})}
    standings = propagate(topology, position.progress, position.standings, stores, drain)
    told = orders(topology.derived, position.builds)
    each = {
        name: one
        if name not in told.builds and name not in told.scans
        else msgspec.structs.replace(one, scans=told.scans.get(name, {}), builds=told.builds.get(name, {}))
        for name, one in times(topology, standings, position.standings, now, position.epoch + 1).items()
    }
    return Plan(
        epoch=position.epoch + 1,
        now=now,
        ranges=ranges,
        drain=drain,
        position=position,
        standings=standings,
        times=each,
        storing=stores,
        said=dict(said or {}),
        due=_is_due(position, each, now),
        told=told,
    )


def unsettled(topology: Topology, position: Position, clock: int | None = None, said: Mapping[str, Said] | None = None) -> bool:
    """Whether an idle epoch would do anything: something is due, or time has still to reach an injector or a computation. clock: at that time, if it is
    later than the last epoch's. said: what sources declare."""
    assert position.now is not None
    now = position.now if clock is None else max(clock, position.now)
    ranges = NOTHING if clock is None else Reading(batch=position.epoch + 1, ranges={})
    idle = plan(topology, position, ranges, clock=now)
    if idle.due or any(standing.low != position.standings.get(name, Standing()).low for name, standing in idle.standings.items()):
        return True
    for (
        name,
        injector,
    ) in topology.injectors.items():  # its watermark moves, it has become idle, or its source has declared what counts an epoch later
        before = position.progress[name]
        after = injector.watermark.advance(before, Seen(), now, (said or {}).get(name))
        if (after.watermark, after.idle, after.said) != (before.watermark, before.idle, before.said):
            return True
    return False


def _is_due(position: Position, told: Mapping[str, Times], now: int) -> bool:
    if any(state.is_filling for state in position.builds.values()):
        return True
    return any(
        standing.pending is not None or (name in told and standing.next_low is not None and standing.next_low <= told[name].low_watermark)
        for name, standing in position.standings.items()
    ) or any(name in told and time <= now for name, time in position.next_wall.items())


def standings_of(manifest: Manifest) -> dict[str, Standing]:
    """Where every computation stands after a committed epoch."""
    return {
        name: Standing(
            low=state.low_watermark,
            output=state.output,
            held=min((shard.held for shard in state.shards if shard.held is not None), default=None),
            next_low=min((shard.next_low for shard in state.shards if shard.next_low is not None), default=None),
            pending=min((stored_ref.oldest for stored_ref in manifest.pending if stored_ref.computation == name), default=None),
            crowded=any(shard.timers > step.MAX_DUE for shard in state.shards),
        )
        for name, state in manifest.computations.items()
    }
