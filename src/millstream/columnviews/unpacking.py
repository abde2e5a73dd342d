"""msgpack in columns, the other way: where the fields of many documents lie in their bytes. Nothing is decoded that nobody asks for.

Rules
1. Documents are read as the first of them lies: the same fields in the same order. One that lies in another way, or has a list or a map before a field that
   is wanted, is not read here (`ok` is false), and whoever asked looks at it one by one.
2. Nothing is read behind the end: the bytes are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millstream.columnviews.packing import column_of, parts_of

_PAD = 16

#: By the first byte of a value: how long it is with that byte, 0 where the next bytes say it, -1 for what has parts.
_LENGTHS = np.full(256, -1, np.int64)
_LENGTHS[:0x80] = _LENGTHS[0xE0:] = _LENGTHS[[0xC0, 0xC2, 0xC3]] = 1
_LENGTHS[0xA0:0xC0] = np.arange(1, 33)
for _head, _size in ((0xCA, 5), (0xCB, 9), (0xCC, 2), (0xCD, 3), (0xCE, 5), (0xCF, 9), (0xD0, 2), (0xD1, 3), (0xD2, 5), (0xD3, 9)):
    _LENGTHS[_head] = _size
_SIZED = np.zeros(256, np.int64)  # how many bytes say the length, of texts and bytes
for _head, _size in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
    _LENGTHS[_head], _SIZED[_head] = 0, _size
_INSIDE = np.full(256, -1, np.int64)  # how many values stand in a list or a map
_INSIDE[0x90:0xA0] = np.arange(16)
_INSIDE[0x80:0x90] = 2 * np.arange(16)
_INT_WIDTH = np.full(256, -1, np.int64)
_INT_WIDTH[:0x80] = _INT_WIDTH[0xE0:] = 0
for _head, _size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8), (0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
    _INT_WIDTH[_head] = _size
_TEXT = np.zeros(256, bool)
_TEXT[0xA0:0xC0] = _TEXT[[0xD9, 0xDA, 0xDB]] = True


class Slices(NamedTuple):
    """Some bytes of every row: where they begin, and how many."""

    begin: Any
    length: Any


class Field(NamedTuple):
    """A field of every document: its bytes as they lie, and its first byte. Of rows that are not `ok` they are anything."""

    slices: Slices
    head: Any


class PackedRows:
    """Rows of bytes, to be read. data: padded."""

    def __init__(self, data: Any, begin: Any, end: Any) -> None:
        self.data, self.begin, self.end = data, begin, end
        self.ok = np.ones(len(begin), bool)

    @classmethod
    def of(cls, column: Any) -> PackedRows:
        """Those of an Arrow array without nulls."""
        data, where = parts_of(column)
        return cls(np.concatenate([data, np.zeros(_PAD, np.uint8)]), where[:-1], where[1:])

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, chosen: Any, slices: Slices | None = None) -> PackedRows:
        """Some of the rows, or some bytes of theirs."""
        begin, end = (self.begin, self.end) if slices is None else (slices.begin, slices.begin + slices.length)
        return PackedRows(self.data, begin[chosen], end[chosen])

    def column(self, slices: Slices) -> Any:
        """Bytes of every row, as an Arrow array."""
        lengths = np.where(self.ok, slices.length, 0)
        begin = slices.begin
        if len(begin) and self.ok.all() and (begin[1:] >= (begin + lengths)[:-1]).all():  # in order: what lies between is cut out
            cuts = np.empty(2 * len(begin), np.int64)
            cuts[::2], cuts[1::2] = begin, begin + lengths
            pieces = column_of(self.data[cuts[0] : cuts[-1]], np.diff(cuts))
            return pieces.take(pa.array(np.arange(0, len(pieces), 2)))
        shift = begin - (np.cumsum(lengths) - lengths)
        return column_of(self.data[np.repeat(shift, lengths) + np.arange(int(lengths.sum()))], lengths)

    def column_of_rows(self, chosen: Any, slices: Slices) -> Any:
        """Bytes of some rows."""
        some = self.take(chosen)
        return some.column(Slices(slices.begin[chosen], slices.length[chosen]))

    def head(self, at: Any) -> Any:
        return self.data[np.minimum(at, len(self.data) - 1)]

    def number(self, at: Any, width: Any) -> Any:
        """The unsigned numbers of some widths, big end first."""
        found = self.words(">u8")[np.minimum(at, len(self.data) - _PAD)].astype(np.uint64)
        return np.where(width > 0, found >> ((8 - np.maximum(width, 1)) * 8).astype(np.uint64), 0)

    def words(self, kind: str) -> Any:
        """The eight bytes from each place on, as a number."""
        return np.ndarray((len(self.data) - 7,), kind, self.data, strides=(1,))

    def expect(self, at: Any, data: bytes) -> Any:
        """Rows must go on with these bytes. Gives what is behind them."""
        wanted = np.frombuffer(data, np.uint8)
        at = np.minimum(at, len(self.data) - len(wanted))
        self.ok &= (self.data[at[:, None] + np.arange(len(wanted))] == wanted).all(axis=1)
        return at + len(wanted)

    def skip_value(self, at: Any) -> tuple[Any, Any]:
        """The first byte of the value there, and its length."""
        head = self.head(at)
        length, sized = _LENGTHS[head], _SIZED[head]
        if sized.any():
            length = np.where(sized > 0, 1 + sized + self.number(at + 1, sized).astype(np.int64), length)
        self.ok &= length > 0
        return head, np.where(self.ok, length, 0)

    def skip_nested(self, at: Any) -> Any:
        """What is behind the value there, whatever it consists of; of rows with a list or a map of more than 15, anything."""
        open_values = self.ok.astype(np.int64)
        while True:
            rows = np.flatnonzero(open_values)
            if not len(rows):
                return at
            if len(rows) == len(at):
                here, still = at, open_values
            else:
                here, still = at[rows], open_values[rows]
            head = self.head(here)
            length, sized = _LENGTHS[head], _SIZED[head]
            if sized.any():
                length = np.where(sized > 0, 1 + sized + self.number(here + 1, sized).astype(np.int64), length)
            inside = _INSIDE[head]
            length = np.where(inside >= 0, 1, length)
            bad = length <= 0
            still = np.where(bad, 0, still - 1 + np.maximum(inside, 0))
            here = here + np.maximum(length, 0)
            if len(rows) == len(at):
                at, open_values = here, still
            else:
                at, open_values = at.copy(), open_values
                at[rows], open_values[rows] = here, still
            if bad.any():
                self.ok[rows[bad]] = False

    def payload(self, field: Field) -> Slices:
        """What is inside of texts and bytes."""
        shift = 1 + _SIZED[field.head]
        return Slices(field.slices.begin + shift, np.maximum(field.slices.length - shift, 0))

    def ints(self, at: Any) -> tuple[Any, Any]:
        """The whole number there, and what is behind it."""
        head = self.head(at)
        width = _INT_WIDTH[head]
        found = self.number(at + 1, width)
        self.ok &= (width >= 0) & ~((head == 0xCF) & (found >= 2**63))
        width = np.maximum(width, 0)
        bits = ((8 - np.maximum(width, 1)) * 8).astype(np.int64)
        signed = (found.astype(np.int64) << bits) >> bits
        value = np.where(head >= 0xD0, signed, found.astype(np.int64))
        small = head.astype(np.int64)
        return np.where(width == 0, np.where(head >= 0xE0, small - 256, small), value), at + 1 + width

    def bytes_at(self, at: Any) -> Slices:
        """The bytes there."""
        head, length = self.skip_value(at)
        self.ok &= (head >= 0xC4) & (head <= 0xC6)
        return self.payload(Field(Slices(at, length), head))

    def fields(self, names: Sequence[str]) -> dict[str, Field]:
        """Where some fields of documents lie. Rows that lack one, or lie in another way than the first, are not `ok`."""
        if not len(self) or not names:
            return {}
        first = bytes(self.data[self.begin[0] : self.end[0]])
        try:
            document = msgspec.msgpack.decode(first)
        except Exception:
            document = None
        if not isinstance(document, dict) or not set(names) <= set(document) or not all(isinstance(name, str) for name in document):
            self.ok[:] = False
            return {}
        layout, count = list(document), len(document)
        at = self.expect(self.begin, bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big"))
        found: dict[str, Field] = {}
        for name in layout:
            at = self.expect(at, msgspec.msgpack.encode(name))
            head, length = self.skip_value(at)
            if name in names:
                found[name] = Field(Slices(at, length), head)
                if len(found) == len(set(names)):
                    break
            at = at + length
        self.ok &= at <= self.end
        return found


def is_text(field: Field) -> Any:
    """Of which rows a field is a text."""
    return _TEXT[field.head]


def is_int(rows: PackedRows, field: Field) -> Any:
    """Of which rows a field is a whole number below 2^63."""
    return (_INT_WIDTH[field.head] >= 0) & ((field.head != 0xCF) | (rows.head(field.slices.begin + 1) < 0x80))


def text_column(data: Any) -> Any:
    """Bytes that are texts."""
    return pa.Array.from_buffers(pa.string(), len(data), data.buffers(), offset=data.offset)
