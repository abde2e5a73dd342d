"""Exactly once under kill -9 on Spark, before the commit. Every point, and random moments: tests/resident/test_resident_drivers.py, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
import support

pytestmark = [pytest.mark.spark, pytest.mark.crash]

BEFORE = ("task.4-staging", "epoch.5-checked")


def test_driver_killed_before_the_commit_and_a_worker_in_mid_staging(tmp_path: Path) -> None:
    """With a weak edge inside a task, and a strong one whose productions are stored when the driver dies."""
    strong = ("--production", ms.STRONG)
    files = support.queries(len(BEFORE) + 2, 60)
    support.write_queries(tmp_path / "queries", files)
    support.kill_at(tmp_path, BEFORE, *strong)
    done = support.run_job(tmp_path, *strong, "--drain", crash=f"worker:task.4-staging@{len(BEFORE)}")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, production=ms.STRONG))
