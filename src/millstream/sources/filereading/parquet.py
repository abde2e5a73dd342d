"""Parquet files, with their columns fitted to the schema as Spark's reader does.

Rules
1. A column is found by its name, without regard to case. One that the file lacks is null; one that the schema lacks is not read. Two that differ in
   case alone are an error.
2. A value is widened where nothing can be lost (`_fits`). Every other difference between the types of the file and of the schema is an error, even where
   Spark would read something.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.sources.filereading.refusal import refusal

_ROWS = 65_536
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class _Misfit(Exception):
    pass


def groups(path: str, size: int) -> list[tuple[int, int | None]]:
    """The ranges of row groups that a file is read in, each of about so many bytes."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return [(0, None)]  # whoever reads it will say what is wrong
    found: list[tuple[int, int | None]] = []
    start, held = 0, 0
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        held += sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if held >= size and at + 1 < metadata.num_row_groups:
            found.append((start, at + 1))
            start, held = at + 1, 0
    return [*found, (start, None)]


class ParquetRows:
    """Reads Parquet files into batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups."""
        try:
            with pq.ParquetFile(path, arrow_extensions_enabled=False) as file:
                yield from self._rows(path, file, range(start, file.num_row_groups if end is None else end))
        except pa.ArrowException as error:
            raise refusal(path, f"this is not a Parquet file, or it is damaged: {error}") from error

    def _rows(self, path: str, file: Any, groups: range) -> Iterator[pa.RecordBatch]:
        try:
            found = [_matching(field.name, file.schema_arrow) for field in self.schema]
        except _Misfit as misfit:
            raise refusal(path, str(misfit)) from None
        self._check_calendar(path, file)
        names = [field.name for field in found if field is not None]
        if not names:
            for group in groups:
                yield self._nulls(file.metadata.row_group(group).num_rows)
            return
        for batch in file.iter_batches(_ROWS, row_groups=list(groups), columns=[_escaped(name) for name in names], use_threads=False):
            arrays = []
            for field, there in zip(self.schema, found, strict=True):
                if there is None:
                    arrays.append(pa.nulls(batch.num_rows, field.type))
                    continue
                try:
                    arrays.append(_fitted(batch.column(there.name), field.type))
                except (_Misfit, pa.ArrowException) as misfit:
                    what = f": {misfit}" if str(misfit) else ""
                    raise refusal(
                        path, f"column {field.name!r} is {there.type} in the file, and {field.type} in the schema{what}"
                    ) from None
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _nulls(self, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in self.schema], schema=self.schema)

    def _check_calendar(self, path: str, file: Any) -> None:
        metadata = file.metadata.metadata or {}
        if any(key in metadata for key in _LEGACY) and any(_has_days(field.type) for field in self.schema):
            raise refusal(path, "its dates are of the old calendar, which only Spark's reader turns into the new one")


def _escaped(name: str) -> str:
    return name


def _has_days(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or any(_has_days(kind.field(at).type) for at in range(kind.num_fields))


def _matching(name: str, fields: Any) -> pa.Field | None:
    """The field of a file's schema, or of a struct in it, that a column is read from."""
    found = [field for field in fields if field.name.lower() == name.lower()]
    if len(found) > 1:
        raise _Misfit(f"it has {' and '.join(repr(field.name) for field in found)}, and the schema asks for {name!r}")
    return found[0] if found else None


def _fitted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column of a file with the type of the schema."""
    kind, t = array.type, pa.types
    if kind == wanted:
        return array
    if t.is_dictionary(kind):
        return _fitted(array.dictionary_decode(), wanted)
    if _fits(kind, wanted):
        return array.cast(wanted)
    if t.is_struct(kind) and t.is_struct(wanted):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        inner = [(field, _matching(field.name, fields)) for field in (wanted.field(at) for at in range(wanted.num_fields))]
        arrays = [
            pa.nulls(len(array), field.type) if there is None else _fitted(pc.struct_field(array, there.name), field.type)
            for field, there in inner
        ]
        return pa.StructArray.from_arrays(arrays, fields=[field for field, _ in inner], mask=array.is_null())
    if t.is_list(kind) and t.is_list(wanted):
        return pa.ListArray.from_arrays(array.offsets, _fitted(array.values, wanted.value_type), type=wanted, mask=array.is_null())
    if t.is_map(kind) and t.is_map(wanted):
        keys, items = _fitted(array.keys, wanted.key_type), _fitted(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=array.is_null())
    raise _Misfit


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    t = pa.types
    if t.is_signed_integer(kind):
        return bool(t.is_signed_integer(wanted)) and int(kind.bit_width) < int(wanted.bit_width)
    if t.is_string(kind) or t.is_large_string(kind):
        return bool(t.is_string(wanted) or t.is_large_string(wanted) or t.is_binary(wanted))
    return bool(t.is_float32(kind) and t.is_float64(wanted))
