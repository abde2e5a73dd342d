"""Two drivers on one checkpoint on Spark: one of them stops and says why, and no epoch is committed twice. Without a JVM:
tests/resident/test_resident_drivers.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import support

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]


def test_of_two_drivers_on_one_checkpoint_the_older_is_fenced(tmp_path: Path) -> None:
    files = support.queries(8, 40)
    support.write_queries(tmp_path / "queries", files)
    first = support.start_job(tmp_path, "--trigger", "300ms")
    try:
        manifests = tmp_path / "checkpoint" / "manifests"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (manifests.exists() and len(list(manifests.glob("*.json"))) >= 2):
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.05)
        second = support.run_job(tmp_path, "--drain")
        assert second.returncode == 0, second.stdout + second.stderr[-2000:]
        said = first.communicate(timeout=60)[0]
        assert first.returncode == 3, said
        assert "Fenced: another driver" in said
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True))


def test_a_driver_that_was_paused_replaced_and_continued_commits_nothing_and_says_why(tmp_path: Path) -> None:
    files = support.queries(6, 40)
    support.write_queries(tmp_path / "queries", files[:3])
    paused = support.start_job(tmp_path, "--trigger", "300ms")
    try:
        manifests = tmp_path / "checkpoint" / "manifests"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (manifests.exists() and len(list(manifests.glob("*.json"))) >= 2):
            assert paused.poll() is None, paused.communicate()[0]
            time.sleep(0.05)
        os.killpg(paused.pid, signal.SIGSTOP)  # driver, JVM and workers
        support.write_queries(tmp_path / "queries", files)
        done = support.run_job(tmp_path, "--drain")
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        after = support.oracle(tmp_path, files, drain=True)
        support.assert_same(tmp_path, after)
        committed = sorted(path.name for path in manifests.iterdir())
        os.killpg(paused.pid, signal.SIGCONT)
        said = paused.communicate(timeout=60)[0]
        assert paused.returncode == 3, said
        assert "Fenced: another driver" in said
        assert sorted(path.name for path in manifests.iterdir()) == committed
        support.assert_same(tmp_path, after)
    finally:
        if paused.poll() is None:
            os.killpg(paused.pid, signal.SIGKILL)
            paused.communicate()


def test_of_two_drivers_started_at_the_same_moment_one_goes_on_to_the_end(tmp_path: Path) -> None:
    for attempt in range(2):
        work = tmp_path / str(attempt)
        files = support.queries(4, 40)
        support.write_queries(work / "queries", files)
        both = [support.start_job(work, "--drain") for _ in range(2)]
        said = [one.communicate(timeout=120)[0] for one in both]
        codes = sorted(one.returncode for one in both)
        assert codes == [0, 3], "\n".join(said)
        assert any("Fenced: another driver" in text for text in said), "\n".join(said)
        support.assert_same(work, support.oracle(work, files, drain=True))
