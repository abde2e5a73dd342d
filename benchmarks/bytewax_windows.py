"""Counts per key and window, or per key and session, written for Bytewax by hand. Run by another Python, which has it: `benchmarks/operators.py --bytewax`.

Arguments: a folder of Parquet files, the gap of sessions in milliseconds (0: windows of a second), and where to write counts. The last line is JSON: seconds
and CPU-seconds from the first record on. Bytewax keeps its state in memory here and commits nothing. It is run as one worker process per core, as it is
meant to be; a file belongs to one of them.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
import bytewax.operators.windowing as win  # type: ignore[import-not-found]
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition  # type: ignore[import-not-found]
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.testing import run_main  # type: ignore[import-not-found]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
folder, gap, output = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


class Part(StatefulSourcePartition):  # type: ignore[misc]
    def __init__(self) -> None:
        self.batches = (batch for path in sorted(folder.glob("*.parquet")) for batch in pq.ParquetFile(path).iter_batches(10_000))

    def next_batch(self) -> list[Any]:
        batch = next(self.batches, None)
        if batch is None:
            raise StopIteration
        times = [EPOCH + timedelta(milliseconds=at) for at in batch.column("at").to_pylist()]
        return list(zip(batch.column("term").to_pylist(), times, strict=True))

    def snapshot(self) -> None:
        return None


class Files(FixedPartitionedSource):  # type: ignore[misc]
    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Part:
        return Part()


class Lines(StatelessSinkPartition):  # type: ignore[misc]
    def __init__(self) -> None:
        self.file = output.open("a")

    def write_batch(self, items: list[Any]) -> None:
        self.file.write("".join(f"{json.dumps([key, window, count])}\n" for key, (window, count) in items))

    def close(self) -> None:
        self.file.close()


class Counts(DynamicSink):  # type: ignore[misc]
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:
        return Lines()


flow = Dataflow("counts")
rows = op.input("in", flow, Files())
clock = win.EventClock(lambda row: row[1], wait_for_system_duration=timedelta(seconds=2))
windower = (
    win.SessionWindower(gap=timedelta(milliseconds=gap)) if gap else win.TumblingWindower(length=timedelta(seconds=1), align_to=EPOCH)
)
counted = win.count_window("count", rows, clock, windower, lambda row: row[0])
op.output("out", counted.down, Counts())
began, spent = time.perf_counter(), time.process_time()
run_main(flow)
print(json.dumps([time.perf_counter() - began, time.process_time() - spent]))
