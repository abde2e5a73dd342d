"""The last minutes of a pipeline: what the charts of the page are drawn from, and what speeds are told from.

Rules
1. Bounded: by `LASTS` and `MOST_POINTS` for points in time, by `MOST_BARS` for bars. A point grows with computations, never with shards or keys.
2. Counts in a manifest are sums since the beginning, so a speed is a difference between two points; whoever looks may come and go.
3. Epochs of one second become one bar, with the mean of their phases. A bar says how many there were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from millstream.core.time import BEGINNING, END
from millstream.engine.metrics import EpochStats
from millstream.state.manifest import Manifest

LASTS = 600_000  # milliseconds
SPEED = 10_000  # milliseconds over which speeds are told
MOST_POINTS = 600
MOST_BARS = 240


class Point(msgspec.Struct):
    """A moment. So far: records by injector; by computation its records, productions, late records and dead letters; records by consumer and stream; rows by
    sink. lows: by computation."""

    at: int
    epoch: int
    run: str
    records: dict[str, int]
    counts: dict[str, tuple[int, int, int, int]]
    streams: dict[tuple[str, str], int]
    rows: dict[str, int]
    lows: dict[str, int]
    newest: int | None


class Bar(msgspec.Struct):
    """The epochs that were committed within a second: the first and last of them, the mean milliseconds of a phase. tries: how often one was begun again.
    is_new_run: another driver has committed the first of them."""

    at: int
    first: int
    last: int
    epochs: int
    records: int
    millis: float
    phases: dict[str, float]
    tries: int = 0
    is_new_run: bool = False


class RecentHistory:
    """Points and bars of one pipeline."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.points: deque[Point] = deque(maxlen=MOST_POINTS)
        self._bars: deque[Bar] = deque(maxlen=MOST_BARS)
        self._epoch = -1  # the last that has a bar
        self._run = ""

    def add(self, manifest: Manifest, epochs: Iterable[EpochStats] = ()) -> None:
        """Adds the newest manifest, and what is known of the epochs up to it; those that were added before are passed over."""
        at = manifest.now if manifest.committed_at is None else manifest.committed_at
        if self.points and self.points[-1].epoch > manifest.epoch:  # another checkpoint in the place of the one that was there
            self._begin()
        if not self.points or self.points[-1].epoch < manifest.epoch:
            self.points.append(_point(manifest, at))
            while self.points[0].at < at - LASTS:
                self.points.popleft()
        for one in epochs:
            if one.epoch > self._epoch:
                self._epoch = one.epoch
                self._add_epoch(one, manifest.token_at(one.epoch) or "")

    def _add_epoch(self, one: EpochStats, run: str) -> None:
        last = self._bars[-1] if self._bars else None
        is_new_run = bool(self._run) and run != self._run
        self._run = run or self._run
        if last is None or one.at // 1000 != last.at // 1000 or is_new_run:
            phases = dict(one.phases)
            self._bars.append(Bar(one.at, one.epoch, one.epoch, 1, one.records, one.millis, phases, one.tries, is_new_run))
            return
        n = last.epochs
        for name in {*last.phases, *one.phases}:
            last.phases[name] = (last.phases.get(name, 0.0) * n + one.phases.get(name, 0.0)) / (n + 1)
        last.last, last.epochs, last.records, last.tries = one.epoch, n + 1, last.records + one.records, last.tries + one.tries
        last.millis = (last.millis * n + one.millis) / (n + 1)

    def add_between(self, before: Manifest, after: Manifest) -> None:
        """Adds a bar for the epochs between two manifests, for whoever has nothing but a checkpoint."""
        epochs = after.epoch - before.epoch
        phases = {name: max(0.0, (millis - before.spent.get(name, 0.0)) / epochs) for name, millis in after.spent.items()}
        records = sum(one.records for one in after.injectors.values()) - sum(one.records for one in before.injectors.values())
        at = after.now if after.committed_at is None else after.committed_at
        self._bars.append(
            Bar(at, before.epoch + 1, after.epoch, epochs, records, sum(phases.values()), phases, 0, before.token != after.token)
        )

    @property
    def bars(self) -> Sequence[Bar]:
        return list(self._bars)

    def since(self, millis: int) -> Point | None:
        """The point that speeds are told from: the newest that is at least so old, or else the oldest; None while there is only one."""
        points = list(self.points)
        if len(points) < 2:
            return None
        at = bisect_left(points, points[-1].at - millis, key=lambda point: point.at)
        return points[min(at, len(points) - 2)]


def _point(manifest: Manifest, at: int) -> Point:
    return Point(
        at=at,
        epoch=manifest.epoch,
        run=manifest.token,
        records={name: one.records for name, one in manifest.injectors.items()},
        counts={name: (c.records, c.produced, c.late, c.dead) for name, c in manifest.computations.items()},
        streams={
            (name, stream): c.records if len(c.feeds) == 1 else c.by_stream.get(stream, 0)
            for name, c in manifest.computations.items()
            for stream in c.feeds
        },
        rows={name: one.rows for name, one in manifest.outputs.items()},
        lows={name: c.low_watermark for name, c in manifest.computations.items()},
        newest=max((one.newest for one in manifest.injectors.values() if one.newest is not None), default=None),
    )


def moment(time: int | None) -> int | None:
    """A time that a chart can draw: neither end of time."""
    return None if time is None or not BEGINNING < time < END else time
