"""Planned epochs whose tasks are one function: every row that is read becomes a row of the sink, in the unit of its task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.engine.compaction_orders import Compaction
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.engine.publishing import BackgroundUpkeep
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.spark.run import PlannedRun
from millstream.engine.trigger import Trigger
from millstream.sinks.base import SinkRow, TaskContext
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.compaction import unit_name
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import Part
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage

SOURCE = ms.sources.files("nowhere", schema="k string, at long", format="json")


class Told(PlannedReader):
    """Reads the rows that it is told; an offset is how many were read."""

    def __init__(self, rows: list[Any] | None = None) -> None:
        self.rows = [] if rows is None else rows

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        return SplitPlan(str(len(self.rows)), [(int(start), len(self.rows))] if len(self.rows) > int(start) else [])


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


class KitRunner:
    """Every row that is read becomes a row of every sink. made: epochs whose tasks ran."""

    def __init__(self, program: Program, readers: Mapping[str, PlannedReader], storage: MemoryStorage) -> None:
        self.program, self.readers, self.storage = program, readers, storage
        self.made: list[int] = []

    def run(self, input: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        self.made.append(order.epoch)
        receipt = Receipt(0, 0, 0)
        for name, take in (input or {}).items():
            reader = self.readers[name]
            assert isinstance(reader, Told)
            rows = [row for start, end in take.splits for row in reader.rows[start:end]]
            for emission in self.program.topology.emissions:
                receipt.parts[emission.name] = self.part(emission, rows, order)
        return [receipt]

    def part(self, emission: Any, rows: list[Any], order: EpochOrder) -> Part:
        label = f"{self.program.name}-{emission.name}-0000"
        context = TaskContext(self.storage, emission.name, order.epoch, label, "1.a", token=order.token, pipeline=self.program.name)
        given = [SinkRow("k", 1, value) for value in rows]
        if not emission.sink.in_units:
            found: Part = emission.sink.stage(context, given)
            return found
        data = emission.sink.encode_part(context, given)
        unit = unit_name(order.epoch, "t0", order.token)
        self.storage.put(unit, data)
        return Part(rows=len(rows), staged=unit, in_checkpoint=True, own={"offset": 0, "length": len(data)})

    def status(self) -> RunMode:
        return RunMode()

    def close(self) -> None:
        pass


class KitEpochs(Epochs[Mapping[str, SplitPlan]]):
    """One run, put together. now: its wall clock."""

    def __init__(
        self,
        program: Program,
        storage: MemoryStorage,
        readers: Mapping[str, PlannedReader],
        bounded: bool = False,
        runner: type[KitRunner] = KitRunner,
        compaction: Compaction | None = None,
    ) -> None:
        log = ManifestLog(storage)
        found = log.latest()
        token = log.runs.claim(found.token if found is not None else None)
        latest = log.latest()
        latest = None if latest is None else reconciled(latest, program)
        self.now = 1_000_000 if latest is None else latest.now
        self.kit = runner(program, readers, storage)
        self.sources = SourcePlanner(readers, storage, token, latest, bounded)
        super().__init__(
            program,
            1,
            log,
            latest,
            token,
            runner=self.kit,
            planner=self.sources,
            compaction=compaction or Compaction(),
            upkeep=BackgroundUpkeep(),
            clock=lambda: self.now,
        )

    def turn(self) -> None:
        """The next epoch, whatever there is to read."""
        reading, takes = self.sources.next(self.latest)
        self.run(takes, reading)

    def trigger(self, bounded: bool = False) -> Trigger:
        return Trigger(self, self.sources, bounded=bounded, every=0.0, eager=False)

    def planned_run(self, bounded: bool = True, drain: bool = True, kind: type[PlannedRun] = PlannedRun) -> PlannedRun:
        return kind(self.topology, self, self.sources, bounded=bounded, drain=drain, every=0.0, eager=False)


def published(folder: Path) -> list[str]:
    """The files that a plain reader sees."""
    return sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
