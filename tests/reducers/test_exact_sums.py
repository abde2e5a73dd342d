"""Sums are exact: against fractions, against fsum, in any order, and whatever came and went."""

from __future__ import annotations

import math
import random
import statistics
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reducerkit import decimals, finite, fraction_sum, ints, numbers, reduced, rounded, same, shown

import millstream as ms
from effort import some
from millstream.errors import HookError
from millstream.reducers import exact


def dumb_sum(values: list[Any]) -> Any:
    """By fractions, rounded at the end; a special value makes the sum special."""
    if not values:
        return None
    floats = [value for value in values if isinstance(value, float)]
    special = [value for value in floats if not math.isfinite(value)]
    if special:
        return sum(special)
    x = fraction_sum(values)
    return rounded(x) if floats else int(x)


def put_in_and_taken_out(reducer: ms.Reducer, steps: list[tuple[Any, bool]], rng: random.Random) -> tuple[Any, list[Any]]:
    """Adds values and removes some of those that are there. Gives the total and what is left."""
    total, here = None, []
    for value, leave in steps:
        total = reducer.add(total, value)
        here.append(value)
        while leave and here and rng.random() < 0.6:
            gone = here.pop(rng.randrange(len(here)))
            total = reducer.remove(total, reducer.lift(gone)) if here else None
    return total, here


@settings(max_examples=some(120), deadline=None)
@given(st.lists(st.tuples(numbers, st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_a_sum_is_that_of_the_values_that_are_left(steps: list[tuple[Any, bool]], rng: random.Random) -> None:
    reducer = ms.sum()
    total, here = put_in_and_taken_out(reducer, steps, rng)
    assert same(reducer.show(total), dumb_sum(here))
    assert same(total, reducer.fold(map(reducer.lift, here)))  # the same data, not only the same number
    assert same(total, reduced(reducer, rng.sample(here, len(here))))


@settings(max_examples=some(150), deadline=None)
@given(st.lists(finite, min_size=1, max_size=30))
@example([1e308, 1e308, -1e308])
@example([5e-324, 1e308, -1e308])
@example([0.1] * 10)
@example([-0.0])
def test_a_sum_of_floats_is_fsum_to_the_last_bit(values: list[float]) -> None:
    try:
        expected = math.fsum(values)
    except OverflowError:  # also where only a sum on the way is too large
        expected = rounded(fraction_sum(values))
    found = shown(ms.sum(), values)
    assert found.__class__ is float and found.hex() == expected.hex()
    assert ms.sum().show(ms.sum().fold(map(ms.sum().lift, values))).hex() == expected.hex()


def test_thousands_of_floats_that_came_and_went_leave_nothing() -> None:
    rng = random.Random(1)
    values = [rng.choice((1e-10, 1.0, 1e10)) * rng.random() for _ in range(some(10_000))]
    reducer, total, plain = ms.sum(), 0.25, 0.25
    for value in values:
        total, plain = reducer.add(total, value), plain + value
    for value in rng.sample(values, len(values)):
        total, plain = reducer.remove(total, value), plain - value
    assert total == 0.25
    assert plain != 0.25  # what floats alone make of it


@settings(max_examples=some(120), deadline=None)
@given(st.lists(finite | ints, max_size=8), st.lists(finite | ints, max_size=8))
def test_the_form_of_a_sum_follows_from_the_number_alone(ones: list[Any], others: list[Any]) -> None:
    a, b = exact.total(map(exact.term, ones)), exact.total(map(exact.term, others))
    if a is None or b is None:
        return
    assert same(exact.plus(a, b), exact.plus(b, a))
    assert same(exact.plus(a, b), exact.total([a, None, b]))
    assert same(exact.minus(exact.plus(a, b), b), a)
    assert same(exact.minus(exact.plus(a, b), a), b)
    for x in (a, b, exact.plus(a, b)):
        assert same(msgspec.msgpack.decode(msgspec.msgpack.encode(x)), x)
        assert not [one for one in (x if isinstance(x, list) else [x]) if repr(one) == "-0.0"]


def test_sums_are_small_where_they_can_be() -> None:
    lift, fold = ms.sum().lift, ms.sum().fold
    assert [lift(7), lift(0.5), lift(True)] == [7, 0.5, 1]
    assert fold([0.5, 0.25]) == [2, 2, 3, -2] and fold([2**63 - 1, 1]) == [2, 0, 1, 63]
    assert ms.sum().remove(fold([2**63 - 1, 1]), 1) == 2**63 - 1
    assert len(msgspec.msgpack.encode(fold([0.1] * 1000))) <= 22


@settings(max_examples=some(120), deadline=None)
@given(st.lists(st.tuples(decimals | st.integers(-(2**70), 2**70), st.booleans()), max_size=10), st.randoms(use_true_random=False))
def test_decimals_are_summed_without_rounding(steps: list[tuple[Any, bool]], rng: random.Random) -> None:
    reducer = ms.sum()
    total, here = put_in_and_taken_out(reducer, steps, rng)
    found = reducer.show(total)
    assert (found is None) == (not here)
    if here:
        assert Fraction(found) == fraction_sum(here)
        assert isinstance(found, Decimal if any(isinstance(value, Decimal) for value in here) else int)
        assert "E+" not in str(found)
    assert same(total, reducer.fold(map(reducer.lift, here)))


def test_decimals_that_are_no_numbers_can_be_taken_away_again() -> None:
    reducer = ms.sum()
    total = reducer.fold(map(reducer.lift, [Decimal("1.5"), Decimal("Infinity"), 2]))
    assert reducer.show(total) == Decimal("Infinity")
    assert reducer.remove(total, reducer.lift(Decimal("Infinity"))) == Decimal("3.5")
    total = reducer.combine(total, reducer.lift(Decimal("sNaN")))
    assert reducer.show(total).is_nan()


@pytest.mark.parametrize("one", [0.5, [2, 2, 1, -1], float("inf")])
@pytest.mark.parametrize("other", [Decimal("0.5"), Decimal("NaN")])
def test_a_float_and_a_decimal_do_not_mix(one: Any, other: Any) -> None:
    reducer = ms.sum()
    one = one if isinstance(one, list) else reducer.lift(one)
    for call in (reducer.combine, reducer.remove):
        with pytest.raises(HookError, match="a float and a Decimal cannot be summed exactly"):
            call(one, reducer.lift(other))
        with pytest.raises(HookError, match="a float and a Decimal cannot be summed exactly"):
            call(reducer.lift(other), one)
    with pytest.raises(HookError, match="a float and a Decimal"):
        reducer.fold([one, 1, reducer.lift(other)])


def test_decimals_of_too_many_digits_are_refused() -> None:
    reducer = ms.sum()
    with pytest.raises(HookError, match=r"more than 1,000 digits: 1.000000E\+5000 and 1.000000E\+0"):
        reducer.combine(reducer.lift(Decimal("1E+5000")), reducer.lift(Decimal(1)))


@settings(max_examples=some(120), deadline=None)
@given(st.lists(st.tuples(numbers, st.booleans()), max_size=10), st.randoms(use_true_random=False))
def test_a_mean_is_rounded_once(steps: list[tuple[Any, bool]], rng: random.Random) -> None:
    reducer = ms.mean()
    total, here = put_in_and_taken_out(reducer, steps, rng)
    found, x = reducer.show(total), dumb_sum(here)
    if x is None:
        assert found is None
    elif any(not math.isfinite(value) for value in here):
        assert same(found, x)
    else:
        assert found.__class__ is float and found == rounded(fraction_sum(here) / len(here))
    assert same(total, reducer.fold(map(reducer.lift, here)))


def test_a_mean_of_decimals_has_28_digits_whatever_the_program_has_set() -> None:
    import decimal

    with decimal.localcontext() as context:
        context.prec = 3
        assert shown(ms.mean(), [Decimal(1), Decimal(1), Decimal(2)]) == Decimal("1.333333333333333333333333333")
    assert str(shown(ms.mean(), [Decimal(100), Decimal(300)])) == "200"


@settings(max_examples=some(120), deadline=None)
@given(st.lists(finite | ints, max_size=8), st.randoms(use_true_random=False))
@example([1e200, -1e200, 3.0], random.Random(0))
@example([5e-324, 1e-323], random.Random(0))
@example([2**80, 2**80 + 1], random.Random(0))
def test_stats_are_those_of_the_statistics_module(values: list[Any], rng: random.Random) -> None:
    found = shown(ms.stats(), values)
    assert same(found, ms.stats().show(ms.stats().fold(map(ms.stats().lift, rng.sample(values, len(values))))))
    assert found["count"] == len(values)
    if not values:
        assert found == {"count": 0, "min": None, "max": None, "sum": None, "mean": None, "stddev": None}
        return
    assert (found["min"], found["max"]) == (min(values), max(values))
    assert same(found["sum"], dumb_sum(values))
    assert found["mean"] == rounded(fraction_sum(values) / len(values))
    if len(values) < 2:
        assert found["stddev"] is None
    elif max(abs(value) for value in values) < 1e300:
        variance = statistics.variance(map(Fraction, values))
        assert is_root(found["stddev"], variance)


def is_root(found: float, square: Fraction) -> bool:
    """Whether a float is the nearest to the root of a fraction."""
    below, above = math.nextafter(found, -math.inf), math.nextafter(found, math.inf)
    low, high = (Fraction(found) + Fraction(below)) / 2, (Fraction(found) + Fraction(above)) / 2
    return max(low, Fraction(0)) ** 2 <= square <= high**2


def test_the_root_is_the_nearest_and_a_neighbour_is_not() -> None:
    assert is_root(math.sqrt(2), Fraction(2)) and not is_root(math.nextafter(math.sqrt(2), 2), Fraction(2))


def test_stats_of_special_values() -> None:
    found = shown(ms.stats(), [1.0, float("nan"), 3.0])
    assert (found["count"], found["min"], found["max"]) == (3, 1.0, 3.0)
    assert math.isnan(found["sum"]) and math.isnan(found["mean"]) and math.isnan(found["stddev"])
    found = shown(ms.stats(), [1.0, float("-inf")])
    assert (found["min"], found["sum"]) == (float("-inf"), float("-inf")) and math.isnan(found["stddev"])
    found = shown(ms.stats(), [Decimal("1.10"), Decimal("2.30")])
    assert found["sum"] == Decimal("3.4") and found["stddev"] == Decimal("0.8485281374238570292810132345")
    assert shown(ms.stats(), [True, False, True]) == {
        "count": 3,
        "min": 0,
        "max": 1,
        "sum": 2,
        "mean": 2 / 3,
        "stddev": statistics.stdev([1, 0, 1]),
    }


def test_a_sum_beyond_the_range_of_floats_is_infinite_and_comes_back() -> None:
    reducer = ms.sum()
    total = reducer.fold(map(reducer.lift, [1e308, 1e308, 10**400]))
    assert reducer.show(total) == float("inf") and total[1] == 2
    total = reducer.remove(total, reducer.lift(10**400))
    assert reducer.show(reducer.remove(total, 1e308)) == 1e308
    assert reducer.show(reducer.fold(map(reducer.lift, [-1e308, -1e308]))) == float("-inf")


def test_ties_of_rounding_that_a_third_float_breaks() -> None:
    """Powers of two and full mantissas: sums that lie in the middle between two floats, or next to it."""
    rng = random.Random(7)
    units = [2.0**power for power in (0, 1, 2, 52, 53, 54, 105, 106, 107, 108, 160)]
    mantissas = [1.0, 3.0, 2.0**53 - 1, 2.0**52 + 1, 2.0**53 - 2]
    for _ in range(some(3_000)):
        values = [rng.choice((1, -1)) * rng.choice(mantissas) * rng.choice(units) * 2.0**-60 for _ in range(rng.randint(2, 8))]
        total = reduced(ms.sum(), values)
        assert same(total, ms.sum().fold(values))
        assert ms.sum().show(total) == math.fsum(values)
