"""The fault kit itself: it passes what is right, finds what is wrong, and tells the shortest way there."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

import millstream as ms
from computations import Sum
from effort import seeds
from millstream import faults
from millstream.core.guards import Guards

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")
ROWS = [{"k": "abc"[i % 3], "n": i % 5, "at": 1_000 + 10 * i, "id": str(i)} for i in range(24)]


class Windows(ms.Computation):
    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 100
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer("w", window + 100)
        self.set_timer("wall", self.now + 700, kind=ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time - 100) if timer.kind == ms.LOW_WATERMARK else "wall")


class Fragile(Sum):
    def process_record(self, record: ms.Record) -> None:
        super().process_record(record)
        if record.value["n"] == 3:
            raise ValueError("three")


def pipeline(kind: str = ms.WEAK, computation: Any = Sum, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("kit")
    stream = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("30ms"), **options)
    sums = p.compute(computation, stream, key="k", produces="sums", production=kind, on_error=ms.DEAD_LETTER, late="late")
    windows = p.compute(Windows, sums, key=lambda record: record.key, produces="windows", production=ms.STRONG)
    p.compute(Sum, "late", key=lambda record: "x", name="Late", produces="latesums", on_error=ms.DEAD_LETTER)
    p.compute(Collect, windows, sums, key=lambda record: "all")
    return p


class Collect(ms.Computation):
    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        self.state[record.stream, record.id] = record.value


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "computation"), [(ms.WEAK, Sum), (ms.STRONG, Fragile), (ms.ADAPTIVE, Sum), (ms.WEAK, Fragile)])
def test_seeds_pass(kind: str, computation: Any) -> None:
    """Collect keeps the ids of what timers produced, which name epochs: they are compared with those of the same epochs."""
    ms.testing.assert_exactly_once(pipeline(kind, computation), ROWS, seeds=seeds(80), epochs="same")
    ms.testing.assert_same_in_any_epochs(pipeline(kind, computation), ROWS, ignore=["Collect"])


def failing(p: ms.Pipeline, guards: str, **options: Any) -> list[str]:
    """The lines of a report."""
    with pytest.raises(AssertionError) as caught:
        ms.testing.assert_exactly_once(p, ROWS, guards=Guards.without(guards), epochs="same", **options)
    return str(caught.value).splitlines()


@pytest.mark.slow
def test_it_prints_the_seed_and_the_shortest_schedule_that_fails() -> None:
    said = failing(pipeline(), "tokens", seeds=range(100))
    assert said[0].startswith("pipeline 'kit' is not exactly once. seed ") and said[0].endswith(". The shortest schedule that shows it:")
    assert said[1].startswith("  1. pause in epoch")
    assert len(said) == 3, "one fault is enough for this, and there is one difference"


def test_it_prints_the_first_difference_only_and_cuts_long_values_short() -> None:
    class Long(Sum):
        def process_record(self, record: ms.Record) -> None:
            self.state += record.value["n"]
            self.produce("x" * 10_000 + str(self.state), key="long")

    class Quiet(Sum):
        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    def lone(computation: Any) -> list[str]:
        p = ms.Pipeline("lone")
        p.compute(
            computation,
            p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("30ms")),
            key="k",
            produces="sums",
            name="Lone",
        )
        said = failing(p, "dedup", faults=["repeat"], seeds=range(30))
        assert said[1].startswith("  1. repeat in epoch") and len(said) == 3
        return said

    assert re.fullmatch(r"stream 'sums', key '[abc]': row \d+ of \d+ is \d+ at \d+ instead of (\d+ at \d+|nothing)", lone(Sum)[2])
    assert (
        re.fullmatch(
            r"stream 'sums', key 'long': row \d+ of \d+ is 'x+…x+\d+' at \d+ instead of ('x+…x+\d+' at \d+|nothing)", lone(Long)[2]
        )
        and len(lone(Long)[2]) < 300
    )
    assert re.fullmatch(r"state of 'Lone', key '[abc]': \d+ instead of \d+", lone(Quiet)[2])


def test_a_pipeline_that_is_not_deterministic_is_found_out() -> None:
    counter = iter(range(10**9))

    class Moody(Sum):
        def process_record(self, record: ms.Record) -> None:
            self.produce(next(counter))

    with pytest.raises(
        AssertionError, match="is not exactly once: not in the state: `counter`; not deterministic: no fault was needed to see it"
    ):
        ms.testing.assert_exactly_once(pipeline(computation=Moody), ROWS, seeds=range(3))
    with pytest.raises(
        AssertionError, match=r"is not exactly once. seed 0: not deterministic: no fault was needed to see it\nstream 'sums', key"
    ):
        ms.testing.assert_exactly_once(pipeline(computation=Moody), ROWS, seeds=range(3), epochs="same")


def test_state_kept_outside_of_state_is_found_out() -> None:
    """The classic mistake: a counter on the class counts every attempt."""

    class Leaky(Sum):
        seen = 0

        def process_record(self, record: ms.Record) -> None:
            Leaky.seen += 1
            self.produce(Leaky.seen)

    with pytest.raises(AssertionError, match=r"not in the state: `Leaky.seen`; .*\nstream 'sums', key"):
        ms.testing.assert_exactly_once(pipeline(computation=Leaky), ROWS, seeds=range(20))


def test_records_may_be_given_by_stream_or_as_pairs() -> None:
    p = ms.Pipeline("two")
    one = p.inject("one", SOURCE, timestamp="at", id="id")
    two = p.inject("two", SOURCE, timestamp="at", id="id")
    p.compute(Sum, one, two, key="k", late=ms.DROP)
    ms.testing.assert_exactly_once(p, {"one": ROWS[:5], "two": ROWS[5:10]}, seeds=range(5))
    ms.testing.assert_exactly_once(p, [("one", row) for row in ROWS[:5]] + [("two", row) for row in ROWS[5:9]], seeds=range(5))
    with pytest.raises(ms.errors.DefinitionError, match="several injected streams"):
        ms.testing.assert_exactly_once(p, ROWS)
    with pytest.raises(ms.errors.DefinitionError, match="no injected stream is called 'three'"):
        ms.testing.assert_exactly_once(p, {"three": ROWS})
    with pytest.raises(ms.errors.DefinitionError, match="'earthquake'"):
        ms.testing.assert_exactly_once(p, {"one": ROWS}, faults=["earthquake"])


def test_a_kill_is_armed_for_a_level_and_a_shard() -> None:
    armed = ms.testing.SparkFaults.armed
    assert armed("epoch.5-checked", 2) == "epoch.5-checked@2"
    assert [armed("task.4-staged", 2, level=level, shard=shard) for level, shard in ((1, 0), (1, None), (None, 0))] == [
        "task.4-staged@2/1.0",
        "task.4-staged@2/1.",
        "task.4-staged@2/.0",
    ]
    with pytest.raises(ValueError, match="no crash point is called 'nowhere'"):
        armed("nowhere", 1)
    with pytest.raises(ValueError, match=r"'epoch.5-checked' is a point of the driver, which has no level and no shard"):
        armed("epoch.5-checked", 1, shard=0)


@pytest.mark.parametrize(
    ("spec", "struck"),
    [
        ("task.4-staged@2", True),
        ("task.4-staged@2/1.0", True),
        ("task.4-staged@2/1.", True),
        ("task.4-staged@2/.0", True),
        ("task.4-staged@2/1.10", False),
        ("task.4-staged@2/0.0", False),
        ("task.4-staged@3", False),
        ("task.3-shuffled@2,task.4-staged@2/1.0", True),
        ("", False),
    ],
)
def test_a_kill_strikes_where_it_is_armed(spec: str, struck: bool) -> None:
    """In a child: whoever is struck is gone."""
    child = os.fork()
    if not child:
        try:
            faults.point("task.4-staged", 2, spec, None, 1, 0)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGKILL if struck else 0)
