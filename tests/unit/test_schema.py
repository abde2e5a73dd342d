"""A source's schema without Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

import millstream as ms
from millstream.sources.schema import columns, converted, millis, moment
from millstream.testing import LocalRunner

NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("given", [NOON, NOON.replace(tzinfo=None), "2024-05-01T12:00:00Z", "2024-05-01T14:00:00+02:00", 1_714_564_800_000])
def test_a_point_in_time_as_people_give_it(given: Any) -> None:
    assert moment(given) == NOON and millis(moment(given)) == 1_714_564_800_000


def test_a_row_has_the_columns_of_the_schema_and_no_others() -> None:
    known = columns("word string, at timestamp, price decimal(6,2), tags array<long>")
    assert known is not None
    assert converted({"word": "tea", "at": 0, "price": "1.5", "more": 1}, known, "in") == {
        "word": "tea",
        "at": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "price": Decimal("1.50"),
        "tags": None,
    }


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"n": "7"}, "'n': '7' (a str) does not fit the type int"),
        ({"n": 2**31}, "does not fit the type int"),
        ({"n": True}, "(a bool)"),
        ({"at": "soon"}, "'at': 'soon'"),
        ({"place": {"x": "far"}}, "column 'place.x'"),
    ],
)
def test_what_does_not_fit_names_stream_column_value_and_type(row: dict[str, Any], says: str) -> None:
    known = columns("n int, at timestamp, place struct<x: double>")
    assert known is not None
    with pytest.raises(ms.errors.InputError, match="stream 'in'") as caught:
        converted(row, known, "in")
    assert says in str(caught.value)


@pytest.mark.parametrize("ddl", ["a interval", "a int b", "a array<int", "a: ", "a geometry(0)", ""])
def test_a_text_that_it_does_not_understand_is_left_to_spark(ddl: str) -> None:
    assert columns(ddl) is None


@pytest.mark.parametrize(
    ("where", "says"), [({"key": "wrod"}, "key of computation 'Count'"), ({"timestamp": "when"}, "timestamp"), ({"id": "number"}, "id")]
)
def test_a_column_that_the_schema_does_not_have_is_told_before_anything_starts(where: dict[str, str], says: str) -> None:
    class Count(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            pass

    p = ms.Pipeline("columns")
    named = {"timestamp": "at", "id": "id", "key": "word", **where}
    source = ms.sources.files("in/", schema="word string, at long, id string")
    with pytest.raises(
        ms.errors.DefinitionError, match=rf"injected stream 'in', {says}: there is no column .*; the source has: word, at, id"
    ):
        p.compute(Count, p.inject("in", source, timestamp=named["timestamp"], id=named["id"]), key=named["key"])


USERS = ms.sources.files("in/", schema="id long, country string, name string, ts long, gone boolean")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda p: p.table("users", USERS, key="idd"), r"injected stream 'users', key of table 'users': .* 'idd'; .* Did you mean 'id'\?"),
        (lambda p: p.table("users", USERS, key=["id", "contry"]), "Did you mean 'country'"),
        (lambda p: p.table("users", USERS, key="id", version="tss"), r"table 'users', version: there is no column 'tss'"),
        (lambda p: p.table("users", USERS, key="id", deleted="gnoe"), r"table 'users', deleted: there is no column 'gnoe'"),
        (lambda p: p.table("users", USERS, key="id", columns=["nam"]), r"table 'users', columns: there is no column 'nam'"),
        (lambda p: p.table("users", USERS, key="id").by("contry"), r"users.by: there is no column 'contry'; .* Did you mean 'country'\?"),
        (lambda p: p.table("users", USERS, key="id").filter(bool).by("name", "contry"), "users.by: there is no column 'contry'"),
        (
            lambda p: p.table("users", USERS, key="id", columns=["name"]).by("country"),
            "users.by: there is no column 'country'; .* has: name",
        ),
        (lambda p: p.inject("in", USERS, watermark=ms.watermarks.declared("complet")), "watermark: there is no column 'complet'"),
        (lambda p: p.inject("in", USERS, value="nmae"), "value: there is no column 'nmae'"),
    ],
)
def test_a_field_that_the_schema_does_not_have_is_refused_where_it_is_written(wrong: Any, says: str) -> None:
    with pytest.raises(ms.errors.DefinitionError, match=says):
        wrong(ms.Pipeline("fields"))


def test_what_cannot_be_told_is_nobodys_business() -> None:
    p = ms.Pipeline("fields")
    users = p.table("users", USERS, key="id", version=["ts", "name"])
    users.map(lambda d: {"any": 1}).by("any").reduce(ms.count(), name="mapped")
    users.by("country", "name").reduce(ms.count(), name="grouped").by("whatever")
    p.table("lower", p.inject("in", USERS, timestamp="ts"), key="lower(name)", version="name.first").by(lambda d: d.key)
    p.table("own", lambda spark: None, key="anything").by("anything")
    p.table("nested", ms.sources.files("in/", schema="id long, meta struct<gone: boolean>"), key="id", deleted="meta.gone")
    p.table(
        "events",
        ms.sources.files("in/", schema="op string, after struct<id: long>, before struct<id: long>, source struct<lsn: long>"),
        key="id",
        change=ms.changes.debezium(),
    ).by("name")


@pytest.mark.parametrize(
    ("schema", "says"), [("a strng, b long", "no type 'strng'. Did you mean 'string'"), ("a array<itn>", "no type 'itn'")]
)
def test_a_type_that_spark_has_not_is_refused(schema: str, says: str) -> None:
    with pytest.raises(ms.errors.DefinitionError, match=says):
        ms.Pipeline("types").inject("in", ms.sources.files("in/", schema=schema), timestamp="b")


@pytest.mark.parametrize("schema", ["a variant, b long", "a interval day to second, b long", "a string collate unicode, b long", "a void"])
def test_a_type_that_only_spark_knows_is_left_to_it(schema: str) -> None:
    assert columns(schema) is None


def test_sql_text_needs_its_meaning_in_a_test() -> None:
    class Count(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    p = ms.Pipeline("sql")
    p.compute(Count, p.inject("in", ms.sources.files("in/", schema="word string, at long"), timestamp="at"), key="md5(word)")
    runner = LocalRunner(p)
    runner.push("in", {"word": "TEA", "at": 1})
    with pytest.raises(ms.errors.DefinitionError, match=r"expressions="):
        runner.run()
    runner = LocalRunner(p, expressions={"md5(word)": lambda row: row["word"].lower()})
    runner.push("in", {"word": "TEA", "at": 1}, {"word": "tea", "at": 2})
    runner.run()
    assert runner.state("Count") == {"tea": 2}
