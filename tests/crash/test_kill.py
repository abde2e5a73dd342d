"""Exactly once under kill -9: real processes, killed at every numbered boundary of the epoch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import millstream as ms
import support
from millstream.faults import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.crash]


def test_driver_killed_at_every_boundary_and_a_worker_in_mid_staging(tmp_path: Path) -> None:
    """With a weak edge inside a task, and a strong one whose productions are stored when the driver dies."""
    strong = ("--production", ms.STRONG)
    files = support.queries(len(POINTS) + 3, 60)
    support.write_queries(tmp_path / "queries", files)
    for epoch, point in enumerate(POINTS):
        done = support.run_job(tmp_path, *strong, crash=f"{point}@{epoch}")
        assert done.returncode == -signal.SIGKILL, (point, done.stdout, done.stderr[-2000:])
    done = support.run_job(tmp_path, *strong, crash=f"worker:task.4-staging@{len(POINTS)}")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    # Spark forgets its last commit: the epoch is there already and must not count again
    commits = tmp_path / "checkpoint" / "spark" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    done = support.run_job(tmp_path, *strong, "--drain")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, production=ms.STRONG))
