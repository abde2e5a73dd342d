"""Python data sources of PySpark's, planned by Millstream: plain and simple readers, in both modes, with their offsets and commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

import millstream as ms
from millstream.engine.spark.versions import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark


class Span(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Numbers(DataSource):
    """Numbers up to what a file says, at most four an epoch."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n long, k string"

    def streamReader(self, schema: Any) -> NumberReader:
        return NumberReader(Path(self.options["folder"]), arrow=self.options.get("Arrow") == "yes")


class NumberReader(DataSourceStreamReader):
    def __init__(self, folder: Path, arrow: bool) -> None:
        self.folder, self.arrow = folder, arrow

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        end = int((self.folder / "end").read_text())
        return {"n": end if isinstance(limit, ReadAllAvailable) else min(start["n"] + limit.max_rows, end)}

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(4)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        middle = (start["n"] + end["n"]) // 2
        return [Span(start["n"], middle), Span(middle, end["n"])]

    def read(self, partition: Span) -> Iterator[Any]:
        rows = [(n, f"k{n % 3}") for n in range(partition.start, partition.end)]
        if self.arrow:
            yield pa.record_batch(
                [pa.array([n for n, _ in rows], pa.int64()), pa.array([k for _, k in rows], pa.string())], names=["n", "k"]
            )
        else:
            yield from rows

    def commit(self, end: dict[str, int]) -> None:
        with (self.folder / "commits").open("a") as file:
            file.write(json.dumps(end) + "\n")

    def stop(self) -> None:
        (self.folder / "stopped").touch()


class Bounded(Numbers):
    """Knows what was there when a bounded run began, and keeps to its limit in it."""

    @classmethod
    def name(cls) -> str:
        return "bounded"

    def streamReader(self, schema: Any) -> BoundedReader:
        return BoundedReader(Path(self.options["folder"]), arrow=False)


class BoundedReader(NumberReader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None:
        self.target = int((self.folder / "end").read_text())

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(super().latestOffset(start, limit)["n"], self.target)}


class Old(Numbers):
    """As Spark before 4.2 had it: asked for the latest offset without a start."""

    @classmethod
    def name(cls) -> str:
        return "old"

    def streamReader(self, schema: Any) -> OldReader:
        return OldReader(Path(self.options["folder"]), arrow=False)


class OldReader(NumberReader):
    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": int((self.folder / "end").read_text())}


class Simple(Numbers):
    """Without partitions."""

    @classmethod
    def name(cls) -> str:
        return "simple"

    def streamReader(self, schema: Any) -> Any:
        return DataSource.streamReader(self, schema)

    def simpleStreamReader(self, schema: Any) -> SimpleReader:
        return SimpleReader(Path(self.options["folder"]))


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, str]], dict[str, int]]:
        end = int((self.folder / "end").read_text())
        return iter([(n, f"k{n % 3}") for n in range(start["n"], end)]), {"n": end}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int, str]]:
        return iter([(n, f"k{n % 3}") for n in range(start["n"], end["n"])])


class Seen(ms.Computation):
    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value["n"])
        self.produce(record.value["n"])


def numbers(folder: Path, source: type = Numbers, **options: str) -> ms.Pipeline:
    p = ms.Pipeline("numbers")
    given = ms.sources.data_source(source, options={"folder": str(folder), **options})
    p.emit(p.compute(Seen, p.inject("in", given), name="seen", key="k", produces="out"), ms.sinks.memory())
    return p


def emitted(p: ms.Pipeline, spark: Any, work: Path, **options: Any) -> list[int]:
    handle = p.run(spark, checkpoint=work / "checkpoint", available_now=True, drain=False, shards=2, quiet=True, **options)
    handle.await_termination()
    return sorted(value for _, value, _ in handle.output())


@pytest.mark.parametrize("source", [Numbers, Bounded, Old, Simple])
def test_all_that_is_there_comes_once_and_the_modes_can_be_switched(spark: Any, tmp_path: Path, source: type) -> None:
    (tmp_path / "end").write_text("10")
    assert emitted(numbers(tmp_path, source), spark, tmp_path, resident=True) == list(range(10))
    (tmp_path / "end").write_text("13")
    assert emitted(numbers(tmp_path, source), spark, tmp_path, resident=False) == [10, 11, 12]
    assert emitted(numbers(tmp_path, source), spark, tmp_path, resident=True) == []
    latest = ManifestLog(open_storage(tmp_path / "checkpoint")).latest()
    assert latest is not None and json.loads(latest.sources["in"].offset) == {"n": 13}
    if source is Bounded:
        said = [json.loads(line)["n"] for line in (tmp_path / "commits").read_text().splitlines()]
        assert said == sorted(said) and set(said) == {4, 8, 10, 13}, "what is committed, in order, and again at the start of a run"
        assert (tmp_path / "stopped").exists()


def test_arrow_batches_are_taken_and_what_does_not_fit_is_an_input_error(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "end").write_text("3")
    assert emitted(numbers(tmp_path, Arrow="yes"), spark, tmp_path, resident=True) == [0, 1, 2]
    with pytest.raises(ms.errors.InputError, match=r"data source Broken.*initialOffset raised ZeroDivisionError"):
        emitted(numbers(tmp_path, Broken), spark, tmp_path / "other", resident=True)


class Broken(Numbers):
    def streamReader(self, schema: Any) -> NumberReader:
        reader = NumberReader(Path(self.options["folder"]), False)
        reader.initialOffset = lambda: 1 // 0  # type: ignore[method-assign,assign,return-value]
        return reader
