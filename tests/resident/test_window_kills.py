"""Window operators, sessions and joins under kill -9: tasks that die after their partial results were sent and before they have staged, and drivers around the
commit. What is published then is what plain Python says, each window once."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
import taskkit as kit
from millstream.sinks.files import FileSink

pytestmark = pytest.mark.crash

ROWS = [{"key": f"k{n % 7}", "n": n, "at": 1_000_000 + 100 * n - (n * 37 % 900), "id": f"r{n:04d}", "do": ""} for n in range(600)]
BOUND, SIZE, AFTER = 1_000, 2_000, 700
#: Who dies in which epoch: tasks, each in an epoch of its own.
WORKERS = ["task.3-shuffled", "task.4-staging", "task.4-staged"]
DRIVERS = ["epoch.5-checked", "epoch.6-committed", "epoch.7-publishing"]


def windows(work: Path, dedup: str | None = None) -> tuple[ms.Pipeline, kit.Given]:
    p, source = ms.Pipeline("kills"), kit.Given()
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded(f"{BOUND}ms"), dedup=dedup)
    counts = rows.by("key").window(ms.windows.tumbling("2s")).reduce(n=ms.count(), total=ms.sum("n"), name="counts")
    every = counts.by().window(ms.windows.tumbling("10s")).reduce(total=ms.sum("total"), name="every")
    sessions = rows.by("key").window(ms.windows.session("900ms")).reduce(n=ms.count(), name="sessions")
    even, odd = (rows.filter(f"n % 2 = {rest}").by("key") for rest in (0, 1))
    pairs = even.join(odd, after=f"{AFTER}ms", how="outer", name="pairs")
    for stream in (counts, every, sessions, pairs):
        p.emit(stream, FileSink(work / stream.name, roll=0))
    return p, source


def deduplicated(work: Path) -> tuple[ms.Pipeline, kit.Given]:
    return windows(work, "10m")


def expected(low: int) -> dict[str, dict[Any, Any]]:
    """What has been told when the low watermark is at a time."""
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for row in ROWS:
        one = counts[row["key"], row["at"] // SIZE * SIZE]
        one[0], one[1] = one[0] + 1, one[1] + row["n"]
    counts = {name: one for name, one in counts.items() if name[1] + SIZE <= low}  # type: ignore[assignment]
    every: dict[int, int] = defaultdict(int)
    for (_, start), (_, total) in counts.items():
        every[start // 10_000 * 10_000] += total
    sessions = {}
    for key in {row["key"] for row in ROWS}:
        run: list[int] = []
        for at in [*sorted(row["at"] for row in ROWS if row["key"] == key), 1 << 60]:
            if run and at - run[-1] >= 900:
                sessions[key, run[0]] = (len(run), run[-1] + 900)
                run = []
            run.append(at)
    return {
        "pairs": pairs(low),
        "counts": dict(counts),
        "every": {start: total for start, total in every.items() if start + 10_000 <= low},
        "sessions": {name: n for name, (n, end) in sessions.items() if end <= low},
    }


def pairs(low: int) -> dict[Any, int]:
    even, odd = ([row for row in ROWS if row["n"] % 2 == rest] for rest in (0, 1))
    found = {(a["n"], b["n"]): max(a["at"], b["at"]) for a in even for b in odd if a["key"] == b["key"] and 0 <= b["at"] - a["at"] <= AFTER}
    lefts, rights = {a for a, _ in found}, {b for _, b in found}
    found |= {(a["n"], None): a["at"] + AFTER for a in even if a["n"] not in lefts and a["at"] + AFTER < low}
    return found | {(None, b["n"]): b["at"] for b in odd if b["n"] not in rights and b["at"] < low}


def published(work: Path) -> dict[str, dict[Any, Any]]:
    found: dict[str, dict[Any, Any]] = {"counts": {}, "every": {}, "sessions": {}, "pairs": {}}
    for stream, rows in found.items():
        for row in kit.rows_of(work / stream):
            value = row["value"]
            if stream == "pairs":
                pair = tuple(side and side["n"] for side in (value["left"], value["right"]))
                assert pair not in rows, f"{pair} twice"
                rows[pair] = row["timestamp"]
                continue
            name = value["start"] if stream == "every" else (value["key"], value["start"])
            assert name not in rows, f"{stream}: {name} twice"
            rows[name] = [value["n"], value["total"]] if stream == "counts" else value["total"] if stream == "every" else value["n"]
    return found


@pytest.mark.parametrize("build", [windows, deduplicated])
def test_tasks_and_drivers_killed_around_partial_results(tmp_path: Path, build: kit.Build) -> None:
    kit.write_rows(tmp_path, ROWS)
    armed = ms.testing.SparkFaults.armed
    tasks = [armed(point, epoch, worker=True, level=0, shard=epoch % 4) for epoch, point in enumerate(WORKERS, 1)]
    for epoch, point in enumerate(DRIVERS, len(WORKERS) + 1):
        kills = [f"{point}@{epoch}", *(tasks if point == DRIVERS[0] else ())]
        driver = kit.Driver(tmp_path, ",".join(kills), per_epoch=60, build=build, much=True)
        assert driver.wait() == -signal.SIGKILL
        assert kit.deaths(driver.pid) == len(kills) - 1, "as many tasks died as were to die"
    last = kit.Driver(tmp_path, per_epoch=60, build=build, much=True, settles=True)
    assert last.wait() == 0, last.said()
    low = max(row["at"] for row in ROWS) - BOUND
    found, wanted = published(tmp_path), expected(low)
    assert found == wanted
    assert all(len(rows) > 3 for rows in wanted.values())
