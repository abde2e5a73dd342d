"""Sessions against plain Python: any epochs, any shards, both paths; they never overlap, and nothing is lost."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.operators import session, spans

GAP = 2_000


def pipeline(bound: int, dedup: str | None = None) -> ms.Pipeline:
    p = ms.Pipeline("sessions")
    source = ms.sources.files("clicks/", schema="user string, at long, id string, page string, price long")
    clicks = p.inject("clicks", source, timestamp="at", id="id", watermark=ms.watermarks.bounded(f"{bound}ms"), dedup=dedup)
    reducers = {"n": ms.count(), "total": ms.sum("price"), "landing": ms.first("page"), "pages": ms.collect("page")}
    p.emit(clicks.by("user").window(ms.windows.session("2s"), late="late").reduce(reducers, name="sessions"), ms.sinks.memory())
    return p


def clicks(dice: random.Random, count: int, disorder: int) -> list[dict[str, Any]]:
    found, newest = [], 0
    for number in range(count):
        newest += dice.choice([0, 100, 900, 1_999, 2_000, 2_001, 5_000])
        at = max(0, newest - dice.randint(0, disorder))
        row = {
            "user": dice.choice("ab"),
            "at": at,
            "id": f"c{number:03d}",
            "page": dice.choice(["x", "y", None]),
            "price": dice.choice([None, 2**62, 3]),
        }
        found.append(row)
    return found


def plain(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Sessions of all rows at once."""
    found = {}
    for user in sorted({row["user"] for row in rows}):
        mine = sorted((row for row in rows if row["user"] == user), key=lambda row: (row["at"], row["id"]))
        runs: list[list[dict[str, Any]]] = []
        for row in mine:
            if runs and row["at"] - runs[-1][-1]["at"] < GAP:
                runs[-1].append(row)
            else:
                runs.append([row])
        for run in runs:
            prices = [row["price"] for row in run if row["price"] is not None]
            pages = [row["page"] for row in run if row["page"] is not None]
            value = {
                "n": len(run),
                "total": sum(prices) if prices else None,
                "landing": pages[0] if pages else None,
                "pages": sorted(pages),
            }
            found[user, run[0]["at"], run[-1]["at"] + GAP] = value
    return found


def told(output: list[tuple[Any, Any, int]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    found = {}
    for key, value, time in output:
        name = (value["user"], value["start"], value["end"])
        assert name not in found and key == value["user"] and time == value["end"] - 1
        found[name] = {field: value[field] for field in ("n", "total", "landing", "pages")}
    return found


def run(rows: list[dict[str, Any]], dice: random.Random, bound: int, shards: int = 2) -> ms.testing.LocalRunner:
    runner = ms.testing.LocalRunner(pipeline(bound), shards=shards)
    at = 0
    while at < len(rows):
        runner.push("clicks", *rows[at : (at := at + dice.randint(1, 12))])
        runner.epoch()
    runner.drain()
    assert all(not store.entries for store in runner._engine.stores.values()), "nothing is left behind the last session"
    return runner


@settings(max_examples=some(100), deadline=None)
@given(seed=st.integers(0, 10**9), shards=st.integers(1, 3))
def test_sessions_are_those_of_plain_python_however_records_fall_into_epochs(seed: int, shards: int) -> None:
    dice = random.Random(seed)
    rows = clicks(dice, dice.randint(1, 50), 6_000)
    runner = run(rows, dice, 6_000, shards)
    assert told(runner.output("sessions")) == plain(rows)
    assert runner.late("sessions") == 0


@settings(max_examples=some(100), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_with_late_clicks_sessions_never_overlap_and_each_click_is_in_one_or_late_beam_18677(seed: int) -> None:
    dice = random.Random(seed)
    rows = clicks(dice, 60, 20_000)
    runner = run(rows, dice, 500)
    found = told(runner.output("sessions"))
    assert sum(value["n"] for value in found.values()) + len(runner.output("late")) == len(rows)
    for user in "ab":
        spans = sorted((start, end) for name, start, end in found if name == user)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans


def test_a_late_click_inside_a_running_session_counts() -> None:
    runner = ms.testing.LocalRunner(pipeline(0))
    for at in (1_000, 2_500, 4_000):
        runner.push("clicks", {"user": "a", "at": at, "id": str(at), "page": None, "price": None})
        runner.run()
    runner.push("clicks", {"user": "a", "at": 1_500, "id": "old", "page": None, "price": None})  # the low watermark is at 4,000
    runner.push("clicks", {"user": "b", "at": 1_500, "id": "late", "page": None, "price": None})
    runner.drain()
    assert [(key, value["n"]) for key, value, _ in runner.output("sessions")] == [("a", 4)]
    assert [value["id"] for _, value, _ in runner.output("late")] == ["late"]


def test_faults_and_epochs_do_not_matter() -> None:
    rows = clicks(random.Random(7), 40, 3_000)
    ms.testing.assert_exactly_once(pipeline(3_000, dedup="10m"), rows, seeds=range(some(60)))
    ms.testing.assert_same_in_any_epochs(pipeline(3_000), rows, seeds=range(some(40)))


def check(seeds: range, disorder: int = 6_000) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        rows = clicks(dice, 40, disorder)
        assert told(run(rows, dice, disorder).output("sessions")) == plain(rows)


def test_keys_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "hashed", lambda names: np.zeros(len(names), np.int64))
    check(range(some(60)))


def test_twin_without_a_look_at_what_goes_on_sessions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest_due", lambda ending, others, after: np.full(len(ending), spans.NOTHING_DUE))
    with pytest.raises(AssertionError):
        check(range(20))


def test_twin_keys_that_are_told_by_their_hashes_alone_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "hashed", lambda names: np.zeros(len(names), np.int64))
    monkeypatch.setattr(spans, "_same", lambda names, codes, others, other_codes: np.ones(len(codes), bool))
    with pytest.raises(AssertionError):
        check(range(20))


def click(user: str, at: int) -> dict[str, Any]:
    return {"user": user, "at": at, "id": f"{user}-{at}", "page": None, "price": None}


def entries(runner: ms.testing.LocalRunner) -> dict[bytes, bytes]:
    (store,) = runner._engine.stores.values()
    return dict(store.entries)


def test_entries_stay_few_over_many_epochs() -> None:
    runner = ms.testing.LocalRunner(pipeline(10**7), shards=1)
    for number in range(600):  # every key anew, and nothing ends
        runner.push("clicks", click(f"u{number}", 1_000), click(f"v{number}", 2_000))
        runner.epoch()
    assert len(entries(runner)) < 3 * session.MERGED
    assert len(runner.state("sessions")) == 1_200


def test_a_session_that_goes_on_for_long_and_a_time_far_ahead_keep_nothing_that_is_over() -> None:
    runner = ms.testing.LocalRunner(pipeline(0), shards=1)
    runner.push("clicks", *[click(f"u{number}", 0) for number in range(500)], click("ahead", 10**6))
    runner.push("clicks", *[click(f"w{number}", 0) for number in range(500)])  # the low watermark has not moved yet
    runner.epoch()
    sizes = []
    for number in range(300):
        runner.push("clicks", click("long", 10**6 + number * 1_900))
        runner.epoch()
        sizes.append(sum(map(len, entries(runner).values())))
    assert max(sizes[5:]) < 2_000, "those of 1,000 users are over"
    runner.drain()
    assert [value["n"] for key, value, _ in runner.output("sessions") if key == "long"] == [300]


def test_a_reader_sees_what_is_open() -> None:
    runner = ms.testing.LocalRunner(pipeline(500))
    runner.push("clicks", click("a", 0), click("b", 1_000), click("a", 4_000), click("a", 5_000))
    runner.epoch()
    runner.epoch()
    assert {key: [(one["start"], one["end"], one["n"]) for one in found] for key, found in runner.state("sessions").items()} == {
        "a": [(4_000, 7_000, 2)]
    }
