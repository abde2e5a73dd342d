"""What users of other systems suffer from, one test per thread, by its number; and twins, which show that the tests can fail."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from opkit import inject, joined, late_ids, left_over, many_rows, pair_ids, single, small

import millstream as ms
from millstream.errors import DefinitionError, HookError
from millstream.operators.asof import AsOfJoin
from millstream.operators.first import Deduplicate
from millstream.operators.in_order import InOrder
from millstream.operators.interval_join import IntervalJoin
from millstream.testing import LocalRunner


def row(at: int, id: str, k: str = "a") -> dict[str, Any]:
    return {"k": k, "at": at, "id": id}


def runner_of(p: ms.Pipeline, *pushed: tuple[str, dict[str, Any]], shards: int = 2) -> LocalRunner:
    """One record per epoch, and all that it makes due."""
    runner = LocalRunner(p, shards=shards)
    for stream, one in pushed:
        runner.push(stream, one)
        runner.run()
    return runner


# --- nulls of outer joins


@pytest.mark.parametrize("how", ["left", "outer"])
def test_kafka_10847_no_null_comes_before_a_partner_that_is_still_allowed(how: str) -> None:
    """Kafka gave (left, null) at once, and the pair later."""
    runner = runner_of(joined(IntervalJoin, 50, how=how, delay=0), ("left", row(100, "l")), ("left", row(149, "far", "z")))
    runner.push("right", row(150, "r"))
    runner.run()
    assert pair_ids(runner) == [("l", "r", 150)], "the low watermark stands at the slower side"
    runner.advance_watermark("left", 1_000)
    runner.advance_watermark("right", 1_000)
    assert ("l", None, 150) not in pair_ids(runner)


def test_kafka_12909_and_16123_an_unmatched_row_comes_without_further_records_of_its_key() -> None:
    runner = runner_of(joined(IntervalJoin, 50, how="left", delay=0), ("left", row(100, "l")))
    for stream in ("left", "right"):
        runner.advance_watermark(stream, 150)
    assert pair_ids(runner) == [], "a right one at 150 is still allowed"
    for stream in ("left", "right"):
        runner.advance_watermark(stream, 151)
    assert pair_ids(runner) == [("l", None, 150)]
    assert left_over(runner) == []


def test_kafka_13721_no_null_beside_a_pair_whatever_side_comes_first() -> None:
    for first, second in ((("left", row(100, "l")), ("right", row(90, "r"))), (("right", row(90, "r")), ("left", row(100, "l")))):
        runner = runner_of(joined(IntervalJoin, 50, 20, "outer"), first, second)
        runner.drain()
        assert pair_ids(runner) == [("l", "r", 100)]


def test_kafka_15417_an_asymmetric_window_times_out_by_its_own_side() -> None:
    """With before=0 and after=50 a right record without partner is told at once when time has passed it, not 50 later."""
    runner = runner_of(joined(IntervalJoin, 50, 0, "outer", delay=0), ("right", row(100, "r")), ("left", row(101, "l")))
    runner.advance_watermark("right", 101)
    runner.epoch()
    assert pair_ids(runner) == [(None, "r", 100)]


def test_spark_26154_a_row_is_never_joined_and_then_told_as_unmatched() -> None:
    """Spark matched a row, evicted the flag with the other side's state, and told (left, null) as well."""
    given = [("left", row(100, "l")), ("right", row(101, "r")), ("left", row(400, "l2")), ("right", row(400, "r2"))]
    with small(60):
        runner = runner_of(joined(IntervalJoin, 50, 50, "outer", delay=0), *given)
        runner.drain()
    assert pair_ids(runner) == [("l", "r", 101), ("l2", "r2", 400)]


def test_spark_58904_a_late_partner_takes_back_nothing() -> None:
    """After the null has been told, its partner is late: it is in the late stream, and makes no pair."""
    runner = runner_of(joined(IntervalJoin, 50, how="left", delay=0), ("left", row(100, "l")))
    for stream in ("left", "right"):
        runner.advance_watermark(stream, 151)
    runner.push("right", row(120, "too late"))
    runner.run()
    runner.drain()
    assert pair_ids(runner) == [("l", None, 150)] and late_ids(runner) == {"too late"}


# --- late records


def test_flink_24907_and_37153_late_records_of_joins_are_counted_and_have_a_stream() -> None:
    for p in (joined(IntervalJoin, 50), joined(AsOfJoin)):
        runner = runner_of(p, ("left", row(1_000, "l")), ("right", row(1_000, "r")), ("left", row(10, "old")), ("right", row(11, "older")))
        assert runner.late("op") == 2 and late_ids(runner) == {"old", "older"}


def test_spark_56043_a_record_just_at_the_watermark_is_not_late() -> None:
    for p in (single(InOrder, delay=0), single(Deduplicate, 5, delay=0)):
        runner = runner_of(p, ("left", row(100, "a", "z")), ("left", row(100, "b")), ("left", row(99, "c")))
        runner.drain()
        assert {one.id for one in runner.records("out")} == {"a", "b"} and late_ids(runner) == {"c"}


def test_kafka_8613_there_is_no_grace_by_default() -> None:
    runner = runner_of(
        joined(IntervalJoin, 50, how="left", delay=0), ("left", row(100, "l")), ("left", row(151, "m")), ("right", row(151, "r"))
    )
    runner.run()
    assert ("l", None, 150) in pair_ids(runner)


def test_quix_as_of_is_by_event_time_not_by_arrival() -> None:
    given = [("left", row(100, "l")), ("right", row(50, "seen")), ("right", row(95, "newer, and later"))]
    runner = runner_of(joined(AsOfJoin, delay=60), *given)
    runner.drain()
    assert pair_ids(runner) == [("l", "newer, and later", 100)]


def test_back_includes_its_end_and_keeps_the_current_record_for_it() -> None:
    """99 is told at 100, and 75 may still be needed by 100."""
    runner = runner_of(joined(AsOfJoin, 25, delay=0), ("right", row(75, "r")), ("left", row(99, "l")), ("right", row(100, "x", "z")))
    for pushed in (("left", row(100, "m")), ("left", row(101, "n"))):
        runner.push(*pushed)
        runner.run()
    runner.drain()
    assert pair_ids(runner) == [("l", "r", 99), ("m", "r", 100), ("n", None, 101)]


def test_what_was_told_is_remembered_as_long_as_it_can_be_repeated() -> None:
    runner = runner_of(single(Deduplicate, 2, delay=0), ("left", row(100, "a")), ("left", row(102, "b")), ("left", row(103, "c")))
    runner.run()
    assert [one.id for one in runner.records("out")] == ["a", "b"]


# --- lateness


def test_lateness_lets_in_what_is_older_than_the_watermark_at_the_oldest_timestamp_that_is_still_allowed() -> None:
    runner = runner_of(joined(IntervalJoin, 50, how="left", lateness=40, delay=0), ("left", row(100, "l")), ("right", row(160, "x", "z")))
    runner.push("left", row(170, "y", "z"))
    runner.run()
    runner.push("right", row(125, "late but let in"))
    runner.run()
    assert ("l", "late but let in", 160) in pair_ids(runner) and late_ids(runner) == set()
    runner.push("right", row(119, "too late"))
    runner.run()
    assert late_ids(runner) == {"too late"}
    runner.drain()
    assert left_over(runner) == []
    assert ("y", None, 170 + 50 + 40) in pair_ids(runner)


# --- state


def test_a_late_record_touches_no_state() -> None:
    """Its key has no row; a row that is there keeps its bytes."""
    for p, streams in (
        (joined(IntervalJoin, 50, how="outer"), ("left", "right")),
        (joined(AsOfJoin), ("left", "right")),
        (single(InOrder), ("left",)),
    ):
        runner = runner_of(p, *[(stream, row(1_000, f"{stream}1")) for stream in streams])
        before = [dict(store.entries) for store in runner._engine.stores.values()]
        runner.push("left", row(1, "late"), row(2, "other", "new"))
        runner.epoch()
        assert late_ids(runner) == {"late", "other"}
        assert [dict(store.entries) for store in runner._engine.stores.values()] == before


def test_a_twin_whose_late_records_touch_the_state_is_found() -> None:
    class Touches(AsOfJoin):
        def process_record(self, record: ms.Record) -> None:
            if record.timestamp < self.late_before:
                self.keep(record)
            super().process_record(record)

    runner = runner_of(joined(Touches, 50), ("left", row(1_000, "l")), ("right", row(1_000, "r")), ("left", row(1, "late", "new")))
    assert runner.state("op", "new") is not None


@pytest.mark.parametrize("operator", [AsOfJoin, InOrder, Deduplicate])
def test_a_twin_that_does_not_look_again_when_its_timer_fires_leaves_records_behind(operator: Any) -> None:
    class Once(operator):  # type: ignore[misc]
        def next_look(self) -> None:
            return None

        def wake(self, oldest: int) -> None:
            if not self.state or self.state == [oldest]:
                super().wake(oldest)

        def process_timer(self, timer: ms.Timer) -> None:
            if operator is Deduplicate:
                del self.state[0]
            else:
                super().process_timer(timer)

    args: tuple[Any, ...] = (30,) if operator in (AsOfJoin, Deduplicate) else ()
    left = []
    for cls in (operator, Once):
        runner = LocalRunner(joined(cls, *args) if operator is AsOfJoin else single(cls, *args))
        runner.push("left", row(100, "1"), row(400, "2"), row(900, "3"))
        runner.drain()
        left.append(len(left_over(runner)))
    assert left[0] == 0 < left[1]


def test_a_hot_key_goes_into_few_entries_and_comes_out_of_them_whole() -> None:
    runner = LocalRunner(joined(IntervalJoin, 400, 400, "outer"))
    runner.push("left", *[row(n, f"l{n}") for n in range(0, 2_000, 2)])
    runner.epoch()
    state = runner.state("op", "a")
    assert [one["id"] for one in state] == [f"l{n}" for n in range(0, 2_000, 2)] and {one["side"] for one in state} == {"left"}
    assert len(left_over(runner)) == 2 * 2_000 // 50 + 1, "a chunk for every bucket, and the next look"
    runner.push("right", *[row(n, f"r{n}") for n in range(0, 2_000, 100)])
    runner.drain()
    expected = sum(1 for right in range(0, 2_000, 100) for left in range(0, 2_000, 2) if abs(left - right) <= 400)
    assert len(runner.output("out")) == expected and left_over(runner) == []


def test_the_right_side_of_an_as_of_join_does_not_grow() -> None:
    runner = LocalRunner(joined(AsOfJoin, delay=20))
    sizes = []
    for n in range(60):
        for stream in ("left", "right"):
            runner.push(
                stream, *[row(n * 100 + at, f"{stream}{n}-{at}", "a" if stream == "right" else "nobody") for at in range(0, 100, 10)]
            )
        runner.run()
        sizes.append(sum(len(raw) for store in runner._engine.stores.values() for raw in store.entries.values()))
    assert max(sizes[5:]) < 3_000 and runner.state("op", "a").current


def test_values_come_back_as_the_codec_has_them() -> None:
    class Makes(ms.Computation):
        State = type(None)

        def process_record(self, record: ms.Record) -> None:
            self.produce({"on": datetime.date(2024, 2, 29), "sum": decimal.Decimal("1.50"), 7: [None, b"x"], "id": record.id})

    p = ms.Pipeline("values")
    made = p.compute(Makes, inject(p, "left"), key="k", produces="made")
    p.compute(InOrder, made, key=lambda record: record.key, produces="ordered")
    runner = runner_of(p, ("left", row(100, "1")))
    runner.drain()
    assert [value for _, value, _ in runner.output("ordered")] == [value for _, value, _ in runner.output("made")]
    assert runner.records("ordered")[0].id == runner.records("made")[0].id


# --- definitions, errors, edges


@pytest.mark.parametrize(
    "make",
    [
        lambda: IntervalJoin("left", 5, how="full"),
        lambda: IntervalJoin("left", -5),
        lambda: IntervalJoin("left", 5, lateness=-1),
        lambda: AsOfJoin("left", -1),
        lambda: AsOfJoin("left", how="outer"),
        lambda: Deduplicate(0),
    ],
)
def test_what_makes_no_sense_is_a_definition_error(make: Any) -> None:
    with pytest.raises(DefinitionError):
        make()


def test_a_timer_that_became_a_dead_letter_does_not_stop_its_key() -> None:
    """A value that cannot be decoded any more: the look fails, and the next record has it look again."""
    fails = {"on": True}

    class Fragile(InOrder):
        def value_of(self, one: Any) -> Any:
            if fails["on"]:
                raise ValueError("not today")
            return super().value_of(one)

    p = ms.Pipeline("fragile")
    p.compute(Fragile, inject(p, "left", 0), key="k", name="op", produces="out", on_error=ms.DEAD_LETTER)
    runner = runner_of(p, ("left", row(100, "1")), ("left", row(200, "2", "z")))
    assert runner.dead("op") == 1 and runner.timers("op", "a") == []
    fails["on"] = False
    for pushed in (row(300, "3"), row(400, "4", "z")):
        runner.push("left", pushed)
        runner.run()
    assert [one.id for one in runner.records("out") if one.key == "a"] == ["1", "3"]
    runner.drain()
    assert left_over(runner) == []


def test_without_dead_letters_the_epoch_fails_and_nothing_is_lost() -> None:
    class Fragile(InOrder):
        def value_of(self, one: Any) -> Any:
            raise ValueError("not today")

    runner = LocalRunner(single(Fragile))
    runner.push("left", row(100, "1"))
    with pytest.raises(HookError, match="not today"):
        runner.drain()


def test_times_at_the_very_end_of_time_are_told_in_a_drain() -> None:
    last = ms.END - 1
    for p in (single(InOrder), single(Deduplicate, 50), joined(IntervalJoin, 50, how="left"), joined(AsOfJoin, 50)):
        runner = LocalRunner(p)
        runner.push("left", row(last, "1"), row(last - 3, "2", "b"))
        runner.drain()
        assert len(runner.output("out")) == 2 and left_over(runner) == []


def test_what_an_operator_says_is_not_late_for_the_next_one() -> None:
    """A time-out into an in-order, in the epoch in which it is told."""
    p = joined(IntervalJoin, 50, how="left", delay=0)
    p.compute(InOrder, "out", key=lambda record: "all", name="ordered", produces="ordered-out")
    runner = runner_of(p, *many_rows(40))
    runner.drain()
    assert runner.late("ordered") == 0
    stamps = [at for _, _, at in runner.output("ordered-out")]
    assert len(stamps) == len(runner.output("out")) and stamps == sorted(stamps)
