"""Parquet files, with their columns fitted to the schema as Spark's reader does.

Rules
1. A column is found by its name, without regard to case. One that the file lacks is null; one that the schema lacks is not read. Two that differ in
   case alone are an error.
2. A value of another type is taken where Spark takes it and nothing is lost (`_cast`). Every other difference between the types of the file and of the
   schema is an error, even where Spark would read something: a number as a date, or the low bits of a number that is too large.
3. A file of Spark 2 with dates or times, which may count by another calendar, is an error.
4. A file without a single byte has no rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.sources.filereading.errors import WAY_OUT, Malformed, input_error

_ROWS = 65_536
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_VERSION = b"org.apache.spark.version"


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
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        if not os.path.getsize(path):
            return
        try:
            with pq.ParquetFile(path, arrow_extensions_enabled=False, coerce_int96_timestamp_unit="us") as file:
                yield from self._rows(path, file, range(start, file.num_row_groups if end is None else end))
        except pa.ArrowException as error:
            raise input_error(path, f"this is not a Parquet file, or it is damaged: {error}") from error

    def _rows(self, path: str, file: Any, groups: range) -> Iterator[pa.RecordBatch]:
        try:
            found = [_matching(field.name, file.schema_arrow) for field in self.schema]
        except Malformed as misfit:
            raise input_error(path, str(misfit)) from None
        names = [field.name for field in found if field is not None]
        if not names:
            for group in groups:
                count = file.metadata.row_group(group).num_rows
                yield pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in self.schema], schema=self.schema)
            return
        about = file.metadata.metadata or {}
        is_old = any(key in about for key in _LEGACY) or about.get(_VERSION, b"9").split(b".")[0] in (b"1", b"2")
        if is_old and any(field is not None and _has_dates(field.type) for field in found):
            raise input_error(path, f"it was written by Spark 2, and its dates may be of the old calendar: {WAY_OUT}")
        raw = all(file.schema.column(at).physical_type != "INT96" for at in range(len(file.schema)))
        for batch in file.iter_batches(_ROWS, row_groups=list(groups), columns=names, use_threads=False):
            arrays = []
            for field, there in zip(self.schema, found, strict=True):
                if there is None:
                    arrays.append(pa.nulls(batch.num_rows, field.type))
                    continue
                try:
                    arrays.append(_fitted(batch.column(there.name), field.type, raw))
                except (Malformed, pa.ArrowException) as misfit:
                    what = f"column {field.name!r} is {there.type} in the file, and {field.type} in the schema"
                    raise input_error(path, f"{what}: {misfit}" if str(misfit) else what) from None
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _matching(name: str, fields: Any) -> pa.Field | None:
    """The field of a file's schema, or of a struct in it, that a column is read from."""
    found = [field for field in fields if field.name.lower() == name.lower()]
    if len(found) > 1:
        raise Malformed(f"it has {' and '.join(repr(field.name) for field in found)}, and the schema asks for {name!r}")
    return found[0] if found else None


def _fitted(array: pa.Array, wanted: pa.DataType, raw: bool) -> pa.Array:
    """A column of a file with the type of the schema. raw: whether a time is kept in the file as a number of its unit."""
    kind, t = array.type, pa.types
    if kind == wanted:
        return array
    if t.is_dictionary(kind):
        return _fitted(array.dictionary_decode(), wanted, raw)
    if t.is_null(kind):
        return pa.nulls(len(array), wanted)
    if t.is_struct(kind) and t.is_struct(wanted):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        inner = [(field, _matching(field.name, fields)) for field in (wanted.field(at) for at in range(wanted.num_fields))]
        arrays = [
            pa.nulls(len(array), field.type) if there is None else _fitted(pc.struct_field(array, there.name), field.type, raw)
            for field, there in inner
        ]
        return pa.StructArray.from_arrays(arrays, fields=[field for field, _ in inner], mask=array.is_null())
    if (t.is_list(kind) or t.is_large_list(kind)) and t.is_list(wanted):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, _fitted(array.flatten(), wanted.value_type, raw), type=wanted, mask=array.is_null())
    if t.is_map(kind) and t.is_map(wanted):
        array = array.take(pa.array(np.arange(len(array)))) if array.offset else array
        keys, items = _fitted(array.keys, wanted.key_type, raw), _fitted(array.items, wanted.item_type, raw)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=array.is_null())
    return _cast(array, wanted, raw)


def _cast(array: pa.Array, wanted: pa.DataType, raw: bool) -> pa.Array:
    kind, t = array.type, pa.types
    if t.is_timestamp(kind) and t.is_timestamp(wanted) and kind.unit != "ns":
        return array.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp("us", "UTC")).cast(wanted)
    if t.is_timestamp(kind) and wanted == pa.int64() and raw:
        return array.cast(pa.timestamp("ms", kind.tz) if kind.unit == "s" else kind).cast(wanted)
    if t.is_date(kind) and (t.is_date(wanted) or wanted == pa.timestamp("us")):
        return array.cast(pa.date32()).cast(wanted)
    if not _takes(kind, wanted):
        raise Malformed
    return array.cast(wanted)  # which refuses values that do not fit


def _takes(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Spark takes values of a file's type for a column of another, if they fit."""
    t = pa.types
    if t.is_integer(kind):
        small = kind.bit_width < 32 or kind == pa.int32()
        if t.is_decimal(wanted):
            wide = bool(wanted.precision - wanted.scale >= (10 if small else 20))
            return (wide and bool(t.is_signed_integer(kind))) or (kind == pa.uint64() and wanted == pa.decimal128(20, 0))
        return bool(small and (t.is_signed_integer(wanted) or t.is_float64(wanted))) or (kind == pa.uint32() and wanted == pa.int64())
    if t.is_decimal(kind):
        room = kind.precision - kind.scale
        return bool(t.is_decimal(wanted) and wanted.scale >= kind.scale and wanted.precision - wanted.scale >= room)
    if t.is_fixed_size_binary(kind):
        return _is_bytes(wanted)
    if _is_text(kind) or _is_bytes(kind):
        return _is_text(wanted) or _is_bytes(wanted)
    return bool(t.is_float32(kind) and t.is_float64(wanted))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _has_dates(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or any(map(_has_dates, inner)))
