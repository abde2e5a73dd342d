"""What a manifest says after an epoch, worked out from the one before and the receipts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from millstream.core import adaptive
from millstream.core.adaptive import EdgeState
from millstream.core.authority import Edge, Standing
from millstream.core.step import LAST_LATE
from millstream.core.time import END
from millstream.core.topology import ComputationSpec, Topology
from millstream.engine.program import Program
from millstream.engine.receipts import Delta, Receipt
from millstream.state.manifest import ComputationState, Manifest, ShardState, edge_name
from millstream.state.segment import SegmentRef


def edges_after(
    topology: Topology, edges: Sequence[Edge], before: Manifest | None, receipts: Sequence[Receipt], stored: Mapping[Edge, str]
) -> dict[str, EdgeState]:
    """What each adaptive edge does in the next epoch. stored: those that stored in this one, and why."""
    found = {}
    for edge in edges:
        stream, consumer = edge
        deltas = [r.deltas[consumer] for r in receipts if consumer in r.deltas]
        busy = any(delta.counts.records for delta in deltas)
        millis = max(delta.millis for delta in deltas) if busy else None
        old = before.edges.get(edge_name(*edge), EdgeState()) if before else EdgeState()
        found[edge_name(*edge)] = adaptive.decide(old, edge in stored, stored.get(edge, ""), millis, topology.slow_after(stream, consumer))
    return found


def computation_after(
    program: Program,
    spec: ComputationSpec,
    before: Manifest | None,
    epoch: int,
    token: str,
    standing: Standing,
    receipts: Sequence[Receipt],
    shards: int,
    folded: Callable[[str, int, list[SegmentRef]], list[SegmentRef]],
) -> ComputationState:
    """One computation. folded: the chain of a shard, with a fold that has ended put in its place."""
    name = spec.name
    old = before.computations.get(name) if before else None
    old = old or ComputationState(shards=[ShardState() for _ in range(shards)])
    new = ComputationState(
        standing.low,
        [],
        program.codec_of(name).name,
        [i.stream for i in spec.inputs],
        old.records,
        old.late,
        old.fired,
        old.produced,
        old.lineage or f"{epoch}-{token}-{name}",
        list(spec.streams),
        standing.output,
        dict(old.late_by),
        old.last_late,
        old.dead,
        msgspec.structs.replace(old.dedup),
    )
    mine = {r.shard: r.deltas[name] for r in receipts if name in r.deltas}
    for shard, state in enumerate(old.shards):
        after = msgspec.structs.replace(state, segments=folded(name, shard, state.segments), low_watermark=standing.low)
        delta = mine.get(shard)
        if delta is not None:
            _add(new, after, delta)
        overdue = after.next_low if after.next_low is not None and after.next_low <= standing.low else END
        after.output = max(standing.output, min(standing.low, END if after.held is None else after.held, overdue))
        new.shards.append(after)
    return new


def _add(total: ComputationState, shard: ShardState, delta: Delta) -> None:
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
    total.last_late = [*total.last_late, *counts.last_late][-LAST_LATE:]
    total.dedup.add(delta.dedup)


def outside(before: Manifest | None) -> int:
    """How many epochs so far were outside the query. Drains of version 0.1 did not count themselves."""
    if before is None:
        return 0
    return before.epoch - before.ended + 1 if before.ended is not None and not before.outside and before.drain else before.outside
