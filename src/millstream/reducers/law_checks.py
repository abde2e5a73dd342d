"""A check of a reducer's rules (`base.py`) on values that the user gives: which law is broken, by which parts, and how.

| law         | what is compared                                                                                       |
| ----------- | ------------------------------------------------------------------------------------------------------ |
| lift        | a value gives the same part each time                                                                   |
| commutative | combine(a, b) and combine(b, a)                                                                         |
| associative | combine(combine(a, b), c) and combine(a, combine(b, c))                                                 |
| order       | all orders of up to five parts, and random orders and groupings of more                                 |
| fold        | fold and combining one by one, also with None among the parts, with totals as parts, and with nothing   |
| add         | add(total, value) and combine(total, lift(value))                                                       |
| remove      | the total before a part came, and after it came and went; among others, and down to the last one         |
| unchanged   | every argument before and after every call                                                              |
| msgpack     | a part or total, and what msgpack makes of it                                                           |
| finish      | what is shown of a total, twice                                                                         |

Values are the same if nothing can tell them apart: 1 is not 1.0, because their bytes differ. What is opaque to msgpack passes if Millstream's own codec
carries it: dates, Decimals, UUIDs, and long integers, tuples and sets that the values themselves hold.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import combinations, permutations
from typing import Any

import msgspec

from millstream.errors import DefinitionError, HookError
from millstream.reducers.base import Reducer
from millstream.reducers.order import order_key

_ALL_ORDERS = 5  # parts of which all orders are tried
_TRIALS = 40
_PLAIN = (bool, int, float, str, bytes)
_OPAQUE = (datetime, date, time, timedelta, Decimal, uuid.UUID)


def assert_reducer(reducer: Reducer, values: Iterable[Any], *, seed: int = 0) -> None:
    """Checks that a reducer keeps its laws on these values. Raises AssertionError with the law, the parts that break it, and both results.

    Give values that differ much: equal ones, extreme ones, such as are skipped. Up to five are tried in all orders, more in random orders and
    groupings, which follow from the seed. A reducer that wants an order gets the places in the list.

    >>> class Span(Reducer):
    ...     def combine(self, a, b): return abs(a - b)
    >>> assert_reducer(Span(), [1, 2, 4])
    Traceback (most recent call last):
    AssertionError: Span() is not associative: combine(combine(a, b), c) gives 3, and combine(a, combine(b, c)) gives 1
      a = 1
      b = 2
      c = 4
    """
    if not isinstance(reducer, Reducer):
        raise DefinitionError(f"assert_reducer(reducer, values): {reducer!r} is no reducer; give one such as ms.count()")
    given = list(values)
    if not given:
        raise DefinitionError("assert_reducer(reducer, values): give some values")
    _Trial(reducer, given, random.Random(seed)).run()


def _same(a: Any, b: Any) -> bool:
    try:
        return order_key(a) == order_key(b)
    except HookError:  # of a class that nobody can order
        return type(a) is type(b) and bool(a == b)


class _Trial:
    def __init__(self, reducer: Reducer, values: list[Any], rng: random.Random) -> None:
        self.reducer, self.values, self.rng = reducer, values, rng
        self.lifted = [self._lift(at, value) for at, value in enumerate(values)]
        self.parts = [part for part in self.lifted if part is not None]

    def run(self) -> None:
        for part in self.parts:
            self._survives(part)
        self._combines()
        if self.parts:
            self._any_order()
        self._folds()
        if not self.reducer.wants_order:
            self._adds()
        if self.reducer.remove is not None and self.parts:
            self._removes(self.reducer.remove)

    # calls, each of which leaves its arguments alone

    def _call(self, told: str, function: Callable[..., Any], *arguments: Any) -> Any:
        before = copy.deepcopy(arguments)
        result = function(*arguments)
        for was, now in zip(before, arguments, strict=True):
            if not _same(was, now):
                raise AssertionError(
                    f"{self.reducer!r} changes an argument: {told} was given {was!r}, and left {now!r}. Return a new object."
                )
        return result

    def _combine(self, a: Any, b: Any) -> Any:
        made = self._call("combine", self.reducer.combine, a, b)
        if made is None:
            raise AssertionError(f"{self.reducer!r}: combine gives None, which means that there is nothing\n  a = {a!r}\n  b = {b!r}")
        return made

    def _lift(self, at: int, value: Any) -> Any:
        told, lift, place = ("lift_at", self.reducer.lift_at, [at]) if self.reducer.wants_order else ("lift", self.reducer.lift, [])
        part, again = (self._call(told, lift, value, *place) for _ in range(2))
        self._compare("gives one value different parts", "lift(value)", part, "lift(value) again", again, value=value)
        return part

    def _one_by_one(self, parts: Iterable[Any]) -> Any:
        total = None
        for part in parts:
            total = part if total is None else self._combine(total, part)
        return total

    def _compare(self, law: str, this: str, left: Any, that: str, right: Any, **where: Any) -> None:
        if not _same(left, right):
            told = "".join(f"\n  {name} = {value!r}" for name, value in where.items())
            raise AssertionError(f"{self.reducer!r} {law}: {this} gives {left!r}, and {that} gives {right!r}{told}")

    # laws

    def _combines(self) -> None:
        combine = self._combine
        for a, b in self._some(list(combinations(self.parts, 2))):
            self._compare("is not commutative", "combine(a, b)", combine(a, b), "combine(b, a)", combine(b, a), a=a, b=b)
        for a, b, c in self._some(list(permutations(self.parts[:20], 3))):
            left, right = combine(combine(a, b), c), combine(a, combine(b, c))
            self._compare("is not associative", "combine(combine(a, b), c)", left, "combine(a, combine(b, c))", right, a=a, b=b, c=c)

    def _some(self, found: list[Any]) -> list[Any]:
        return found if len(found) <= 4 * _TRIALS else self.rng.sample(found, 4 * _TRIALS)

    def _any_order(self) -> None:
        parts, expected = self.parts, self._one_by_one(self.parts)
        self._survives(expected)
        shown, again = (self._call("finish", self.reducer.finish, expected) for _ in range(2))
        self._compare("does not repeat itself", "finish(total)", shown, "finish(total) again", again, total=expected)
        if len(parts) <= _ALL_ORDERS:
            orders: Iterable[Any] = permutations(parts)
        else:
            orders = (self.rng.sample(parts, len(parts)) for _ in range(_TRIALS))
        for order in map(list, orders):
            total = self._one_by_one(order)
            self._compare("depends on the order", "one order", expected, "another", total, one=parts, another=order)
            grouped = list(order)
            while len(grouped) > 1:  # neighbours, anywhere, until one is left
                at = self.rng.randrange(len(grouped) - 1)
                grouped[at : at + 2] = [self._combine(grouped[at], grouped[at + 1])]
            self._compare("depends on the grouping", "one by one", expected, "in groups", grouped[0], parts=order)

    def _folds(self) -> None:
        fold = self.reducer.fold
        for parts in ([], [None], [None, None]):
            found = fold(parts)
            if found is not None:
                raise AssertionError(f"{self.reducer!r}: fold({parts}) gives {found!r}: of nothing it must give None")
        for _ in range(_TRIALS):
            parts = self.rng.sample(self.lifted, self.rng.randint(1, len(self.lifted)))
            expected = self._one_by_one(part for part in parts if part is not None)
            folded = self._call("fold", fold, parts)
            self._compare("folds differently", "fold(parts)", folded, "combining one by one", expected, parts=parts)
            at = self.rng.randint(0, len(parts))
            halves = fold([fold(parts[:at]), fold(iter(parts[at:]))])
            self._compare("folds differently", "fold(parts)", folded, "folding the folds of two halves", halves, parts=parts, at=at)

    def _adds(self) -> None:
        for _ in range(_TRIALS):
            total = None
            for at in self.rng.sample(range(len(self.values)), len(self.values)):
                part, value = self.lifted[at], self.values[at]
                expected = total if part is None else part if total is None else self._combine(total, part)
                added = self._call("add", self.reducer.add, total, value)
                told = "combine(total, lift(value))"
                self._compare("adds differently", "add(total, value)", added, told, expected, total=total, value=value)
                total = expected

    def _removes(self, remove: Callable[[Any, Any], Any]) -> None:
        for _ in range(_TRIALS):
            here = self.rng.sample(self.parts, len(self.parts))
            total = self._one_by_one(here)
            while len(here) > 1:
                part = here.pop(self.rng.randrange(len(here)))
                left, after = self._one_by_one(here), self._call("remove", remove, total, part)
                self._survives(after)
                where = {"total": total, "part": part, "others": here}
                self._compare("does not undo", "remove(total, part)", after, "combining the others", left, **where)
                total = after

    def _survives(self, part: Any) -> None:
        """Whether msgpack gives it back; what is opaque is left out on both sides."""
        bare, strange = self._bare(part)
        if strange is not None:
            raise AssertionError(
                f"{self.reducer!r}: a part must be plain data, and this holds {strange!r} ({type(strange).__name__}): {part!r}. "
                "Plain are None, bool, int within 64 bits, float, str, bytes, list, and dict with text keys."
            )
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(bare))
        self._compare("has parts that do not last", "the part", bare, "what msgpack makes of it", back, part=part)

    def _bare(self, part: Any) -> tuple[Any, Any]:
        """A part without what is opaque; and the first thing in it that nothing carries, or None."""
        kind = part.__class__
        if part is None or kind in _OPAQUE:
            return None, None
        if kind is str and part.encode(errors="ignore").decode() != part:  # half of a surrogate pair
            return None, part
        if kind in _PLAIN and (kind is not int or -(2**63) <= part < 2**64):
            return part, None
        if kind is list:
            pairs = [self._bare(one) for one in part]
        elif kind is dict and all(key.__class__ is str for key in part):
            pairs = [self._bare(one) for one in part.values()]
        else:
            is_given = kind in (int, tuple, set, frozenset, dict) and _holds(self.values, part)
            return None, None if is_given else part
        strange = next((one for _, one in pairs if one is not None), None)
        inside = [one for one, _ in pairs]
        return (inside if kind is list else dict(zip(part, inside, strict=True))), strange


def _holds(values: Any, part: Any) -> bool:
    """Whether a value has this inside."""
    if values.__class__ is part.__class__ and _same(values, part):
        return True
    inside = [*values, *values.values()] if isinstance(values, dict) else values
    return isinstance(values, (dict, list, tuple, set, frozenset)) and any(_holds(one, part) for one in inside)
