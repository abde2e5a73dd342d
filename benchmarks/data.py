"""The input of the benchmarks: records of Zipf-distributed keys over event time, slightly out of order, in Parquet files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RATE = 20_000  # records per second of event time
DELAY = 2_000  # milliseconds that a watermark waits; records are out of order by half of that at most
START = 1_000_000_000_000


def make(folder: Path, files: int, per_file: int, keys: int, seed: int = 7, repeated: float = 0.0) -> dict[tuple[str, int], int]:
    """Writes the files and returns the true count of every (key, second). repeated: the share of records that are brought a second time,
    in the same file; they are not in the count, and come on top."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, keys + 1) ** 1.0
    weights /= weights.sum()
    truth: dict[tuple[str, int], int] = {}
    number = 0
    for index in range(files):
        key = random.choice(keys, size=per_file, p=weights)
        at = (np.arange(number, number + per_file) * 1000) // RATE + START
        at = at - random.integers(0, DELAY, size=per_file) // 2
        ids = np.arange(number, number + per_file)
        number += per_file
        table = pa.table(
            {
                "term": pa.array([f"term-{k:05d}" for k in key.tolist()]),
                "at": pa.array(at),
                "id": pa.array([f"{i:09d}" for i in ids.tolist()]),
            }
        )
        if repeated:
            again = random.choice(per_file, size=int(per_file * repeated), replace=False)
            table = pa.concat_tables([table, table.take(pa.array(again))])
        pq.write_table(table, folder / f"part-{index:05d}.parquet")
        pairs, counts = np.unique(key * 10_000_000 + (at // 1000 - 999_999_000), return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            name = (f"term-{pair // 10_000_000:05d}", (pair % 10_000_000 + 999_999_000) * 1000)
            truth[name] = truth.get(name, 0) + count
    return truth


def complete(files: int, per_file: int) -> int:
    """The time up to which Spark must have told of every second when it has read so many files: its watermark follows one epoch behind, by `DELAY`."""
    return START + (files - 1) * per_file * 1000 // RATE - DELAY // 2 - DELAY


def read_counts(folder: Path, pattern: str = "*.jsonl") -> dict[tuple[str, int], int]:
    """What a folder of JSON lines holds: {(key, second): count}; a doubled row is an error."""
    found: dict[tuple[str, int], int] = {}
    for path in sorted(folder.glob(pattern)):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            value = row["value"]
            name = (
                (row["key"], row["timestamp"] - 1000) if isinstance(value, int) else (value["term"], value["start"])
            )  # of a hook, or of an operator
            assert name not in found, f"{name} twice"
            found[name] = value if isinstance(value, int) else value["count"]
    return found
