"""`spark.readStream.format("millstream").load(FOLDER)`: what `ms.sinks.files` has published, each row once, as a stream or as a batch for another Spark job.
Spark finds it by the module `pyspark_millstream`.

Rules
1. An offset is `{"epoch": n}`: all epochs until then. Only complete ones are read (`sinks/published.py`), so what is between two offsets never changes.
2. Offsets never go back, also if somebody takes away files that were read.
3. Nothing is written, and no file is removed: that is for whoever owns the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from millstream.errors import DefinitionError
from millstream.sinks.published import COLUMNS, PublishedFile, PublishedFiles, batch, check_columns

from .state_format import check_options, store_options
from .versions import SupportsTriggerAvailableNow, arrow_schema

NAME = "millstream"
_OPTIONS = ("path", "stream", "pipeline", "checkpoint", "partitions", "storage_options")
_PARTITIONS = 16


class PublishedDataSource(DataSource):  # type: ignore[misc]
    """Made by Spark, wherever it needs it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return PublishedReader(dict(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return PublishedStreamReader(dict(self.options), schema)


class _Reading:
    """What batch and stream have in common. It travels to tasks, so what it keeps open is made where it is used."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        check_options(NAME, options, _OPTIONS)
        if "path" not in options:
            raise DefinitionError(f"format {NAME!r}: say which folder of ms.sinks.files: .load(FOLDER)")
        if not (partitions := options.get("partitions", str(_PARTITIONS))).isdigit() or not int(partitions):
            raise DefinitionError(f"format {NAME!r}: partitions={partitions!r}: give a number, at least 1")
        check_columns(schema.names)
        self._options, self._schema, self._most = options, schema, int(partitions)
        self._open()  # what is not there is said now

    def _open(self) -> PublishedFiles:
        named = {name: self._options.get(name) for name in ("stream", "pipeline", "checkpoint")}
        return PublishedFiles(self._options["path"], storage_options=store_options(self._options), **named)

    def _split(self, files: Sequence[PublishedFile]) -> list[InputPartition]:
        """Some files after each other for each partition: Spark has as many tasks as that."""
        each = -(-len(files) // self._most)
        return [InputPartition([file.name for file in files[at : at + each]]) for at in range(0, len(files), each or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        storage, schema = self._open().storage, arrow_schema(self._schema)
        for name in partition.value or ():
            found = batch(storage, name, schema)
            if found.num_rows:
                yield found


class PublishedReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """All that is complete when Spark plans the read."""

    def partitions(self) -> list[InputPartition]:
        files = self._open()
        return self._split(files.files(-1, files.complete())) or [InputPartition(None)]


class PublishedStreamReader(_Reading, SupportsTriggerAvailableNow, DataSourceStreamReader):  # type: ignore[misc]
    """Epoch after epoch."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        super().__init__(options, schema)
        self._reached = -1  # rule 2, before Spark 4.2, which does not say where it is
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": -1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open().complete()

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        complete = self._open().complete() if self._target is None else self._target
        self._reached = max(self._reached, complete, -1 if start is None else start["epoch"])
        return {"epoch": self._reached}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._reached = max(self._reached, end["epoch"])
        return self._split(self._open().files(start["epoch"], end["epoch"]))
