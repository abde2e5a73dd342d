"""What is wrong is named, with view and document, and nothing is lost."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import millstream as ms
from millstream.errors import DefinitionError, HookError, InputError

SCHEMA = "id long, name string, age long, gone boolean, ts long"


def users_of(pipeline: ms.Pipeline, **options: Any) -> Any:
    options = {"key": "id", "version": "ts", "deleted": "gone", **options}
    return pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), **options)


def user(id: Any, name: Any = "Sue", ts: Any = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "age": 30, "gone": False, "ts": ts, **more}


def made(define: Any, **options: Any) -> tuple[ms.Pipeline, ms.testing.LocalRunner]:
    pipeline = ms.Pipeline("people")
    define(users_of(pipeline, **options))
    return pipeline, ms.testing.LocalRunner(pipeline)


def count(users: Any) -> Any:
    return users.by("name").reduce(ms.count(), name="names")


def test_a_null_key_fails_the_epoch_or_becomes_a_dead_letter() -> None:
    _, runner = made(count)
    runner.push("users", user(None))
    with pytest.raises(InputError, match=r"stream 'users' into computation 'users': its key \('id'\) is null"):
        runner.run()
    _, runner = made(count, on_error=ms.DEAD_LETTER)
    runner.push("users", user(None), user(1))
    runner.run()
    ((_, letter, _),) = runner.output("users.dead-letters")
    assert "its key ('id') is null" in letter["error"] and runner.view("names") == {"Sue": 1}


@pytest.mark.parametrize(
    ("version", "why"),
    [(None, "the version is null"), (float("nan"), "the version is nan"), ({"a": 1}, "the version is .*a dict. Give a number")],
)
def test_a_version_that_is_none_is_named_with_its_record(version: Any, why: str) -> None:
    pipeline = ms.Pipeline("people")
    stream = pipeline.inject("in", ms.sources.files("in/", schema="id long, v string"))
    users = pipeline.table("users", stream, key="id", version=lambda row: version)
    users.by().reduce(ms.count(), name="n")
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("in", {"id": 7, "v": "x"})
    with pytest.raises(HookError, match=rf"computation 'users', key 7: InputError: table 'users': {why}(?s:.)*'v': 'x'"):
        runner.run()


def test_a_version_of_another_type_is_refused_and_the_rest_goes_on() -> None:
    pipeline = ms.Pipeline("people")
    stream = pipeline.inject("in", ms.sources.files("in/", schema="id long, at long"))
    users = pipeline.table(
        "users", stream, key="id", version=lambda row: str(row["at"]) if row["at"] > 5 else row["at"], on_error=ms.DEAD_LETTER
    )
    users.by().reduce(ms.max("at"), name="newest")
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("in", {"id": 1, "at": 3})
    runner.run()
    runner.push("in", {"id": 1, "at": 9})
    runner.run()
    ((_, letter, _),) = runner.output("users.dead-letters")
    assert "the version '9' is a str, and an earlier one, 3, is a int" in letter["error"]
    runner.push("in", {"id": 1, "at": 4})
    runner.run()
    assert runner.view("newest") == {"": 4}
    runner.check()


def test_versions_may_be_times_texts_and_several_fields() -> None:
    pipeline = ms.Pipeline("people")
    stream = pipeline.inject("in", ms.sources.files("in/", schema="id long, at timestamp, n long"))
    pipeline.table("users", stream, key="id", version=["at", "n"])
    runner = ms.testing.LocalRunner(pipeline)
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    runner.push("in", {"id": 1, "at": day, "n": 2}, {"id": 1, "at": day, "n": 1}, {"id": 1, "at": day - datetime.timedelta(days=1), "n": 9})
    runner.run()
    assert runner.view("users")[1]["n"] == 2


def raises_for_joe(row: Any) -> Any:
    if row.value["name"] == "Joe":
        raise ValueError("no Joes")
    return row.value["name"]


def test_a_map_that_raises_names_view_and_document_and_loses_nothing() -> None:
    _, runner = made(lambda users: users.by(raises_for_joe).reduce(ms.count(), name="names"))
    runner.push("users", user(7), user(8, "Joe"))
    with pytest.raises(HookError, match=r"view 'names', document 8: ValueError: no Joes"):
        runner.run()
    assert runner.view("names") == {}


def test_with_dead_letters_a_document_gives_nothing_until_it_maps_again() -> None:
    def define(users: Any) -> None:
        users.by(raises_for_joe).reduce(ms.count(), name="names", on_error=ms.DEAD_LETTER)
        users.by("age").reduce(ms.count(), name="ages")

    pipeline, runner = made(define)
    runner.push("users", user(7), user(8))
    runner.run()
    runner.push("users", user(8, "Joe", ts=2))
    runner.run()
    assert runner.view("names") == {"Sue": 1} and runner.view("ages") == {30: 2}
    ((key, letter, _),) = runner.output(pipeline.dead_letters("names").name)
    assert (key, letter["computation"], letter["error"], letter["value"]["name"]) == (8, "names", "ValueError: no Joes", "Joe")
    assert "raises_for_joe" in letter["traceback"]
    runner.push("users", user(8, "Joe", ts=3))
    runner.run()
    assert runner.view("names") == {"Sue": 1} and len(runner.output("names.dead-letters")) == 2
    runner.push("users", user(8, "Tod", ts=4))
    runner.run()
    assert runner.view("names") == {"Sue": 1, "Tod": 1}
    runner.check()


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (lambda row: 1.5, "a float cannot be a key"),
        (lambda row: None, "the key is None"),
        ("nme", r"by\('nme'\): there is no such field; there are: id, name"),
        (lambda row: row.value["x"], "KeyError: 'x'"),
    ],
)
def test_a_group_that_cannot_be_is_named(by: Any, why: str) -> None:
    _, runner = made(lambda users: users.map(lambda row: row.value).by(by).reduce(ms.count(), name="names"))
    runner.push("users", user(7))
    with pytest.raises(HookError, match=rf"view 'names', document 7: .*{why}"):
        runner.run()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (lambda row: range(1_000_000), "flat_map gave more than 100,000 values"),
        (lambda row: "abc", "flat_map must give a list of values"),
        (lambda row: 5, "flat_map must give a list of values"),
        (lambda row: None, "flat_map must give a list of values"),
    ],
)
def test_a_flat_map_that_gives_no_list_or_too_much_is_named(values: Any, why: str) -> None:
    _, runner = made(lambda users: users.flat_map(values).by(lambda row: row.value).reduce(ms.count(), name="names"))
    runner.push("users", user(7))
    with pytest.raises(HookError, match=rf"view 'names', document 7: .*{why}"):
        runner.run()


def test_a_value_that_cannot_travel_is_named() -> None:
    _, runner = made(lambda users: users.map(lambda row: object()).by(lambda row: "x").reduce(ms.any_value(), name="odd"))
    runner.push("users", user(7))
    with pytest.raises(HookError, match=r"view 'odd', document 7: "):
        runner.run()


class Everything(ms.Reducer):
    def lift(self, value: Any) -> Any:
        return ["x" * 200]

    def combine(self, a: Any, b: Any) -> Any:
        return a + b


def test_a_reducer_that_does_not_reduce_names_view_and_group() -> None:
    _, runner = made(lambda users: users.by("name").reduce(Everything(), name="odd"))
    runner.push("users", *[user(id) for id in range(2_000)])
    with pytest.raises(HookError, match=r"view 'odd', group 'Sue': a node of partial results .* does not make them smaller"):
        runner.run()


def test_what_is_defined_wrongly_is_refused_at_once() -> None:
    pipeline = ms.Pipeline("people")
    users = users_of(pipeline)
    source = ms.sources.files("in/", schema=SCHEMA)
    with pytest.raises(DefinitionError, match=r"table 'other' has 2 sources and no version="):
        pipeline.table("other", source, source, key="id")
    with pytest.raises(DefinitionError, match=r"two computations, tables or views are called 'users'"):
        pipeline.table("users", source, key="id")
    count(users)
    with pytest.raises(DefinitionError, match=r"are called 'names'"):
        count(users)
    with pytest.raises(DefinitionError, match=r"origins=False needs a reducer with an inverse, and min\('age'\) has none"):
        users.by("name").reduce(ms.min("age"), name="least", origins=False)
    with pytest.raises(DefinitionError, match=r"goes by the version of documents, and View\('names'\) has none: say by="):
        pipeline._relations[1].by().reduce(ms.last(), name="last")
    with pytest.raises(DefinitionError, match=r"ms.count is called to make a reducer"):
        users.by("name").reduce(ms.count, name="x")
    with pytest.raises(DefinitionError, match=r"give a function of the document"):
        users.map("name")
    with pytest.raises(DefinitionError, match=r"give names of fields"):
        users.by(5)
    with pytest.raises(DefinitionError, match=r'use "inner" or "left"'):
        users.by("age").join(users, how="outer")
    with pytest.raises(DefinitionError, match=r"give a table or a view"):
        users.by("age").join("users")
    with pytest.raises(DefinitionError, match=r"the right side is the join 'users-users', whose rows are many per key"):
        users.by("age").join(users.by("age").join(users), name="twice")
    with pytest.raises(DefinitionError, match=r"a flat_map on the right side"):
        users.by("age").join(users.flat_map(lambda row: []))
    with pytest.raises(DefinitionError, match=r'use "changes" or "latest"'):
        pipeline.publish(users, ms.sinks.files("x/"), mode="all")
    with pytest.raises(DefinitionError, match=r"streams go to sinks with emit"):
        pipeline.publish(users.changes, ms.sinks.files("x/"))
    with pytest.raises(DefinitionError, match=r"no view is called 'nmes'; there are: "):
        ms.testing.LocalRunner(pipeline).view("nmes")


def test_a_missing_join_field_is_named() -> None:
    _, runner = made(lambda users: users.map(lambda row: row.value).by("boss").join(users, name="bosses").by().reduce(ms.count(), name="n"))
    runner.push("users", user(7))
    with pytest.raises(
        HookError, match=r"view 'bosses', document 7: LookupError: by\('boss'\): there is no such field; there are: id, name, age"
    ):
        runner.run()


class Passes(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value)


def test_columns_that_are_not_there_are_named() -> None:
    pipeline = ms.Pipeline("people")
    stream = pipeline.compute(Passes, pipeline.inject("in", ms.sources.files("in/", schema=SCHEMA)), key="id", produces="passed")
    count(pipeline.table("users", stream, key="id", columns=["name", "nme"]))
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("in", user(7))
    with pytest.raises(HookError, match=r"table 'users': columns=\['name', 'nme'\], and the document .* lacks 'nme'"):
        runner.run()
    _, runner = made(count, columns=["name"])
    runner.push("users", user(7))
    runner.run()
    assert runner.view("users") == {7: {"name": "Sue"}}
