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
    """Rows of (end, start, key) with their columns. A key is a place in `names`, which are key texts. starts: only where they do not follow from the ends."""

    ends: Any
    codes: Any
    names: Any
    columns: list[Any]
    starts: Any = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def keys(self) -> Any:
        return self.names.take(pa.array(self.codes))

    def slice(self, start: int, stop: int) -> Partials:
        columns = [column.slice(start, stop - start) for column in self.columns]
        return Partials(
            self.ends[start:stop], self.codes[start:stop], self.names, columns, None if self.starts is None else self.starts[start:stop]
        )

    def take(self, positions: Any) -> Partials:
        columns = [column.take(pa.array(positions)) for column in self.columns]
        return Partials(
            self.ends[positions], self.codes[positions], self.names, columns, None if self.starts is None else self.starts[positions]
        )

    def of_names(self, chosen: Any) -> Partials:
        """The rows of some names (a mask), and those names alone."""
        if chosen.all():
            return self
        place = np.cumsum(chosen) - 1
        found = self.take(np.flatnonzero(chosen[self.codes]))
        return msgspec.structs.replace(found, codes=place[found.codes], names=self.names.filter(pa.array(chosen)))

    def chunk(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> bytes:
        """As bytes, with its ends."""
        return encoded(self, encode, decode, with_ends=True)

    def by_end(self) -> list[tuple[int, Partials]]:
        """One table per end, in order of time."""
        if not len(self):
            return []
        cuts = [0, *(np.flatnonzero(self.ends[1:] != self.ends[:-1]) + 1).tolist(), len(self)]
        return [(int(self.ends[at]), self.slice(at, stop)) for at, stop in pairwise(cuts)]


class Labels(msgspec.Struct, eq=False):
    """Which group each of some rows belongs to, and how many rows each has. The groups stand in a table without columns."""

    of: Any
    count: Any
    table: Partials

    def __len__(self) -> int:
        return len(self.count)

    def with_columns(self, columns: list[Any]) -> Partials:
        return msgspec.structs.replace(self.table, columns=columns)


def coded(keys: Any) -> tuple[Any, Any]:
    """Key texts as places in an array of different ones."""
    found = keys.dictionary_encode()
    return found.indices.to_numpy(), found.dictionary


def labels(ends: Any, codes: Any, names: Any, starts: Any = None, ordered: bool = True) -> Labels:
    """Groups of rows by (end, start, key): in canonical order (rule 1), or by end and otherwise as it comes."""
    if ordered:
        order = pc.sort_indices(names)  # by bytes
        rank = np.empty(len(names), np.int64)
        rank[order.to_numpy()] = np.arange(len(names))
        names, codes = names.take(order), rank[codes]
    known_ends, place = _distinct(ends)
    known_starts = None
    wide = len(names) * len(known_ends)
    if starts is not None:
        known_starts, place_of_start = _distinct(starts)
        place, wide = place * len(known_starts) + place_of_start, wide * len(known_starts)
    raw = codes + place * np.int64(len(names))
    if wide <= 4 * len(raw) + 65_536:
        present = np.bincount(raw, minlength=wide)
        groups = np.flatnonzero(present)
        number = np.empty(wide, np.int64)
        number[groups] = np.arange(len(groups))
        of, count = number[raw], present[groups]
    else:
        groups, of, count = np.unique(raw, return_inverse=True, return_counts=True)
    rest, at_key = np.divmod(groups, len(names))
    if known_starts is None:
        return Labels(of, count, Partials(known_ends[rest], at_key, names, []))
    return Labels(of, count, Partials(known_ends[rest // len(known_starts)], at_key, names, [], known_starts[rest % len(known_starts)]))


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
    """A table as bytes. with_ends: of several ends, on its way to whoever merges it; keys are then said once."""
    count = len(table)
    kinds, pieces = bytearray(), []
    if table.starts is not None:
        pieces.append(table.starts.astype("<i8").tobytes())
    if with_ends:
        pieces += [
            table.ends.astype("<i8").tobytes(),
            _padded(table.codes.astype("<i4").tobytes()),
            _padded(_HEAD.pack(len(table.names), 0, 0)),
        ]
        pieces += _texts(table.names)
    else:
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
    starts = reader.numbers(count, np.int64) if flags & _STARTS else None
    if flags & _ENDS:
        ends, codes = reader.numbers(count, np.int64), reader.numbers(count, np.int32)
        names = reader.texts(_HEAD.unpack(reader.buffer(_HEAD.size))[0], TEXT, None)
    else:
        ends, codes, names = np.full(count, end, np.int64), np.arange(count), reader.texts(count, TEXT, None)
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
    return Partials(ends, codes, names, columns, starts)


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
