"""Tables and views on columns under kill -9, in real processes: epochs large enough for columns, tasks that die before and after they have staged, and
drivers around the commit. Then the views are what plain Python says of the posts, and every published change follows from the one before."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
import taskkit as kit
from millstream.columnviews.column_step import ColumnStep
from millstream.sinks.files import FileSink

pytestmark = pytest.mark.crash

EPOCH, USERS, SHARDS = 600, 700, 4
WORKERS = ["task.3-shuffled", "task.4-staging", "task.4-staged"]
DRIVERS = ["epoch.5-checked", "epoch.6-committed", "epoch.7-publishing"]


def posts() -> list[dict[str, Any]]:
    """Users who change their names; one name is common, so its group is a tree. Some posts are stale, some users go."""
    dice = random.Random(11)
    names = [f"n{at}" for at in range(200)] + ["Sue"] * 300
    count = EPOCH * (len(WORKERS) + len(DRIVERS) + 2)
    return [
        {
            "id": dice.randrange(USERS),
            "name": dice.choice(names),
            "gone": dice.random() < 0.05,
            "ts": at if dice.random() < 0.97 else dice.randrange(at + 1),
        }
        for at in range(count)
    ]


def people(work: Path) -> tuple[ms.Pipeline, kit.Given]:
    p, source = ms.Pipeline("people"), kit.Given("id long, name string, gone boolean, ts long")
    users = p.table("users", source, key="id", version="ts", deleted="gone")
    for name, origins in (("names", True), ("lean", False)):
        p.publish(users.by("name").reduce(ms.count(), name=name, origins=origins), FileSink(work / name, roll=0))
    return p, source


def expected(rows: list[dict[str, Any]]) -> dict[str, int]:
    latest: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        said = (row["ts"], row["gone"], row["name"])
        latest[row["id"]] = max(latest.get(row["id"], said), said)
    return dict(Counter(name for _, gone, name in latest.values() if not gone))


def led_to(folder: Path) -> dict[str, int]:
    """What the published changes lead to: every prev is the next before it."""
    now: dict[str, Any] = {}
    for row in kit.rows_of(folder):
        assert now.get(row["key"]) == row["value"]["prev"] != row["value"]["next"], row
        now[row["key"]] = row["value"]["next"]
    return {name: count for name, count in now.items() if count is not None}


def test_tasks_and_drivers_killed_in_epochs_on_columns(tmp_path: Path) -> None:
    assert ColumnStep.few < EPOCH // SHARDS
    rows = posts()
    kit.write_rows(tmp_path, rows)
    armed = ms.testing.SparkFaults.armed
    tasks = [armed(point, epoch, worker=True, level=epoch % 2, shard=epoch % SHARDS) for epoch, point in enumerate(WORKERS, 1)]
    for epoch, point in enumerate(DRIVERS, len(WORKERS) + 1):
        kills = [f"{point}@{epoch}", *(tasks if point == DRIVERS[0] else ())]
        driver = kit.Driver(tmp_path, ",".join(kills), per_epoch=EPOCH, build=people, much=True, shards=SHARDS)
        assert driver.wait() == -signal.SIGKILL
        assert kit.deaths(driver.pid) == len(kills) - 1, "as many tasks died as were to die"
    last = kit.Driver(tmp_path, per_epoch=EPOCH, build=people, much=True, shards=SHARDS, settles=True)
    assert last.wait() == 0, last.said()
    wanted = expected(rows)
    assert wanted["Sue"] > 200
    for name in ("names", "lean"):
        assert led_to(tmp_path / name) == wanted
