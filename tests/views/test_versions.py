"""Versions decide: replays, sources that repeat, several sources of one table, versions out of order, and ties."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from faultkit import SOURCE, Runner, chain, people, ran, random_posts, user
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.guards import Guards
from millstream.errors import DefinitionError


def replayed(runner: Runner, rows: Sequence[dict[str, Any]], stream: str = "users") -> int:
    """How many changes a replay of the source publishes."""
    before = len(runner.output("names~changelog")) + len(runner.output("users~changelog"))
    for row in rows:
        runner.push(stream, row)
        runner.epoch()
    return len(runner.output("names~changelog")) + len(runner.output("users~changelog")) - before


def test_a_replay_of_the_whole_source_beyond_the_dedup_horizon_publishes_nothing() -> None:
    pipeline = ms.Pipeline("people")
    source = ms.sources.files("in/", schema="id long, name string, gone boolean, ts long, post string")
    posted = pipeline.inject("posts", source, id="post", dedup="10m")
    users = pipeline.table("users", posted, key="id", version="ts", deleted="gone")
    pipeline.publish(users, ms.sinks.files("out/"))
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    rows = [{**row, "post": str(at)} for at, row in enumerate(random_posts(2))]
    runner = Runner(pipeline, now=1_000)
    assert replayed(runner, rows, "posts") > 0
    state, names = dict(runner.state("users")), runner.view("names")
    assert replayed(runner, rows, "posts") == 0 and runner.duplicates == len(rows), "within the horizon ids tell"
    runner.advance_clock(3_600_000)
    assert replayed(runner, rows, "posts") == 0 and runner.duplicates == len(rows), "beyond it versions do"
    assert runner.state("users") == state and runner.view("names") == names
    assert runner._engine.tallies["users"]["stale"] > 0
    runner.check()


def test_a_stale_replay_without_versions_brings_old_names_back() -> None:
    posts = [[user("Sue", 1)], [user("Joe", 2)]]
    assert replayed(ran(people(), *posts), [user("Sue", 1)]) == 0
    twin = ran(people(), *posts, guards=Guards.without("versions"))
    assert replayed(twin, [user("Sue", 1)]) > 0 and twin.view("names") == {"Sue": 1}


def test_without_ids_and_versions_a_repeat_of_the_newest_is_nothing_and_an_older_one_is_a_new_fact() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", deleted="gone")
    pipeline.publish(users, ms.sinks.files("out/"))
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    posts = [user("Sue", 1), user("Joe", 2)]
    runner = ran(pipeline, posts[:1], posts[1:])
    assert replayed(runner, posts[1:]) == 0
    assert replayed(runner, posts[:1]) > 0 and runner.view("names") == {"Sue": 1}
    assert replayed(runner, posts) > 0 and runner.view("names") == {"Joe": 1}, "and forward again with the rest"


def two_spouts() -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, SOURCE, key="id", version="ts", deleted="gone")
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    return pipeline


def interleavings(**options: Any) -> set[str]:
    """The results of all orders of three posts by two spouts, in all splits into epochs."""
    posts = [("users", user("Sue", 1)), ("users", user("Joe", 2)), ("users.2", user("Bob", 3))]
    found = set()
    for order in itertools.permutations(posts):
        for split in itertools.product([False, True], repeat=2):
            runner = Runner(two_spouts(), **options)
            for (stream, row), ends in zip(order, [*split, True], strict=True):
                runner.push(stream, row)
                if ends:
                    runner.epoch()
            assert chain(runner.output("names~changelog")) == runner.view("names")
            found.add(str(runner.view("names")))
    return found


def test_two_spouts_in_all_interleavings_and_epochs_give_one_result() -> None:
    assert interleavings() == {"{'Bob': 1}"}
    assert interleavings(guards=Guards.without("versions")) == {"{'Bob': 1}", "{'Joe': 1}", "{'Sue': 1}"}


def test_two_spouts_without_versions_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"table 'users' has 2 sources and no version=.*which of two documents is the newer one"):
        ms.Pipeline("people").table("users", SOURCE, SOURCE, key="id")


def test_two_spouts_under_faults_are_one_table() -> None:
    rows = [(("users", "users.2")[at % 2], row) for at, row in enumerate(random_posts(3, 20))]
    ms.testing.assert_exactly_once(two_spouts(), rows, seeds=range(some(30)))


VERSIONS = st.lists(st.tuples(st.sampled_from(["Sue", "Joe", "Bob"]), st.integers(1, 3), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=some(60), deadline=None)
@given(st.data(), VERSIONS)
def test_permutations_of_versions_and_ties_give_one_table(data: Any, versions: list[tuple[str, int, bool]]) -> None:
    results = []
    for order in (versions, data.draw(st.permutations(versions))):
        runner = Runner(people(), shards=1)
        for name, ts, gone in order:
            runner.push("users", user(name, ts, gone=gone))
            if data.draw(st.booleans()):
                runner.epoch()
        runner.epoch()
        runner.check()
        results.append((runner.state("users", 7).essence(), runner.view("names")))
    assert results[0] == results[1]


@pytest.mark.parametrize("split", [False, True])
def test_of_equal_versions_a_deletion_wins_and_then_the_greater_bytes(split: bool) -> None:
    def results(posts: Sequence[dict[str, Any]]) -> set[str]:
        return {
            str(ran(people(), *([[post] for post in order] if split else [order])).view("names")) for order in itertools.permutations(posts)
        }

    assert results([user("Sue", 5), user("Joe", 5), user("Bob", 5)]) == {"{'Sue': 1}"}
    assert results([user("Sue", 5), user("Joe", 5), user("Bob", 5, gone=True)]) == {"{}"}
    assert results([user("Sue", 5), user("Joe", 4), user("Bob", 4, gone=True)]) == {"{'Sue': 1}"}


def versioned_table(pipeline: ms.Pipeline, name: str = "users", **options: Any) -> Any:
    source = ms.sources.files("in/", schema="id long, name string, age long, ts long, gone boolean")
    return pipeline.table(name, source, key="id", deleted="gone", **{"version": "ts", **options})


def defined(define: Any) -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    define(pipeline, 0)
    return pipeline


def person(id: int, name: str, age: int = 1, ts: int = 1) -> dict[str, Any]:
    return {"id": id, "name": name, "age": age, "ts": ts, "gone": False}


def test_a_newer_version_of_an_equal_document_is_heard_by_those_who_look_at_versions() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        users = versioned_table(pipeline, columns=["name", "age"])
        users.by("name").reduce(ms.last("age"), name="last")
        users.by(lambda row: row.version).reduce(ms.count(), name="versions")
        pipeline.publish(users, ms.sinks.files("out/"))

    runner = Runner(defined(define))
    runner.push("users", person(1, "a", 10, ts=1), person(2, "a", 20, ts=2))
    runner.run()
    runner.push("users", person(1, "a", 10, ts=3))
    runner.run()
    assert runner.view("last") == {"a": 10}
    assert runner.view("versions") == {2: 1, 3: 1}
    assert len(runner.output("users~changelog")) == 2  # the document is the same
    runner.check()


def test_a_table_without_versions_gives_its_documents_none() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        versioned_table(pipeline, version=None, timestamp="ts").by(lambda row: row.version or 0).reduce(
            ms.count(), name="versions", origins=False
        )

    runner = Runner(defined(define))
    for ts in (5, 6, 7):
        runner.push("users", person(1, "a", ts, ts=ts))
        runner.run()
    assert runner.view("versions") == {0: 1}
    runner.check()
