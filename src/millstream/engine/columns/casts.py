"""Columns as the texts and times that Spark's casts make of them: of ids and sub-sources, of keys, of timestamps.

Rules
1. What `CAST(... AS STRING)` says in a session in UTC, with ANSI casts, which are Spark's default. A type that is not here is refused by name: that of a
   float depends on the version of Java, and Spark's texts of structs and lists are for people.
2. A key's text is that of `core/keys.py`. A null has none.
3. All functions can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .hashing import ByteRows, numbers, valid

Cast = Callable[[Any], Any]  # an Arrow array to another

_NUL = "\0"
_BEGINS = pc.MatchSubstringOptions(_NUL)
_NULLS = pc.JoinOptions("emit_null")
_EMPTY, _COLON = pa.scalar(""), pa.scalar(":")
_STRING, _INTEGER, _BINARY, _TUPLE = (pa.scalar(_NUL + letter) for letter in "sixt")
_BOOLEANS = pa.array([_NUL + "b0", _NUL + "b1"])
_WORDS = pa.array(["false", "true"])
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint16)


def is_text(kind: Any) -> bool:
    """Whether a column holds strings."""
    return kind in (pa.string(), pa.large_string())


def is_bytes(kind: Any) -> bool:
    """Whether a column holds bytes."""
    return kind in (pa.binary(), pa.large_binary())


def text(kind: Any) -> Cast | None:
    """What makes the text of a column, or None if we cannot."""
    types = pa.types
    if types.is_string(kind):
        return as_it_is
    if types.is_large_string(kind) or types.is_signed_integer(kind) or types.is_null(kind):
        return _to_string
    if is_bytes(kind):
        return _bytes_as_text
    if types.is_boolean(kind):
        return partial(_chosen, _WORDS)
    if types.is_decimal128(kind):
        return _decimal_text
    if kind == pa.date32():
        return _date_text
    if types.is_timestamp(kind) and kind.unit == "us":
        return _moment_text
    return None


def key_text(kind: Any) -> Cast | None:
    """What makes the key's text of a column, or None if it cannot be a key."""
    if is_text(kind):
        return _string_key
    if pa.types.is_signed_integer(kind):
        return integer_key
    if pa.types.is_boolean(kind):
        return partial(_chosen, _BOOLEANS)
    if is_bytes(kind):
        return _binary_key
    return None


def millis(kind: Any) -> Cast | None:
    """What makes milliseconds of a column, or None if it is no time."""
    if kind == pa.int64():
        return as_it_is
    if pa.types.is_signed_integer(kind):
        return _to_long
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _floored
    return None


def as_it_is(array: Any) -> Any:
    """For what is right already."""
    return array


def tuple_key(parts: Sequence[Any]) -> Any:
    """The text of keys of several columns, from those of their parts."""
    pieces: list[Any] = [_TUPLE]
    for part in parts:
        pieces += [pc.utf8_length(part).cast(pa.string()), _COLON, part]
    return _joined(*pieces)


def _joined(*pieces: Any) -> Any:
    """One text behind the other. Null where one of them is."""
    return pc.call_function("binary_join_element_wise", [*pieces, _EMPTY], _NULLS)


def integer_key(array: Any) -> Any:
    """The key's text of whole numbers."""
    return _joined(_INTEGER, array.cast(pa.string()))


def _to_string(array: Any) -> Any:
    return array.cast(pa.string())


def _to_long(array: Any) -> Any:
    return array.cast(pa.int64())


def _bytes_as_text(array: Any) -> Any:
    return (array if array.type == pa.binary() else array.cast(pa.binary())).view(
        pa.string()
    )  # whatever they are: Spark does not look either


def _chosen(words: Any, array: Any) -> Any:
    return words.take(array.cast(pa.int8()))


def _string_key(array: Any) -> Any:
    array = array if array.type == pa.string() else array.cast(pa.string())
    begins = pc.call_function("starts_with", [array], _BEGINS)
    if not begins.true_count:
        return array
    return pc.if_else(begins, _joined(_STRING, array), array)


def _binary_key(array: Any) -> Any:
    rows = ByteRows.of(array.cast(pa.binary()))
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(rows.lengths * 2, out=offsets[1:])
    where = np.repeat(rows.starts - offsets[:-1] // 2, rows.lengths) + np.arange(offsets[-1] // 2)
    data = _HEX[rows.data[where]]
    hexed = pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
    found = _joined(_BINARY, hexed)
    return found if array.null_count == 0 else pc.if_else(array.is_valid(), found, None)


def _floored(array: Any) -> Any:
    """Microseconds to milliseconds, downwards."""
    found = pa.array(numbers(array, np.int64) // 1000)
    return found if array.null_count == 0 else pc.if_else(array.is_valid(), found, None)


def _decimal_text(array: Any) -> Any:
    return pa.array([None if one is None else format(one, "f") for one in array.to_pylist()], pa.string())


def _date_text(array: Any) -> Any:
    return _texts(array, _dates(numbers(array, np.int32)))


def _moment_text(array: Any) -> Any:
    days, within = np.divmod(numbers(array, np.int64), 86_400_000_000)
    seconds, fractions = np.divmod(within, 1_000_000)
    found = [
        f"{day} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}" + (f".{fraction:06}".rstrip("0") if fraction else "")
        for day, second, fraction in zip(_dates(days), seconds.tolist(), fractions.tolist(), strict=True)
    ]
    return _texts(array, found)


def _dates(days: Any) -> list[str]:
    """Days since 1970 as dates. A year before 0 or beyond 9999 has its sign."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    of_month = (dates - months).astype(np.int64) + 1
    years, of_year = np.divmod(months.astype(np.int64), 12)
    return [
        f"{'-' if year < -1970 else '+' if year > 8029 else ''}{abs(year + 1970):04}-{month + 1:02}-{day:02}"
        for year, month, day in zip(years.tolist(), of_year.tolist(), of_month.tolist(), strict=True)
    ]


def _texts(array: Any, found: list[str]) -> Any:
    """Texts for the rows of a column that are not null."""
    return pa.array(found, pa.string(), mask=None if array.null_count == 0 else ~valid(array))
