"""CSV, with the rows that Spark's reader makes of it.

Rules
1. Columns go by their place. Blank lines are left out; so is, with a header, the first line that is not blank.
2. The quick way is Arrow's reader, for the text of the columns, and `cast` for their types. It is taken for a block of lines only if every quote in it
   opens or closes a whole value, without an escape in between.
3. A value that does not begin with a quote is what stands up to the next separator, quotes and escapes and all. One in quotes ends with a quote that has a
   separator or the end of the line behind it. In it, the escape before a quote, or before another escape, goes; before anything else it stays.
   A line with other quotes is one that only Spark reads.
4. An empty value is null; an empty one in quotes is `emptyValue`. Bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv

from millstream.sources.filereading.errors import OnlySpark
from millstream.sources.filereading.parse_values import cast, parser
from millstream.sources.filereading.settings import Settings
from millstream.sources.filereading.text_rows import BadLine, TextRows

_BLANK = bytes(range(33))
_BLANK_LINE = re.compile(rb"^[\x00-\x20]*\n", re.MULTILINE)
_FIRST_LINE = re.compile(rb"[\x00-\x20]*[^\x00-\x20][^\n]*\n")  # that is not blank, and those before it


class CsvRows(TextRows):
    def __init__(self, schema: pa.Schema, unreadable: str | None, settings: Settings) -> None:
        super().__init__(schema, unreadable, settings)
        self._parsers = [parser(field.type, settings.zone) for field in self.columns]
        self._names = [str(at) for at in range(len(self.columns))]
        sign, quote, escape = (re.escape(one.encode()) for one in (settings.separator, settings.quote, settings.escape))
        inside = rb"(?:[^%b\n]|%b%b)*" % (quote, quote, quote) if settings.escape == settings.quote else rb"[^%b%b\n]*" % (quote, escape)
        self._whole = re.compile(rb"(?<![^%b\n])%b%b%b(?=[%b\n])" % (sign, quote, inside, quote, sign))
        self._values = values_of(settings)

    def without_header(self, block: bytes) -> bytes | None:
        first = _FIRST_LINE.match(block) if self.settings.header else None
        return block if not self.settings.header else None if first is None else block[first.end() :]

    def quick(self, block: bytes) -> list[pa.Array] | None:
        given = self.settings
        quote = given.quote.encode()
        if block.startswith(b"\xef\xbb\xbf") or not self.columns:
            return None
        if quotes := block.count(quote):
            matches = self._whole.findall(block)
            inner = sum(match.count(quote) for match in matches) if given.escape == given.quote else 2 * len(matches)
            if inner != quotes or (given.null and quote * 2 in block) or given.empty:
                return None
        if b"\n\n" in block or block.startswith(b"\n") or len(self.columns) == 1 or given.separator <= " ":
            block = _BLANK_LINE.sub(b"", block)
            if not block:
                return None
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
                    null_values=["", given.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            ).read_all()
            if table.num_rows != block.count(b"\n"):
                return None
            columns = zip(self._names, self.columns, strict=True)
            return [cast(table.column(name).combine_chunks(), field.type, given.zone) for name, field in columns]
        except (pa.ArrowException, OnlySpark):
            return None

    def row(self, line: bytes) -> list[Any] | None:
        if not line.strip(_BLANK):
            return None
        given, width = self.settings, len(self.columns)
        values = self._values(line.decode("utf-8", "replace"))
        if len(values) != width:
            raise BadLine(f"it has {len(values)} values, and the schema {width}")
        values = [given.empty if value == "" else value for value in values]
        return self.convert((None if value == given.null else value for value in values), self._parsers, repr)


def values_of(settings: Settings) -> Any:
    r"""What cuts a line into its values, by rule 3. It raises BadLine for quotes of which only Spark knows the meaning.

    >>> values_of(Settings("csv"))('a,"b,c",,"d\\"e"')
    ['a', 'b,c', None, 'd"e']
    """
    sign, quote, escape = (re.escape(one) for one in (settings.separator, settings.quote, settings.escape))
    escaped = re.compile(rf"{escape}([{quote}{escape}])")
    inside = (
        rf"(?:[^{quote}]|{quote}{quote})*"
        if quote == escape
        else rf"(?:[^{quote}{escape}]|{escape}[{quote}{escape}]|{escape}(?![{quote}{escape}]))*"
    )
    value = re.compile(rf"(?:{quote}({inside}){quote}|(?!{quote})([^{sign}]*))(?:{sign}|$)", re.DOTALL)

    def values(line: str) -> list[str | None]:
        found: list[str | None] = []
        at = 0
        while True:
            match = value.match(line, at)
            if match is None:
                raise BadLine("it has quotes and escapes in unusual places", only_spark=True)
            quoted, bare = match.groups()
            found.append(bare or None if quoted is None else escaped.sub(r"\1", quoted))
            at = match.end()
            if line[at - 1 : at] != settings.separator or at == match.start():
                return found

    return values
