"""Compaction beside the epochs: a background thread runs a small Spark job that compacts what is due; the next manifest adopts the result.

A compaction reads and writes the log only, so it may run anywhere; nothing waits for it, and a compaction that dies is planned again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millstream.engine.compaction_orders import CompactionOrder, FinishedCompactions, carry_out
from millstream.engine.worker_process import PROCESS, RunPlace
from millstream.state.manifest import Manifest

_IN_TIME = 10.0  # seconds


class SparkCompaction(FinishedCompactions):
    """Plans compactions, runs one job at a time, hands over the results."""

    def __init__(self, spark: Any, place: RunPlace, token: str) -> None:
        super().__init__(token)
        self._spark = spark
        self._place = place
        self._group = f"millstream compactions {token}"
        self._thread: threading.Thread | None = None
        self._began = 0
        self._is_ending = False

    def plan(self, manifest: Manifest) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        orders = self._due(manifest)
        if orders:
            self._began = manifest.epoch
            self._thread = threading.Thread(target=self._run, args=(orders,), name="millstream-compactions", daemon=True)
            self._thread.start()

    def _run(self, orders: Sequence[CompactionOrder]) -> None:
        place = msgspec.msgpack.encode(self._place)
        work = [(msgspec.msgpack.encode(order),) for order in orders]

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            from millstream.engine.spark import compaction_job

            return compaction_job.run_partition(place, batches)

        try:
            spark = self._spark
            spark.sparkContext.setJobGroup(self._group, "compactions of Millstream", True)
            frame = spark.createDataFrame(work, "body binary").repartition(len(work))
            bodies = frame.mapInArrow(run, "body binary").toArrow().column("body").to_pylist()
        except Exception as error:
            if self._is_ending:
                return
            with self._lock:
                for order in orders:
                    self._fail(order, str(error).splitlines()[0] if str(error) else type(error).__name__)
            return
        with self._lock:
            for body in bodies:
                self._take_in(msgspec.msgpack.decode(body, type=CompactionOrder))

    def since(self) -> int | None:
        return self._began if self._thread is not None and self._thread.is_alive() else None

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """At the end of a run: cancels the job under way, which no manifest would adopt, so that its thread is not in the JVM any more (`jvm`, rule 5)."""
        self._is_ending = True
        until = time.monotonic() + _IN_TIME
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < until:
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._group)
            self.wait(0.2)  # it may have been on its way to Spark when it was cancelled


def run_partition(place_bytes: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """In the task: compacts what the rows say."""
    import pyarrow as pa

    storage = PROCESS.storage(msgspec.msgpack.decode(place_bytes, type=RunPlace))
    for batch in batches:
        for body in batch.column(0).to_pylist():
            order = carry_out(storage, msgspec.msgpack.decode(body, type=CompactionOrder))
            yield pa.record_batch([pa.array([msgspec.msgpack.encode(order)], pa.binary())], names=["body"])
