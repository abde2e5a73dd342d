"""A soak, only with `make soak`: ten minutes of input from three injectors, a kill -9 every few seconds, and a verifier that recomputes everything."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import soakjob

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]

HERE = Path(__file__).parent
MINUTES = float(os.environ.get("MILLSTREAM_SOAK_MINUTES", "10"))
RATE = int(os.environ.get("MILLSTREAM_SOAK_RATE", "1500"))  # records a second, over all injectors
KEYS = 20_000
START = 1_700_000_000_000


class Feeder(threading.Thread):
    """Writes a file per injector twice a second, 1 % of the records repeated, slightly out of order."""

    def __init__(self, work: Path) -> None:
        super().__init__(daemon=True)
        self.work, self.ends = work, threading.Event()
        self.written = 0

    def run(self) -> None:
        dice = random.Random(7)
        number = dict.fromkeys(soakjob.SOURCES, 0)
        began, index = time.monotonic(), 0
        while not self.ends.is_set():
            index += 1
            for source in soakjob.SOURCES:
                rows = []
                for _ in range(RATE // 6):
                    at = START + int((time.monotonic() - began) * 1000)
                    rows.append(
                        {"key": f"k{dice.randrange(KEYS)}", "n": dice.randrange(1000), "at": at, "id": f"{source}-{number[source]:09d}"}
                    )
                    number[source] += 1
                rows += dice.sample(rows, len(rows) // 100)
                hidden = self.work / source / f".{index:06d}"
                hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
                hidden.rename(self.work / source / f"{index:06d}.json")
                self.written += len(rows)
            self.ends.wait(0.5)


def newest(work: Path) -> int:
    folder = work / "checkpoint" / "manifests"
    return max((int(path.stem) for path in folder.glob("*.json")), default=-1) if folder.exists() else -1


def test_ten_minutes_of_kills_lose_nothing_double_nothing_and_keep_the_order(tmp_path: Path) -> None:
    for source in soakjob.SOURCES:
        (tmp_path / source).mkdir()
    feeder = Feeder(tmp_path)
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
    feeder.ends.set()
    feeder.join()
    done = subprocess.run([*command, "--drain"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    verdict = json.loads(
        subprocess.run([sys.executable, str(HERE / "soakverify.py"), str(tmp_path)], capture_output=True, text=True, check=True).stdout
    )
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
