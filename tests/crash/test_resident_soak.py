"""A soak of resident runs, only with `make soak`: ten minutes of input from files and from a program that pushes, kills of workers and drivers, changes of
mode, and a verifier that recomputes everything. Then one run whose tasks are replaced by plan all the time, whose chains and objects must not grow; the
second half is one run that nobody disturbs, whose memory must not grow, nor its chains and objects."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from pathlib import Path

import psutil
import pytest
from soakkit import Feeder, Job, free_address, log_size, newest, verified

from millstream.state.compaction import MAX_RUNS

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]

MINUTES = float(os.environ.get("MILLSTREAM_SOAK_MINUTES", "10"))
RATE = int(os.environ.get("MILLSTREAM_SOAK_RATE", "1000"))  # records a second, over all injectors
KILLS = 25
GROWTH, MARGIN = 1.10, 16 << 20  # of a process, from the second to the last third of that run


def test_ten_minutes_of_kills_and_changes_of_mode_and_then_memory_stays_flat(tmp_path: Path) -> None:
    push = free_address()
    feeder = Feeder(tmp_path, RATE, push)
    feeder.start()
    assert feeder.client is not None
    dice = random.Random(5)
    began = time.monotonic()
    half, end = began + MINUTES * 30, began + MINUTES * 60
    recoveries: list[float] = []
    counts = dict.fromkeys(("worker", "driver", "stop"), 0)
    job: Job | None = None
    try:
        while time.monotonic() < half or not all(counts.values()):
            resident = dice.random() < 0.75
            since = time.monotonic()
            job = Job(tmp_path, "--push", push, *(["--resident"] if resident else []))
            job.until_it_commits()
            recoveries.append(time.monotonic() - since)
            for _ in range(dice.randrange(1, 6) if resident else 0):
                time.sleep(dice.uniform(0.2, max(0.5, MINUTES * 60 / KILLS / 4)))
                job.kill_worker(dice)
                counts["worker"] += 1
            time.sleep(dice.uniform(0.2, 2))
            if dice.random() < 0.7:
                job.kill()
                counts["driver"] += 1
            else:
                job.stop()
                counts["stop"] += 1
        job = Job(tmp_path, "--push", push, "--resident", "--replace-every", "4")
        job.until_it_commits()
        sizes = {"replaced": log_sizes(job, time.monotonic() + max(30, MINUTES * 6))}
        job.stop()
        job = Job(tmp_path, "--push", push, "--resident")
        job.until_it_commits()
        memory, sizes["undisturbed"] = watched(job, max(end, time.monotonic() + 30))
        feeder.end()
        assert feeder.client.wait("300s"), job.said()
        feeder.client.close()
        job.stop()
        job = Job(tmp_path, "--drain", "--resident", "--push", push)
        job.ended(900)
    finally:
        if job is not None:
            job.close()
    verdict = verified(tmp_path)
    verdict.update(
        epochs=newest(tmp_path) + 1,
        **counts,
        start_median=round(statistics.median(recoveries), 1),
        memory={name: grown(seen) for name, seen in memory.items()},
        longest_chain={name: grown([chain for chain, _ in seen]) for name, seen in sizes.items()},
        objects={name: grown([objects for _, objects in seen]) for name, seen in sizes.items()},
    )
    print(json.dumps(verdict))
    Path(os.environ.get("MILLSTREAM_SOAK_REPORT", tmp_path / "resident-report.json")).write_text(json.dumps(verdict))
    assert (verdict["lost"], verdict["doubled"], verdict["out_of_order"], verdict["wrong"]) == (0, 0, 0, 0), verdict
    assert verdict["given"] > verdict["records"] > 0
    for name, (before, after) in verdict["memory"].items():
        assert after < before * GROWTH + MARGIN, (name, verdict["memory"])
    for name in sizes:
        assert verdict["longest_chain"][name][1] <= 3 * MAX_RUNS, verdict["longest_chain"]
        before, after = verdict["objects"][name]
        assert after < before * 1.5 + 200, (name, verdict["objects"])


def log_sizes(job: Job, end: float) -> list[tuple[int, int]]:
    """How long chains are, and how many objects there are, every second."""
    found = []
    while time.monotonic() < end:
        assert job.process.poll() is None, job.said()
        found.append(log_size(job.work))
        time.sleep(1)
    return found


def watched(job: Job, end: float) -> tuple[dict[str, list[int]], list[tuple[int, int]]]:
    """The memory of the driver and of each task, every second; and the size of the log."""
    driver = psutil.Process(job.process.pid)
    while len(tasks := job.workers()) < 2:
        assert job.process.poll() is None, job.said()
        time.sleep(0.1)
    found: dict[str, list[int]] = {"driver": [], **{f"task {task.pid}": [] for task in tasks}}
    sizes = []
    while time.monotonic() < end:
        assert job.process.poll() is None, job.said()
        sizes.append(log_size(job.work))
        for name, process in zip(found, [driver, *tasks], strict=True):
            found[name].append(process.memory_info().rss)
        time.sleep(1)
    assert len(found) == 3, "two tasks"
    return found, sizes


def grown(seen: list[int]) -> tuple[int, int]:
    """The medians of the second and of the last third: what is loaded at first is none of it."""
    third = max(1, len(seen) // 3)
    return int(statistics.median(seen[third : 2 * third] or seen)), int(statistics.median(seen[-third:]))
