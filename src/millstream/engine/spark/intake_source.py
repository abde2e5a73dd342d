"""The intake as a Spark data source: what was pushed over the connector, as a streaming DataFrame.

Rules
1. An offset is `{"position": n}`: a position in the intake's log. What is between two of them never changes, so an epoch that Spark runs again has the
   same rows.
2. The reader runs in processes of its own, on the driver (offsets) and on the executors (rows). It reads the intake's files and talks to nobody.
3. `commit` does nothing. Spark calls it when the next epoch is planned, which may be long after; Millstream acknowledges right after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from millstream.connector.intake import reader as intake_reader
from millstream.errors import DefinitionError
from millstream.sources.pushed import PushedSource
from millstream.sources.pushed_reading import rows_between

from .versions import HAS_READ_LIMITS, ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

NAME = "millstream_intake"
DDL = PushedSource.schema


def load(spark: Any, folder: str, *, partitions: int | None, messages: int | None, size: int | None) -> Any:
    """The streaming DataFrame over an intake's folder (driver, once per run)."""
    if not HAS_READ_LIMITS:
        raise DefinitionError(
            "ms.sources.connector beside a source that only Spark can read needs Spark 4.2 or newer: give one of ms.sources instead of it"
        )
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


class IntakeSplit(InputPartition):  # type: ignore[misc]
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
        begin = start["position"]
        end = intake_reader.readable_end(self._folder, begin, self._target)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return {"position": intake_reader.until(self._folder, begin, end, messages, size)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"position": intake_reader.durable_end(self._folder) or 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[IntakeSplit]:
        """An epoch in parts (driver, once per epoch)."""
        return [IntakeSplit(*split) for split in intake_reader.split(self._folder, start["position"], end["position"], self._partitions)]

    def read(self, partition: IntakeSplit) -> Iterator[pa.RecordBatch]:
        """The rows of a part (executor, once per task)."""
        return rows_between(self._folder, partition.start, partition.end)
