"""Views of streams (`stream.by(key).reduce(...)`), and streams that look documents up (`stream.by(key).join(table)`), against plain Python."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import DefinitionError, HookError
from millstream.views import running
from millstream.views.lookup import Lookup


def totals(expire: Any = None, dedup: str | None = None) -> ms.Pipeline:
    p = ms.Pipeline("totals")
    source = ms.sources.files("in/", schema="user string, at long, id string, n long")
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("5s"), dedup=dedup)
    reducers = {"count": ms.count(), "n": ms.sum("n"), "top": ms.top(2, "n", by="n"), "kinds": ms.count_distinct("n"), "last": ms.last("n")}
    view = rows.by("user").filter("n > 0").reduce(reducers, name="totals", expire=expire)
    p.publish(view, ms.sinks.memory())
    p.publish(view.by(lambda d: d.value["count"] > 3).reduce(ms.sum(lambda d: d["n"]), name="all"), ms.sinks.memory())
    return p


def rows(dice: random.Random, count: int) -> list[dict[str, Any]]:
    at = 1_000_000
    found = []
    for number in range(count):
        at += dice.choice([0, 100, 2_000])
        late = dice.choice([0, 0, 3_000, 40_000])
        found.append({"user": dice.choice("abc"), "at": at - late, "id": f"r{number:03d}", "n": dice.randint(0, 4)})
    return found


def model(given: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for user in "abc":
        mine = [row for row in given if row["user"] == user and row["n"] > 0]
        ns = [row["n"] for row in mine]
        if mine:
            last = max(mine, key=lambda row: (row["at"], row["id"]))["n"]
            found[user] = {"count": len(ns), "n": sum(ns), "top": sorted(ns, reverse=True)[:2], "kinds": len(set(ns)), "last": last}
    return found


def led_to(output: list[tuple[Any, Any, int]]) -> dict[Any, Any]:
    """What a chain of changes ends with; every link must fit."""
    now: dict[Any, Any] = {}
    for key, change, _ in output:
        assert now.get(key) == change["prev"] != change["next"]
        now[key] = change["next"]
    return {key: value for key, value in now.items() if value is not None}


def check(seed: int, shards: int = 2) -> None:
    dice = random.Random(seed)
    runner = ms.testing.LocalRunner(totals(), shards=shards)
    given = rows(dice, 40)
    at = 0
    while at < len(given):
        runner.push("rows", *given[at : (at := at + dice.randint(1, 9))])
        runner.epoch()
        runner.epoch()
        assert runner.view("totals") == led_to(runner.output("totals")) == model(given[:at])
        runner.check()
    groups: dict[bool, int] = {}
    for one in model(given).values():
        groups[one["count"] > 3] = groups.get(one["count"] > 3, 0) + one["n"]
    assert led_to(runner.output("all")) == groups


@settings(max_examples=some(60), deadline=None)
@given(seed=st.integers(0, 10**9), shards=st.integers(1, 3))
def test_totals_are_those_of_all_records_after_every_epoch(seed: int, shards: int) -> None:
    check(seed, shards)


def test_twin_a_total_that_forgets_what_it_showed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish_key(self: Any) -> None:
        self.state.shown = []
        real(self)

    real = running.RunningTotal.finish_key
    monkeypatch.setattr(running.RunningTotal, "finish_key", finish_key)
    with pytest.raises(AssertionError):
        check(1)


def test_faults_and_epochs_do_not_matter_to_totals() -> None:
    ms.testing.assert_exactly_once(totals(dedup="10m"), rows(random.Random(3), 30), seeds=range(some(40)))


def test_a_group_that_expires_goes_to_null_and_begins_anew_with_one_change_in_an_epoch() -> None:
    runner = ms.testing.LocalRunner(totals(expire="10s"))
    row = {"user": "a", "id": "x", "n": 2}
    runner.push("rows", {**row, "at": 1_000_000})
    runner.run()
    runner.push("rows", {**row, "at": 1_100_000}, {**row, "user": "b", "at": 1_100_000})
    runner.epoch()  # the first expires by the record
    assert [
        (key, one["prev"] and one["prev"]["count"], one["next"] and one["next"]["count"]) for key, one, _ in runner.output("totals")
    ] == [
        ("a", None, 1),
        ("b", None, 1),
    ], "it shows the same again, so nothing is told"
    runner.push("rows", {"user": "c", "at": 1_200_000, "id": "y", "n": 1})
    runner.run()
    assert set(led_to(runner.output("totals"))) == set(runner.view("totals")) == {"c"}
    assert led_to(runner.output("all")) == {False: 1}
    runner.check()


def test_a_group_that_expires_twice_in_an_epoch_takes_back_what_it_showed_before() -> None:
    runner = ms.testing.LocalRunner(totals(expire="10s"))
    for times in ([1_000_000], [1_100_000, 1_200_000]):
        runner.push("rows", *[{"user": "a", "id": str(at), "n": at // 100_000, "at": at} for at in times])
        runner.epoch()
    assert [(one["prev"] and one["prev"]["n"], one["next"]["n"]) for _, one, _ in runner.output("totals")] == [(None, 10), (10, 12)]


def test_of_is_refused() -> None:
    p = ms.Pipeline("of")
    rows = p.inject("rows", ms.sources.files("in/", schema="user string, at long"), timestamp="at")
    with pytest.raises(DefinitionError, match="of= is for windows"):
        rows.by("user").reduce(ms.count(of=rows), name="n")


# --- records with documents


def orders(how: str = "inner", dedup: str | None = None, joins: bool = True) -> ms.Pipeline:
    p = ms.Pipeline("orders")
    users = p.table(
        "users", ms.sources.files("users/", schema="id string, name string, v long, gone boolean"), key="id", version="v", deleted="gone"
    )
    source = ms.sources.files("in/", schema="user string, at long, id string")
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("5s"), dedup=dedup)
    if joins:
        p.emit(rows.by("user").join(users.filter(lambda d: d.value["name"] != "hidden"), how=how, name="named"), ms.sinks.memory())
    else:
        p.emit(rows, ms.sinks.memory())
    return p


def user(id: str, name: str, v: int, gone: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "v": v, "gone": gone}


def named(runner: ms.testing.LocalRunner) -> list[tuple[str, str | None]]:
    return [(value["left"]["id"], value["right"] and value["right"]["name"]) for _, value, _ in runner.output("named")]


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=some(40), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_record_has_the_document_of_its_epoch(how: str, seed: int) -> None:
    dice = random.Random(seed)
    runner = ms.testing.LocalRunner(orders(how), shards=dice.randint(1, 3))
    now: dict[str, Any] = {}
    expected, number = [], 0
    for epoch in range(20):
        if dice.random() < 0.5:  # documents and records in different epochs: within one, timestamps decide
            id = dice.choice("abc")
            name, gone = dice.choice([f"n{epoch}", "hidden"]), dice.random() < 0.2
            runner.push("users", user(id, name, epoch, gone))
            now[id] = None if gone or name == "hidden" else name
        else:
            for _ in range(dice.randint(1, 4)):
                number += 1
                id = dice.choice("abc")
                runner.push("rows", {"user": id, "at": 1_000_000 + dice.randint(-50_000, 1_000 * epoch), "id": f"r{number}"})
                if now.get(id) is not None or how == "left":
                    expected.append((f"r{number}", now.get(id)))
        runner.run()
    assert sorted(named(runner), key=str) == sorted(expected, key=str)
    assert runner.late("named") == 0


def test_records_wait_while_the_documents_are_filled_in() -> None:
    runner = ms.testing.LocalRunner(orders(joins=False))
    runner.push("users", *[user(f"u{number}", f"name {number}", 1) for number in range(50)])
    runner.run()
    runner.become(orders("inner"))
    runner.push("rows", *[{"user": f"u{number}", "at": 1_000_000 + number, "id": f"r{number}"} for number in range(50)])
    runner.epoch()
    assert named(runner) == [], "nothing is filled yet"
    runner.drain()
    assert sorted(named(runner)) == sorted((f"r{number}", f"name {number}") for number in range(50))
    assert {time for *_, time in runner.output("named")} == set(range(1_000_000, 1_000_050)), "they keep their time"


def test_twin_a_lookup_without_waiting_misses_documents_while_they_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookup, "_is_filling", lambda self: False)
    with pytest.raises(AssertionError):
        test_records_wait_while_the_documents_are_filled_in()


def test_faults_do_not_matter_to_records_with_documents() -> None:
    given = {
        "users": [user(dice, f"{dice}{v}", v) for v in range(4) for dice in "ab"],
        "rows": [{"user": dice, "at": 1_000_000 + n, "id": f"{dice}{n}"} for n in range(8) for dice in "abc"],
    }
    ms.testing.assert_exactly_once(orders("left", dedup="10m"), given, seeds=range(some(40)), epochs="same")


def test_a_join_with_a_table_has_no_times() -> None:
    p = ms.Pipeline("bad")
    users = p.table("users", ms.sources.files("users/", schema="id string"), key="id")
    rows = p.inject("rows", ms.sources.files("in/", schema="user string, at long"), timestamp="at").by("user")
    with pytest.raises(DefinitionError, match="a table has no time"):
        rows.join(users, after="1s", name="a")
    with pytest.raises(DefinitionError, match='use "inner" or "left"'):
        rows.join(users, how="outer", name="b")


def test_a_reducer_that_raises_names_the_view() -> None:
    p = ms.Pipeline("raises")
    rows = p.inject("rows", ms.sources.files("in/", schema="user string, at long"), timestamp="at")
    p.publish(rows.by("user").reduce(ms.sum(lambda v: 1 // (v["at"] - 5)), name="odd"), ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("rows", {"user": "a", "at": 5})
    with pytest.raises(HookError, match="'odd'"):
        runner.epoch()
