"""The undisturbed run: the same pipeline on the same queries, in one process that nobody kills, without Spark and without a checkpoint.

    python -m demos.undisturbed OUTPUT      runs it, and prints a line for each file of queries

Rules
1. It reads the files that Spark reads, and runs the pipeline that Spark runs. Its rows are in `undisturbed/`, all at once when it has ended.
2. It runs beside the drivers, and gives way to them.
3. Two runs are the same if their rows are: stream by stream, as bags of key, timestamp and value. Epochs differ, so order may.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import millstream as ms
from demos.driver import pipeline
from demos.processes import end_with_parent
from demos.report import read_rows
from demos.traffic import QUERIES, read_truth
from demos.zeitgeist import STREAMS

FOLDER = "undisturbed"

_NICE = 15


def execute(output: Path) -> None:
    """Runs the pipeline on the local engine, an epoch per file."""
    import pyarrow.parquet

    runner = ms.testing.LocalRunner(pipeline(output, read_truth(output)))
    for file in sorted((output / QUERIES).glob("*.parquet")):
        runner.push("queries", *pyarrow.parquet.read_table(file).to_pylist())
        runner.epoch()
        print(file.name, flush=True)
    runner.drain()
    unfinished = output / f".{FOLDER}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    for folder, stream in STREAMS.items():
        (unfinished / folder).mkdir(parents=True)
        lines = [msgspec.json.encode({"key": key, "timestamp": at, "value": value}) + b"\n" for key, value, at in runner.output(stream)]
        (unfinished / folder / "rows.jsonl").write_bytes(b"".join(lines))
    os.rename(unfinished, output / FOLDER)


class Difference(msgspec.Struct, frozen=True):
    """How two runs differ in a stream: the rows that only one of them has, a row as often as it is missing in the other."""

    stream: str
    missing: list[bytes]
    extra: list[bytes]


def compare(output: Path, streams: Iterable[str] = STREAMS) -> tuple[int, list[Difference]]:
    """Holds the rows of the run that was killed against those of the undisturbed one: how many rows there are, and the streams that differ."""
    rows, found = 0, []
    for stream in streams:
        got, expected = _bag(read_rows(output / stream)), _bag(read_rows(output / FOLDER / stream))
        rows += expected.total()
        if got != expected:
            found.append(Difference(stream, sorted((expected - got).elements()), sorted((got - expected).elements())))
    return rows, found


def _bag(rows: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(msgspec.json.encode(row, order="sorted") for row in rows)


if __name__ == "__main__":
    end_with_parent()
    os.nice(_NICE)
    execute(Path(sys.argv[1]))
