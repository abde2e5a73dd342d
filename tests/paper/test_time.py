"""MillWheel §4.5, §4.6, §5.2: low watermarks, timers, injectors, late records."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paperkit import SOURCE, Sum, Windows, fails_without, holds, inject, key, rows, sums

import millstream as ms
from effort import some
from millstream.core.time import BEGINNING
from millstream.testing import LocalRunner

# §4.5: low watermark(A) = min(oldest work of A, low watermark of C : C outputs to A), monotonic.


def diamond(first: str, second: str) -> ms.Pipeline:
    p = ms.Pipeline("diamond")
    one = p.inject("one", SOURCE, timestamp="at", watermark=ms.watermarks.bounded("30ms"))
    two = p.inject("two", SOURCE, timestamp="at", watermark=ms.watermarks.bounded("70ms"))
    left = p.compute(Sum, one, key="k", name="Left", produces="left", production=first)
    right = p.compute(Sum, one, two, key="k", name="Right", produces="right", production=second)
    p.compute(Windows, left, right, key=key, name="Join", produces="join")
    return p


@settings(max_examples=some(60), deadline=None)
@given(st.data())
def test_4_5_the_low_watermark_is_the_recursive_minimum_and_never_goes_back(data: Any) -> None:
    kinds = st.sampled_from([ms.WEAK, ms.STRONG, ms.ADAPTIVE])
    first, second = data.draw(kinds), data.draw(kinds)
    runner = LocalRunner(diamond(first, second))
    engine = runner._engine
    before = dict(engine.low_watermarks)
    at = 1_000
    for _ in range(data.draw(st.integers(1, 10))):
        for stream in data.draw(st.lists(st.sampled_from(["one", "two"]), max_size=3)):
            at += data.draw(st.integers(-60, 120))
            runner.push(stream, {"k": "a", "n": 1, "at": at, "id": "x"})
        injected = dict(engine.injected)
        outputs = {name: standing.output for name, standing in engine.standings.items()}
        for stream, consumer, kind in (("left", "Join", first), ("right", "Join", second)):
            if kind == ms.ADAPTIVE:
                runner.store(stream, consumer, data.draw(st.booleans()))
        runner.epoch()
        low = engine.low_watermarks
        stored = {
            "Left": engine.topology.edges["left", "Join"] == ms.STRONG or ("left", "Join") in engine.storing,
            "Right": engine.topology.edges["right", "Join"] == ms.STRONG or ("right", "Join") in engine.storing,
        }
        assert low["Left"] == max(before["Left"], injected["one"])
        assert low["Right"] == max(before["Right"], min(injected["one"], injected["two"]))
        fed = [outputs[name] if stored[name] else low[name] for name in ("Left", "Right")]
        assert low["Join"] == max(before["Join"], min(fed))
        assert all(low[name] >= before[name] for name in low), "it never goes back"
        for _, consumer, _, arrival in engine.stored:
            assert low[consumer] <= arrival[1], "no older than its oldest pending work"
        before = dict(low)


def test_4_5_twin_a_watermark_that_ignores_pending_work_makes_strong_productions_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(runner: LocalRunner) -> int:
        for row in rows(40, seed=3):
            runner.push("in", row)
            runner.epoch()
        runner.drain()
        return runner.late("Windows")

    assert late(LocalRunner(sums(ms.STRONG, watermark=ms.watermarks.bounded("10ms")))) == 0
    monkeypatch.setattr("millstream.core.authority.is_stored", lambda topology, edge, stored: False)
    assert late(LocalRunner(sums(ms.STRONG, watermark=ms.watermarks.bounded("10ms")))) > 0


# §4.6: timers fire in increasing order, exactly once, and are journaled: they survive restarts.


class Alarms(ms.Computation):
    """Sets timers in all directions, of both kinds; notes what fires."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        dice = random.Random(record.value["id"])
        for tag in "xyz":
            self.set_timer(tag, record.timestamp + dice.randrange(300))
        self.set_timer("wall", self.now + dice.randrange(4_000), kind=ms.WALL_CLOCK)
        if dice.random() < 0.3:
            self.cancel_timer("y")

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.append([timer.kind, timer.time, timer.tag])
        self.produce([timer.kind, timer.time, timer.tag])


def alarms() -> ms.Pipeline:
    p = ms.Pipeline("alarms")
    p.compute(Alarms, inject(p), key="k", produces="fired")
    return p


def test_4_6_timers_fire_in_order_per_key_and_once() -> None:
    runner = LocalRunner(alarms(), now=1)
    for at, row in enumerate(rows(40)):
        runner.push("in", row)
        if at % 4 == 3:
            runner.advance_clock(1 + 500 * at)
            runner.epoch()
    runner.drain()
    for state in runner.state("Alarms").values():
        for kind in (ms.LOW_WATERMARK, ms.WALL_CLOCK):
            fired = [(time, tag) for k, time, tag in state if k == kind]
            assert fired == sorted(set(fired)) != []


def test_4_6_timers_are_journaled_and_fire_once_across_crashes() -> None:
    holds(alarms(), ["crash", "retry", "zombie", "pause", "forget", "compact"], seeds=80)


def test_4_6_twin_timers_fire_again_where_an_epoch_may_be_committed_twice() -> None:
    fails_without("exclusive,tokens", alarms(), ["pause"])


# §5.2: injectors seed low watermarks; those with several processes report the minimum; a silent one is dealt with.


def test_5_2_an_injector_of_several_processes_reports_their_minimum() -> None:
    p = ms.Pipeline("processes")
    policy = ms.watermarks.sub_sources("k", ["a", "b"], ms.watermarks.bounded("10ms"))
    p.compute(Sum, inject(p, watermark=policy), key="k")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1_000, "id": "1"})
    runner.epoch()
    runner.epoch()
    assert runner.low_watermark("Sum") == BEGINNING, "process b has said nothing yet"
    runner.push("in", {"k": "b", "n": 1, "at": 500, "id": "2"})
    runner.epoch()
    runner.epoch()
    assert runner.low_watermark("Sum") == 490


def test_5_2_twin_without_the_declared_set_a_missing_process_holds_nothing() -> None:
    p = ms.Pipeline("processes")
    p.compute(Sum, inject(p, watermark=ms.watermarks.bounded("10ms")), key="k")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1_000, "id": "1"})
    runner.epoch()
    runner.epoch()
    assert runner.low_watermark("Sum") == 990


def test_5_2_an_injector_may_break_its_promise_and_the_record_is_late() -> None:
    """The watermark is a heuristic of the injector; late records are the computation's to deal with: dropped and counted, or handed over."""
    runner = LocalRunner(sums(watermark=ms.watermarks.bounded("10ms")))
    runner.push("in", {"k": "a", "n": 1, "at": 1_000, "id": "1"})
    runner.epoch()
    runner.epoch()
    runner.push("in", {"k": "a", "n": 1, "at": 500, "id": "2"}, {"k": "a", "n": 1, "at": 990, "id": "3"})
    runner.epoch()
    assert runner.late("Sum") == 1
    assert runner.state("Sum") == {"a": 2}


def test_5_2_twin_with_a_patient_watermark_the_same_record_is_not_late() -> None:
    runner = LocalRunner(sums(watermark=ms.watermarks.bounded("500ms")))
    runner.push("in", {"k": "a", "n": 1, "at": 1_000, "id": "1"})
    runner.epoch()
    runner.epoch()
    runner.push("in", {"k": "a", "n": 1, "at": 500, "id": "2"})
    runner.epoch()
    assert runner.late("Sum") == 0


# §4.2: keys: computations are serialised per key, and each consumer extracts its own.


def test_4_2_each_consumer_of_a_stream_has_its_own_key() -> None:
    p = ms.Pipeline("keys")
    stream = inject(p)
    p.compute(Sum, stream, key="k", name="ByKey")
    p.compute(Sum, stream, key=["k", "n"], name="ByBoth")
    runner = LocalRunner(p)
    runner.push("in", *rows(30))
    runner.epoch()
    by_key, by_both = runner.state("ByKey"), runner.state("ByBoth")
    assert sum(by_key.values()) == sum(by_both.values()) == sum(row["n"] for row in rows(30))
    assert len(by_both) > len(by_key) == 4
