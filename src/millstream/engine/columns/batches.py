"""Records of a table that came to a task, made Python values when a hook asks for the first of them.

Rule: a value has the columns of its layout. Some travel as the row's key, timestamp or id, the others in a struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.keys import key_of
from millstream.core.record import Batch
from millstream.core.typed import converter

from .casts import as_it_is

_NUL = "\0"


class ValueColumn(msgspec.Struct, frozen=True):
    """One column of an injector's value, and where it travels: in "key", "ts" or "id", or in the struct ("")."""

    name: str
    carrier: str


def whole(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_list(column: Any) -> list[Any]:
    """An Arrow column as Python objects, by the fastest way its type has."""
    column = whole(column)
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def record_ids(table: Any) -> list[str]:
    """The id of every row: its own, or the hash of its content."""
    ids = table.column("id")
    if ids.null_count == 0:
        return to_list(ids)
    orders = to_list(table.column("ord"))
    return [own if own is not None else f"{order & 0xFFFFFFFFFFFFFFFF:016x}" for own, order in zip(to_list(ids), orders, strict=True)]


class ColumnBatch(Batch):
    """Rows of an injector, made Python values when somebody asks for the first one."""

    __slots__ = ("_convert", "_ids", "_layout", "_single", "_table", "_typed", "_values", "_vector")

    def __init__(
        self, stream: str, table: Any, vector: str, layout: Sequence[ValueColumn], single: bool, typed: type | None = None
    ) -> None:
        super().__init__(stream)
        self._typed = typed
        self._convert = None if typed is None else converter(typed, stream)
        self._table, self._vector, self._layout, self._single = table, vector, layout, single
        self._values: list[Any] | None = None
        self._ids: list[str] | None = None

    def value(self, index: int) -> Any:
        values = self._values
        if values is None:
            values = self._values = self._load()
        return values[index] if self._convert is None else self._convert(values[index])

    def _load(self) -> list[Any]:
        columns = [made(to_list(column)) for column, made in self._columns()]
        if self._single:
            return columns[0]
        names = [column.name for column in self._layout]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _columns(self) -> Iterator[tuple[Any, Callable[[list[Any]], list[Any]]]]:
        """The Arrow column of each column of the value, and how its Python objects become the column's."""
        sent = iter(whole(self._table.column(self._vector)).flatten())
        for column in self._layout:
            found = self._table.column(column.carrier) if column.carrier else next(sent)
            yield found, _key_values if column.carrier == "key" else as_it_is

    def id_column(self) -> Any:
        ids = whole(self._table.column("id"))
        return None if ids.null_count else ids

    def fields(self) -> Sequence[str] | None:
        return None if self._single or self._convert is not None else [column.name for column in self._layout]

    def column(self, name: str | None) -> Any:
        if self._convert is not None:
            return None  # each row is looked at
        for (column, made), of in zip(self._columns(), self._layout, strict=True):
            if name == of.name or (name is None and self._single):
                return whole(column) if made is as_it_is or not pc.any(pc.starts_with(column, _NUL)).as_py() else None
        return None

    def only(self, places: Sequence[int]) -> tuple[Batch, Sequence[int]]:
        if self._values is not None:
            return self, places
        table = self._table.take(pa.array(places, pa.int64()))
        return ColumnBatch(self.stream, table, self._vector, self._layout, self._single, self._typed), range(len(places))

    def anew(self) -> Batch:
        return RowBatch(self)

    def id(self, index: int) -> str:
        ids = self._ids
        if ids is None:
            ids = self._ids = record_ids(self._table)
        return ids[index]


def _key_values(texts: list[Any]) -> list[Any]:
    return [text if text is None or not text.startswith(_NUL) else key_of(text) for text in texts]


class RowBatch(Batch):
    """The rows of a ColumnBatch, each made a Python value whenever somebody asks."""

    __slots__ = ("_columns", "_of")

    def __init__(self, of: ColumnBatch) -> None:
        super().__init__(of.stream)
        self._of = of
        self._columns = list(of._columns())

    def value(self, index: int) -> Any:
        values = [made(to_list(column.slice(index, 1)))[0] for column, made in self._columns]
        if self._of._single:
            return values[0]
        row = {column.name: value for column, value in zip(self._of._layout, values, strict=True)}
        return row if self._of._convert is None else self._of._convert(row)

    def id(self, index: int) -> str:
        return self._of.id(index)


class EncodedBatch(Batch):
    """Productions that came through the shuffle."""

    __slots__ = ("_bodies", "_decode", "_ids", "_table")

    def __init__(self, stream: str, table: Any, decode: Callable[[bytes], Any]) -> None:
        super().__init__(stream)
        self._table, self._decode = table, decode
        self._bodies: list[bytes] | None = None
        self._ids: list[str] | None = None

    def value(self, index: int) -> Any:
        if self._bodies is None:
            self._bodies = to_list(self._table.column("body"))
        return self._decode(self._bodies[index])

    def id(self, index: int) -> str:
        if self._ids is None:
            self._ids = record_ids(self._table)
        return self._ids[index]
