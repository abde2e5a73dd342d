"""CSV, with the rows that Spark's reader makes of it.

Rules
1. Columns go by their place. With a header, the first line of a file that is not blank is left out; its names are not looked at. Blank lines are left out.
2. The quick way is Arrow's reader, for the text of the columns, and `castings` for their types. It is taken for a block of lines only if every quote in it
   opens or closes a whole value, without an escape in between.
3. A block that the quick way refuses is cut into small ones. Those that it refuses again are read line by line, by `csvtokens`.
4. A line with too many or too few values, or with one that does not fit its column, is an error; or, with a column for it, a row that has its text there,
   and null for what does not fit; or it is left out, if the source's mode says so.
5. Quotes that are neither escaped nor in place may be more than `csvtokens` can tell; such a line is a bad one, even where Spark reads something.
6. Bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv

from millstream.sources.filereading import castings, texts
from millstream.sources.filereading.castings import Misfit
from millstream.sources.filereading.csvtokens import OddQuotes, values
from millstream.sources.filereading.lines import blocks
from millstream.sources.filereading.refusal import refusal
from millstream.sources.filereading.settings import Settings

_SMALL = 32 << 10
_BLANK = bytes(range(33))
_BLANK_LINE = re.compile(rb"^[\x00-\x20]*\n", re.MULTILINE)
_DOUBLE = re.compile(
    r"[\x00-\x20]*([+-]?)(?:(NaN|Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?|(0[xX][0-9a-fA-F.]+[pP][+-]?[0-9]+)[fFdD]?)[\x00-\x20]*"
)
_SPECIAL = {"Inf": "inf", "-Inf": "-inf", "NaN": "nan", "Infinity": "inf"}


class CsvRows:
    """Reads CSV into batches of one schema. unreadable: the column for the text of bad lines."""

    def __init__(self, schema: pa.Schema, unreadable: str | None, settings: Settings) -> None:
        self.schema = schema
        self._unreadable = unreadable
        self._settings = settings
        self._columns = [field for field in schema if field.name != unreadable]
        self._converters = [_converter(field.type, settings.zone) for field in self._columns]
        self._names = [str(at) for at in range(len(self._columns))]
        sign, quote, escape = (re.escape(one.encode()) for one in (settings.separator, settings.quote, settings.escape))
        inside = rb"(?:[^%b\n]|%b%b)*" % (quote, quote, quote) if settings.escape == settings.quote else rb"[^%b%b\n]*" % (quote, escape)
        self._whole = re.compile(rb"(?<![^%b\n])%b%b%b(?=[%b\n])" % (sign, quote, inside, quote, sign))

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        line = 1 if start == 0 else None
        header = self._settings.header and start == 0
        for block in blocks(path, start, end):
            number = line
            line = None if line is None else line + block.count(b"\n")
            if header:
                rest = _without_header(block)
                if rest is None:
                    continue
                number = None if number is None else number + block.count(b"\n") - rest.count(b"\n")
                block, header = rest, False
            if block:
                batch = self._quickly(block)
                yield from [batch] if batch is not None else self._in_parts(block, path, number)

    def _in_parts(self, block: bytes, path: str, line: int | None) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(block):
            end = block.find(b"\n", min(at + _SMALL, len(block) - 1)) + 1
            part = block[at:end]
            batch = self._quickly(part) if len(part) < len(block) else None
            batch = self._slowly(part, path, line) if batch is None else batch
            if batch.num_rows:
                yield batch
            line = None if line is None else line + part.count(b"\n")
            at = end

    def _quickly(self, block: bytes) -> pa.RecordBatch | None:
        given = self._settings
        quote = given.quote.encode()
        if block.startswith(b"\xef\xbb\xbf") or not self._columns:
            return None
        if quotes := block.count(quote):
            matches = self._whole.findall(block)
            inner = sum(match.count(quote) for match in matches) if given.escape == given.quote else 2 * len(matches)
            if inner != quotes or (given.null and quote * 2 in block) or given.empty:
                return None
        if b"\n\n" in block or block.startswith(b"\n") or len(self._columns) == 1 or given.separator <= " ":
            block = _BLANK_LINE.sub(b"", block)
            if not block:
                return None
        nulls = ["", given.null]
        try:
            table = pv.open_csv(
                pa.BufferReader(block),
                pv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self._names),
                pv.ParseOptions(
                    delimiter=given.separator,
                    quote_char=given.quote if quotes else False,
                    double_quote=given.escape == given.quote,
                    newlines_in_values=False,
                    ignore_empty_lines=False,
                ),
                pv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.string()),
                    null_values=nulls,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            ).read_all()
            if table.num_rows != block.count(b"\n"):
                return None
            arrays = [
                castings.cast(table.column(name).combine_chunks(), field.type, given.zone)
                for name, field in zip(self._names, self._columns, strict=True)
            ]
        except (pa.ArrowException, Misfit):
            return None
        return self._batch(arrays, None, table.num_rows)

    def _slowly(self, block: bytes, path: str, number: int | None) -> pa.RecordBatch:
        rows: list[list[Any]] = []
        bad: list[str | None] = []
        given, width = self._settings, len(self._columns)
        for at, line in enumerate(block.split(b"\n")[:-1]):
            if not line.strip(_BLANK):
                continue
            text = line.decode("utf-8", "replace")
            try:
                found = values(text, given.separator, given.quote, given.escape)
                wrong = None if len(found) == width else f"it has {len(found)} values, and the schema {width}"
            except OddQuotes:
                found, wrong = [], "it has quotes and escapes in places where they mean nothing"
            row: list[Any] = [None] * width
            for place, (value, converter) in enumerate(zip(found, self._converters, strict=False)):
                value = given.empty if value == "" else value
                if value is None or value == given.null:
                    continue
                row[place] = converter(value)
                if row[place] is None:
                    field = self._columns[place]
                    wrong = wrong or f"column {field.name!r}: {value[:80]!r} does not fit the type {field.type}"
            if wrong is not None and self._drops():
                continue
            if wrong is not None and self._unreadable is None:
                raise refusal(path, wrong, None if number is None else number + at, text)
            rows.append(row)
            bad.append(None if wrong is None else text)
        columns = zip(*rows, strict=True) if rows else [()] * width
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, self._columns, strict=True)]
        return self._batch(arrays, bad, len(rows))

    def _drops(self) -> bool:
        return self._settings.drops

    def _batch(self, arrays: list[pa.Array], bad: list[str | None] | None, count: int) -> pa.RecordBatch:
        if self._unreadable is not None:
            at = self.schema.get_field_index(self._unreadable)
            kind = self.schema.field(at).type
            arrays = [*arrays[:at], pa.nulls(count, kind) if bad is None else pa.array(bad, kind), *arrays[at:]]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _without_header(block: bytes) -> bytes | None:
    """A block behind the first line that is not blank; None if all are."""
    at = 0
    while at < len(block):
        end = block.index(b"\n", at) + 1
        if block[at:end].strip(_BLANK):
            return block[end:]
        at = end
    return None


def _converter(kind: pa.DataType, zone: str) -> Callable[[str], Any]:
    """Of a text, the value; None if it does not fit."""
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind):
        return lambda text: text
    if t.is_signed_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        return lambda text: number if re.fullmatch(r"[+-]?\d{1,40}", text) and least <= (number := int(text)) <= most else None
    if t.is_floating(kind):
        return _double if t.is_float64(kind) else _float
    if t.is_boolean(kind):
        return lambda text: {"TRUE": True, "FALSE": False}.get(text.upper())
    if t.is_decimal(kind):
        return lambda text: texts.decimal_text(text.replace(",", ""), kind.precision, kind.scale)
    if t.is_date(kind):
        return lambda text: _either(texts.date, text)
    if t.is_timestamp(kind) and kind.tz is None:
        return texts.local_timestamp
    if t.is_timestamp(kind):
        return lambda text: _either(lambda one: texts.timestamp(one, zone), text)
    raise AssertionError(kind)


def _either(read: Callable[[str], int | None], text: str) -> int | None:
    """What a text says, or what it says without "GMT"."""
    found = read(text)
    return read(text.strip().replace("GMT", "", 1)) if found is None and "GMT" in text else found


def _double(text: str) -> float | None:
    if text in _SPECIAL:
        return float(_SPECIAL[text])
    match = _DOUBLE.fullmatch(text)
    if match is None:
        return None
    sign, word, number, hexadecimal = match.groups()
    try:
        value = float(_SPECIAL[word]) if word else float(number) if number else float.fromhex(hexadecimal)
    except (ValueError, OverflowError):
        return None
    return -value if sign == "-" else value


def _float(text: str) -> float | None:
    """Rounded once, from the text."""
    match = _DOUBLE.fullmatch(text)
    if match is None or not match.group(3):
        return _double(text)
    try:
        return float(pa.array([match.group(1).replace("+", "") + match.group(3)]).cast(pa.float32())[0].as_py())
    except pa.ArrowInvalid:
        return _double(text)
