"""What a builtin reducer reads of a value: a field, a function of it, or the value itself; and which values it reads at all.

Rules
1. A field of a dict is an item, of anything else an attribute. A field that is missing is an error: a misspelt name must not look like an empty group.
2. `where` sees the value before anything is read of it.
3. None says nothing: neither None in place of a value, nor a field that is None. (`count()` without a field counts such values nevertheless.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.errors import DefinitionError, HookError
from millstream.reducers.base import Reducer, spelled

Chosen = str | Callable[[Any], Any] | None


class FieldReducer(Reducer):
    """The base of the builtin reducers, whose classes are called as users call them."""

    n: Any = None  # what some of them have beside the field
    by: Chosen = None
    limit: int | None = None
    ties: bool = False

    def __init__(self, field: Chosen = None, *, where: Callable[[Any], Any] | None = None, of: Any = None) -> None:
        """of: the stream whose records it reads, where an operator reads several (`merge`)."""
        self.name = type(self).__name__
        self.of = getattr(of, "name", of)
        self.field = field
        self.where = where
        self._item = field if isinstance(field, str) else None
        self._function = None if isinstance(field, str) else field
        if isinstance(field, Reducer):
            raise DefinitionError(f"{self.name}({field!r}): a reducer reads a field or a function of the value, not another reducer")
        if field is not None and not isinstance(field, str) and not callable(field):
            raise DefinitionError(
                f"{self.name}({field!r}): give the name of a field or a function of the value, or nothing for the value itself"
            )
        if where is not None and not callable(where):
            raise DefinitionError(f"{self.name}(where={where!r}): where is a function of the value that says whether it counts")

    def read(self, value: Any) -> Any:
        """What is to be reduced of a value; None if nothing is."""
        if value is None or (self.where is not None and not self.where(value)):
            return None
        item = self._item
        if item is not None:
            if value.__class__ is dict:
                try:
                    return value[item]
                except KeyError:
                    pass
            return field_of(value, item, self)
        return value if self._function is None else self._function(value)

    def read_by(self, value: Any, by: Chosen) -> Any:
        """Another field or function of the same value."""
        if isinstance(by, str):
            return value[by] if value.__class__ is dict and by in value else field_of(value, by, self)
        return value if by is None else by(value)

    def checked_by(self, by: Chosen) -> Chosen:
        """`by` as it was given, if it can be one."""
        if by is None or isinstance(by, str) or (callable(by) and not isinstance(by, Reducer)):
            return by
        raise DefinitionError(f"{self.name}(by={by!r}): by is the name of a field, or a function of the value")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple(one for one in (self._function, self.by, self.where) if callable(one))

    def describe(self) -> str:
        said = [spelled(value) for value in (self.n, self.field) if value is not None]
        named = {"by": self.by, "where": self.where, "limit": self.limit, "of": self.of, "ties": self.ties or None}
        said += [f"{name}={spelled(value)}" for name, value in named.items() if value is not None]
        return f"{self.name}({', '.join(said)})"


def field_of(value: Any, field: str, reducer: Reducer) -> Any:
    """A field of a value. Raises HookError if there is none."""
    if isinstance(value, Mapping):
        if field in value:
            return value[field]
        fields = [str(key) for key in value]
        raise HookError(f"{reducer.describe()}: the value has no field {field!r}; its fields are: {', '.join(fields) or 'none'}")
    try:
        return getattr(value, field)
    except AttributeError:
        named = (
            getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None) or getattr(value, "__dict__", None)
        )
        fields = list(named or ())
        told = f"its fields are: {', '.join(fields)}" if fields else f"it is {shortened(value)}, of type {type(value).__name__}"
        raise HookError(f"{reducer.describe()}: the value has no field {field!r}; {told}") from None


def shortened(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def checked_number(name: str, what: str, number: Any, most: int) -> int:
    if number.__class__ is not int or not 1 <= number <= most:
        raise DefinitionError(f"{name}: {what} is a number from 1 to {most:,}, not {shortened(number)}")
    return int(number)
