"""What tests on Spark share: files as a source reads them, and a run to the end of its input."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import millstream as ms

BASE = 1_700_000_000_000

_WRITTEN = itertools.count()


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """A JSON file, behind all that were written before."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".{name}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    moment = 1_700_000_000 + next(_WRITTEN)  # Spark reads the oldest file first, and does not tell files of one millisecond apart
    os.utime(folder / f".{name}", (moment, moment))
    (folder / f".{name}").rename(folder / name)


def run(pipeline: ms.Pipeline, spark: Any, work: Path, **options: Any) -> Any:
    """A bounded run that has ended."""
    handle = pipeline.run(spark, checkpoint=work / "checkpoint", available_now=True, **options)
    handle.await_termination()
    return handle


def good(start: int = 0) -> list[dict[str, Any]]:
    """Five rows with which nothing is wrong."""
    return [{"k": "a", "n": 1, "at": BASE + start + i} for i in range(5)]


class Echo(ms.Computation):
    """Says what it got, and when its wall-clock timer came."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value)
        self.set_timer("later", self.now + 300, kind=ms.WALL_CLOCK)
        self.set_timer("window", record.timestamp + 10)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(f"{timer.kind} {timer.tag}")
