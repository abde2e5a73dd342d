"""The pipeline of the crash tests, and the program that runs it in a child process: `python job.py WORK [--shards N] [--master URL]`.

Three computations: one per term, one in the same task (no key of its own), one behind a shuffle with its state in a MapState.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream as ms


class BucketCounter(ms.Computation):
    """Records per term and second."""

    State = dict
    stalls: dict[str, tuple[str, float]] = {}  # record id: a marker's path, and the seconds that the first to make it waits

    def process_record(self, record: ms.Record) -> None:
        if record.id in self.stalls:
            marker, seconds = self.stalls[record.id]
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                time.sleep(seconds)
            except FileExistsError:
                pass
        second = record.timestamp - record.timestamp % 1000
        self.state[second] = self.state.get(second, 0) + 1
        self.set_timer("second", second + 1000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"second": timer.time - 1000, "count": self.state.pop(timer.time - 1000)})


@dataclass
class Seen:
    """State of Trend."""

    last: int = 0
    rises: int = 0


class Trend(ms.Computation):
    """Tells when a term's count rises. Runs in the counter's task."""

    State = Seen

    def process_record(self, record: ms.Record) -> None:
        count = record.value["count"]
        if count > self.state.last:
            self.state.rises += 1
            self.produce(self.state.rises)
        self.state.last = count


class Totals(ms.Computation):
    """Sums over groups of terms, behind a shuffle; a sub-row per second, and a sum three seconds later."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        second = record.value["second"]
        self.state[second] = self.state.get(second, 0) + record.value["count"]
        self.set_timer("sum", second + 4000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"second": timer.time - 4000, "total": self.state.pop(timer.time - 4000)})


def group_of(record: ms.Record) -> int:
    """Terms t0, t1, ... in three groups."""
    return int(record.key[1:]) % 3


def pipeline(work: Path, per_epoch: int = 1, production: str = ms.WEAK, foreign: bool = False) -> ms.Pipeline:
    """The graph. production: of the edge between the first task and the totals. foreign: Spark plans what is read."""
    p = ms.Pipeline("crash")
    source = ms.sources.files(work / "queries", schema="term string, at long, id string", format="json", max_files_per_epoch=per_epoch)
    queries = p.inject("queries", source.load if foreign else source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"))
    counts = p.compute(BucketCounter, queries, key="term", produces="counts")
    trends = p.compute(Trend, counts, produces="trends")
    totals = p.compute(Totals, counts.via(production), key=group_of, produces="totals")
    p.emit(counts, ms.sinks.files(work / "counts"))
    p.emit(trends, ms.sinks.files(work / "trends"))
    p.emit(totals, ms.sinks.files(work / "totals", format="parquet"))
    return p


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--master")
    parser.add_argument("--trigger")
    parser.add_argument("--production", default=ms.WEAK)
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--epochs", type=int, default=10**9)
    parser.add_argument("--stall", action="append", default=[], help="ID=SECONDS")
    parser.add_argument("--conf", action="append", default=[])
    options = parser.parse_args()
    for stall in options.stall:
        name, seconds = stall.split("=")
        BucketCounter.stalls[name] = (str(options.work / f"stalled-{name}"), float(seconds))
    spark: Any = None
    if options.master:
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder
        for conf in options.conf:
            builder = builder.config(*conf.split("=", 1))
        spark = (
            builder.master(options.master)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.cores.max", "2")
            .config("spark.executor.cores", "1")
            .config("spark.executor.memory", "512m")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
    p = pipeline(options.work, production=options.production, foreign=options.foreign)
    mode = {"resident": options.resident, "tasks": options.tasks}
    try:
        if options.trigger:
            handle = p.run(spark, checkpoint=options.work / "checkpoint", trigger=options.trigger, shards=options.shards, **mode)
            while handle.running and handle.status().epoch < options.epochs:
                time.sleep(0.05)
            handle.stop()
            handle.await_termination(1)
        else:
            checkpoint = options.work / "checkpoint"
            handle = p.run(spark, checkpoint=checkpoint, available_now=True, drain=options.drain, shards=options.shards, **mode)
            handle.await_termination()
    except ms.errors.MillstreamError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print(f"ended at epoch {handle.status().epoch}", flush=True)


if __name__ == "__main__":
    main()
