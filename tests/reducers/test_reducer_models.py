"""Every builtin reducer against the dumb way: all values at once, in any order."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reducerkit import anything, finite, floats, ints, numbers, reduced, same, shown

import millstream as ms
from effort import some
from millstream.reducers.composite import Several
from millstream.reducers.order import identity, order_key

shuffler = st.randoms(use_true_random=False)
people = st.fixed_dictionaries(
    {
        "name": st.none() | st.sampled_from(["Sue", "Joe", "Tod"]),
        "age": st.none() | st.integers(0, 4) | st.sampled_from([1.0, 2.5, float("nan"), True]),
    }
)


def in_any_way(reducer: ms.Reducer, values: list[Any], rng: random.Random) -> Any:
    """Shuffled, in random portions, some folded and some one by one."""
    lifted = [reducer.lift(value) for value in rng.sample(values, len(values))]
    while len(lifted) > 1:
        at, size = rng.randrange(len(lifted)), rng.randint(2, 4)
        here = lifted[at : at + size]
        lifted[at : at + size] = [reducer.fold(here)]
    return lifted[0] if lifted else None


def check(reducer: ms.Reducer, values: list[Any], rng: random.Random, expected: Any) -> None:
    total = in_any_way(reducer, values, rng)
    assert same(reducer.show(total), expected), (reducer.show(total), expected)
    assert same(total, reduced(reducer, values))


@settings(max_examples=some(60), deadline=None)
@given(st.lists(people, max_size=8), shuffler)
def test_count(values: list[Any], rng: random.Random) -> None:
    check(ms.count(), values, rng, len(values))
    check(ms.count("age"), values, rng, len([one for one in values if one["age"] is not None]))
    check(
        ms.count("age", where=lambda one: one["name"] == "Sue"),
        values,
        rng,
        len([1 for o in values if o["name"] == "Sue" and o["age"] is not None]),
    )
    check(ms.count(where=lambda one: one["name"]), values, rng, len([1 for one in values if one["name"]]))


def dumb_extreme(values: list[Any], greatest: bool) -> Any:
    there = [value for value in values if value is not None and value == value]
    if not there:
        return None
    best = max(there) if greatest else min(there)
    return min((value for value in there if value == best), key=order_key)


@settings(max_examples=some(60), deadline=None)
@given(
    st.lists(st.none() | numbers, max_size=8)
    | st.lists(st.sampled_from([1, 1.0, True, Decimal(1), Decimal("1.0"), 0, 0.0, -0.0, 2, 2.0]), max_size=6)
    | st.lists(st.text(max_size=3), max_size=6)
    | st.lists(st.lists(ints | finite, max_size=2), max_size=5),
    shuffler,
)
def test_min_and_max(values: list[Any], rng: random.Random) -> None:
    check(ms.min(), values, rng, dumb_extreme(values, False))
    check(ms.max(), values, rng, dumb_extreme(values, True))


def dumb_best(values: list[Any], n: int, by: Any, show: Any, greatest: bool) -> list[Any]:
    """Sorted by comparing two at a time."""
    entries = [(by(value), show(value)) for value in values]
    entries = [(b, s) for b, s in entries if b is not None and b == b and s is not None]

    def compare(one: Any, other: Any) -> int:
        if one[0] != other[0]:
            return -1 if (one[0] > other[0]) == greatest else 1
        places = [(order_key(s), order_key(b)) for b, s in (one, other)]
        return -1 if places[0] < places[1] else int(places[0] > places[1])

    return [s for _, s in sorted(entries, key=functools.cmp_to_key(compare))][:n]


@settings(max_examples=some(60), deadline=None)
@given(st.lists(people, max_size=9), st.integers(1, 4), shuffler)
def test_top_and_bottom(values: list[Any], n: int, rng: random.Random) -> None:
    def age(one: Any) -> Any:
        return one["age"]

    for make, greatest in ((ms.top, True), (ms.bottom, False)):
        check(make(n, by="age"), values, rng, dumb_best(values, n, age, lambda one: one, greatest))
        check(make(n, "name", by=age), values, rng, dumb_best(values, n, age, lambda one: one["name"], greatest))
        check(make(n, "age"), values, rng, dumb_best(values, n, age, age, greatest))


@settings(max_examples=some(60), deadline=None)
@given(st.lists(people, max_size=8), shuffler)
def test_first_and_last_by_a_field(values: list[Any], rng: random.Random) -> None:
    for make, greatest in ((ms.first, False), (ms.last, True)):
        found = dumb_best(values, 1, lambda one: one["age"], lambda one: one["name"], greatest)
        check(make("name", by="age"), values, rng, found[0] if found else None)


@settings(max_examples=some(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["Sue", "Joe", None])), max_size=7), shuffler)
def test_first_and_last_by_version(values: list[Any], rng: random.Random) -> None:
    for make, greatest in ((ms.first, False), (ms.last, True)):
        reducer = make("name")
        assert reducer.wants_order and not make("name", by="x").wants_order
        parts = [reducer.lift_at({"name": name}, version) for version, name in rng.sample(values, len(values))]
        found = dumb_best(values, 1, lambda one: one[0], lambda one: one[1], greatest)
        assert reducer.show(reducer.fold(parts)) == (found[0] if found else None)


@settings(max_examples=some(60), deadline=None)
@given(st.lists(anything, max_size=8), shuffler)
def test_distinct_any_and_collect_of_anything(values: list[Any], rng: random.Random) -> None:
    there = [value for value in values if value is not None]
    check(ms.count_distinct(), values, rng, len({identity(value) for value in there}))
    check(ms.any_value(), values, rng, min(there, key=order_key, default=None))
    check(ms.collect(limit=3), values, rng, sorted(there, key=order_key)[:3])
    check(ms.collect(), values, rng, sorted(there, key=order_key))


@pytest.mark.slow
def test_collect_cuts_where_a_limit_was_given_and_refuses_to_cut_elsewhere() -> None:
    assert shown(ms.collect(limit=2), [3, 1, 2]) == [1, 2] and len(shown(ms.collect(), list(range(10_000)))) == 10_000
    with pytest.raises(ms.errors.HookError, match=r"collect\(\): a group has more than 10,000 values. With limit=N"):
        ms.collect().fold([[n] for n in range(10_001)])


@settings(max_examples=some(60), deadline=None)
@given(st.lists(st.text("ab", max_size=2) | st.integers(-2, 2) | floats | st.booleans() | st.tuples(st.integers(0, 1))))
def test_distinct_counts_what_a_set_would(values: list[Any]) -> None:
    nans = [value for value in values if value != value]
    assert shown(ms.count_distinct(), values) == len({value for value in values if value == value}) + bool(nans)


def test_the_references_to_the_texts_of_distinct_can_be_counted_instead() -> None:
    reducer = ms.count_distinct("name")
    assert reducer.indexed and not ms.collect().indexed
    parts = [reducer.lift({"name": name}) for name in ("Sue", "Joe", "Sue")]
    assert all(len(part) == 1 for part in parts)
    references = Counter(text for part in parts for text in part)
    assert sorted(references) == reducer.fold(parts) and reducer.finish(sorted(references)) == 2
    references.subtract(parts[1])
    assert sorted(+references) == reducer.fold([parts[0], parts[2]])


@settings(max_examples=some(60), deadline=None)
@given(st.lists(st.tuples(people, st.booleans()), max_size=8), shuffler)
def test_several_with_an_inverse_are_what_each_would_be_alone(steps: list[tuple[Any, bool]], rng: random.Random) -> None:
    members = {"people": ms.count(), "named": ms.count("name"), "age": ms.sum("age"), "mean": ms.mean("age", where=lambda one: one["name"])}
    reducer = Several(members)
    total, here = None, []
    for value, leave in steps:
        total = reducer.add(total, value)
        here.append(value)
        while leave and here and rng.random() < 0.6:
            gone = here.pop(rng.randrange(len(here)))
            total = reducer.remove(total, reducer.lift(gone)) if here else None
        assert same(reducer.show(total), {name: shown(member, here) for name, member in members.items()})
        assert same(total, reducer.fold(map(reducer.lift, here)))
        assert same(total, reduced(reducer, here))


@settings(max_examples=some(60), deadline=None)
@given(st.lists(people, max_size=8), shuffler)
def test_several_without_an_inverse(values: list[Any], rng: random.Random) -> None:
    members = {"age": ms.stats("age"), "names": ms.count_distinct("name"), "oldest": ms.top(2, "name", by="age"), "sum": ms.sum("age")}
    reducer = Several(members)
    assert reducer.remove is None and Several({"n": ms.count(), "age": ms.sum("age")}).remove is not None
    check(reducer, values, rng, {name: shown(member, values) for name, member in members.items()})
    for value in values:
        part = reducer.lift(value)
        assert part is None or len(part) == len(members)


def test_a_value_that_all_skip_has_no_part() -> None:
    assert Several({"age": ms.sum("age"), "name": ms.any_value("name")}).lift({"age": None, "name": None}) is None


def test_several_hand_the_order_on_to_those_that_want_it() -> None:
    reducer = Several({"n": ms.count(), "last": ms.last("name")})
    assert reducer.wants_order and not Several({"n": ms.count()}).wants_order
    total = reducer.fold([reducer.lift_at({"name": "Sue"}, 2), reducer.lift_at({"name": "Joe"}, 1)])
    assert reducer.show(total) == {"n": 2, "last": "Sue"}
    assert reducer.empty == {"n": 0, "last": None}


def test_what_is_shown_of_nothing() -> None:
    empty = [
        ms.count(),
        ms.sum(),
        ms.mean(),
        ms.min(),
        ms.max(),
        ms.first(),
        ms.last(),
        ms.count_distinct(),
        ms.any_value(),
        ms.collect(),
        ms.top(1),
        ms.bottom(1),
    ]
    assert [one.show(None) for one in empty] == [0, None, None, None, None, None, None, 0, None, [], [], []]
    assert ms.stats().show(None)["count"] == 0


def test_what_has_an_inverse() -> None:
    with_one = [one.name for one in (ms.count(), ms.sum(), ms.mean(), ms.stats(), ms.min(), ms.max(), ms.top(1), ms.bottom(1), ms.first(), ms.last(),
                                     ms.count_distinct(), ms.any_value(), ms.collect()) if one.remove is not None]  # fmt: skip
    assert with_one == ["count", "sum", "mean"]


def test_a_field_of_an_object_is_an_attribute() -> None:
    assert shown(ms.max("year"), [datetime(2001, 1, 1), datetime(2003, 1, 1, tzinfo=UTC)]) == 2003
    assert shown(ms.sum("real"), [1.5, 2.5]) == 4.0


def test_nothing_that_was_shown_is_part_of_the_total() -> None:
    for reducer in (ms.collect(), ms.top(3), ms.bottom(3, by=lambda x: x)):
        total = reducer.fold(map(reducer.lift, [1, 2]))
        before = repr(total)
        reducer.show(total).append(7)
        assert repr(total) == before
        reducer.show(None).append(7)
        assert reducer.show(None) == []


@pytest.mark.parametrize("make", [ms.min, ms.max])
def test_a_nan_is_skipped(make: Any) -> None:
    assert shown(make(), [float("nan"), 1.0, Decimal("NaN"), Decimal("sNaN")]) == 1.0
    assert shown(make(), [math.nan]) is None
