"""Exactly once under kill -9 on Spark, at random moments. Without a JVM: tests/resident/test_resident_drivers.py."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import support

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]


def test_driver_killed_at_random_moments_while_input_arrives(tmp_path: Path) -> None:
    files = support.queries(9, 50, seed=3)
    rng = random.Random(11)
    fed = 0
    for _ in range(2):
        fed += 4
        support.write_queries(tmp_path / "queries", files[:fed])
        process = support.start_job(tmp_path, "--trigger", "100ms")
        deadline = time.monotonic() + 40
        manifests = tmp_path / "checkpoint" / "manifests"
        seen = len(list(manifests.glob("*.json"))) if manifests.exists() else 0
        while time.monotonic() < deadline and (not manifests.exists() or len(list(manifests.glob("*.json"))) == seen):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        time.sleep(rng.random() * 1.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    support.write_queries(tmp_path / "queries", files)
    done = support.run_job(tmp_path, "--drain")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True))
