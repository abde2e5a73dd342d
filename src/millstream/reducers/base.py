"""What a reducer is: how many values become one, in any order and any grouping.

Words: a *value* is what a document or a record brings. `lift` makes a *part* of it. `combine` makes one part of two; the part of everything that there
is now is the *total*. `finish` makes of a total what is shown.

Rules that every reducer keeps (`law_checks.py` checks them)
1. `combine` is commutative and associative. So values may come in any order, epoch, shard or node of a tree, and the total is the same.
2. `remove`, where there is one, is the exact inverse: `remove(combine(t, p), p) == t`. Whether anything is left is not its business: its caller counts.
3. Parts and totals are plain data that msgpack gives back equal: None, bool, int within 64 bits, float, str, bytes, list, dict with text keys; and
   what the values themselves hold (dates, Decimals), unchanged.
4. No argument is ever changed: a total may be shared. Nor has a reducer any state of its own: one instance serves all groups.
5. None is never a part. A value that says nothing to a reducer is lifted to None and skipped; None as a total means that there is nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, final


class Reducer:
    """The base of all reducers. A reducer of one's own defines `combine`, and most often `lift`.

    >>> class Box(Reducer):
    ...     def lift(self, value): return [value["x"], value["x"]]
    ...     def combine(self, a, b): return [min(a[0], b[0]), max(a[1], b[1])]
    ...     def finish(self, total): return {"from": total[0], "to": total[1]}
    >>> box = Box()
    >>> total = box.fold(box.lift(value) for value in ({"x": 3}, {"x": 1}, {"x": 2}))
    >>> total, box.show(total), box.show(None)
    ([1, 3], {'from': 1, 'to': 3}, None)
    """

    #: What is shown when there is nothing to reduce.
    empty: Any = None

    #: The inverse of `combine`, a method `remove(self, total, part) -> total`; None where there is none.
    remove: Callable[[Any, Any], Any] | None = None

    #: Whether `lift_at` must be called instead of `lift`, with what orders the values: of a document, its version.
    wants_order: bool = False

    #: Whether a part is a sorted list of different texts, and the part of one value a list of one. Then whoever keeps the parts may count
    #: the references to each text instead, and hand the list of those that are left to `finish`.
    indexed: bool = False

    def lift(self, value: Any) -> Any:
        """A value as a part; None if it says nothing to this reducer."""
        return value

    def lift_at(self, value: Any, order: Any) -> Any:
        """Lifts a value that has a place in an order. Only those that want it look at it."""
        return self.lift(value)

    def combine(self, a: Any, b: Any) -> Any:
        """Two parts as one. Neither is None."""
        raise NotImplementedError(f"{type(self).__name__} needs a method combine(self, a, b) that makes one part of two")

    def fold(self, parts: Iterable[Any]) -> Any:
        """Many parts as one; None among them are skipped, and None is what is left of nothing."""
        combine = self.combine
        total = None
        for part in parts:
            if part is not None:
                total = part if total is None else combine(total, part)
        return total

    def add(self, total: Any, value: Any) -> Any:
        """The total (None: nothing yet) with one more value."""
        part = self.lift(value)
        if part is None:
            return total
        return part if total is None else self.combine(total, part)

    def finish(self, total: Any) -> Any:
        """What is shown of a total. It is not None."""
        return total

    @final
    def show(self, total: Any) -> Any:
        """What is shown, also of nothing."""
        if total is not None:
            return self.finish(total)
        return copy.deepcopy(self.empty) if self.empty.__class__ in (list, dict) else self.empty

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions inside, of which `describe` says only the names: for fingerprints, which look at their code."""
        return ()

    def describe(self) -> str:
        """The reducer as it is written, the same in every process: for `--explain`, errors and fingerprints.

        >>> class Times(Reducer):
        ...     def __init__(self, factor): self.factor = factor
        >>> Times(3).describe()
        'Times(factor=3)'
        """
        return f"{type(self).__name__}({', '.join(f'{name}={spelled(value)}' for name, value in sorted(vars(self).items()))})"

    def __repr__(self) -> str:
        return self.describe()


_PLAIN = (str, int, float, bytes, bool, type(None))


def spelled(value: Any) -> str:
    """An argument as it might have been written, without addresses.

    >>> spelled("age"), spelled([1, len]), spelled(lambda value: value)
    ("'age'", '[1, len]', '<lambda>')
    """
    kind = value.__class__
    if kind in _PLAIN or isinstance(value, Reducer):
        return repr(value)
    if kind is list or kind is tuple:
        inside = ", ".join(map(spelled, value))
        return f"[{inside}]" if kind is list else f"({inside}{',' * (len(value) == 1)})"
    if kind is dict:
        return "{" + ", ".join(f"{spelled(key)}: {spelled(one)}" for key, one in value.items()) + "}"
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        return name.rpartition("<locals>.")[2]
    text = repr(value)
    return text if " at 0x" not in text else f"<{kind.__name__}>"
