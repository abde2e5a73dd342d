"""Spark jobs beside the epochs: compactions; the long job whose tasks take the slots of a resident run; a batch job over a whole checkpoint.

Rules
1. A compaction reads and writes the log only, so it may run anywhere; nothing waits for it, and one that dies is planned again.
2. The job of resident tasks is a plain one, no barrier: Spark retries one lost task and leaves the others alone.
3. A task that is replaced by plan leaves its input unread: to Spark it has ended well, and its Python process is not used again, so what it has leaked goes
   with it. All others read their input to its end.
4. The batch job has two steps: pieces of work give rows (part, key, sub-key, body); each part, also one without rows, is a task of the second step, and gets
   its rows ascending by key, then sub-key, as unsigned bytes. Both steps are streams: no task holds more than a batch of rows.
5. At the end of a run, what does not end in time, or has not even begun, is cancelled, so that no thread is in the JVM any more (`jvm`, rule 5).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from millstream.engine.compaction_orders import Compaction, CompactionOrder, carry_out
from millstream.engine.worker_process import PROCESS, RunPlace
from millstream.state.manifest import Manifest

from .error_text import reason
from .versions import to_partitions

_IN_TIME = 10.0  # seconds
_AT_ONCE = 0.2  # seconds
_BATCH = 5_000  # rows

PartRow = tuple[int, bytes, bytes, bytes]


def _cancel(spark: Any, group: str, has_ended: Callable[[float], Any], patience: float, limit: float) -> None:
    """Rule 5. has_ended: waits for the jobs of a group, for so many seconds at most. patience: how long before they are cancelled.
    limit: how long all of it may last."""
    until = time.monotonic() + limit
    while not has_ended(patience) and time.monotonic() < until:
        with contextlib.suppress(Exception):
            spark.sparkContext.cancelJobGroup(group)
        patience = _AT_ONCE  # it may have been on its way to Spark when it was cancelled


class SparkCompaction(Compaction):
    """Plans compactions, runs one job at a time in a thread, hands over the results."""

    def __init__(self, spark: Any, place: RunPlace, token: str) -> None:
        super().__init__(token)
        self._spark = spark
        self._place = msgspec.msgpack.encode(place)
        self._group = f"millstream compactions {token}"
        self._thread: threading.Thread | None = None
        self._began = 0
        self._is_ending = False

    def plan(self, manifest: Manifest) -> None:
        if self.since() is None and (orders := self._due(manifest)):
            self._began = manifest.epoch
            self._thread = threading.Thread(target=self._run, args=(orders,), name="millstream-compactions", daemon=True)
            self._thread.start()

    def _run(self, orders: Sequence[CompactionOrder]) -> None:
        place, work = self._place, [(msgspec.msgpack.encode(order),) for order in orders]

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            from millstream.engine.spark import background_jobs

            return background_jobs.compact_partition(place, batches)

        try:
            self._spark.sparkContext.setJobGroup(self._group, "compactions of Millstream", True)
            frame = self._spark.createDataFrame(work, "body binary").repartition(len(work))
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
        return None if self.wait(0) else self._began

    def wait(self, seconds: float) -> bool:
        """Waits for the job under way. Returns whether there is none any more."""
        thread = self._thread  # it may be replaced meanwhile, by one that has not been started
        if thread is not None and thread.is_alive():
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        self._is_ending = True
        _cancel(self._spark, self._group, self.wait, 0.0, _IN_TIME)


def compact_partition(place_bytes: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """In the task: compacts what the rows say."""
    import pyarrow as pa

    storage = PROCESS.storage(msgspec.msgpack.decode(place_bytes, type=RunPlace))
    for batch in batches:
        for body in batch.column(0).to_pylist():
            order = carry_out(storage, msgspec.msgpack.decode(body, type=CompactionOrder))
            yield pa.record_batch([pa.array([msgspec.msgpack.encode(order)], pa.binary())], names=["body"])


class ResidentJob:
    """The jobs of a run's tasks: one for all of them, and one for each that was replaced by plan."""

    def __init__(self, spark: Any, token: str) -> None:
        self._spark = spark
        self._group = f"millstream resident {token}"
        self._running = 0
        self._changed = threading.Condition()
        self._is_over = False

    def run(self, setup: bytes, job: int, slots: Sequence[int]) -> None:
        """Runs a job (its number) with a task for each of some slots until it ends (a thread of the driver's). Raises what Spark ended it with."""

        def sit(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext as SparkTask

            from millstream.engine.resident import worker

            context = SparkTask.get()
            assert context is not None
            if not worker.serve(setup, slots[context.partitionId()], job):
                for _ in batches:  # rule 3
                    pass
            yield from ()

        with self._changed:
            if self._is_over:
                return
            self._running += 1
        try:
            self._spark.sparkContext.setJobGroup(self._group, "resident tasks of Millstream", True)
            self._spark.range(0, len(slots), 1, len(slots)).mapInArrow(sit, "slot long").collect()
        except Exception as error:
            raise RuntimeError(reason(error)) from error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self, joined: bool) -> None:
        """Waits for the jobs, and cancels them. joined: all tasks have heard that the run is over; one that is still on its way never will."""
        with self._changed:
            self._is_over = True
        _cancel(self._spark, self._group, self._wait, _IN_TIME if joined else _AT_ONCE, 2 * _IN_TIME)

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)


def two_steps(
    spark: Any,
    pieces: Sequence[Any],
    first: Callable[[Any], Iterator[PartRow]],
    parts: int,
    second: Callable[[int, Iterable[tuple[bytes, bytes, bytes]]], Iterator[bytes]],
) -> list[bytes]:
    """Runs `first` on every piece and `second` on every part, and gives what the parts gave. Both functions travel to the workers."""

    def stated(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for at in batch.column(0).to_pylist():
                rows = first(pieces[at])
                while some := list(islice(rows, _BATCH)):
                    columns = zip(*some, strict=True)
                    types = (pa.int32(), pa.binary(), pa.binary(), pa.binary())
                    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
                    yield pa.record_batch(arrays, names=["part", "key", "sub", "body"])

    def judged(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext as SparkTask

        context = SparkTask.get()
        assert context is not None
        rows = (row for batch in batches for row in zip(*[batch.column(name).to_pylist() for name in ("key", "sub", "body")], strict=True))
        for body in second(context.partitionId(), rows):
            yield pa.record_batch([pa.array([body], pa.binary())], names=["body"])

    works = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    flow = works.mapInArrow(stated, "part int, key binary, sub binary, body binary")
    flow = to_partitions(flow, parts, "part").sortWithinPartitions("key", "sub")
    found: list[bytes] = flow.mapInArrow(judged, "body binary").toArrow().column("body").to_pylist()
    return found
