"""Partial results of the same panes and keys become one, and what is shown of them. The window operator does so when a window is told and when a pane has many
entries, and whoever reads its state does so with the same code.

Rule: a reducer that cannot do it in columns (`vectors.py`) does it part by part. Both come to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.operators.expressions import NotInColumns
from millstream.operators.partials import PACKED, Labels, Partials, coded, column_of, decoded, labels, values_of
from millstream.operators.vectors import Vector
from millstream.reducers.base import Reducer

OTHER_REDUCERS = (
    "its stored windows were made by other reducers. Put them back, or give it another name= and drop the old state (drop=[...], --drop)"
)
NOTHING = Partials(np.zeros(0, np.int64), np.zeros(0, np.int64), pa.array([], pa.string()), [])


class OtherReducers(ValueError):
    """What is stored was made by other reducers."""


class Merging:
    """How the partial results of some reducers are read, merged and shown. encode, decode: parts that are no plain column."""

    def __init__(
        self,
        reducers: Mapping[str, Reducer],
        vectors: Sequence[Vector],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self.reducers, self.vectors, self.encode, self.decode = reducers, vectors, encode, decode

    def table(self, data: bytes, end: int) -> Partials:
        """A stored entry of a pane."""
        found = decoded(data, end)
        self.check_columns(found.columns)
        return found

    def check_columns(self, columns: Sequence[Any]) -> None:
        if len(columns) != sum(vector.width for vector in self.vectors):
            raise OtherReducers(OTHER_REDUCERS)

    def columns_of(self, vector: Vector, parts: Sequence[Any]) -> list[Any]:
        if vector.width == 1:
            return [column_of(parts, self.encode)]
        return [column_of(column, self.encode) for column in zip(*map(vector.split, parts), strict=True)]

    def parts_of(self, vector: Vector, columns: Sequence[Any]) -> list[Any]:
        """The parts that stand in columns."""
        lists = [values_of(column, self.decode) for column in columns]
        return lists[0] if vector.width == 1 else [vector.join(row) for row in zip(*lists, strict=True)]

    def folded(self, tables: Sequence[Partials]) -> Partials:
        """Partial results of the same windows and keys become one."""
        if not tables:
            return NOTHING
        ends = np.concatenate([table.ends for table in tables])
        starts = None if tables[0].starts is None else np.concatenate([table.starts for table in tables])
        places, names = coded(pa.concat_arrays([table.names for table in tables]))
        first = np.cumsum([0, *(len(table.names) for table in tables)])
        codes = np.concatenate([places[table.codes + at] for table, at in zip(tables, first, strict=False)])
        groups = labels(ends, codes, names, starts)
        return groups.with_columns(self.combined([table.columns for table in tables], groups))

    def combined(self, tables: Sequence[Sequence[Any]], groups: Labels) -> list[Any]:
        """The columns of several tables, one behind the other, with the parts of each group combined."""
        columns: list[Any] = []
        at = 0
        for vector in self.vectors:
            mine = [self.joined([table[at + n] for table in tables]) for n in range(vector.width)]
            at += vector.width
            try:
                columns += vector.combined(mine, groups)
            except NotInColumns:
                columns += self._combined_one_by_one(vector, mine, groups)
        return columns

    def shown(self, given: Sequence[Any], parts: bool = False) -> dict[str, Any]:
        """What the reducers show, by name: Arrow arrays, or lists of Python values. parts: their parts instead."""
        columns: dict[str, Any] = {}
        at = 0
        for (name, reducer), vector in zip(self.reducers.items(), self.vectors, strict=True):
            mine = given[at : at + vector.width]
            at += vector.width
            if parts:
                columns[name] = mine[0] if vector.width == 1 and mine[0].type != PACKED else self.parts_of(vector, mine)
                continue
            try:
                columns[name] = vector.shown(mine)
            except NotInColumns:
                columns[name] = list(map(reducer.show, self.parts_of(vector, mine)))
        return columns

    def joined(self, columns: Sequence[Any]) -> Any:
        """Columns one behind the other."""
        kinds = {column.type for column in columns if column.null_count < len(column)}
        if len(kinds) <= 1:
            kind = kinds.pop() if kinds else columns[0].type
            return pa.concat_arrays([column if column.type == kind else pa.nulls(len(column), kind) for column in columns])
        return column_of([value for column in columns for value in values_of(column, self.decode)], self.encode)

    def _combined_one_by_one(self, vector: Vector, columns: Sequence[Any], groups: Labels) -> list[Any]:
        found: list[list[Any]] = [[] for _ in range(len(groups))]
        for at, part in zip(groups.of.tolist(), self.parts_of(vector, columns), strict=True):
            found[at].append(part)
        return self.columns_of(vector, [parts[0] if len(parts) == 1 else vector.reducer.fold(parts) for parts in found])
