"""A window's result carries the last moment of it, `end - 1`: so minutes fall into their hour, and a chain of windows closes in one epoch."""

from __future__ import annotations

import functools
import random
from collections import Counter
from typing import Any

import pytest

import millstream as ms
from effort import seeds
from millstream.core.authority import Standing, holder
from millstream.core.time import BEGINNING
from millstream.testing import LocalRunner

SOURCE = ms.sources.files("in/", schema="k string, at long, id string")
MINUTE, HOUR, DAY = 60, 3_600, 86_400


class Window(ms.Computation):
    """Counts per window, and says so `back` before its end."""

    State = dict

    def __init__(self, size: int, back: int) -> None:
        self.size, self.back = size, back

    def process_record(self, record: ms.Record) -> None:
        end = record.timestamp - record.timestamp % self.size + self.size
        self.state[end] = self.state.get(end, 0) + (record.value if isinstance(record.value, int) else 1)
        self.set_timer("end", end)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time), timestamp=timer.time - self.back)


def chain(production: str, back: int = 1) -> ms.Pipeline:
    p = ms.Pipeline("chain")
    stream: Any = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("10ms"))
    for name, size, key in (("minutes", MINUTE, "k"), ("hours", HOUR, by_key), ("days", DAY, by_nobody)):
        stream = p.compute(functools.partial(Window, size, back), stream, key=key, name=name, production=production)
    return p


def by_key(record: Any) -> Any:
    return record.key


def by_nobody(record: Any) -> str:
    return "all"


def rows(seed: int, count: int = 60) -> list[dict[str, Any]]:
    """Many of them just before and at the boundaries."""
    dice = random.Random(seed)
    at = [dice.randrange(4) * HOUR + dice.choice([0, 1, HOUR - 1, HOUR - MINUTE, dice.randrange(HOUR)]) for _ in range(count)]
    return [
        {"k": dice.choice("abcdefgh"), "at": one, "id": str(n)}
        for n, one in enumerate(sorted(at, key=lambda one: one + dice.randrange(10)))
    ]


def run(p: ms.Pipeline, given: list[dict[str, Any]], seed: int) -> LocalRunner:
    dice = random.Random(seed)
    runner = LocalRunner(p, shards=dice.randint(1, 3))
    for row in given:
        runner.push("in", row)
        if dice.random() < 0.3:
            runner.epoch()
    runner.drain()
    return runner


def hours(runner: LocalRunner) -> Counter[Any]:
    return Counter({(key, at // HOUR): value for key, value, at in runner.output("hours")})


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG, ms.ADAPTIVE])
@pytest.mark.parametrize("most", [200_000, 2])
def test_minutes_fall_into_their_hour(monkeypatch: pytest.MonkeyPatch, production: str, most: int) -> None:
    monkeypatch.setattr("millstream.core.step.MAX_DUE", most)
    for seed in seeds(40):
        given = rows(seed)
        runner = run(chain(production), given, seed)
        assert hours(runner) == Counter((row["k"], row["at"] // HOUR) for row in given)
        assert [runner.late(name) for name in ("minutes", "hours", "days")] == [0, 0, 0]
        assert [value for _, value, _ in runner.output("days")] == [len(given)]


def test_a_twin_that_says_the_end_has_wrong_hours() -> None:
    wrong = 0
    for seed in range(10):
        given = rows(seed)
        wrong += hours(run(chain(ms.WEAK, back=0), given, seed)) != Counter((row["k"], row["at"] // HOUR) for row in given)
    assert wrong == 10


def test_a_chain_of_windows_closes_in_one_epoch() -> None:
    runner = LocalRunner(chain(ms.WEAK))
    runner.push("in", {"k": "a", "at": DAY - 1, "id": "1"}, {"k": "b", "at": DAY - 5, "id": "2"})
    runner.epoch()
    runner.push("in", {"k": "a", "at": DAY + 10, "id": "3"})
    runner.epoch()
    assert runner.output("minutes") == []
    runner.epoch()
    assert [len(runner.output(name)) for name in ("minutes", "hours", "days")] == [2, 2, 1]
    assert runner.output("days") == [("all", 2, DAY - 1)]


def test_over_stored_edges_it_takes_an_epoch_more_for_each() -> None:
    runner = LocalRunner(chain(ms.STRONG))
    runner.push("in", {"k": "a", "at": 5, "id": "1"}, {"k": "a", "at": DAY + 10, "id": "2"})
    said = []
    for _ in range(4):
        runner.epoch()
        said.append([len(runner.output(name)) for name in ("minutes", "hours", "days")])
    assert said == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_who_waits_for_a_timer_is_told_which() -> None:
    standings = {"first": Standing(low=900, output=499, next_low=500, crowded=True), "second": Standing(low=499, output=499)}
    found = holder("second", {"first": ["in"], "second": ["s"]}, {"s": "first"}, {}, standings, {"first": "key 'a'"})
    assert (found.what, found.time, found.name) == ("timer", 499, "first")
    assert "a timer at 1970-01-01T00:00:00.500Z of key 'a'" in str(found)
    assert holder("second", {"second": ["s"]}, {"s": "first"}, {}, {}, {}).time == BEGINNING
