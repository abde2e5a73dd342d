"""The intake as a Spark data source: what was pushed over the connector, as a streaming DataFrame.

Rules
1. An offset is `{"position": n}`: a position in the intake's log. What is between two of them never changes, so an epoch that Spark runs again has the
   same rows.
2. The reader runs in processes of its own, on the driver (offsets) and on the executors (rows). It reads the intake's files and talks to nobody.
3. `read` uses the columns of the files in place, as Arrow batches; small batches are put together.
4. `commit` does nothing. Spark calls it when the next epoch is planned, which may be long after; Millstream acknowledges right after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.connector.intake import reader as intake_reader
from millstream.connector.intake.format.batch import Head, columns, decode_marks
from millstream.connector.intake.format.entries import MESSAGE
from millstream.errors import DamageError
from millstream.sources.pushed import PushedSource

NAME = "millstream_intake"
DDL = PushedSource.schema
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("id", pa.int64()),
        ("event_time", pa.int64()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("record_id", pa.string()),
    ]
)
_ROWS = 20_000
_BYTES = 8 << 20


def load(spark: Any, folder: str, *, partitions: int | None, messages: int | None, size: int | None) -> Any:
    """The streaming DataFrame over an intake's folder (driver, once per run)."""
    spark.dataSource.register(IntakeDataSource)
    reader = spark.readStream.format(NAME).option("partitions", partitions or spark.sparkContext.defaultParallelism)
    if messages is not None:
        reader = reader.option("maxMessages", messages)
    if size is not None:
        reader = reader.option("maxBytes", size)
    return reader.load(folder)


class IntakeDataSource(DataSource):  # type: ignore[misc]
    """Made by Spark, wherever it needs it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> IntakeStreamReader:
        return IntakeStreamReader(dict(self.options))


class IntakeStretch(InputPartition):  # type: ignore[misc]
    """The part of an epoch that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class IntakeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets on the driver, rows on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._folder = Path(options["path"])
        self._partitions = int(options.get("partitions", "1"))
        self._messages = int(options["maxmessages"]) if "maxmessages" in options else None
        self._bytes = int(options["maxbytes"]) if "maxbytes" in options else None
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """A new query takes what nobody has committed yet (driver, once)."""
        return {"position": intake_reader.acknowledged(self._folder).position}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._messages is not None:
            return ReadMaxRows(self._messages)
        return ReadAllAvailable() if self._bytes is None else ReadMaxBytes(self._bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = intake_reader.durable_end(self._folder) or 0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next epoch goes (driver, once per epoch)."""
        begin, end = start["position"], intake_reader.durable_end(self._folder) or 0
        if begin > end:
            raise DamageError(
                f"the checkpoint has read the intake {self._folder} up to {begin}, and it ends at {end}: it is not the one that was read. "
                f"Restore both from the same copy, or start with a new checkpoint."
            )
        if self._target is not None:
            end = max(begin, min(end, self._target))
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return {"position": intake_reader.until(self._folder, begin, end, messages, size)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"position": intake_reader.durable_end(self._folder) or 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[IntakeStretch]:
        """An epoch in parts (driver, once per epoch)."""
        return [IntakeStretch(*piece) for piece in intake_reader.split(self._folder, start["position"], end["position"], self._partitions)]

    def read(self, partition: IntakeStretch) -> Iterator[pa.RecordBatch]:
        """The rows of a part (executor, once per task)."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for head, batch in intake_reader.batches(self._folder, partition.start, partition.end):
            if head.messages:
                held.append(to_arrow(head, batch))
                rows, size = rows + head.messages, size + head.size
            if rows >= _ROWS or size >= _BYTES:
                yield _joined(held)
                held, rows, size = [], 0, 0
        if held:
            yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.Table.from_batches(held, SCHEMA).combine_chunks().to_batches()[0]


def to_arrow(head: Head, batch: bytes) -> pa.RecordBatch:
    """The messages of a batch; declared watermarks and ends of streams are not rows."""
    at, n, buffer = columns(head), head.entries, pa.py_buffer(batch)
    ids = pa.Array.from_buffers(pa.int64(), n, [None, buffer.slice(at.ids, 8 * n)])
    times = pa.Array.from_buffers(pa.int64(), n, [None, buffer.slice(at.times, 8 * n)])
    keys = pa.Array.from_buffers(pa.string(), n, [None, buffer.slice(at.key_ends, 4 * (n + 1)), buffer.slice(at.keys, head.keys)])
    payloads = pa.Array.from_buffers(
        pa.binary(), n, [None, buffer.slice(at.payload_ends, 4 * (n + 1)), buffer.slice(at.payloads, head.payloads)]
    )
    numbers = pa.Array.from_buffers(pa.int32(), n, [None, buffer.slice(at.streams, 4 * n)])
    names = pa.array([mark.name for mark in decode_marks(batch, head)], pa.string())
    streams = pa.DictionaryArray.from_arrays(numbers, names).dictionary_decode()
    keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, pa.string()), keys)
    record_ids = pc.binary_join_element_wise(streams, pc.cast(ids, pa.string()), "/")
    found = pa.RecordBatch.from_arrays([streams, ids, times, keys, payloads, record_ids], schema=SCHEMA)
    if head.messages < n:
        kinds = pa.Array.from_buffers(pa.uint8(), n, [None, buffer.slice(at.kinds, n)])
        found = found.filter(pc.equal(kinds, MESSAGE))
    return found
