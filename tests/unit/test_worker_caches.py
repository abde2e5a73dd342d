"""What a worker process keeps between tasks: as much as is in use, whatever pipelines come and go in a Spark session of months."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.engine import worker_process
from millstream.engine.spark import pickling
from millstream.engine.worker_process import ProcessCache, RunPlace, compiled_of, storage_of, task_ended
from millstream.state.storage import LocalStorage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is moved by hand."""

    class Clock:
        now = 1e6

        def monotonic(self) -> float:
            return self.now

    made = Clock()
    monkeypatch.setattr(worker_process, "time", made)
    monkeypatch.setattr(worker_process, "_swept", 0.0)
    yield made
    made.now += 10 * worker_process.IDLE
    task_ended()


def held() -> tuple[int, int]:
    """Open files of this process, and everything that is kept."""
    kept = (worker_process._COMPILED, worker_process._STORAGE, worker_process._FILTERS, worker_process._REPLICAS)
    return len(os.listdir("/proc/self/fd")), sum(len(cache) for cache in kept)  # type: ignore[arg-type]


def blob(name: str) -> bytes:
    p = ms.Pipeline(name)
    p.emit(p.inject("in", ms.sources.files("nowhere", schema="k string, at long"), timestamp="at"), ms.sinks.memory())
    return pickling.dumps(p.program())


def work(tmp_path: Path, pipeline: int, shards: int = 20) -> None:
    """A task of a pipeline of its own, on some shards."""
    place = RunPlace(str(tmp_path / f"c{pipeline}"), f"id{pipeline}", None, str(tmp_path / "replicas"), shards)
    compiled_of(f"digest {pipeline}", blob(f"p{pipeline}"))
    cache = ProcessCache(place)
    for shard in range(shards):
        cache.filters("lineage", shard, "in")
        cache.view("lineage", shard, [], None).close()  # type: ignore[arg-type]
    task_ended()


def test_a_worker_keeps_what_is_in_use_and_closes_the_rest(tmp_path: Path, clock: Any) -> None:
    work(tmp_path, 0)
    one = held()
    for pipeline in range(1, 30):
        clock.now += worker_process.IDLE / 2
        work(tmp_path, pipeline)
    files, kept = held()
    assert kept <= 3 * one[1] and files <= 3 * one[0], (one, files, kept)


def test_with_nothing_idle_all_of_it_is_kept(tmp_path: Path, clock: Any) -> None:
    """The twin: what bounds the other test is the sweep, not something else."""
    before = held()
    for pipeline in range(10):
        work(tmp_path, pipeline)
    files, kept = held()
    assert kept - before[1] >= 10 * 41 and files - before[0] >= 10 * 20


def test_what_is_asked_for_again_and_again_is_never_let_go_of(tmp_path: Path, clock: Any) -> None:
    cache = ProcessCache(RunPlace(str(tmp_path / "c"), "id", None, str(tmp_path / "replicas"), 1))
    filters = cache.filters("lineage", 0, "in")
    for _ in range(50):
        clock.now += worker_process.IDLE * 0.9
        assert cache.filters("lineage", 0, "in") is filters
        task_ended()


def test_pipelines_that_take_turns_are_compiled_once_each(clock: Any) -> None:
    blobs = {name: blob(name) for name in ("a", "b")}
    found = [compiled_of(name, blobs[name]) for _ in range(5) for name in ("a", "b")]
    assert len({id(one) for one in found}) == 2


def test_a_storage_with_other_options_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    """Keys that were rotated, another endpoint: the second run of a session must not go on with those of the first."""
    opened: list[Any] = []
    monkeypatch.setattr(worker_process, "open_storage", lambda url, options: (opened.append(options), LocalStorage(url))[1])
    for options in ({"key": "old", "region": "x"}, {"region": "x", "key": "old"}, {"key": "new", "region": "x"}, None):
        storage_of(RunPlace(str(tmp_path), "id", options, None, 1))
    assert opened == [{"key": "old", "region": "x"}, {"key": "new", "region": "x"}, None]
