"""A soak, only with `make soak`: input for minutes, a kill -9 every few seconds, everything compared at the end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import support

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]

MINUTES = float(os.environ.get("MILLSTREAM_SOAK_MINUTES", "5"))


def test_minutes_of_input_and_a_kill_every_few_seconds(tmp_path: Path) -> None:
    files = support.queries(200, 100, terms=200, seed=17)
    rng = random.Random(5)
    fed, kills = 0, 0
    end = time.monotonic() + MINUTES * 60
    while time.monotonic() < end and fed < len(files):
        process = support.start_job(tmp_path, "--trigger", "100ms") if (tmp_path / "queries").exists() else None
        alive = time.monotonic() + 8 + rng.random() * 10
        while time.monotonic() < min(alive, end) and fed < len(files):
            fed += 1
            support.write_queries(tmp_path / "queries", files[:fed])
            time.sleep(0.5)
        if process is not None:
            assert process.poll() is None, process.communicate()[0][-3000:]
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
    done = support.run_job(tmp_path, "--drain", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files[:fed], drain=True))
    print(f"{fed} files, {kills} kills")
