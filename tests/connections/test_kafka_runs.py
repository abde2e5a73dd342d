"""From topics to topics: drivers, tasks and the broker are killed, and a client of others finds every record once and in order."""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafkajob
import kafkakit
import pytest

import millstream as ms
import taskkit as kit
from effort import first_seed
from millstream.faults import POINTS

_names = itertools.count()
MODES = pytest.mark.parametrize("resident", [True, False], ids=["resident", "micro-batch"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = kafkakit.start(tmp_path_factory.mktemp("kafka"))
    yield found
    found.kill()


@pytest.fixture
def work(broker: Any, tmp_path: Path) -> Path:
    kafkajob.prepare(tmp_path, broker.address, f"run-{next(_names)}")
    return tmp_path


def driver(work: Path, resident: bool = True, **options: Any) -> kit.Driver:
    return kit.Driver(work, resident=resident, **{"build": kafkajob.build, **options})


def faults_of(work: Path, rows: list[dict[str, Any]]) -> dict[str, int]:
    return kit.faults_of(work, rows, kafkajob.published)


@pytest.mark.crash
@pytest.mark.soak
@MODES
def test_a_driver_that_is_killed_at_every_point(work: Path, resident: bool) -> None:
    """Little is read by the driver, much by the tasks, in turns."""
    rows = kit.numbered(20 * len(POINTS))
    for at, point in enumerate(POINTS):
        kafkajob.give(work, rows[20 * at : 20 * at + 20])
        build = kafkajob.build_much if at % 2 else kafkajob.build
        last = max((int(path.stem) for path in (work / "checkpoint" / "manifests").glob("*.json")), default=-1)
        assert driver(work, resident, crash=f"{point}@{last + 1}", build=build).wait() == -signal.SIGKILL, point
    assert driver(work, resident).wait() == 0
    assert faults_of(work, rows) == {}


@pytest.mark.crash
def test_driver_tasks_and_broker_are_killed_at_any_moment(broker: Any, work: Path) -> None:
    rows = kit.numbered(600)
    dice, left = random.Random(first_seed()), len(rows)

    def produce() -> None:
        nonlocal left
        for at in range(0, len(rows), 30):
            kafkajob.give(work, rows[at : at + 30])
            left = len(rows) - at - 30

    producing = threading.Thread(target=produce)
    producing.start()
    for turn in range(3):
        one = driver(work)
        time.sleep(0.3 + dice.random())
        if turn == 1:
            broker.kill()
            time.sleep(dice.random())
            one.end()
            broker.start()
        one.end()
    producing.join()
    assert not left and driver(work).wait(90) == 0
    assert faults_of(work, rows) == {}


@pytest.mark.crash
def test_the_broker_is_killed_under_a_run_that_goes_on(broker: Any, work: Path) -> None:
    rows = kit.numbered(300)
    kafkajob.give(work, rows[:100])
    with kit.ResidentRun(work, build=kafkajob.build_much) as run:
        run.go()
        kit.until(lambda: run.reader.stats.backlog == 0 and run.epochs.latest is not None)
        broker.kill()
        time.sleep(0.5)
        broker.start()
        kafkajob.give(work, rows[100:])
        run.kill(0)
        kit.until(lambda: len(kafkajob.published(work / "groups")) >= 300 or run.error is not None, 60)
    assert faults_of(work, rows) == {}


def counting(broker: Any, work: Path) -> ms.Pipeline:
    address, name = kafkajob.place(work)
    p = ms.Pipeline("count")
    source = ms.sources.kafka(address, f"{name}-in", schema=kafkajob.COLUMNS, metadata=["partition"])
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.partitions(ms.watermarks.bounded("1s")))
    counts = rows.by("key").window(ms.windows.tumbling("1s")).reduce(n=ms.count(), total=ms.sum("n"), name="counts")
    p.emit(counts, ms.sinks.kafka(address, f"{name}-steps"))
    return p


@pytest.mark.spark
@MODES
def test_a_window_count_on_spark(broker: Any, work: Path, spark: Any, resident: bool) -> None:
    rows = kit.numbered(3_000)
    kafkajob.give(work, rows)
    counting(broker, work).run(spark, checkpoint=work / "checkpoint", resident=resident, available_now=True).await_termination()
    found = [json.loads(message.value()) for message in kafkakit.read(*_topic(work, "steps"))]
    assert sum(one["n"] for one in found) == 3_000 and sum(one["total"] for one in found) == sum(range(3_000))
    assert len(found) == 12 * 3  # keys, and seconds


def _topic(work: Path, what: str) -> tuple[str, str]:
    address, name = kafkajob.place(work)
    return address, f"{name}-{what}"
