"""Columns as the texts and times that Spark's casts make of them: of ids and sub-sources, of keys, of timestamps; and what is said of those that cannot be
what they are to be, in the same words whoever makes the keyed rows.

Rules
1. What `CAST(... AS STRING)` says with ANSI casts, which are Spark's default. A type that is not here is refused by name: the text of a float depends on
   the version of Java, that of a time on the session, and Spark's texts of structs and lists are for people.
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

from millstream.errors import DefinitionError

from .hashing import numbers

Cast = Callable[[Any], Any]  # an Arrow array to another

_NUL = "\0"
_FEW = 16  # texts that are looked at sooner one by one than by a function of Arrow's
_BEGINS = pc.MatchSubstringOptions(_NUL)
_NULLS = pc.JoinOptions("emit_null")
_EMPTY, _COLON = pa.scalar(""), pa.scalar(":")
_STRING, _INTEGER, _TUPLE = (pa.scalar(_NUL + letter) for letter in "sit")
_BOOLEANS = pa.array([_NUL + "b0", _NUL + "b1"])
_WORDS = pa.array(["false", "true"])
_TEXTS, _BYTES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())


NO_COLUMN = "{}: there is no column {!r}; the source has: {}"
NO_COLUMN_AT_ALL = "{}: give a column name, SQL text or a Spark Column, not a {}"
NO_KEY = "{} is a {}, which cannot be a key: use a string, an integer, a boolean or binary, or cast it"
NO_TIME = "{} is a {}: give milliseconds as a long, or a timestamp"
NO_TEXT = "{} is a {}, and only Spark can make its text: give a string column, or run without resident=True"


def text(kind: Any) -> Cast | None:
    """What makes the text of a column, or None if we cannot."""
    types = pa.types
    if types.is_string(kind):
        return as_it_is
    if types.is_large_string(kind) or types.is_signed_integer(kind) or types.is_null(kind):
        return partial(_cast, pa.string())
    if kind in _BYTES:
        return _bytes_as_text
    if types.is_boolean(kind):
        return partial(_chosen, _WORDS)
    if types.is_decimal128(kind):
        return _decimal_text
    return None


def key_text(kind: Any) -> Cast | None:
    """What makes the key's text of a column, or None if it cannot be a key."""
    if kind in _TEXTS:
        return _string_key
    if pa.types.is_signed_integer(kind):
        return integer_key
    if pa.types.is_boolean(kind):
        return partial(_chosen, _BOOLEANS)
    if kind in _BYTES:
        return _binary_key
    return None


def millis(kind: Any) -> Cast | None:
    """What makes milliseconds of a column, or None if it is no time."""
    if kind == pa.int64():
        return as_it_is
    if pa.types.is_signed_integer(kind):
        return partial(_cast, pa.int64())
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _floored
    return None


def as_it_is(array: Any) -> Any:
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
    return _joined(_INTEGER, array.cast(pa.string()))


def _cast(to: Any, array: Any) -> Any:
    return array.cast(to)


def _bytes_as_text(array: Any) -> Any:
    return array.cast(pa.binary()).view(pa.string())  # whatever they are: Spark does not look either


def _chosen(words: Any, array: Any) -> Any:
    return words.take(array.cast(pa.int8()))


def _string_key(array: Any) -> Any:
    if not pa.types.is_string(array.type):
        array = array.cast(pa.string())
    if len(array) <= _FEW and not any(text is not None and text.startswith(_NUL) for text in array.to_pylist()):
        return array
    begins = pc.call_function("starts_with", [array], _BEGINS)
    if not begins.true_count:
        return array
    return pc.if_else(begins, _joined(_STRING, array), array)


def _binary_key(array: Any) -> Any:
    return pa.array([None if value is None else f"{_NUL}x{value.hex()}" for value in array.to_pylist()], pa.string())


def _floored(array: Any) -> Any:
    """Microseconds to milliseconds, downwards."""
    found = pa.array(numbers(array, np.int64) // 1000)
    return found if array.null_count == 0 else pc.if_else(array.is_valid(), found, None)


def _decimal_text(array: Any) -> Any:
    return pa.array([None if one is None else format(one, "f") for one in array.to_pylist()], pa.string())


def only_spark(what: str, given: Any, why: str = "") -> DefinitionError:
    """An expression, where there is no JVM to work it out. why: what we do not understand of it."""
    shown = f"the SQL text {given!r}" if isinstance(given, str) else f"a Spark {type(given).__name__}"
    return DefinitionError(
        f"{what}: only Spark can work out {shown}: give column names, add the column in the source, or run without resident=True"
        f"{why and f' ({why})'}"
    )
