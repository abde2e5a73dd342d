"""Resident tasks that are killed: nothing is lost, nothing doubled, and no count has a gap."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import taskkit as kit

pytestmark = pytest.mark.crash


def test_a_run_that_nobody_disturbs_is_exact(tmp_path: Path) -> None:
    rows = kit.numbered(300)
    with kit.ResidentRun(tmp_path) as run:
        for at in range(0, 300, 60):
            run.turn(*rows[at : at + 60])
        assert run.mode.losses == 0 and run.mode.generation == 1
    assert kit.faults_of(tmp_path, rows) == {}
    assert [code for _, code in run.nursery.ended] == [0, 0]


class Load(threading.Thread):
    """Gives rows all the time, a few at once."""

    def __init__(self, run: kit.ResidentRun) -> None:
        super().__init__(daemon=True)
        self.run_, self.ends, self.count = run, threading.Event(), 0

    def run(self) -> None:
        while not self.ends.is_set():
            self.run_.give(*kit.numbered(5, keys=40, first=self.count))
            self.count += 5
            self.ends.wait(0.005)

    def end(self) -> None:
        self.ends.set()
        self.join()


def loaded(work: Path, kills: int, guards: str = "", **options: object) -> tuple[kit.ResidentRun, dict[str, int]]:
    """A run under load, whose tasks are killed at random moments; what is wrong with it."""
    dice = random.Random(kills)
    with kit.ResidentRun(work, guards=guards, **options) as run:  # type: ignore[arg-type]
        load = Load(run)
        run.go()
        load.start()
        for _ in range(kills):
            run.wait(run.reader.safe + dice.randrange(1, 60))
            run.kill(dice.randrange(2))
        run.wait(run.reader.safe + 1)
        load.end()
        run.wait()
    return run, kit.faults_of(work, run.reader.rows)


def test_tasks_killed_at_random_moments_under_load(tmp_path: Path) -> None:
    run, wrong = loaded(tmp_path, 5)
    assert wrong == {}
    assert run.mode.losses == 5 and run.mode.generation >= 6


def test_without_the_rerun_rows_are_lost_and_the_check_sees_it(tmp_path: Path) -> None:
    run, wrong = loaded(tmp_path, 5, guards="rerun")
    assert run.lost_epochs
    assert wrong.get("lost"), "the epoch that was under way is committed without its rows"


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_tasks_killed_at_every_point_of_a_task_and_on_both_levels(tmp_path: Path, size: int) -> None:
    """size: little is read by the driver; much by the tasks, which then exchange rows before the first level, too."""
    points = [("3-shuffled", "/0."), ("3-shuffled", "/1."), ("3-shuffled", "/1.2"), ("4-staging", ""), ("4-staged", "/.1")]
    rows = kit.numbered(60 * (len(points) + 1))
    with kit.ResidentRun(tmp_path) as run:
        run.reader.size = size
        run.turn(*rows[:60])
        for number, (point, where) in enumerate(points, 1):
            run.points.armed = f"worker:task.{point}@{run.epochs.latest.epoch + 1}{where}"  # type: ignore[union-attr]
            run.turn(*rows[number * 60 : number * 60 + 60])
            assert run.lost_epochs >= number, (point, where)
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_job_that_is_given_up_is_begun_again(tmp_path: Path) -> None:
    """As on a session whose tasks may fail once only: the loss of one takes all others with it."""
    rows = kit.numbered(200)
    with kit.ResidentRun(tmp_path, nursery=kit.Nursery(2, tries=1)) as run:
        for at in range(4):
            run.turn(*rows[at * 50 : at * 50 + 50])
            if at < 2:
                run.kill(at)
        assert run.mode.jobs == 3
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_driver_that_comes_back_goes_on_with_more_rows_than_the_lost_epoch_had(tmp_path: Path) -> None:
    rows = kit.numbered(200)
    for end in (50, 120, 200):
        with kit.ResidentRun(tmp_path, rows=rows[:end]) as run:
            run.turn()
    assert kit.faults_of(tmp_path, rows) == {}
