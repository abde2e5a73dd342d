"""The detector in a pipeline: the same verdicts in any epochs and under faults, missing buckets, the end of the traffic, and what is kept of weeks."""

from __future__ import annotations

from math import inf, nan
from random import Random
from typing import Any

import pytest
from serieskit import BEGIN, DAY, MINUTE, SCHEMA, daily, pipeline, poisson, readings, rules, told

import millstream as ms
from millstream.anomalies import CountDetector, GaugeDetector
from millstream.anomalies.settings import COUNTS, GAUGE
from millstream.core.statekind import StateKind
from millstream.errors import DefinitionError, HookError
from millstream.state.codec import msgpack

QUARTER = 15 * MINUTE


def rows(days: int = 4, seed: int = 1) -> list[dict[str, Any]]:
    """Two devices, one of which is rare and has gaps; each has an anomaly on the last day."""
    dice = Random(seed)
    busy: list[float | None] = [float(poisson(dice, 30 * (1.2 + daily(n)))) for n in range(days * 96)]
    rare = [float(poisson(dice, 0.6)) or None for n in range(days * 96)]
    at = (days - 1) * 96 + 20
    busy[at : at + 8] = [300.0] * 8
    rare[at : at + 8] = [12.0] * 8
    found = readings("busy", busy) + readings("rare", rare)
    found.sort(key=lambda row: (row["at"] + dice.randrange(20 * MINUTE), row["device"]))
    return found


def run(made: ms.Pipeline, given: list[dict[str, Any]], epochs: int = 7, drain: bool = True) -> ms.testing.LocalRunner:
    runner = ms.testing.LocalRunner(made)
    for n in range(epochs):
        runner.push("readings", *given[len(given) * n // epochs : len(given) * (n + 1) // epochs])
        runner.epoch()
    if drain:
        runner.drain()
    return runner


def forecasts(runner: ms.testing.LocalRunner, device: str) -> dict[int, dict[str, Any]]:
    """By the number of the bucket."""
    return {(value["at"] - BEGIN) // QUARTER: value for key, value, _ in runner.output("anomalies.forecasts") if key == device}


@pytest.mark.parametrize("kind", [COUNTS, GAUGE])
def test_verdicts_are_the_same_in_any_epochs(kind: str) -> None:
    ms.testing.assert_same_in_any_epochs(pipeline(kind), rows())
    begins = {value["device"] for _, value, _ in run(pipeline(kind), rows()).output("anomalies") if value["event"] == "begin"}
    assert "busy" in begins and (kind == GAUGE or begins == {"busy", "rare"})


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("kind", [COUNTS, GAUGE])
def test_verdicts_are_exactly_once_under_faults(kind: str, resident: bool) -> None:
    some = [row for row in rows(2) if row["at"] > BEGIN + DAY // 2]
    ms.testing.assert_exactly_once(pipeline(kind), some, seeds=range(4), resident=resident, epochs="same")


class Hasty(CountDetector):
    """Wrong: a bucket is observed when its first record comes."""

    def process_record(self, record: ms.Record) -> None:
        bucket = record.timestamp // self.rules.width
        if self.state.next is None or bucket >= self.state.next:
            self.state.roll_up(self.rules, bucket)
            self.produce([bucket, self.state.next], stream="anomalies")
            self.state.observe(self.rules, bucket, float(record.value["value"]), self.state.forecast(self.rules, bucket))

    def process_timer(self, timer: ms.Timer) -> None: ...


def test_a_detector_that_does_not_wait_for_its_buckets_is_noticed() -> None:
    made = ms.Pipeline("hasty")
    source = ms.sources.files("readings/", schema="device string, at long, value double, id string", format="json")
    stream = made.inject("readings", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("30m"))
    made.compute(
        lambda: Hasty(rules(COUNTS), ("anomalies", "told"), value="value"), stream, key="device", name="Hasty", produces=["anomalies"]
    )
    with pytest.raises(AssertionError, match="the result depends on how input falls into epochs"):
        ms.testing.assert_same_in_any_epochs(made, rows())


def test_a_bucket_has_the_sum_of_its_counts_and_the_mean_of_its_values() -> None:
    some = [{"device": "d", "at": BEGIN + n, "value": value, "id": str(n)} for n, value in enumerate([0.1, 0.2, 0.3, 1e16, 1.0, -1e16])]
    assert forecasts(run(pipeline(GAUGE), some), "d")[0]["actual"] == 1.6 / 6
    assert forecasts(run(pipeline(COUNTS), some[:3]), "d")[0]["actual"] == 0.6


def test_missing_buckets_of_counts_are_zeros_for_a_while_and_those_of_gauges_are_missing() -> None:
    some = readings("d", [5.0, None, None, 5.0])
    counts = run(pipeline(COUNTS, patience="1h"), some)
    assert [(n, value["actual"]) for n, value in forecasts(counts, "d").items()] == [
        (0, 5),
        (1, 0),
        (2, 0),
        (3, 5),
        *((n, 0) for n in range(4, 8)),
    ]
    assert list(forecasts(run(pipeline(GAUGE), some), "d")) == [0, 3]


def test_the_rest_of_a_silence_is_made_up_for_when_the_key_comes_back_for_a_season_at_the_most() -> None:
    back = readings("d", [5.0], begin=BEGIN + 3 * DAY)
    told = forecasts(run(pipeline(COUNTS, patience="1h"), [*readings("d", [5.0]), *back], epochs=2), "d")
    assert list(told) == [*range(5), *range(3 * 96 - 96, 3 * 96), *range(3 * 96, 3 * 96 + 5)]
    ms.testing.assert_same_in_any_epochs(pipeline(COUNTS, patience="1h"), [*readings("d", [5.0]), *back])


def test_there_are_no_zeros_behind_the_end_of_the_traffic() -> None:
    some = readings("d", [5.0, None, 5.0])
    told = forecasts(run(pipeline(COUNTS, patience="1d", until=BEGIN + 5 * QUARTER), some), "d")
    assert list(told) == [0, 1, 2, 3, 4]


def test_a_value_that_is_no_number_is_as_good_as_missing() -> None:
    some = [*readings("d", [5.0, nan, inf, 6.0]), {"device": "d", "at": BEGIN + QUARTER + 1, "value": None, "id": "none"}]
    assert list(forecasts(run(pipeline(GAUGE), some, epochs=1), "d")) == [0, 3]


def test_a_negative_count_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ms.errors.HookError, match=r"a count of -1\.0: say kind='gauge'"):
        run(pipeline(COUNTS), readings("d", [-1.0]), epochs=1)


def test_a_late_record_is_counted_and_not_observed() -> None:
    runner = run(pipeline(GAUGE), readings("d", [5.0] * 10), epochs=2, drain=False)
    runner.push("readings", {"device": "d", "at": BEGIN, "value": 99.0, "id": "late"})
    runner.drain()
    assert runner.late("anomalies") == 1 and {value["actual"] for value in forecasts(runner, "d").values()} == {5.0}


def test_the_slot_of_a_key_that_falls_silent_is_closed_by_its_timer() -> None:
    runner = run(pipeline(GAUGE), [*readings("d", [5.0, 6.0]), *readings("other", [None] * 9 + [1.0])], epochs=1, drain=False)
    runner.run()
    assert runner.state("anomalies", "d").season.buckets == 0 and sum(runner.state("anomalies", "d").season.day.over) == 2
    assert runner.timers("anomalies", "d") == []


def test_results_of_windows_and_streams_with_a_key_name_the_key_as_it_was_given() -> None:
    made = ms.Pipeline("named")
    source = ms.sources.files("readings/", schema="device string, room string, at long, id string", format="json")
    stream = made.inject("readings", source, timestamp="at", id="id")
    quarters = ms.windows.tumbling("15m")
    for name, keyed in (("one", stream.by("device")), ("two", stream.by("device", "room")), ("some", stream.by("lower(device)"))):
        keyed.window(quarters).reduce(ms.count(), name=name).detect(
            bucket="15m", forecasts="d" if name == "one" else ["d", ("d", "r")], name=f"{name}.odd"
        )
    runner = ms.testing.LocalRunner(made)
    runner.push("readings", *({"device": device, "room": "r", "at": BEGIN, "id": device} for device in ("d", "e")))
    runner.drain()
    about = {"at": BEGIN, "actual": 1}
    first = [next(value for _, value, _ in runner.output(f"{name}.odd.forecasts")) for name in ("one", "two", "some")]
    assert first == [{"device": "d"} | about, {"device": "d", "room": "r"} | about, {"key": "d"} | about]


def test_without_forecasts_there_is_one_stream() -> None:
    made = ms.Pipeline("one")
    stream = made.inject("readings", ms.sources.files("readings/", schema="device string, at long"), timestamp="at")
    anomalies = stream.by("device").window(ms.windows.tumbling("15m")).reduce(ms.count(), name="counts").detect(bucket="15m", name="odd")
    assert isinstance(anomalies, ms.Stream) and made.topology().by_name["odd"].produces == ("odd",)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "count"}, "use 'counts', for numbers of events, or 'gauge'"),
        ({"bucket": "7m"}, "a season is a whole number of buckets"),
        ({"bucket": "4h"}, "at least eight"),
        ({"rarity": 1}, "one alarm in so many buckets"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ms.errors.DefinitionError, match=said):
        pipeline(wrong.pop("kind", COUNTS), **wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weekly", "most"), [(COUNTS, False, 900), (COUNTS, True, 1_900), (GAUGE, False, 2_700), (GAUGE, True, 3_700)]
)
def test_eight_weeks_of_five_minutes_are_as_small_as_four(kind: str, weekly: bool, most: int) -> None:
    """16,128 buckets. Of the values themselves there would be 145 kB."""
    given, dice = ms.anomalies.SeriesRules.of(kind, "5m", "1d", weekly=weekly), Random(2)
    of = CountDetector if kind == COUNTS else GaugeDetector
    encode, model, sizes = StateKind(of, msgpack).encode, of.State(), []
    for week in range(8):
        values = [float(poisson(dice, 20 * (1.5 + daily(n, 288)))) for n in range(7 * 288)]
        told(model, given, values, start=BEGIN // (5 * MINUTE) + week * 7 * 288)
        sizes.append(len(encode(model)))
    assert sizes[7] <= sizes[3] * 1.02 and max(sizes) < most


@pytest.mark.parametrize("kind", [COUNTS, GAUGE])
def test_a_bucket_of_many_records_is_as_small_as_one_of_few_and_their_order_does_not_matter(kind: str) -> None:
    dice = Random(3)
    values = [dice.choice([1e16, 0.1, 3.0, -1e16 if kind == GAUGE else 7.0]) for _ in range(3_000)]
    found = []
    for order in (values, sorted(values), values[::-1]):
        given = [{"device": "d", "at": BEGIN + n, "value": value, "id": str(n)} for n, value in enumerate(order)]
        runner = run(pipeline(kind), given, drain=False)
        detector = CountDetector if kind == COUNTS else GaugeDetector
        (state,) = runner.state("anomalies").values()
        assert len(StateKind(detector, msgpack).encode(state)) < 1_500  # not 27,000
        runner.push("readings", {"device": "d", "at": BEGIN + DAY, "value": 1.0, "id": "later"})
        runner.run()
        found.append(forecasts(runner, "d")[0]["actual"])
    assert len(set(found)) == 1


def test_a_tuple_or_a_number_is_one_key_whose_forecasts_are_told() -> None:
    for key, given in ((7, 7), (("a", 7), ("a", 7)), (7, [7, 8]), ("x", {"x"})):
        assert CountDetector(rules(COUNTS), ("a", "f"), forecasts=given if isinstance(given, list | set) else (given,)).forecasts >= {key}
    made = ms.Pipeline("devices")
    source = ms.sources.files("readings/", schema="device long, at long, value double", format="json")
    readings = made.inject("readings", source, timestamp="at")
    assert len(readings.by("device").detect(bucket="15m", kind=GAUGE, value="value", forecasts=7, name="one")) == 2


def test_what_is_wrong_is_told_with_what_there_is() -> None:
    made = ms.Pipeline("devices")
    source = ms.sources.files("readings/", schema=SCHEMA, format="json")
    readings = made.inject("readings", source, timestamp="at", id="id").by("device")
    with pytest.raises(DefinitionError, match=r"detect\(sensitivity=...\) is no argument"):
        readings.detect(bucket="15m", name="x", sensitivity=3)
    readings.detect(bucket="15m", name="wrong", value="valeu", kind=GAUGE)
    runner = ms.testing.LocalRunner(made)
    runner.push("readings", {"device": "d", "at": BEGIN, "value": 1.0, "id": "1"})
    with pytest.raises(HookError, match="no such field; it has 'device', 'at', 'value', 'id'"):
        runner.run()
