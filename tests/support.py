"""What several tests need: input, a child process, the committed state of a checkpoint, the oracle."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import job
import millstream as ms
from computations import Sum
from millstream.core.dedup import IDS, Packed
from millstream.core.keyspace import ROW, decode_row
from millstream.simulation.simulated_run import InputPlan
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import merge
from millstream.state.storage import LocalStorage, open_storage
from sparklog import SparkLogDriver, SparkLogSimulation

HERE = Path(__file__).parent


def small_checkpoint(folder: Path) -> Path:
    """A checkpoint of some epochs in a folder, by the production protocol with simulated tasks."""
    pipeline = ms.Pipeline("small")
    source = ms.sources.files("in", schema="k string, n long, at long", format="json")
    stream = pipeline.inject("in", source, timestamp="at", watermark=ms.watermarks.bounded("1s"))
    pipeline.compute(Sum, stream, key="k", produces="sums")
    plan = InputPlan([[("in", {"k": f"k{n % 9}", "n": n, "at": 1_000 * at + n}) for n in range(40)] for at in range(1, 5)], [1, 2, 3, 4])
    simulation = SparkLogSimulation(pipeline.program(), plan, [], seed=1, shards=2, storage=LocalStorage(folder))
    ManifestLog(simulation.storage).identify(pipeline.name, 2, 2, ["in"])
    driver = SparkLogDriver(simulation)
    for number, rows in enumerate(plan.epochs):
        driver.run(rows, number)
    return folder


def queries(files: int, per_file: int, terms: int = 8, seed: int = 1) -> list[list[dict[str, Any]]]:
    """Records in files, out of order within a second."""
    rng = random.Random(seed)
    found, number = [], 0
    for _ in range(files):
        rows = []
        for _ in range(per_file):
            at = 1_700_000_000_000 + number * 20 + rng.randrange(1000)
            rows.append({"term": f"t{int(rng.random() ** 2 * terms)}", "at": at, "id": f"{number:06d}"})
            number += 1
        found.append(rows)
    return found


def write_queries(folder: Path, files: list[list[dict[str, Any]]]) -> None:
    """One JSON file each; modification times keep their order."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, rows in enumerate(files):
        path = folder / f"{index:04d}.json"
        hidden = folder / f".{index:04d}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + index, 1_700_000_000 + index))
        hidden.rename(path)


def run_job(work: Path, *args: str, crash: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The crash pipeline in a child process."""
    env = {**os.environ, "MILLSTREAM_CRASH": crash}
    command = [sys.executable, str(HERE / "job.py"), str(work), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def kill_at(work: Path, points: Sequence[str], *args: str, first: int = 0) -> None:
    """Runs of the crash pipeline on one checkpoint; in each the driver is killed one epoch and one point further on, beginning with some epoch."""
    for epoch, point in enumerate(points, first):
        done = run_job(work, *args, crash=f"{point}@{epoch}")
        assert done.returncode == -signal.SIGKILL, (point, done.stdout, done.stderr[-2000:])


def start_job(work: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The same, not waited for, in a process group of its own."""
    command = [sys.executable, str(HERE / "job.py"), str(work), *args]
    return subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def json_rows(folder: Path) -> list[tuple[Any, Any, int]]:
    """(key, value, timestamp) of a JSON-lines sink, files in order of epoch."""
    rows = []
    for path in sorted(folder.glob("*.jsonl"), key=lambda p: p.name.rsplit("-", 1)[1]):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.append((row["key"], row["value"], row["timestamp"]))
    return rows


def parquet_rows(folder: Path) -> list[tuple[Any, Any, int]]:
    """The same of a Parquet sink."""
    rows = []
    for path in sorted(folder.glob("*.parquet"), key=lambda p: p.name.rsplit("-", 1)[1]):
        rows += [(r["key"], r["value"], r["timestamp"]) for r in pq.ParquetFile(path).read().to_pylist()]
    return rows


def per_key(rows: list[tuple[Any, Any, int]]) -> dict[Any, list[tuple[str, int]]]:
    """Rows by key, in order: equal only if nothing is lost, doubled or out of order within a key."""
    found: dict[Any, list[tuple[str, int]]] = defaultdict(list)
    for key, value, timestamp in rows:
        found[key].append((json.dumps(value, sort_keys=True), timestamp))
    return dict(found)


def entries(checkpoint: Path) -> dict[str, dict[bytes, bytes | None]]:
    """Every committed entry of every computation."""
    storage = open_storage(checkpoint)
    manifest = ManifestLog(storage).latest()
    assert manifest is not None
    return {
        name: {
            key: value
            for shard in state.shards
            for key, value in merge(storage, shard.segments, drop_deleted=True)
            if not key.startswith(IDS)
        }
        for name, state in manifest.computations.items()
    }


def ids_held(checkpoint: Path) -> dict[str, list[bytes]]:
    """The ids that deduplication holds, per computation: each as key, separator, id."""
    storage = open_storage(checkpoint)
    manifest = ManifestLog(storage).latest()
    assert manifest is not None
    return {
        name: sorted(
            id
            for shard in state.shards
            for key, value in merge(storage, shard.segments, drop_deleted=True)
            if key.startswith(IDS) and key.endswith(b"i") and value
            for names in [Packed(value)]
            for id in map(names.__getitem__, range(names.count))
        )
        for name, state in manifest.computations.items()
    }


def rows_of(found: dict[bytes, bytes | None]) -> dict[bytes, Any]:
    """The rows among some entries, decoded."""
    return {key[1:]: decode_row(value) for key, value in found.items() if key.startswith(ROW) and value is not None}


def oracle(
    work: Path, files: list[list[dict[str, Any]]], drain: bool = False, shards: int = 2, production: str = ms.WEAK
) -> ms.testing.LocalRunner:
    """The crash pipeline on the local engine, with the same epochs."""
    runner = ms.testing.LocalRunner(job.pipeline(work, production=production), shards=shards)
    for rows in files:
        runner.push("queries", *rows)
        runner.epoch()
    runner.run()
    if drain:
        runner.drain()
    return runner


def assert_same(work: Path, runner: ms.testing.LocalRunner) -> None:
    """Outputs, state and timers of a checkpoint equal the oracle's: nothing lost, nothing doubled, order per key kept."""
    for stream, rows in (
        ("counts", json_rows(work / "counts")),
        ("trends", json_rows(work / "trends")),
        ("totals", parquet_rows(work / "totals")),
    ):
        expected = runner.output(stream)
        assert Counter((k, json.dumps(v, sort_keys=True), t) for k, v, t in rows) == Counter(
            (k, json.dumps(v, sort_keys=True), t) for k, v, t in expected
        ), stream
        assert per_key(rows) == per_key(expected), stream
    assert_same_state(work / "checkpoint", runner)


def assert_same_state(checkpoint: Path, runner: ms.testing.LocalRunner) -> None:
    """Every entry and every id held equals the oracle's."""
    engine = runner._engine
    for name, found in entries(checkpoint).items():
        expected_entries: dict[bytes, bytes] = {}
        for shard in range(engine.shards):
            expected_entries.update(engine.stores[name, shard].entries)
        assert found == expected_entries, name
    for name, held in ids_held(checkpoint).items():
        assert held == sorted(f"{key}\x1f{id}".encode() for (of, _), ids in engine.ids.items() if of == name for key, id in ids), name
