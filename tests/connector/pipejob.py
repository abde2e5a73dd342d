"""A pipeline with the connector at both ends, as a program: `python pipejob.py WORK LISTEN SINK [spark]`. Runs until it is killed: in resident tasks without a
JVM, or on Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import millstream as ms


class Sums(ms.Computation):
    """A running sum per key."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        line = json.loads(record.value["payload"])
        self.state += line["n"]
        self.produce({"number": line["number"], "sum": self.state})


def pipeline(work: Path, listen: str, sink: str) -> tuple[ms.Pipeline, ms.sources.Source]:
    p = ms.Pipeline("pipe")
    source = ms.sources.connector(dir=work / "intake", listen=listen, cookie="in", max_per_epoch=500)
    lines = p.inject("lines", source, timestamp="event_time", id="record_id", watermark=ms.watermarks.declared(source.watermark))
    p.emit(p.compute(Sums, lines, key="key", produces="sums"), ms.sinks.connector(sink, cookie="out", patience="60s"))
    return p, source


def main() -> None:
    work, listen, sink, *spark = sys.argv[1:]
    if spark:
        made, _ = pipeline(Path(work), listen, sink)
        made.run(checkpoint=Path(work, "checkpoint"), trigger="100ms", shards=2).await_termination()
    else:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import taskkit

        with taskkit.ResidentRun(Path(work), shards=2, build=lambda work: pipeline(work, listen, sink)) as run:
            run.run()


if __name__ == "__main__":
    main()
