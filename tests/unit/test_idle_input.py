"""Windows that close although input has stopped: `onward=`."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

import millstream as ms
from computations import WindowCounts
from millstream.core.time import duration
from millstream.core.watermark import Progress, Seen, bounded, later, sub_sources
from millstream.testing import LocalRunner


class Window(WindowCounts):
    size = 1000


def runner_of(**streams: Any) -> LocalRunner:
    p = ms.Pipeline("onward")
    made = [
        p.inject(name, ms.sources.files("in/", schema="k string, at long", format="json"), timestamp="at", watermark=policy)
        for name, policy in streams.items()
    ]
    p.compute(Window, *made, key="k", produces="out")
    return LocalRunner(p, now=1_000_000)


def test_a_window_closes_by_the_wall_clock_after_the_silence_and_not_before() -> None:
    runner = runner_of(a=bounded("5s", onward="30s"))
    runner.push("a", {"k": "x", "at": 500})
    runner.run()
    runner.advance_clock(1_000_000 + 30_000 + 5_999)  # 500 - 5 s + 5 whole seconds = 500
    assert runner.output("out") == []
    runner.advance_clock(1_000_000 + 30_000 + 6_000)
    assert runner.output("out") == [("x", 1, 1000)]


def test_without_onward_it_waits_for_ever() -> None:
    runner = runner_of(a=bounded("5s"))
    runner.push("a", {"k": "x", "at": 500})
    runner.run()
    runner.advance_clock(10**12)
    assert runner.output("out") == []


def test_idle_alone_does_not_help_when_all_are_idle_and_onward_does() -> None:
    waiting, going = (
        runner_of(a=bounded("0ms", idle="10s"), b=bounded("0ms", idle="10s")),
        runner_of(a=bounded("0ms", onward="10s"), b=bounded("0ms", onward="10s")),
    )
    for runner in (waiting, going):
        runner.push("a", {"k": "x", "at": 500})
        runner.push("b", {"k": "x", "at": 600})
        runner.run()
        runner.advance_clock(1_012_000)
    assert waiting.output("out") == []
    assert going.output("out") == [("x", 2, 1000)]


def test_a_source_that_speaks_again_counts_from_its_last_word_and_what_is_old_is_late() -> None:
    runner = runner_of(a=bounded("0ms", onward="10s"))
    runner.push("a", {"k": "x", "at": 500})
    runner.run()
    runner.advance_clock(1_011_000)
    runner.push("a", {"k": "x", "at": 700}, {"k": "x", "at": 1_600})
    runner.run()
    assert runner.late("Window") == 1
    runner.advance_clock(1_021_000)  # silent for ten seconds again: the watermark stands where the last records put it
    assert runner.low_watermark("Window") == 1_600


def test_a_stream_of_which_nothing_was_heard_does_not_go_on() -> None:
    runner = runner_of(a=bounded("0ms", onward="10s"), b=bounded("0ms", onward="10s"))
    runner.push("a", {"k": "x", "at": 500})
    runner.run()
    runner.advance_clock(2_000_000)
    assert runner.output("out") == []


def test_downtime_is_no_silence() -> None:
    policy = bounded("0ms", onward="10s")
    before = policy.advance(Progress(), Seen(1, 500), now=1_000)
    away = later(before, 3_600_000)  # an hour in which no run listened
    assert policy.advance(away, Seen(), now=3_602_000).watermark == 500
    assert policy.advance(before, Seen(), now=3_602_000).watermark > 500, "without the correction it would have been taken for silence"


def test_a_silent_sub_source_goes_on_by_itself() -> None:
    policy = sub_sources("host", ["a", "b"], bounded("0ms", onward="10s"))
    after = policy.advance(Progress(), Seen(2, 900, subs={"a": (500, None), "b": (900, None)}), now=1_000)
    assert after.watermark == 500
    after = policy.advance(after, Seen(1, 2_000, subs={"b": (2_000, None)}), now=12_300)
    assert after.watermark == 1_500 and "'a'" in after.holder


@pytest.mark.parametrize(
    ("given", "millis"),
    [
        ("2 seconds", 2000),
        ("1 minute", 60_000),
        ("5 mins", 300_000),
        ("250 milliseconds", 250),
        (datetime.timedelta(hours=1), 3_600_000),
        (0, 0),
    ],
)
def test_durations_as_people_write_them(given: Any, millis: int) -> None:
    assert duration(given) == millis


@pytest.mark.parametrize("given", [2, 2.5, True, "2", "2 parsecs", None])
def test_a_duration_without_a_unit_is_refused(given: Any) -> None:
    with pytest.raises(ms.errors.DefinitionError, match="is not a duration"):
        bounded(given)


@pytest.mark.parametrize("again", [{"k": "x", "at": 500}, {"k": "x", "at": 20}], ids=["a repeat", "a straggler"])
def test_one_that_says_nothing_new_after_a_silence_does_not_stop_time(again: dict[str, Any]) -> None:
    runner = runner_of(a=bounded("0ms", onward="10s"))
    runner.push("a", {"k": "x", "at": 500})
    runner.run()
    runner.advance_clock(1_000_000 + 3_600_000)  # an hour of silence
    assert runner.low_watermark("Window") == 500 + 3_590_000
    runner.push("a", again)
    runner.run()
    runner.advance_clock(1_000_000 + 3_600_000 + 15_000)
    runner.epoch()
    assert runner.low_watermark("Window") == 500 + 3_590_000 + 5_000, "it goes on from where it stood, after the same silence as ever"


def test_nor_does_such_a_sub_source() -> None:
    policy = sub_sources("host", ["a", "b"], bounded("0ms", onward="10s"))
    after = policy.advance(Progress(), Seen(2, 500, subs={"a": (500, None), "b": (500, None)}), now=1_000)
    after = policy.advance(after, Seen(), now=3_601_000)
    assert after.watermark == 500 + 3_590_000
    before = msgspec.json.encode(after)
    told = policy.advance(after, Seen(2, 20, subs={"a": (20, None), "b": (500, None)}), now=3_601_500)
    assert msgspec.json.encode(after) == before, "a policy is pure"
    assert policy.advance(told, Seen(), now=3_616_500).watermark == 500 + 3_590_000 + 5_000


def test_progress_that_was_kept_before_it_said_where_time_stood_goes_on() -> None:
    policy = bounded("0ms", onward="10s")
    old = Progress(newest=500, watermark=500, used=500, records=1, heard=1_000, since=1_000)
    assert policy.advance(old, Seen(), now=12_000).watermark == 1_500


def test_time_that_goes_on_by_the_clock_goes_in_seconds_so_that_idle_epochs_do_not_make_each_other() -> None:
    """Each step is used by the next epoch, at whose end the clock is further."""
    policy = bounded("1s", onward="5s")
    progress = policy.advance(Progress(), Seen(1, 10_000), 0)
    reached = []
    for now in range(5_000, 8_000, 10):  # what an idle run would do
        progress = policy.advance(progress, Seen(), now)
        reached.append(progress.watermark)
    assert sorted(set(reached)) == [9_000, 10_000, 11_000]
