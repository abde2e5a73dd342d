"""What users of other systems suffer from in windows, one test per thread, by its number. Joins are in `test_named_complaints.py`."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import millstream as ms
from millstream.errors import DefinitionError
from millstream.operators.panes import PaneStep
from millstream.operators.windows import Fixed
from millstream.testing import LocalRunner

HOUR = 3_600_000
KINDS = {
    "tumbling": ms.windows.tumbling("1m"),
    "hopping": ms.windows.hopping("1m", every="10s"),
    "calendar": ms.windows.calendar("day", zone="Europe/Berlin"),
    "session": ms.windows.session("1m"),
}


def runner_of(kind: Any, shards: int = 2, late: str = "late", **watermark: Any) -> LocalRunner:
    """Clicks per user, with no delay unless one is given."""
    p = ms.Pipeline("clicks")
    policy = ms.watermarks.bounded(watermark.pop("delay", 0), **watermark)
    clicks = p.inject("clicks", ms.sources.files("clicks/", schema="user string, at long"), timestamp="at", watermark=policy)
    windows = clicks.by("user").window(kind, late=late).reduce(n=ms.count(), name="windows")
    p.emit(windows, ms.sinks.memory())
    return LocalRunner(p, shards=shards)


def click(at: int, user: str = "ann") -> dict[str, Any]:
    return {"user": user, "at": at}


def told(runner: LocalRunner) -> list[tuple[str, int, int, int]]:
    return [(value["user"], value["start"], value["end"], value["n"]) for _, value, _ in runner.output("windows")]


def state_bytes(runner: LocalRunner) -> int:
    return sum(len(name) + len(data) for store in runner._engine.stores.values() for name, data in store.entries.items())


# --- closing


@pytest.mark.parametrize("name", ["tumbling", "hopping", "session"])
def test_quix_790_windows_close_without_new_data_for_the_key(name: str) -> None:
    """Quix closed a window of a key when the next record of that key came. Here another key's is enough, or what a source says."""
    runner = runner_of(KINDS[name])
    runner.push("clicks", click(1_000))
    runner.run()
    assert told(runner) == []
    runner.push("clicks", click(200_000, "bob"))
    runner.run()
    assert {user for user, *_ in told(runner)} == {"ann"} and runner.state("windows", "ann") is None
    runner.advance_watermark("clicks", 1_000_000)
    assert {user for user, *_ in told(runner)} == {"ann", "bob"}


def test_kafka_15864_and_streamiz_445_windows_close_although_the_whole_source_is_silent() -> None:
    runner = runner_of(KINDS["tumbling"], onward="30s")
    runner.push("clicks", click(1_000))
    runner.run()
    runner.advance_clock(20_000)
    runner.run()
    assert told(runner) == [], "not yet silent for long enough"
    runner.advance_clock(120_000)
    runner.run()
    assert told(runner) == [("ann", 0, 60_000, 1)]


def test_sql_flow_234_a_job_that_lags_does_not_cut_windows() -> None:
    """A backlog is worked off while the wall clock runs far ahead: the window comes out whole, not as five parts."""
    runner = runner_of(KINDS["tumbling"], onward="30s")
    for at in range(0, 60_000, 12_000):
        runner.push("clicks", click(at))
        runner.epoch()
        runner._engine.now += 25_000
    runner.push("clicks", click(60_000))
    runner.run()
    assert told(runner) == [("ann", 0, 60_000, 5)] and runner.late("windows") == 0


def test_kafka_8613_windows_have_no_grace_by_default() -> None:
    """Kafka Streams kept results for 24 hours unless told otherwise."""
    runner = runner_of(KINDS["tumbling"])
    runner.push("clicks", click(0), click(60_000))
    runner.run()
    assert told(runner) == [("ann", 0, 60_000, 1)]


# --- late records


@pytest.mark.parametrize("name", KINDS)
def test_spark_56043_a_record_just_at_the_watermark_counts(name: str) -> None:
    """Whether it comes in the epoch that moves the watermark there, or in a later one."""
    for together in (True, False):
        runner = runner_of(KINDS[name])
        runner.push("clicks", click(60_000, "bob"))
        if not together:
            runner.run()
            assert runner.low_watermark("windows") == 60_000
        runner.push("clicks", click(60_000))
        runner.drain()
        assert runner.late("windows") == 0 and sum(user == "ann" for user, *_ in told(runner)) == (6 if name == "hopping" else 1)


def test_flink_23699_a_window_that_ends_at_the_watermark_is_over_and_one_a_moment_later_is_not() -> None:
    runner = runner_of(KINDS["tumbling"])
    runner.push("clicks", click(119_999, "bob"))
    runner.run()
    runner.push("clicks", click(60_000), click(59_999))
    runner.drain()
    assert ("ann", 60_000, 120_000, 1) in told(runner)
    assert [value["timestamp"] for _, value, _ in runner.output("late")] == [59_999]


@pytest.mark.parametrize("name", KINDS)
def test_risingwave_23270_late_records_are_counted_and_have_a_stream(name: str) -> None:
    runner = runner_of(KINDS[name])
    runner.push("clicks", click(10 * 24 * HOUR, "bob"))
    runner.run()
    runner.push("clicks", click(1_000))
    runner.drain()
    assert runner.late("windows") == 1 and [value["value"] for _, value, _ in runner.output("late")] == [click(1_000)]
    assert all(user == "bob" for user, *_ in told(runner))


# --- results


@pytest.mark.parametrize("name", KINDS)
def test_bytewax_270_and_ksql_1404_start_and_end_and_the_key_are_in_the_result(name: str) -> None:
    runner = runner_of(KINDS[name])
    runner.push("clicks", click(65_000))
    runner.drain()
    for key, value, timestamp in runner.output("windows"):
        assert list(value) == ["user", "start", "end", "n"] and key == value["user"] == "ann"
        assert value["start"] <= 65_000 < value["end"] == timestamp + 1


@pytest.mark.parametrize("order", [(0, 50_000, 100_000), (100_000, 0, 50_000), (50_000, 100_000, 0), (0, 100_000, 50_000)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_bytewax_406_and_427_sessions_do_not_depend_on_the_order_of_records(order: tuple[int, ...], epochs: int) -> None:
    runner = runner_of(KINDS["session"], delay="15m")
    for at in order:
        runner.push("clicks", click(at), click(at + 500_000, "bob"))
        if epochs > 1:
            runner.run()
    runner.drain()
    assert sorted(told(runner)) == [("ann", 0, 160_000, 3), ("bob", 500_000, 660_000, 3)]


# --- a day is a local day


def hours_of_days(zone: str, first: datetime.date, days: int) -> dict[datetime.date, float]:
    """By local day, the hours of its window; a click every quarter of an hour, from noon to noon UTC."""
    begin = int(datetime.datetime(first.year, first.month, first.day, 12, tzinfo=datetime.UTC).timestamp() * 1000)
    runner = runner_of(ms.windows.calendar("day", zone=zone))
    runner.push("clicks", *(click(begin + n * HOUR // 4) for n in range(days * 96)))
    runner.drain()
    windows = sorted(told(runner), key=lambda one: one[1])
    assert all(end == start for (_, _, end, _), (_, start, _, _) in pairwise(windows)), "one day ends where the next one begins"
    for _, start, end, n in windows[1:-1]:
        assert n == (end - start) * 4 // HOUR, "every click of the day is in it"
    return {datetime.datetime.fromtimestamp(start / 1000, ZoneInfo(zone)).date(): (end - start) / HOUR for _, start, end, _ in windows}


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
    ],
)
def test_risingwave_14772_and_faucet_461_a_day_is_a_local_day_and_does_not_drift(zone: str, day: str, hours: float) -> None:
    changes = datetime.date.fromisoformat(day)
    found = hours_of_days(zone, changes - datetime.timedelta(days=2), 4)
    assert found.pop(changes) == hours
    assert len(found) >= 3 and set(found.values()) == {24}


def test_risingwave_14772_a_day_that_a_zone_has_left_out_is_no_window() -> None:
    """Samoa went over the date line: there was no 30 December 2011 in Apia."""
    found = hours_of_days("Pacific/Apia", datetime.date(2011, 12, 28), 4)
    assert datetime.date(2011, 12, 29) in found and datetime.date(2011, 12, 30) not in found and datetime.date(2011, 12, 31) in found
    assert set(found.values()) == {24}


# --- state


def test_flink_37512_a_record_touches_one_pane_whatever_the_slide() -> None:
    """Flink copies a record into each of its windows: here 600 of them."""
    sizes = {}
    for windows in (1, 10, 60, 600):
        runner = runner_of(ms.windows.hopping("10m", every=f"{600 // windows}s"))
        runner.push("clicks", *(click(n % 1_000, f"user {n % 500}") for n in range(5_000)))
        runner.epoch()
        assert sum(map(len, runner.state("windows").values())) == 500
        sizes[windows] = state_bytes(runner)
    assert max(sizes.values()) < 1.01 * min(sizes.values()), sizes


def test_flink_37512_state_grows_with_panes_that_have_records_and_not_with_records_times_windows() -> None:
    """Ten minutes of 20 users: 12,000 records, of which each is in 600 windows. What is kept is one partial result per user and second at most."""
    runner = runner_of(ms.windows.hopping("10m", every="1s"))
    for minute in range(10):
        runner.push("clicks", *(click(minute * 60_000 + n * 50, f"user {n % 20}") for n in range(1_200)))
        runner.epoch()
    kept = sum(map(len, runner.state("windows").values()))
    assert kept == 600 * 20
    assert state_bytes(runner) < 100 * kept


@pytest.mark.parametrize("name", KINDS)
def test_spark_19932_and_risingwave_16045_nothing_is_left_of_keys_that_do_not_come_again(name: str) -> None:
    """The source goes on: it is time that ends the state, not the end of the input."""
    runner = runner_of(KINDS[name])
    sizes = []
    for day in range(30):
        runner.push("clicks", *(click(day * 48 * HOUR + n, f"user {day}-{n}") for n in range(50)))
        runner.run()
        sizes.append(state_bytes(runner))
    assert max(sizes) < 2 * sizes[0], "as much as the open windows have"
    runner.advance_watermark("clicks", 100 * 48 * HOUR)
    assert state_bytes(runner) == 0 and runner.state("windows") == {}


# --- twins: with the guard off, the tests above fail


def test_twin_late_by_the_records_own_time_loses_records_of_open_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = PaneStep._placed

    def by_record(step: PaneStep, rows: Any) -> Any:
        ends, starts, _ = placed(step, rows)
        late = rows.times < step.times.late_before
        return ends, starts, late if late.any() else None

    test_flink_23699_a_window_that_ends_at_the_watermark_is_over_and_one_a_moment_later_is_not()
    monkeypatch.setattr(PaneStep, "_placed", by_record)
    with pytest.raises(AssertionError):
        test_flink_23699_a_window_that_ends_at_the_watermark_is_over_and_one_a_moment_later_is_not()


def test_twin_panes_that_are_not_dropped_stay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaneStep, "_drop", lambda step, name: None)
    with pytest.raises((AssertionError, DefinitionError)):  # or there is always something due
        test_spark_19932_and_risingwave_16045_nothing_is_left_of_keys_that_do_not_come_again("tumbling")


def test_twin_a_record_that_is_copied_into_each_of_its_windows_shows_in_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    partials = PaneStep._partials

    def copied(step: PaneStep, rows: Any) -> Any:
        """As if a record were in the pane of every window that it is in."""
        made = partials(step, rows)
        kind = step.spec.kind
        assert isinstance(kind, Fixed)
        ends = range(0, kind.size, kind.every)
        return step.folded([msgspec.structs.replace(made, ends=made.ends + later) for later in ends]) if len(made) else made

    monkeypatch.setattr(PaneStep, "_partials", copied)
    with pytest.raises(AssertionError):
        test_flink_37512_a_record_touches_one_pane_whatever_the_slide()


def test_twin_days_of_utc_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calendar = ms.windows.calendar
    monkeypatch.setattr(ms.windows, "calendar", lambda unit, zone: calendar(unit))
    with pytest.raises(AssertionError):
        test_risingwave_14772_and_faucet_461_a_day_is_a_local_day_and_does_not_drift("Europe/Berlin", "2026-03-29", 23)
