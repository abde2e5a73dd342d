"""How rare a value is: against sorting all that was seen, and beyond it."""

from __future__ import annotations

from math import log10
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anomalies.rarity import FEWEST, MOST, Sides, Tail


def learnt(values: list[float]) -> Tail:
    tail = Tail()
    for value in values:
        tail.learn(value)
    return tail


@given(st.lists(st.floats(0.2, 400), min_size=FEWEST, max_size=300), st.floats(0.2, 400))
def test_within_what_was_seen_it_is_what_counting_gives_but_for_the_width_of_a_bin(values: list[float], value: float) -> None:
    if value > max(values):
        value = max(values)
    found = learnt(values).rarity(value)
    least, most = (sum(one >= value * factor for one in values) for factor in (2**-0.5, 2**0.5))
    assert log10((len(values) + 1) / (least + 0.5)) - 1e-9 <= found <= log10((len(values) + 1) / (most + 0.5)) + 1e-9


@given(st.lists(st.floats(0, 400), min_size=FEWEST, max_size=200), st.floats(0, 2_000), st.floats(0, 2_000))
def test_what_is_larger_is_not_less_rare(values: list[float], one: float, other: float) -> None:
    tail = learnt(values)
    assert tail.rarity(min(one, other)) <= tail.rarity(max(one, other)) + 1e-9


def test_of_noise_no_more_is_rare_than_there_is() -> None:
    dice = Random(1)
    tail = learnt([abs(dice.gauss(0, 1)) for _ in range(8_000)])
    later = [tail.rarity(abs(dice.gauss(0, 1))) for _ in range(20_000)]
    assert 2 < sum(rarity > 3 for rarity in later) < 30


def test_nothing_is_rare_among_few() -> None:
    assert learnt([1.0] * (FEWEST - 1)).rarity(300.0) == 0 < learnt([1.0] * FEWEST).rarity(300.0)


def test_what_was_long_ago_counts_less_and_the_size_stays() -> None:
    tail = learnt([200.0] * 100 + [1.0] * (MOST - 100))
    before = tail.rarity(200.0)
    for _ in range(10 * MOST):
        tail.learn(1.0)
    assert tail.rarity(200.0) > before + 0.5 and tail.total < MOST and len(tail.counts) == len(Tail().counts)


def test_a_dip_in_a_series_of_spikes_is_rare() -> None:
    sides, dice = Sides(), Random(1)
    for n in range(2_000):
        sides.weigh(50.0 if n % 20 == 0 else dice.gauss(0, 0.3))
    assert sides.weigh(50.0) < 1.6 < 3 < sides.weigh(-50.0)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300])
def test_any_number_has_a_place(value: float) -> None:
    tail = learnt([value] * 100)
    assert tail.rarity(value) >= 0
