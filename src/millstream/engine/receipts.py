"""What driver and tasks tell each other about an epoch. Plain data, the same for every way of running tasks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import astuple

from millstream.core.dedup import DedupCounts
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.outcome import Counts, Times
from millstream.core.topology import Topology
from millstream.core.watermark import Seen
from millstream.errors import BY_NAME, EpochAbandoned, MillstreamError
from millstream.state.heartbeat import StateCacheStats
from millstream.state.manifest import Manifest, Part, ProductionsRef
from millstream.state.segment import SegmentRef


class EpochOrder(msgspec.Struct):
    """What the driver tells the tasks of one epoch. now: its wall clock. stored: the adaptive edges (stream, consumer) that store in it. tries: how often this
    run has told it to resident tasks before; of two tasks that are at the same work, the one that was told later is right."""

    epoch: int
    now: int
    token: str
    before: Manifest | None
    times: dict[str, Times]
    stored: list[tuple[str, str]]
    driver: int
    crash: str
    guards: Guards = ALL_GUARDS
    tries: int = 0


class Work(msgspec.Struct):
    """What became of one computation in one task."""

    segment: SegmentRef | None
    counts: Counts
    produced: int
    dedup: DedupCounts = msgspec.field(default_factory=DedupCounts)
    millis: float = 0.0
    by_stream: dict[str, int] = {}  # records, of a computation with several inputs


class Receipt(msgspec.Struct):
    """What a task did, for the driver. `unit` is a digest of content: equal for attempts that did the same. staging: how long it took to stage (ms)."""

    level: int
    group: int
    shard: int
    unit: int = 0
    consumed: list[int] = []
    work: dict[str, Work] = {}
    parts: dict[str, Part] = {}
    stored_refs: list[ProductionsRef] = []
    seen: dict[str, Seen] = {}
    state_caches: dict[str, StateCacheStats] = {}
    failure: str | None = None
    message: str = ""
    staging: float = 0.0


encode_receipt = msgspec.msgpack.Encoder().encode
decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


def checked(receipts: list[Receipt], topology: Topology, shards: int, fed: bool) -> list[Receipt]:
    """The receipts of an epoch, if they fit: every shard of every group once, and (`fed`) every consumer fed by the attempts that are here. Raises what
    a task failed with."""
    for receipt in receipts:
        if receipt.failure:
            error = BY_NAME.get(receipt.failure, MillstreamError)(receipt.message)
            error.culprits = topology.levels[receipt.level][receipt.group].computations
            raise error
    expected = {(level, group.index, shard) for level, groups in enumerate(topology.levels) for group in groups for shard in range(shards)}
    got = [(r.level, r.group, r.shard) for r in receipts]
    if len(got) != len(expected) or set(got) != expected:
        raise EpochAbandoned(
            f"receipts do not cover every shard once: {sorted(set(expected) ^ set(got))} missing or unknown, {len(got)} in all."
        )
    units = {r.unit for r in receipts}
    for receipt in receipts:
        if fed and not units.issuperset(receipt.consumed):
            names = ", ".join(topology.levels[receipt.level][receipt.group].computations)
            raise EpochAbandoned(f"shard {receipt.shard} of {names} consumed productions of an attempt that is not the one staged.")
    return receipts


def total_stats(caches: Mapping[tuple[str, int], StateCacheStats]) -> dict[str, StateCacheStats]:
    """The sums by computation of what is known by computation and shard."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for (name, _), one in caches.items():
        found.setdefault(name, []).append(astuple(one))
    return {name: StateCacheStats(*map(sum, zip(*some, strict=True))) for name, some in found.items()}
