"""Steps without state on streams: inside the operator that reads them, or as a computation of their own.

Rules
1. Functions take the record. What is an expression works on columns where the rows are columns; everything else record by record, with the same result.
2. A record keeps its key, timestamp and id. What becomes of a late record is late, too.
3. A function that raises is blamed on the record. Where the operator has dead letters, the record goes there, and gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.computation import Computation
from millstream.core.links import FILTER, MAP, Link, linked
from millstream.core.record import Batch, ListBatch, Record, with_value
from millstream.operators.expressions import NotInColumns
from millstream.operators.functions import OfValue, OfValues
from millstream.operators.rows import StreamRows

Failed = Callable[[Record, Exception], None]  # what to do with a record whose function raises


class Stateless(Computation):
    """A chain as a computation of its own: by stream, its links. keyed: productions keep the record's key."""

    State = type(None)
    judges_lateness = True

    def __init__(self, links: Mapping[str, Sequence[Link]], keyed: Mapping[str, bool]) -> None:
        self._chains = {stream: linked(some, with_value) for stream, some in links.items()}
        self._keyed = keyed

    def process_record(self, record: Record) -> None:
        for one in self._chains[record.stream](record):
            key = record.key if self._keyed[record.stream] else None
            self.produce(one.value, key=key, timestamp=record.timestamp, late=True)  # as late as the record is, and no later


class ComputedBatch(Batch):
    """Records whose values were worked out as columns. columns: by field; under None, where the value is no dict."""

    __slots__ = ("_columns", "_lists", "_of")

    def __init__(self, of: StreamRows, columns: Mapping[str | None, Any]) -> None:
        super().__init__(of.stream)
        self._of, self._columns = of, columns
        self._lists: dict[str | None, list[Any]] | None = None

    def column(self, name: str | None) -> Any:
        return self._columns.get(name)

    def value(self, index: int) -> Any:
        if self._lists is None:
            self._lists = {name: column.to_pylist() for name, column in self._columns.items()}
        if None in self._lists:
            return self._lists[None][index]
        return {name: column[index] for name, column in self._lists.items()}

    def id(self, index: int) -> str:
        return self._of.batch.id(int(self._of.places()[index]))


def in_columns(links: Sequence[Link]) -> bool:
    """Whether a chain has no function of a user's."""
    return all(isinstance(function, OfValue) or (kind == MAP and isinstance(function, OfValues)) for kind, function in links)


def applied(links: Sequence[Link], rows: StreamRows, failed: Failed, one_by_one: bool = False) -> StreamRows:
    """What becomes of some rows."""
    for at, (kind, function) in enumerate(links):
        if not len(rows):
            return rows
        made = None if one_by_one else _attempted(kind, function, rows)
        if made is None:
            return _one_by_one(links[at:], rows, failed)
        rows = made
    return rows


def _attempted(kind: str, function: Any, rows: StreamRows) -> StreamRows | None:
    """A step on columns; None where that cannot be done, or fails for some record: which one, is found one by one."""
    try:
        return _in_columns(kind, function, rows)
    except Exception:
        return None


def _in_columns(kind: str, function: Any, rows: StreamRows) -> StreamRows:
    if kind == FILTER and isinstance(function, OfValue):
        mask = function.expression.columns(rows.column, len(rows))
        if not pa.types.is_boolean(mask.type):
            raise NotInColumns("the condition is no boolean")
        return rows.where(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
    if kind == MAP and isinstance(function, (OfValue, OfValues)):
        expressions = {None: function.expression} if isinstance(function, OfValue) else function.expressions
        columns = {name: one.columns(rows.column, len(rows)) for name, one in expressions.items()}
        return StreamRows(ComputedBatch(rows, columns), rows.keys, rows.times)
    raise NotInColumns("it is a function")


def _one_by_one(links: Sequence[Link], rows: StreamRows, failed: Failed) -> StreamRows:
    chain = linked(links, with_value)
    values, ids, places = [], [], []
    for at, record in enumerate(rows.records()):
        try:
            made = list(chain(record))
        except Exception as error:
            failed(record, error)
            continue
        values += [one.value for one in made]
        places += [at] * len(made)
        ids += [record._index] * len(made)
    batch = MappedBatch(rows, values, ids)
    return StreamRows(batch, rows.keys.take(pa.array(places, pa.int64())), rows.times[np.array(places, np.int64)])


class MappedBatch(ListBatch):
    """Records whose values were made one by one. ids: the places of the records that they were made of."""

    __slots__ = ("_of",)

    def __init__(self, of: StreamRows, values: Sequence[Any], ids: Sequence[Any]) -> None:
        super().__init__(of.stream, values, ids)
        self._of = of

    def id(self, index: int) -> str:
        return self._of.batch.id(self.ids[index])  # type: ignore[arg-type]
