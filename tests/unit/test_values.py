"""A value belongs to the hook that gets it: what a hook changes in place is seen by nobody else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.engine.columns.batches import ColumnBatch, ValueColumn
from millstream.testing import LocalRunner

SCHEMA = "k string, n long, at long, id string"


class AddInPlace(ms.Computation):
    """Changes the value that it was handed, and then counts with it."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        value = record.value
        value["n"] += 1
        assert record.value is value, "the same object however often a hook asks"
        self.state += value["n"]
        if record.value["n"] == 100:
            raise RuntimeError("one hundred")
        self.produce(self.state)


def pipeline(computation: Any = AddInPlace) -> ms.Pipeline:
    p = ms.Pipeline("values")
    source = p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id")
    p.compute(computation, source, key="k", produces="out", on_error=ms.DEAD_LETTER)
    return p


def test_a_second_visit_after_a_dead_letter_sees_the_values_as_they_came() -> None:
    runner = LocalRunner(pipeline())
    runner.push("in", *[{"k": "a", "n": n, "at": at, "id": str(at)} for at, n in enumerate([1, 99, 8])])
    runner.run()
    assert runner.state("AddInPlace", "a") == 11  # 2 + 9; the one that raised counts for nothing, and nobody counts twice
    assert [value for _, value, _ in runner.output("out")] == [2, 11]
    (letter,) = [value for _, value, _ in runner.output("AddInPlace.dead-letters")]
    assert letter["value"] == {"k": "a", "n": 99, "at": 1, "id": "1"}


def test_another_consumer_of_the_stream_sees_the_value_as_it_came() -> None:
    p = pipeline()

    class Look(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            self.produce(record.value["n"])

    p.compute(Look, "in", key="k", produces="looked")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1, "id": "1"})
    runner.run()
    assert [value for _, value, _ in runner.output("looked")] == [1]


def test_an_error_shows_the_value_as_it_came() -> None:
    p = ms.Pipeline("values")
    p.compute(AddInPlace, p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id"), key="k")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 99, "at": 1, "id": "1"})
    with pytest.raises(ms.errors.HookError, match=r"'n': 99"):
        runner.run()


def column_batch() -> ColumnBatch:
    table = pa.table(
        {
            "key": ["a", "\0i7", None],
            "ts": [1, 2, 3],
            "id": ["x", "y", "z"],
            "v0": pa.array(
                [{"n": 1, "tags": ["p"]}, {"n": None, "tags": []}, {"n": 3, "tags": None}],
                pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))]),
            ),
        }
    )
    layout = [ValueColumn("k", "key"), ValueColumn("n", ""), ValueColumn("at", "ts"), ValueColumn("tags", "")]
    return ColumnBatch("in", table, "v0", layout, single=False)


def test_on_spark_rows_made_anew_are_those_of_the_whole_column_and_nobody_elses() -> None:
    batch = column_batch()
    first = [batch.value(at) for at in range(3)]
    anew = batch.anew()
    assert [anew.value(at) for at in range(3)] == first
    first[0]["tags"].append("changed")
    assert anew.value(0) == {"k": "a", "n": 1, "at": 1, "tags": ["p"]}
    assert anew.value(0) is not anew.value(0)
    assert batch.value(0)["tags"] == ["p", "changed"], "without `anew` the change would be seen: this is what the guard is for"


class Returns(ms.Computation):
    def process_record(self, record: ms.Record) -> Any:
        return record.value


class Yields(ms.Computation):
    def process_record(self, record: ms.Record) -> Any:
        yield record.value


@pytest.mark.parametrize("computation", [Returns, Yields])
def test_a_hook_that_returns_or_yields_is_an_error_that_says_what_to_do(computation: Any) -> None:
    p = ms.Pipeline("values")
    p.compute(computation, p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id"), key="k")
    with pytest.raises(ms.errors.MillstreamError, match=r"self\.produce"):
        runner = LocalRunner(p)
        runner.push("in", {"k": "a", "n": 1, "at": 1, "id": "1"})
        runner.run()


def test_record_of_a_field_says_what_to_use() -> None:
    class Wrong(ms.Computation):
        def process_record(self, record: Any) -> None:
            record["k"]

    p = ms.Pipeline("values")
    p.compute(Wrong, p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id"), key="k")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1, "id": "1"})
    with pytest.raises(ms.errors.HookError, match=r"record\.value\['k'\]"):
        runner.run()


def test_a_name_that_millstream_uses_itself_is_refused() -> None:
    class Clashes(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            self._visit()  # type: ignore[operator]

        def _visit(self) -> None:  # type: ignore[override]
            pass

    p = ms.Pipeline("values")
    p.compute(Clashes, p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id"), key="k")
    with pytest.raises(ms.errors.DefinitionError, match=r"Clashes\._visit is a name that Millstream uses itself"):
        LocalRunner(p)
