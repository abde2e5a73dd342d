"""A run that goes on from an epoch which another one has committed behind its back: its readers hear what that epoch read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import LongType, StructField, StructType

import millstream as ms
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.spark.data_sources import DataSourceReader
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.manifest import Manifest
from millstream.state.memory_storage import MemoryStorage

SCHEMA = pa.schema([("k", pa.string())])


def run(folder: Path, storage: MemoryStorage, token: str, latest: Manifest | None) -> SourcePlanner:
    reader = ms.sources.files(folder, schema="k string", format="json").reader(lambda given: SCHEMA, None)
    return SourcePlanner({"in": reader}, storage, token, latest, False)


def put(folder: Path, name: str, at: int) -> None:
    (folder / name).write_text('{"k": "a"}\n')
    os.utime(folder / name, (at, at))


def planned(sources: SourcePlanner, token: str, latest: Manifest | None) -> tuple[Manifest, list[str]]:
    """The manifest of what is planned next, and the files that it reads."""
    reading, takes = sources.next(latest)
    assert reading.positions is not None
    epoch = 0 if latest is None else latest.epoch + 1
    manifest = Manifest(epoch=epoch, token=token, now=0, runs=[(0, token)], sources=dict(reading.positions))
    return manifest, sorted(Path(name).name for take in takes.values() for name in take.names)


def overtaken(tmp_path: Path) -> tuple[SourcePlanner, Manifest]:
    """The old run has planned one file, the new one two; the old one commits."""
    storage = MemoryStorage()
    put(tmp_path, "a.json", 1_700_000_000)
    old = run(tmp_path, storage, "1-a", None)
    committed, files = planned(old, "1-a", None)
    assert files == ["a.json"]
    new = run(tmp_path, storage, "2-b", None)
    put(tmp_path, "b.json", 1_700_000_001)
    assert planned(new, "2-b", None)[1] == ["a.json", "b.json"]
    return new, committed


def test_files_that_an_outgoing_run_has_read_are_not_read_again(tmp_path: Path) -> None:
    new, committed = overtaken(tmp_path)
    new.took_over(committed)
    assert planned(new, "2-b", committed)[1] == ["b.json"]


def test_negative_twin_a_reader_that_hears_nothing_reads_them_again(tmp_path: Path) -> None:
    new, committed = overtaken(tmp_path)
    assert planned(new, "2-b", committed)[1] == ["a.json", "b.json"]


class Numbers(PlannedReader):
    """As many rows as it is told there are; it remembers what it was asked to begin with."""

    def __init__(self) -> None:
        self.there = 0

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        return SplitPlan(str(self.there), [(int(start), self.there)] if self.there > int(start) else [])


def test_an_epoch_begins_where_the_last_manifest_says_whatever_was_planned_since() -> None:
    """Twice the same start: what was planned and not committed has left nothing behind."""
    reader, storage = Numbers(), MemoryStorage()
    for token, there in (("1-a", 3), ("2-b", 7)):
        sources = SourcePlanner({"in": reader}, storage, token, None, False)
        reader.there = there
        assert sources.next(None)[1]["in"].splits == [(0, there)]
    assert storage.objects == {}


class Simple(SimpleDataSourceStreamReader):
    """Has as many rows as it is told there are."""

    there = 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(n,) for n in range(start["n"], Simple.there)]), {"n": Simple.there}


class Counting(DataSource):
    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return Simple()


def test_a_bounded_run_reads_to_the_end_also_if_another_has_committed_less_in_its_place() -> None:
    reader = DataSourceReader(Counting, {}, None)
    reader.begin({}, True)
    Simple.there = 5
    assert reader.plan('{"n": 0}').end == '{"n": 5}'
    assert reader.plan('{"n": 5}').splits == ()
    reader.begin({}, True)  # an outgoing run has committed the first two
    assert reader.plan('{"n": 2}').end == '{"n": 5}'
