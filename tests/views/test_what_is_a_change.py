"""What is a change, and what is none: types, NaN, the order of fields, groups that show nothing; and what a fingerprint notices."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

import millstream as ms
from millstream.errors import CheckpointError
from millstream.views.fingerprint import fingerprint

SCHEMA = "id long, v long, ts long"


def table(**options: Any) -> tuple[ms.Pipeline, Any]:
    pipeline = ms.Pipeline("same")
    return pipeline, pipeline.table("t", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", **options)


def test_one_and_true_and_one_point_nought_are_not_the_same() -> None:
    pipeline, t = table()
    t.map(lambda row: [1, True, 1.0, 1][row.value["v"]]).by(lambda row: "x").reduce(ms.any_value(), name="any")
    t.map(lambda row: [1, True, 1.0, 1][row.value["v"]]).by(lambda row: "x").reduce(ms.any_value(), name="large", inline=0)
    runner = ms.testing.LocalRunner(pipeline)
    for id in range(2, 40):
        runner.push("t", {"id": id, "v": 0, "ts": 0})
    for step, expected in enumerate([1, True, 1.0, 1]):
        for id in range(1, 40):
            runner.push("t", {"id": id, "v": step, "ts": step + 1})
        runner.run()
        for view in ("any", "large"):
            shown = runner.view(view, "x")
            assert (shown, type(shown)) == (expected, type(expected))
        runner.check()


class Pair(ms.Reducer):
    """Shows a tuple, and not a number."""

    def combine(self, a: Any, b: Any) -> Any:
        return max(a, b)

    def finish(self, total: Any) -> Any:
        return (total, float("nan"))


def test_tuples_and_nan_are_told_once_and_a_group_that_shows_nothing_not_at_all() -> None:
    pipeline, t = table()
    pipeline.publish(t.map(lambda row: 5).by(lambda row: "x").reduce(Pair(), name="pairs"), ms.sinks.files("out/"))
    pipeline.publish(t.map(lambda row: None).by(lambda row: "x").reduce(ms.sum(), name="none"), ms.sinks.files("out2/"))
    runner = ms.testing.LocalRunner(pipeline)
    for ts in range(4):
        runner.push("t", {"id": 1, "v": ts, "ts": ts}, {"id": 2, "v": ts, "ts": ts})
        runner.run()
    assert len(runner.output("pairs~changelog")) == 1
    assert runner.output("none~changelog") == [] and runner.view("none") == {"x": None}
    runner.check()


class Shuffles(ms.Computation):
    """The same document, with its fields in another order each time."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        value = {"a": 1, "b": {"c": 2, "d": 3}}
        if self.state % 2:
            value = {"b": {"d": 3, "c": 2}, "a": 1}
        self.produce(value)


def test_the_order_of_fields_is_no_change() -> None:
    pipeline = ms.Pipeline("same")
    stream = pipeline.inject("in", ms.sources.files("in/", schema=SCHEMA))
    documents = pipeline.table("t", pipeline.compute(Shuffles, stream, key="id", produces="documents"), key=ms.PRODUCED)
    pipeline.publish(documents, ms.sinks.files("out/"))
    runner = ms.testing.LocalRunner(pipeline)
    for ts in range(3):
        runner.push("in", {"id": 1, "v": 0, "ts": ts})
        runner.run()
    assert len(runner.output("t~changelog")) == 1


def test_an_old_document_that_a_new_view_cannot_map_does_not_stop_its_key() -> None:
    def define(more: bool) -> ms.Pipeline:
        pipeline, t = table(on_error=ms.DEAD_LETTER)
        t.by("v").reduce(ms.count(), name="old")
        if more:
            t.by(lambda row: 1 // row.value["v"]).reduce(ms.count(), name="new")
        return pipeline

    runner = ms.testing.LocalRunner(define(more=False))
    runner.push("t", {"id": 1, "v": 0, "ts": 1}, {"id": 2, "v": 1, "ts": 1})
    runner.run()
    runner.become(define(more=True))
    runner.run()
    runner.push("t", {"id": 1, "v": 1, "ts": 2})
    runner.run()
    assert runner.view("new") == {1: 2} and runner.view("old") == {1: 2}
    runner.check()


NAMES = {"a", "b"}
value = 5  # named like an attribute, and of no meaning to a map


class Threshold:
    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, row: Any) -> bool:
        return bool(row.value > self.at)


def reads_set(row: Any) -> bool:
    return row.key in NAMES


def reads_attribute(row: Any) -> Any:
    return row.value


def test_what_a_fingerprint_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint(Threshold(1)) == fingerprint(Threshold(1)) != fingerprint(Threshold(2))
    assert fingerprint(itemgetter("a")) == fingerprint(itemgetter("a")) != fingerprint(itemgetter("b"))
    before = fingerprint(reads_set), fingerprint(reads_attribute)
    monkeypatch.setitem(globals(), "NAMES", {"a", "c"})
    monkeypatch.setitem(globals(), "value", 6)
    assert fingerprint(reads_set) != before[0]
    assert fingerprint(reads_attribute) == before[1]
    loop: list[Any] = []
    f = lambda row: loop  # noqa: E731
    loop.append(f)
    assert fingerprint(f) == fingerprint(f)


def test_a_view_that_derives_from_another_table_is_noticed() -> None:
    def define(second: bool) -> ms.Pipeline:
        pipeline = ms.Pipeline("same")
        one, two = (pipeline.table(name, ms.sources.files(f"{name}/", schema=SCHEMA), key="id", version="ts") for name in ("one", "two"))
        (two if second else one).by("v").reduce(ms.count(), name="counts")
        return pipeline

    runner = ms.testing.LocalRunner(define(second=False))
    runner.push("one", {"id": 1, "v": 1, "ts": 1})
    runner.run()
    with pytest.raises(CheckpointError, match="view 'counts'"):
        runner.become(define(second=True))
