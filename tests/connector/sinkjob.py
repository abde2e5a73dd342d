"""A pipeline from files into a sink, as a program: `python sinkjob.py WORK SINK`. Processes what is there and ends.

SINK is the address of a connector sink, or table:ADDRESS for the table t of a node of the state service.
"""

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
    address = sys.argv[2]
    table = address.removeprefix("table:")
    sink = ms.sinks.connector(address) if table == address else ms.sinks.service(table, "t", timeout="60s")
    pipeline(place, sink).run(checkpoint=place / "checkpoint", available_now=True, drain=False, shards=2).await_termination()
