"""The status of a pipeline: data worked out from its latest manifest and, while it runs, from its last epochs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.core.time import BEGINNING, END
from millstream.state.manifest import Manifest


class ComputationStatus(msgspec.Struct):
    """One computation: lag is its low watermark's distance to the newest timestamp injected, in milliseconds."""

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


class InjectorStatus(msgspec.Struct):
    """One injector."""

    name: str
    records: int
    newest: int | None
    watermark: int


class Status(msgspec.Struct):
    """A pipeline at a glance. Speeds are over the last epochs that had records."""

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


def status_of(pipeline: str, manifest: Manifest | None, epochs: Sequence[tuple[int, int, float]] = ()) -> Status:
    """The status as of a manifest; `epochs` are (epoch, records, milliseconds)."""
    if manifest is None:
        return Status(pipeline, "new", -1, False, None, 0, 0.0, 0.0, [], [])
    recent = list(epochs)[-10:]
    busy = [e for e in recent if e[1]] or recent
    millis = sum(e[2] for e in busy)
    newest = max((i.newest for i in manifest.injectors.values() if i.newest is not None), default=None)
    return Status(
        pipeline=pipeline,
        state="stopped",
        epoch=manifest.epoch,
        drained=manifest.drained,
        committed_at=manifest.now,
        records=sum(i.records for i in manifest.injectors.values()),
        records_per_second=sum(e[1] for e in busy) / millis * 1000 if millis else 0.0,
        epoch_millis=millis / len(busy) if busy else 0.0,
        injectors=[InjectorStatus(name, i.records, i.newest, i.watermark) for name, i in manifest.injectors.items()],
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
            )
            for name, c in manifest.computations.items()
        ],
    )

