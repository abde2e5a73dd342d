"""A pipeline with the connector at both ends, as a program: `python pipejob.py WORK LISTEN SINK`. Runs until it is killed."""

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


def pipeline(work: Path, listen: str, sink: str) -> ms.Pipeline:
    p = ms.Pipeline("pipe")
    source = ms.sources.connector(dir=work / "intake", listen=listen, cookie="in", max_per_epoch=500)
    lines = p.inject("lines", source, timestamp="event_time", id="record_id", watermark=ms.watermarks.declared(source.watermark))
    p.emit(p.compute(Sums, lines, key="key", produces="sums"), ms.sinks.connector(sink, cookie="out", patience="60s"))
    return p


def main() -> None:
    work, listen, sink = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    handle = pipeline(work, listen, sink).run(checkpoint=work / "checkpoint", trigger="100ms", shards=2)
    print("running", flush=True)
    handle.await_termination()


if __name__ == "__main__":
    main()
