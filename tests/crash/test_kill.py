"""Exactly once under kill -9 on Spark: before the commit, from the commit on, and a worker in mid-staging. Every point, and random moments:
tests/resident/test_resident_drivers.py, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
import support

pytestmark = [pytest.mark.spark, pytest.mark.crash]

POINTS = ("epoch.5-checked", "epoch.6-committed", "epoch.7-publishing")
WORKER = "task.4-staging"
FIRST = 3  # by then every sink has something to publish


def test_drivers_killed_around_the_commit_a_worker_in_mid_staging_and_spark_forgets_its_last_commit(tmp_path: Path) -> None:
    """With a weak edge inside a task, and a strong one whose productions are stored when the driver dies. Spark plans: an epoch that is committed and that
    it does not know is asked for again, and must not count again."""
    strong = ("--production", ms.STRONG, "--foreign")
    files = support.queries(FIRST + len(POINTS) + 2, 60)
    support.write_queries(tmp_path / "queries", files)
    support.kill_at(tmp_path, POINTS, *strong, first=FIRST)
    commits = tmp_path / "checkpoint" / "spark" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    done = support.run_job(tmp_path, *strong, "--drain", crash=f"worker:{WORKER}@{FIRST + len(POINTS)}")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, production=ms.STRONG))
