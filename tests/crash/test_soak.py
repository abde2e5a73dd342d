"""A soak, only with `make soak`: ten minutes of input from three injectors, a kill -9 every few seconds, and a verifier that recomputes everything."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from soakkit import HERE, Feeder, newest, verified

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]

MINUTES = float(os.environ.get("MILLSTREAM_SOAK_MINUTES", "10"))
RATE = int(os.environ.get("MILLSTREAM_SOAK_RATE", "1500"))  # records a second, over all injectors


def test_ten_minutes_of_kills_lose_nothing_double_nothing_and_keep_the_order(tmp_path: Path) -> None:
    feeder = Feeder(tmp_path, RATE)
    feeder.start()
    dice = random.Random(5)
    end = time.monotonic() + MINUTES * 60
    recoveries: list[float] = []
    kills = 0
    command = [sys.executable, str(HERE / "soakjob.py"), str(tmp_path)]
    while time.monotonic() < end:
        before = newest(tmp_path)
        began = time.monotonic()
        with open(tmp_path / "job.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        while newest(tmp_path) <= before:
            assert process.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
            assert time.monotonic() - began < 120, (tmp_path / "job.log").read_text()[-3000:]
            time.sleep(0.02)
        recoveries.append(time.monotonic() - began)
        time.sleep(dice.uniform(0.5, 6))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    feeder.end()
    done = subprocess.run([*command, "--drain"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    verdict = verified(tmp_path)
    verdict.update(
        epochs=newest(tmp_path) + 1,
        kills=kills,
        recovery_median=round(statistics.median(recoveries), 1),
        recovery_longest=round(max(recoveries), 1),
    )
    print(json.dumps(verdict))
    (Path(os.environ.get("MILLSTREAM_SOAK_REPORT", tmp_path / "report.json"))).write_text(json.dumps(verdict))
    assert (verdict["lost"], verdict["doubled"], verdict["out_of_order"], verdict["wrong"]) == (0, 0, 0, 0), verdict
    assert verdict["given"] > verdict["records"] > 0
