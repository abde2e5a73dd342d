"""Zeitgeist, the pipeline: queries → counts per term and second → anomalies, and forecasts of the terms that are tracked.

Rules
1. A second of a term is counted when the low watermark passes its end, so no query that keeps the watermark's bound is missing.
2. A second without a query has no count. It is a zero to the detector, which looks for the next count a second later, for `PATIENCE` after the last one.
3. Nobody knows what would have followed the end of the traffic. Who knows when that is, says so (`until`), and from there on there are no zeros: the end of
   the world is not a dip.
4. The detector has the key of the counts, so a count is handed over inside the task.
5. A term that was not heard of for `FORGET` is forgotten, and with it an anomaly that had no end.
6. How the queries fall into epochs changes nothing: a timer goes by what was counted before it, and it fires between the counts before it and those behind it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any

import millstream as ms
from demos import BUCKET, DAY
from demos.model import Forecast, Model, Verdict

SCHEMA = "term string, at long, id string"
STREAMS = ("anomalies", "forecasts")
PATIENCE = 15_000
FORGET = 10 * DAY


class Watched(Model):
    """A term's model, and the last bucket that had a query."""

    heard: int = 0


class SpikeDetector(ms.Computation):
    """Holds every count against the term's model.

    Produces on `anomalies` the begin and the end of each anomaly, and on `forecasts` every bucket of the tracked terms, with the
    forecast that it was judged by (none in a term's first day).
    """

    State = Watched
    state: Watched

    def __init__(self, tracked: Collection[str] = (), until: int = ms.END) -> None:
        self.tracked = frozenset(tracked)
        self.until = until

    def process_record(self, record: ms.Record) -> None:
        bucket = record.value["start"] // BUCKET
        for skipped in range(self.state.next or bucket, bucket):
            self._observe(skipped, 0)
        self._observe(bucket, record.value["count"])
        self.state.heard = bucket
        self.set_timer("silence", (bucket + 2) * BUCKET)

    def process_timer(self, timer: ms.Timer) -> None:
        bucket = timer.time // BUCKET - 1
        if bucket == self.state.next and bucket * BUCKET < self.until:
            self._observe(bucket, 0)
            if bucket < self.state.heard + PATIENCE // BUCKET:
                self.set_timer("silence", timer.time + BUCKET)

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
    counts = arriving.by("term").window(ms.windows.tumbling(timedelta(milliseconds=BUCKET))).reduce(ms.count(), name="counts")
    detector = partial(SpikeDetector, tracked=tuple(tracked), until=until)
    anomalies, forecasts = pipeline.compute(
        detector, counts, name="SpikeDetector", produces=["anomalies", "forecasts"], expire=timedelta(milliseconds=FORGET)
    )
    pipeline.emit(anomalies, ms.sinks.files(os.path.join(output, "anomalies"), roll=0))
    pipeline.emit(forecasts, ms.sinks.files(os.path.join(output, "forecasts"), roll=0))
    return pipeline
