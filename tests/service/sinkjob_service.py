"""A pipeline from files into a table of the state service, as a program: `python sinkjob_service.py WORK ADDRESS`. Processes what is there and ends."""

from __future__ import annotations

import sys
from pathlib import Path

import millstream as ms


class Sums(ms.Computation):
    """A running sum per key."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"]
        self.produce(self.state)


def pipeline(work: Path, sink: ms.sinks.Sink) -> ms.Pipeline:
    p = ms.Pipeline("sums")
    source = ms.sources.files(work / "in", schema="k string, n long, at long", format="json", max_files_per_epoch=1)
    p.emit(p.compute(Sums, p.inject("in", source, timestamp="at"), key="k", produces="sums"), sink)
    return p


if __name__ == "__main__":
    place = Path(sys.argv[1])
    pipeline(place, ms.sinks.service(sys.argv[2], "t", timeout="60s")).run(
        checkpoint=place / "checkpoint", available_now=True, drain=False, shards=2
    ).await_termination()
