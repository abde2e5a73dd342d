"""JSON lines, with the rows that Spark's reader makes of them.

Rules
1. The quick way is Arrow's reader, for a block of lines whose rows are certainly Spark's: every line is one object (rule 2), all is UTF-8, no bare NaN or
   Inf, no -0 (which Spark reads as 0.0), and dates and times are written in the one form that both read alike. Arrow refuses everything else in which
   the two differ: values of another type, numbers out of range, names twice, unusual escapes.
2. Every line is one object if the block begins with "{", ends with "}", has "}\\n{" at every end of a line, and gives as many rows as lines: inside
   a JSON value a "{" never follows a "}".
3. A single line is read by the standard library. What stands behind the first value is not looked at. A column of strings takes a number, true and false
   as they are written. Names that come twice, objects in a column of strings, arrays of rows, halves of surrogate pairs, single quotes and bare infinities
   that JSON does not have are read by Spark only.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from millstream.sources.filereading import parse_values
from millstream.sources.filereading.errors import Malformed, OnlySpark
from millstream.sources.filereading.settings import Settings
from millstream.sources.filereading.text_rows import BadLine, TextRows

_ODD = re.compile(rb"[:\[,][ \t]*(?:-?(?:NaN|Inf(?:inity)?)|-0)[ \t]*[,\]}]")
_ZERO = re.compile(rb"-0[ \t]*[,\]}]")  # found quickly, where there is one
#: What Spark's parser takes, or turns into something, and ours does not.
_ONLY_SPARK = re.compile("'|[+-](?:INF|Infinity)|\ufeff|\\\\u[dD][89a-fA-F]")
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?")
_LONGEST, _DEEPEST = 1000, 500  # signs of a number, and levels of nesting, beyond which parsers differ
_SECONDS = 9_000_000_000_000  # beyond, a timestamp overflows

Converter = Callable[[Any], Any]


class _Integer(str):
    """The text of a number without point and exponent; _Float: of another number."""


class _Float(str):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise OnlySpark("it has an object with the same name twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_Integer, parse_float=_Float, parse_constant=_Float)


class JsonRows(TextRows):
    def __init__(self, schema: pa.Schema, unreadable: str | None, settings: Settings) -> None:
        super().__init__(schema, unreadable, settings)
        quick = {field.name: kind for field in self.columns if (kind := _quick_type(field.type, True)) is not None}
        self._quick = pa.schema(quick) if quick and len(quick) == len(self.columns) else None  # None: Arrow's reader cannot
        self._converters = [_converter(field.type, settings.zone) for field in self.columns]

    def quick(self, block: bytes) -> list[pa.Array] | None:
        if self._quick is None:
            return None
        count = block.count(b"\n")
        if not _one_object_a_line(block, count):
            block = b"\n".join(stripped for line in block.split(b"\n") if (stripped := line.strip(b" \t"))) + b"\n"
            count = block.count(b"\n")
            if not _one_object_a_line(block, count):
                return None
        if (b"Inf" in block or b"NaN" in block or _ZERO.search(block)) and _ODD.search(block):
            return None
        try:
            if not block.isascii():
                block.decode()  # only to see whether it is UTF-8
            table = _table(block, self._quick)
            if table.num_rows != count:
                return None
            return [self._fitted(table.column(field.name), field.type) for field in self.columns]
        except (UnicodeDecodeError, pa.ArrowException, OnlySpark):
            return None

    def _fitted(self, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if pa.types.is_decimal(wanted) and len(array):
            return parse_values.checked(array)
        if array.type == wanted:
            return array
        if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted):
            return pa.array([None if text is None else _base64(text) for text in array.to_pylist()], wanted)
        return parse_values.cast(array, wanted, self.settings.zone)

    def row(self, line: bytes) -> list[Any] | None:
        if not line.strip(b" \t"):
            return None
        values = _first_object(line)
        return self.convert((values.get(field.name) for field in self.columns), self._converters, _shown)


def _first_object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode().lstrip(" \t")
        found, end = _DECODER.raw_decode(text)
    except UnicodeDecodeError:
        raise BadLine("it is not UTF-8", only_spark=True) from None
    except OnlySpark as error:
        raise BadLine(str(error), only_spark=True) from None
    except (json.JSONDecodeError, RecursionError) as error:
        only_spark = isinstance(error, RecursionError) or _ONLY_SPARK.search(text) is not None
        raise BadLine("this is not JSON", only_spark=only_spark) from None
    if (len(text) > _LONGEST or _ONLY_SPARK.search(text, 0, end)) and not _is_usual(found):
        raise BadLine("it has half of a surrogate pair, a very long number, or is nested very deep", only_spark=True)
    if isinstance(found, list):
        raise BadLine("this is an array", only_spark=True)
    if not isinstance(found, dict):
        raise BadLine("this is no object")
    return found


def _is_usual(value: Any, depth: int = 0) -> bool:
    """Whether parsers agree about a value."""
    if isinstance(value, dict):
        return depth < _DEEPEST and all(_is_usual(name) and _is_usual(one, depth + 1) for name, one in value.items())
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_usual(one, depth + 1) for one in value)
    if isinstance(value, (_Integer, _Float)):
        return len(value) < _LONGEST
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    return value if isinstance(value, (_Integer, _Float)) else json.dumps(value, ensure_ascii=False)


def _one_object_a_line(block: bytes, count: int) -> bool:
    return block.startswith(b"{") and block.endswith(b"}\n") and block.count(b"}\n{") == count - 1


def _table(block: bytes, schema: pa.Schema) -> pa.Table:
    """What Arrow's reader makes of a block. (The one that streams costs a third where there are few lines; older versions lack it.)"""
    file = pa.BufferReader(block)
    how = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    what = pj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore")
    if hasattr(pj, "open_json"):
        return pj.open_json(file, read_options=how, parse_options=what).read_all()
    return pj.read_json(file, read_options=how, parse_options=what)


def _quick_type(kind: pa.DataType, top: bool) -> pa.DataType | None:
    """top: whether a column may be read as text, and made of it afterwards."""
    t = pa.types
    if t.is_timestamp(kind) or t.is_date(kind) or t.is_binary(kind) or t.is_large_binary(kind) or t.is_large_string(kind):
        return pa.string() if top else None
    if t.is_string(kind) or t.is_boolean(kind) or t.is_signed_integer(kind) or t.is_float64(kind) or t.is_float32(kind):
        return kind
    if t.is_decimal128(kind):
        return kind if top else None
    if t.is_list(kind):
        return kind if _quick_type(kind.value_type, False) is not None else None
    if t.is_struct(kind) and kind.num_fields:
        return kind if all(_quick_type(field.type, False) is not None for field in kind) else None
    return None


def _base64(text: str) -> bytes:
    if not _BASE64.fullmatch(text):
        raise OnlySpark
    return base64.b64decode(text)


def _converter(kind: pa.DataType, zone: str) -> Converter:
    """What makes a value of a type of a JSON value that is not null. Raises Malformed or OnlySpark."""
    t = pa.types
    if t.is_struct(kind):
        fields = [(field.name, _converter(field.type, zone)) for field in kind]
        return lambda value: {name: _or_null(convert, _of(dict, value).get(name)) for name, convert in fields}
    if t.is_map(kind):
        convert_item = _converter(kind.item_type, zone)
        return lambda value: [(name, _or_null(convert_item, one)) for name, one in _of(dict, value).items()]
    if t.is_list(kind) or t.is_large_list(kind):
        convert_element = _converter(kind.value_type, zone)
        return lambda value: [_or_null(convert_element, one) for one in _of(list, value)]
    if t.is_string(kind) or t.is_large_string(kind):
        return _string
    if t.is_boolean(kind):
        return lambda value: _of(bool, value)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return lambda value: _base64(_of(str, value))
    parse = parse_values.parser(kind, zone)
    if t.is_signed_integer(kind):
        return lambda value: _byte(value) if kind.bit_width == 8 else parse(_of(_Integer, value))
    if t.is_floating(kind):
        return lambda value: _number(value, parse)
    if t.is_decimal(kind):
        return lambda value: parse(_of(str, value, _Integer, _Float))
    if t.is_timestamp(kind) and kind.tz is not None:
        return lambda value: _seconds(value) if isinstance(value, _Integer) else parse(_of(str, value))
    return lambda value: parse(_of(str, value))  # dates, and times of no zone


def _or_null(convert: Converter, value: Any) -> Any:
    return None if value is None else convert(value)


def _of(kind: type, value: Any, *others: type) -> Any:
    """A value, if JSON says that it is of this kind."""
    if value.__class__ is not kind and value.__class__ not in others:
        raise Malformed
    return value


def _string(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise OnlySpark
    return str(value).lower() if isinstance(value, bool) else str(value)


def _byte(value: Any) -> int:
    if parse_values.integer(_of(_Integer, value), 255) > 127:  # Spark's parser takes it for a negative one
        raise OnlySpark
    return parse_values.integer(value, 127)


def _number(value: Any, parse: Converter) -> float:
    if value.__class__ is str:  # NaN and its like may stand in quotes, and numbers may not
        if any(sign.isdigit() for sign in value):
            raise Malformed
        return float(parse(value))
    text = _of(_Integer, value, _Float)
    return float(parse("0" if text == "-0" else text))


def _seconds(value: str) -> int:
    if len(value) > 20 or abs(int(value)) > _SECONDS:
        raise OnlySpark
    return int(value) * 1_000_000
