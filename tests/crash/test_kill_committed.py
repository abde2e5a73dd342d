"""Exactly once under kill -9 on Spark, from the commit on. Every point is tried without a JVM in tests/resident/test_resident_drivers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
import support

pytestmark = [pytest.mark.spark, pytest.mark.crash]

AFTER = ("epoch.6-committed", "epoch.7-publishing")
FIRST = 4  # by then every sink has something to publish


def test_driver_killed_from_the_commit_on_and_spark_forgets_its_last(tmp_path: Path) -> None:
    """With a weak edge inside a task, and a strong one whose productions are stored when the driver dies."""
    strong = (
        "--production",
        ms.STRONG,
        "--foreign",
    )  # Spark plans: an epoch that is committed and that it does not know is asked for again
    files = support.queries(FIRST + len(AFTER) + 2, 60)
    support.write_queries(tmp_path / "queries", files)
    support.kill_at(tmp_path, AFTER, *strong, first=FIRST)
    done = support.run_job(tmp_path, *strong)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    # the epoch is there already and must not count again
    commits = tmp_path / "checkpoint" / "spark" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    done = support.run_job(tmp_path, *strong, "--drain")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, production=ms.STRONG))
