"""Spark's part in a resident run: one long job, whose tasks take seats and keep them. Spark places, starts and retries them, and ships the program.

Rules
1. A plain job, no barrier: Spark retries one lost task and leaves the others alone.
2. A job ends when its tasks do; whatever does not end in time, or has not even begun, is cancelled.
3. A task that is replaced by plan leaves its input unread: to Spark it has ended well, and its Python process is not used again, so what it has leaked goes
   with it. All others read their input to its end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from millstream import faults
from millstream.engine.resident.runner import ResidentEpochs

from .error_text import reason

_IN_TIME = 10.0  # seconds
_AT_ONCE = 0.2  # seconds


class ResidentJob:
    """The jobs of a run's tasks: one for all of them, and one for each that was replaced by plan. `setup` is set before they are run."""

    def __init__(self, spark: Any, token: str) -> None:
        self._spark = spark
        self._group = f"millstream resident {token}"
        self._running = 0
        self._changed = threading.Condition()
        self._is_over = False
        self.setup = b""

    def run(self, job: int, seats: Sequence[int]) -> None:
        """Runs a job (its number) with a task for each of some seats until it ends (a thread of the driver's). Raises what Spark ended it with."""
        setup = self.setup

        def sit(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext as SparkTask

            from millstream.engine.resident import worker

            context = SparkTask.get()
            assert context is not None
            if not worker.serve(setup, seats[context.partitionId()], job):
                for _ in batches:  # rule 3
                    pass
            yield from ()

        with self._changed:
            if self._is_over:
                return
            self._running += 1
        try:
            context = self._spark.sparkContext
            context.setJobGroup(self._group, "resident tasks of Millstream", True)
            self._spark.range(0, len(seats), 1, len(seats)).mapInArrow(sit, "seat long").collect()
        except Exception as error:
            raise RuntimeError(reason(error)) from error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self, seated: bool) -> None:
        """Waits for the jobs; cancels them if they do not end. seated: all tasks have heard that the run is over; one that is still on its way never will."""
        with self._changed:
            self._is_over = True
        until = time.monotonic() + 2 * _IN_TIME
        patience = _IN_TIME if seated else _AT_ONCE
        while not self._has_ended(patience) and time.monotonic() < until:
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._group)
            patience = _AT_ONCE  # it may have been on its way to Spark when it was cancelled

    def _has_ended(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)


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
