"""PostgreSQL's texts of values as columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InputError
from millstream.sources.pgoutput import UNSENT

if TYPE_CHECKING:
    from millstream.sources.postgres import PostgresSource

_DDL = {
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "oid": "long",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp",
}


def ddl_type(kind: str) -> str:
    """The type of a column as DDL; text where there is no better one (json, uuid, enums, arrays, numeric without a precision).

    >>> ddl_type("numeric(10,2)"), ddl_type("jsonb"), ddl_type("timestamp(3) with time zone")
    ('decimal(10,2)', 'string', 'timestamp')
    """
    if (found := re.fullmatch(r"numeric\((\d+),(\d+)\)", kind)) and int(found[1]) <= 38:
        return f"decimal({found[1]},{found[2]})"
    return _DDL.get(re.sub(r"\(\d+\)", "", kind), "string")


def to_bytes(rows: Sequence[tuple[dict[str, Any], int, int, bool]], schema: pa.Schema, source: PostgresSource) -> bytes:
    """Rows (texts by column, position, time in microseconds, whether it is deleted) as an Arrow stream."""
    arrays = [_column([row.get(field.name) for row, _, _, _ in rows], field, source) for field in list(schema)[:-3]]
    arrays += [
        pa.array([lsn for _, lsn, _, _ in rows], pa.int64()),
        pa.array([gone for _, _, _, gone in rows], pa.bool_()),
        pa.array([time for _, _, time, _ in rows], pa.int64()).cast(schema.field(len(schema) - 1).type),
    ]
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _column(texts: list[Any], field: pa.Field, source: PostgresSource) -> pa.Array:
    values = [None if text is UNSENT else text for text in texts]
    try:
        return _converter(field.type)(values, field.type)
    except (pa.ArrowException, ValueError) as error:
        for text in values:
            try:
                _converter(field.type)([text], field.type)
            except (pa.ArrowException, ValueError) as culprit:
                raise InputError(
                    f"{source.describe()}: column {field.name!r}: {text!r:.200} does not fit {field.type}: {culprit}. Name a type that fits with schema=, "
                    f"such as string, or leave the column out with columns="
                ) from error
        raise


def _converter(kind: pa.DataType) -> Callable[[list[Any], pa.DataType], pa.Array]:
    if pa.types.is_boolean(kind):
        return lambda texts, kind: pa.array([None if text is None else text in ("t", "true") for text in texts], kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda texts, kind: pa.array([None if text is None else bytes.fromhex(text.removeprefix("\\x")) for text in texts], kind)
    if pa.types.is_timestamp(kind):
        return _times
    return lambda texts, kind: pa.array(texts, pa.string()).cast(kind)


def _times(texts: list[Any], kind: pa.DataType) -> pa.Array:
    plain = pc.replace_substring_regex(pa.array(texts, pa.string()), r"\+00(:00)?$", "")  # the session's zone is UTC
    found = plain.cast(pa.timestamp("us"))
    return found.cast(pa.int64()).cast(kind)
