"""The fault kit on tables, views and joins: what they say may not depend on epochs, how they say it may; a view that is wrong in any epoch is found."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import millstream as ms
from millstream.core.guards import Guards
from millstream.testing import assert_exactly_once, assert_same_in_any_epochs

SCHEMA = "id long, name string, age long, gone boolean, ts long"
SOURCE = ms.sources.files("in/", schema=SCHEMA)


def posts(seed: int, count: int = 40, ids: int = 8) -> list[dict[str, Any]]:
    """Changes, deletions, stale versions and ties."""
    dice = random.Random(seed)
    return [
        {
            "id": dice.randrange(ids),
            "name": dice.choice("abcd"),
            "age": dice.randrange(ids),
            "gone": dice.random() < 0.2,
            "ts": at if dice.random() < 0.7 else dice.randrange(at + 1),
        }
        for at in range(count)
    ]


def people(**versioned: Any) -> tuple[ms.Pipeline, Any]:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", deleted="gone", **(versioned or {"version": "ts"}))
    return pipeline, users


def everything(**versioned: Any) -> ms.Pipeline:
    """Tables, views of all layouts, a view on a view, joins, dead letters, all kinds of published streams."""
    pipeline, users = people(**versioned)
    names = users.by("name").reduce(ms.count(), name="names", inline=0)
    users.by("age").reduce(name="ages", n=ms.count(), first=ms.min("id"), inline=30)
    users.by().reduce(ms.sum("age"), name="plain", origins=False)
    picky = users.by(lambda row: 10 // row.value["age"]).reduce(ms.count(), name="picky", on_error=ms.DEAD_LETTER)
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes", production=ms.STRONG)
    pairs = users.by("age").join(users, how="left", name="pairs")
    for at, relation in enumerate((users, names, picky, sizes, pairs)):
        pipeline.publish(relation, ms.sinks.files("out/"), mode="latest" if at % 2 else "changes")
    return pipeline


class Last(ms.Computation):
    """What every group was changed to at last."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state = [record.value[1]]


class Changes(ms.Computation):
    """How often a group has changed: that depends on epochs."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1


class Unfair(ms.Reducer):
    """The order of values counts."""

    def combine(self, a: int, b: int) -> int:
        return 2 * a + b


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_views_and_joins_say_the_same_in_any_epochs(seed: int) -> None:
    assert_same_in_any_epochs(everything(), posts(seed))


def test_they_do_not_say_it_in_the_same_way() -> None:
    """The twin: without the rule, streams and layouts differ."""
    runners = []
    for singly in (True, False):
        runner = ms.testing.LocalRunner(everything())
        for row in posts(1):
            runner.push("users", row)
            if singly:
                runner.epoch()
        runner.run()
        runners.append(runner)
    one, other = runners
    assert [one.view(name) for name in ("names", "ages", "sizes")] == [other.view(name) for name in ("names", "ages", "sizes")]
    assert len(one.output("users~changelog")) > len(other.output("users~changelog"))
    assert len(one.output("names~")) > len(other.output("names~"))


def test_without_versions_the_order_of_arrival_counts_and_is_not_compared() -> None:
    pipeline, users = people(tombstones=None)
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    runners = [ms.testing.LocalRunner(pipeline) for _ in range(2)]
    for runner, singly in zip(runners, (True, False), strict=True):
        for name in ("b", "a"):
            runner.push("users", {"id": 1, "name": name, "age": 1, "gone": False, "ts": 1})
            if singly:
                runner.epoch()
        runner.run()
    assert [runner.view("names") for runner in runners] == [{"a": 1}, {"b": 1}]
    assert_same_in_any_epochs(pipeline, posts(1))


@pytest.mark.slow
def test_what_reads_the_changes_is_the_users_affair() -> None:
    def reading(computation: Any, **options: Any) -> ms.Pipeline:
        pipeline, users = people()
        names = users.by("name").reduce(ms.count(), name="names")
        pipeline.compute(computation, names.changes, key=lambda record: record.key, name="Reads", **options)
        return pipeline

    assert_same_in_any_epochs(reading(Last), posts(2))
    with pytest.raises(AssertionError, match=r"depends on how input falls into epochs\nstate of 'Reads', key '[abcd]'"):
        assert_same_in_any_epochs(reading(Changes), posts(2))


def test_what_a_view_shows_is_compared() -> None:
    """A map that follows something outside of the document shows in the view."""
    counter = itertools.count()

    def moody(row: Any) -> Any:
        return next(counter) % 3

    pipeline, users = people()
    users.by(moody).reduce(ms.count(), name="moods")
    with pytest.raises(AssertionError, match=r"(not deterministic|a view is not what a recomputation of its rows gives)(.|\n)*'moods'"):
        assert_same_in_any_epochs(pipeline, posts(1))


def test_a_reducer_for_which_the_order_counts_is_found() -> None:
    pipeline, users = people()
    users.map(lambda row: row.value["id"]).by().reduce(Unfair(), name="unfair", inline=0)
    with pytest.raises(
        AssertionError, match=r"(a view is not what a recomputation|depends on how input falls into epochs)(.|\n)*'unfair', group ''"
    ):
        assert_same_in_any_epochs(pipeline, posts(1))


def test_a_view_that_is_wrong_in_any_epoch_is_a_counterexample() -> None:
    """At the end nothing is left of it: only a look after every epoch finds it."""

    class Wrong(ms.Reducer):
        def combine(self, a: int, b: int) -> int:
            return a + b

        def remove(self, total: int, part: int) -> int:
            return total + part  # as if it had been put in once more

    def pipeline(reducer: Any) -> ms.Pipeline:
        pipeline, users = people()
        users.map(lambda row: row.value["id"]).by().reduce(reducer, name="wrong")
        return pipeline

    rows = [{"id": id, "name": "a", "age": 1, "gone": gone, "ts": ts} for ts, gone in enumerate((False, True)) for id in (1, 2, 3)]
    with pytest.raises(AssertionError) as caught:
        assert_exactly_once(pipeline(Wrong()), rows, seeds=range(20), epochs="same")
    said = str(caught.value).splitlines()
    assert "a view is not what a recomputation of its rows gives: no fault was needed to see it" in said[0] and "seed " in said[0]
    assert said[1].startswith("after epoch ") and "view 'wrong', group ''" in said[1]
    assert_exactly_once(pipeline(ms.sum(lambda value: value)), rows, seeds=range(5), epochs="same")


@pytest.mark.parametrize(("guard", "view"), [("versions", "users"), ("origins", "names")])
def test_a_view_that_is_wrong_in_the_cluster_alone_is_a_counterexample_with_its_schedule(guard: str, view: str) -> None:
    """The undisturbed run keeps all rules; in the cluster one is off, and a record that comes again shows it."""
    pipeline, users = people(version="ts", timestamp="ts")
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    rows = [{"id": 1, "name": name, "age": 1, "gone": False, "ts": ts} for ts, name in enumerate("abc")]
    with pytest.raises(AssertionError) as caught:
        assert_exactly_once(pipeline, rows, seeds=range(100), epochs="same", guards=Guards.without(guard))
    said = str(caught.value).splitlines()
    assert said[1].startswith("  1. repeat in epoch") and len(said) == 3, said
    assert view in said[2]


@pytest.mark.slow
def test_records_that_come_again_change_nothing_where_versions_are_kept() -> None:
    assert_exactly_once(everything(), posts(3), seeds=range(30), faults=["repeat"], epochs="same")


@pytest.mark.slow
def test_a_run_may_be_restarted_as_another_version_of_the_pipeline() -> None:
    def version(number: int) -> ms.Pipeline:
        pipeline, users = people()
        by: Any = (lambda row: row.value["name"]) if number == 1 else (lambda row: row.value["name"].upper())
        names = users.by(by).reduce(ms.count(), name="names", version=number)
        pipeline.publish(names, ms.sinks.files("out/"))
        if number == 2:
            users.by("age").reduce(ms.count(), name="ages")
        return pipeline

    assert_exactly_once(version(1), posts(4), seeds=range(20), then=version(2))


def test_rows_in_the_form_of_debezium_are_tried_too() -> None:
    pipeline = ms.Pipeline("cdc")
    document = "struct<id: long, name: string>"
    schema = f"before {document}, after {document}, op string, source struct<lsn: long>"
    users = pipeline.table("users", ms.sources.files("in/", schema=schema), key="id", change=ms.changes.debezium())
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    rows = []
    for at, (id, name) in enumerate([(1, "a"), (2, "a"), (1, "b"), (2, None), (1, "a"), (3, "b")]):
        before, after = {"id": id, "name": "?"}, None if name is None else {"id": id, "name": name}
        rows.append({"before": before, "after": after, "op": "d" if name is None else "u", "source": {"lsn": at}})
    assert_exactly_once(pipeline, rows, seeds=range(10))
