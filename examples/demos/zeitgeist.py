"""Zeitgeist, the pipeline: queries → counts per term and second → anomalies, and forecasts of the terms that are tracked.

Rules
1. A second of a term is counted when the low watermark passes its end, so no query that keeps the watermark's bound is missing.
2. A second without a query counts as zero while the term is alive, which it is for `PATIENCE` after its last query before that
   second. The timers of a silent term thus come to an end, and its row in the counter goes.
3. Nobody knows what would have followed the end of the traffic. Who knows when that is, says so (`until`), and from there on no zeros
   are counted and nothing is forgotten: the end of the world is not a dip.
4. The detector has the counter's key, so a count is handed over inside the task.
5. A term that was not heard of for `FORGET` is forgotten, and with it an anomaly that had no end.
6. How the queries fall into epochs changes nothing. A query may be here long before the timers that lie before it have fired, so a
   timer goes by what other timers have told, never by the newest query; and a count that comes after `FORGET` finds a fresh model,
   whether the timer has fired or not.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

import millstream as ms
from demos import BUCKET, DAY
from demos.model import Forecast, Model, Verdict

SCHEMA = "term string, at long, id string"
STREAMS = ("anomalies", "forecasts")
PATIENCE = 15_000
FORGET = 10 * DAY


class Counting(msgspec.Struct):
    """The open seconds of a term by their beginning, and the beginning of the last second that was told and had a query."""

    open: dict[int, int] = {}
    last: int = 0


class BucketCounter(ms.Computation):
    """Counts the queries of a term in every second; produces (count, beginning of the second) at the second's end."""

    State = Counting
    state: Counting

    def __init__(self, until: int = ms.END) -> None:
        self.until = until

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % BUCKET
        state = self.state
        if second in state.open:
            state.open[second] += 1
        else:
            state.open[second] = 1
            self.set_timer("second", second + BUCKET)

    def process_timer(self, timer: ms.Timer) -> None:
        state = self.state
        second = timer.time - BUCKET
        count = state.open.pop(second, 0)
        self.produce((count, second))
        if count:
            state.last = second
        if second < state.last + PATIENCE and timer.time < self.until:
            self.set_timer("second", timer.time + BUCKET)
        else:
            state.last = 0


class SpikeDetector(ms.Computation):
    """Holds every count against the term's model.

    Produces on `anomalies` the begin and the end of each anomaly, and on `forecasts` every bucket of the tracked terms, with the
    forecast that it was judged by (none in a term's first day).
    """

    State = Model
    state: Model

    def __init__(self, tracked: Collection[str] = (), until: int = ms.END) -> None:
        self.tracked = frozenset(tracked)
        self.until = until

    def process_record(self, record: ms.Record) -> None:
        count, second = record.value
        bucket = second // BUCKET
        if self.state.next and record.timestamp >= self._forgotten_at():
            self.state = Model()
        if not self.state.next:
            self.set_timer("forget", record.timestamp + FORGET)
        for skipped in range(self.state.next or bucket, bucket):
            self._observe(skipped, 0)
        self._observe(bucket, count)

    def process_timer(self, timer: ms.Timer) -> None:
        if timer.time >= self.until:
            return
        if timer.time < self._forgotten_at():
            self.set_timer("forget", self._forgotten_at())
        else:
            self.state = Model()

    def _forgotten_at(self) -> int:
        """When the term is forgotten, if it is not heard of before."""
        return self.state.next * BUCKET + FORGET

    def _observe(self, bucket: int, count: int) -> None:
        model = self.state
        forecast = model.forecast(bucket)
        verdict = model.observe(bucket, count, forecast)
        if verdict is not None:
            self.produce(_anomaly(self.key, bucket, verdict), stream="anomalies")
        if self.key in self.tracked:
            self.produce(_prediction(bucket, count, forecast if model.judges(bucket) else None), stream="forecasts")


def _anomaly(term: str, bucket: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "term": term,
        "kind": verdict.kind,
        "event": verdict.event,
        "at": (bucket + 1) * BUCKET,
        "since": verdict.since * BUCKET,
        "expected": verdict.expected,
        "actual": verdict.actual,
    }


def _prediction(bucket: int, count: int, forecast: Forecast | None) -> dict[str, Any]:
    row: dict[str, Any] = {"at": bucket * BUCKET, "actual": count}
    if forecast is not None:
        row |= {"expected": round(forecast.mean, 3), "doubt": round(forecast.doubt, 3)}
    return row


def build(
    queries: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    tracked: Collection[str] = (),
    until: int = ms.END,
    max_files_per_epoch: int | None = 3,
) -> ms.Pipeline:
    """The pipeline from a directory of queries to `anomalies/` and `forecasts/` under the output directory.

    tracked: the terms whose forecasts are produced. until: when the traffic ends, if that is known.
    """
    pipeline = ms.Pipeline("zeitgeist")
    arriving = pipeline.inject(
        "queries",
        ms.sources.files(queries, schema=SCHEMA, format="parquet", max_files_per_epoch=max_files_per_epoch),
        timestamp="at",
        id="id",
        watermark=ms.watermarks.bounded("2s"),
    )
    counts = pipeline.compute(partial(BucketCounter, until), arriving, key="term", name="BucketCounter", produces="counts")
    detector = partial(SpikeDetector, tracked=tuple(tracked), until=until)
    anomalies, forecasts = pipeline.compute(detector, counts, name="SpikeDetector", produces=["anomalies", "forecasts"])
    pipeline.emit(anomalies, ms.sinks.files(os.path.join(output, "anomalies"), roll=0))
    pipeline.emit(forecasts, ms.sinks.files(os.path.join(output, "forecasts"), roll=0))
    return pipeline
