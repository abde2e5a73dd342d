"""What is said once of input that looks wrong: late records that nobody handles, seconds in the place of milliseconds."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InputWarning
from millstream.simulation.simulated_run import InputPlan
from millstream.testing import LocalRunner
from sparklog import SparkLogDriver, SparkLogSimulation

SOURCE = ms.sources.files("nowhere", schema="k string, at long", format="json")


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(self.state)


class Handles(Count):
    def process_late_record(self, record: ms.Record) -> None:
        self.state += 100


def pipeline(computation: Any = Count, watermark: Any = None, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("hints")
    p.compute(computation, p.inject("visits", SOURCE, timestamp="at", watermark=watermark), key="k", name="Count", **options)
    return p


def said(made: ms.Pipeline, *epochs: list[int]) -> list[str]:
    """What a LocalRunner warns of."""
    runner = LocalRunner(made)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for times in epochs:
            runner.push("visits", *[{"k": "a", "at": at} for at in times])
            runner.run()
            runner.epoch()
    assert all(one.category is InputWarning for one in found)
    return [str(one.message) for one in found]


def test_a_late_record_that_nobody_handles_is_said_once_with_the_line_to_write() -> None:
    (text,) = said(pipeline(), [5_000], [4_000], [3_000, 2_000])
    assert "computation 'Count' has dropped a late record of stream 'visits' (key 'a', 1970-01-01T00:00:04.000Z" in text
    assert "watermark=ms.watermarks.bounded('10s')" in text and "'visits' has no watermark=" in text


def test_who_has_given_a_watermark_is_told_without_that_line() -> None:
    (text,) = said(pipeline(watermark=ms.watermarks.bounded("100ms")), [5_000], [4_000])
    assert "has dropped a late record" in text and "has no watermark=" not in text


@pytest.mark.parametrize("options", [{"late": ms.DROP}, {"late": "late"}, {"computation": Handles}])
def test_who_has_said_what_becomes_of_late_records_is_told_nothing(options: dict[str, Any]) -> None:
    assert said(pipeline(**options), [5_000], [4_000]) == []


def test_nobody_is_told_anything_while_all_is_well() -> None:
    assert said(pipeline(), [1_000, 2_000], [2_000, 3_000]) == []
    assert said(pipeline(), [1_714_521_600_000], [1_714_521_600_001]) == []


def test_a_stream_behind_a_computation_names_the_injector() -> None:
    class Back(Count):
        def process_record(self, record: ms.Record) -> None:
            self.produce(1, timestamp=record.timestamp)

        def process_late_record(self, record: ms.Record) -> None:
            self.produce(1, timestamp=record.timestamp, late=True)

    p = ms.Pipeline("hints")
    p.compute(Count, p.compute(Back, p.inject("visits", SOURCE, timestamp="at"), key="k", produces="back"), key=lambda r: r.key)
    (text,) = said(p, [5_000], [4_000])
    assert "of stream 'back'" in text and "inject('visits', ..., watermark=" in text


def test_seconds_are_noticed_once() -> None:
    (text,) = said(pipeline(watermark=ms.watermarks.bounded("1h")), [1_714_521_600], [1_714_521_601])
    assert "injected stream 'visits'" in text and "Timestamps are milliseconds since 1970" in text and "'at * 1000'" in text


def test_a_run_says_the_same_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    epochs = [[("visits", {"k": "a", "at": at})] for at in (1_714_521_600, 1_714_521_000, 1_714_520_000, 1_714_510_000)]
    s = SparkLogSimulation(pipeline().program(), InputPlan(epochs, [1, 2, 3, 4]), [], seed=1)
    driver = SparkLogDriver(s, warn=None)
    with caplog.at_level(logging.WARNING):
        for number, rows in enumerate(epochs):
            driver.run(rows, number)
    seconds, late = (record.getMessage() for record in caplog.records)
    assert seconds.startswith("hints: injected stream 'visits': its newest timestamp")
    assert late.startswith("hints: computation 'Count' has dropped a late record")
