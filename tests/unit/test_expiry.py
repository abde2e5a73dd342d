"""Rows that nothing has come to for a time: when they go, what goes with them, and what it costs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from unitkit import dumb_index, run_step

import millstream as ms
from effort import seeds
from millstream.core.expiry import EXPIRE
from millstream.core.keyspace import ROW, decode_row
from millstream.core.time import END
from millstream.errors import DefinitionError
from millstream.state.memory_storage import MemoryStore
from millstream.testing import LocalRunner, assert_exactly_once, assert_same_in_any_epochs

SOURCE = ms.sources.files("in/", schema="k string, at long, id string")
LOW, WALL = ms.LOW_WATERMARK, ms.WALL_CLOCK


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(self.state)

    def process_expiry(self) -> None:
        self.produce(["bye", self.state])


def pipeline(expire: Any = "80ms", computation: Any = Count, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("expiring")
    stream = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded(0))
    p.compute(computation, stream, key="k", name="op", produces="out", expire=expire, **options)
    return p


def row(at: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "at": at, "id": f"{k}{at}"}


def runner_of(p: ms.Pipeline, *rows: dict[str, Any], now: int = 0) -> LocalRunner:
    runner = LocalRunner(p, now=now)
    for one in rows:
        runner.push("in", one)
        runner.run()
    return runner


def left_over(runner: LocalRunner) -> list[bytes]:
    return [entry for store in runner._engine.stores.values() for entry in store.entries]


# --- by event time


def test_a_row_goes_when_the_low_watermark_is_so_much_behind_its_newest_record() -> None:
    runner = runner_of(pipeline(), row(100), row(103))
    runner.advance_watermark("in", 189)
    assert runner.state("op", "a") == 2, "103 counts as 110: an eighth of 80 is 10"
    runner.advance_watermark("in", 190)
    assert runner.state("op") == {} and left_over(runner) == []
    assert runner.output("out")[-1] == ("a", ["bye", 2], 190)
    assert runner._engine.tallies["op"] == {"expired": 1}


def test_a_row_is_fresh_for_a_record_that_is_so_much_newer_whether_time_has_come_or_not() -> None:
    for rows in ([row(100), row(189)], [row(100), row(180)]):
        runner = LocalRunner(pipeline())
        runner.push("in", *rows)
        runner.epoch()
        stepwise = runner_of(pipeline(), *rows)
        stepwise.run()
        for one in (runner, stepwise):
            assert one.output("out") == [("a", 1, 100), ("a", ["bye", 1], 180), ("a", 1, rows[1]["at"])]
    assert [value for _, value, _ in runner_of(pipeline(), row(100), row(179)).output("out")] == [1, 2]


def test_the_timer_is_looked_at_again() -> None:
    runner = runner_of(pipeline(), row(100))
    assert runner.timers("op", "a") == [ms.Timer(180, EXPIRE, LOW)]
    runner.push("in", row(150))
    runner.run()
    assert runner.timers("op", "a") == [ms.Timer(180, EXPIRE, LOW)], "it is not moved"
    runner.advance_watermark("in", 180)
    assert runner.state("op", "a") == 2 and runner.timers("op", "a") == [ms.Timer(230, EXPIRE, LOW)]


def test_a_twin_whose_timer_is_a_fact_loses_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.core.expiry.Expiry.fire", lambda self, timer: self._expire(timer))
    runner = runner_of(pipeline(), row(100), row(150))
    runner.advance_watermark("in", 180)
    assert runner.state("op") == {}


def test_the_timer_keeps_no_empty_row_alive() -> None:
    class Nothing(Count):
        def process_record(self, record: ms.Record) -> None:
            self.state = (self.state + 1) % 2

    runner = runner_of(pipeline(computation=Nothing), row(100), row(101))
    assert left_over(runner) == []


def test_nothing_expires_in_a_drain() -> None:
    runner = runner_of(pipeline(), row(100), row(150, "b"))
    runner.drain()
    assert runner.state("op") == {"a": 1, "b": 1} and runner.timers("op", "a") == []
    assert all(not isinstance(value, list) for _, value, _ in runner.output("out"))


@dataclass
class Basket:
    pages: ms.MapState = field(default_factory=ms.MapState)
    seen: int = 0


class Timed(ms.Computation):
    State = Basket

    def process_record(self, record: ms.Record) -> None:
        self.state.pages[record.timestamp] = record.id
        self.set_timer("far", record.timestamp + 500, hold=record.timestamp)
        self.set_timer("near", record.timestamp + 20)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce([timer.tag, len(list(self.state.pages))])

    def process_expiry(self) -> None:
        self.produce(["bye", dict(self.state.pages.items())])
        self.state.seen = 7
        self.set_timer("never", self.now + 1_000, WALL)


def test_entries_timers_and_holds_go_with_the_row() -> None:
    runner = runner_of(pipeline(computation=Timed), row(100), row(110), row(120, "b"))
    runner.advance_watermark("in", 195)
    assert [value for key, value, _ in runner.output("out") if key == "a"] == [
        ["near", 2],
        ["near", 2],
        ["bye", {100: "a100", 110: "a110"}],
    ]
    assert [at for key, _, at in runner.output("out") if key == "a"] == [120, 130, 190]
    assert set(runner.state("op")) == {"b"}
    runner.advance_watermark("in", 1_000)
    assert left_over(runner) == [] and runner._engine.standings["op"].held is None


def test_a_visit_that_only_reads_writes_nothing() -> None:
    class Reads(ms.Computation):
        State = list

        def process_record(self, record: ms.Record) -> None:
            if not self.state:
                self.state.append(record.timestamp)

    store = MemoryStore()
    expire = (80, LOW)
    assert run_step(Reads(), [("k", 101, "a", None)], store=store, expire=expire).delta
    assert run_step(Reads(), [("k", 109, "b", None)], store=store, expire=expire).delta == {}
    assert run_step(Reads(), [("k", 111, "c", None)], store=store, expire=expire).delta != {}


def test_a_computation_without_expire_has_rows_as_before() -> None:
    stores = [MemoryStore() for _ in range(2)]
    for store, expire in zip(stores, (None, (80, LOW)), strict=True):
        run_step(Count(), [("k", 100, "a", None)], store=store, expire=expire)
    plain, aged = (decode_row(store.get(ROW + b"k")) for store in stores)
    assert (plain.newest, aged.newest) == (None, 100) and len(stores[0].get(ROW + b"k")) < len(stores[1].get(ROW + b"k")) - 10


def test_a_row_set_in_the_past_does_not_hold_time_back() -> None:
    """A late record that its hook keeps: it expires from the low watermark on."""

    class Keeps(Count):
        def process_late_record(self, record: ms.Record) -> None:
            self.state += 1

    runner = runner_of(pipeline(computation=Keeps), row(1_000, "b"), row(5))
    assert [timer.time for timer in runner.timers("op", "a")] == [1_080]
    runner.epoch()
    assert runner._engine.standings["op"].output == 1_000


def test_a_row_that_comes_together_with_a_jump_of_time_goes_in_the_same_epoch() -> None:
    runner = LocalRunner(pipeline())
    runner._engine.progress["in"].watermark = 1_000
    runner.push("in", row(100), row(150), row(990, "b"))
    runner.epoch()
    assert runner.output("out") == [("a", 1, 100), ("a", 2, 150), ("a", ["bye", 2], 230), ("b", 1, 990)]
    assert set(runner.state("op")) == {"b"}


def test_a_jump_over_many_rows_is_taken_in_portions_and_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.core.step.MAX_DUE", 3)
    p = pipeline()
    p.compute(Latest, "out", key=lambda record: "all", name="latest")
    runner = LocalRunner(p, shards=1)
    runner.push("in", *[row(100 + n, f"k{n}") for n in range(20)])
    runner.epoch()
    runner.advance_watermark("in", 5_000)
    assert runner.late("latest") == 0 and runner.state("op") == {}
    assert sorted(at for _, value, at in runner.output("out") if value == ["bye", 1]) == [180, *[190] * 10, *[200] * 9]


class Latest(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state = max(self.state, record.timestamp)


# --- by the clock


def test_by_the_clock_a_row_goes_so_long_after_its_last_arrival() -> None:
    runner = runner_of(pipeline(("80ms", WALL)), row(100), now=1_000)
    runner.advance_clock(1_079)
    assert runner.state("op", "a") == 1
    runner.push("in", row(500))
    runner.run()
    runner.advance_clock(1_159)
    assert runner.state("op", "a") == 2, "it was newer than its timer"
    runner.advance_clock(1_170)
    assert runner.state("op") == {} and left_over(runner) == []
    assert runner.output("out")[-1] == ("a", ["bye", 2], 500)


def test_by_the_clock_the_records_of_the_epoch_in_which_it_goes_find_a_fresh_row() -> None:
    runner = runner_of(pipeline(("80ms", WALL)), row(100), now=1_000)
    runner._engine.now = 1_080
    runner.push("in", row(101))
    runner.epoch()
    assert [value for _, value, _ in runner.output("out")] == [1, ["bye", 1], 1] and runner.state("op", "a") == 1


def test_by_the_clock_nothing_expires_in_a_drain_either() -> None:
    runner = runner_of(pipeline(("80ms", WALL)), row(100), now=1_000)
    runner._engine.now = 5_000
    runner.drain()
    assert runner.state("op") == {"a": 1}


# --- errors, restarts, faults


def test_a_farewell_that_raises_is_a_dead_letter_and_the_row_goes_nevertheless() -> None:
    class Fragile(Count):
        def process_record(self, record: ms.Record) -> None:
            super().process_record(record)
            if record.timestamp == 401:
                raise ValueError("later")

        def process_expiry(self) -> None:
            raise ValueError("no farewell")

    runner = runner_of(pipeline(computation=Fragile, on_error=ms.DEAD_LETTER), row(100), row(400), row(401))
    assert [value for _, value, _ in runner.output("out")] == [1, 1] and runner.state("op", "a") == 1
    letters = [value for _, value, _ in runner.output("op.dead-letters")]
    assert [letter["error"] for letter in letters] == ["ValueError: no farewell", "ValueError: later"]
    assert letters[0]["timer"] == [LOW, EXPIRE, 180]


def test_a_record_that_is_a_dead_letter_leaves_the_row_expired_before_it() -> None:
    class Raises(Count):
        def process_record(self, record: ms.Record) -> None:
            super().process_record(record)
            if record.timestamp == 400:
                raise ValueError("not this one")

    runner = LocalRunner(pipeline(computation=Raises, on_error=ms.DEAD_LETTER))
    runner.push("in", row(100), row(400), row(401))
    runner.epoch()
    assert [value for _, value, _ in runner.output("out")] == [1, ["bye", 1], 1] and runner.state("op", "a") == 1


def test_a_shorter_time_holds_from_the_next_visit_on_and_does_not_hold_time_back() -> None:
    runner = runner_of(pipeline("8s"), row(100), row(3_000, "b"), row(3_001, "c"))
    runner.become(pipeline("80ms"))
    runner._engine.progress["in"].watermark = 3_001
    assert [timer.time for timer in runner.timers("op", "b")] == [11_000]
    runner.push("in", row(3_010, "b"))
    runner.run()
    assert [timer.time for timer in runner.timers("op", "b")] == [3_090]
    assert runner._engine.standings["op"].output == 3_010


def test_rows_of_a_program_without_expire_begin_with_their_next_visit() -> None:
    runner = runner_of(pipeline(None), row(100), row(100, "b"), row(2_000, "c"))
    runner.become(pipeline("80ms"))
    runner.push("in", row(2_010))
    runner.run()
    assert runner.state("op") == {"a": 2, "b": 1, "c": 1}, "nobody knows how old they are"
    runner.advance_watermark("in", 3_000)
    assert runner.state("op") == {"b": 1, "c": 1}, "nothing has come to them since"


def test_a_program_that_has_lost_expire_goes_on() -> None:
    runner = runner_of(pipeline("80ms"), row(100))
    runner.become(pipeline(None))
    runner.push("in", row(5_000))
    runner.run()
    runner.epoch()
    assert runner.state("op") == {"a": 2} and runner.timers("op", "a") == []


@pytest.mark.parametrize("wrong", ["0s", ("30d", "noon"), ("1s", WALL, 3), "soon", 5])
def test_what_is_no_time_is_a_definition_error(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        pipeline(wrong)


def test_a_time_that_has_no_end_expires_never() -> None:
    runner = runner_of(pipeline("80ms"), row(END - 3))
    assert runner.timers("op", "a") == []
    runner.drain()
    assert runner.state("op") == {"a": 1}


ROWS = [row(at, "abc"[at % 3]) for at in sorted(random.Random(5).sample(range(1_500), 70))]


def test_the_same_in_any_epochs() -> None:
    assert_same_in_any_epochs(pipeline(), ROWS, seeds=range(20))


def test_exactly_once_under_faults() -> None:
    assert_exactly_once(pipeline(), ROWS, seeds=range(10))
    assert_exactly_once(pipeline(("3s", WALL)), ROWS, seeds=range(10), epochs="same")


def test_against_a_dumb_twin() -> None:
    """In order of time: a record that is at least the rounded time behind the one before finds nothing."""
    for seed in seeds(40):
        dice = random.Random(seed)
        rows = [row(at, dice.choice("ab")) for at in sorted(dice.sample(range(1_000), 30))]
        runner = LocalRunner(pipeline("80ms"), shards=dice.randint(1, 3))
        for one in rows:
            runner.push("in", one)
            if dice.random() < 0.4:
                runner.epoch()
        runner.drain()
        for key in "ab":
            expected, newest, count = [], None, 0
            for at in [one["at"] for one in rows if one["k"] == key]:
                count = 1 if newest is None or at >= newest + 80 else count + 1
                newest = -(-at // 10) * 10
                expected.append(count)
            assert [value for k, value, _ in runner.output("out") if k == key and isinstance(value, int)] == expected
        for store in runner._engine.stores.values():
            index = {entry for entry in store.entries if entry.startswith(b"T")}
            assert index == dumb_index(store.entries)
