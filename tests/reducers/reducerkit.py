"""What the tests of reducers share: values, and the dumb way to reduce them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from millstream.reducers.base import Reducer
from millstream.reducers.order import order_key

ints = st.integers(-9, 9) | st.integers(-(2**70), 2**70) | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63])
plain_floats = st.floats(-1e6, 1e6) | st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0, -0.0, 0.0, 1 / 3])
wild_floats = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 1.7976931348623157e308, 1e16, 1.0, -1.0, 2.0**-1022, 2.0**-537]
)
finite = plain_floats | wild_floats
floats = finite | st.sampled_from([float("inf"), float("-inf"), float("nan")])
decimals = st.decimals(-(10**12), 10**12, places=3) | st.sampled_from(
    [Decimal("1.10"), Decimal("1E+3"), Decimal("1E-30"), Decimal("-0.00")]
)
numbers = ints | st.booleans() | floats

dates = st.datetimes(datetime(2000, 1, 1), datetime(2001, 1, 1))
zoned = dates.map(lambda at: at.replace(tzinfo=UTC)) | dates.map(lambda at: at.replace(tzinfo=timezone(timedelta(hours=2))))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(
        [0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), 2.0**60, 2**60, Decimal("1.0"), Decimal("1"), Decimal("0.5"), Decimal("NaN")]
    )
    | st.text("ab", max_size=2)
    | st.binary(max_size=2)
    | zoned
    | dates
    | st.sampled_from([date(2000, 1, 1), timedelta(1), (1, "a"), (1,)])
)
anything = st.recursive(
    leaves, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text("xyz", max_size=1), one, max_size=3), max_leaves=5
)


def same(a: Any, b: Any) -> bool:
    """Nothing can tell them apart; NaN is NaN."""
    return order_key(a) == order_key(b)


def reduced(reducer: Reducer, values: list[Any]) -> Any:
    """The total, one by one."""
    total = None
    for at, value in enumerate(values):
        part = reducer.lift_at(value, at)
        if part is not None:
            total = part if total is None else reducer.combine(total, part)
    return total


def shown(reducer: Reducer, values: list[Any]) -> Any:
    return reducer.show(reduced(reducer, values))


def fraction_sum(values: list[Any]) -> Fraction:
    return sum((Fraction(value) for value in values), Fraction(0))


def rounded(x: Fraction) -> float:
    """The nearest float, also where there is none but infinity."""
    try:
        return float(x)
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")
