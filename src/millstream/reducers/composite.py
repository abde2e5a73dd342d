"""Several reducers at once, by name; and what `.reduce(...)` makes of its arguments.

Rules
1. A part is a list: the members' parts, in the order of the names, and None where one skips the value. A value that all skip has no part.
2. If all members have an inverse, `Several` has one, and its parts end with one more element: how many values each member has had, as a list, or as a
   number if it is the same for all. Without it, a member from which the last value has been taken would be 0 where it should be nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.errors import DefinitionError
from millstream.reducers import extremes, sums, values
from millstream.reducers.base import Reducer
from millstream.reducers.order import order_key

_BUILTIN: tuple[type[Reducer], ...] = (
    *(sums.count, sums.sum, sums.mean, sums.stats, extremes.min, extremes.max, extremes.first, extremes.last),
    *(extremes.top, extremes.bottom, values.count_distinct, values.any_value, values.collect),
)


class Several(Reducer):
    """Several reducers of the same values. What is shown is a dict.

    >>> reducer = Several({"people": sums.count(), "age": sums.sum("age")})
    >>> total = reducer.fold(map(reducer.lift, [{"age": 7}, {"age": None}]))
    >>> total, reducer.show(total), reducer.show(None)
    ([2, 7, [2, 1]], {'people': 2, 'age': 7}, {'people': 0, 'age': None})
    """

    def __init__(self, members: Mapping[str, Reducer]) -> None:
        if not members:
            raise DefinitionError("Several({...}): name at least one reducer, such as people=ms.count()")
        for name, member in members.items():
            if not isinstance(name, str):
                raise DefinitionError(f"Several({{...}}): a reducer's name is a text, not {name!r}")
            _check(member, f"{name}=")
        #: By name, in order.
        self.members = dict(members)
        self._reducers = tuple(members.values())
        self._invertible = all(member.remove is not None for member in self._reducers)
        self.empty = {name: member.empty for name, member in members.items()}
        self.wants_order = builtins.any(member.wants_order for member in self._reducers)

    @property
    def remove(self) -> Callable[[Any, Any], Any] | None:  # type: ignore[override]
        return self._removed if self._invertible else None

    def lift(self, value: Any) -> Any:
        return self._part([member.lift(value) for member in self._reducers])

    def lift_at(self, value: Any, order: Any) -> Any:
        return self._part([member.lift_at(value, order) for member in self._reducers])

    def _part(self, parts: list[Any]) -> Any:
        if None in parts:
            had = [int(part is not None) for part in parts]
            if not builtins.any(had):
                return None
            return [*parts, had] if self._invertible else parts
        if self._invertible:
            parts.append(1)
        return parts

    def combine(self, a: Any, b: Any) -> Any:
        made = [y if x is None else x if y is None else member.combine(x, y) for member, x, y in zip(self._reducers, a, b, strict=False)]
        return self._counted(made, self._sum(a[-1], b[-1], 1)) if self._invertible else made

    def fold(self, parts: Iterable[Any]) -> Any:
        columns = list(zip(*[part for part in parts if part is not None], strict=True))
        if not columns:
            return None
        made = [member.fold(column) for member, column in zip(self._reducers, columns, strict=False)]
        if not self._invertible:
            return made
        had = columns[-1]
        if set(map(type, had)) == {int}:
            return self._counted(made, builtins.sum(had))
        return self._counted(made, [builtins.sum(one) for one in zip(*map(self._listed, had), strict=True)])

    def _removed(self, total: Any, part: Any) -> Any:
        made = []
        for member, x, y in zip(self._reducers, total, part, strict=False):
            if y is not None:
                remove = member.remove
                assert remove is not None
                x = remove(remove(y, y) if x is None else x, y)
            made.append(x)
        return self._counted(made, self._sum(total[-1], part[-1], -1))

    def _listed(self, had: Any) -> list[int]:
        return had if had.__class__ is list else [had] * len(self._reducers)

    def _sum(self, a: Any, b: Any, sign: int) -> Any:
        if a.__class__ is int and b.__class__ is int:
            return a + sign * b
        return [x + sign * y for x, y in zip(self._listed(a), self._listed(b), strict=True)]

    def _counted(self, made: list[Any], had: Any) -> list[Any]:
        """A part with its counts. A member that has had nothing has nothing; unless as much has gone from it as came, and that was something else."""
        if had.__class__ is int and had != 0:
            made.append(had)
            return made
        counts = self._listed(had)
        for at, (member, part) in enumerate(zip(self._reducers, made, strict=True)):
            if counts[at] == 0 and part is not None and member.remove is not None:
                nothing = member.remove(part, part)
                if order_key(part) == order_key(nothing):
                    made[at] = None
        made.append(counts[0] if counts.count(counts[0]) == len(counts) else counts)
        return made

    def finish(self, total: Any) -> Any:
        return {name: member.show(part) for (name, member), part in zip(self.members.items(), total, strict=False)}

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple(function for member in self._reducers for function in member.functions)

    def describe(self) -> str:
        return ", ".join(f"{name}={member.describe()}" for name, member in self.members.items())


def as_reducer(positional: Any, named: Mapping[str, Any]) -> Reducer:
    """The reducer that `.reduce(reducer)` or `.reduce(name=reducer, ...)` means. positional is None if none was given.

    >>> as_reducer(sums.count(), {}), as_reducer(None, {"people": sums.count(), "oldest": extremes.top(3, by="age")})
    (count(), people=count(), oldest=top(3, by='age'))
    >>> as_reducer(sums.count, {})
    Traceback (most recent call last):
    millstream.errors.DefinitionError: reduce(count): ms.count is called to make a reducer: write ms.count()
    """
    if positional is not None and named:
        raise DefinitionError(
            f"reduce({_told(positional)}, {', '.join(f'{name}=' for name in named)}): give one reducer, or several by name, and not both"
        )
    if named:
        return Several(named)
    if isinstance(positional, Mapping):
        return Several(positional)
    if positional is None:
        raise DefinitionError("reduce(): give a reducer, such as ms.count(), or several by name: people=ms.count(), age=ms.mean('age')")
    _check(positional, "")
    return positional  # type: ignore[no-any-return]


def _check(given: Any, where: str) -> None:
    if isinstance(given, Reducer):
        return
    told = f"reduce({where}{_told(given)})"
    if any(given is one for one in _BUILTIN):  # not `in`: what is given may compare as it likes
        needs = "3, by='age'" if issubclass(given, extremes.Best) else ""
        raise DefinitionError(f"{told}: ms.{given.__name__} is called to make a reducer: write ms.{given.__name__}({needs})")
    if isinstance(given, type) and issubclass(given, Reducer):
        raise DefinitionError(f"{told}: this is the class. A reducer is an instance of it: write {given.__name__}()")
    for one in _BUILTIN:
        if given is getattr(builtins, one.__name__, one):
            raise DefinitionError(f"{told}: this is Python's own {one.__name__}: write ms.{one.__name__}()")
    if given is len:
        raise DefinitionError(f"{told}: write ms.count()")
    raise DefinitionError(
        f"{told}: a {type(given).__name__} is no reducer. There are {', '.join(f'ms.{one.__name__}' for one in _BUILTIN)}, or a subclass of ms.Reducer"
    )


def _told(given: Any) -> str:
    name = getattr(given, "__name__", None)
    return name if isinstance(name, str) else repr(given)[:80]
