"""Spikes and dips in search traffic: which terms are suddenly searched for, and which have gone quiet?

    millstream demo --output zeitgeist      makes the queries, and runs the same pipeline on them

Queries come in out of order. Each term has a counter, which says at the end of every second how many there were, and a model
of its usual day, which says whether that is remarkable. Both computations are in millstream/demo/zeitgeist.py, the model is in
millstream/demo/model.py.
"""

import millstream as ms
from millstream.demo.zeitgeist import BucketCounter, SpikeDetector

pipeline = ms.Pipeline("zeitgeist-example")

# A query is at most two seconds of event time behind the newest one.
queries = pipeline.inject(
    "queries",
    ms.sources.files("zeitgeist/queries", schema="term string, at long, id string", format="parquet", max_files_per_epoch=3),
    timestamp="at",
    id="id",
    watermark=ms.watermarks.bounded("2s"),
)

# Term by term, second by second.
counts = pipeline.compute(BucketCounter, queries, key="term", produces="counts")

# No key is given, so the detector has the counter's: a term's count reaches its model without a shuffle.
anomalies, forecasts = pipeline.compute(SpikeDetector, counts, produces=["anomalies", "forecasts"])

pipeline.emit(anomalies, ms.sinks.files("zeitgeist/example/anomalies"))
