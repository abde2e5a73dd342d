"""Spikes and dips in search traffic: which terms are suddenly searched for, and which have gone quiet?

    python examples/zeitgeist.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/zeitgeist.py --available-now --checkpoint example-output/zeitgeist/checkpoint

It makes five minutes of queries of its own, with six anomalies hidden in them, if there are none. Everything is in example-output/zeitgeist:
the queries, the truth about them, the anomalies, the checkpoint.

Queries come in out of order. A window says at the end of every second how many there were of a term, and a model of the
term's usual day (a minute, here) says whether that is remarkable: docs/anomalies.md. `make demo` runs the same with more queries, and kills the
driver on the way.
"""

from pathlib import Path

import millstream as ms
from demos.report import read_rows
from demos.traffic import Traffic, write

FOLDER = Path("example-output/zeitgeist")

truth = write(Traffic(terms=40, seconds=300, rate=120.0, spikes=4, dips=2, files=10), FOLDER)
end = truth.traffic.end

pipeline = ms.Pipeline("zeitgeist-example")

# A query is at most two seconds of event time behind the newest one.
queries = pipeline.inject(
    "queries",
    ms.sources.files(FOLDER / "queries", schema="term string, at long, id string", format="parquet", max_files_per_epoch=3),
    timestamp="at",
    id="id",
    watermark=ms.watermarks.bounded("2s"),
)

# Term by term, second by second. The silence after the last query is no dip, so the detector is told when the traffic ends.
counts = queries.by("term").window(ms.windows.tumbling("1s")).reduce(ms.count(), name="counts")

# The detector has the key of the counts: a term's count reaches its model without a shuffle.
anomalies = counts.detect(bucket="1s", season="1m", patience="15s", until=end, name="anomalies")

pipeline.emit(anomalies, ms.sinks.files(FOLDER / "anomalies"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    for row in read_rows(FOLDER / "anomalies"):
        found = row["value"]
        second = (found["at"] - truth.traffic.begin) / 1_000
        print(
            f"second {second:.0f}: {found['event']} of a {found['kind']} of {found['term']!r}: {found['actual']} queries instead of {found['expected']:.0f}"
        )
    print(f"That is all that was found. The anomalies are in {FOLDER / 'anomalies'}, what was injected is in {FOLDER / 'truth.json'}.")
