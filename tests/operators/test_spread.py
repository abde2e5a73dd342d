"""Windows of hot keys (`spread=`): the results are those of one operator, on both paths, under faults; what cannot be spread is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import DefinitionError
from millstream.operators import spread
from operators.test_windows import KINDS, assert_empty, rows
from operators.windowkit import REDUCERS, SCHEMA, pipeline

#: Beside those of the kit: parts that are lists, that are of several types, and that functions make.
MORE: dict[str, Any] = {
    "sum": ms.sum("weight"),
    "stats": ms.stats("price"),
    "best": ms.top(2, "page", by="price", ties=True),
    "ids": ms.collect("id"),
    "odd": ms.count(where=lambda value: (value["price"] or 0) % 2),
    "mixed": ms.collect(lambda value: [value["price"], {"page": value["page"]}]),
}


def run(p: ms.Pipeline, given: list[dict[str, Any]], dice: random.Random, shards: int) -> ms.testing.LocalRunner:
    runner = ms.testing.LocalRunner(p, shards=shards)
    at = 0
    while at < len(given):
        runner.push("visits", *given[at : (at := at + dice.randint(1, 20))])
        runner.epoch()
    runner.drain()
    assert_empty(runner)
    return runner


def by_window(runner: ms.testing.LocalRunner, stream: str) -> list[str]:
    """Results with their ids. Of NaN and -0.0 the repr tells."""
    return sorted(map(repr, runner.records(stream)))


def check(name: str, seed: int, groups: int = 3, shards: int = 2) -> None:
    dice = random.Random(seed)
    kind, _, base = KINDS[name]
    gap = 3_600_000 if name == "day" else 400
    given = rows(dice, dice.randint(1, 60), base, gap, dice.choice([5, 20]) * gap)
    cuts = dice.random()
    one, other = (
        run(pipeline(kind, 5 * gap, reducers={**REDUCERS, **MORE}, **options), given, random.Random(cuts), shards)
        for options in ({}, {"spread": groups})
    )
    assert by_window(one, "windows") == by_window(other, "windows")
    late = [sorted(repr(value) for _, value, _ in runner.output("late")) for runner in (one, other)]
    assert late[0] == late[1]
    assert one.late("windows") == other.late("windows.parts") and other.late("windows") == 0


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=some(40), deadline=None)
@given(seed=st.integers(0, 10**9), groups=st.integers(2, 9), shards=st.integers(1, 3))
def test_the_results_their_ids_and_the_late_records_are_those_of_one_operator(name: str, seed: int, groups: int, shards: int) -> None:
    check(name, seed, groups, shards)


def test_twin_a_salt_that_is_not_taken_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread.Unsalted, "__call__", lambda self, record: record.key)
    with pytest.raises(AssertionError):
        check("tumbling", 1)


@pytest.mark.parametrize("name", ["tumbling", "hopping"])
def test_faults_epochs_and_paths_do_not_matter(name: str) -> None:
    given = rows(random.Random(name), 40, 0, 500, 3_000)
    for row in given:
        row["weight"] = row["weight"] if row["weight"] == row["weight"] else 0.1  # NaN is not equal to itself
    p = pipeline(KINDS[name][0], 3_000, dedup="10m", reducers={**REDUCERS, **MORE}, spread=4)
    ms.testing.assert_exactly_once(p, given, seeds=range(some(30)))
    ms.testing.assert_exactly_once(p, given, seeds=range(some(15)), resident=True, epochs="same")


def visits(p: ms.Pipeline, name: str, **options: Any) -> ms.Stream:
    return p.inject(name, ms.sources.files(f"{name}/", schema=SCHEMA), timestamp="at", **{"id": "id", **options})


@pytest.mark.parametrize(
    "by",
    [
        lambda s: s.by(),
        lambda s: s.by("user", "page"),
        lambda s: s.by("upper(user)"),
        lambda s: s.by(lambda r: (r.value["user"],)),
        lambda s: s.map(lambda r: {**r.value, "user": [r.value["user"]]}).by(lambda r: r.value["user"][0]),
        lambda s: s.by("user").map("page").merge(s.filter("price > 3").by("page")),
        lambda s: s.by("user").window(ms.windows.tumbling("1s")).reduce(page=ms.last("page"), name="seconds").by("page"),
    ],
    ids=["one group", "two fields", "text", "tuple of one", "mapped", "merged", "behind a window"],
)
def test_every_kind_of_key_can_be_spread(by: Any) -> None:
    def results(**options: Any) -> list[str]:
        p = ms.Pipeline("keys")
        p.emit(by(visits(p, "visits")).window(ms.windows.tumbling("3s")).reduce(ms.count(), name="windows", **options), ms.sinks.memory())
        given = [{**row, "page": row["page"] or "none"} for row in rows(random.Random(3), 50, 0, 400, 0)]
        return by_window(run(p, given, random.Random(1), 2), "windows")

    assert results() == results(spread=5) != []


def test_the_window_that_results_came_from_can_be_spread() -> None:
    def results(**options: Any) -> list[str]:
        p = ms.Pipeline("same")
        counts = visits(p, "visits").by("user").window(ms.windows.hopping("4s", every="2s")).reduce(n=ms.count(), name="counts")
        p.emit(counts.by().window(ms.windows.same()).reduce(best=ms.top(2, by="n"), name="best", **options), ms.sinks.memory())
        return by_window(run(p, rows(random.Random(4), 50, 0, 400, 0), random.Random(1), 2), "best")

    assert results() == results(spread=2) != []


def test_a_hot_key_is_counted_in_several_shards() -> None:
    p = pipeline(KINDS["tumbling"][0], reducers={"n": ms.count()}, spread=16)
    runner = ms.testing.LocalRunner(p, shards=4)
    runner.push("visits", *[{**row, "user": "sue"} for row in rows(random.Random(1), 200, 0, 1, 0)])
    runner.epoch()
    stores = [store for (name, _), store in runner._engine.stores.items() if name == "windows.parts"]
    assert len(stores) == 4 and all(store.entries for store in stores)


def test_what_cannot_be_processed_is_a_dead_letter_of_the_operator() -> None:
    p = ms.Pipeline("dead")
    keyed = visits(p, "visits").by("user").map(lambda r: 6 // r.value["price"] if r.value["price"] != 2 else "two")
    windows = keyed.window(ms.windows.tumbling("1h"))
    p.emit(windows.reduce(least=ms.min(), name="windows", spread=2, on_error=ms.DEAD_LETTER), ms.sinks.memory())
    p.emit(p.dead_letters("windows"), ms.sinks.memory(), name="dead")
    runner = ms.testing.LocalRunner(p)
    runner.push("visits", *[{"user": "sue", "at": 1, "id": str(n), "price": n % 4, "weight": None, "page": None} for n in range(8)])
    runner.push("visits", {"user": None, "at": 1, "id": "x", "price": 1, "weight": None, "page": None})
    runner.drain()
    dead = [value["error"].partition(":")[0] for _, value, _ in runner.output("dead")]
    assert dead.count("ZeroDivisionError") == 2 and len(dead) > 3, (
        "texts and numbers cannot be compared: in a group, or where groups are joined"
    )
    assert len(runner.output("windows")) == 1


def test_the_plan_says_it() -> None:
    told = pipeline(KINDS["tumbling"][0], reducers={"n": ms.count(), "ids": ms.collect("id")}, spread=7).explain()
    for line in (
        "windows.parts: window tumbling('1s'); reduce n=count(), ids=collect('id'); spread over 7 groups of each key; joined by windows",
        "windows: window same(); reduce n=count(), ids=collect('id')",
        "reads windows.parts by the key without the salt",
        "n = the parts of count(): on columns",
        "ids = the parts of collect('id'): record by record",
    ):
        assert line in told, told


@pytest.mark.parametrize(
    ("define", "told"),
    [
        (lambda s: s.window(ms.windows.session("1m")).reduce(ms.count(), name="n", spread=4), "session.* cannot have spread="),
        (lambda s: s.window(ms.windows.tumbling("1m"), lateness="1m").reduce(ms.count(), name="n", spread=4), "tells changes"),
        (lambda s: s.window(ms.windows.tumbling("1m")).reduce(ms.count(), name="n", spread=1), "a whole number from 2"),
        (lambda s: s.window(ms.windows.tumbling("1m")).reduce(ms.count(), name="n", spread=True), "a whole number from 2"),
    ],
)
def test_what_cannot_be_spread_is_refused(define: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        define(visits(ms.Pipeline("refused"), "visits").by("user"))


def test_an_injected_stream_needs_ids() -> None:
    keyed = visits(ms.Pipeline("refused"), "visits", id=None).by("user")
    with pytest.raises(DefinitionError, match="give inject"):
        keyed.window(ms.windows.tumbling("1m")).reduce(ms.count(), name="n", spread=4)
