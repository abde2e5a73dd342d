"""What comes in, on Spark as in the test kit: types, SQL text, functions of the session, rows that cannot be used."""

from __future__ import annotations

import datetime
import json
import textwrap
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, run, write

import millstream as ms
from computations import Sum
from millstream.engine.spark.versions import VERSION, arrow_schema
from millstream.sources.schema import columns
from millstream.testing import LocalRunner

pytestmark = pytest.mark.spark

TYPES = """k string, b byte, i int, n long, f float, d double, ok boolean, raw binary, price decimal(10,2), day date, at timestamp, plain timestamp_ntz,
tags array<int>, place struct<x: double, names: array<string>>, counts map<string,long>"""
ROW: dict[str, Any] = {
    "k": "a",
    "b": 7,
    "i": -5,
    "n": 2**40,
    "f": 0.1,
    "d": 0.1,
    "ok": True,
    "raw": b"\x00\xff",
    "price": Decimal("12.30"),
    "day": datetime.date(2024, 2, 29),
    "at": datetime.datetime(2024, 5, 1, 12, 30, 15, 250_000, tzinfo=datetime.UTC),
    "plain": datetime.datetime(2024, 5, 1, 12),
    "tags": [1, None, 3],
    "place": {"x": 1.5, "names": ["p", "q"]},
    "counts": {"one": 1},
}


class Look(ms.Computation):
    """Hands on what it sees, and keeps it."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        self.state[str(len(self.state))] = record.value
        self.produce(record.value)


def looking(source: Any) -> tuple[ms.Pipeline, Any]:
    p, sink = ms.Pipeline("look"), ms.sinks.memory()
    p.emit(p.compute(Look, p.inject("in", source, timestamp="at"), key="k", produces="out"), sink)
    return p, sink


def test_rows_have_the_same_python_types_in_the_test_kit_and_on_spark(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import types as T

    rows = [ROW, {**dict.fromkeys(ROW), "k": "a", "at": ROW["at"] + datetime.timedelta(seconds=1)}]
    (tmp_path / "in").mkdir()
    schema = arrow_schema(T._parse_datatype_string(TYPES))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "in" / "a.parquet")
    pipeline, sink = looking(ms.sources.files(tmp_path / "in", schema=TYPES, format="parquet"))
    run(pipeline, spark, tmp_path)
    runner = LocalRunner(looking(ms.sources.files("in/", schema=TYPES, format="parquet"))[0])
    runner.push("in", *rows)
    runner.run()
    local = runner.output("out")
    assert [(row.key, row.value, row.timestamp) for row in sink.collected] == local
    for there, here in zip(sink.collected, local, strict=True):
        assert {name: type(value) for name, value in there.value.items()} == {name: type(value) for name, value in here[1].items()}
    assert local[0][2] == 1_714_566_615_250


@pytest.mark.parametrize(
    "ddl",
    [
        TYPES,
        "a INT NOT NULL COMMENT 'it''s', `b c` STRING",
        "x: long, y: map<string, array<struct<p:int,q:decimal(5,3)>>>",
        "struct<a:bigint,b:varchar(10)>",
        "a decimal, b real, c smallint, d tinyint",
    ],
)
def test_the_schemas_text_is_read_as_spark_reads_it(spark: Any, ddl: str) -> None:
    from pyspark.sql import types as T

    if VERSION < (4, 1) and "''" in ddl:
        pytest.skip("Spark 4.0 does not read it")
    known = columns(ddl)
    theirs = T._parse_datatype_string(ddl)
    assert known is not None
    assert known == columns(theirs)
    assert list(known) == theirs.names


def test_sql_text_as_key_timestamp_and_id_and_a_source_that_is_a_function_of_the_session(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"user": user, "n": 1, "s": (BASE + i) / 1000} for i, user in enumerate(["Ann", None, "ann", "Bob"])])
    p, sink = ms.Pipeline("sql"), ms.sinks.memory()

    def source(session: Any) -> Any:
        return session.readStream.format("json").schema("user string, n long, s double").load(str(tmp_path / "in"))

    stream = p.inject("in", source, timestamp="timestamp_millis(cast(s * 1000 as long))", id="concat('id-', cast(s as string))")
    p.emit(p.compute(Sum, stream, key="lower(coalesce(user, '?'))", produces="out"), sink)
    run(p, spark, tmp_path)
    assert sorted((row.key, row.value) for row in sink.collected) == [("?", 1), ("ann", 1), ("ann", 2), ("bob", 1)]


def test_sql_text_that_spark_cannot_read_and_a_column_that_is_missing_are_told_before_anything_is_written(
    spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "n": 1, "at": BASE}])

    def pipeline(key: str) -> ms.Pipeline:
        p = ms.Pipeline("sql")
        p.compute(Sum, p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, n long, at long"), timestamp="at"), key=key)
        return p

    for key, says in (("lower(", "SQL"), ("nosuch(k)", "nosuch"), ("kk", "there is no column 'kk'; the source has: k, n, at")):
        with pytest.raises(ms.errors.DefinitionError, match="key of computation 'Sum'") as caught:
            run(pipeline(key), spark, tmp_path)
        assert says in str(caught.value)
    assert not (tmp_path / "checkpoint").exists() or not list((tmp_path / "checkpoint").glob("manifests/*"))


def forgiving(work: Path, format: str, **options: Any) -> tuple[ms.Pipeline, Any, Any]:
    p, out, dead = ms.Pipeline("forgiving"), ms.sinks.memory(), ms.sinks.memory()
    source = ms.sources.files(work / "in", schema="k string, n long, at long", format=format, **options)
    stream = p.inject("in", source, timestamp="at")
    p.emit(p.compute(Sum, stream, key="k", produces="out", on_error=ms.DEAD_LETTER), out)
    p.emit(p.dead_letters("Sum"), dead, ids=True)
    return p, out, dead


def test_nulls_and_rows_that_do_not_fit_the_schema_become_dead_letters_with_their_file(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    good = [{"k": "a", "n": 1, "at": BASE + i} for i in range(3)]
    bad = [
        '{"k": null, "n": 1, "at": 5}',
        '{"k": "a", "n": "many", "at": 6}',
        "no json at all",
        '{"k": "a", "n": 1}',
        '{"k": "b", "n": 1, "at": 9223372036854775807}',
    ]
    (tmp_path / "in" / "a.json").write_text("\n".join([json.dumps(row) for row in good] + bad) + "\n")
    p, out, dead = forgiving(tmp_path, "json")
    run(p, spark, tmp_path)
    assert [row.value for row in out.collected] == [1, 2, 3]
    errors = sorted(row.value["error"] for row in dead.collected)
    assert len(errors) == len(bad) == len({row.id for row in dead.collected})
    assert [e for e in errors if "does not fit the schema" in e] and all("a.json" in e for e in errors)
    assert [row.value["value"] for row in dead.collected if "fit the schema" in row.value["error"]].count("no json at all") == 1
    assert {row.key for row in dead.collected} == {""}
    p, out, dead = forgiving(tmp_path, "json")
    run(p, spark, tmp_path)
    assert (out.collected, dead.collected) == ([], []), "and no second time"


def test_a_csv_header_gets_its_hint(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("k,n,at\na,1,1\n")
    p, _, _ = forgiving(tmp_path, "csv")
    with pytest.raises(ms.errors.DefinitionError, match=r"a\.csv begins with a line of column names. Say options=\{'header': 'true'\}"):
        run(p, spark, tmp_path)
    p, out, _ = forgiving(tmp_path, "csv", options={"header": "true"})
    run(p, spark, tmp_path)
    assert [row.value for row in out.collected] == [1]


def test_a_directory_that_is_missing_is_called_missing(spark: Any, tmp_path: Path) -> None:
    for format in ("json", None):
        p = ms.Pipeline("missing")
        p.compute(
            Sum,
            p.inject("in", ms.sources.files(tmp_path / "nowhere", schema="k string, n long, at long", format=format), timestamp="at"),
            key="k",
        )
        with pytest.raises(ms.errors.DefinitionError, match=r"nowhere\. Make"):
            run(p, spark, tmp_path)


SCRIPT = """
from dataclasses import dataclass, field
import millstream as ms

@dataclass
class Kept:
    n: int = 0
    {more}

class Sum(ms.Computation):
    State = Kept
    def process_record(self, record):
        self.state.n += 1
        {also}
        self.produce(repr(self.state))
"""


def test_a_dataclass_of_a_script_may_gain_a_field_with_a_default_factory(spark: Any, tmp_path: Path) -> None:
    from millstream.cli import load

    def pipeline(more: str, also: str) -> tuple[ms.Pipeline, Any]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT.format(more=more, also=also)))
        p, sink = ms.Pipeline("gains"), ms.sinks.memory()
        stream = p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, at long", format="json"), timestamp="at")
        p.emit(p.compute(load(script).Sum, stream, key="k", produces="out"), sink)
        return p, sink

    write(tmp_path / "in", "a.json", [{"k": "a", "at": BASE}])
    run(pipeline("", "pass")[0], spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", [{"k": "a", "at": BASE + 1}])
    p, sink = pipeline("names: list[str] = field(default_factory=list)", "self.state.names.append(record.key)")
    run(p, spark, tmp_path, drain=False)
    assert [row.value for row in sink.collected] == ["Kept(n=2, names=['a'])"]


class Seconds(ms.Computation):
    """Counts per second, told when it is complete."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        end = record.timestamp - record.timestamp % 1000 + 1000
        self.state[end] = self.state.get(end, 0) + 1
        self.set_timer("second", end)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time))


def test_three_runs_from_cron_give_what_one_continuous_run_gives(spark: Any, tmp_path: Path) -> None:
    def pipeline() -> tuple[ms.Pipeline, Any]:
        p, sink = ms.Pipeline("cron"), ms.sinks.memory()
        stream = p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, at long", format="json"), timestamp="at")
        first = p.compute(Seconds, stream, key="k", produces="first", production=ms.STRONG)
        p.emit(p.compute(Seconds, first, key=lambda record: record.key, name="Second", produces="second"), sink)
        return p, sink

    files = [[{"k": "ab"[i % 2], "at": BASE + start + i * 170} for i in range(20)] for start in (0, 3_400, 6_800)]
    runner = LocalRunner(pipeline()[0])
    for number, rows in enumerate(files):
        write(tmp_path / "in", f"{number}.json", rows)
        p, sink = pipeline()
        status = run(p, spark, tmp_path, drain=False).status()
        runner.push("in", *rows)
        runner.run()
        before = len(runner.output("second")) - len(sink.collected)
        assert [(row.key, row.value, row.timestamp) for row in sink.collected] == runner.output("second")[before:], f"after run {number}"
        assert {c.name: c.low_watermark for c in status.computations} == {
            name: runner.low_watermark(name) for name in ("Seconds", "Second")
        }
    assert len(runner.output("second")) > 10
