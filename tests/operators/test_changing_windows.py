"""Windows that change (`early=`, `lateness=`) against plain Python: every chain of changes is whole, its last one is right, nothing is left behind."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import DefinitionError
from millstream.operators import changing_panes, changing_sessions, panes
from operators.windowkit import fixed, local_day

BOUND = 1_000
KINDS: dict[str, tuple[Any, Any]] = {
    "tumbling": (ms.windows.tumbling("2s"), fixed(2_000, 2_000)),
    "hopping": (ms.windows.hopping("3s", every="1s"), fixed(3_000, 1_000)),
    "calendar": (ms.windows.calendar("day", zone="Europe/Berlin"), local_day("Europe/Berlin")),
    "session": (ms.windows.session("700ms"), None),
}


def pipeline(kind: Any, lateness: int = 0, early: str | None = None, dedup: str | None = None, derives: bool = True) -> ms.Pipeline:
    p = ms.Pipeline("changing")
    source = ms.sources.files("in/", schema="user string, at long, id string, price long")
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded(f"{BOUND}ms"), dedup=dedup)
    window = rows.by("user").window(kind, late="late", lateness=f"{lateness}ms", early=early)
    windows = window.reduce(n=ms.count(), ids=ms.collect("id"), most=ms.max("price"), name="windows")
    p.publish(windows, ms.sinks.memory())
    if derives:
        p.publish(windows.by("user").reduce(ms.sum("n"), name="totals"), ms.sinks.memory())
    return p


def rows(dice: random.Random, count: int, disorder: int) -> list[dict[str, Any]]:
    newest, found = 1_000_000, []
    for number in range(count):
        newest += dice.choice([0, 50, 300, 700, 1_500])
        at = newest - dice.randint(0, disorder)
        found.append({"user": dice.choice("ab"), "at": at, "id": f"r{number:03d}", "price": dice.choice([None, 1, 2**62])})
    return found


def fed(runner: ms.testing.LocalRunner, given: list[dict[str, Any]], dice: random.Random) -> None:
    at = 0
    while at < len(given):
        runner.push("rows", *given[at : (at := at + dice.randint(1, 9))])
        runner.epoch()
        if dice.random() < 0.4:
            runner.advance_clock(f"{dice.randint(1, 4)}s")
    runner.drain()


def shown(runner: ms.testing.LocalRunner) -> dict[tuple[Any, int], Any]:
    """What is told last of every window, after every chain was looked at."""
    now: dict[Any, Any] = {}
    for key, change, time in runner.output("windows"):
        prev, next = change["prev"], change["next"]
        assert now.get(key) == prev and prev != next, (key, change, now.get(key))
        assert next is None or (key == (next["user"], next["start"]) and time >= next["end"] - 1)
        now[key] = next
    return {key: value for key, value in now.items() if value is not None}


def check(seed: int, name: str, shards: int = 2) -> None:
    dice = random.Random(seed)
    kind, windows = KINDS[name]
    lateness, early = dice.choice([0, 1_500, 4_000]), dice.choice([None, "2s"])
    lateness = lateness if early else max(lateness, 1_500)
    derives = dice.random() < 0.5
    runner = ms.testing.LocalRunner(pipeline(kind, lateness, early, derives=derives), shards=shards)
    given = rows(dice, dice.randint(1, 60), dice.choice([900, 4_000]))
    fed(runner, given, dice)
    told = shown(runner)
    late = {one["id"] for _, one, _ in runner.output("late")}
    counted: dict[tuple[str, int], list[str]] = defaultdict(list)
    if windows is not None:
        # A record that is not late counts in all of its windows, but for those of hopping ones that are over.
        for row in given:
            for start, _ in windows(row["at"]) if row["id"] not in late else ():
                counted[row["user"], start].append(row["id"])
        assert {key for key in told} <= set(counted)
        for key, ids in counted.items():
            found = told[key]["ids"] if key in told else []
            assert set(found) <= set(ids) and (name == "hopping" or sorted(found) == sorted(ids)), (key, found, ids)
    else:
        for user in "ab":
            spans = sorted((value["start"], value["end"]) for (of, _), value in told.items() if of == user)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans
    if name != "hopping":
        everything = sorted(one for value in told.values() for one in value["ids"])
        assert everything == sorted(row["id"] for row in given if row["id"] not in late), "each record is in one window, or late"
    for value in told.values():
        mine = [row for row in given if row["id"] in value["ids"]]
        assert value["n"] == len(mine) == len(value["ids"])
        assert value["most"] == max((row["price"] for row in mine if row["price"] is not None), default=None)
        assert all(value["start"] <= row["at"] < value["end"] for row in mine)
    totals = {key: change["next"] for key, change, _ in runner.output("totals")} if derives else {}
    assert totals == {user: sum(v["n"] for (of, _), v in told.items() if of == user) for user in totals}
    left = {
        name: store.entries
        for (name, _), store in runner._engine.stores.items()
        if not name.startswith(("totals", "windows.")) and store.entries
    }
    assert not left, "nothing is left behind the last window"


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=some(80), deadline=None)
@given(seed=st.integers(0, 10**9), shards=st.integers(1, 3))
def test_chains_are_whole_and_end_with_what_plain_python_says(name: str, seed: int, shards: int) -> None:
    check(seed, name, shards)


def row(at: int, user: str = "a") -> dict[str, Any]:
    return {"user": user, "at": at, "id": f"{user}{at}", "price": None}


def counts(runner: ms.testing.LocalRunner) -> list[tuple[Any, Any]]:
    return [(one["prev"] and one["prev"]["n"], one["next"] and one["next"]["n"]) for _, one, _ in runner.output("windows")]


@pytest.mark.parametrize("name", ["tumbling", "session"])
def test_early_results_come_by_the_clock_after_the_first_record_that_is_not_told(name: str) -> None:
    runner = ms.testing.LocalRunner(pipeline(KINDS[name][0], early="5s"))
    runner.push("rows", row(1_000_000), row(1_000_100))
    runner.run()
    runner.advance_clock("4s")
    assert counts(runner) == []
    runner.advance_clock("1s")
    assert counts(runner) == [(None, 2)]
    runner.advance_clock("60s")
    assert counts(runner) == [(None, 2)], "nothing new, nothing told"
    runner.push("rows", row(1_000_200))
    runner.run()
    runner.advance_clock("5s")
    assert counts(runner) == [(None, 2), (2, 3)]
    runner.drain()
    assert counts(runner) == [(None, 2), (2, 3)], "all is told when it ends"


@pytest.mark.parametrize("name", ["tumbling", "hopping", "session"])
def test_a_window_changes_as_long_as_lateness_says_and_not_longer(name: str) -> None:
    runner = ms.testing.LocalRunner(pipeline(KINDS[name][0], lateness=10_000))
    runner.push("rows", row(1_000_000))
    runner.run()
    runner.push("rows", row(1_006_000))
    runner.run()  # the low watermark: 1,005,000
    before = counts(runner)
    assert before and all(one == (None, 1) for one in before)
    runner.push("rows", row(1_000_001))
    runner.run()
    assert counts(runner)[len(before) :] == [(1, 2)] * len(before)
    assert all(time >= 1_005_000 for *_, time in runner.output("windows")[len(before) :]), "never older than what was promised"
    runner.push("rows", row(1_030_000))
    runner.run()
    told = len(counts(runner))
    runner.push("rows", row(1_000_002))
    runner.run()
    assert len(counts(runner)) == told and [one["at"] for _, late, _ in runner.output("late") for one in [late["value"]]] == [1_000_002]


def test_sessions_that_become_one_take_back_the_younger() -> None:
    runner = ms.testing.LocalRunner(pipeline(KINDS["session"][0], early="1s"))
    runner.push("rows", row(1_000_000), row(1_001_000))
    runner.run()
    runner.advance_clock("1s")
    runner.push("rows", row(1_000_500))
    runner.run()
    runner.advance_clock("1s")
    changes = [(key[1], one["prev"] and one["prev"]["n"], one["next"] and one["next"]["n"]) for key, one, _ in runner.output("windows")]
    assert sorted(changes[:2]) == [(1_000_000, None, 1), (1_001_000, None, 1)]
    assert changes[2:] == [(1_001_000, 1, None), (1_000_000, 1, 3)]
    assert [change["next"] for _, change, _ in runner.output("totals")] == [2, 3]


def test_records_with_the_time_at_which_a_session_begins_or_began_take_nothing_back() -> None:
    runner = ms.testing.LocalRunner(pipeline(KINDS["session"][0], early="1s"))
    runner.push("rows", row(1_000_600), row(1_001_400))
    runner.run()
    runner.advance_clock("1s")
    again = [{**row(at), "id": f"{at}-{number}"} for at in (1_000_600, 1_001_400) for number in range(2)]
    runner.push("rows", again[0], again[1])
    runner.run()
    runner.advance_clock("1s")
    assert counts(runner)[2:] == [(1, 3)]
    runner.push("rows", row(1_001_000), again[2], again[3])  # the second session goes, and more records have its time
    runner.run()
    runner.advance_clock("1s")
    assert counts(runner)[3:] == [(1, None), (3, 7)]


@pytest.mark.parametrize("name", ["tumbling", "hopping", "session"])
def test_faults_do_not_matter(name: str) -> None:
    given = rows(random.Random(5), 30, 3_000)
    ms.testing.assert_exactly_once(pipeline(KINDS[name][0], 2_000, dedup="10m"), given, seeds=range(some(40)))


def test_a_stream_of_changes_can_be_read_by_a_computation() -> None:
    p = ms.Pipeline("read")
    source = ms.sources.files("in/", schema="user string, at long")
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.bounded("1s"))
    windows = rows.by("user").window(ms.windows.tumbling("2s"), lateness="5s").reduce(ms.count(), name="windows")
    p.emit(windows.changes.map(lambda r: [r.key, [one and one["count"] for one in r.value]]), ms.sinks.memory(), name="seen")
    runner = ms.testing.LocalRunner(p)
    runner.push("rows", {"user": "a", "at": 1_000}, {"user": "a", "at": 4_000})
    runner.drain()
    assert [value for _, value, _ in runner.output("seen")] == [["a", [None, 1]], ["a", [None, 1]]]


def test_same_has_no_lateness_of_its_own() -> None:
    p = ms.Pipeline("same")
    source = ms.sources.files("in/", schema="user string, at long")
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.bounded("1s")).by("user")
    with pytest.raises(DefinitionError, match="belong to the window that the results come from"):
        rows.window(ms.windows.same(), lateness="1s")


def fails(name: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(40):
            check(seed, name)


def test_twin_what_is_told_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_panes, "epoch_of", lambda name: 10**9)
    fails("tumbling")


def test_twin_entries_of_before_and_after_a_telling_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_panes.ChangingStep, "_may_merge", lambda self, name, end: True)
    monkeypatch.setattr(panes, "MERGED", 2)
    fails("tumbling")


def test_twin_the_marks_of_early_results_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_panes, "_encode", lambda marks: None)
    with pytest.raises(AssertionError):
        test_early_results_come_by_the_clock_after_the_first_record_that_is_not_told("tumbling")


def test_twin_the_timer_of_early_results_of_sessions_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    real = changing_sessions.ChangingSessions.set_timer
    kept = lambda self, tag, *at: None if tag == "early" else real(self, tag, *at)  # noqa: E731
    monkeypatch.setattr(changing_sessions.ChangingSessions, "set_timer", kept)
    with pytest.raises(AssertionError):
        test_early_results_come_by_the_clock_after_the_first_record_that_is_not_told("session")


def test_twin_what_is_new_of_a_session_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_sessions, "insort", lambda news, start: None)
    fails("session")


def test_twin_sessions_that_were_taken_over_are_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(self: Any, one: Any, other: Any) -> Any:
        found = real(self, one, other)
        return [*found[:2], [], *found[3:]]

    real = changing_sessions.ChangingSessions._joined
    monkeypatch.setattr(changing_sessions.ChangingSessions, "_joined", joined)
    fails("session")


@pytest.mark.parametrize("name", ["tumbling", "session"])
def test_late_records_behind_a_map_are_late_all_the_same(name: str) -> None:
    p = ms.Pipeline("mapped")
    source = ms.sources.files("in/", schema="user string, at long")
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.bounded("1s"))
    mapped = rows.by("user").filter(lambda r: r.value["user"] != "c").map(lambda r: {"twice": 2 * r.value["at"]})
    windows = mapped.window(KINDS[name][0], late="late", lateness="3s").reduce(most=ms.max("twice"), name="windows")
    p.publish(windows, ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("rows", {"user": "a", "at": 10_000}, {"user": "a", "at": 30_000})
    runner.run()
    runner.push("rows", {"user": "b", "at": 10_000}, {"user": "c", "at": 10_000})
    runner.drain()
    assert runner.late("windows") == 1, "what is filtered out is not late"
    assert [change["next"]["most"] for _, change, _ in runner.output("windows")] == [20_000, 60_000]
