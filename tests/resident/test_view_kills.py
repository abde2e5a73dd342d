"""Views under kill -9: map, red Sue, pub Sue, red Joe, pub Joe can die, before and after they save. After every epoch, also those in which
somebody died, what is published is what SQL says of the posts up to there."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import duckdb
import namesjob
import pytest

import millstream as ms
import taskkit as kit
from millstream.core.keys import key_bytes, shard_of

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
NAMES = ["Sue", "Joe", "Tod", "Bob", "Sam"]
SUE, JOE, SEVEN = (shard_of(key_bytes(key), namesjob.SHARDS) for key in ("Sue", "Joe", 7))
EPOCHS = 12
PER_EPOCH = 21  # posts

#: Who dies in which epoch: first workers, each in an epoch of its own, then drivers, each of which ends its run.
WORKERS = [
    ("task.3-shuffled", {"level": 0, "shard": SEVEN}),  # map, before it saves
    ("task.4-staged", {"level": 0, "shard": SEVEN}),  # and after
    ("task.3-shuffled", {"level": 1, "shard": SUE}),  # red Sue
    ("task.4-staged", {"level": 1, "shard": SUE}),
    ("task.3-shuffled", {"level": 1, "shard": JOE}),  # red Joe
    ("task.4-staged", {"level": 1, "shard": JOE}),
]
DRIVERS = [
    "epoch.5-checked",  # all is reduced, nothing is saved
    "epoch.6-committed",  # pub Sue: all is saved, nothing is told
    "epoch.7-publishing",  # pub Joe: one sink has told, the next has not
]


def write(work: Path, epoch: int, dice: random.Random) -> None:
    """The posts of an epoch: user 7 is Sue, then Joe, then Sue again; others do as they like, and some posts are stale."""
    rows = [{"id": 7, "name": "Sue" if epoch % 2 else "Joe", "gone": False, "ts": 100 * epoch + 99}]
    for at in range(PER_EPOCH - 1):
        ts = 100 * epoch + at if epoch == 0 or dice.random() < 0.9 else 100 * dice.randrange(epoch) + 50 + at
        rows.append(
            {"id": dice.choice([1, 2, 3, 4, 5, 6, 8, 9, 10, 11]), "name": dice.choice(NAMES), "gone": dice.random() < 0.2, "ts": ts}
        )
    path = work / "posts" / f"{epoch:03}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))  # Spark reads the oldest first


def feed(work: Path) -> None:
    dice = random.Random(5)
    (work / "posts").mkdir()
    for epoch in range(EPOCHS):
        write(work, epoch, dice)


def judged(work: Path, epochs: int) -> dict[str, dict[Any, Any]]:
    """What DuckDB says of the first files."""
    files = [str(work / "posts" / f"{epoch:03}.json") for epoch in range(epochs)]
    columns = "{id: 'bigint', name: 'varchar', gone: 'boolean', ts: 'bigint'}"
    with duckdb.connect() as db:
        db.execute(
            f"create view users as select * from (select *, row_number() over (partition by id order by ts desc, gone desc, name desc) as place "
            f"from read_json({files}, columns={columns})) where place = 1 and not gone"
        )
        names = dict(db.execute("select name, count(*) from users group by name").fetchall())
        users = dict(db.execute("select id, name from users").fetchall())
    sizes: dict[str, int] = {}
    for n in names.values():
        sizes["rare" if n < 4 else "common"] = sizes.get("rare" if n < 4 else "common", 0) + n
    return {"users": users, "names": names, "sizes": sizes}


def published(work: Path, relation: str) -> dict[int, dict[Any, Any]]:
    """What the published changes have led to, epoch by epoch; every prev is the next before it."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in (work / relation).glob("*.jsonl"):
        found.setdefault(int(path.stem[-10:]), []).extend(json.loads(line) for line in path.read_text().splitlines())
    now: dict[Any, Any] = {}
    after = {}
    for epoch in range(EPOCHS):
        for row in found.get(epoch, ()):
            change = row["value"]
            assert now.get(row["key"]) == change["prev"] != change["next"], (relation, epoch, row)
            now[row["key"]] = change["next"]
        after[epoch] = {key: value for key, value in now.items() if value is not None}
    assert not [epoch for epoch in found if epoch >= EPOCHS], "nothing is told without input"
    return after


def people(work: Path) -> tuple[ms.Pipeline, kit.Given]:
    source = kit.Given(namesjob.SCHEMA)
    return namesjob.pipeline(work, source), source


def worker_kills() -> list[str]:
    armed = ms.testing.SparkFaults.armed
    return [armed(point, epoch, worker=True, **where) for epoch, (point, where) in enumerate(WORKERS, 1)]


def check(work: Path) -> None:
    for relation in ("users", "names", "sizes"):
        told = published(work, relation)
        for epoch in range(EPOCHS):
            expected = judged(work, epoch + 1)[relation]
            got = {key: value["name"] for key, value in told[epoch].items()} if relation == "users" else told[epoch]
            assert got == expected, (relation, epoch)


def test_workers_and_drivers_killed_wherever_a_change_can_be_cut_in_two(tmp_path: Path) -> None:
    assert len({SUE, JOE, SEVEN}) == 3, "they lie in different shards"
    feed(tmp_path)
    kit.write_rows(tmp_path, [json.loads(row) for file in sorted((tmp_path / "posts").iterdir()) for row in file.read_text().splitlines()])
    for epoch, point in enumerate(DRIVERS, len(WORKERS) + 1):
        kills = [f"{point}@{epoch}", *(worker_kills() if point == DRIVERS[0] else ())]
        driver = kit.Driver(tmp_path, ",".join(kills), per_epoch=PER_EPOCH, build=people, shards=namesjob.SHARDS)
        assert driver.wait() == -signal.SIGKILL
        assert kit.deaths(driver.pid) == len(kills) - 1
    assert kit.Driver(tmp_path, per_epoch=PER_EPOCH, build=people, shards=namesjob.SHARDS).wait() == 0
    check(tmp_path)


@pytest.mark.spark
@pytest.mark.soak
def test_workers_and_drivers_killed_on_spark(tmp_path: Path) -> None:
    feed(tmp_path)
    faults = ms.testing.SparkFaults(HERE / "namesjob.py", str(tmp_path))
    child = faults.start(",".join([*worker_kills(), faults.armed(DRIVERS[0], len(WORKERS) + 1)]))
    said = child.communicate(timeout=200)[0]
    faults.kill(child)
    assert child.returncode == -signal.SIGKILL, said[-3000:].decode()
    assert kit.deaths(child.pid) == len(WORKERS)
    for epoch, point in enumerate(DRIVERS[1:], len(WORKERS) + 2):
        faults.kill_at(point, epoch)
    faults.run()
    check(tmp_path)
