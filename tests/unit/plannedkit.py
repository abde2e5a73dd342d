"""Planned epochs whose tasks are one function: every row that is read becomes a row of the sink, in the unit of its task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.core.guards import ALL_GUARDS
from millstream.engine.contracts import Folded, FoldStats
from millstream.engine.evolution import reconciled
from millstream.engine.planned import PlannedEpochs
from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.source_planner import Sources
from millstream.sinks.base import SinkRow, TaskContext
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.compaction import unit_name
from millstream.state.manifest import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.sink_part import Part

SOURCE = ms.sources.files("nowhere", schema="k string, at long", format="json")


class Told(PlannedReader):
    """Reads the rows that it is told; an offset is how many were read."""

    def __init__(self, rows: list[Any] | None = None) -> None:
        self.rows = [] if rows is None else rows

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        return SplitPlan(str(len(self.rows)), [(int(start), len(self.rows))] if len(self.rows) > int(start) else [])


class NoFolds:
    """Folds nothing."""

    def plan(self, manifest: Any, spark: Any) -> None:
        pass

    def finished(self) -> dict[tuple[str, int], Folded]:
        return {}

    def in_flight(self) -> set[str]:
        return set()

    def since(self) -> int | None:
        return None

    def stats(self) -> FoldStats:
        return FoldStats()


class Passes(ms.Computation):
    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value)


def pipeline(sink: ms.sinks.Sink | None = None, watermark: Any = None) -> ms.Pipeline:
    p = ms.Pipeline("kit")
    stream = p.inject("in", SOURCE, timestamp="at", watermark=watermark or ms.watermarks.bounded("0ms"))
    out = p.compute(Passes, stream, key="k", produces="out")
    if sink is not None:
        p.emit(out, sink)
    return p


class KitEpochs(PlannedEpochs):
    """One run. now: its wall clock. made: epochs whose tasks ran."""

    def __init__(self, program: Program, storage: MemoryStorage, readers: Mapping[str, PlannedReader], bounded: bool = False) -> None:
        log = ManifestLog(storage)
        found = log.latest()
        token = log.runs.claim(found.token if found is not None else None)
        latest = log.latest()
        latest = None if latest is None else reconciled(latest, program)
        super().__init__(program, 1, log, latest, token, None, NoFolds(), ALL_GUARDS)
        self.now = 1_000_000 if latest is None else latest.now
        self.made: list[int] = []
        self.sources = Sources(readers, storage, token)
        self.sources.begin(latest, bounded)

    def clock(self) -> int:
        return self.now

    def turn(self) -> None:
        """The next epoch, whatever there is to read."""
        ranges, takes = self.sources.next(self.latest)
        self.run_planned({name: take for name, take in takes.items() if take.splits}, ranges, 0.0)

    def job(self, takes: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        self.made.append(order.epoch)
        receipt = Receipt(0, 0, 0)
        for name, take in (takes or {}).items():
            reader = self.sources.readers[name]
            assert isinstance(reader, Told)
            rows = [row for start, end in take.splits for row in reader.rows[start:end]]
            for emission in self.topology.emissions:
                receipt.parts[emission.name] = self._part(emission, rows, order)
        return [receipt]

    def _part(self, emission: Any, rows: list[Any], order: EpochOrder) -> Part:
        label = f"{self.program.name}-{emission.name}-0000"
        context = TaskContext(self.storage, emission.name, order.epoch, label, "1.a", token=self.token, pipeline=self.program.name)
        given = [SinkRow("k", 1, value) for value in rows]
        if not emission.sink.in_units:
            found: Part = emission.sink.stage(context, given)
            return found
        data = emission.sink.encode_part(context, given)
        unit = unit_name(order.epoch, "t0", self.token)
        self.storage.put(unit, data)
        return Part(rows=len(rows), staged=unit, in_checkpoint=True, own={"offset": 0, "length": len(data)})


def published(folder: Path) -> list[str]:
    """The files that a plain reader sees."""
    return sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
