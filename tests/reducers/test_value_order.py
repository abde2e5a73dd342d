"""One order of all plain values, and one text for each."""

from __future__ import annotations

import enum
import itertools
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reducerkit import anything

from effort import some
from millstream.errors import HookError
from millstream.reducers.order import identity, order_key

values = st.shared(anything, key="value") | anything


def has_nan(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(has_nan, value))
    return any(map(has_nan, value.values())) if isinstance(value, dict) else bool(value != value)


@settings(max_examples=some(150), deadline=None)
@given(values, values)
def test_values_have_one_text_if_they_are_equal_and_no_other_have(a: Any, b: Any) -> None:
    if not has_nan(a) and not has_nan(b):
        assert (identity(a) == identity(b)) == (a == b)


@settings(max_examples=some(80), deadline=None)
@given(anything, anything, anything)
def test_the_order_is_total(a: Any, b: Any, c: Any) -> None:
    x, y, z = map(order_key, (a, b, c))
    assert (x < y) + (x == y) + (x > y) == 1
    assert not (x <= y <= z) or x <= z
    if x == y:
        assert repr(a) == repr(b) or isinstance(a, (dict, list))
        assert identity(a) == identity(b)


@settings(max_examples=some(80), deadline=None)
@given(st.lists(st.integers() | st.floats(allow_nan=False)) | st.lists(st.text()) | st.lists(st.binary()) | st.lists(st.timedeltas()))
def test_the_order_is_that_of_python_where_it_has_one(values: list[Any]) -> None:
    ordered = sorted(values, key=order_key)
    assert all(not b < a for a, b in itertools.pairwise(ordered))


def test_the_order_of_items_does_not_matter() -> None:
    assert order_key({"a": 1, "b": 2}) == order_key({"b": 2, "a": 1}) and identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
    assert identity({1: 2}) != identity({2: 1}) and identity(["ab", "c"]) != identity(["a", "bc"]) and identity([]) != identity({})
    assert order_key({3, 1, 2}) == order_key({2, 3, 1}) and identity({"x", "y"}) == identity(frozenset("yx"))


Point = namedtuple("Point", "x y")


@dataclass
class Place:
    x: int
    y: int


class Spot(msgspec.Struct):
    x: int


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 1


OTHERS = [
    Point(1, 2),
    Place(1, 2),
    Spot(1),
    Colour.RED,
    OrderedDict(a=1),
    uuid.UUID(int=5),
    time(1, 2),
    time(1, 2, tzinfo=UTC),
    date(2020, 1, 1),
    timedelta(1),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    10**5000,
    Decimal("1E+3000"),
    Decimal("1E-3000"),
    frozenset((1,)),
]


@pytest.mark.parametrize("value", OTHERS, ids=[type(one).__name__ + str(at) for at, one in enumerate(OTHERS)])
def test_other_values_have_a_place_too(value: Any) -> None:
    assert sorted([value, None], key=order_key) == [None, value]
    texts = [identity(one) for one in OTHERS if one is not value]
    assert identity(value) not in texts and " at 0x" not in identity(value)


def test_equal_values_of_other_classes_are_one() -> None:
    for a, b in (
        (Level.HIGH, 1),
        (Point(1, 2), (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        (Decimal("0.10"), Decimal("0.1")),
        (Decimal("0.5"), 0.5),
        (Decimal("-Infinity"), float("-inf")),
        (Decimal("1E+3000"), 10**3000),
        (2.0**80, 2**80),
        (datetime(2000, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), datetime(2000, 1, 1, tzinfo=UTC)),
        (time(2, tzinfo=timezone(timedelta(hours=2))), time(0, tzinfo=UTC)),
    ):
        assert a == b and identity(a) == identity(b)
        assert order_key(a) != order_key(b)  # but they can be told apart
    assert identity(Decimal("0.1")) != identity(0.1)


def test_an_object_that_nobody_knows_has_no_place() -> None:
    class Thing: ...

    for function in (order_key, identity):
        with pytest.raises(HookError, match=r"a value of type Thing has no place in an order: .*Thing. Let the reducer read a field"):
            function([Thing()])
