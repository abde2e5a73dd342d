"""Drains end: holds, wall-clock timers and the end of time itself do not stand in their way."""

from __future__ import annotations

from typing import Any

import pytest
from unitkit import MemoryStore, run_step

import millstream as ms
from computations import WindowCounts
from effort import some
from millstream.core.keyspace import ROW, decode_row
from millstream.testing import LocalRunner, assert_exactly_once

SCHEMA = "k string, at long, id string"


class Window(WindowCounts):
    """In tens."""


class FirstAndCount(ms.Computation):
    """One production per fifty, with the timestamp of the first record in it."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        end = record.timestamp - record.timestamp % 50 + 50
        if end not in self.state:
            self.state[end] = 0
            self.set_timer("fifty", end, hold=record.timestamp)
        self.state[end] += 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time), timestamp=timer.hold)


class StateHold(FirstAndCount):
    """The same with a hold of the state."""

    def process_record(self, record: ms.Record) -> None:
        if not self.state:
            self.state["held"] = self.hold(record.timestamp)
            self.set_timer("fifty", record.timestamp - record.timestamp % 50 + 50)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(1, timestamp=self.state.pop("held"))
        self.release()


def behind_a_window(computation: Any, production: str = ms.WEAK) -> ms.Pipeline:
    p = ms.Pipeline("drains")
    source = p.inject(
        "in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id", watermark=ms.watermarks.bounded("20ms")
    )
    windows = p.compute(Window, source, key="k", produces="windows", production=production)
    held = p.compute(computation, windows, key=lambda record: record.key, produces="held")
    p.compute(Window, held, key=lambda record: record.key, produces="last", name="Last")
    return p


ROWS = [{"k": "ab"[at % 2], "at": at, "id": str(at)} for at in range(0, 200, 3)]


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
@pytest.mark.parametrize("computation", [FirstAndCount, StateHold])
def test_a_hold_behind_another_window_is_no_obstacle_to_a_drain(computation: Any, production: str) -> None:
    runner = LocalRunner(behind_a_window(computation, production))
    runner.push("in", *ROWS)
    runner.run()
    runner.drain()
    assert runner.late("Last") == 0
    timestamps = [time for _, _, time in runner.output("held")]
    assert timestamps and all(0 < time <= 210 for time in timestamps)
    assert sum(value for _, value, _ in runner.output("last")) == len(runner.output("held"))


def test_holds_and_drains_under_faults() -> None:
    assert_exactly_once(
        behind_a_window(FirstAndCount), ROWS, seeds=range(some(40)), epochs="same"
    )  # where a hold stands follows from what was promised


class Beat(ms.Computation):
    """Produces at wall-clock times."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.set_timer("beat", self.now + 100, kind=ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(timer.time)


def test_a_wall_clock_timer_after_the_end_of_event_time_produces_and_nobody_dies_of_it() -> None:
    p = ms.Pipeline("drains")
    source = p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id")
    beats = p.compute(Beat, source, key="k", produces="beats")
    p.compute(Window, beats, key=lambda record: record.key, late="too-late", produces="windows")
    runner = LocalRunner(p, now=1_000)
    runner.push("in", {"k": "a", "at": 5, "id": "1"})
    runner.run()
    runner.drain()
    runner.advance_clock(1_200)
    assert runner.output("beats") == [("a", 1_100, 1_100)]
    assert runner.output("too-late") == []  # event time is over: nothing is late any more
    assert runner.output("windows") == [("a", 1, 1_110)]


def test_a_refused_timer_leaves_no_hold_behind() -> None:
    class Refused(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            for time, tag in ((1.5, "t"), (2**63, "t"), (7, 7)):
                with pytest.raises(ValueError):
                    self.set_timer(tag, time, hold=5)  # type: ignore[arg-type]
            with pytest.raises(ValueError):
                self.set_timer("t", 7, hold="soon")  # type: ignore[arg-type]
            with pytest.raises(ValueError):
                self.set_timer("t", 7, kind="sundial", hold=5)
            self.state["kept"] = True

    store = MemoryStore()
    run_step(Refused(), [("a", 1, "x", None)], store=store)
    row = decode_row(store.entries[ROW + b"a"])
    assert row.holds == [] and row.low == [] and row.wall == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda c: c.set_timer("t", None, hold=5), r"set_timer\('t', None\): the time must be an int"),
        (lambda c: c.set_timer("t", None, kind=ms.WALL_CLOCK, hold=5), r"set_timer\('t', None\): the time must be an int"),
        (lambda c: c.set_timer("t", "soon"), r"set_timer\('t', 'soon'\): the time must be an int"),
        (lambda c: c.set_timer("set", 7.0), r"set_timer\('set', 7.0\): the time must be an int"),
        (lambda c: c.set_timer(["t"], 7), r"the tag must be a str"),
        (lambda c: c.set_timer("t", 7, hold="soon"), r"set_timer\('t', 7, hold='soon'\): the hold must be an int"),
        (lambda c: c.set_timer("t", 7, kind=["x"]), r"use ms.LOW_WATERMARK or ms.WALL_CLOCK"),
        (lambda c: c.hold("soon"), r"hold\('soon'\): the timestamp must be an int"),
        (lambda c: c.hold(None), r"hold\(None\): the timestamp must be an int"),
        (lambda c: c.cancel_timer("t", "soon"), r"cancel_timer\('t', 'soon'\): the time must be an int"),
        (lambda c: c.cancel_timer(["t"]), r"the tag must be a str"),
        (lambda c: c.produce(1, timestamp="soon"), r"give milliseconds as an int"),
    ],
)
def test_a_wrong_argument_is_named_whatever_stands_beside_it(wrong: Any, says: str) -> None:
    class Wrong(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            self.set_timer("set", 7)
            with pytest.raises(ValueError, match=says):
                wrong(self)

    store = MemoryStore()
    run_step(Wrong(), [("a", 1, "x", None)], store=store)
    row = decode_row(store.entries[ROW + b"a"])
    assert row.holds == [] and row.low == [(7, "set")] and row.wall == []


def test_a_key_that_only_equals_the_producers_key_is_another_key() -> None:
    class Change(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            self.produce(1, key=(1,))
            with pytest.raises(ValueError, match=r"produce\(key=\(True,\)\)"):
                self.produce(1, key=(True,))

    outcome = run_step(Change(), [((1,), 1, "x", None)], same_key=["out"])
    assert [p.key for p in outcome.productions] == [(1,)]
