"""A resident run that lasts: compactions go on whoever comes and goes, tasks are replaced without a failure for Spark, and one bad start ends nothing."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import pytest

import taskkit as kit
from millstream.engine.resident import coordinator
from millstream.errors import ClusterError
from millstream.state.checkpoint_copy import copy_checkpoint
from millstream.state.compaction import MAX_RUNS
from millstream.state.storage import open_storage

pytestmark = pytest.mark.crash


def longest_chain(run: kit.ResidentRun) -> int:
    latest = run.epochs.latest
    assert latest is not None
    return max(len(shard.segments) for state in latest.computations.values() for shard in state.shards)


def begun(work: Path) -> int:
    return len(list(work.glob("compaction-begun-*")))


def turn_until(run: kit.ResidentRun, what: object, first: int, at_most: int = 400) -> int:
    """Epochs of one row per key until something holds. Returns the number of the next row."""
    for _ in range(at_most):
        if what():  # type: ignore[operator]
            return first
        run.turn(*kit.numbered(12, first=first))
        first += 12
    raise AssertionError("it never held")


def replace_oldest(run: kit.ResidentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {sign.pid for sign in run.mode.tasks}
    monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 0.0)
    run.coordinator.recycle()
    monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 3600.0)
    kit.until(lambda: not run.mode.missing and {sign.pid for sign in run.mode.tasks} != before)


def test_a_compaction_under_way_when_its_task_is_replaced_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = tmp_path / "hold-compactions"
    hold.touch()
    with kit.ResidentRun(tmp_path) as run:
        rows = turn_until(run, lambda: begun(tmp_path) >= 2, 0)
        for _ in range(2):  # both tasks
            replace_oldest(run, monkeypatch)
        assert run.epochs.compaction.since() is None, "nobody is at work on what the old tasks had"
        hold.unlink()
        rows = turn_until(run, lambda: run.epochs.compaction.stats().compacted >= 8, rows)
        turn_until(run, lambda: longest_chain(run) <= MAX_RUNS + 1, rows)
        assert run.mode.losses == 0


def test_a_task_that_is_replaced_and_dies_before_it_has_ended_does_not_come_back_on_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fills the slot again, in the old job: that process and the new one would take it from each other for ever."""
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*kit.numbered(12))
        old = min(run.coordinator._members.values(), key=lambda member: member.since).who
        os.kill(old.pid, signal.SIGSTOP)
        replace_oldest(run, monkeypatch)
        there, generation = {sign.pid for sign in run.mode.tasks}, run.mode.generation
        os.kill(old.pid, signal.SIGKILL)
        kit.until(lambda: len([slot for slot, _ in run.nursery.ended if slot == old.slot]) > 1)
        assert [code for slot, code in run.nursery.ended if slot == old.slot] == [-signal.SIGKILL, 0], "who came in its place was sent home"
        run.turn(*kit.numbered(12, first=12))
        assert {sign.pid for sign in run.mode.tasks} == there and run.mode.generation == generation and run.mode.losses == 0


def test_with_a_replacement_that_tells_nobody_chains_grow_and_collection_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    hold = tmp_path / "hold-compactions"
    hold.touch()
    with kit.ResidentRun(tmp_path) as run:
        rows = turn_until(run, lambda: begun(tmp_path) >= 2, 0)
        run.coordinator._compaction.lost = lambda *shards: None
        for _ in range(2):
            replace_oldest(run, monkeypatch)
        hold.unlink()
        pinned = run.epochs.compaction.since()
        assert pinned is not None
        turn_until(run, lambda: longest_chain(run) > 2 * MAX_RUNS, rows)
        assert run.epochs.compaction.since() == pinned


def test_a_compaction_that_always_fails_is_logged_once_shown_and_left_alone_longer_and_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "break-compactions").touch()
    with caplog.at_level(logging.WARNING, "millstream.compactions"), kit.ResidentRun(tmp_path, shards=2) as run:
        began = time.monotonic()
        rows = turn_until(run, lambda: run.epochs.compaction.stats().failed >= 4, 0)
        for at in range(60):
            run.turn(*kit.numbered(12, first=rows + 12 * at))
        rows += 720
        chains = 4  # two computations on two shards
        doublings = int(time.monotonic() - began).bit_length() + 1  # after 1, 2, 4 ... seconds
        assert begun(tmp_path) <= chains * doublings, "epochs are many times more than that"
        told = [record.message for record in caplog.records]
        assert len(told) == len(set(told)) <= chains and "OSError: broken by the test" in told[0]
        stats = run.epochs.compaction.stats()
        assert "shard" in stats.last_error and stats.since is None
        (tmp_path / "break-compactions").unlink()
        turn_until(run, lambda: run.epochs.compaction.stats().compacted >= 4 or time.sleep(0.05), rows, 2000)


def test_a_planned_replacement_is_no_failure_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends a job whose task has failed `spark.task.maxFailures` times: here, once."""
    rows = kit.numbered(60)
    with kit.ResidentRun(tmp_path, nursery=kit.Nursery(2, tries=1)) as run:
        for at in range(0, 60, 10):
            run.turn(*rows[at : at + 10])
            replace_oldest(run, monkeypatch)
        assert {code for _, code in run.nursery.ended} == {0}
        assert run.mode.losses == 0 and run.mode.jobs == 7, "one for all, and one for each that was replaced"
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_job_that_spark_gives_up_is_begun_again_for_the_slots_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = kit.numbered(60)
    with kit.ResidentRun(tmp_path, nursery=kit.Nursery(2, tries=1)) as run:
        run.turn(*rows[:20])
        replace_oldest(run, monkeypatch)  # the other slot is left in the first job
        run.turn(*rows[20:40])
        kit.until(lambda: run.nursery.ended)
        (replaced,) = {slot for slot, _ in run.nursery.ended}
        has_it_now = run.pid(replaced)
        run.kill(1 - replaced)
        run.turn(*rows[40:])
        assert run.pid(replaced) == has_it_now and run.mode.losses == 1 and run.mode.jobs == 3
    assert kit.faults_of(tmp_path, rows) == {}


def test_one_task_that_could_not_start_ends_nothing(tmp_path: Path) -> None:
    """Not before the first epoch, and not later."""
    rows = kit.numbered(60)
    (tmp_path / "hiccup-0").touch()
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:20])
        (tmp_path / "hiccup-1").touch()
        run.kill(1)
        run.turn(*rows[20:40])
        run.turn(*rows[40:])
        assert not (tmp_path / "hiccup-0").exists() and not (tmp_path / "hiccup-1").exists(), "both came to pass"
        assert any("task 1 could not start: OSError: the disk was slow" in loss for loss in run.coordinator._membership.last_losses)
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_task_that_can_never_start_ends_the_run_and_says_why(tmp_path: Path) -> None:
    rows = kit.numbered(40)
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:20])
        (tmp_path / "hiccup-1").write_text("for ever")
        run.go()
        run.give(*rows[20:])
        os.kill(run.pid(1), signal.SIGKILL)
        kit.until(lambda: run.error is not None)
        assert isinstance(run.error, ClusterError) and "cannot start: OSError: the disk was slow" in str(run.error)
        run.error = None


def test_copies_that_are_made_while_a_run_goes_on_are_started_beside_it_and_count_on(tmp_path: Path) -> None:
    rows = kit.numbered(1_200)
    copies = []
    with kit.ResidentRun(tmp_path / "original") as run:
        run.reader.per_epoch = 12
        run.go()
        for at in range(0, 900, 300):
            run.give(*rows[at : at + 300])
            kit.until(lambda at=at: run.reader.safe > at)  # type: ignore[misc]
            work = tmp_path / f"copy{at}"
            copy_checkpoint(open_storage(tmp_path / "original" / "checkpoint"), open_storage(work / "checkpoint"))
            copies.append(work)
        run.wait()
        for work in copies:
            with kit.ResidentRun(work, rows=rows) as copy:
                copy.turn()
            last = {row["key"]: row["value"]["step"] for row in kit.rows_of(work / "steps")}
            assert last == {f"k{key}": 100 for key in range(12)}, "every record once: those before the copy are in its state"
            assert 0 < len(kit.rows_of(work / "steps")) < 1_200
        run.give(*rows[900:])
        run.wait()
    assert kit.faults_of(tmp_path / "original", rows) == {}
