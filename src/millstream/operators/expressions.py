"""Expressions: what users write of columns, such as "price * quantity" or `ms.col("price") > 3`, with one meaning for records, columns and Spark.

Rules
1. What an operation means stands in `row_values.py`. `row` is that meaning for one record, `columns` for Arrow columns, and `sql` is a text of which Spark
   makes the same. A batch with a row that fails is worked out record by record, so that both fail at the same row with the same words.
2. `sql` says what Spark would else read in another way: integers are bigint (`3L`), a number with a point is a double (`1.5D`; Spark would read a decimal),
   names are quoted. `- 0L` behind an operand changes no value: it makes a bigint of a narrower column, which else would overflow at 32 bits, and keeps the
   optimizer from calculating with the constants of `(a * 2) * 3` first, which overflows elsewhere.
3. An expression cannot be changed, and can be pickled. It is neither true nor false: `&`, `|` and `~` stand for and, or, not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NoReturn

from millstream.errors import DefinitionError, HookError

from . import row_values as rules
from .row_values import BOOLEAN, BRANCHING, DOUBLE, LONG, NULL, BadOperands

TYPES = {"string": "string", "int": "int", "integer": "int", "long": "bigint", "bigint": "bigint", "double": "double", "boolean": "boolean"}
_PLAIN = re.compile(r"[^\W\d]\w*")
_INFIX = {*rules.COMPARED, "+", "-", "*", "/", "%", "and", "or"}
_CALCULATED = {"+", "-", "*", "/", "%", "negative", "abs", "floor", "ceil"}


class NotUnderstood(DefinitionError):
    """The author of the pipeline: an SQL text is not among those that are known without Spark. why: the place and the reason alone."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(
            f"the SQL text {text!r}, {why}. Without Spark only a part of SQL is known: write it in another way, give a Python function where one is taken, "
            f"or leave a key, a timestamp or an id of an injected stream to Spark by running without resident=True"
        )
        self.text, self.why = text, why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.why)


class NotInColumns(Exception):
    """Why an expression cannot be worked out for whole columns: of these types it has another meaning, or none. Records may be asked one by one."""


class Expression:
    """What is to be worked out of a record's fields. op: the operation; args: expressions, and what is fixed (a cast's type, a pattern, the items of IN)."""

    __slots__ = ("_row", "args", "fields", "kind", "op")
    op: str
    args: tuple[Any, ...]
    fields: frozenset[str]  # the columns that it reads
    _row: Any
    kind: str | None  # its type, None where a column decides

    def __init__(self, op: str, *args: Any) -> None:
        set_once = object.__setattr__
        set_once(self, "op", op)
        set_once(self, "args", args)
        own = frozenset(args[:1]) if op == "column" else frozenset().union(*(part.fields for part in self.parts))
        set_once(self, "fields", own)
        set_once(self, "_row", None)
        try:
            set_once(self, "kind", _kind(self))
        except BadOperands as fault:
            raise DefinitionError(f"{self.describe()}: {fault}") from None

    @property
    def parts(self) -> list[Expression]:
        """The operands."""
        return [] if self.op in ("literal", "column") else [arg for arg in self.args if isinstance(arg, Expression)]

    @property
    def paths(self) -> set[tuple[str, ...]]:
        """The columns that it reads, each with the way into its struct."""
        return {self.args} if self.op == "column" else set().union(*(part.paths for part in self.parts))

    @property
    def fixed(self) -> tuple[Any, ...]:
        return tuple(arg for arg in self.args if not isinstance(arg, Expression))

    @property
    def function(self) -> rules.Evaluated:
        """It as a function of a record's value. Raises BadOperands."""
        if self._row is None:
            object.__setattr__(self, "_row", _function(self))
        return self._row  # type: ignore[no-any-return]

    def row(self, value: Any) -> Any:
        """What it gives for the value of one record. Raises HookError, with the operands, where that cannot be worked out."""
        try:
            return self.function(value)
        except BadOperands as fault:
            raise HookError(f"the expression {self.describe()}: {fault}{_shown(self.fields, value)}") from None

    def columns(self, column: Callable[[str], Any], count: int) -> Any:
        """What it gives for so many rows, as an Arrow array. column: gives the array of a field. Raises HookError as `row` does, and NotInColumns."""
        from .column_values import Failing, OperandRows, worked_out

        try:
            return worked_out(self, OperandRows(column, count))
        except BadOperands as fault:
            raise NotInColumns(f"{self.describe()}: {fault}") from None
        except Failing as failing:
            lists = {name: column(name).to_pylist() for name in self.fields}
            return failing.array([self.row({name: values[at] for name, values in lists.items()}) for at in range(count)])

    @property
    def sql(self) -> str:
        """A text of which Spark makes the same."""
        return _written(self, exact=True)

    def describe(self) -> str:
        """A text for people."""
        text = _written(self, exact=False)
        return text[1:-1] if text.startswith("(") else text

    def is_null(self) -> Expression:
        return Expression("is null", self)

    def is_in(self, items: Iterable[Any]) -> Expression:
        """Whether it equals one of some values."""
        given = tuple(items)
        if not given or any(isinstance(item, Expression) for item in given):
            raise DefinitionError(f"{self.describe()} in {given!r}: give at least one value, and values only")
        return Expression("in", self, *given)

    def cast(self, to: str) -> Expression:
        """It as another type: string, int, long, double, boolean."""
        if to.lower() not in TYPES:
            raise DefinitionError(f"cast({self.describe()} as {to}): only to {', '.join(TYPES)}")
        return Expression("cast", self, TYPES[to.lower()])

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return _binary("=", self, other)

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return Expression("not", _binary("=", self, other))

    def __add__(self, other: Any) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary("*", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("/", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _binary("%", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _binary("%", other, self)

    def __and__(self, other: Any) -> Expression:
        return _binary("and", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _binary("and", other, self)

    def __or__(self, other: Any) -> Expression:
        return _binary("or", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _binary("or", other, self)

    def __lt__(self, other: Any) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary(">=", self, other)

    def __invert__(self) -> Expression:
        return Expression("not", self)

    def __neg__(self) -> Expression:
        return Expression("negative", self)

    def __abs__(self) -> Expression:
        return Expression("abs", self)

    def __bool__(self) -> NoReturn:
        raise DefinitionError(f"{self.describe()} is neither true nor false: use & for and, | for or, ~ for not, each side in brackets")

    def __hash__(self) -> int:
        return hash((self.op, self.args))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an expression cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.op, *self.args)

    def __repr__(self) -> str:
        return f"Expression({self.describe()!r})"


def _binary(op: str, left: Any, right: Any) -> Expression:
    for side in (left, right):
        if side is None:
            raise DefinitionError(f"{op} with None is never true: use is_null()")
    return Expression(op, lifted(left), lifted(right))


def lifted(given: Any) -> Expression:
    """A value as an expression."""
    if isinstance(given, Expression):
        return given
    if given is not None and not isinstance(given, (bool, int, float, str)):
        raise DefinitionError(f"{given!r} cannot stand in an expression: give a number, a text, True or False")
    return Expression("literal", given)


def col(name: str) -> Expression:
    """A column, or a field of a record's value. A path of names leads into a struct: "address.city".

    >>> (col("price") * col("quantity") > 3).sql
    '(((`price` - 0L) * (`quantity` - 0L)) > 3L)'
    """
    path = name.split(".") if all(map(_PLAIN.fullmatch, name.split("."))) else [name]
    return Expression("column", *path)


@lru_cache(4096)
def parse(text: str) -> Expression:
    """An SQL text as an expression. Raises DefinitionError, with the place, for what is not understood."""
    from .sql_text import SqlParser

    return SqlParser(text).parsed()


def as_expression(given: str | Expression) -> Expression:
    """A column's name, an SQL text or an expression, as an expression."""
    if isinstance(given, Expression):
        return given
    return col(given) if _PLAIN.fullmatch(given) else parse(given)


def as_text(given: Any) -> Any:
    """An expression as the column's name or the SQL text that it stands for; several of them, too. Anything else as it is."""
    if isinstance(given, Expression):
        return given.args[0] if given.op == "column" and len(given.args) == 1 else given.sql
    return type(given)(map(as_text, given)) if type(given) in (list, tuple) else given


# --- how it is worked out and written


def _kind(expression: Expression) -> str | None:
    """The type that the text shows. Raises BadOperands if types do not fit, whatever the columns are."""
    op, fixed = expression.op, expression.fixed
    if op in ("literal", "column"):
        return rules.kind(fixed[0]) if op == "literal" else None
    kinds = [part.kind for part in branches(expression)]
    if op == "cast":
        return rules.CAST_GIVES[fixed[0]] if kinds[0] is None else rules.cast_result(fixed[0], kinds[0])
    if op == "like":
        rules.like_pattern(fixed[0])
    if op == "in":
        kinds += map(rules.kind, fixed)
        if len({*map(rules.kind, fixed)} - {NULL}) > 1:
            raise BadOperands("the items of IN are of several types")
    if op == "case":
        for condition in expression.parts[:-1:2]:
            rules.result("not", (condition.kind or BOOLEAN,))
    found = rules.result(op, tuple(kind for kind in kinds if kind is not None))
    is_open = None in kinds and (found == NULL or (found == LONG and op not in ("length", "crc32", "floor", "ceil")))
    return None if is_open else found


def branches(expression: Expression) -> list[Expression]:
    """The operands whose types must fit each other: all, but for the conditions of a case."""
    parts = expression.parts
    return [*parts[1:-1:2], parts[-1]] if expression.op == "case" else parts


def wanted_kind(expression: Expression) -> str | None:
    """The type of the branches, where the text shows it."""
    kinds = {part.kind for part in branches(expression)} - {None, NULL}
    return DOUBLE if DOUBLE in kinds else next(iter(kinds), None)


def _function(expression: Expression) -> rules.Evaluated:
    op, args = expression.op, expression.args
    if op == "literal":
        return lambda value: args[0]
    if op == "column":
        return lambda value: rules.field(args, value)
    parts = [_function(part) for part in expression.parts]
    return rules.evaluated(op, parts, expression.fixed, wanted_kind(expression) if op in BRANCHING else None)


def _shown(fields: Iterable[str], value: Any) -> str:
    """The fields that an expression reads, as far as they are there."""
    found = []
    for name in sorted(fields):
        try:
            found.append(f"{name} = {rules.field([name], value)!r:.80}")
        except BadOperands:
            pass
    return f" (in a record with {', '.join(found)})" if found else ""


def _written(expression: Expression, exact: bool) -> str:
    op, args = expression.op, expression.args
    if op == "literal":
        return _literal(args[0], exact)
    if op == "column":
        return ".".join(name if not exact and _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in args)
    parts = [_written(part, exact) for part in expression.parts]
    if exact and op in _CALCULATED:
        kept = {"column", *BRANCHING, *({op} & {"+", "*"})}
        parts = [
            f"({told} - 0L)" if one.op in kept or one.kind == NULL else told for one, told in zip(expression.parts, parts, strict=True)
        ]
    if exact and op == "case":  # Spark does not take a null without a type for a condition
        parts = [
            f"cast({text} as boolean)" if expression.parts[at].kind == NULL and not at % 2 and at + 1 < len(parts) else text
            for at, text in enumerate(parts)
        ]
    if op in _INFIX:
        return f"({parts[0]} {op} {parts[1]})"
    if op == "is null":
        return f"({parts[0]} is null)"
    if op in ("not", "negative"):
        return f"({'not ' if op == 'not' else '- '}{parts[0]})"
    if op == "like":
        return f"({parts[0]} like {_literal(args[1], exact)})"
    if op == "in":
        return f"({parts[0]} in ({', '.join(_literal(item, exact) for item in expression.fixed)}))"
    if op == "case":
        whens = [f"when {condition} then {value}" for condition, value in zip(parts[:-1:2], parts[1:-1:2], strict=True)]
        return f"(case {' '.join(whens)} else {parts[-1]} end)"
    if op == "cast":
        return f"cast(cast({parts[0]} as int) as bigint)" if exact and args[1] == "int" else f"cast({parts[0]} as {args[1]})"
    if op == "length" and exact:
        return f"cast(length({parts[0]}) as bigint)"
    return f"{op}({', '.join([*parts, *map(str, expression.fixed)])})"


def _literal(value: Any, exact: bool) -> str:
    if isinstance(value, str):
        told = value.replace("\\", "\\\\").replace("'", "\\'")
        return "'" + re.sub(r"[\x00-\x1f\x7f]", lambda one: f"\\u{ord(one[0]):04x}", told) + "'"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, float):
        return f"double('{value}')" if math.isinf(value) or math.isnan(value) else f"{value!r}{'D' if exact else ''}"
    return f"{value}{'L' if exact else ''}"
