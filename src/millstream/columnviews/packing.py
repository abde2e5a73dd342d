"""msgpack in columns: many values become the bytes that the codec makes of each, at once.

Rule: the shortest form of every number and length, as `state/codec.py` has it. What cannot be said here is `SingleRows`: its rows are worked on one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BINARY = pa.binary()
NIL, FALSE, TRUE = b"\xc0", b"\xc2", b"\xc3"
_MOST_BYTES = 1 << 30  # of a column: its offsets are 32-bit numbers
MOST_BYTES = 1 << 28  # that a step takes into columns, which it puts together to larger ones
_EMPTY = pa.scalar(b"", BINARY)


class SingleRows(Exception):
    """Why rows cannot be worked on in columns."""


class _Form:
    """How numbers are written by their size: below each bound its head and its width in bytes; of width 0 is the head itself, with the number in it."""

    def __init__(self, bounds: Sequence[int], heads: Sequence[int], widths: Sequence[int], base: int = 0) -> None:
        self.bounds, self.base = np.array(bounds, np.int64), base
        self.heads, self.widths = np.array(heads, np.uint8), np.array(widths, np.int32)
        self.kept = np.array([[at == 0 or at > 8 - width for at in range(9)] for width in widths])

    def packed(self, numbers: Any) -> Any:
        """The bytes of each number, as an Arrow array."""
        kind = np.searchsorted(self.bounds, numbers, "right")
        cells = np.empty((len(numbers), 9), np.uint8)
        cells[:, 1:] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
        cells[:, 0] = self.heads[kind]
        small = self.widths[kind] == 0
        if small.any():
            cells[small, 0] = cells[small, 8] | self.base
        return column_of(cells[self.kept[kind]], self.widths[kind] + 1)


_INTS = _Form(
    [-(2**31), -(2**15), -(2**7), -(2**5), 2**7, 2**8, 2**16, 2**32],
    [0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF],
    [8, 4, 2, 1, 0, 1, 2, 4, 8],
)
_TEXT_HEADS = _Form([2**5, 2**8, 2**16], [0, 0xD9, 0xDA, 0xDB], [0, 1, 2, 4], 0xA0)
_BYTES_HEADS = _Form([2**8, 2**16], [0xC4, 0xC5, 0xC6], [1, 2, 4])


def column_of(data: Any, lengths: Any) -> Any:
    """Bytes, cut into rows of some lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_BYTES:
        raise SingleRows("they are too large for a column")
    return pa.Array.from_buffers(
        BINARY, len(lengths), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    )


def parts_of(column: Any) -> tuple[Any, Any]:
    """The bytes of a column of bytes or texts without nulls, and where its rows begin and end in them."""
    _, offsets, data = column.buffers()
    where = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    return (np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), where


def lengths_of(column: Any) -> Any:
    return np.diff(parts_of(column)[1])


def joined(*pieces: Any) -> Any:
    """Pieces of rows, one behind the other. What is the same in all rows is bytes; one piece at least is a column."""
    columns = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    size = sum(int(lengths_of(piece).sum()) for piece in columns if not isinstance(piece, pa.Scalar))
    if (
        size + sum(len(piece) for piece in pieces if isinstance(piece, bytes)) * len(next(p for p in pieces if not isinstance(p, bytes)))
        > _MOST_BYTES
    ):
        raise SingleRows("they are too large for a column")
    return pc.binary_join_element_wise(*columns, _EMPTY)


def packed_ints(numbers: Any) -> Any:
    """Each number, as an Arrow array of bytes. numbers: int64."""
    return _INTS.packed(numbers)


def packed_texts(texts: Any) -> Any:
    """Each text of an Arrow array without nulls."""
    return joined(_TEXT_HEADS.packed(lengths_of(texts)), texts.cast(BINARY))


def heads_of_bytes(lengths: Any) -> Any:
    """What stands before so many bytes."""
    return _BYTES_HEADS.packed(lengths)


def packed_column(column: Any) -> Any:
    """Every value of an Arrow array, null being nil. Raises SingleRows for types that are not here."""
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return pa.repeat(pa.scalar(NIL, BINARY), len(column))
    if types.is_signed_integer(kind):
        made = packed_ints(column.cast(pa.int64()).fill_null(0).to_numpy())
    elif types.is_string(kind):
        made = packed_texts(column.fill_null("") if column.null_count else column)
    elif types.is_boolean(kind):
        made = pc.if_else(column.fill_null(False), pa.scalar(TRUE, BINARY), pa.scalar(FALSE, BINARY))
    elif types.is_float32(kind) or types.is_float64(kind):
        cells = np.empty((len(column), 9), np.uint8)
        cells[:, 0] = 0xCB
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        cells[:, 1:] = numbers.astype(">f8").view(np.uint8).reshape(-1, 8)
        made = column_of(cells, np.full(len(column), 9))
    else:
        raise SingleRows(f"values of type {kind} are packed one by one")
    return pc.if_else(column.is_valid(), made, pa.scalar(NIL, BINARY)) if column.null_count else made


def packed_documents(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Documents of some fields, as an Arrow array of bytes."""
    count = len(names)
    if not count or count >= 2**16:
        raise SingleRows("documents without fields")
    head = bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big")
    pieces: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [head + packed_name(name), packed_column(column)]
        head = b""
    return joined(*pieces)


def packed_name(name: str) -> bytes:
    """A field's name."""
    data = name.encode()
    size = len(data)
    if size < 32:
        return bytes([0xA0 | size]) + data
    return (b"\xd9" + bytes([size]) if size < 256 else b"\xda" + size.to_bytes(2, "big")) + data
