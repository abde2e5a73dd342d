"""Resident runs on Spark under kill -9 of workers and drivers, left and gone on with in the other mode, while a program pushes and files come."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from soakkit import Feeder, Job, free_address, newest, verified

import millstream as ms
import support
from millstream.faults import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EXACT = {"lost": 0, "doubled": 0, "out_of_order": 0, "wrong": 0}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(*args: str) -> Job:
        started.append(Job(tmp_path, *args))
        return started[-1]

    yield start
    for one in started:
        one.close()


def acknowledged(job: Job, feeder: Feeder) -> None:
    """The end of the input: all that was pushed is committed."""
    feeder.end()
    assert feeder.client is not None
    assert feeder.client.wait("120s"), job.said()
    feeder.client.close()


def verdict(work: Path, last: Job) -> dict[str, int]:
    """What the verifier says when a last run has ended event time."""
    last.ended(300)
    found = verified(work)
    assert found["records"] > 0
    return {name: found[name] for name in EXACT}


def test_killed_workers_a_stop_a_killed_driver_and_two_changes_of_mode_under_load(tmp_path: Path, job: Callable[..., Job]) -> None:
    push = free_address()
    feeder = Feeder(tmp_path, 600, push, keys=300)
    feeder.start()
    dice = random.Random(3)
    resident = job("--resident", "--push", push)
    resident.until_it_commits(5)
    for _ in range(2):
        resident.kill_worker(dice)
    resident.stop()
    micro = job("--push", push)
    micro.until_it_commits(2)
    acknowledged(micro, feeder)
    micro.kill()
    assert verdict(tmp_path, job("--drain", "--resident", "--push", push)) == EXACT


@pytest.mark.soak
def test_a_session_whose_tasks_may_fail_once_only(tmp_path: Path, job: Callable[..., Job]) -> None:
    """Spark gives the job up when a worker is killed, and a new one is begun."""
    push = free_address()
    feeder = Feeder(tmp_path, 300, push, keys=300)
    feeder.start()
    dice = random.Random(3)
    resident = job("--resident", "--push", push, "--master", "local[2,1]")
    resident.until_it_commits(5)
    for _ in range(3):
        resident.kill_worker(dice)
    acknowledged(resident, feeder)
    resident.stop()
    assert verdict(tmp_path, job("--drain", "--resident", "--push", push)) == EXACT


@pytest.mark.soak
def test_a_driver_killed_at_every_point_with_changes_of_mode_and_more_files_after_each_crash(tmp_path: Path) -> None:
    files = support.queries(2 * len(POINTS) + 3, 50)
    for at, point in enumerate(POINTS):
        support.write_queries(tmp_path / "queries", files[: 2 * at + 2])
        mode = ["--resident", "--tasks", "2"] if at % 3 != 2 else []
        first = newest(tmp_path) + 1
        epochs = range(first, first + 40) if point == "epoch.7-publishing" else [first]  # files are rolled: some epoch publishes them
        done = support.run_job(tmp_path, "--production", ms.STRONG, *mode, crash=",".join(f"{point}@{epoch}" for epoch in epochs))
        assert done.returncode == -signal.SIGKILL, (point, done.stdout, done.stderr[-2000:])
    support.write_queries(tmp_path / "queries", files)
    done = support.run_job(
        tmp_path, "--production", ms.STRONG, "--resident", "--drain", crash=f"worker:task.3-shuffled@{newest(tmp_path) + 1}"
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, production=ms.STRONG))


@pytest.mark.soak
def test_a_resident_driver_that_was_paused_replaced_and_continued_commits_nothing_and_says_why(tmp_path: Path) -> None:
    files = support.queries(6, 40)
    support.write_queries(tmp_path / "queries", files[:3])
    paused = support.start_job(tmp_path, "--trigger", "100ms", "--resident", "--tasks", "2", "--shards", "2")
    try:
        manifests = tmp_path / "checkpoint" / "manifests"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (manifests.exists() and len(list(manifests.glob("*.json"))) >= 2):
            assert paused.poll() is None, paused.communicate()[0]
            time.sleep(0.05)
        os.killpg(paused.pid, signal.SIGSTOP)  # driver, JVM and workers
        support.write_queries(tmp_path / "queries", files)
        done = support.run_job(tmp_path, "--drain", "--resident")
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        after = support.oracle(tmp_path, files, drain=True)
        support.assert_same(tmp_path, after)
        committed = sorted(path.name for path in manifests.iterdir())
        os.killpg(paused.pid, signal.SIGCONT)
        said = paused.communicate(timeout=60)[0]
        assert paused.returncode == 3 and "Fenced: another driver" in said, said
        assert sorted(path.name for path in manifests.iterdir()) == committed
        support.assert_same(tmp_path, after)
    finally:
        if paused.poll() is None:
            os.killpg(paused.pid, signal.SIGKILL)
            paused.communicate()
