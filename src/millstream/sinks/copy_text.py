"""An Arrow table as the text that PostgreSQL's COPY reads (FORMAT csv): a null is nothing, an empty text is two quotes. Lists and structs become JSON."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from millstream.sinks.files import json_bytes

_OPTIONS = pyarrow.csv.WriteOptions(include_header=False)


def copy_text(table: pa.Table) -> bytes:
    """Raises ValueError for a text that PostgreSQL cannot hold."""
    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table({name: _plain(table.column(name), name) for name in table.column_names}), out, _OPTIONS)
    return out.getvalue()


def _plain(column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_string(kind):
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise ValueError(f"column {name!r}: PostgreSQL has no texts with a NUL character")
        return column
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else json_bytes(value).decode() for value in column.to_pylist()], pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    return column
