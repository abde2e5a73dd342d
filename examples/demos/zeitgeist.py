"""Zeitgeist, the pipeline: queries → counts per term and second → anomalies, and forecasts of the terms that are tracked.

Rules
1. A second of a term is counted when the low watermark passes its end, so no query that keeps the watermark's bound is missing.
2. A second without a query has no count. It is a zero to the detector, as it comes for `PATIENCE` after the last count, and else when the next one comes.
3. Nobody knows what would have followed the end of the traffic. Who knows when that is, says so (`until`), and from there on there are no zeros: the end of
   the world is not a dip.
4. The detector has the key of the counts, so a count is handed over inside the task.
5. A term that was not heard of for `FORGET` is forgotten, and with it an anomaly that had no end.
6. How the queries fall into epochs changes nothing: the model sees the seconds in order, each when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import timedelta

import millstream as ms
from demos import BUCKET, DAY

SCHEMA = "term string, at long, id string"
STREAMS = {"anomalies": "anomalies", "forecasts": "anomalies.forecasts"}
"""The folders of the output, and the streams that are in them."""
PATIENCE = 15_000
FORGET = 10 * DAY


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
    anomalies, forecasts = counts.detect(
        bucket=timedelta(milliseconds=BUCKET),
        season=timedelta(milliseconds=DAY),
        patience=timedelta(milliseconds=PATIENCE),
        until=until,
        forecasts=list(tracked),
        expire=timedelta(milliseconds=FORGET),
        name="anomalies",
    )
    pipeline.emit(anomalies, ms.sinks.files(os.path.join(output, "anomalies"), roll=0))
    pipeline.emit(forecasts, ms.sinks.files(os.path.join(output, "forecasts"), roll=0))
    return pipeline
