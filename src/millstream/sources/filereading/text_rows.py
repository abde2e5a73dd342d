"""Files of lines read into batches: the quick way for whole blocks, and line by line where it refuses. Common to JSON and CSV.

Rules
1. The quick way is Arrow's reader (`quick`), which a format takes only where its rows are certainly Spark's. A block that it refuses is cut into small
   ones. Those that it refuses again are read line by line (`row`).
2. A line that is malformed, or has a value that does not fit its column, is an error; or, with a column for it, a row that has its text there, and null
   for what does not fit; or it is left out, if the source's mode says so.
3. A line of which only Spark knows the meaning is an error that says so, also where malformed ones are left out; with a column for it, a row whose text has
   the reason behind it, after two `BETWEEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from millstream.sources.base import BETWEEN
from millstream.sources.filereading.errors import WAY_OUT, Malformed, OnlySpark, input_error
from millstream.sources.filereading.line_splits import blocks
from millstream.sources.filereading.settings import Settings

_SMALL = 32 << 10


class BadLine(Exception):
    """A line that cannot be taken. row: the values that could be read. only_spark: whether Spark may read it."""

    def __init__(self, what: str, row: list[Any] | None = None, only_spark: bool = False) -> None:
        super().__init__(what)
        self.what, self.row, self.only_spark = what, row, only_spark


class TextRows:
    """Reads files of lines into batches of one schema. unreadable: the column for the text of bad lines."""

    def __init__(self, schema: pa.Schema, unreadable: str | None, settings: Settings) -> None:
        self.schema, self.settings, self._unreadable = schema, settings, unreadable
        self.columns = [field for field in schema if field.name != unreadable]

    def quick(self, block: bytes) -> list[pa.Array] | None:
        raise NotImplementedError

    def row(self, line: bytes) -> list[Any] | None:
        """The values of one line; None if it is not a row. Raises BadLine."""
        raise NotImplementedError

    def convert(self, values: Iterable[Any], converters: Iterable[Callable[[Any], Any]], shown: Callable[[Any], str]) -> list[Any]:
        """The values of a row, each made one of its column's type, unless it is null. Raises BadLine."""
        row: list[Any] = [None] * len(self.columns)
        wrong: BadLine | None = None
        for at, (value, convert) in enumerate(zip(values, converters, strict=True)):
            try:
                row[at] = None if value is None else convert(value)
            except (Malformed, OnlySpark) as error:
                if wrong is None or wrong.only_spark:
                    field, only_spark = self.columns[at], isinstance(error, OnlySpark)
                    how = "is not of a plain form of" if only_spark else "does not fit"
                    what = str(error) or f"column {field.name!r}: {shown(value)[:80]} {how} the type {field.type}"
                    wrong = BadLine(what, row, only_spark)
        if wrong is not None:
            raise wrong
        return row

    def without_header(self, block: bytes) -> bytes | None:
        """A block behind the header; None if the header is not in it. Asked from the beginning of a file on, until it was found."""
        return block

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        line = 1 if start == 0 else None
        header = start == 0
        for block in blocks(path, start, end):
            rest = self.without_header(block) if header else block
            header = header and rest is None
            if rest:
                number = None if line is None else line + block.count(b"\n") - rest.count(b"\n")
                arrays = self.quick(rest)
                yield from [self._batch(arrays)] if arrays is not None else self._in_parts(rest, path, number)
            line = None if line is None else line + block.count(b"\n")

    def _in_parts(self, block: bytes, path: str, line: int | None) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(block):
            end = block.find(b"\n", min(at + _SMALL, len(block) - 1)) + 1
            part = block[at:end]
            arrays = self.quick(part) if len(part) < len(block) else None
            batch = self._by_line(part, path, line) if arrays is None else self._batch(arrays)
            if batch.num_rows:
                yield batch
            line = None if line is None else line + part.count(b"\n")
            at = end

    def _by_line(self, block: bytes, path: str, first: int | None) -> pa.RecordBatch:
        rows: list[list[Any]] = []
        bad: list[str | None] = []
        for at, line in enumerate(block.split(b"\n")[:-1]):
            text = None
            try:
                row = self.row(line)
            except BadLine as error:
                row = error.row or [None] * len(self.columns)
                text = self._told(error, line, path, None if first is None else first + at)
                if text is None:
                    continue
            if row is not None:
                rows.append(row)
                bad.append(text)
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        return self._batch([pa.array(list(values), field.type) for values, field in zip(columns, self.columns, strict=True)], bad)

    def _told(self, error: BadLine, line: bytes, path: str, number: int | None) -> str | None:
        """What the column for bad lines says of one; None if it is left out."""
        if self.settings.drops and not error.only_spark:
            return None
        text = line.decode("utf-8", "replace")
        what = f"{error.what}, and {WAY_OUT}" if error.only_spark else error.what
        if self._unreadable is None:
            raise input_error(path, what, number, text) from (OnlySpark() if error.only_spark else None)
        where = "" if number is None else f"line {number}: "
        return f"{text}{BETWEEN}{BETWEEN}{where}{what}" if error.only_spark else text

    def _batch(self, arrays: list[pa.Array], bad: list[str | None] | None = None) -> pa.RecordBatch:
        if self._unreadable is not None:
            at = self.schema.get_field_index(self._unreadable)
            kind = self.schema.field(at).type
            told = pa.nulls(len(arrays[0]), kind) if bad is None else pa.array(bad, kind)
            arrays = [*arrays[:at], told, *arrays[at:]]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
