"""Reducers on columns: how the values of many groups become parts at once, how parts are combined, and how they are shown.

Rules
1. The parts are those that the reducer itself makes of the same values (`reducers/`), bit by bit. What cannot promise that raises `NotInColumns`, and the
   reducer does it value by value: float sums, which are exact; integers that may not fit 64 bits when they are summed; types whose order is Python's business.
2. A part that is a list of a fixed length has a column for each of its elements. Every other part has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.expressions import NotInColumns
from millstream.operators.partials import FLOAT, INT, TEXT, Labels
from millstream.operators.rows import StreamRows
from millstream.operators.spread import OfParts
from millstream.reducers import extremes, sums, values
from millstream.reducers.base import Reducer

_LIMIT, _EXACT = 2**63, 2**53


class Vector:
    """A reducer's parts in columns. This one knows nothing of them: they are made, combined and shown by the reducer."""

    width = 1
    #: How parts are combined, column by column; None: by the reducer.
    merges: tuple[str, ...] | None = None
    #: Why not in columns, for `--explain`.
    reason = "this reducer is made value by value"

    def why_not(self, kind: str) -> str:
        """Why columns of a type cannot be reduced as columns; nothing, where they can. For `--explain`, which knows types and has no rows."""
        return ""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer

    def split(self, part: Any) -> Sequence[Any]:
        """A part as its columns have it; None: there is none."""
        return (part,) if self.width == 1 else (None,) * self.width if part is None else part

    def join(self, columns: Sequence[Any]) -> Any:
        return columns[0] if self.width == 1 else None if columns[0] is None else list(columns)

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        """The columns of the parts of all groups. Raises NotInColumns."""
        raise NotInColumns(self.reason)

    def combined(self, columns: Sequence[Any], labels: Labels) -> list[Any]:
        """Parts of the same groups as one. Raises NotInColumns."""
        if self.merges is None:
            raise NotInColumns(self.reason)
        return [_MERGES[how](column, labels) for how, column in zip(self.merges, columns, strict=True)]

    def shown(self, columns: Sequence[Any]) -> Any:
        """What is shown of each part, as an Arrow array. Raises NotInColumns."""
        raise NotInColumns(self.reason)

    def read(self, rows: StreamRows) -> Any:
        """The column that the reducer reads."""
        if self.reducer.where is not None:  # type: ignore[attr-defined]
            raise NotInColumns("where= is a function")
        field = self.reducer.field  # type: ignore[attr-defined]
        if field is not None and not isinstance(field, str):
            raise NotInColumns("it reads a function of the value")
        return rows.column(field)


#: Types of a source's columns, by what can be done with them.
_WHOLE = {"byte", "short", "int", "long"}
_ORDERED = {*_WHOLE, "double", "string"}


class OneByOne(Vector):
    """A reducer's parts in their columns, with nothing done on columns."""

    def __init__(self, vector: Vector) -> None:
        super().__init__(vector.reducer)
        self.width, self.split, self.join = vector.width, vector.split, vector.join  # type: ignore[method-assign]


class Count(Vector):
    merges = ("sum",)

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        if self.reducer.field is None and self.reducer.where is None:  # type: ignore[attr-defined]
            return [pa.array(labels.count)]
        valid = _valid(self.read(rows))
        counted = labels.count if valid is None else np.bincount(labels.of[valid], minlength=len(labels))
        return [_present(counted, counted)]

    def shown(self, columns: Sequence[Any]) -> Any:
        return _ints(columns[0]).fill_null(0)


class Sum(Vector):
    merges = ("sum",)

    def why_not(self, kind: str) -> str:
        return "" if kind in {*_WHOLE, "boolean"} else f"a sum of {kind} is exact, and so is made value by value"

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        return [summed(_whole_numbers(self.read(rows)), labels)]

    def shown(self, columns: Sequence[Any]) -> Any:
        return _ints(columns[0])


class Mean(Vector):
    width = 2
    merges = ("sum", "sum")

    why_not = Sum.why_not

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        column = _whole_numbers(self.read(rows))
        valid = _valid(column)
        counted = labels.count if valid is None else np.bincount(labels.of[valid], minlength=len(labels))
        return [_present(counted, counted), summed(column, labels)]

    def shown(self, columns: Sequence[Any]) -> Any:
        count, total = map(_ints, columns)
        ends = pc.min_max(total)
        if max(-(ends["min"].as_py() or 0), ends["max"].as_py() or 0) >= _EXACT:
            raise NotInColumns("a sum that a float cannot say exactly is divided by Python")
        return pc.divide(total.cast(FLOAT), count.cast(FLOAT))


class Least(Vector):
    merges = ("min",)

    def why_not(self, kind: str) -> str:
        return "" if kind in _ORDERED else f"Python compares values of type {kind}"

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        return [extreme(_comparable(self.read(rows)), labels, self.merges[0])]

    def shown(self, columns: Sequence[Any]) -> Any:
        if columns[0].type not in (INT, FLOAT, TEXT):
            raise NotInColumns("its values are of several types")
        return columns[0]


class Greatest(Least):
    merges = ("max",)


class AnyValue(Least):
    """The least of ints or texts is the one that the reducer takes."""

    def why_not(self, kind: str) -> str:
        return "floats have an order of their own there" if kind == "double" else super().why_not(kind)

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        column = _comparable(self.read(rows))
        if column.type == FLOAT:
            raise NotInColumns("floats have an order of their own there")
        return [extreme(column, labels, "min")]

    def combined(self, columns: Sequence[Any], labels: Labels) -> list[Any]:
        if columns[0].type == FLOAT:
            raise NotInColumns("floats have an order of their own there")
        return super().combined(columns, labels)


class First(Vector):
    """The value of the least (timestamp, id), or of the least `by`. What it goes by stands in front of it."""

    greatest = False

    def __init__(self, reducer: Reducer) -> None:
        super().__init__(reducer)
        self.by_time = reducer.wants_order
        self.width = 3 if self.by_time else 2

    def split(self, part: Any) -> Sequence[Any]:
        if part is None:
            return (None,) * self.width
        return (*part[0], part[1]) if self.by_time else part

    def join(self, columns: Sequence[Any]) -> Any:
        if columns[0] is None:
            return None
        return [list(columns[:2]), columns[2]] if self.by_time else list(columns)

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        value = self.read(rows)
        if self.by_time:
            return self.combined([pa.array(rows.times), rows.id_column(), value], labels)
        by = self.reducer.by  # type: ignore[attr-defined]
        if not isinstance(by, str):
            raise NotInColumns("it goes by a function")
        return self.combined([_comparable(rows.column(by)), value], labels)

    def combined(self, columns: Sequence[Any], labels: Labels) -> list[Any]:
        if columns[-1].type not in (INT, FLOAT, TEXT):
            raise NotInColumns(f"a value of type {columns[-1].type} is kept as it is in Python")
        valid = [one for one in map(_valid, columns) if one is not None]
        chosen = np.flatnonzero(np.logical_and.reduce(valid)) if valid else np.arange(len(labels.of))
        of = labels.of[chosen]
        for column in columns[:-1]:
            if len(np.unique(of)) == len(of):
                break
            best = extreme(column.take(pa.array(chosen)), grouped(of, labels.count), "max" if self.greatest else "min")
            is_best = pc.equal(column.take(pa.array(chosen)), best.take(pa.array(of))).to_numpy(zero_copy_only=False)
            chosen, of = chosen[is_best], of[is_best]
        if len(np.unique(of)) < len(of):
            raise NotInColumns("of several with one place in the order, Python chooses")
        place = np.full(len(labels), -1, np.int64)
        place[of] = chosen
        at = pa.array(place, mask=place < 0) if (place < 0).any() else pa.array(place)
        return [column.take(at) for column in columns]

    def shown(self, columns: Sequence[Any]) -> Any:
        if columns[-1].type not in (INT, FLOAT, TEXT):
            raise NotInColumns("its values are of several types")
        return columns[-1]


class Last(First):
    greatest = True


class Parts(Vector):
    """Parts that are values of records. of: those of the reducer whose they are, which stand in one column."""

    def __init__(self, reducer: OfParts, of: Vector) -> None:
        super().__init__(reducer)
        self.combined, self.shown = of.combined, of.shown  # type: ignore[method-assign]

    def lifted(self, rows: StreamRows, labels: Labels) -> list[Any]:
        return self.combined([rows.column(self.reducer.field)], labels)  # type: ignore[attr-defined]


_VECTORS: dict[type[Reducer], type[Vector]] = {
    sums.count: Count,
    sums.sum: Sum,
    sums.mean: Mean,
    extremes.min: Least,
    extremes.max: Greatest,
    extremes.first: First,
    extremes.last: Last,
    values.any_value: AnyValue,
}


def vector_of(reducer: Reducer) -> Vector:
    if isinstance(reducer, OfParts):
        of = vector_of(reducer.reducer)
        return Vector(reducer) if type(of) is Vector or of.width > 1 else Parts(reducer, of)
    return _VECTORS.get(type(reducer), Vector)(reducer)


def grouped(of: Any, count: Any) -> Labels:
    """Groups of some rows that stand in no table."""
    return Labels(of, count, None)  # type: ignore[arg-type]


def _valid(column: Any) -> Any:
    """Which values are there; None: all."""
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None


def _present(numbers: Any, counted: Any) -> Any:
    """Numbers by group, null where nothing was counted."""
    return pa.array(numbers) if counted.all() else pa.array(numbers, mask=counted == 0)


def _ints(column: Any) -> Any:
    if column.type != INT:
        raise NotInColumns("not all of its parts are integers of 64 bits")
    return column


def _whole_numbers(column: Any) -> Any:
    kind = column.type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind not in (pa.int64(), pa.uint64())):
        return column.cast(INT)
    if kind != INT:
        raise NotInColumns(f"a sum of {kind} is exact, and so is made value by value")
    return column


def _comparable(column: Any) -> Any:
    kind = column.type
    if kind in (INT, TEXT):
        return column
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return column.cast(INT)
    if kind == FLOAT:
        nan = pc.is_nan(column)
        return pc.if_else(nan, pa.scalar(None, FLOAT), column) if pc.any(nan).as_py() else column  # NaN is skipped
    if pa.types.is_large_string(kind):
        return column.cast(TEXT)
    raise NotInColumns(f"Python compares values of type {kind}")


def summed(column: Any, labels: Labels) -> Any:
    """The sums of integers by group, null where there is none."""
    column = _ints(column)
    valid = _valid(column)
    numbers, of = (column.to_numpy(), labels.of) if valid is None else (column.drop_null().to_numpy(), labels.of[valid])
    if not len(numbers):
        return pa.nulls(len(labels), INT)
    peak = max(abs(int(numbers.max())), abs(int(numbers.min()))) * len(numbers)
    if peak >= _LIMIT:
        raise NotInColumns("a sum may not fit 64 bits")
    if peak < _EXACT:
        found = np.bincount(of, weights=numbers, minlength=len(labels)).astype(np.int64)
    else:
        found = np.zeros(len(labels), np.int64)
        np.add.at(found, of, numbers)
    return pa.array(found) if valid is None else _present(found, np.bincount(of, minlength=len(labels)))


def extreme(column: Any, labels: Labels, how: str) -> Any:
    """The least or greatest values by group, null where there is none."""
    if column.type not in (INT, FLOAT, TEXT):
        raise NotInColumns("its values are of several types")
    if column.type == TEXT:
        made = pa.table({"group": labels.of, "value": column}).group_by("group", use_threads=False).aggregate([("value", how)])
        place = np.full(len(labels), -1, np.int64)
        place[made.column("group").to_numpy()] = np.arange(len(made))
        found = made.column(f"value_{how}").combine_chunks()
        return found.take(pa.array(place, mask=place < 0))
    valid = _valid(column)
    numbers, of = (column.to_numpy(), labels.of) if valid is None else (column.drop_null().to_numpy(), labels.of[valid])
    if column.type == FLOAT and ((numbers == 0.0) & np.signbit(numbers)).any():
        raise NotInColumns("0.0 and -0.0 are told apart")
    least = how == "min"
    edge = (np.inf if least else -np.inf) if column.type == FLOAT else (np.iinfo(np.int64).max if least else np.iinfo(np.int64).min)
    found = np.full(len(labels), edge, numbers.dtype)
    (np.minimum if least else np.maximum).at(found, of, numbers)
    return pa.array(found) if valid is None else _present(found, np.bincount(of, minlength=len(labels)))


def _least(column: Any, labels: Labels) -> Any:
    return extreme(column, labels, "min")


def _greatest(column: Any, labels: Labels) -> Any:
    return extreme(column, labels, "max")


_MERGES = {"sum": summed, "min": _least, "max": _greatest}
