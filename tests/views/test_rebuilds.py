"""Views that are filled anew: nothing that an older build left shows. Names come back, senders change under a scan, reducers follow others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faultkit import SOURCE, Runner, ran
from faultkit import user as post
from viewkit import SCHEMA
from viewkit import user as any_user

import millstream as ms
from millstream.core import backfill


def user(id: int, name: str, age: int = 1, ts: int = 1) -> dict[str, Any]:
    return any_user(id, name, age, ts)


def table(pipeline: ms.Pipeline, name: str = "users", **options: Any) -> Any:
    source = ms.sources.files("in/", schema=SCHEMA)
    return pipeline.table(name, source, key="id", deleted="gone", **{"version": "ts", **options})


def made(define: Callable[[ms.Pipeline, int], None], version: int) -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    define(pipeline, version)
    return pipeline


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "FIRST_CHUNK", 3)
    monkeypatch.setattr(backfill, "_chunk", lambda chunk, millis: 3)


@pytest.mark.parametrize("epochs", [1, 2, 9])
def test_a_view_that_was_removed_and_comes_back_is_filled_from_the_beginning(epochs: int) -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        users = table(pipeline)
        users.by("name").reduce(ms.count(), name="names")
        if version:
            users.by("age").reduce(ms.count(), name="ages", origins=False)

    runner = ms.testing.LocalRunner(made(define, 0), shards=1)
    runner.push("users", *(user(id, "a") for id in range(9)))
    runner.run()
    runner.become(made(define, 1))
    for _ in range(epochs):  # half filled, or wholly
        runner.epoch()
    runner.become(made(define, 0))
    runner.epoch()
    runner.become(made(define, 1))
    runner.run()
    assert runner.view("ages") == {1: 9}
    runner.check()


def test_a_view_whose_sender_is_begun_anew_under_its_scan_hears_of_the_cut_over() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        names = table(pipeline).by("name").reduce(ms.count(), name="names", version=max(version, 1))
        if version:
            names.by(lambda row: row.value).reduce(ms.count(), name="sizes")

    runner = ms.testing.LocalRunner(made(define, 0), shards=1)
    runner.push("users", *(user(id, f"n{id}") for id in range(12)))
    runner.run()
    runner.become(made(define, 1))
    runner.epoch()
    runner.epoch()
    assert 0 < runner._engine.builds["sizes"].scanned < 12
    runner.become(made(define, 2))
    runner.push("users", *(user(100 + id, f"n{id}") for id in range(12)))
    runner.run()
    assert runner.view("sizes") == {2: 12}
    runner.check()


def test_a_join_whose_right_side_is_begun_anew_under_its_scan_hears_of_its_left_side() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        names = table(pipeline).by("name").reduce(ms.count(), name="names", version=max(version, 1))
        orders = table(pipeline, "orders")
        if version:
            orders.by("name").join(names, name="pairs").by(lambda row: row.value["right"]).reduce(ms.count(), name="pairs_by")

    runner = ms.testing.LocalRunner(made(define, 0), shards=1)
    runner.push("users", *(user(id, f"n{id}") for id in range(12)))
    runner.push("orders", *(user(id, f"n{id}") for id in range(12)))
    runner.run()
    runner.become(made(define, 1))
    runner.epoch()
    runner.become(made(define, 2))
    runner.push("orders", *(user(id, "n0", ts=2) for id in range(12)))
    runner.push("users", user(100, "n0"))
    runner.run()
    assert runner.view("pairs_by") == {2: 12}
    runner.check()


@pytest.mark.parametrize(
    ("reducer", "options"),
    [(ms.count_distinct("name"), {"origins": False}), (ms.count_distinct("name"), {"inline": 0}), (ms.min("name"), {"inline": 0})],
)
def test_nothing_of_another_reducer_stays_in_a_group(reducer: Any, options: dict[str, Any]) -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        table(pipeline).by("age").reduce(ms.count() if version == 2 else reducer, name="kinds", version=version, **options)

    runner = ms.testing.LocalRunner(made(define, 1))
    runner.push("users", *(user(id, f"n{id}") for id in range(40)))
    runner.run()
    before = runner.view("kinds")
    runner.become(made(define, 2))
    runner.push("users", *(user(id, f"n{id}", 2, ts=2) for id in range(40)))
    runner.run()
    assert runner.view("kinds") == {2: 40}
    assert list(runner.state("kinds")) == [2]
    runner.become(made(define, 3))
    runner.push("users", *(user(id, f"n{id}", 1, ts=3) for id in range(40)))
    runner.run()
    assert runner.view("kinds") == before
    runner.check()


def test_a_smaller_inline_does_not_lay_out_what_an_older_reducer_left() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        users = table(pipeline)
        if version == 1:
            users.by("age").reduce(ms.count(), name="kinds", version=1)
        else:
            users.by(lambda row: row.value["age"] + 1).reduce(ms.stats("age"), name="kinds", version=2, inline=0)

    runner = ms.testing.LocalRunner(made(define, 1))
    runner.push("users", *(user(id, "a") for id in range(40)))
    runner.run()
    runner.become(made(define, 2))
    runner.run()
    assert list(runner.view("kinds")) == [2]
    runner.check()


@pytest.mark.parametrize("change", [{"origins": False}, {"reducer": ms.mean("age")}])
def test_what_was_under_way_to_an_older_build_is_not_for_the_new_one(change: dict[str, Any]) -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        options = dict(change) if version == 2 else {}
        reducer = options.pop("reducer", ms.count())
        table(pipeline).by("name").reduce(reducer, name="names", version=version, production=ms.STRONG, **options)

    runner = ms.testing.LocalRunner(made(define, 1))
    runner.push("users", user(1, "a"))
    runner.epoch()
    runner.become(made(define, 2))
    runner.run()
    assert runner.view("names") == {"a": 1}
    runner.check()


def test_a_scan_comes_to_the_empty_key() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        everybody = table(pipeline).by().reduce(ms.count(), name="all")  # its one group is called ""
        if version:
            everybody.by(lambda row: row.value).reduce(ms.count(), name="sizes")

    runner = ms.testing.LocalRunner(made(define, 0))
    runner.push("users", user(1, "a"), user(2, "b"))
    runner.run()
    runner.become(made(define, 1))
    runner.run()
    assert runner.view("sizes") == {2: 1}
    runner.check()


def test_a_scan_for_one_view_sends_no_dead_letters_of_another() -> None:
    def define(pipeline: ms.Pipeline, version: int) -> None:
        users = table(pipeline)
        users.by(lambda row: {"a": 1}[row.value["name"]]).reduce(ms.count(), name="strict", on_error=ms.DEAD_LETTER)
        if version:
            users.by("age").reduce(ms.count(), name="ages")

    runner = ms.testing.LocalRunner(made(define, 0))
    runner.push("users", user(1, "a"), user(2, "b"))
    runner.run()
    runner.become(made(define, 1))
    runner.run()
    assert runner.view("ages") == {1: 2}
    assert len(runner.output("strict.dead-letters")) == 1


def test_a_changed_map_is_filled_anew_and_with_the_old_state_it_is_wrong() -> None:
    def version(by: Any, **options: Any) -> ms.Pipeline:
        pipeline = ms.Pipeline("people")
        users = pipeline.table("users", SOURCE, key="id", version="ts")
        users.by(by).reduce(ms.count(), name="names", **options)
        return pipeline

    def changed(**options: Any) -> Runner:
        kept = {name: value for name, value in options.items() if name == "origins"}
        runner = ran(version("name", **kept), [post("Sue", 1, id) for id in range(3)])
        runner.become(version(lambda row: row.value["name"].lower(), **options))
        runner.push("users", *[post("Joe", 2, id) for id in range(3)])
        runner.run()
        return runner

    right = changed(version="2")
    assert right.view("names") == {"joe": 3}
    right.check()
    wrong = changed(keep=True)
    assert wrong.view("names") == {"Sue": 3, "joe": 3}
    with pytest.raises(AssertionError, match="group 'Sue'"):
        wrong.check()
    plain = changed(keep=True, origins=False)
    assert plain.view("names") == {"Sue": 3, "joe": 3} and plain.state("names", "sue").count == -3
