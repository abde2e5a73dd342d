"""What an epoch was like, in numbers: measured in tasks and on the driver, in both modes, and what of it the manifest keeps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pagekit import Shop

from millstream.core.outcome import Counts
from millstream.engine.metrics import PHASES, EpochStats, Metrics
from millstream.engine.receipts import Receipt, Work
from millstream.engine.source_planner import BacklogMeter
from millstream.sources.splits import SplitPlan
from taskkit import MicroBatchRun, numbered, pipeline


@pytest.mark.crash
def test_phases_of_a_resident_epoch_have_the_known_names_and_add_up_to_what_it_took(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        for _ in range(3):
            shop.give(200)
            shop.wait()
        found = shop.handle.epochs()
        busy = [one for one in found if one["records"]]
        assert busy and all(set(one["phases"]) <= set(PHASES) for one in found)
        for one in busy:
            assert {"plan", "read", "step", "stage", "dispatch", "check", "commit", "publish", "upkeep"} <= set(one["phases"])
            assert sum(one["phases"].values()) >= 0.9 * one["millis"]
            assert (
                set(one["sinks"]) <= {"totals", "seconds", "by-name", "Totals.dead-letters"}
                and sum(one["sinks"].values()) <= one["phases"]["publish"]
            )
        assert any("totals" in one["sinks"] for one in busy) and all(one["written"] > 0 for one in busy)


@pytest.mark.crash
def test_phases_of_a_micro_batch_come_from_receipts(tmp_path: Path) -> None:
    with MicroBatchRun(tmp_path, numbered(40)) as run:
        run.turn()
        (one,) = [one for one in run.epochs.metrics if one.records]
        assert {"plan", "exchange", "step", "stage", "check", "commit", "publish"} <= set(one.phases) <= set(PHASES)
        assert one.phases["step"] > 0 and one.phases["stage"] > 0


def test_the_slowest_task_of_each_level_tells_what_tasks_took() -> None:
    metrics = Metrics()
    receipts = [
        Receipt(level, 0, shard, work={"C": Work(None, Counts(), 0, millis=step)}, staging=staging)
        for level, shard, step, staging in ((0, 0, 10.0, 5.0), (0, 1, 30.0, 1.0), (1, 0, 2.0, 1.0))
    ]
    metrics.end_of_tasks(time.perf_counter() - 1.0, receipts)
    metrics.add(EpochStats(0, 1, 1000.0, True))
    (one,) = metrics
    assert one.phases["step"] == 32.0 and one.phases["stage"] == 2.0
    assert one.phases["exchange"] == pytest.approx(966.0, abs=50)


@pytest.mark.crash
def test_sums_stand_in_the_manifest_and_go_on_with_the_next_run(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.give(100)
        shop.wait()
    first = shop.handle._epochs.log.latest()
    assert first is not None and first.written > 0 and first.outputs["totals"].rows == 100
    assert {"plan", "step", "commit"} <= set(first.spent)
    with Shop(tmp_path) as shop:
        shop._given = 100
        shop.kit.reader.rows[:0] = [{}] * 100  # what was read before
        shop.give(50)
        shop.wait()
    second = shop.handle._epochs.log.latest()
    assert second is not None and second.outputs["totals"].rows == 150 and second.written > first.written
    assert all(second.spent[name] >= millis for name, millis in first.spent.items())


@pytest.mark.crash
def test_shards_and_computations_tell_what_they_had_to_do(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.give(300, key="hot")
        shop.wait()
        figures = shop.handle._epochs.figures()
        by_records = {one.shard: one.records for one in figures.shards}
        assert sum(sorted(by_records.values())[-1:]) >= 300  # all of one key are in one shard
        assert figures.computations["Totals"] > 0 and figures.published["totals"] == shop.handle.status().epoch


def test_loads_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("millstream.engine.metrics.time.monotonic", lambda: now[0])
    metrics = Metrics()
    told = []
    for second in range(40):
        now[0] = float(second)
        metrics.note_work([Receipt(0, 0, 0, work={"C": Work(None, Counts(records=1), 0, millis=1.0)})])
        ((load,), busy, works) = metrics.loads()
        told.append(load.millis)
        assert busy == 1 and works == {"C": load.millis} and load.records == load.millis
    assert min(told[15:]) >= 5 and max(told) <= 13  # the work of some seconds, and never that of a moment


@pytest.mark.crash
def test_streams_of_a_computation_with_several_inputs_are_counted_apart(tmp_path: Path) -> None:
    import millstream as ms

    class Both(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    def two(work: Path) -> tuple[ms.Pipeline, object]:
        from taskkit import Given

        p, source = ms.Pipeline("two"), Given()
        rows = p.inject("rows", source, timestamp="at", id="id")
        odd, even = rows.branch(lambda record: record.value["n"] % 3 == 0)
        p.compute(Both, odd, even, key="key", name="Both", produces="none")
        return p, source

    with Shop(tmp_path, build=two) as shop:
        shop.give(30)
        shop.wait()
        manifest = shop.handle._epochs.latest
        assert manifest is not None
        assert sorted(manifest.computations["Both"].by_stream.values()) == [10, 20]


def test_a_backlog_is_told_with_the_time_that_it_takes() -> None:
    meter = BacklogMeter("files")
    assert meter.backlog().left == 0 and meter.backlog().seconds == 0.0
    meter.note(SplitPlan("1", takes=5, left=100))
    assert meter.backlog().left == 100 and meter.backlog().seconds is None  # nobody knows how fast
    time.sleep(0.05)
    meter.note(SplitPlan("2", takes=5, left=95))
    seconds = meter.backlog().seconds
    assert seconds is not None and 0 < seconds <= 95 * 0.2


def test_attempts_that_were_begun_again_are_counted_with_their_epoch() -> None:
    metrics = Metrics()
    metrics.begin_again()
    metrics.begin_again()
    metrics.add(EpochStats(0, 1, 1.0, True))
    metrics.add(EpochStats(1, 1, 1.0, True))
    assert [one.tries for one in metrics] == [2, 0] and metrics.retries == 2


@pytest.mark.crash
def test_a_lost_task_shows_in_the_epoch_that_was_run_again(tmp_path: Path) -> None:
    with Shop(tmp_path, build=pipeline) as shop:
        shop.give(20)
        shop.wait()
        shop.give(1, do=f"exit-once:{tmp_path / 'ended'}")
        shop.wait()
        assert sum(one["tries"] for one in shop.handle.epochs()) == shop.kit.lost_epochs == 1
        assert shop.handle.status().mode.losses == 1 and any("wait" in one["phases"] for one in shop.handle.epochs()[1:])


def test_files_that_an_epoch_may_not_take_are_its_backlog(tmp_path: Path) -> None:
    import millstream as ms
    from taskkit import arrow_of

    for name in "abc":
        (tmp_path / f"{name}.json").write_text('{"n": 1}\n')
    reader = ms.sources.files(tmp_path, schema="n long", format="json", max_files_per_epoch=1).reader(arrow_of)
    reader.begin({}, False)
    plans = [reader.plan(reader.first())]
    while plans[-1].left:
        plans.append(reader.plan(plans[-1].end))
    assert [(plan.takes, plan.left) for plan in plans] == [(1, 2), (1, 1), (1, 0)] and reader.counts == "files"
