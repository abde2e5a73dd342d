"""Partial results in columns: one row per window (or pane) and key, in canonical order; and how they become bytes.

Rules
1. Rows are in the order of (end, start, key bytes), each pair of window and key once. So the bytes follow from what is in them, and not from who made them,
   in which order, or in which way: a retry, the path of columns and the path of single records give the same.
2. A part of a reducer lies in one or more columns (`vectors.py`). A column is int64, float64 or text where all its values are ints, floats or texts; anything
   else is msgpack. A column in which all is null has no values at all. What it is follows from the rows that are encoded together.
3. A value under a null is zero, or empty.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

INT, FLOAT, TEXT, PACKED = pa.int64(), pa.float64(), pa.string(), pa.binary()
_KINDS = {INT: b"i", FLOAT: b"f", TEXT: b"s", PACKED: b"p"}
_HEAD = struct.Struct("<IBB2x")
_STARTS, _ENDS = 1, 2
_NONE = type(None)


class Partials(msgspec.Struct, eq=False):
    """Rows of (end, start, key text) with their columns. starts: only where they do not follow from the ends."""

    ends: Any
    keys: Any
    columns: list[Any]
    starts: Any = None

    def __len__(self) -> int:
        return len(self.ends)

    def slice(self, start: int, stop: int) -> Partials:
        count = stop - start
        columns = [column.slice(start, count) for column in self.columns]
        return Partials(
            self.ends[start:stop], self.keys.slice(start, count), columns, None if self.starts is None else self.starts[start:stop]
        )

    def take(self, positions: Any) -> Partials:
        at = pa.array(positions)
        columns = [column.take(at) for column in self.columns]
        return Partials(self.ends[positions], self.keys.take(at), columns, None if self.starts is None else self.starts[positions])

    def by_end(self) -> list[tuple[int, Partials]]:
        """One table per end, in order of time."""
        if not len(self):
            return []
        cuts = [0, *(np.flatnonzero(self.ends[1:] != self.ends[:-1]) + 1).tolist(), len(self)]
        return [(int(self.ends[at]), self.slice(at, stop)) for at, stop in pairwise(cuts)]


class Labels(msgspec.Struct, eq=False):
    """Which group each of some rows belongs to. Groups are in canonical order (rule 1); count: of rows, by group."""

    of: Any
    ends: Any
    keys: Any
    starts: Any
    count: Any

    def __len__(self) -> int:
        return len(self.ends)


def labels(ends: Any, keys: Any, starts: Any = None) -> Labels:
    """Groups of rows by (end, start, key)."""
    coded = keys.dictionary_encode()
    names = coded.dictionary
    order = pc.sort_indices(names).to_numpy()  # by bytes
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    known_ends, place = _distinct(ends)
    known_starts = None
    if starts is not None:
        known_starts, place_of_start = _distinct(starts)
        place = place * len(known_starts) + place_of_start
    raw = rank[coded.indices.to_numpy()] + place * len(order)
    wide = len(order) * len(known_ends) * (1 if known_starts is None else len(known_starts))
    if wide <= 4 * len(raw) + 65_536:
        present = np.bincount(raw, minlength=wide)
        groups = np.flatnonzero(present)
        number = np.empty(wide, np.int64)
        number[groups] = np.arange(len(groups))
        of, count = number[raw], present[groups]
    else:
        groups, of, count = np.unique(raw, return_inverse=True, return_counts=True)
    at_key = groups % len(order)
    rest = groups // len(order)
    found = names.take(pa.array(order[at_key]))
    if known_starts is None:
        return Labels(of, known_ends[rest], found, None, count)
    return Labels(of, known_ends[rest // len(known_starts)], found, known_starts[rest % len(known_starts)], count)


def _distinct(times: Any) -> tuple[Any, Any]:
    """The different ones of a few different times, ascending, and the place of each row's."""
    first = times[0]
    if (times == first).all():
        return times[:1], np.int64(0)
    coded = pa.array(times).dictionary_encode()
    known = coded.dictionary.to_numpy()
    order = np.argsort(known)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return known[order], rank[coded.indices.to_numpy()]


def column_of(values: Sequence[Any], encode: Callable[[Any], bytes]) -> Any:
    """Python values as a column (rule 2)."""
    kinds = set(map(type, values)) - {_NONE}
    if kinds == {int} or not kinds:
        try:
            return pa.array(values, INT)
        except OverflowError:
            pass
    elif kinds == {float}:
        return pa.array(values, FLOAT)
    elif kinds == {str}:
        return pa.array(values, TEXT)
    return pa.array([None if value is None else encode(value) for value in values], PACKED)


def values_of(column: Any, decode: Callable[[bytes], Any]) -> list[Any]:
    """The Python values of a column."""
    values: list[Any] = column.to_pylist()
    return [None if value is None else decode(value) for value in values] if column.type == PACKED else values


# --- bytes


def encoded(table: Partials, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], with_ends: bool = False) -> bytes:
    """A table as bytes. with_ends: of several ends, for whoever does not know them."""
    count = len(table)
    kinds, pieces = bytearray(), []
    if with_ends:
        pieces.append(table.ends.astype("<i8").tobytes())
    if table.starts is not None:
        pieces.append(table.starts.astype("<i8").tobytes())
    pieces += _texts(table.keys)
    for column in table.columns:
        if column.null_count == count:
            kinds += b"n"
            continue
        if column.type == PACKED:  # the rows of this table alone may be of one kind
            column = column_of(values_of(column, decode), encode)
        kinds += _KINDS[column.type].upper() if column.null_count else _KINDS[column.type]
        if column.null_count:
            pieces.append(_padded(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()))
        if column.type in (TEXT, PACKED):
            pieces += _texts(column.fill_null(b"" if column.type == PACKED else "") if column.null_count else column)
            continue
        values = (column.fill_null(0) if column.null_count else column).to_numpy()
        if column.type == FLOAT and np.isnan(values).any():
            values = np.where(np.isnan(values), np.nan, values)
        pieces.append(values.tobytes())
    flags = (_STARTS if table.starts is not None else 0) | (_ENDS if with_ends else 0)
    return b"".join([_HEAD.pack(count, flags, len(kinds)), _padded(bytes(kinds)), *pieces])


def decoded(data: bytes, end: int | None = None) -> Partials:
    """The table again. end: of all rows, where they do not say it."""
    count, flags, width = _HEAD.unpack_from(data)
    kinds = data[_HEAD.size : _HEAD.size + width]
    reader = _Sections(data, _HEAD.size + width + -width % 8)
    ends = reader.numbers(count, np.int64) if flags & _ENDS else np.full(count, end, np.int64)
    starts = reader.numbers(count, np.int64) if flags & _STARTS else None
    keys = reader.texts(count, TEXT, None)
    columns = []
    for kind in kinds.decode():
        if kind == "n":
            columns.append(pa.nulls(count, INT))
            continue
        valid = reader.bits(count) if kind.isupper() else None
        kind = kind.lower()
        if kind in "sp":
            columns.append(reader.texts(count, TEXT if kind == "s" else PACKED, valid))
        else:
            columns.append(pa.Array.from_buffers(INT if kind == "i" else FLOAT, count, [valid, reader.buffer(8 * count)]))
    return Partials(ends, keys, columns, starts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _texts(column: Any) -> list[bytes]:
    """Offsets and bytes of a column of texts without nulls."""
    _, offsets, data = column.buffers()
    where = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    body = b"" if data is None else memoryview(data)[where[0] : where[-1]]
    return [_padded((where - where[0]).astype("<i4").tobytes()), _padded(bytes(body))]


class _Sections:
    """Reads what `encoded` wrote, without copying it."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = pa.py_buffer(data)
        self._at = at

    def buffer(self, size: int) -> Any:
        found = self._data.slice(self._at, size)
        self._at += size + -size % 8
        return found

    def bits(self, count: int) -> Any:
        return self.buffer((count + 7) // 8)

    def numbers(self, count: int, kind: Any) -> Any:
        return np.frombuffer(self.buffer(count * np.dtype(kind).itemsize), kind)

    def texts(self, count: int, kind: Any, valid: Any) -> Any:
        offsets = self.buffer(4 * (count + 1))
        size = int(np.frombuffer(offsets, np.int32)[-1])
        return pa.Array.from_buffers(kind, count, [valid, offsets, self.buffer(size)])
