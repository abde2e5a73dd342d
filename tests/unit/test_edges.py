"""Strong, weak and adaptive edges, cycles, holds, late records and dead letters on the local engine."""

from __future__ import annotations

import random
from typing import Any

import pytest

import millstream as ms
from computations import Windows
from millstream.testing import LocalRunner

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")


class Pass(ms.Computation):
    """Hands on what it gets."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value["n"] if isinstance(record.value, dict) else record.value)


def rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        {"k": dice.choice("abcd"), "n": dice.randrange(9), "at": 1_000 + 10 * i + dice.randrange(50), "id": str(i)} for i in range(count)
    ]


def inject(p: ms.Pipeline, **options: Any) -> ms.Stream:
    return p.inject("in", SOURCE, timestamp="at", **{"id": "id", "watermark": ms.watermarks.bounded("60ms"), **options})


def chain(*kinds: str) -> ms.Pipeline:
    """A chain of computations with an edge of each kind between them, windows at its end."""
    p = ms.Pipeline("chain")
    stream = p.compute(Pass, inject(p), key="k", name="P0", produces="s0", production=kinds[0])
    for at, kind in enumerate(kinds[1:], 1):
        stream = p.compute(Pass, stream, key=lambda record: record.key, name=f"P{at}", produces=f"s{at}", production=kind)
    p.compute(Windows, stream, key=lambda record: record.key, produces="windows")
    return p


def test_a_strong_production_arrives_in_the_next_epoch_and_a_weak_one_in_the_same() -> None:
    for kind, expected in ((ms.WEAK, {"a": 1}), (ms.STRONG, {})):
        runner = LocalRunner(chain(kind))
        runner.push("in", {"k": "a", "n": 5, "at": 1000, "id": "x"})
        runner.epoch()
        assert runner.state("P0") == {"a": 1}
        assert {key: len(state) for key, state in runner.state("Windows").items()} == expected
        runner.epoch()
        assert {key: len(state) for key, state in runner.state("Windows").items()} == {"a": 1}


@pytest.mark.parametrize("kinds", [(ms.WEAK,) * 3, (ms.STRONG,) * 3, (ms.STRONG, ms.WEAK, ms.STRONG), (ms.WEAK, ms.ADAPTIVE, ms.STRONG)])
def test_windows_come_out_the_same_over_edges_of_every_kind_and_nothing_is_late(kinds: tuple[str, ...]) -> None:
    expected: dict[Any, int] = {}
    for row in rows(60):
        window = row["at"] - row["at"] % 100 + 100
        expected[row["k"], window] = expected.get((row["k"], window), 0) + row["n"]
    for storing in (False, True):
        runner = LocalRunner(chain(*kinds))
        dice = random.Random(3)
        for row in rows(60):
            runner.push("in", row)
            if dice.random() < 0.3:
                if storing and ms.ADAPTIVE in kinds:
                    runner.store("s1", "P2", dice.random() < 0.5)
                runner.epoch()
        runner.drain()
        assert sum(runner.late(name) for name in ("P0", "P1", "P2", "Windows")) == 0
        assert {(key, time): value for key, value, time in runner.output("windows")} == expected
        assert len(runner.output("windows")) == len(expected)


def test_a_chain_of_strong_edges_is_one_level_whatever_its_length() -> None:
    assert len(chain(*[ms.STRONG] * 6).topology().levels) == 1
    assert len(chain(*[ms.WEAK] * 6).topology().levels) == 7
    assert len(chain(*[ms.ADAPTIVE] * 6).topology().levels) == 7


def test_one_consumer_may_have_an_edge_of_its_own() -> None:
    p = ms.Pipeline("own")
    passed = p.compute(Pass, inject(p), key="k", produces="passed")
    p.compute(Windows, passed.via(ms.STRONG), key=lambda record: record.key, name="Later")
    p.compute(Windows, passed, key=lambda record: record.key, name="Now")
    edges = p.topology().edges
    assert (edges["passed", "Later"], edges["passed", "Now"], edges["in", "Pass"]) == (ms.STRONG, ms.WEAK, ms.WEAK)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p, s: p.compute(Pass, s.via(ms.STRONG), key="k"), "injected stream 'in' cannot be strong"),
        (lambda p, s: p.compute(Pass, s, key="k", production="firm"), "use ms.WEAK, ms.STRONG or ms.ADAPTIVE"),
        (lambda p, s: p.compute(Pass, s, key="k", production={"other": ms.WEAK}), "does not produce"),
        (lambda p, s: p.compute(Pass, s, key="k", late={"other": ms.DROP}), "does not read"),
        (lambda p, s: p.compute(Pass, s, key="k", on_error="ignore"), "use ms.FAIL or ms.DEAD_LETTER"),
        (lambda p, s: p.compute(Pass, s, "Pass", key={"in": "k"}), "make one of its edges strong"),
        (lambda p, s: p.dead_letters("Pass"), "has no dead letters"),
        (lambda p, s: p.inject("more", SOURCE, id="id", dedup=0), "longer than nothing"),
    ],
)
def test_wrong_edges_and_options_are_told_early(make: Any, says: str) -> None:
    p = ms.Pipeline("wrong")
    with pytest.raises(ms.errors.DefinitionError, match=says):
        make(p, inject(p))
        p.topology()


class Collatz(ms.Computation):
    """Sends a number round until it is 1: feedback over a strong edge."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        number, steps = record.value if isinstance(record.value, (list, tuple)) else (record.value["n"], 0)
        if number <= 1:
            self.produce(steps, stream="done")
        else:
            self.produce([number // 2 if number % 2 == 0 else 3 * number + 1, steps + 1], stream="again")


def collatz() -> ms.Pipeline:
    p = ms.Pipeline("collatz")
    p.compute(
        Collatz,
        inject(p),
        "again",
        key={"in": "id", "again": lambda record: record.key},
        produces=["again", "done"],
        production={"again": ms.STRONG},
    )
    p.compute(Windows, "done", key=lambda record: "all", produces="windows")
    return p


def test_a_cycle_iterates_until_it_is_done() -> None:
    runner = LocalRunner(collatz())
    runner.push("in", *[{"k": "x", "n": n, "at": 1_000 + n, "id": str(n)} for n in range(1, 30)])
    runner.drain()
    steps = {int(key): value for key, value, _ in runner.output("done")}

    def count(n: int) -> int:
        return 0 if n <= 1 else 1 + count(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert steps == {n: count(n) for n in range(1, 30)}
    assert runner.late("Collatz") == runner.late("Windows") == 0
    assert runner.low_watermark("Collatz") == ms.END


def test_time_in_a_cycle_neither_stands_still_nor_runs_ahead_of_what_circles() -> None:
    runner = LocalRunner(collatz())
    runner.push("in", {"k": "x", "n": 27, "at": 1_000, "id": "27"})  # 111 steps
    runner.epoch()
    runner.push("in", {"k": "x", "n": 1, "at": 9_000, "id": "1"})
    runner.epoch()
    for _ in range(100):
        runner.epoch()
        assert runner.low_watermark("Collatz") <= 1_000 and runner.low_watermark("Windows") <= 1_000
    for _ in range(20):
        runner.epoch()
    assert runner.low_watermark("Collatz") == 8_940, "nothing circles any more: time goes on"
    assert [time for _, _, time in runner.output("windows")] == [1_100]


class Holding(ms.Computation):
    """Emits each window with the timestamp of its first record, for which it holds time back."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        if not self.state:
            self.state["first"] = self.hold(record.timestamp)
        self.state["sum"] = self.state.get("sum", 0) + record.value["n"]
        self.set_timer("window", window + 100)

    def process_timer(self, timer: ms.Timer) -> None:
        if self.state:
            self.produce(self.state["sum"], timestamp=self.state["first"])
            self.release()
            self.state = {}


def test_a_hold_keeps_the_output_watermark_and_what_follows_is_not_late() -> None:
    p = ms.Pipeline("holds")
    held = p.compute(Holding, inject(p, watermark=ms.watermarks.bounded(0)), key="k", produces="held")
    p.compute(Windows, held, key=lambda record: record.key, produces="windows")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1_010, "id": "1"})
    runner.epoch()
    runner.push("in", {"k": "b", "n": 2, "at": 1_090, "id": "2"})
    runner.epoch()
    runner.epoch()
    assert runner.low_watermark("Holding") == 1_090
    assert runner.low_watermark("Windows") == 1_010, "held back by key a"
    runner.push("in", {"k": "c", "n": 3, "at": 1_250, "id": "3"})
    for _ in range(3):
        runner.epoch()
    assert sorted(runner.output("held")) == [("a", 1, 1_010), ("b", 2, 1_090)]
    assert runner.late("Windows") == 0
    assert runner.low_watermark("Windows") == 1_250
    runner.drain()
    assert sorted(runner.output("windows")) == [("a", 1, 1_100), ("b", 2, 1_100), ("c", 3, 1_300)]


def test_without_the_hold_the_same_production_is_an_error_that_says_so() -> None:
    class Old(Holding):
        def hold(self, timestamp: int) -> int:
            return timestamp

    p = ms.Pipeline("old")
    p.compute(Old, inject(p, watermark=ms.watermarks.bounded(0)), key="k", produces="held")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1_010, "id": "1"})
    with pytest.raises(ms.errors.HookError, match="older than what caused it"):
        runner.drain()


class Backdating(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["n"], timestamp=record.timestamp)

    def process_late_record(self, record: ms.Record) -> None:
        self.produce("late", timestamp=record.timestamp if record.value["n"] else None)


def test_a_production_below_the_low_watermark_is_an_error_unless_it_gives_no_timestamp() -> None:
    p = ms.Pipeline("below")
    p.compute(Backdating, inject(p, watermark=ms.watermarks.bounded(0)), key="k", produces="out")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 2_000, "id": "1"})
    runner.epoch()
    runner.epoch()
    runner.push("in", {"k": "a", "n": 0, "at": 1_000, "id": "2"})
    runner.epoch()
    assert runner.output("out")[-1] == ("a", "late", 2_000)
    runner.push("in", {"k": "a", "n": 7, "at": 1_000, "id": "3"})
    with pytest.raises(ms.errors.HookError, match="below the low watermark that Backdating has promised"):
        runner.epoch()


class TimerHold(ms.Computation):
    """A timer that holds time at the start of its window."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        self.state += 1
        self.set_timer("w", window + 100, hold=window + 50)
        if record.value["n"] == 9:
            self.cancel_timer("w")

    def process_timer(self, timer: ms.Timer) -> None:
        assert timer.hold is not None
        self.produce(self.state, timestamp=timer.hold)


def test_a_timer_may_hold_and_lets_go_when_it_fires_or_is_cancelled() -> None:
    p = ms.Pipeline("timers")
    out = p.compute(TimerHold, inject(p, watermark=ms.watermarks.bounded(0)), key="k", produces="out")
    p.compute(Windows, out, key=lambda record: record.key, produces="windows")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 1, "at": 1_010, "id": "1"}, {"k": "b", "n": 1, "at": 1_060, "id": "2"})
    runner.epoch()
    runner.push("in", {"k": "a", "n": 1, "at": 1_080, "id": "3"})
    runner.epoch()
    runner.epoch()
    assert (runner.low_watermark("TimerHold"), runner.low_watermark("Windows")) == (1_080, 1_050)
    runner.push("in", {"k": "b", "n": 9, "at": 1_090, "id": "4"}, {"k": "c", "n": 9, "at": 1_120, "id": "5"})
    for _ in range(3):
        runner.epoch()
    assert runner.output("out") == [("a", 2, 1_050)]
    assert runner.low_watermark("Windows") == 1_120
    assert runner.late("Windows") == 0


class Reader(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["id"])


def test_late_records_go_where_their_input_says() -> None:
    seen: list[Any] = []

    class Late(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce(record.value["n"])

        def process_late_record(self, record: ms.Record) -> None:
            seen.append(record.value["id"])

    p = ms.Pipeline("late")
    one = p.inject("one", SOURCE, timestamp="at", id="id")
    two = p.inject("two", SOURCE, timestamp="at", id="id")
    three = p.inject("three", SOURCE, timestamp="at", id="id")
    p.compute(Late, one, two, three, key="k", produces="out", late={"one": "too-late", "two": ms.DROP})
    p.compute(Reader, p.late_records("too-late"), key=lambda record: record.key, produces="read", late=ms.DROP)
    runner = LocalRunner(p)
    for stream in ("one", "two", "three"):
        runner.push(stream, {"k": "a", "n": 1, "at": 5_000, "id": stream})
    runner.run()
    runner.epoch()
    for stream in ("one", "two", "three"):
        runner.push(stream, {"k": "a", "n": 1, "at": 1_000, "id": f"late {stream}"})
    runner.epoch()
    assert seen == ["late three"]
    assert runner.late("Late") == 3
    assert runner._engine.late_by == {"one": 1, "two": 1, "three": 1}
    assert runner.late("Reader") == 0, "a late record's own stream is not late again"
    ((key, value, timestamp),) = runner.output("too-late")
    assert (key, value["value"]["id"], value["timestamp"], value["stream"], value["low_watermark"], timestamp) == (
        "a",
        "late one",
        1_000,
        "one",
        5_000,
        5_000,
    )


class Fragile(ms.Computation):
    """Changes everything it can, and then raises for some records."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        self.state[record.value["id"]] = record.value["n"]
        self.set_timer("t", record.timestamp + 100)
        if record.value["n"] == 7:
            self.set_timer("bad", record.timestamp + 150)
        self.produce(record.value["n"])
        if record.value["n"] == 5:
            raise ValueError("five is right out")
        if record.value["n"] == 6:
            self.state["six"] = object()

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(f"{timer.tag} {timer.time}", stream=None)
        if timer.tag == "bad":
            self.state.clear()
            raise RuntimeError("a bad timer")


def fragile(on_error: str) -> ms.Pipeline:
    p = ms.Pipeline("fragile")
    p.compute(Fragile, inject(p), key="k", produces="out", on_error=on_error)
    return p


def test_by_default_a_hook_that_raises_fails_the_epoch_and_nothing_is_lost() -> None:
    runner = LocalRunner(fragile(ms.FAIL))
    runner.push("in", {"k": "a", "n": 1, "at": 1_000, "id": "1"}, {"k": "a", "n": 5, "at": 1_001, "id": "2"})
    with pytest.raises(ms.errors.HookError, match=r"(?s)'Fragile', key 'a'.*five is right out.*n': 5.*Traceback"):
        runner.epoch()
    assert runner.state("Fragile") == {} and runner.output("out") == []


def test_dead_letters_go_out_once_what_they_did_is_undone_and_the_rest_goes_on() -> None:
    bad = LocalRunner(fragile(ms.DEAD_LETTER))
    good = LocalRunner(fragile(ms.FAIL))
    dice = random.Random(4)
    given = [{"k": dice.choice("ab"), "n": dice.choice([1, 2, 5, 6]), "at": 1_000 + 7 * i, "id": str(i)} for i in range(60)]
    for at in range(0, 60, 12):
        bad.push("in", *given[at : at + 12])
        good.push("in", *[row for row in given[at : at + 12] if row["n"] < 5])
        bad.epoch()
        good.epoch()
    # only records that arrived may move time: the good one lacks the bad records' timestamps, so compare before time ends
    letters = bad.output("Fragile.dead-letters")
    assert sorted(int(value["id"]) for _, value, _ in letters) == [i for i, row in enumerate(given) if row["n"] >= 5]
    assert bad.dead("Fragile") == len(letters)
    first = next(value for _, value, _ in letters if value["value"]["n"] == 5)
    assert (
        first["error"] == "ValueError: five is right out"
        and "process_record" in first["traceback"]
        and first["stream"] == "in"
        and first["computation"] == "Fragile"
    )
    bad.drain()
    good.drain()
    assert bad.state("Fragile") == good.state("Fragile")
    assert sorted(bad.output("out"), key=repr) == sorted(good.output("out"), key=repr)


def test_a_timer_that_raises_becomes_a_dead_letter_and_does_not_fire_again() -> None:
    runner = LocalRunner(fragile(ms.DEAD_LETTER))
    runner.push("in", {"k": "a", "n": 7, "at": 1_000, "id": "1"})
    runner.drain()
    ((_, value, _),) = runner.output("Fragile.dead-letters")
    assert value["timer"] == [ms.LOW_WATERMARK, "bad", 1_150] and value["error"] == "RuntimeError: a bad timer"
    assert runner.state("Fragile") == {"a": {"1": 7}}
    assert runner.timers("Fragile", "a") == []
    assert [value for _, value, _ in runner.output("out")] == [7, "t 1100"]


def test_dead_letters_leave_map_states_as_they_were() -> None:
    class Mapped(ms.Computation):
        State = ms.MapState

        def process_record(self, record: ms.Record) -> None:
            self.state[record.value["n"]] = record.value["id"]
            if record.value["n"] % 2:
                self.state.clear()
                self.state["odd"] = 1
                raise ValueError("odd")

    p = ms.Pipeline("mapped")
    p.compute(Mapped, inject(p), key="k", on_error=ms.DEAD_LETTER)
    runner = LocalRunner(p)
    for start in (0, 10):
        runner.push("in", *[{"k": "a", "n": n, "at": 1_000 + n, "id": str(n)} for n in range(start, start + 10)])
        runner.epoch()
    assert dict(runner.state("Mapped", "a").items()) == {n: str(n) for n in range(0, 20, 2)}


def test_a_jump_over_many_timers_is_taken_in_portions_and_holds_time_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.core.step.MAX_DUE", 3)
    p = ms.Pipeline("jump")
    passed = p.compute(Pass, inject(p, watermark=ms.watermarks.bounded(0)), key="id", produces="passed")
    windows = p.compute(Windows, passed, key=lambda record: record.key, produces="windows")
    p.compute(Windows, windows, key=lambda record: "all", name="Total", produces="total")
    runner = LocalRunner(p, shards=1)
    runner.push("in", *[{"k": "x", "n": 1, "at": 1_000 + i, "id": str(i)} for i in range(20)])
    runner.epoch()
    runner.push("in", {"k": "x", "n": 1, "at": 5_000, "id": "last"})
    lows = []
    for _ in range(12):
        runner.epoch()
        lows.append(runner.low_watermark("Total"))
    assert lows[2] == 1_099 and lows[-1] == 5_000
    assert runner.late("Total") == 0
    runner.drain()
    assert [value for _, value, _ in runner.output("total")] == [20, 1]


class Forgetful(ms.Computation):
    """Holds, and never lets go."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.hold(record.timestamp)
        self.produce(record.value["n"])


@pytest.mark.slow
def test_a_hold_that_nothing_is_left_to_release_is_void_when_event_time_ends() -> None:
    p = ms.Pipeline("forgetful")
    p.compute(Windows, p.compute(Forgetful, inject(p), key="k", produces="held"), key=lambda record: record.key, produces="windows")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 3, "at": 1_010, "id": "1"})
    runner.epoch()
    assert runner.timers("Windows", "a") == [ms.Timer(1_100, "window", ms.LOW_WATERMARK)]
    runner.drain()
    assert runner.output("windows") == [("a", 3, 1_100)]
    ms.testing.assert_exactly_once(p, rows(20), seeds=range(20))


def test_a_timer_in_a_cycle_cannot_hold_an_earlier_time_than_its_own() -> None:
    class Loop(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.set_timer("t", record.timestamp + 100, hold=record.timestamp)

    p = ms.Pipeline("loop")
    p.compute(Loop, inject(p), "Loop", key={"in": "k", "Loop": lambda record: record.key}, production=ms.STRONG)
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "n": 3, "at": 1_010, "id": "1"})
    with pytest.raises(ms.errors.HookError, match="part of a cycle"):
        runner.epoch()


def test_a_dead_letters_traceback_tells_of_its_own_error_alone() -> None:
    runner = LocalRunner(fragile(ms.DEAD_LETTER))
    runner.push("in", {"k": "a", "n": 5, "at": 1_000, "id": "1"})
    runner.epoch()
    ((_, value, _),) = runner.output("Fragile.dead-letters")
    assert value["traceback"].count("Traceback") == 1 and "was not committed" not in value["traceback"]
