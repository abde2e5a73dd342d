"""What driver and tasks tell each other about an epoch. Plain data, the same for every way of running tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.dedup import DedupCounts
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.outcome import Counts, Times
from millstream.core.watermark import Seen
from millstream.state.manifest import Manifest, Parcel
from millstream.state.segment import SegmentRef


class EpochOrder(msgspec.Struct):
    """What the driver tells the tasks of one epoch. stored: the adaptive edges (stream, consumer) that store in it."""

    epoch: int
    token: str
    before: Manifest | None
    times: dict[str, Times]
    stored: list[tuple[str, str]]
    driver: int
    crash: str
    guards: Guards = ALL_GUARDS


class Delta(msgspec.Struct):
    """What became of one computation in one task."""

    segment: SegmentRef | None
    counts: Counts
    produced: int
    dedup: DedupCounts = msgspec.field(default_factory=DedupCounts)
    millis: float = 0.0


class Receipt(msgspec.Struct):
    """What a task did, for the driver. `unit` is a digest of content: equal for attempts that did the same."""

    level: int
    group: int
    shard: int
    unit: int = 0
    consumed: list[int] = []
    deltas: dict[str, Delta] = {}
    parts: dict[str, dict[str, Any]] = {}
    parcels: list[Parcel] = []
    seen: dict[str, Seen] = {}
    failure: str | None = None
    message: str = ""


encode_receipt = msgspec.msgpack.Encoder().encode
decode_receipt = msgspec.msgpack.Decoder(Receipt).decode
