"""Growth: the time of an epoch that touches 10,000 keys, with 10,000 keys stored and with 5 million; and a restart whose state cache is gone."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms
from benchmarks import jobs


class Count(ms.Computation):
    """Records per key; the state stays."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.state["last"] = record.timestamp


def write(folder: Path, index: int, keys: Any) -> None:
    """One file with a record per key."""
    at = 1_000_000_000_000 + index * 1000
    count = len(keys)
    table = pa.table(
        {
            "term": pa.array([f"key-{k:08d}" for k in keys.tolist()]),
            "at": pa.array(np.full(count, at)),
            "id": pa.array([f"{index}-{i}" for i in range(count)]),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f".{index:05d}")
    (folder / f".{index:05d}").rename(folder / f"{index:05d}.parquet")


def pipeline(folder: Path) -> ms.Pipeline:
    """Counting, nothing produced."""
    p = ms.Pipeline("growth")
    source = ms.sources.files(folder, schema=jobs.SCHEMA, format="parquet", max_files_per_epoch=1)
    p.compute(Count, p.inject("in", source, timestamp="at"), key="term")
    return p


def measure(spark: Any, work: Path, stored: int, epochs: int) -> tuple[float, Any]:
    """Stores the keys, lets compactions end, then touches 10,000 random ones per epoch. Median epoch in milliseconds, without the first two."""
    random = np.random.default_rng(1)
    index = 0
    print(f"storing {stored:,} keys", flush=True)
    for start in range(0, stored, 200_000):
        write(work / "in", index, np.arange(start, min(stored, start + 200_000)))
        index += 1
    began = time.perf_counter()
    handle = pipeline(work / "in").run(spark, checkpoint=work / "checkpoint", available_now=True, drain=False)
    handle.await_termination()
    handle._epochs.compaction.wait(300)
    print(f"{stored:>9,} keys stored in {time.perf_counter() - began:.1f} s", flush=True)
    for _ in range(epochs + 2):
        write(work / "in", index, random.choice(stored, size=10_000, replace=False))
        index += 1
    handle = pipeline(work / "in").run(spark, checkpoint=work / "checkpoint", available_now=True, drain=False)
    handle.await_termination()
    handle._epochs.compaction.wait(300)
    times = [e["millis"] for e in handle.epochs() if e["records"]][2:]
    print(f"{stored:>9,} keys stored: epochs that touch 10,000: {' '.join(f'{t:.0f}' for t in times)} ms", flush=True)
    return statistics.median(times), handle


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    spark = jobs.session()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        os.environ["MILLSTREAM_STATE_CACHE"] = str(root / "state_caches")
        few, _ = measure(spark, root / "few", 10_000, options.epochs)
        many, handle = measure(spark, root / "many", options.keys, options.epochs)
        print("starting again without the state cache", flush=True)
        shutil.rmtree(root / "state_caches")
        write(root / "many" / "in", 99_999, np.arange(10_000))
        handle = pipeline(root / "many" / "in").run(spark, checkpoint=root / "many" / "checkpoint", available_now=True, drain=False)
        handle.await_termination()
        restart = next(e["millis"] for e in handle.epochs() if e["records"])
        reading = read_log(root / "many" / "checkpoint")
        size = sum(c.log_bytes for c in handle.status().computations)
    print(
        f"restart with the state cache gone: first epoch {restart / 1000:.1f} s; reading the log's {size / 1e6:.0f} MB once, in one process: {reading:.1f} s"
    )
    result = {"growth_5m_vs_10k": round(many / few, 2), "restart_vs_reading_once": round(restart / 1000 / reading, 2)}
    print(json.dumps(result))
    return result


def read_log(checkpoint: Path) -> float:
    """Seconds to read and check every entry of the newest state once."""
    from millstream.state.manifest_log import ManifestLog
    from millstream.state.segment import read_blocks
    from millstream.state.storage import open_storage

    storage = open_storage(checkpoint)
    manifest = ManifestLog(storage).latest()
    assert manifest is not None
    began = time.perf_counter()
    for state in manifest.computations.values():
        for shard in state.shards:
            for ref in shard.segments:
                for _ in read_blocks(storage, ref):
                    pass
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
