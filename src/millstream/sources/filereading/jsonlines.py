"""JSON lines, with the rows that Spark's reader makes of them.

Rules
1. The quick way is Arrow's reader. It is taken for a block of lines only where its rows are certainly Spark's: every line is one object (rule 2), all is
   UTF-8, no bare NaN or Inf, no zero with a sign (Spark's is 0.0 for -0), and dates and times are written in the one form that both read alike.
   Arrow refuses everything else in which the two differ: values of another type, numbers out of range, names twice, unusual escapes.
2. Every line is one object if the block begins with "{", ends with "}", has "}\\n{" at every end of a line, and gives as many rows as lines: inside
   a JSON value a "{" never follows a "}".
3. A block that the quick way refuses is cut into small ones. Those that it refuses again are read line by line, by `tokens`.
4. A line that is not JSON, or has a value that does not fit its column, is an error; or, with a column for it, a row that has its text there, and null for what
   does not fit (for all columns, if it is not JSON); or it is left out, if the source's mode says so.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from millstream.sources.filereading import castings, texts
from millstream.sources.filereading.castings import Misfit
from millstream.sources.filereading.lines import blocks
from millstream.sources.filereading.refusal import refusal
from millstream.sources.filereading.tokens import JsonValue, MalformedLine, first_value

_SMALL = 32 << 10
_BARE = re.compile(rb"[:\[,][ \t]*-?(?:NaN|Inf(?:inity)?)[ \t]*[,\]}]")
_QUAD = re.compile(r"[\x00-\x20]*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_WRAP = 1 << 64
_NON_NUMERIC = {"NaN": "nan", "+INF": "inf", "INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}

Converter = Callable[[JsonValue, str], Any]


class Partial(Exception):
    """A value of which a part does not fit. value: the rest."""

    def __init__(self, value: Any, what: str) -> None:
        super().__init__(what)
        self.value = value
        self.what = what


class JsonLines:
    """Reads JSON lines into batches of one schema. unreadable: the column for the text of bad lines. drops: whether bad lines are left out."""

    def __init__(self, schema: pa.Schema, unreadable: str | None, drops: bool, zone: str) -> None:
        self.schema = schema
        self._unreadable = unreadable
        self._drops = drops
        self._zone = zone
        self._columns = [field for field in schema if field.name != unreadable]
        self._quick = _quick_schema(self._columns)
        self._doubles = any(_has_double(field.type) for field in self._columns)
        self._row = _struct(self._columns, zone)

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        line = 1 if start == 0 else None
        for block in blocks(path, start, end):
            count = block.count(b"\n")
            batch = self._quickly(block, count)
            if batch is not None:
                yield batch
            else:
                yield from self._in_parts(block, path, line)
            line = None if line is None else line + count

    def _in_parts(self, block: bytes, path: str, line: int | None) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(block):
            end = block.find(b"\n", min(at + _SMALL, len(block) - 1)) + 1
            part = block[at:end]
            count = part.count(b"\n")
            batch = self._quickly(part, count) if len(part) < len(block) else None
            batch = self._slowly(part, path, line) if batch is None else batch
            if batch.num_rows:
                yield batch
            line = None if line is None else line + count
            at = end

    def _quickly(self, block: bytes, count: int) -> pa.RecordBatch | None:
        """The rows of so many lines; None if they are not certainly Spark's."""
        if self._quick is None:
            return None
        if not _one_object_a_line(block, count):
            block = b"\n".join(stripped for line in block.split(b"\n") if (stripped := line.strip(b" \t"))) + b"\n"
            count = block.count(b"\n")
            if not _one_object_a_line(block, count):
                return None
        if not block.isascii():
            try:
                block.decode()
            except UnicodeDecodeError:
                return None
        if (b"Inf" in block or b"NaN" in block) and _BARE.search(block):
            return None
        try:
            table = _table(block, self._quick)
            if table.num_rows != count:
                return None
            arrays = [self._fitted(table.column(field.name), field.type) for field in self._columns]
        except (pa.ArrowException, Misfit):
            return None
        if self._doubles and any(_has_odd_zero(array) for array in arrays):
            return None
        return self._batch(arrays, None, count)

    def _fitted(self, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if pa.types.is_decimal(wanted) and len(array):
            return castings.checked(array)
        if array.type == wanted:
            return array
        if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted):
            return pa.array([None if text is None else _base64(text) for text in array.to_pylist()], wanted)
        return castings.cast(array, wanted, self._zone)

    def _slowly(self, block: bytes, path: str, number: int | None) -> pa.RecordBatch:
        rows: list[tuple[Any, ...]] = []
        bad: list[str | None] = []
        for at, line in enumerate(block.split(b"\n")[:-1]):
            try:
                for row in self._rows(line):
                    rows.append(row)
                    bad.append(None)
            except (MalformedLine, Misfit, Partial) as error:
                text = line.decode("utf-8", "replace")
                if self._drops:
                    continue
                if self._unreadable is None:
                    what = error.what if isinstance(error, (Misfit, Partial)) else "this is not JSON"
                    raise refusal(path, what, None if number is None else number + at, text) from None
                kept = error.value if isinstance(error, Partial) else [(None,) * len(self._columns)]
                rows.extend(kept)
                bad.extend([text] * len(kept))
        columns = zip(*rows, strict=True) if rows else [()] * len(self._columns)
        arrays = [pa.array(list(values), field.type) for values, field in zip(columns, self._columns, strict=True)]
        return self._batch(arrays, bad, len(rows))

    def _rows(self, line: bytes) -> list[tuple[Any, ...]]:
        try:
            text = line.removeprefix(b"\xef\xbb\xbf").decode()
            node = first_value(text)
        except (UnicodeDecodeError, RecursionError):
            raise MalformedLine from None
        if node is None:
            return []
        if node.kind == "object":
            try:
                return [tuple(self._row(node, text).values())]
            except Partial as partial:
                raise Partial([tuple(partial.value.values())], partial.what) from None
        if node.kind != "array":
            raise Misfit("this is no object")
        rows, wrong = [], None
        for one in node.value:
            if one.kind != "object":
                raise Misfit("this is an array of what is no object")
            try:
                rows.append(tuple(self._row(one, text).values()))
            except Partial as partial:
                rows.append(tuple(partial.value.values()))
                wrong = wrong or partial.what
        if wrong is not None:
            raise Partial(rows, wrong)
        return rows

    def _batch(self, arrays: list[pa.Array], bad: list[str | None] | None, count: int) -> pa.RecordBatch:
        if self._unreadable is not None:
            at = self.schema.get_field_index(self._unreadable)
            kind = self.schema.field(at).type
            arrays = [*arrays[:at], pa.nulls(count, kind) if bad is None else pa.array(bad, kind), *arrays[at:]]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _one_object_a_line(block: bytes, count: int) -> bool:
    return block.startswith(b"{") and block.endswith(b"}\n") and block.count(b"}\n{") == count - 1


def _table(block: bytes, schema: pa.Schema) -> pa.Table:
    """What Arrow's reader makes of a block. (The one that streams costs a third where there are a few lines only; older versions lack it.)"""
    file = pa.BufferReader(block)
    how = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    what = pj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore")
    if hasattr(pj, "open_json"):
        return pj.open_json(file, read_options=how, parse_options=what).read_all()
    return pj.read_json(file, read_options=how, parse_options=what)


def _quick_schema(fields: list[pa.Field]) -> pa.Schema | None:
    """What Arrow's reader is to make of the columns; None if it cannot."""
    types = [_quick_type(field.type, True) for field in fields]
    names = {field.name for field in fields}
    if not fields or any(kind is None for kind in types) or len(names) < len(fields):
        return None
    return pa.schema([(field.name, kind) for field, kind in zip(fields, types, strict=True)])


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
        inner = _quick_type(kind.value_type, False)
        return kind if inner is not None else None
    if t.is_struct(kind) and kind.num_fields:
        return kind if all(_quick_type(kind.field(at).type, False) is not None for at in range(kind.num_fields)) else None
    return None


def _has_double(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_double(kind.field(at).type) for at in range(kind.num_fields))


def _has_odd_zero(array: pa.Array) -> bool:
    """Whether there is a zero with a sign, of which the text may have been -0 or -0.0."""
    kind = array.type
    if pa.types.is_list(kind):
        return _has_odd_zero(array.flatten())
    if pa.types.is_struct(kind):
        return any(_has_odd_zero(array.field(at)) for at in range(kind.num_fields))
    if not pa.types.is_floating(kind):
        return False
    values = array.to_numpy(zero_copy_only=False)
    zeros = values == 0
    return bool(zeros.any()) and bool(np.signbit(values[zeros]).any())


def _base64(text: str) -> bytes:
    found, at = [], 0
    while match := _QUAD.match(text, at):
        found.append(base64.b64decode(match.group(1)))
        at = match.end()
    if text[at:].strip("".join(map(chr, range(33)))):
        raise Misfit("this is not base64")
    return b"".join(found)


def _struct(fields: list[pa.Field], zone: str) -> Converter:
    """Objects into dicts with all fields."""
    converters = {field.name: _converter(field.type, zone) for field in fields}
    kinds = {field.name: field.type for field in fields}

    def convert(node: JsonValue, text: str) -> dict[str, Any]:
        if node.kind != "object":
            raise Misfit("this is no object")
        row: dict[str, Any] = dict.fromkeys(converters)
        wrong: str | None = None
        for name, one in node.value:
            converter = converters.get(name)
            if converter is None:
                continue
            try:
                row[name] = None if one.kind == "null" else converter(one, text)
            except Partial as partial:
                row[name] = partial.value
                wrong = wrong or partial.what
            except Misfit as misfit:
                wrong = wrong or (misfit.what or f"column {name!r}: {text[one.start : one.end][:80]} does not fit the type {kinds[name]}")
        if wrong is not None:
            raise Partial(row, wrong)
        return row

    return convert


def _several(kind: str, value: Converter, pairs: bool) -> Converter:
    """Arrays into lists, or objects into lists of pairs."""

    def convert(node: JsonValue, text: str) -> list[Any]:
        if node.kind != kind:
            raise Misfit("")
        found, wrong = [], None
        for each in node.value:
            one = each[1] if pairs else each
            try:
                made = None if one.kind == "null" else value(one, text)
            except Partial as partial:
                made, wrong = partial.value, wrong or partial.what
            found.append((each[0], made) if pairs else made)
        if wrong is not None:
            raise Partial(found, wrong)
        return found

    return convert


def _converter(kind: pa.DataType, zone: str) -> Converter:
    t = pa.types
    if t.is_struct(kind):
        return _struct([kind.field(at) for at in range(kind.num_fields)], zone)
    if t.is_map(kind):
        return _several("object", _converter(kind.item_type, zone), True)
    if t.is_list(kind) or t.is_large_list(kind):
        return _several("array", _converter(kind.value_type, zone), False)
    if t.is_string(kind) or t.is_large_string(kind):
        return lambda node, text: node.value if node.kind == "string" else text[node.start : node.end]
    if t.is_signed_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        return lambda node, text: _integer(node, least, most)
    if t.is_floating(kind):
        return _double if t.is_float64(kind) else _float
    if t.is_boolean(kind):
        return lambda node, text: node.value == "true" if node.kind == "word" else _no()
    if t.is_binary(kind) or t.is_large_binary(kind):
        return lambda node, text: _base64(node.value) if node.kind == "string" else _no()
    if t.is_decimal(kind):
        return lambda node, text: _given(
            texts.decimal_text(node.value.replace(",", ""), kind.precision, kind.scale) if node.kind in ("string", "int", "float") else None
        )
    if t.is_date(kind):
        return lambda node, text: _given(texts.old_date(node.value) if node.kind == "string" else None)
    if t.is_timestamp(kind) and kind.tz is None:
        return lambda node, text: _given(texts.local_timestamp(node.value) if node.kind == "string" else None)
    if t.is_timestamp(kind):
        return lambda node, text: _timestamp(node, zone)
    raise AssertionError(kind)


def _no() -> Any:
    raise Misfit("")


def _given(value: Any) -> Any:
    return _no() if value is None else value


def _integer(node: JsonValue, least: int, most: int) -> int:
    if node.kind != "int" or len(node.value) > 20:
        _no()
    value = int(node.value)
    if most == 127 and 127 < value < 256:  # Spark's parser takes a byte without a sign for one with
        return value - 256
    return value if least <= value <= most else int(_no())


def _double(node: JsonValue, text: str) -> float:
    if node.kind == "int":
        return float(int(node.value))
    if node.kind == "float" or (node.kind == "string" and node.value in _NON_NUMERIC):
        return float(_NON_NUMERIC.get(node.value, node.value))
    return float(_no())


def _float(node: JsonValue, text: str) -> float:
    """Rounded once, from the text."""
    if node.kind not in ("int", "float") or node.value in _NON_NUMERIC:
        return _double(node, text)
    value = node.value if node.value != "-0" else "0"
    try:
        return float(pa.array([value]).cast(pa.float32())[0].as_py())
    except pa.ArrowInvalid:  # too large for a float
        return _double(node, text)


def _timestamp(node: JsonValue, zone: str) -> int:
    if node.kind == "int":
        return (_integer(node, -(1 << 63), (1 << 63) - 1) * 1_000_000 + (_WRAP >> 1)) % _WRAP - (_WRAP >> 1)
    if node.kind != "string":
        _no()
    found = texts.timestamp(node.value, zone)
    if found is None and "GMT" in node.value:
        found = texts.timestamp(node.value.replace("GMT", "", 1), zone)
    return int(_given(found))
