"""`spark.read.format("millstream-state").load(CHECKPOINT)`: what a computation of a checkpoint keeps, as a DataFrame. Spark finds it by the module
`pyspark_millstream_state`.

Rules
1. A read is of one epoch, which is chosen when Spark plans it. While the pipeline runs, that is the first of the newest second: it is kept for a minute, and
   the very newest may be gone before a task has opened it.
2. One partition reads one shard. What is wanted of it is said in words that travel (`Asked`); the readers are those of `readable`.
3. Filters `key = ...` and `key IN (...)` leave out shards and rows. Spark checks them again, so nothing depends on them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millstream.errors import DefinitionError
from millstream.readable.shard_rows import COLUMNS, OneShard, chosen, rows, shards_of
from millstream.state.heartbeat import last_sign
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import AsOf, CommittedState
from millstream.state.storage import open_storage

from .versions import arrow_schema

NAME = "millstream-state"
_OPTIONS = ("path", "computation", "what", "epoch", "key", "unpickle", "storage_options")
_BATCH = 5_000  # rows


class StateDataSource(DataSource):  # type: ignore[misc]
    """Made by Spark, wherever it needs it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS[StateRead(dict(self.options)).asked.what]

    def reader(self, schema: Any) -> DataSourceReader:
        return StateReader(dict(self.options), schema)


class StateRead:
    """What the options ask for, found in the checkpoint."""

    def __init__(self, options: dict[str, str]) -> None:
        check_options(NAME, options, _OPTIONS)
        if "path" not in options:
            raise DefinitionError(f"format {NAME!r}: say which checkpoint: .load(CHECKPOINT)")
        self.log = ManifestLog(open_storage(options["path"], store_options(options)))
        cut = _cut(CommittedState(self.log), options.get("epoch"))
        found = chosen(cut.manifest, options.get("computation"), options.get("what"), self.log.storage.url)
        keys = [options["key"]] if "key" in options else None
        self.asked, self.cut = found._replace(keys=keys, unpickle=options.get("unpickle", "").lower() == "true"), cut


def _cut(committed: CommittedState, epoch: str | None) -> AsOf:
    """Rule 1."""
    if epoch is not None and epoch != "latest":
        if not epoch.isdigit():
            raise DefinitionError(f"format {NAME!r}: epoch={epoch!r}: give a number, or leave it out for the latest")
        return committed.at(int(epoch))
    newest, sign = committed.newest(), last_sign(committed.log.storage)
    if sign is None or not sign.is_alive(int(time.time() * 1000)):
        return newest
    return committed.lasting(newest)


class _Pushed:
    """`pushFilters` of a reader for which it does not matter whether Spark asks. A method would make PySpark refuse the read where
    `spark.sql.python.filterPushdown.enabled` is not set, which is the default: it looks at `__func__`."""

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: Sequence[Any]) -> Sequence[Any]:
        for one in filters:
            kind = type(one).__name__  # before 4.1 there are no such classes
            if kind in ("EqualTo", "EqualNullSafe", "In") and one.attribute == ("key",):
                self._reader.narrow([value for value in (one.value if kind == "In" else [one.value]) if isinstance(value, str)])
        return filters


class StateReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        read = StateRead(options)
        if [f"{one.name} {one.dataType.simpleString()}" for one in schema] != COLUMNS[read.asked.what].split(", "):
            raise DefinitionError(f"format {NAME!r}: leave .schema(...) out: the columns are {COLUMNS[read.asked.what]}")
        self._where, self._store_options = read.log.storage.url, store_options(options)
        self._schema, self._epoch, self._asked = schema, read.cut.epoch, read.asked

    @property
    def pushFilters(self) -> Any:
        return _Pushed(self)

    def narrow(self, keys: list[str]) -> None:
        """Of the keys that were wanted so far, only these."""
        before = self._asked.keys
        self._asked = self._asked._replace(keys=[key for key in keys if before is None or key in before])

    def partitions(self) -> list[InputPartition]:
        with self._open() as cut:
            shards = shards_of(cut.computation(self._asked.computation), self._asked, cut)
        return [InputPartition(shard) for shard in shards] or [InputPartition(None)]

    def _open(self) -> AsOf:
        return CommittedState(ManifestLog(open_storage(self._where, self._store_options))).at(self._epoch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        schema = arrow_schema(self._schema)
        with self._open() as cut:
            found = rows(OneShard(cut, partition.value), self._asked)
            while some := list(islice(found, _BATCH)):
                columns = zip(*some, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
                )


def check_options(format: str, options: dict[str, str], known: Sequence[str]) -> None:
    """Says no to an option that nobody would hear."""
    if unknown := sorted(set(options) - set(known)):
        raise DefinitionError(f"format {format!r} has no option {unknown[0]!r}. It has: {', '.join(known)}.")


def store_options(options: dict[str, str]) -> dict[str, Any] | None:
    """Those of the object store's client: `storage_options`, a JSON object."""
    text = options.get("storage_options")
    try:
        found = None if text is None else json.loads(text)
    except ValueError as error:
        raise DefinitionError(f"storage_options={text!r:.60}: give a JSON object: {error}") from error
    if found is not None and not isinstance(found, dict):
        raise DefinitionError(f"storage_options={text!r:.60}: give a JSON object")
    return found
