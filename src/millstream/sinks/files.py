"""A directory of files, exactly once: a plain reader never sees a row that is uncommitted or doubled.

Parts are staged under `_staging/` (which Spark and globs pass over) and moved after the manifest, each in one step, to a name that follows from pipeline,
stream, epoch and shard. In a resident run small parts lie in the units of the tasks, where they are committed, and are published as one file of the epoch,
or of several (`roll`), named after the epoch in which that was decided. Parts of other types, or in another format, become more than one. Files appear in
the order of the epochs in their names: readers go by it (`published`).
"""

from __future__ import annotations

import base64
import io
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeVar

import msgspec

from millstream.core.time import Duration
from millstream.errors import DefinitionError, SinkError
from millstream.sinks.base import DriverContext, IdentifiedRow, Part, ResultRows, Sink, SinkRow, TaskContext, part_bytes, roll_millis
from millstream.state.compaction import made_in
from millstream.state.storage import LocalStorage, Storage, open_storage

#: In the place of a shard, in the name of a file that has the rows of all; no shard has this number, nor one that is not far below.
ROLLED = 9999
_SUFFIX = {"json": "jsonl", "parquet": "parquet"}
_PARQUET = b"PAR1"  # how such a file begins

T = TypeVar("T")


def plain(value: Any) -> Any:
    """What JSON makes of a value that it does not know."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_encoder = msgspec.json.Encoder(enc_hook=plain)


def json_bytes(value: Any) -> bytes:
    """A value, or a row, as JSON. Raises ValueError if it has a float that JSON cannot say, of which the encoder has made a null."""
    data = _encoder.encode(value)
    if b"null" in data and _has_no_number(value.value if isinstance(value, SinkRow) else value):
        raise ValueError("JSON has no NaN and no infinity, and null would say something else. Produce None or a text in its place")
    return data


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_no_number, value))


def encode_each(sink: Sink, context: TaskContext, rows: Sequence[SinkRow], encode: Callable[[SinkRow], T]) -> list[T]:
    """What the rows become. The error names the row that cannot be written."""
    found = []
    for row in rows:
        try:
            found.append(encode(row))
        except Exception as error:
            where = f"stream {context.emission!r} into {sink.describe()}"
            raise SinkError(f"{where}: key {row.key!r}: value {row.value!r:.200} cannot be written: {error}") from error
    return found


class FileSink(Sink):
    """JSON lines or Parquet files in a directory (or under s3://, gs://, az://...), exactly once.

    Every row has `key`, `timestamp` and `value`, and `id` with `emit(..., ids=True)`. For Parquet say the schema (`"key string, timestamp long, value long"`),
    or the types are taken from each part's values. nan: JSON has no NaN and no infinity, so a row with one is an error; "null" writes null in its place.
    roll: how long rows that are committed wait, to be published as one file for many epochs; 0: each epoch has files of its own. By default 0 for
    micro-batches, and "5s" for resident runs, which have tens of epochs a second.

    >>> files("/data/counts").describe()
    'json files in /data/counts'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "json",
        schema: Any = None,
        storage_options: dict[str, Any] | None = None,
        nan: str = "error",
        roll: Duration | None = None,
    ) -> None:
        if format not in _SUFFIX:
            raise DefinitionError(f"sinks.files(format={format!r}): use 'json' (lines) or 'parquet'")
        if nan not in ("error", "null"):
            raise DefinitionError(f"sinks.files(nan={nan!r}): use 'error' or 'null'")
        text = os.fspath(path)
        self.path = text if "://" in text else os.path.abspath(text)
        self.format, self.schema, self.options, self.nan = format, schema, storage_options, nan
        self.file_format = format
        self.roll = roll_millis(roll)
        self.roll_millis = self.roll or 0
        self.in_units = self.roll_millis > 0

    def by_default(self, roll_millis: int) -> None:
        self.roll_millis = roll_millis if self.roll is None else self.roll
        self.in_units = roll_millis > 0 or self.roll_millis > 0

    def describe(self) -> str:
        return f"{self.format} files in {self.path}"

    def place(self) -> str:
        return self.path + "/"

    def read(self, pipeline: str, emission: str) -> list[SinkRow]:
        storage = open_storage(self.path, self.options)
        mine = re.compile(rf"{re.escape(pipeline)}-{re.escape(emission)}-(\d+)-(\d+)\.{_SUFFIX[self.format]}$")
        found = [(match.group(2), match.group(1), name) for name in storage.list("") if (match := mine.match(name))]
        rows: list[SinkRow] = []
        for _, _, name in sorted(found):
            data = storage.read(name)
            if self.format == "json":
                rows += [msgspec.json.decode(line, type=SinkRow) for line in data.splitlines()]
            else:
                import pyarrow.parquet

                rows += [SinkRow(r["key"], r["timestamp"], r["value"]) for r in pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()]
        return rows

    def check(self) -> None:
        if "://" not in self.path:
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError as error:
                raise SinkError(f"sinks.files({self.path!r}): cannot make that directory: {error}") from error
            LocalStorage(self.path).check()

    def resolve(self, arrow_schema: Any) -> None:
        if isinstance(self.schema, str):
            self.schema = arrow_schema(self.schema)

    def encode_part(self, context: TaskContext, rows: Sequence[SinkRow]) -> bytes:
        if self.format == "json":
            return self._json(rows, context)
        return parquet_bytes(to_table(rows, self.schema, f"stream {context.emission!r} into {self.describe()}"))

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        return self.stage_encoded(context, self.encode_part(context, rows), len(rows))

    def stage_encoded(self, context: TaskContext, data: bytes, rows: int) -> Part:
        suffix = _SUFFIX[self.format]
        staged = f"_staging/{context.epoch:012d}-{context.label}-{context.attempt}.{suffix}"
        open_storage(self.path, self.options).put(staged, data)
        return Part(rows=rows, staged=staged, own={"final": f"{context.label}-{context.epoch:010d}.{suffix}"})

    def _json(self, rows: Sequence[SinkRow], context: TaskContext) -> bytes:
        try:
            if isinstance(rows, ResultRows) and not rows.ids:
                data = b"".join([result.json_lines(_encoder.encode) for result in rows.results])
            else:
                data = _encoder.encode_lines(rows)
            if self.nan == "null" or b"null" not in data or not any(_has_no_number(row.value) for row in rows):
                return data
        except Exception:
            pass  # which row it is, is found one by one
        encode = json_bytes if self.nan == "error" else _encoder.encode
        return b"".join(line + b"\n" for line in encode_each(self, context, rows, encode))

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        storage = open_storage(self.path, self.options)
        rolled = _cut(parts, epoch)
        direct: dict[int, list[Part]] = {}
        for part in parts:
            assert part.staged is not None
            if not part.in_checkpoint:
                direct.setdefault(made_in(part.staged), []).append(part)
        for at in sorted({*rolled, *direct}):  # in the order of the epochs in their names: readers go by it (`published.py`)
            if at in rolled:
                self._roll(storage, context, at, rolled[at])
            for part in direct.get(at, ()):
                self._publish(storage, context, epoch, part)

    def _publish(self, storage: Storage, context: DriverContext, epoch: int, part: Part) -> None:
        assert part.staged is not None
        if not context.redo and not storage.exists(part.staged):
            raise SinkError(
                f"{self.path}/{part.staged} was staged by a task but is not there for the driver: the directory must be the same on every host. "
                f"Epoch {epoch} is committed; copy its files of _staging/ from the hosts that ran its tasks, and run again."
            )
        if not storage.publish(part.staged, part.own["final"]):
            raise self._taken(part.own["final"])

    def _roll(self, storage: Storage, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        """Parts that waited become one file; several, if they do not fit into one. They are committed, so whatever they are is published."""
        pieces = [part_bytes(context.checkpoint, part) for part in parts]
        for at, (suffix, data) in enumerate(_joined(pieces)):
            final = f"{context.pipeline}-{context.emission}-{ROLLED - at:04d}-{epoch:010d}.{suffix}"
            if context.redo and storage.exists(final):
                continue
            if not storage.create(final, data) and storage.read(final) != data:
                raise self._taken(final)

    def _taken(self, final: str) -> SinkError:
        return SinkError(
            f"{self.path}/{final} is there already, and not from this checkpoint: the directory holds another run's output. "
            f"Give each checkpoint a directory of its own, or empty it."
        )

    def sweep(self, context: DriverContext, before_epoch: int, keep: Sequence[str]) -> None:
        storage = open_storage(self.path, self.options)
        mine = re.compile(rf"_staging/(\d+)-{re.escape(context.pipeline)}-{re.escape(context.emission)}-\d+-[^-]+\.\w+$")
        found = [(name, mine.match(name)) for name in storage.list("_staging") if name not in keep]
        storage.delete([name for name, match in found if match and int(match.group(1)) < before_epoch])


def _cut(parts: Sequence[Part], epoch: int) -> dict[int, list[Part]]:
    """Parts that waited, by the epoch after which their file is named."""
    cuts = sorted({made_in(part.staged) for part in parts if part.staged is not None and not part.in_checkpoint})
    found: dict[int, list[Part]] = {}
    for part in parts:
        if part.staged is not None and part.in_checkpoint:
            at = bisect_right(cuts, made_in(part.staged))
            found.setdefault(cuts[at] - 1 if at < len(cuts) else epoch, []).append(part)
    return found


def _joined(pieces: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """The files that parts become, with the suffix of each: all JSON lines are one. Before the sink's format was changed, parts had the other one."""
    lines = [piece for piece in pieces if not piece.startswith(_PARQUET)]
    found = [(_SUFFIX["json"], b"".join(lines))] if lines else []
    return found + [(_SUFFIX["parquet"], data) for data in join_parquet([piece for piece in pieces if piece.startswith(_PARQUET)])]


def join_parquet(pieces: Sequence[bytes]) -> list[bytes]:
    """Parquet files of parts: one for each type that their columns have. (Without a schema each part has the types of its own values.)"""
    import pyarrow as pa
    import pyarrow.parquet

    if len(pieces) == 1:
        return [pieces[0]]
    groups: list[tuple[Any, list[Any]]] = []
    for piece in pieces:
        table = pyarrow.parquet.read_table(io.BytesIO(piece))
        for at, (schema, tables) in enumerate(groups):
            try:
                groups[at] = (pa.unify_schemas([schema, table.schema]), [*tables, table])  # a column of nulls fits any type
                break
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                continue
        else:
            groups.append((table.schema, [table]))
    return [parquet_bytes(pa.concat_tables(tables, promote_options="default")) for _, tables in groups]


def parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _array(values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa

    if kind is not None and pa.types.is_integer(kind) and any(isinstance(v, float) and not v.is_integer() for v in values):
        raise OverflowError("a fraction does not fit an integer column")  # which Arrow would cut off
    return pa.array(values, type=kind)


def to_table(rows: Sequence[SinkRow], schema: Any, where: str) -> Any:
    """The rows as an Arrow table: columns key, timestamp, value, and id where rows have one."""
    import pyarrow as pa

    columns = {"key": [r.key for r in rows], "timestamp": [r.timestamp for r in rows], "value": [r.value for r in rows]}
    if rows and isinstance(rows[0], IdentifiedRow):
        columns["id"] = [r.id for r in rows]  # type: ignore[attr-defined]
    try:
        if schema is None:
            return pa.table({name: _array(values, None) for name, values in columns.items()})
        unknown = [name for name in schema.names if name not in columns]
        if unknown:
            raise SinkError(f"{where}: the schema names the columns {unknown}, but a row has {', '.join(columns)}")
        return pa.table({field.name: _array(columns[field.name], field.type) for field in schema}, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as error:
        for row in rows:
            for name in columns:
                field = schema.field(name) if schema is not None and name in schema.names else None
                try:
                    _array([getattr(row, name)], field.type if field is not None else None)
                except Exception as culprit:
                    raise SinkError(f"{where}: key {row.key!r}: column {name!r}: {getattr(row, name)!r} does not fit: {culprit}") from error
        what = f"the values of this epoch do not have one type: {error}. Say schema='key ..., timestamp long, value ...'."
        raise SinkError(f"{where}: {what}") from error


files = FileSink
