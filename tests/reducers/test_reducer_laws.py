"""The laws hold for every builtin reducer; and a reducer that breaks one is found, law by law."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import millstream as ms
from millstream.errors import DefinitionError
from millstream.reducers.composite import Several
from millstream.reducers.order import order_key

PEOPLE = [
    {"name": "Sue", "age": 7, "x": 0.1, "d": Decimal("1.10"), "at": datetime(2020, 1, 1, tzinfo=UTC)},
    {"name": "Joe", "age": 2**63 - 1, "x": 1e300, "d": Decimal("2"), "at": datetime(2021, 1, 1, tzinfo=UTC)},
    {"name": "Sue", "age": 7.0, "x": float("inf"), "d": Decimal("NaN"), "at": datetime(2020, 1, 1, tzinfo=UTC)},
    {"name": None, "age": None, "x": None, "d": None, "at": None},
    {"name": "Ann", "age": True, "x": -1e300, "d": Decimal("-1E+5"), "at": datetime(2019, 1, 1, tzinfo=UTC)},
    {"name": "Tod", "age": 2**70, "x": 5e-324, "d": Decimal("0.001"), "at": datetime(2019, 1, 1, tzinfo=UTC)},
    {"name": "Sue", "age": -3, "x": float("nan"), "d": Decimal("-0.001"), "at": datetime(2019, 1, 1, tzinfo=UTC)},
]
BUILTIN = [
    ms.count(),
    ms.count("age"),
    ms.sum("age"),
    ms.sum("x"),
    ms.sum("d"),
    ms.mean("age"),
    ms.mean("x"),
    ms.stats("age"),
    ms.stats("x"),
    ms.stats("d"),
    ms.min("age"),
    ms.max("x"),
    ms.max("at"),
    ms.top(2, by="age"),
    ms.top(3, "name", by="at"),
    ms.bottom(2, "x"),
    ms.first("name"),
    ms.last("age", by="at"),
    ms.last(),
    ms.count_distinct("name"),
    ms.count_distinct(),
    ms.any_value("age"),
    ms.any_value(),
    ms.collect("age", limit=3),
    ms.collect(),
    Several({"n": ms.count(), "age": ms.sum("age"), "x": ms.mean("x")}),
    Several({"n": ms.count(), "at": ms.max("at"), "last": ms.last("name"), "top": ms.top(2, "age")}),
]


@pytest.mark.parametrize("reducer", BUILTIN, ids=repr)
def test_a_builtin_reducer_keeps_the_laws(reducer: ms.Reducer) -> None:
    ms.testing.assert_reducer(reducer, PEOPLE)


@pytest.mark.parametrize("reducer", BUILTIN[::4], ids=repr)
def test_a_builtin_reducer_keeps_the_laws_in_all_orders(reducer: ms.Reducer) -> None:
    ms.testing.assert_reducer(reducer, PEOPLE[:4])


@pytest.mark.parametrize("reducer", [one for one in BUILTIN if one.remove is not None], ids=repr)
def test_what_is_left_of_nothing_is_neutral(reducer: ms.Reducer) -> None:
    parts = [reducer.lift(value) for value in PEOPLE if reducer.lift(value) is not None]
    for part in parts:
        for other in parts:
            nothing = reducer.remove(part, part)
            assert order_key(reducer.combine(nothing, other)) == order_key(reducer.combine(other, nothing)) == order_key(other)
            early = reducer.combine(reducer.remove(nothing, other), part)  # what goes before it comes
            assert order_key(reducer.combine(early, other)) == order_key(part)


class Sum(ms.Reducer):
    """A plain sum, right for small ints. The twins below each break one law."""

    def combine(self, a: Any, b: Any) -> Any:
        return a + b

    def remove(self, total: Any, part: Any) -> Any:
        return total - part


class Listed(ms.Reducer):
    def lift(self, value: Any) -> Any:
        return [value]

    def combine(self, a: Any, b: Any) -> Any:
        return sorted([*a, *b])


def test_plain_reducers_are_right() -> None:
    ms.testing.assert_reducer(Sum(), [1, 2, 3, 4, 5, 6])
    ms.testing.assert_reducer(Listed(), [1, 2, 3, 1])


class NotCommutative(ms.Reducer):
    def combine(self, a: Any, b: Any) -> Any:
        return a  # the first one wins


class NotAssociative(ms.Reducer):
    def combine(self, a: Any, b: Any) -> Any:
        return (a + b) / 2


class DependsOnOrder(ms.Reducer):
    """All pairs and triples are right."""

    def lift(self, value: Any) -> Any:
        return [value]

    def combine(self, a: Any, b: Any) -> Any:
        return sorted([*a, *b]) if len(a) + len(b) < 5 else [*a, *b]


class CompactsOtherwise(Sum):
    def fold(self, parts: Any) -> Any:
        found = [part for part in parts if part is not None]
        return max(found) if found else None


class CompactsNoneAway(Sum):
    def fold(self, parts: Any) -> Any:
        return sum(part or 0 for part in parts)


class AddsOtherwise(Sum):
    def add(self, total: Any, value: Any) -> Any:
        return value if total is None else total + value + (total > 5)


class DoesNotUndo(Sum):
    def remove(self, total: Any, part: Any) -> Any:
        return total - part if total < 9 else total - part - 1


class LosesTheLast(ms.Reducer):
    """A set: whoever takes one of two equal ones away takes both."""

    def lift(self, value: Any) -> Any:
        return [value]

    def combine(self, a: Any, b: Any) -> Any:
        return sorted({*a, *b})

    def remove(self, total: Any, part: Any) -> Any:
        return [one for one in total if one not in part]


class ChangesItsArgument(Listed):
    def combine(self, a: Any, b: Any) -> Any:
        a += b
        a.sort()
        return a


class ChangesWhenFolding(Listed):
    def fold(self, parts: Any) -> Any:
        found = [part for part in parts if part is not None]
        if not found:
            return None
        total = found[0]
        for part in found[1:]:
            total.extend(part)
        total.sort()
        return total


class ChangesWhenRemoving(ms.Reducer):
    def lift(self, value: Any) -> Any:
        return {"n": value}

    def combine(self, a: Any, b: Any) -> Any:
        return {"n": a["n"] + b["n"]}

    def remove(self, total: Any, part: Any) -> Any:
        total["n"] -= part["n"]
        return total


class ChangesWhenFinishing(Listed):
    def finish(self, total: Any) -> Any:
        total.append(0)
        return len(total)


class ChangesTheValue(Sum):
    def lift(self, value: Any) -> Any:
        return value.pop("n") if "n" in value else 0


class ChangesTheTotalInAdd(Listed):
    def add(self, total: Any, value: Any) -> Any:
        if total is None:
            return [value]
        total.append(value)
        total.sort()
        return total


class KeepsATuple(ms.Reducer):
    def lift(self, value: Any) -> Any:
        return (value, value)

    def combine(self, a: Any, b: Any) -> Any:
        return (min(a[0], b[0]), max(a[1], b[1]))


class KeepsALongInt(Sum):
    def lift(self, value: Any) -> Any:
        return value * 2**62


class KeysOfNumbers(ms.Reducer):
    def lift(self, value: Any) -> Any:
        return {value: 1}

    def combine(self, a: Any, b: Any) -> Any:
        return {key: a.get(key, 0) + b.get(key, 0) for key in sorted({*a, *b})}


class KeepsAnObject(Sum):
    def lift(self, value: Any) -> Any:
        return Several if value is None else object()


class Counts(Sum):
    """Has a state of its own."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def lift(self, value: Any) -> Any:
        self.seen.append(1)
        return len(self.seen)


class ShowsAnother(Sum):
    def __init__(self) -> None:
        self.shown: list[int] = []

    def finish(self, total: Any) -> Any:
        self.shown.append(1)
        return len(self.shown)


class CombinesToNone(Sum):
    def combine(self, a: Any, b: Any) -> Any:
        return None if a + b == 5 else a + b


TWINS = [
    (NotCommutative(), "is not commutative: combine(a, b) gives 1, and combine(b, a) gives 2"),
    (NotAssociative(), "is not associative: combine(combine(a, b), c) gives"),
    (DependsOnOrder(), "depends on the"),
    (CompactsOtherwise(), "folds differently: fold(parts) gives"),
    (CompactsNoneAway(), "fold([]) gives 0: of nothing it must give None"),
    (AddsOtherwise(), "adds differently: add(total, value) gives"),
    (DoesNotUndo(), "does not undo: remove(total, part) gives"),
    (LosesTheLast(), "does not undo: remove(total, part) gives"),
    (ChangesItsArgument(), "changes an argument: combine was given [1], and left [1, 2]"),
    (ChangesWhenFolding(), "changes an argument: fold was given"),
    (ChangesWhenRemoving(), "changes an argument: remove was given"),
    (ChangesWhenFinishing(), "changes an argument: finish was given"),
    (ChangesTheTotalInAdd(), "changes an argument: add was given"),
    (KeepsATuple(), "a part must be plain data, and this holds (1, 1) (tuple)"),
    (KeepsALongInt(), "a part must be plain data, and this holds 18446744073709551616 (int)"),
    (KeysOfNumbers(), "a part must be plain data, and this holds {1: 1} (dict)"),
    (KeepsAnObject(), "gives one value different parts"),
    (Counts(), "gives one value different parts: lift(value) gives 1, and lift(value) again gives 2"),
    (ShowsAnother(), "does not repeat itself: finish(total) gives 1, and finish(total) again gives 2"),
    (CombinesToNone(), "combine gives None, which means that there is nothing"),
]


@pytest.mark.parametrize(("reducer", "told"), TWINS, ids=[type(one).__name__ for one, _ in TWINS])
def test_a_reducer_that_breaks_a_law_is_found(reducer: ms.Reducer, told: str) -> None:
    values = [1, 2, 1, 3, 4, 3, 2] if not isinstance(reducer, NotAssociative) else [1.0, 2.0, 4.0]
    with pytest.raises(AssertionError) as caught:
        ms.testing.assert_reducer(reducer, values)
    text = str(caught.value)
    assert told in text and text.startswith(repr(reducer))


def test_a_value_that_is_changed_is_found() -> None:
    with pytest.raises(AssertionError, match=r"changes an argument: lift was given \{'n': 1\}, and left \{\}"):
        ms.testing.assert_reducer(ChangesTheValue(), [{"n": 1}])


class FloatSum(Sum):
    def lift(self, value: Any) -> Any:
        return float(value)


def test_a_sum_of_floats_that_rounds_is_found_and_the_exact_one_is_not() -> None:
    values = [0.1, 0.2, 0.3, 1e16]
    with pytest.raises(AssertionError, match="is not associative"):
        ms.testing.assert_reducer(FloatSum(), values)
    ms.testing.assert_reducer(ms.sum(), values)


def test_the_message_names_the_law_the_values_and_both_results() -> None:
    with pytest.raises(AssertionError) as caught:
        ms.testing.assert_reducer(NotAssociative(), [1.0, 2.0, 4.0])
    assert str(caught.value).splitlines()[1:] == ["  a = 1.0", "  b = 2.0", "  c = 4.0"]


def test_what_is_opaque_in_the_values_may_be_in_the_parts() -> None:
    ms.testing.assert_reducer(ms.any_value(), [{"t": (1, 2), "big": 2**70}, {"t": (1, 3), "big": 2**70}])
    ms.testing.assert_reducer(ms.max(), [datetime(2020, 1, 1), datetime(2021, 1, 1)])


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(DefinitionError, match="give some values"):
        ms.testing.assert_reducer(ms.count(), [])
    with pytest.raises(DefinitionError, match="is no reducer"):
        ms.testing.assert_reducer(ms.count, [1])  # type: ignore[arg-type]
