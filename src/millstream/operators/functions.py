"""What users give where a function of the record (or of a document) is asked for: a function, SQL text, or what `ms.col` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.errors import DefinitionError
from millstream.operators.expressions import Expression, as_expression
from millstream.reducers.base import spelled


class OfValue:
    """An expression as a function of an item: of a record, or of a document. Its repr is the text."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __call__(self, item: Any) -> Any:
        return self.expression.row(item.value)

    def __repr__(self) -> str:
        return self.expression.describe()


class OfValues:
    """Several expressions by name, as a function that gives a dict."""

    def __init__(self, expressions: Mapping[str, Expression]) -> None:
        self.expressions = dict(expressions)

    def __call__(self, item: Any) -> dict[str, Any]:
        return {name: expression.row(item.value) for name, expression in self.expressions.items()}

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {one.describe()}" for name, one in self.expressions.items()) + "}"


def as_function(given: Any, call: str, *, takes_dict: bool = False) -> Any:
    """What was given, as a function of an item. call: what was called, for errors.

    >>> from millstream.core.record import single
    >>> as_function("price * 2", "map")(single("sales", "k", 0, {"price": 3}, "s1"))
    6
    """
    if isinstance(given, (str, Expression)):
        return OfValue(as_expression(given))
    if takes_dict and isinstance(given, Mapping):
        return OfValues({name: as_expression(one) for name, one in given.items()})
    if not callable(given):
        wanted = "a function of the record, SQL text such as 'price > 3', or ms.col('price') > 3"
        raise DefinitionError(f"{call}({given!r}): give {wanted}{', or a dict of those texts' if takes_dict else ''}")
    return given


class Not:
    """The opposite of a function, as one that can be pickled."""

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self._f = f

    def __call__(self, item: Any) -> bool:
        return not self._f(item)

    def __repr__(self) -> str:
        return f"not {spelled(self._f)}"
