"""What the operations of an expression give for Arrow columns: what `row_values.py` says of one record, for all rows at once.

Rules
1. Types are known before the rows are: an expression over empty columns shows whether it can be worked out, and which type it gives.
2. What one record would not look at is not worked out here either, where it can fail: such an operand gets only the rows for which it counts.
3. If a row fails, nothing is given: `Failing`, and the caller asks record by record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import row_values as rules
from .expressions import Expression, wanted_kind
from .row_values import BOOLEAN, CAN_FAIL, COMPARED, DOUBLE, LONG, NULL, STRING, BadOperands

_TYPES = {LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string(), BOOLEAN: pa.bool_(), NULL: pa.null()}
_WORDS = pa.array(["false", "true"])


class Failing(Exception):
    """A row fails. kind: the type that the expression gives."""

    kind: Any = None

    def array(self, values: list[Any]) -> Any:
        return pa.array(values, self.kind)


class Column(NamedTuple):
    """A type, and an array or, for what is the same in all rows, a scalar."""

    kind: str
    data: Any

    def as_double(self) -> Any:
        return self.data.cast(pa.float64(), safe=False) if self.kind in (LONG, NULL) else self.data


class OperandRows:
    """The rows that an operand is worked out for."""

    def __init__(self, column: Callable[[str], Any], count: int) -> None:
        self._column, self.count = column, count

    def column(self, name: str) -> Any:
        found = self._column(name)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def where(self, mask: Any) -> OperandRows:
        return OperandRows(lambda name: self.column(name).filter(mask), mask.true_count)

    def full(self, data: Any) -> Any:
        return pa.repeat(data, self.count) if isinstance(data, pa.Scalar) else data


def worked_out(expression: Expression, rows: OperandRows) -> Any:
    """An expression over some rows, as an array. Raises BadOperands for types that do not fit, and Failing."""
    try:
        return rows.full(_column(expression, rows).data)
    except (Failing, pa.ArrowInvalid) as error:
        failing = error if isinstance(error, Failing) else Failing()
        failing.kind = _column(expression, OperandRows(lambda name: rows.column(name).slice(0, 0), 0)).data.type
        raise failing from None


def _column(expression: Expression, rows: OperandRows) -> Column:
    op, parts = expression.op, expression.parts
    if op == "column":
        data = rows.column(expression.args[0])
        for name in expression.args[1:]:
            if not pa.types.is_struct(data.type) or data.type.get_field_index(name) < 0:
                raise BadOperands(f"there is no field {name!r} in a {data.type}")
            data = pc.struct_field(data, name)
        return _known(data)
    if not expression.fields:
        return _constant(expression, rows)
    if op in ("and", "or"):
        return _either(op, parts, rows)
    if op == "case":
        return _case(expression, rows)
    if op == "coalesce":
        return _coalesce(expression, rows)
    first = _column(parts[-1 if op in ("/", "%") else 0], rows)
    if op == "is null":
        return Column(BOOLEAN, pc.is_null(first.data))
    if len(parts) == 1:
        return _single(op, first, expression.fixed)
    if op in ("concat", "greatest", "least", "<=>"):
        columns = [first, *(_column(part, rows) for part in parts[1:])]
    else:
        second = _where(parts[0 if op in ("/", "%") else 1], rows, lambda: pc.is_valid(first.data))
        columns = [second, first] if op in ("/", "%") else [first, second]
    kind = rules.result(op, tuple(column.kind for column in columns))
    if kind == NULL:
        return Column(NULL, pa.scalar(None))
    if op in ("greatest", "least"):
        return _extreme(op, expression, columns)
    return Column(kind, _OPERATIONS[op](op, kind, *columns))


def _known(data: Any) -> Column:
    """A source's column as one of our types, where it is one."""
    types, of = pa.types, data.type
    if types.is_signed_integer(of):
        return Column(LONG, data.cast(pa.int64()))
    if of in (pa.float32(), pa.float64()):
        return Column(DOUBLE, data.cast(pa.float64()))
    if types.is_string(of) or types.is_large_string(of):
        return Column(STRING, data.cast(pa.string()))
    return Column(BOOLEAN if types.is_boolean(of) else NULL if types.is_null(of) else str(of), data)


def _constant(expression: Expression, rows: OperandRows) -> Column:
    try:
        value = expression.function(None)
    except BadOperands:
        if rows.count:
            raise Failing from None
        return Column(NULL, pa.scalar(None))
    kind = expression.kind or rules.kind(value)
    return Column(kind, pa.scalar(value, _TYPES[kind]))


def _where(expression: Expression, rows: OperandRows, mask: Callable[[], Any]) -> Column:
    """An operand, worked out where it counts; elsewhere it is anything."""
    if not _can_fail(expression):
        return _column(expression, rows)
    chosen = rows.full(mask()).fill_null(False)
    if chosen.true_count == rows.count:
        return _column(expression, rows)
    found = _column(expression, rows.where(chosen))
    if isinstance(found.data, pa.Scalar):
        return found
    picked = chosen.to_numpy(zero_copy_only=False)
    return Column(found.kind, found.data.take(pa.array(np.cumsum(picked) - 1, mask=~picked)))


def _can_fail(expression: Expression) -> bool:
    return expression.op in CAN_FAIL or any(map(_can_fail, expression.parts))


def _either(op: str, parts: list[Expression], rows: OperandRows) -> Column:
    left = _column(parts[0], rows)
    rules.result(op, (left.kind,))
    data = left.data.cast(pa.bool_())
    right = _where(parts[1], rows, lambda: pc.fill_null(pc.invert(data) if op == "or" else data, True))
    rules.result(op, (right.kind,))
    function = pc.or_kleene if op == "or" else pc.and_kleene
    return Column(BOOLEAN, function(data, right.data.cast(pa.bool_())))


def _joined(expression: Expression, columns: list[Column]) -> tuple[str, list[Any]]:
    """The type of branches, and their data in it."""
    kind = rules.result(expression.op, tuple(column.kind for column in columns))
    if kind == DOUBLE and any(column.kind == LONG for column in columns) and wanted_kind(expression) != DOUBLE:
        raise BadOperands(f"{expression.op} of a long and a double: cast one of them")
    of = next((column.data.type for column in columns if column.kind not in (NULL, LONG)), _TYPES.get(kind))
    if any(column.data.type != of for column in columns if column.kind not in _TYPES):
        raise BadOperands(f"{expression.op} of a {' and a '.join({str(column.data.type) for column in columns})}: cast one of them")
    return kind, [
        column.as_double() if kind == DOUBLE else pa.scalar(None, of) if column.kind == NULL else column.data for column in columns
    ]


def _case(expression: Expression, rows: OperandRows) -> Column:
    left = pa.repeat(pa.scalar(True), rows.count)
    hits, columns = [], []
    parts = expression.parts
    for condition, branch in zip(parts[:-1:2], parts[1:-1:2], strict=True):
        open_rows = left
        met = _where(condition, rows, lambda open_rows=open_rows: open_rows)  # type: ignore[misc]
        rules.result("not", (met.kind,))
        hit = pc.and_(left, pc.fill_null(rows.full(met.data).cast(pa.bool_()), False))
        left = pc.and_not(left, hit)
        hits.append(hit)
        columns.append(_where(branch, rows, lambda hit=hit: hit))  # type: ignore[misc]
    columns.append(_where(parts[-1], rows, lambda: left))
    kind, data = _joined(expression, columns)
    found = data[-1]
    for hit, value in zip(reversed(hits), reversed(data[:-1]), strict=True):
        found = pc.if_else(hit, value, found)
    return Column(kind, found)


def _coalesce(expression: Expression, rows: OperandRows) -> Column:
    columns: list[Column] = []
    left = pa.repeat(pa.scalar(True), rows.count)
    for part in expression.parts:
        open_rows = left
        columns.append(_where(part, rows, lambda open_rows=open_rows: open_rows))  # type: ignore[misc]
        if _can_fail(expression):
            left = pc.and_(left, pc.is_null(rows.full(columns[-1].data)))
    kind, data = _joined(expression, columns)
    found = data[-1]
    for value in reversed(data[:-1]):
        found = pc.if_else(pc.is_valid(value), value, found)
    return Column(kind, found)


def _extreme(op: str, expression: Expression, columns: list[Column]) -> Column:
    kind, data = _joined(expression, columns)
    found = data[0]
    for value in data[1:]:
        low, high = (found, value) if op == "greatest" else (value, found)
        better = pc.coalesce(_less(kind, low, high), pc.is_null(found))
        found = pc.if_else(better, value, found)
    return Column(kind, found)


# --- operations


def _arithmetic(op: str, kind: str, a: Column, b: Column) -> Any:
    if kind == DOUBLE:
        return {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[op](a.as_double(), b.as_double())
    return {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[op](a.data, b.data)


def _divided(op: str, kind: str, a: Column, b: Column) -> Any:
    both = pc.and_(pc.equal(b.data, pa.scalar(0, b.data.type)), pc.is_valid(a.data))
    if both.as_py() if isinstance(both, pa.Scalar) else both.true_count:
        raise Failing
    if op == "/":
        return pc.divide(a.as_double(), b.as_double())
    if isinstance(a.data, pa.Scalar) and not a.data.is_valid:
        return pa.nulls(len(b.data), _TYPES[kind])
    sides = [one.as_double() if kind == DOUBLE else one.data for one in (a, b)]
    count = max(len(one) for one in sides if not isinstance(one, pa.Scalar))
    full = [pa.repeat(one, count) if isinstance(one, pa.Scalar) else one for one in sides]
    with np.errstate(all="ignore"):
        found = np.fmod(*(one.fill_null(1).to_numpy(zero_copy_only=False) for one in full))
    return pc.if_else(pc.and_(*map(pc.is_valid, full)), pa.array(found), None)


def _less(kind: str, a: Any, b: Any) -> Any:
    found = pc.less(a, b)
    return pc.or_(found, pc.and_not(pc.is_nan(b), pc.is_nan(a))) if kind == DOUBLE else found


def _compared(op: str, kind: str, a: Column, b: Column) -> Any:
    of = DOUBLE if DOUBLE in (a.kind, b.kind) else a.kind
    x, y = (one.as_double() if of == DOUBLE else one.data for one in (a, b))
    if op == "<":
        return _less(of, x, y)
    if op == ">":
        return _less(of, y, x)
    if op == "<=":
        return pc.invert(_less(of, y, x))
    if op == ">=":
        return pc.invert(_less(of, x, y))
    if op == "<=>" and NULL in (a.kind, b.kind):
        return pc.and_(pc.is_null(a.data), pc.is_null(b.data))
    found = pc.equal(x, y)
    if of == DOUBLE:
        found = pc.or_(found, pc.and_(pc.is_nan(x), pc.is_nan(y)))
    return found if op == "=" else pc.coalesce(found, pc.and_(pc.is_null(x), pc.is_null(y)))


def _concat(op: str, kind: str, *columns: Column) -> Any:
    return pc.binary_join_element_wise(*(column.data for column in columns), "", null_handling="emit_null")


def _searched(op: str, kind: str, a: Column, b: Column) -> Any:
    if isinstance(b.data, pa.Scalar):
        function = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}[op]
        return function(a.data, b.data.as_py()) if b.data.is_valid else pa.nulls(len(a.data), pa.bool_())
    texts = pa.repeat(a.data, len(b.data)) if isinstance(a.data, pa.Scalar) else a.data
    pairs = zip(texts.to_pylist(), b.data.to_pylist(), strict=True)
    return pa.array([None if x is None or y is None else rules.STRICT[op](x, y) for x, y in pairs], pa.bool_())


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("+", "-", "*"), _arithmetic),
    **dict.fromkeys(("/", "%"), _divided),
    **dict.fromkeys(COMPARED, _compared),
    **dict.fromkeys(("startswith", "endswith", "contains"), _searched),
    "concat": _concat,
}


def _single(op: str, of: Column, fixed: tuple[Any, ...]) -> Column:
    """An operation on one column, and what is fixed."""
    if op == "cast":
        kind = rules.cast_result(fixed[0], of.kind)
    elif op == "in":
        kind = rules.result(op, (of.kind, *map(rules.kind, fixed)))
    else:
        kind = rules.result(op, (of.kind,))
    if of.kind == NULL:
        return Column(NULL, pa.scalar(None))
    data = of.data
    if op in ("negative", "abs"):
        exact = {"negative": pc.negate_checked, "abs": pc.abs_checked} if kind == LONG else {"negative": pc.negate, "abs": pc.abs}
        return Column(kind, exact[op](data))
    if op == "not":
        return Column(kind, pc.invert(data))
    if op == "in":
        return Column(kind, _is_in(of, fixed))
    if op == "like":
        return Column(kind, pc.match_like(data, fixed[0]))
    if op == "length":
        return Column(kind, pc.utf8_length(data).cast(pa.int64()))
    if op == "crc32" and isinstance(data, pa.Array):
        texts = data.cast(pa.binary()).fill_null(b"").to_pylist()
        return Column(kind, pa.array(np.fromiter(map(crc32, texts), np.int64, len(texts)), mask=np.asarray(data.is_null())))
    if op in ("trim", "ltrim", "rtrim"):
        return Column(kind, {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[op](data, " "))
    if op == "substring" and fixed[0] > 0:
        stop = None if len(fixed) == 1 else max(fixed[0] - 1 + fixed[1], 0)
        return Column(kind, pc.utf8_slice_codeunits(data, fixed[0] - 1, stop))
    if op in ("lower", "upper") and pc.all(pc.string_is_ascii(data)).as_py() is not False:
        return Column(kind, (pc.ascii_lower if op == "lower" else pc.ascii_upper)(data))
    if op == "concat" or (op in ("floor", "ceil") and of.kind == LONG) or (op == "cast" and kind == of.kind and fixed[0] != "int"):
        return of
    if op == "cast" and of.kind != STRING and fixed[0] in ("string", "double", "boolean"):
        return Column(kind, _cast(of, fixed[0]))
    return Column(kind, _one_by_one(rules.STRICT[op], data, fixed, _TYPES[kind]))


def _cast(of: Column, to: str) -> Any:
    if to == "boolean":
        return pc.not_equal(of.data, pa.scalar(0, of.data.type))
    if of.kind == BOOLEAN:
        return _WORDS.take(of.data.cast(pa.int8())) if to == "string" else of.data.cast(pa.int8()).cast(pa.float64())
    return of.as_double() if to == "double" else of.data.cast(pa.string())


def _is_in(of: Column, items: tuple[Any, ...]) -> Any:
    known = [item for item in items if item is not None]
    kind = DOUBLE if DOUBLE in (of.kind, *map(rules.kind, known)) else of.kind
    found = pc.is_valid(of.data)
    if kind == DOUBLE:
        found = pc.and_(found, pa.scalar(False))
        for item in known:
            found = pc.or_(found, _compared("=", BOOLEAN, Column(DOUBLE, of.as_double()), Column(DOUBLE, pa.scalar(float(item)))))
    else:
        found = pc.if_else(found, pc.is_in(of.data, pa.array(known, _TYPES[kind])), pa.scalar(None, pa.bool_()))
    return found if len(known) == len(items) else pc.if_else(found, True, pa.scalar(None, pa.bool_()))


def _one_by_one(function: Callable[..., Any], data: Any, fixed: tuple[Any, ...], of: Any) -> Any:
    is_one = isinstance(data, pa.Scalar)
    try:
        found = [None if value is None else function(value, *fixed) for value in ([data.as_py()] if is_one else data.to_pylist())]
    except BadOperands:
        raise Failing from None
    return pa.scalar(found[0], of) if is_one else pa.array(found, of)
