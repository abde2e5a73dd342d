"""Keyed rows without a JVM: what is refused, and in which words; and that no matter how the rows come, they are keyed alike.

That the rows are those of the JVM is in tests/spark/test_keying_on_spark.py.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.core.keys import key_text
from millstream.core.time import END
from millstream.engine.columns.batches import ValueColumn
from millstream.engine.columns.keying import Keying
from millstream.errors import DefinitionError, InputError
from millstream.sources.base import BETWEEN

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("s", pa.struct([("a", pa.int32())])),
        ("l", pa.list_(pa.int16())),
        ("d", pa.date32()),
    ]
)
PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.int64())])


class Unread(ms.sources.Source):
    """A source that nobody reads here."""

    def describe(self) -> str:
        return "a table"


class Nothing(ms.Computation):
    """Does nothing."""

    State = int


def keying(schema: Any, key: Any = "k", *, source: Any = None, unreadable: str | None = None, shards: int = 16, **options: Any) -> Keying:
    pipeline = ms.Pipeline("p")
    stream = pipeline.inject("in", source or Unread(), **options)
    pipeline.compute(Nothing, stream, key=key, name="C")
    program = pipeline.program()
    return Keying(program, program.topology.injectors["in"], schema, shards, unreadable)


def refused(schema: Any = SCHEMA, key: Any = "k", **options: Any) -> str:
    with pytest.raises(DefinitionError) as error:
        keying(schema, key, **{"id": "k", **options})
    return str(error.value)


def test_unknown_columns_and_types_are_refused_in_the_words_of_the_other_way() -> None:
    columns = "k, n, x, f, m, s, l, d"
    assert refused(key="q") == f"injected stream 'in', key of computation 'C': there is no column 'q'; the source has: {columns}"
    assert refused(id="q") == f"injected stream 'in', id: there is no column 'q'; the source has: {columns}"
    assert refused(value="q") == f"injected stream 'in', value: there is no column 'q'; the source has: {columns}"
    assert refused(id=7) == "injected stream 'in', id: give a column name, SQL text or a Spark Column, not a int"
    assert refused(key="x") == (
        "injected stream 'in', key of computation 'C' column 'x' is a double, which cannot be a key: use a string, an integer, a boolean or binary, or cast it"
    )
    assert "is a struct<a: int32>, which cannot be a key" in refused(key=["k", "s"])
    assert refused(timestamp="k") == ("injected stream 'in', timestamp column 'k' is a string: give milliseconds as a long, or a timestamp")
    assert "watermark column 'd' is a date32[day]: give milliseconds" in refused(watermark=ms.watermarks.declared("d"))


def test_what_only_spark_can_do_is_refused_with_the_way_out() -> None:
    way_out = ": give column names, add the column in the source, or run without resident=True"
    assert refused(id="md5(k)").startswith(
        f"injected stream 'in', id: only Spark can work out the SQL text 'md5(k)'{way_out} (at position 1: the function 'md5' (of abs, "
    )
    assert refused(key=["n", "k || n"]) == (
        f"injected stream 'in', key of computation 'C': only Spark can work out the SQL text 'k || n'{way_out} "
        f"(concat(k, n): concat takes no long, only string: use cast(... as ...))"
    )
    assert "only Spark can work out the SQL text 'd > 3'" in refused(key="d > 3")
    for id, kind in (
        ("x", "double"),
        ("f", "float"),
        ("s", "struct<a: int32>"),
        ("l", "list<item: int16>"),
        ("m", "map<string, int32>"),
        ("d", "date32[day]"),
    ):
        assert refused(id=id) == (
            f"injected stream 'in', id column {id!r} is a {kind}, and only Spark can make its text: "
            f"give a string column, or run without resident=True"
        )
    sub = ms.watermarks.sub_sources("x", ["a"], ms.watermarks.bounded(0))
    assert "sub-source column 'x' is a double, and only Spark can make its text" in refused(watermark=sub)


@pytest.mark.parametrize("id", ["k", None])
def test_a_map_in_a_row_is_carried(id: str | None) -> None:
    table = pa.table({"k": ["a"], "m": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int32()))})
    made = keying(table.schema, id=id).keyed(table, 7)
    assert made.column("v0").to_pylist() == [{"m": [("x", 1)]}] and made.column("ts").to_pylist() == [7]


def rows(count: int) -> Any:
    """Rows with keys that come again and again, a few of them null."""
    draw = np.random.default_rng(count)
    keys = [None if one == 3 else f"k{one}" for one in draw.integers(0, 50, count).tolist()]
    return pa.table({"k": keys, "n": draw.integers(-9, 9, count), "at": np.arange(count)}, schema=PLAIN)


@pytest.mark.parametrize("options", [{"id": "n"}, {"id": "n", "dedup": None}, {}], ids=str)
def test_oracle_rows_are_keyed_alike_however_they_come(options: dict[str, Any]) -> None:
    table = rows(6000)
    made = keying(PLAIN, timestamp="at", **options)
    whole = made.keyed(table, 0)
    one_by_one = [made.keyed(table.slice(at, 1), 0) for at in range(0, 6000, 97)]
    assert pa.concat_tables(one_by_one).to_pylist() == whole.take(np.arange(0, 6000, 97)).to_pylist()
    pieces = pa.concat_tables([table.slice(0, 10), table.slice(10, 1990), table.slice(2000)])
    assert made.keyed(pieces, 0).equals(whole)
    assert pa.concat_tables([made.keyed(one, 0) for one in pieces.to_batches()]).to_pylist() == whole.to_pylist()
    assert pickle.loads(pickle.dumps(made)).keyed(table, 0).equals(whole)


def test_no_rows_and_no_consumer_make_no_rows_with_all_columns() -> None:
    made = keying(PLAIN, timestamp="at")
    assert made.keyed(rows(0), 0).schema == made.keyed(rows(1), 0).schema
    pipeline = ms.Pipeline("p")
    pipeline.inject("unused", Unread())
    pipeline.compute(Nothing, pipeline.inject("in", Unread()), key="k", name="C")
    program = pipeline.program()
    found = Keying(program, program.topology.injectors["unused"], PLAIN, 4).keyed(rows(3), 0)
    assert len(found) == 0 and found.column_names == ["part", "route", "key", "ts", "id", "ord", "v0"]


def test_what_stands_in_keyed_columns_is_not_sent_twice() -> None:
    made = keying(PLAIN, timestamp="at", id="n")
    assert made.layout == [ValueColumn("k", "key"), ValueColumn("n", ""), ValueColumn("at", "ts")]
    assert keying(PLAIN, value="k", id="n").layout == [ValueColumn("k", "key")]
    alone = keying(PLAIN, value="k", id="n").keyed(rows(2), 0)
    assert alone.column("v0").to_pylist() == [{"nothing": None}] * 2


def test_a_record_that_is_to_be_rejected_names_its_file_after_the_pickle_too() -> None:
    schema = pa.schema([*PLAIN, ("broken", pa.string())])
    table = pa.table(
        {"k": ["a", None, "b", "c"], "n": [1, 2, 3, 4], "at": [5, 6, END, 8], "broken": [None, None, None, "{"]}, schema=schema
    )
    made = keying(PLAIN, timestamp="at", source=ms.sources.files("in", schema="k string, n long, at long"), unreadable="broken")
    wanted = [None, f"file:///a{BETWEEN}", f"file:///a{BETWEEN}", f"file:///a{BETWEEN}{{"]
    assert made.keyed(table, 0, "file:///a").column("bad").to_pylist() == wanted
    assert pickle.loads(pickle.dumps(made)).keyed(table, 0, "file:///a").column("bad").to_pylist() == wanted
    assert "broken" not in made.keyed(table, 0).column("v0").type.names


DOCUMENT = pa.struct([("id", pa.int64()), ("x", pa.string())])
CHANGES = pa.schema([("before", DOCUMENT), ("after", DOCUMENT), ("op", pa.string()), ("source", pa.struct([("lsn", pa.int64())]))])


def test_the_keys_of_a_feed_are_worked_out_in_python() -> None:
    table = pa.table(
        {
            "before": [None, {"id": 1, "x": "a"}, {"id": 2, "x": "é"}, None],
            "after": [{"id": 1, "x": "a"}, {"id": 1, "x": "b"}, None, None],
            "op": ["c", "u", "d", "c"],
            "source": [{"lsn": at} for at in range(4)],
        },
        schema=CHANGES,
    )
    for key, wanted in (("id", [1, 1, 2, None]), (["id", "x"], [(1, "a"), (1, "b"), (2, "é"), None])):
        pipeline = ms.Pipeline("p")
        pipeline.table("t", Unread(), key=key, change=ms.changes.debezium())
        program = pipeline.program()
        made = Keying(program, program.topology.injectors["t"], CHANGES, 8)
        texts = [None if one is None else key_text(one) for one in wanted]
        assert pickle.loads(pickle.dumps(made)).keyed(table, 0).column("key").to_pylist() == texts


def test_expressions_that_are_known_in_python_may_be_times_and_ids() -> None:
    pipeline = ms.Pipeline("p")
    stream = pipeline.inject("in", Unread(), timestamp="at * 2", id="concat(k, n)")
    pipeline.compute(Nothing, stream, key="n / 2", name="C")
    program = pipeline.program()
    program.expressions.update(
        {"at * 2": lambda row: row["at"] * 2, "concat(k, n)": lambda row: f"{row['k']}{row['n']}", "n / 2": lambda row: row["n"] / 2}
    )
    made = Keying(program, program.topology.injectors["in"], PLAIN, 8)
    table = pa.table({"k": ["a"], "n": [1], "at": [21]}, schema=PLAIN)
    with pytest.raises(InputError, match="key of computation 'C', n / 2: a float cannot be a key"):
        made.keyed(table, 0)
    program.expressions["n / 2"] = lambda row: row["n"]
    made = Keying(program, program.topology.injectors["in"], PLAIN, 8)
    found = made.keyed(table, 0)
    assert [found.column(name).to_pylist() for name in ("key", "ts", "id")] == [["\0i1"], [42], ["a1"]]
    program.expressions["at * 2"] = lambda row: "late"
    with pytest.raises(DefinitionError, match="timestamp expression is a string: give milliseconds"):
        Keying(program, program.topology.injectors["in"], PLAIN, 8).keyed(table, 0)


def test_sql_texts_that_are_understood_are_worked_out_in_arrow() -> None:
    table = pa.table({"k": ["A", None, "b"], "n": [1, 2, None], "at": [5, 6, 7]}, schema=PLAIN)
    made = keying(PLAIN, ["lower(k)", ms.col("n") > 1], timestamp="at * 2", id="coalesce(k, '?') || '-'")
    found = pickle.loads(pickle.dumps(made)).keyed(table, 0)
    assert found.column("key").to_pylist() == [key_text(("a", False)), None, None]
    assert found.column("ts").to_pylist() == [10, 12, 14] and found.column("id").to_pylist() == ["A-", "?-", "b-"]
    assert keying(PLAIN, ms.col("k"), id=ms.col("n"), timestamp=ms.col("at")).layout == keying(PLAIN, "k", id="n", timestamp="at").layout


def test_what_an_expression_cannot_be_is_refused_when_the_run_starts() -> None:
    assert refused(key="lower(q)").startswith(
        "injected stream 'in', key of computation 'C': there is no column 'q'; the source has: k, n, "
    )
    assert "key of computation 'C' expression is a double, which cannot be a key" in refused(key="n / 2")
    assert "timestamp expression is a string: give milliseconds" in refused(timestamp="lower(k)")
    assert "coalesce of a long and a double: cast one of them" in refused(key="coalesce(n, x) > 1")
    assert keying(SCHEMA, "cast(s.a + 1 as string)", id="k") is not None


def test_a_row_that_fails_is_named() -> None:
    table = pa.table({"k": ["a", "b"], "n": [1, 0], "at": [5, 6]}, schema=PLAIN)
    with pytest.raises(
        InputError, match=r"key of computation 'C': the expression \(7 % n\) = 1: 7 % 0 is a division by zero \(in a record with n = 0\)"
    ):
        keying(PLAIN, "7 % n = 1").keyed(table, 0)


@pytest.mark.slow
def test_rows_are_keyed_without_pyspark() -> None:
    code = "import sys, millstream.engine.columns.keying, millstream.engine.columns.arrow_rows; print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False"]
