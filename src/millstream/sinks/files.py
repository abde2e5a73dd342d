"""A directory of files, exactly once: a plain reader never sees a row that is uncommitted or doubled.

Parts are staged under `_staging/` (which Spark and globs pass over) and moved to their final name, which follows from pipeline
stream, epoch and shard, after the manifest. The move is atomic per file; while it goes on, a reader may see some of an epoch's
files and not yet others.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.errors import DefinitionError, SinkError
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.state.storage import open_storage

_SUFFIX = {"json": "jsonl", "parquet": "parquet"}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class Files(Sink):
    """See `files`."""

    def __init__(self, path: str, format: str, schema: Any, options: dict[str, Any] | None) -> None:
        self.path = path
        self.format = format
        self.schema = schema
        self.options = options

    def describe(self) -> str:
        return f"{self.format} files in {self.path}"

    def check(self) -> None:
        if "://" not in self.path:
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError as error:
                raise SinkError(f"sinks.files({self.path!r}): cannot make that directory: {error}") from error

    def resolve(self, arrow_schema: Any) -> None:
        if isinstance(self.schema, str):
            self.schema = arrow_schema(self.schema)

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        data = self._json(rows, context) if self.format == "json" else self._parquet(rows, context)
        suffix = _SUFFIX[self.format]
        staged = f"_staging/{context.epoch:012d}-{context.label}-{context.attempt}.{suffix}"
        open_storage(self.path, self.options).put(staged, data)
        return {"staged": staged, "final": f"{context.label}-{context.epoch:010d}.{suffix}", "rows": len(rows)}

    def _json(self, rows: Sequence[SinkRow], context: TaskContext) -> bytes:
        encoder = msgspec.json.Encoder(enc_hook=_plain)
        try:
            return encoder.encode_lines(rows)
        except Exception as error:
            for row in rows:
                try:
                    encoder.encode(row)
                except Exception as culprit:
                    where = f"stream {context.emission!r} into {self.describe()}"
                    raise SinkError(f"{where}: key {row.key!r}: value {row.value!r} cannot be written: {culprit}") from error
            raise

    def _parquet(self, rows: Sequence[SinkRow], context: TaskContext) -> bytes:
        import pyarrow.parquet

        table = to_table(rows, self.schema, f"stream {context.emission!r} into {self.describe()}")
        sink = io.BytesIO()
        pyarrow.parquet.write_table(table, sink, compression="zstd")
        return sink.getvalue()

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        storage = open_storage(self.path, self.options)
        for part in parts:
            if not storage.publish(part["staged"], part["final"]):
                raise SinkError(
                    f"{self.path}/{part['final']} is there already, and not from this checkpoint: the directory holds another run's output. "
                    f"Give each checkpoint a directory of its own, or empty it."
                )

    def sweep(self, context: DriverContext, before_epoch: int, keep: Sequence[str]) -> None:
        storage = open_storage(self.path, self.options)
        mine = f"-{context.emission}-"
        gone = [
            name for name in storage.list("_staging")
            if name not in keep and mine in name and int(name.split("/")[1].split("-", 1)[0]) < before_epoch
        ]  # fmt: skip
        storage.delete(gone)


def to_table(rows: Sequence[SinkRow], schema: Any, where: str) -> Any:
    """The rows as an Arrow table: columns key, timestamp, value."""
    import pyarrow as pa

    columns = {"key": [r.key for r in rows], "timestamp": [r.timestamp for r in rows], "value": [r.value for r in rows]}
    try:
        if schema is None:
            return pa.table({name: pa.array(values) for name, values in columns.items()})
        unknown = [name for name in schema.names if name not in columns]
        if unknown:
            raise SinkError(f"{where}: the schema names the columns {unknown}, but a row has key, timestamp and value")
        return pa.table({field.name: pa.array(columns[field.name], type=field.type) for field in schema}, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        for row in rows:
            for name in columns:
                field = schema.field(name) if schema is not None and name in schema.names else None
                try:
                    pa.array([getattr(row, name)], type=field.type if field is not None else None)
                except Exception as culprit:
                    raise SinkError(f"{where}: key {row.key!r}: column {name!r}: {getattr(row, name)!r} does not fit: {culprit}") from error
        raise SinkError(f"{where}: the values of this epoch do not have one type: {error}. Say schema='key ..., timestamp long, value ...'.") from error


def files(path: str | os.PathLike[str], *, format: str = "json", schema: Any = None, storage_options: dict[str, Any] | None = None) -> Files:
    """JSON lines or Parquet files in a directory (or under s3://...), exactly once.

    Every row has `key`, `timestamp` and `value`. For Parquet say the schema (`"key string, timestamp long, value long"`), or the
    types are taken from each part's values.

    >>> files("counts/").describe()
    'json files in counts/'
    """
    if format not in _SUFFIX:
        raise DefinitionError(f"sinks.files(format={format!r}): use 'json' (lines) or 'parquet'")
    return Files(os.fspath(path), format, schema, storage_options)
