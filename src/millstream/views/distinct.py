"""Different values of a large group, counted by reference.

Rules
1. A reducer that counts different values (`Reducer.indexed`) would have to keep all of them in every partial result. Here it keeps nothing there: beside
   the leaves stands an entry per value that says how many contributions have it, and the row says how many values there are.
2. A group whose contributions stand in its row needs no such entries: they are looked through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.reducers.base import Reducer
from millstream.reducers.composite import Several


class ByReference(Reducer):
    """Stands in for a reducer that counts different values: its parts are lifted as before, and nothing of them is kept in totals."""

    def __init__(self, of: Reducer) -> None:
        self.of = of
        self.empty = of.empty

    def lift(self, value: Any) -> Any:
        return self.of.lift(value)

    def combine(self, a: Any, b: Any) -> Any:
        return []

    def fold(self, parts: Iterable[Any]) -> Any:
        return [] if any(part is not None for part in parts) else None

    def remove(self, total: Any, part: Any) -> Any:  # type: ignore[override]
        return []

    @property
    def functions(self) -> Any:
        return self.of.functions

    def describe(self) -> str:
        return self.of.describe()


def by_reference(reducer: Reducer) -> Reducer:
    """A reducer whose different values are counted here."""
    if isinstance(reducer, Several):
        if not any(member.indexed for member in reducer.members.values()):
            return reducer
        return Several({name: ByReference(one) if one.indexed else one for name, one in reducer.members.items()})
    return ByReference(reducer) if reducer.indexed else reducer


class ReferenceIndex:
    """Which values of a part are counted by reference, and how they are told."""

    def __init__(self, reducer: Reducer) -> None:
        members = list(reducer.members.items()) if isinstance(reducer, Several) else [(None, reducer)]
        found = [at for at, (_, member) in enumerate(members) if isinstance(member, ByReference)]
        self.names = [members[at][0] for at in found]
        self._at = found if isinstance(reducer, Several) else []  # where they stand in a part

    def __bool__(self) -> bool:
        return bool(self.names)

    def values(self, part: Any) -> Iterable[str]:
        """The values in a part, each as the name of its entry."""
        if part is None:
            return
        if not self._at:
            yield f"0/{part[0]}"
            return
        for number, at in enumerate(self._at):
            if part[at] is not None:
                yield f"{number}/{part[at][0]}"

    def counted(self, parts: Iterable[Any]) -> list[int]:
        """How many different values are in some parts (rule 2)."""
        different = {value for part in parts for value in self.values(part)}
        return self.sizes(different)

    def sizes(self, different: Iterable[str]) -> list[int]:
        """How many of some values belong to each reducer."""
        found = [0] * len(self.names)
        for value in different:
            found[int(value.partition("/")[0])] += 1
        return found

    def told(self, shown: Any, sizes: list[int]) -> Any:
        """What is shown, with the numbers of different values put in."""
        if self.names == [None]:
            return sizes[0]
        return {**shown, **dict(zip(self.names, sizes, strict=True))}

    def change(self, nodes: Any, sizes: list[int], moved: Mapping[str, int]) -> list[int]:
        """Counts references up and down. moved: by value, how many more."""
        found = list(sizes) or [0] * len(self.names)
        for value, n in moved.items():
            if not n:
                continue
            data = nodes.get(value)
            before = 0 if data is None else int.from_bytes(data, "big")
            after = before + n
            if after > 0:
                nodes.set(value, after.to_bytes(8, "big"))
            else:
                nodes.delete(value)
            found[int(value.partition("/")[0])] += (after > 0) - (before > 0)
        return found
