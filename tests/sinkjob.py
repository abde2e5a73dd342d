"""A pipeline into a sink: from files, or from rows that the kit of killed drivers gives. WORK/address says where: the address of a connector sink, or
table:ADDRESS for the table t of a node of the state service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millstream as ms
import taskkit as kit


class Sums(ms.Computation):
    """A running sum per key."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"]
        self.produce(self.state)


SCHEMA = "k string, n long, at long"


def pipeline(work: Path, sink: ms.sinks.Sink, source: Any = None) -> ms.Pipeline:
    p = ms.Pipeline("sums")
    source = source or ms.sources.files(work / "in", schema=SCHEMA, format="json", max_files_per_epoch=1)
    p.emit(p.compute(Sums, p.inject("in", source, timestamp="at"), key="k", produces="sums"), sink)
    return p


def rows(count: int, keys: str) -> list[dict[str, Any]]:
    """An epoch has one row of each key."""
    return [{"k": key, "n": number + 1, "at": 1_000 + number} for number in range(count) for key in keys]


def build(work: Path) -> tuple[ms.Pipeline, kit.Given]:
    source, address = kit.Given(SCHEMA), (work / "address").read_text()
    table = address.removeprefix("table:")
    sink = ms.sinks.connector(address) if table == address else ms.sinks.service(table, "t", timeout="60s")
    return pipeline(work, sink, source), source
