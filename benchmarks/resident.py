"""A resident run without Spark: the driver in this process, its tasks in processes of their own, and the CPU that each has taken so far.

Rules
1. It is put together as a run on Spark is, by `assemble`. Spark would only start the processes, and do nothing afterwards.
2. An epoch reads one batch of rows, which is in memory: what reading costs is not in it. Rows are keyed by the driver, and travel with the orders.
3. CPU is that of a process's own clock, of all its threads.
4. What is used of Millstream here exists in every version that has resident tasks: other versions are measured with it, too.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import millstream as ms
from millstream.engine.columns.keying import Keying
from millstream.engine.resident import worker
from millstream.engine.resident.runner import assemble
from millstream.engine.spark import pickling
from millstream.engine.spark.run_builder import arrow_schema
from millstream.engine.trigger import Trigger
from millstream.engine.worker_process import RunPlace
from millstream.sources.base import Source
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

_processes = multiprocessing.get_context("spawn")


class BatchReader(PlannedReader):
    """Batches in memory, one an epoch."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.schema = batches[0].schema
        self._batches = batches

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema}

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        at = int(start)
        return SplitPlan(start) if at == len(self._batches) else SplitPlan(str(at + 1), [at], 1)

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        yield self._batches[split]

    def wake(self, call: Callable[[], None]) -> bool:
        return True


class Batches(Source):
    """The source of those."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._reader = BatchReader(batches)

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Any, unreadable: str | None = None) -> PlannedReader:
        return self._reader


class TaskProcesses:
    """In Spark's place: a process per slot."""

    def __init__(self) -> None:
        self.setup = b""
        self.running: list[Any] = []

    def begin(self, job: int, slots: Sequence[int]) -> None:
        self.running = [_processes.Process(target=worker.serve, args=(self.setup, slot, job), daemon=True) for slot in slots]
        for process in self.running:
            process.start()
        for process in self.running:
            process.join()


def epochs(
    pipeline: ms.Pipeline,
    work: Path,
    *,
    slots: int,
    shards: int,
    caches: Path,
    beside: Callable[[Any], AbstractContextManager[None]] = nullcontext,
) -> Iterator[tuple[float, float]]:
    """Runs an epoch for each batch; after each, the CPU seconds that the driver and that the tasks have taken so far. beside: what goes on beside them, with
    the driver's epochs."""
    program = pipeline.program()
    ((name, injector),) = program.topology.injectors.items()
    for emission in program.topology.emissions:
        emission.sink.by_default(0)
        emission.sink.check()
    reader = injector.source.reader(arrow_schema)
    log = ManifestLog(open_storage(str(work / "checkpoint")))
    identity = log.identify(program.name, shards, shards, [name])
    keying = Keying(program, injector, reader.schema, shards, None)
    tasks = TaskProcesses()
    parts = assemble(
        program,
        log=log,
        latest=None,
        token=log.runs.claim(None),
        place=RunPlace(str(work / "checkpoint"), identity.id, None, str(caches), shards, [keying.layout]),
        slots=slots,
        readers={name: reader},
        keyings={name: keying},
        host="127.0.0.1",
        remote=False,
        bounded=False,
        pickled=pickling.dumps,
    )
    tasks.setup = msgspec.msgpack.encode(parts.setup)
    trigger = Trigger(parts.epochs, parts.planner, bounded=False, every=0.0, eager=False)
    parts.start(tasks.begin)
    try:
        parts.epochs.resume()
        with beside(parts.epochs):
            while trigger.turn():
                yield time.process_time(), sum(map(_clock, tasks.running))
    finally:
        parts.epochs.close()
        for process in tasks.running:
            process.join(30)


def _clock(process: Any) -> float:
    return time.clock_gettime((~process.pid << 3) | 2)  # what clock_getcpuclockid gives for a process: Linux only
