"""What a worker process keeps between tasks: as much as is in use, whatever pipelines come and go in a Spark session of months."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.engine import worker_process
from millstream.engine.spark import pickling
from millstream.engine.worker_process import RunPlace, WorkerProcess
from millstream.state.storage import LocalStorage


class Clock:
    """A clock that is moved by hand."""

    now = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def process(clock: Clock) -> Iterator[WorkerProcess]:
    made = WorkerProcess(clock)
    yield made
    made.close()
    assert sum(made.stats().values()) == 0


def held(process: WorkerProcess) -> tuple[int, int]:
    """Open files of this process, and everything that is kept."""
    return len(os.listdir("/proc/self/fd")), sum(process.stats().values())


def blob(name: str) -> bytes:
    p = ms.Pipeline(name)
    p.emit(p.inject("in", ms.sources.files("nowhere", schema="k string, at long"), timestamp="at"), ms.sinks.memory())
    return pickling.dumps(p.program())


def work(process: WorkerProcess, tmp_path: Path, pipeline: int, shards: int = 20) -> None:
    """A task of a pipeline of its own, on some shards."""
    place = RunPlace(str(tmp_path / f"c{pipeline}"), f"id{pipeline}", None, str(tmp_path / "state_caches"), shards)
    process.compiled(f"digest {pipeline}", blob(f"p{pipeline}"))
    cache = process.cache(place)
    for shard in range(shards):
        cache.filters("lineage", shard, "in")
        cache.view("lineage", shard, [], None).close()  # type: ignore[arg-type]
    process.end_task()


@pytest.mark.slow
def test_a_worker_keeps_what_is_in_use_and_closes_the_rest(tmp_path: Path, clock: Clock, process: WorkerProcess) -> None:
    work(process, tmp_path, 0)
    one = held(process)
    for pipeline in range(1, 30):
        clock.now += worker_process.IDLE / 2
        work(process, tmp_path, pipeline)
    files, kept = held(process)
    assert kept <= 3 * one[1] and files <= 3 * one[0], (one, files, kept)


def test_with_nothing_idle_all_of_it_is_kept(tmp_path: Path, clock: Clock, process: WorkerProcess) -> None:
    """The twin: what bounds the other test is the sweep, not something else."""
    before = held(process)
    for pipeline in range(10):
        work(process, tmp_path, pipeline)
    files, kept = held(process)
    assert kept - before[1] >= 10 * 41 and files - before[0] >= 10 * 20


def test_what_is_asked_for_again_and_again_is_never_let_go_of(tmp_path: Path, clock: Clock, process: WorkerProcess) -> None:
    cache = process.cache(RunPlace(str(tmp_path / "c"), "id", None, str(tmp_path / "state_caches"), 1))
    filters = cache.filters("lineage", 0, "in")
    for _ in range(50):
        clock.now += worker_process.IDLE * 0.9
        assert cache.filters("lineage", 0, "in") is filters
        process.end_task()


def test_pipelines_that_take_turns_are_compiled_once_each(process: WorkerProcess) -> None:
    blobs = {name: blob(name) for name in ("a", "b")}
    found = [process.compiled(name, blobs[name]) for _ in range(5) for name in ("a", "b")]
    assert len({id(one) for one in found}) == 2


def test_a_storage_with_other_options_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: WorkerProcess) -> None:
    """Keys that were rotated, another endpoint: the second run of a session must not go on with those of the first."""
    opened: list[Any] = []
    monkeypatch.setattr(worker_process, "open_storage", lambda url, options: (opened.append(options), LocalStorage(url))[1])
    for options in ({"key": "old", "region": "x"}, {"region": "x", "key": "old"}, {"key": "new", "region": "x"}, None):
        process.storage(RunPlace(str(tmp_path), "id", options, None, 1))
    assert opened == [{"key": "old", "region": "x"}, {"key": "new", "region": "x"}, None]


def test_more_than_the_most_of_a_kind_is_closed_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: WorkerProcess
) -> None:
    monkeypatch.setattr(worker_process, "MOST", 10)
    process.end_task()  # the next look is a while away
    work(process, tmp_path, 0, shards=25)
    assert process.stats()["filters"] == 25
    process._clock.now += worker_process.IDLE / 5  # type: ignore[attr-defined]
    process.end_task()
    assert process.stats()["filters"] == 10 and process.stats()["state_caches"] == 10
