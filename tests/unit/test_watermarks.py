"""Injector watermarks: every policy, as pure functions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.core.time import BEGINNING
from millstream.core.watermark import Progress, Seen, bucket_end, effective, lags_of

w = ms.watermarks


def follow(policy: Any, *epochs: tuple[int, Seen]) -> list[int]:
    """The watermarks after each epoch (wall clock, what was seen)."""
    progress, found = Progress(), []
    for now, seen in epochs:
        progress = policy.advance(progress, seen, now)
        found.append(progress.watermark)
    return found


def test_bounded_follows_the_newest_record_and_never_goes_back() -> None:
    assert follow(w.bounded("2s"), (0, Seen(1, 10_000)), (1, Seen(1, 4_000)), (2, Seen()), (3, Seen(1, 12_000))) == [
        8_000,
        8_000,
        8_000,
        10_000,
    ]


def test_a_column_declares_the_watermark_and_never_takes_it_back() -> None:
    assert follow(w.declared("upto"), (0, Seen(1, 50, mark=5)), (1, Seen(1, 90, mark=3)), (2, Seen(1, 91)), (3, Seen(1, 95, mark=70))) == [
        5,
        5,
        5,
        70,
    ]


def test_what_a_callable_declares_counts_from_the_next_epoch_but_one() -> None:
    policy, progress, found = w.declared(lambda: None), Progress(), []
    for now, said in enumerate([10, None, 20, 15, None]):
        progress = policy.advance(progress, Seen(), now, said)
        found.append(progress.watermark)
    assert found == [BEGINNING, 10, 10, 20, 20]


def bucket(lag: int) -> int:
    (found,) = lags_of(np.array([lag]))
    return found


def test_buckets_of_lag_cover_what_falls_into_them_with_little_to_spare() -> None:
    for lag in [-5, 0, 1, 2, 3, 7, 100, 12_345, 10**9]:
        end = bucket_end(bucket(lag))
        assert max(lag, 0) <= end <= max(lag, 0) * 1.2 + 2
        assert bucket(end + 1) > bucket(lag)


def test_a_percentile_estimates_its_delay_from_recent_records() -> None:
    """99 % of the records come within 500 ms, some take 5 s: the estimate for 97 % lies below that, and a few in a hundred are late."""
    dice = random.Random(5)
    policy, progress = w.percentile(0.97, first="60s"), Progress()
    late = total = 0
    time = 1_000_000
    for epoch in range(300):
        seen = Seen()
        for _ in range(100):
            time += 10
            at = time - (dice.randrange(1, 500) if dice.random() < 0.99 else 5_000)
            late += at < progress.watermark
            total += 1
            seen.add(Seen(1, at, lags={} if progress.newest is None else {bucket(progress.newest - at): 1}))
        progress = policy.advance(progress, seen, epoch)
    assert 0.005 < late / total < 0.04
    assert 200 < progress.newest - progress.watermark < 1_000
    assert "estimated" in progress.holder


def test_sub_sources_wait_for_all_that_were_declared() -> None:
    policy = w.sub_sources("host", ["a", "b"], w.bounded("10ms"))
    progress = policy.advance(Progress(), Seen(1, 100, subs={"a": (100, None)}), 0)
    assert (progress.watermark, progress.holder) == (BEGINNING, "sub-source 'b', of which nothing was heard")
    progress = policy.advance(progress, Seen(2, 100, subs={"b": (50, None), "stranger": (1, None)}), 1)
    assert (progress.watermark, progress.holder) == (40, "sub-source 'b'")
    progress = policy.advance(progress, Seen(1, 200, subs={"b": (200, None)}), 2)
    assert (progress.watermark, progress.holder) == (90, "sub-source 'a'")


def test_a_silent_sub_source_stops_holding_after_its_idle_time_and_holds_again_when_it_speaks() -> None:
    policy = w.sub_sources("host", ["a", "b"], w.bounded(0, idle="10s"))
    progress = policy.advance(Progress(), Seen(2, 100, subs={"a": (100, None), "b": (50, None)}), 0)
    assert progress.watermark == 50
    progress = policy.advance(progress, Seen(1, 300, subs={"a": (300, None)}), 9_999)
    assert progress.watermark == 50
    progress = policy.advance(progress, Seen(1, 400, subs={"a": (400, None)}), 10_000)
    assert progress.watermark == 400
    progress = policy.advance(progress, Seen(2, 900, subs={"a": (900, None), "b": (450, None)}), 10_001)
    assert progress.watermark == 450


def test_when_all_sub_sources_are_silent_the_injector_is_idle() -> None:
    policy = w.sub_sources("host", ["a", "b"], w.bounded(0, idle="10s"))
    unheard = policy.advance(policy.advance(Progress(), Seen(), 0), Seen(), 10_000)
    assert unheard.idle and effective({"x": unheard, "y": Progress(watermark=7)})["x"] == 7
    silent = policy.advance(policy.advance(Progress(), Seen(2, 9, subs={"a": (9, None), "b": (5, None)}), 0), Seen(), 10_000)
    assert silent.idle
    assert not policy.advance(silent, Seen(1, 10, subs={"a": (10, None)}), 10_001).idle


def test_sub_sources_may_declare_their_own() -> None:
    policy = w.sub_sources("host", ["a", "b"], w.declared("upto"))
    assert policy.mark_column == "upto" and policy.sub_column == "host"
    assert follow(policy, (0, Seen(2, 99, subs={"a": (99, 20), "b": (99, 30)})), (1, Seen(1, 99, subs={"a": (99, 40)}))) == [20, 30]


def test_an_idle_injector_follows_the_slowest_that_is_not() -> None:
    quick, slow = Progress(watermark=100), Progress(watermark=40)
    assert effective({"q": quick, "s": slow, "i": Progress(watermark=5, idle=True)}) == {"q": 100, "s": 40, "i": 40}
    assert effective({"i": Progress(watermark=5, idle=True), "j": Progress(watermark=9, idle=True)}) == {"i": 5, "j": 9}
    policy = w.bounded(0, idle="1s")
    progress = policy.advance(Progress(), Seen(), 0)
    assert not progress.idle
    progress = policy.advance(progress, Seen(), 1_000)
    assert progress.idle and progress.holder == "nothing: it is idle"
    assert not policy.advance(progress, Seen(1, 7), 1_001).idle


def test_one_silent_source_does_not_stop_the_rest() -> None:
    class Windows(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.set_timer("w", record.timestamp + 10)

        def process_timer(self, timer: ms.Timer) -> None:
            self.produce(timer.time)

    for idle, expected in ((None, []), ("5s", [1_010])):
        p = ms.Pipeline("idle")
        source = ms.sources.files("nowhere", schema="k string, at long", format="json")
        one = p.inject("one", source, timestamp="at")
        two = p.inject("two", source, timestamp="at", watermark=w.bounded(0, idle=idle))
        p.compute(Windows, one, two, key="k", produces="out")
        runner = ms.testing.LocalRunner(p)
        runner.push("one", {"k": "a", "at": 1_000})
        runner.epoch()
        runner.push("one", {"k": "a", "at": 2_000})
        runner.epoch()
        runner.advance_clock(6_000)
        runner.epoch()
        assert [value for _, value, _ in runner.output("out")] == expected


def test_the_oldest_file_not_yet_read_holds_the_watermark() -> None:
    policy = w.files(r"log-([0-9]+)")
    files = {"log-100": 1, "log-200": 1, "log-300": 1}
    assert policy.said(files, set()) == 100
    assert policy.said(files, {"log-100", "log-300"}) == 200
    assert policy.said(files, set(files)) == 300
    assert policy.said({}, set()) is None
    assert w.files().said({"x": 7, "y": 9}, {"x"}) == 9
    with pytest.raises(ms.errors.DefinitionError, match="does not match"):
        policy.said({"other": 1}, set())


def test_a_partition_that_is_read_to_its_end_holds_nothing_back_and_one_with_a_backlog_does() -> None:
    policy = w.partitions(w.bounded("10ms"))
    parts = {"a-0": 0, "a-1": 0, "a-2": 0}

    def after(progress: Progress, read: set[str], **newest: int) -> Progress:
        subs = {name.replace("_", "-"): (time, None) for name, time in newest.items()}
        return policy.advance(progress, Seen(len(subs), max(newest.values(), default=None), subs=subs), 0, policy.said(parts, read))

    one = after(Progress(), {"a-0", "a-2"}, a_0=1_000, a_1=200)
    assert (one.watermark, one.holder) == (190, "partition 'a-1', which is not read to its end")
    two = after(one, {"a-0"}, a_0=1_100, a_1=700)
    assert (two.watermark, two.holder) == (190, "partition 'a-2', which is not read to its end")  # nothing was heard of it
    three = after(two, set(parts), a_2=50)
    assert (three.watermark, three.holder) == (1_090, "its newest record; all partitions are read to their end")
    assert after(three, {"a-0", "a-1"}, a_2=60).watermark == 1_090  # it never goes back
    assert policy.advance(two, Seen(), 0, None).behind == ("a-1", "a-2")


def test_partitions_are_for_sources_that_have_them() -> None:
    with pytest.raises(ms.errors.DefinitionError, match="10 rows a second has no partitions"):
        ms.Pipeline("p").inject("n", ms.sources.rate(10), watermark=w.partitions(w.bounded(0)))
    with pytest.raises(ms.errors.DefinitionError, match="each is bounded"):
        w.partitions(w.percentile(0.9))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: w.bounded("-1s"),
        lambda: w.percentile(1),
        lambda: w.percentile(0),
        lambda: w.sub_sources("c", "ab", w.bounded(0)),
        lambda: w.sub_sources("c", [], w.bounded(0)),
        lambda: w.sub_sources("c", ["a"], w.declared(lambda: 1)),
        lambda: w.declared(7),
        lambda: w.bounded(0, idle=0),
        lambda: w.files("log"),
    ],
)
def test_wrong_policies_are_told_at_once(wrong: Any) -> None:
    with pytest.raises(ms.errors.DefinitionError):
        wrong()
