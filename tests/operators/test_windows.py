"""Window operators against plain Python: every kind, every reducer, both paths, any epochs, any shards."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.keyspace import after
from millstream.operators.panes import PANE
from operators.windowkit import REDUCERS, SCHEMA, fixed, local_day, pipeline, reduced, told

BERLIN = 1_679_788_800_000  # shortly before clocks go forward there
KINDS: dict[str, tuple[Any, Any, int]] = {
    "tumbling": (ms.windows.tumbling("1s"), fixed(1000, 1000), 0),
    "offset": (ms.windows.tumbling("4s", offset="1s"), fixed(4000, 4000, 1000), 0),
    "hopping": (ms.windows.hopping("5s", every="2s"), fixed(5000, 2000), 0),
    "hopping far": (ms.windows.hopping("10s", every="1s"), fixed(10_000, 1000), -7_000),
    "day": (ms.windows.calendar("day", zone="Europe/Berlin"), local_day("Europe/Berlin"), BERLIN),
}


def rows(dice: random.Random, count: int, base: int, spread: int, disorder: int) -> list[dict[str, Any]]:
    """Records whose times go on, out of order by no more than `disorder`."""
    found = []
    newest = base
    for number in range(count):
        newest = max(newest, base + number * spread + dice.randint(0, spread))
        price = dice.choice([None, dice.randint(-9, 9), dice.randint(-9, 9), dice.choice([2**62, -(2**62), 2**53 + 1])])
        weight = dice.choice([None, 0.5, -0.0, 0.0, float("nan"), dice.random()])
        page = dice.choice([None, "home", "cart", "ä", 'a"b\\'])
        at = newest - dice.randint(0, disorder)
        found.append(
            {"user": dice.choice(["", "sue", "tod", "\0odd"]), "at": at, "id": f"r{number}", "price": price, "weight": weight, "page": page}
        )
    return found


def same(found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == value, key


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=some(60), deadline=None)
@given(seed=st.integers(0, 10**9), shards=st.integers(1, 3))
def test_results_are_those_of_plain_python_however_records_fall_into_epochs(name: str, seed: int, shards: int) -> None:
    dice = random.Random(seed)
    kind, windows, base = KINDS[name]
    spread = 3_600_000 if name == "day" else 400
    disorder = 5 * spread
    given = rows(dice, dice.randint(1, 60), base, spread, disorder)
    for row in given:
        row["weight"] = row["weight"] if row["weight"] == row["weight"] else None
    runner = ms.testing.LocalRunner(pipeline(kind, disorder), shards=shards)
    at = 0
    while at < len(given):
        runner.push("visits", *given[at : (at := at + dice.randint(1, 20))])
        runner.run()
    runner.drain()
    same(told(runner.output("windows")), reduced(given, windows))
    assert runner.late("windows") == 0
    assert_empty(runner)


def assert_empty(runner: ms.testing.LocalRunner) -> None:
    """Nothing is left behind the last window."""
    for store in runner._engine.stores.values():
        assert not list(store.scan(PANE, after(PANE)))


@settings(max_examples=some(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_record_is_in_its_windows_or_is_late(seed: int) -> None:
    dice = random.Random(seed)
    kind, windows, _ = KINDS["hopping"]
    given = rows(dice, 60, 0, 700, 20_000)
    runner = ms.testing.LocalRunner(pipeline(kind, 1_000, reducers={"n": ms.count()}))
    counted = 0
    at = 0
    while at < len(given):
        low = runner.low_watermark("windows")
        some_rows = given[at : (at := at + dice.randint(1, 9))]
        late = [row for row in some_rows if max(end for _, end in windows(row["at"])) <= low]
        counted += sum(end > low for row in some_rows for _, end in windows(row["at"]))
        before = runner.late("windows")
        runner.push("visits", *some_rows)
        runner.epoch()
        assert runner.late("windows") - before == len(late)
    runner.drain()
    assert sum(value["n"] for value in told(runner.output("windows")).values()) == counted
    assert len(runner.output("late")) == runner.late("windows")
    assert_empty(runner)


@pytest.mark.parametrize("name", ["tumbling", "hopping"])
def test_the_fault_kit_finds_every_window_once_on_both_paths(name: str) -> None:
    """Attempts draw their path by lot: one that came to another state or result than its twin would be noticed."""
    dice = random.Random(name)
    given = rows(dice, 40, 0, 500, 3_000)
    kind = KINDS[name][0]
    ms.testing.assert_exactly_once(pipeline(kind, 3_000, dedup="10m"), given, seeds=range(some(60)))


@pytest.mark.parametrize("name", ["tumbling", "hopping"])
def test_epochs_do_not_matter(name: str) -> None:
    dice = random.Random(name)
    given = rows(dice, 40, 0, 500, 3_000)
    ms.testing.assert_same_in_any_epochs(pipeline(KINDS[name][0], 3_000), given, seeds=range(some(40)))


def test_a_pane_that_lasts_for_many_epochs_has_few_entries() -> None:
    runner = ms.testing.LocalRunner(pipeline(ms.windows.tumbling("1h"), 10**8, reducers={"n": ms.count()}), shards=1)
    most = 0
    for epoch in range(400):
        users = [f"u{epoch * 3 + n}" for n in range(3)]
        runner.push("visits", *[{"user": user, "at": 1, "id": user, "price": 1, "weight": None, "page": None} for user in users])
        runner.epoch()
        most = max(most, sum(entry.startswith(PANE) for store in runner._engine.stores.values() for entry in store.entries))
    assert 2 < most <= 16 * 3, "sixteen of a class, and as many classes as 1,200 rows have"
    runner.drain()
    assert sum(value["n"] for value in told(runner.output("windows")).values()) == 1_200


def test_the_schema_of_the_kit_has_what_the_reducers_read() -> None:
    fields = {part.split()[0] for part in SCHEMA.split(", ")}
    assert {reducer.field for reducer in REDUCERS.values() if reducer.field} <= fields
