"""How reducers are written: arguments, texts, errors, pickling."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from reducerkit import shown

import millstream as ms
from millstream.errors import DefinitionError, HookError
from millstream.reducers.composite import Several, as_reducer


def adult(person: Any) -> bool:
    return bool(person["age"] >= 18)


class Box(ms.Reducer):
    def __init__(self, size: int = 3, key: Any = adult) -> None:
        self.size, self.key = size, key

    def combine(self, a: Any, b: Any) -> Any:
        return max(a, b)


@pytest.mark.parametrize(
    ("reducer", "text"),
    [
        (ms.count(), "count()"),
        (ms.sum("age"), "sum('age')"),
        (ms.sum("age", where=adult), "sum('age', where=adult)"),
        (ms.mean(adult), "mean(adult)"),
        (ms.max(lambda value: value), "max(<lambda>)"),
        (ms.top(3, by="age"), "top(3, by='age')"),
        (ms.bottom(3, "name", by=adult), "bottom(3, 'name', by=adult)"),
        (ms.last("name"), "last('name')"),
        (ms.collect(), "collect()"),
        (ms.collect("name", 5, where=adult), "collect('name', where=adult, limit=5)"),
        (ms.collect(limit=5), "collect(limit=5)"),
        (Several({"n": ms.count(), "age": ms.stats("age")}), "n=count(), age=stats('age')"),
        (Box(4), "Box(key=adult, size=4)"),
        (Box(key=object()), "Box(key=<object>, size=3)"),
    ],
)
def test_a_reducer_says_how_it_was_written(reducer: ms.Reducer, text: str) -> None:
    assert reducer.describe() == repr(reducer) == text


def test_the_functions_inside_can_be_looked_at() -> None:
    assert ms.top(3, len, by=adult, where=bool).functions == (len, adult, bool)
    assert Several({"a": ms.sum(len), "b": ms.count("x", where=bool)}).functions == (len, bool)
    assert ms.count().functions == Box().functions == ()


def test_a_missing_field_is_named_with_those_there_are() -> None:
    with pytest.raises(HookError, match=r"^sum\('agee'\): the value has no field 'agee'; its fields are: name, age$"):
        ms.sum("agee").lift({"name": "Sue", "age": 7})
    with pytest.raises(HookError, match=r"^top\(2, 'name', by='agee'\): the value has no field 'agee'; its fields are: name, age$"):
        ms.top(2, "name", by="agee").lift({"name": "Sue", "age": 7})

    @dataclass
    class Person:
        name: str

    with pytest.raises(HookError, match=r"^min\('age'\): the value has no field 'age'; its fields are: name$"):
        ms.min("age").lift(Person("Sue"))
    with pytest.raises(HookError, match=r"^min\('age'\): the value has no field 'age'; it is 7, of type int$"):
        ms.min("age").lift(7)
    with pytest.raises(HookError, match="its fields are: none"):
        ms.count("age").lift({})
    assert ms.count("age").lift(None) is None


@pytest.mark.parametrize("value", ["7", 1j, Fraction(1, 3), [1], datetime(2020, 1, 1)])
@pytest.mark.parametrize("make", [ms.sum, ms.mean, ms.stats])
def test_what_is_no_number_is_not_summed(make: Any, value: Any) -> None:
    with pytest.raises(HookError, match=rf"^{make.__name__}\('x'\): .*{type(value).__name__} is no number that can be summed exactly"):
        make("x").lift({"x": value})


@pytest.mark.parametrize(
    "reducer", [ms.min("x"), ms.max("x"), ms.top(1, "x"), ms.bottom(2, "x", by="x"), ms.first("x", by="x"), ms.last("x", by="x")]
)
@pytest.mark.parametrize(("one", "other"), [(1, "a"), (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)), ([1], [[1]]), (b"a", "a")])
def test_what_cannot_be_compared_is_an_error_that_names_both(reducer: ms.Reducer, one: Any, other: Any) -> None:
    parts = [reducer.lift({"x": one}), reducer.lift({"x": other})]
    for call in (lambda: reducer.combine(*parts), lambda: reducer.combine(*reversed(parts)), lambda: reducer.fold(parts)):
        with pytest.raises(HookError) as caught:
            call()
        text = str(caught.value)
        assert repr(one) in text and repr(other) in text and text.startswith(repr(reducer)) and "cannot be compared" in text


@pytest.mark.parametrize("value", [{1, 2}, {"a": 1}, [1.0, float("nan")], (None, 1)])
@pytest.mark.parametrize("reducer", [ms.min(), ms.top(1), ms.last(by=lambda value: value)])
def test_what_has_no_order_is_refused_alone(reducer: ms.Reducer, value: Any) -> None:
    with pytest.raises(HookError, match="cannot be compared"):
        reducer.lift(value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ms.sum(3), r"sum\(3\): give the name of a field or a function of the value"),
        (lambda: ms.sum(ms.count()), r"sum\(count\(\)\): .*not another reducer"),
        (lambda: ms.count(where="age"), r"count\(where='age'\): where is a function"),
        (lambda: ms.top(0), "n is a number from 1 to 1,000, not 0"),
        (lambda: ms.top("age"), "n is a number from 1 to 1,000, not 'age'"),
        (lambda: ms.bottom(1001), "not 1001"),
        (lambda: ms.top(True), "not True"),
        (lambda: ms.first("x", by=3), r"first\(by=3\): by is the name of a field"),
        (lambda: ms.collect(limit=0), "limit is a number from 1 to 10,000, not 0"),
        (lambda: Several({}), "name at least one reducer"),
        (lambda: Several({1: ms.count()}), "name is a text, not 1"),
        (lambda: ms.first("x").lift({"x": 1}), r"first\('x'\) goes by the order of the values, and here they have none"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(call: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        call()


def test_the_arguments_of_reduce() -> None:
    one = ms.count()
    assert as_reducer(one, {}) is one
    both = as_reducer(None, {"n": one, "age": ms.sum("age")})
    assert isinstance(both, Several) and list(both.members) == ["n", "age"]
    assert isinstance(as_reducer(None, {"n": one}), Several)


@pytest.mark.parametrize(
    ("positional", "named", "told"),
    [
        (None, {}, r"reduce\(\): give a reducer, such as ms.count\(\)"),
        (ms.count(), {"age": ms.sum("age")}, r"reduce\(count\(\), age=\): give one reducer, or several by name, and not both"),
        (ms.count, {}, r"reduce\(count\): ms.count is called to make a reducer: write ms.count\(\)"),
        (None, {"n": ms.top}, r"reduce\(n=top\): ms.top is called to make a reducer: write ms.top\(3, by='age'\)"),
        (sum, {}, r"reduce\(sum\): this is Python's own sum: write ms.sum\(\)"),
        (None, {"n": len}, r"reduce\(n=len\): write ms.count\(\)"),
        (Box, {}, r"reduce\(Box\): this is the class. .* write Box\(\)"),
        ("age", {}, r"reduce\('age'\): a str is no reducer. There are ms.count, ms.sum"),
        (adult, {}, r"reduce\(adult\): a function is no reducer"),
    ],
)
def test_what_is_no_reducer_is_named_with_what_was_meant(positional: Any, named: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        as_reducer(positional, named)


def test_reducers_travel() -> None:
    from pyspark import cloudpickle

    values = [{"name": "Sue", "age": 7}, {"name": "Joe", "age": 9.5}]
    for reducer in (
        Several({"n": ms.count(), "age": ms.sum("age")}),
        Several(
            {
                "n": ms.top(1, "name", by=lambda one: one["age"]),
                "sum": ms.sum(lambda one: one["age"], where=lambda one: one["name"] == "Joe"),
            }
        ),
        ms.collect("name", limit=1),
        Box(),
    ):
        back = cloudpickle.loads(cloudpickle.dumps(reducer))
        assert repr(back) == repr(reducer) and (back.remove is None) == (reducer.remove is None)
        if not isinstance(reducer, Box):
            assert shown(back, values) == shown(reducer, values)
    assert shown(pickle.loads(pickle.dumps(ms.mean("age"))), values) == 8.25


def test_a_reducer_without_combine_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Half needs a method combine"):
        type("Half", (ms.Reducer,), {})().combine(1, 2)


def test_importing_reducers_loads_nothing_heavy_and_leaves_the_builtins_alone() -> None:
    code = "from millstream.reducers import sums; print(sum([1, 2]), min(3, 4), any([0]), type(sums.sum()).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "3", "False", "sum"]


def test_decimals_keep_their_digits_where_they_are_only_chosen() -> None:
    assert str(shown(ms.max(), [Decimal("1.10"), Decimal("1.0")])) == "1.10"
    assert str(shown(ms.sum(), [Decimal("1.10"), Decimal("2.20")])) == "3.3"
