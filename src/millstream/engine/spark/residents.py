"""Spark's part in a resident run: one long job, whose tasks take seats and keep them. Spark places, starts and retries them, and ships the program.

Rules
1. A plain job, no barrier: Spark retries one lost task and leaves the others alone.
2. The job ends when the tasks do; whatever does not end in time, or has not even begun, is cancelled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from millstream import faults
from millstream.engine.resident.epochs import ResidentEpochs

from .reasons import reason

_IN_TIME = 10.0  # seconds
_AT_ONCE = 0.2  # seconds


class ResidentJob:
    """The job of a run's tasks. `setup` is set before it is run."""

    def __init__(self, spark: Any, seats: int, token: str) -> None:
        self._spark = spark
        self._seats = seats
        self._group = f"millstream resident {token}"
        self._idle = threading.Event()
        self._idle.set()
        self._is_over = False
        self.setup = b""

    def run(self) -> None:
        """Runs the job until it ends (a thread of the driver's). Raises what Spark ended it with."""
        setup = self.setup

        def sit(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext as SparkTask

            from millstream.engine.resident import worker

            context = SparkTask.get()
            assert context is not None
            for _ in batches:
                pass
            worker.serve(setup, context.partitionId())
            yield from ()

        self._idle.clear()
        try:
            if self._is_over:
                return
            context = self._spark.sparkContext
            context.setJobGroup(self._group, "resident tasks of Millstream", True)
            self._spark.range(0, self._seats, 1, self._seats).mapInArrow(sit, "seat long").collect()
        except Exception as error:
            raise RuntimeError(reason(error)) from error
        finally:
            self._idle.set()

    def end(self, seated: bool) -> None:
        """Waits for the job; cancels it if it does not end. seated: all tasks have heard that the run is over; one that is still on its way never will."""
        self._is_over = True
        until = time.monotonic() + 2 * _IN_TIME
        patience = _IN_TIME if seated else _AT_ONCE
        while not self._idle.wait(patience) and time.monotonic() < until:
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._group)
            patience = _AT_ONCE  # it may have been on its way to Spark when it was cancelled


class SparkResidentEpochs(ResidentEpochs):
    """Resident epochs in a Spark session."""

    spark: Any
    resident_job: ResidentJob

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.crash = faults.armed()

    def session(self) -> Any:
        return self.spark

    def point(self, name: str, epoch: int) -> None:
        faults.point(name, epoch, self.crash)

    def close(self) -> None:
        seated = not self.cluster.status().missing
        self.cluster.stop()
        self.resident_job.end(seated)
        super().close()
