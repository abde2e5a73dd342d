"""`process_records`, for computations that loop themselves: the same as `process_record`, record by record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core import record_runs
from millstream.errors import HookError


class One(ms.Computation):
    """Sums by second, and tells each record with the sum so far. Timers come between records."""

    State = dict

    def process_record(self, record: Any) -> None:
        self._take(record)

    def _take(self, record: Any) -> None:
        if record.value["n"] == 13:
            raise ValueError("thirteen")
        second = record.timestamp - record.timestamp % 1000
        self.state[second] = self.state.get(second, 0) + record.value["n"]
        self.produce([record.value["id"], sum(self.state.values())])
        self.set_timer("second", second + 1000)

    def process_timer(self, timer: Any) -> None:
        self.produce(["timer", timer.time, self.state.pop(timer.time - 1000, None)])


class Many(One):
    process_record = ms.Computation.process_record

    def process_records(self, records: Iterator[Any]) -> None:
        for record in records:
            self._take(record)


def pipeline(made: Any, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("runs")
    source = ms.sources.files("in/", schema="k string, at long, id string, n long")
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"))
    p.emit(p.compute(made, rows, key="k", produces="told", name="told", **options), ms.sinks.memory(), ids=True)
    if "on_error" in options:
        p.emit(p.dead_letters("told").map(lambda r: r.value["value"]["id"]), ms.sinks.memory(), name="dead")
    return p


def rows(dice: random.Random, wrong: bool = False) -> list[dict[str, Any]]:
    at, found = 0, []
    for number in range(40):
        at += dice.choice([0, 300, 1_500])
        n = 13 if wrong and dice.random() < 0.1 else dice.randint(0, 9)
        found.append({"k": dice.choice("ab"), "at": max(0, at - dice.choice([0, 0, 900, 9_000])), "id": f"r{number:02d}", "n": n})
    return found


def told(made: Any, given: list[dict[str, Any]], cuts: random.Random, **options: Any) -> list[Any]:
    runner = ms.testing.LocalRunner(pipeline(made, **options))
    at = 0
    while at < len(given):
        runner.push("rows", *given[at : (at := at + cuts.randint(1, 15))])
        runner.epoch()
    runner.drain()
    found: list[Any] = [(one.key, one.value, one.timestamp, one.id) for one in runner.records("told")]
    return [found, runner.output("dead") if "on_error" in options else [], runner.late("told"), runner.state("told")]


@pytest.mark.parametrize("options", [{}, {"expire": "5s"}, {"on_error": ms.DEAD_LETTER}])
@settings(max_examples=some(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_loop_over_records_is_a_call_for_each(options: dict[str, Any], seed: int) -> None:
    given = rows(random.Random(seed), "on_error" in options)
    assert told(Many, given, random.Random(seed), **options) == told(One, given, random.Random(seed), **options)


def test_faults_do_not_matter() -> None:
    ms.testing.assert_exactly_once(pipeline(Many), rows(random.Random(1)), seeds=range(some(20)), epochs="same")


def test_records_that_are_left_unread_are_an_error() -> None:
    class Lazy(Many):
        def process_records(self, records: Iterator[Any]) -> None:
            next(records)

    runner = ms.testing.LocalRunner(pipeline(Lazy))
    runner.push("rows", *[{"k": "a", "at": at, "id": str(at), "n": 1} for at in (1, 2)])
    with pytest.raises(HookError, match="left records unread"):
        runner.epoch()


def test_a_generator_is_refused() -> None:
    class Yields(Many):
        def process_records(self, records: Iterator[Any]) -> Any:
            yield from records

    with pytest.raises(ms.errors.DefinitionError, match="has a yield"):
        ms.testing.LocalRunner(pipeline(Yields))


def test_twin_timers_that_wait_for_the_end_of_the_loop_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def __gt__(self, time: int) -> bool:
            return True

        def __le__(self, time: int) -> bool:
            return False

    def all_at_once(step: Any, arrivals: Any, at: int, stop: int) -> int:
        due, step.visit.next_due = step.visit.next_due, Never()
        try:
            return real(step, arrivals, at, stop)
        finally:
            step.visit.next_due = due if isinstance(step.visit.next_due, Never) else step.visit.next_due

    real = record_runs.process_runs
    monkeypatch.setattr("millstream.core.step.process_runs", all_at_once)
    with pytest.raises(AssertionError):
        for seed in range(20):
            given = rows(random.Random(seed))
            assert told(Many, given, random.Random(seed)) == told(One, given, random.Random(seed))
