"""What a manifest says after an epoch: from the plan, the receipts of its tasks, and the compactions that have ended. Pure.

Rules
1. The manifest before is not changed: what goes on is copied.
2. A computation without a receipt stays as it was; only time has passed for it.
3. A compaction that has ended is put in the place of what it compacted, if all of that is still in the chain.
4. A drain is over when nothing waits any more, and no computation is being filled anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.core.backfill import BuildState, builds_after, scanned_by
from millstream.core.outcome import LAST_DEAD
from millstream.core.step import LAST_LATE
from millstream.core.time import END
from millstream.core.topology import STRONG, ComputationSpec, EdgeState, Topology, edge_after
from millstream.core.watermark import Progress, Seen, effective
from millstream.engine.compaction_orders import CompactionOrder
from millstream.engine.plan import Plan, adaptive_edges
from millstream.engine.program import Program
from millstream.engine.receipts import Receipt, Work
from millstream.state.compaction import adopt
from millstream.state.manifest import ComputationState, Manifest, OutputState, Part, ShardState, WaitingParts, edge_name

MOST_WAITING = 512  # parts of a sink that rolls: they stand in every manifest until they are published
KEPT_RUNS = 64  # a state cache that was last brought up to date by an older run loads anew


def manifest_after(
    program: Program,
    plan: Plan,
    before: Manifest | None,
    receipts: Sequence[Receipt],
    token: str,
    shards: int,
    compacted: Mapping[tuple[str, int], CompactionOrder],
    refused: int = 0,
) -> Manifest:
    """The manifest that commits an epoch. refused: writes of replaced runs that were found since the last one."""
    topology = program.topology
    computations = {
        spec.name: _computation(program, spec, plan, before, receipts, token, shards, compacted) for spec in topology.computations
    }
    sinks, waiting = _sinks(topology, plan, before, receipts)
    pending = [stored_ref for receipt in receipts for stored_ref in receipt.stored_refs]
    builds = _builds(plan, receipts)
    waits = bool(pending) or any(build.is_filling for build in builds.values())
    over = not waits and all(c.low_watermark == END and shard.next_low is None for c in computations.values() for shard in c.shards)
    batch = plan.ranges.batch
    return Manifest(
        epoch=plan.epoch,
        token=token,
        now=plan.now,
        runs=_runs(before, plan.epoch, token),
        injectors=injectors_after(topology, plan, _seen(receipts)),
        computations=computations,
        sinks=sinks,
        drain=plan.drain,
        drained=over and (plan.drain or (before is not None and before.drained)),
        ended=before.ended if before is not None and before.ended is not None else plan.epoch if plan.drain else None,
        offsets=plan.ranges.digest,
        pending=pending,
        edges=_edges(topology, plan, before, receipts),
        refused=(before.refused if before is not None else 0) + refused,
        outside=(before.outside if before is not None else 0) + 1 if batch is None else plan.epoch - batch,
        settle=plan.settles,
        builds=builds,
        sources=dict(before.sources if before is not None else {}) if plan.ranges.positions is None else dict(plan.ranges.positions),
        waiting=waiting,
        outputs=_outputs(topology, before, sinks),
        written=(before.written if before is not None else 0) + sum(map(_written, receipts)),
    )


def _written(receipt: Receipt) -> int:
    deltas = sum(work.segment.length for work in receipt.work.values() if work.segment is not None)
    return deltas + sum(length for ref in receipt.stored_refs for _, length, _ in ref.slices.values())


def _outputs(topology: Topology, before: Manifest | None, sinks: Mapping[str, Sequence[Part]]) -> dict[str, OutputState]:
    found = {}
    for emission in topology.emissions:
        known = before.outputs.get(emission.name) if before is not None else None
        rows = (known.rows if known is not None else 0) + sum(part.rows for part in sinks.get(emission.name, ()))
        found[emission.name] = OutputState(emission.stream, emission.sink.place(), rows, emission.sink.file_format)
    return found


def _sinks(
    topology: Topology, plan: Plan, before: Manifest | None, receipts: Sequence[Receipt]
) -> tuple[dict[str, list[Part]], dict[str, WaitingParts]]:
    """What sinks have to publish, and what waits. A sink that rolls publishes when the oldest of its parts has waited long enough, and at any end."""
    sinks: dict[str, list[Part]] = {}
    for receipt in receipts:
        for name, part in receipt.parts.items():
            sinks.setdefault(name, []).append(part)
    waiting: dict[str, WaitingParts] = {}
    rolls = {emission.name: emission.sink.roll_millis for emission in topology.emissions if emission.sink.roll_millis}
    known = before.waiting if before is not None else {}
    for name in dict.fromkeys([*known, *rolls]):
        old = known.get(name, WaitingParts(plan.now, []))
        parts = [*old.parts, *sinks.pop(name, ())]
        young = plan.now - old.since < rolls.get(name, 0) and len(parts) < MOST_WAITING
        if parts and young and plan.ranges.batch is not None and not plan.ranges.flush:
            waiting[name] = WaitingParts(old.since, parts)
        elif parts:
            sinks[name] = parts
    return sinks, waiting


def _builds(plan: Plan, receipts: Sequence[Receipt]) -> dict[str, BuildState]:
    if not receipts or not plan.told.scans:
        return plan.position.builds
    works = [work for receipt in receipts for work in receipt.work.values() if work.counts.scanned]
    return builds_after(
        plan.position.builds, plan.told, scanned_by([work.counts for work in works]), max((w.millis for w in works), default=0.0)
    )


def injectors_after(topology: Topology, plan: Plan, seen: Mapping[str, Seen]) -> dict[str, Progress]:
    """What is known of every injector after an epoch. seen: what its tasks saw."""
    progress = plan.position.progress
    used = effective(progress, plan.drain)
    found = {}
    for name, injector in topology.injectors.items():
        after = injector.watermark.advance(progress[name], seen.get(name) or Seen(), plan.now, plan.said.get(name))
        after.used = used[name]
        if plan.drain:
            after.watermark = END
        found[name] = after
    return found


def _runs(before: Manifest | None, epoch: int, token: str) -> list[tuple[int, str]]:
    runs = list(before.runs) if before is not None else []
    if not runs or runs[-1][1] != token:
        runs.append((epoch, token))
    return runs[-KEPT_RUNS:]


def _seen(receipts: Sequence[Receipt]) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for receipt in receipts:
        for name, seen in receipt.seen.items():
            found.setdefault(name, Seen()).add(seen)
    return found


def _edges(topology: Topology, plan: Plan, before: Manifest | None, receipts: Sequence[Receipt]) -> dict[str, EdgeState]:
    """What each adaptive edge does in the next epoch."""
    found = {}
    for edge in adaptive_edges(topology):
        work = [r.work[edge[1]] for r in receipts if edge[1] in r.work]
        millis = max(delta.millis for delta in work) if any(delta.counts.records for delta in work) else None
        old = before.edges.get(edge_name(*edge), EdgeState()) if before is not None else EdgeState()
        found[edge_name(*edge)] = edge_after(old, edge in plan.storing, plan.storing.get(edge, ""), millis, topology.slow_after(*edge))
    return found


def _computation(
    program: Program,
    spec: ComputationSpec,
    plan: Plan,
    before: Manifest | None,
    receipts: Sequence[Receipt],
    token: str,
    shards: int,
    compacted: Mapping[tuple[str, int], CompactionOrder],
) -> ComputationState:
    name, standing = spec.name, plan.standings[spec.name]
    old = before.computations.get(name) if before is not None else None
    old = old or ComputationState(shards=[ShardState() for _ in range(shards)])
    new = msgspec.structs.replace(
        old,
        low_watermark=standing.low,
        output=standing.output,
        shards=[],
        codec=program.codec_of(name).name,
        feeds=[i.stream for i in spec.inputs],
        streams=list(spec.streams),
        lineage=old.lineage or f"{plan.epoch}-{token}-{name}",
        late_by=dict(old.late_by),
        tallies=dict(old.tallies),
        dedup=msgspec.structs.replace(old.dedup),
        hidden=spec.hidden,
        kind=spec.kind,
        relation=spec.relation,
        window=spec.window,
        about=dict(spec.about),
        strong=[i.stream for i in spec.inputs if program.topology.edges[i.stream, name] == STRONG],
        by_stream=dict(old.by_stream),
    )
    mine = {r.shard: r.work[name] for r in receipts if name in r.work}
    for shard, state in enumerate(old.shards):
        compact = compacted.get((name, shard))
        chain = state.segments if compact is None else adopt(state.segments, compact.chosen, compact.made)
        after = msgspec.structs.replace(state, segments=chain, low_watermark=standing.low)
        delta = mine.get(shard)
        if delta is not None:
            _add(new, after, delta)
        overdue = after.next_low - 1 if after.next_low is not None and after.next_low <= standing.low else END
        after.output = max(standing.output, min(standing.low, END if after.held is None else after.held, overdue))
        new.shards.append(after)
    return new


def _add(total: ComputationState, shard: ShardState, delta: Work) -> None:
    counts = delta.counts
    if delta.segment is not None:
        shard.segments = [*shard.segments, delta.segment]
    shard.keys += counts.keys
    shard.timers += counts.timers
    shard.next_low, shard.next_wall = counts.next_low, counts.next_wall
    shard.held, shard.holder = counts.held, counts.holder
    shard.ids += delta.dedup.held
    total.records += counts.records
    total.late += counts.late
    total.fired += counts.fired
    total.produced += delta.produced
    total.dead += counts.dead
    for stream, late in counts.late_by.items():
        total.late_by[stream] = total.late_by.get(stream, 0) + late
    for sums, some in ((total.tallies, counts.tallies), (total.by_stream, delta.by_stream)):
        for name, n in some.items():
            sums[name] = sums.get(name, 0) + n
    total.last_dead = [*total.last_dead, *counts.last_dead][-LAST_DEAD:]
    total.last_late = [*total.last_late, *counts.last_late][-LAST_LATE:]
    total.dedup.add(delta.dedup)


def idle_after(before: Manifest, token: str) -> Manifest:
    """The manifest of an epoch in which nothing happens, outside the query: all is as it was, and belongs to this run."""
    return msgspec.structs.replace(
        before,
        epoch=before.epoch + 1,
        token=token,
        runs=_runs(before, before.epoch + 1, token),
        sinks={},
        offsets=None,
        outside=before.outside + 1,
    )
