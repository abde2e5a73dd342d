"""Zeitgeist, the pipeline: queries → counts per term and second → anomalies, and forecasts of the terms that are tracked.

Rules
1. A second of a term is counted when the low watermark passes its end, so no query that keeps the watermark's bound is missing.
2. A second without a query counts as zero while the term is alive, which it is for `PATIENCE` after its last query. The timers of
   a silent term thus come to an end, and its row in the counter goes.
3. When the input ends, nobody knows what would have followed, so no zeros are counted: the end of the world is not a dip.
4. The detector has the counter's key, so a count is handed over inside the task.
5. A term that was not heard of for `FORGET` is forgotten, and with it an anomaly that had no end.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

import millstream as ms
from millstream.demo import BUCKET, DAY
from millstream.demo.model import Forecast, Model, Verdict

SCHEMA = "term string, at long, id string"
PATIENCE = 15_000
FORGET = 10 * DAY


class Counting(msgspec.Struct):
    """The open seconds of a term by their beginning, and the beginning of the last second that had a query."""

    open: dict[int, int] = {}
    last: int = 0


class BucketCounter(ms.Computation):
    """Counts the queries of a term in every second; produces (count, beginning of the second) at the second's end."""

    State = Counting
    state: Counting

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % BUCKET
        state = self.state
        if second in state.open:
            state.open[second] += 1
        else:
            state.open[second] = 1
            state.last = max(state.last, second)
            self.set_timer("second", second + BUCKET)

    def process_timer(self, timer: ms.Timer) -> None:
        state = self.state
        second = timer.time - BUCKET
        self.produce((state.open.pop(second, 0), second))
        if second < state.last + PATIENCE and self.low_watermark < ms.END:
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

    def __init__(self, tracked: Collection[str] = ()) -> None:
        self.tracked = frozenset(tracked)

    def process_record(self, record: ms.Record) -> None:
        count, second = record.value
        bucket = second // BUCKET
        if not self.state.next:
            self.set_timer("forget", record.timestamp + FORGET)
        for skipped in range(self.state.next or bucket, bucket):
            self._observe(skipped, 0)
        self._observe(bucket, count)

    def process_timer(self, timer: ms.Timer) -> None:
        due = self.state.next * BUCKET + FORGET
        if self.low_watermark == ms.END:
            return
        if timer.time < due:
            self.set_timer("forget", due)
        else:
            self.state = Model()

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
    max_files_per_epoch: int | None = 3,
) -> ms.Pipeline:
    """The pipeline from a directory of queries to `anomalies/` and `forecasts/` under the output directory."""
    pipeline = ms.Pipeline("zeitgeist")
    arriving = pipeline.inject(
        "queries",
        ms.sources.files(queries, schema=SCHEMA, format="parquet", max_files_per_epoch=max_files_per_epoch),
        timestamp="at",
        id="id",
        watermark=ms.watermarks.bounded("2s"),
    )
    counts = pipeline.compute(BucketCounter, arriving, key="term", produces="counts")
    anomalies, forecasts = pipeline.compute(
        partial(SpikeDetector, tracked=tuple(tracked)), counts, name="SpikeDetector", produces=["anomalies", "forecasts"]
    )
    pipeline.emit(anomalies, ms.sinks.files(os.path.join(output, "anomalies")))
    pipeline.emit(forecasts, ms.sinks.files(os.path.join(output, "forecasts")))
    return pipeline
