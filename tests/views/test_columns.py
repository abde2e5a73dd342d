"""Tables and views on columns come to the same as row by row, bit by bit: entries, productions with their ids, counts and tallies, after every epoch."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from columnkit import Epochs, same_on_both_paths
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import seeds, some
from millstream.columnviews import contributing, saying, table_step, view_step
from millstream.core.guards import Guards

SCHEMA = "id long, name string, age int, paid double, gone boolean, ts long"


def source() -> Any:
    return ms.sources.files("in/", schema=SCHEMA)


def table(pipeline: ms.Pipeline, **options: Any) -> Any:
    return pipeline.table("users", source(), **{"key": "id", "version": "ts", "deleted": "gone", **options})


def lean() -> ms.Pipeline:
    pipeline = ms.Pipeline("lean")
    users = table(pipeline)
    users.by("name").reduce(ms.count(), name="names", origins=False)
    users.by("name", "age").reduce(ms.count("age"), name="both", origins=False)
    users.by().reduce(name="all", people=ms.count(), age=ms.sum("age"), mean=ms.mean("age"), origins=False)
    return pipeline


def kept() -> ms.Pipeline:
    pipeline = ms.Pipeline("kept")
    users = table(pipeline)
    names = users.by("name").reduce(ms.count(), name="names", inline=60)
    users.by("age").reduce(name="ages", least=ms.min("name"), most=ms.max("age"), inline=60)
    users.by().reduce(ms.min("age"), name="least", inline=60)
    names.by(lambda row: row.value).reduce(ms.count(), name="sizes")
    pipeline.publish(users, ms.sinks.files("users/"))
    pipeline.publish(names, ms.sinks.files("names/"))
    return pipeline


def functions() -> ms.Pipeline:
    """Much that does not work on columns, beside what does."""
    pipeline = ms.Pipeline("functions")
    users = table(pipeline)
    users.by("name").reduce(ms.count(), name="names")
    users.filter(lambda row: row.value["age"] is not None).by("age").reduce(ms.sum("paid"), name="paid")
    users.by(lambda row: (row.value["name"] or "?")[0]).reduce(ms.last("age"), name="letters", on_error=ms.DEAD_LETTER)
    users.by("age").reduce(ms.count_distinct("name"), name="different", origins=False, on_error=ms.DEAD_LETTER)
    users.by("id").join(users, how="left", name="pairs")
    return pipeline


def unversioned() -> ms.Pipeline:
    pipeline = ms.Pipeline("unversioned")
    users = table(pipeline, version=None, timestamp="ts")
    users.by("name").reduce(ms.count(), name="names")
    return pipeline


def narrow() -> ms.Pipeline:
    pipeline = ms.Pipeline("narrow")
    users = table(pipeline, columns=["age", "name"], deleted=None)
    users.by("name").reduce(ms.sum("age"), name="ages", origins=False)
    return pipeline


def two_sources() -> ms.Pipeline:
    pipeline = ms.Pipeline("two")
    users = pipeline.table("users", source(), source(), key=["id", "name"], version="ts", deleted=lambda row: row["gone"])
    users.by("name").reduce(ms.count(), name="names")
    return pipeline


def raising() -> ms.Pipeline:
    """Maps that raise, of a table that sends what it cannot take to dead letters, and of a view."""
    pipeline = ms.Pipeline("raising")
    users = table(pipeline, on_error=ms.DEAD_LETTER)
    users.by(lambda row: row.value["name"][0]).reduce(ms.count(), name="letters", origins=False)
    users.by("age").reduce(ms.count(), name="ages")
    return pipeline


def raising_later() -> ms.Pipeline:
    pipeline = ms.Pipeline("later")
    names = table(pipeline).by("name").reduce(ms.count(), name="names")
    names.by(lambda row: 12 // (row.value - 3)).reduce(ms.count(), name="sizes")
    return pipeline


NAMES = st.sampled_from(["Sue", "Joe", "Tod", "", "\0i7", "Zoë", "x" * 40, "日本"])
AGES = st.sampled_from([0, 1, 31, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, -1, -32, -33, -128, -129, -(2**31), None])


@st.composite
def posts(draw: Any, tidy: bool) -> dict[str, Any]:
    return {
        "id": draw(st.integers(0, 12)),
        "name": draw(NAMES if tidy else NAMES | st.none()),
        "age": draw(AGES.filter(lambda age: age is not None) if tidy else AGES),
        "paid": draw(st.sampled_from([0.0, -0.0, 1.5, 1e300, None])),
        "gone": draw(st.sampled_from([False, False, False, False, True, None])),
        "ts": draw(st.sampled_from([0, 1, 2, 3, 5, 100, 300, 70_000, 2**33, -5]) | st.integers(0, 60)),
    }


def epochs_of(tidy: bool = True, more: bool = False) -> Any:
    rows = st.lists(posts(tidy), max_size=25)
    one = st.fixed_dictionaries({"users": rows, "users.2": rows}) if more else st.fixed_dictionaries({"users": rows})
    return st.lists(one, min_size=1, max_size=5)


@pytest.mark.parametrize("make", [lean, kept, unversioned, narrow])
@settings(max_examples=some(240), deadline=None)
@given(data=st.data())
def test_both_paths_come_to_the_same(make: Any, data: Any) -> None:
    same_on_both_paths(make, data.draw(epochs_of()), data.draw(st.sampled_from([1, 2, 3])), data.draw(st.integers(0, 99)))


@settings(max_examples=some(240), deadline=None)
@given(epochs_of(), st.sampled_from([1, 2]))
def test_what_is_not_for_columns_goes_beside_what_is(epochs: Any, shards: int) -> None:
    same_on_both_paths(functions, epochs, shards)


@pytest.mark.parametrize("make", [lean, functions, raising, raising_later])
@settings(max_examples=some(240), deadline=None)
@given(data=st.data())
def test_what_cannot_be_mapped_is_blamed_in_the_same_words(make: Any, data: Any) -> None:
    same_on_both_paths(make, data.draw(epochs_of(tidy=False)), 1)


@settings(max_examples=some(160), deadline=None)
@given(epochs_of(more=True))
def test_two_sources_and_functions_of_the_row(epochs: Any) -> None:
    same_on_both_paths(two_sources, epochs)


@pytest.mark.parametrize("guards", ["versions", "restate", "origins"])
@settings(max_examples=some(80), deadline=None)
@given(epochs=epochs_of())
def test_without_a_guard_both_paths_are_wrong_in_the_same_way(guards: str, epochs: Any) -> None:
    same_on_both_paths(kept, epochs, 1, guards=Guards.without(guards))


def moving(seed: int, epochs: int = 8, each: int = 120, users: int = 500) -> list[dict[str, Any]]:
    """Users who move between few groups, which are large: their leaves are split and merged. Then most of them go."""
    dice, rows = random.Random(seed), []
    for epoch in range(epochs):
        of = "aaaab" if epoch < epochs - 2 else "bbbbbbbc"
        some = [
            {
                "id": dice.randrange(users),
                "name": dice.choice(of),
                "age": dice.randrange(40),
                "paid": 0.5,
                "gone": epoch > epochs - 3 and dice.random() < 0.7,
                "ts": epoch * each + at if dice.random() < 0.97 else dice.randrange(epoch * each + 1),
            }
            for at in range(each if epoch < epochs - 2 else 3 * each)
        ]
        rows.append({"users": some})
    return rows


@pytest.mark.parametrize("make", [lean, kept, functions])
@pytest.mark.parametrize("seed", seeds(40))
def test_large_groups(make: Any, seed: int) -> None:
    same_on_both_paths(make, moving(seed), 1 + seed % 2, seed)


class Said(ms.Computation):
    """Documents that are no rows of a table: of any form."""

    State = type(None)

    def process_record(self, record: Any) -> None:
        self.produce(json.loads(record.value["name"]), key=record.value["id"])


def of_a_stream() -> ms.Pipeline:
    pipeline = ms.Pipeline("said")
    rows = pipeline.inject("rows", source(), timestamp="ts")
    said = pipeline.compute(Said, rows, key="id", produces="said")
    users = pipeline.table("users", said, key=ms.PRODUCED, version="ts", deleted="gone")
    users.by("name").reduce(ms.count(), name="names")
    users.by("name", "age").reduce(name="ages", most=ms.max("age"), sum=ms.sum("age"), n=ms.count("age"), inline=50)
    users.by().reduce(ms.sum("age"), name="sum", origins=False)
    users.by().reduce(ms.mean("age"), name="mean", origins=False)
    return pipeline


NUMBERS = st.sampled_from([0, 7, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, True, None])


@st.composite
def any_documents(draw: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": draw(st.sampled_from(["Sue", "Joe", "\0i7", 7, True, "", "x" * 300])),
        "age": draw(NUMBERS if draw(st.booleans()) else st.integers(0, 9)),
        "gone": draw(st.sampled_from([False, False, False, None, 0, 1])),
        "ts": draw(st.integers(0, 9) | st.sampled_from([2**62, 2**64 - 1])),
    }
    if draw(st.integers(0, 4)) == 0:
        found = {"a": draw(st.sampled_from([[1, [2]], {"b": [3]}, 1.5, "long" * 90])), **found}
    return found


@settings(max_examples=some(240), deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 7), any_documents()), min_size=1, max_size=15), min_size=1, max_size=4))
def test_documents_of_any_form(epochs: Any) -> None:
    rows = [
        [{"id": id, "name": json.dumps(said), "age": 0, "paid": 0.0, "gone": False, "ts": at} for at, (id, said) in enumerate(epoch)]
        for epoch in epochs
    ]
    same_on_both_paths(of_a_stream, [{"rows": some} for some in rows], 1)


# --- what is told to a view without origins is added up before it travels


class Touchy(ms.Reducer):
    """Ages up to a hundred, all in all."""

    def lift(self, value: Any) -> Any:
        return value["age"]

    def combine(self, a: int, b: int) -> int:
        if a + b > 100:
            raise ValueError(f"{a} and {b} are too much")
        return a + b

    def remove(self, total: int, part: int) -> int:  # type: ignore[override]
        return total - part


def one_group(origins: bool = False, reducer: Any = None) -> ms.Pipeline:
    pipeline = ms.Pipeline("one")
    table(pipeline).by().reduce(reducer or ms.sum("age"), name="ages", origins=origins)
    return pipeline


def crowd(count: int, step: int, age: int = 1) -> list[dict[str, Any]]:
    return [{"id": id, "name": "Sue", "age": age * step, "paid": 0.0, "gone": False, "ts": step} for id in range(count)]


def bytes_told(count: int, origins: bool) -> int:
    """To one group, when the documents of a shard change."""
    run = Epochs(one_group(origins), lambda: False, 1)
    run.run({"users": crowd(count, 1)})
    (message,) = run.run({"users": crowd(count, 2)})["users", 0].productions
    return len(message.body)


def test_a_message_to_a_view_without_origins_is_as_large_as_its_sums() -> None:
    assert bytes_told(3_000, origins=False) == bytes_told(300, origins=False) < 30


def test_a_message_to_a_view_with_origins_is_as_large_as_what_has_changed() -> None:
    assert bytes_told(3_000, origins=True) > 9 * bytes_told(300, origins=True)


@settings(max_examples=some(160), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 3)), min_size=1, max_size=4))
def test_a_reducer_that_cannot_add_up_is_blamed_by_its_group(epochs: Any) -> None:
    """Not where the sender tries to."""
    rows = [{"users": crowd(count, step, age)} for step, (count, age) in enumerate(epochs, 1)]
    same_on_both_paths(lambda: one_group(reducer=Touchy()), rows, 1)


def test_the_group_of_a_reducer_that_raises_is_named() -> None:
    run = Epochs(one_group(reducer=Touchy()), lambda: False, 1)
    with pytest.raises(ms.errors.HookError, match=r"ages[^$]*too much"):
        run.run({"users": crowd(101, 1)})


# --- twins: the comparison can fail


def story() -> list[dict[str, Any]]:
    """Three epochs in which users change their names, more than one to a group."""

    def post(id: int, name: str, ts: int) -> dict[str, Any]:
        return {"id": id, "name": name, "age": id, "paid": 0.0, "gone": False, "ts": ts}

    return [{"users": [post(id, "ab"[id * step % 2], step) for id in range(9)]} for step in (1, 2, 3)]


def test_columns_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_back: list[int] = []
    tell = table_step.News.tell

    def counted(self: table_step.News, due: Any) -> None:
        kept_back.append(int(self.is_visited.sum()))
        tell(self, due)

    monkeypatch.setattr(table_step.News, "tell", counted)
    same_on_both_paths(lean, story(), 1)
    assert len(kept_back) >= 3 and not sum(kept_back)


def counted_visits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups of views that are visited."""
    visits: list[str] = []
    visit_key = view_step.ViewStep.visit_key

    def counted(self: view_step.ViewStep, row_key: bytes, *given: Any) -> None:
        visits.append(f"{self.name} {row_key.decode()}")
        visit_key(self, row_key, *given)

    monkeypatch.setattr(view_step.ViewStep, "visit_key", counted)
    return visits


def names_alone() -> ms.Pipeline:
    pipeline = ms.Pipeline("names")
    table(pipeline).by("name").reduce(ms.count(), name="names")
    return pipeline


def test_groups_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = counted_visits(monkeypatch)
    run = Epochs(names_alone(), lambda: False, 1)
    for rows in story():
        run.run(rows)
    assert not visits
    same_on_both_paths(names_alone, moving(1), 1)
    assert visits  # groups that leave their row, or shrink


def spoken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale document takes its origin out of the group in which it is stated again."""
    visits = counted_visits(monkeypatch)
    first, second, _ = story()
    stale = [{**post, "ts": 0} for post in second["users"]]
    epochs = [first, second, {"users": stale}, {"users": [*stale[:4], {**stale[0], "ts": 9}]}]
    run = same_on_both_paths(names_alone, epochs, 1)
    assert not visits
    assert any(entry.startswith(b"R") for entry in run.stores["names", 0].entries)


def test_an_origin_that_is_spoken_of_twice_stays_on_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken_twice(monkeypatch)


def test_an_origin_that_is_spoken_of_twice_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry as if it was the only one of its origin."""
    chained = view_step.chained

    def careless(spoken: Any, sets: Any) -> Any:
        return chained(spoken._replace(first=np.arange(len(sets))), sets)

    monkeypatch.setattr(view_step, "chained", careless)
    with pytest.raises(AssertionError):
        spoken_twice(monkeypatch)


@pytest.mark.parametrize("most", [0, 1_000])
def test_origins_are_told_apart_by_all_their_bytes(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numbers, or, where they are long, as texts."""
    monkeypatch.setattr(contributing, "_WORDS", most)
    for seed in range(3):
        same_on_both_paths(names_alone, moving(seed, epochs=4), 1)


def test_origins_that_look_alike_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in the table is not compared."""
    monkeypatch.setattr(contributing, "_equal", lambda ones, at, others, where: np.ones(len(at), bool))
    with pytest.raises(AssertionError):
        for seed in range(3):
            same_on_both_paths(names_alone, moving(seed, epochs=4), 1)


def test_the_hashes_of_origins_may_all_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they take their places one after the other; more than a few turns, and groups are visited."""
    monkeypatch.setattr(contributing, "_hashed", lambda columns: np.zeros(len(columns[0]), np.uint64))
    for seed in range(3):
        same_on_both_paths(names_alone, moving(seed, epochs=4), 1)


def test_leaves_are_split_as_a_visit_would_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_step, "LOAD", view_step.LOAD + 1)
    with pytest.raises(AssertionError):
        for seed in range(6):
            same_on_both_paths(names_alone, moving(seed), 1)


def test_the_plan_says_what_runs_on_columns() -> None:
    plan = functions().explain()
    for line in (
        "documents: on columns",
        "what it tells names: on columns",
        "what it tells paid: row by row: there is a function in its map",
        "what it tells letters: row by row: its map may fail (on_error=ms.DEAD_LETTER)",
        "what it tells pairs: row by row: it is the right side of a join",
        "groups: row by row: values are counted by reference",
    ):
        assert line in plan, line
    assert "groups with leaves: row by row: the reducer has no inverse" in kept().explain()
    assert "documents: row by row: their version or deletion is no field" in two_sources().explain()


def test_a_version_that_is_older_is_no_news_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    look = table_step.News._look_at

    def careless(self: table_step.News, raws: Any) -> None:
        look(self, raws)
        self.is_visited[:] = False

    monkeypatch.setattr(table_step.News, "_look_at", careless)
    epochs = story()
    with pytest.raises(AssertionError):
        same_on_both_paths(lean, [*epochs, epochs[0]], 1)


def test_entries_in_another_order_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by = saying.said_by
    monkeypatch.setattr(table_step, "said_by", lambda *given: [one._replace(places=one.places[::-1].copy()) for one in said_by(*given)])
    with pytest.raises(AssertionError):
        same_on_both_paths(kept, story(), 1)


def test_an_epoch_of_few_records_is_not_worth_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any) -> None:
        raise AssertionError("columns were used")

    monkeypatch.setattr(table_step, "News", never)
    run = Epochs(lean(), lambda: False)
    rows = story()[0]["users"]
    runner = ms.testing.LocalRunner(lean())
    runner.push("users", *rows)
    runner.run()
    assert runner.view("all")[""]["people"] == len(rows)
    with pytest.raises(AssertionError, match="columns were used"):
        run.run({"users": rows})
