"""The model of measured values: what it finds, what it takes for usual, and what it makes of missing buckets."""

from __future__ import annotations

from random import Random

import pytest
from serieskit import daily, rules, told

from millstream.anomalies.gauge import GaugeModel
from millstream.anomalies.settings import GAUGE

RULES = rules(GAUGE)


def temperatures(days: int, seed: int = 1, noise: float = 1.0) -> list[float]:
    dice = Random(seed)
    return [20 + 5 * daily(n) + dice.gauss(0, noise) for n in range(days * 96)]


@pytest.mark.parametrize("kind", ["spike", "dip"])
def test_one_value_far_away_is_told_at_once(kind: str) -> None:
    values = temperatures(12)
    values[1_000] += 25 if kind == "spike" else -25
    said = [one for one in told(GaugeModel(), RULES, values) if 990 < one[0] < 1_050]
    assert said[0] == (1_000, kind, "begin") and said[1][2] == "end"


def test_a_value_that_is_usual_at_another_time_is_remarkable() -> None:
    """A day without its hill: no value is new, but none comes when it should."""
    values = temperatures(14, seed=3, noise=0.4)
    values[10 * 96 : 11 * 96] = [20 - 4.5 + (value - 20) * 0.05 for value in values[10 * 96 : 11 * 96]]
    said = told(GaugeModel(), RULES, values)
    assert any(10 * 96 <= n < 11 * 96 for n, _, event in said if event == "begin")
    flat = told(GaugeModel(), RULES, [20 - 4.5 + (value - 20) * 0.05 for value in temperatures(14, seed=3, noise=0.4)])
    assert not any(10 * 96 <= n < 11 * 96 for n, _, event in flat if event == "begin"), "where that is usual, it is no anomaly"


def test_a_level_that_stays_is_told_and_becomes_usual() -> None:
    values = [value + (15 if n >= 960 else 0) for n, value in enumerate(temperatures(30))]
    model = GaugeModel()
    said = told(model, RULES, values)
    assert (960, "spike", "begin") in said
    assert not [n for n, _, event in said if event == "begin" and n > 20 * 96]
    errors = [abs(model.forecast(RULES, 30 * 96 + n).mean - (35 + 5 * daily(n))) for n in range(96)]
    assert sum(errors) / 96 < 6


def test_more_unrest_is_told() -> None:
    dice = Random(2)
    values = [value + (dice.gauss(0, 4) if 960 <= n < 1_000 else 0) for n, value in enumerate(temperatures(12))]
    assert any(960 <= n < 1_000 for n, _, event in told(GaugeModel(), RULES, values) if event == "begin")


def test_alarms_of_what_is_usual_are_as_rare_as_was_asked_for() -> None:
    """About one in `rarity` buckets and way of looking, less those that follow an alarm."""
    begins = {}
    for rarity in (200, 20_000):
        given = rules(GAUGE, rarity=rarity)
        begins[rarity] = sum(event == "begin" for seed in range(6) for _, _, event in told(GaugeModel(), given, temperatures(40, seed)))
    assert begins[20_000] <= 6 < begins[200] < 6 * 40 * 96 / 200 * 2


@pytest.mark.parametrize("values", [[7.0] * 2_000, [0.0] * 2_000, [float(n % 2) for n in range(2_000)]], ids=["flat", "zero", "two values"])
def test_a_series_without_noise_raises_no_alarm_until_it_changes(values: list[float]) -> None:
    assert told(GaugeModel(), RULES, values) == []
    assert told(GaugeModel(), RULES, [*values, 100.0])[-1] == (2_000, "spike", "begin")


def test_regular_spikes_are_usual() -> None:
    values = [value + (30 if n % 100 == 50 else 0) for n, value in enumerate(temperatures(20))]
    assert not [one for one in told(GaugeModel(), RULES, values) if one[0] > 5 * 96 and one[2] == "begin"][4:]


def test_missing_buckets_say_nothing() -> None:
    values: list[float | None] = [*temperatures(14)]
    with_gaps = [None if n % 7 == 3 or 600 <= n < 700 else value for n, value in enumerate(values)]
    with_zeros = [0.0 if value is None else value for value in with_gaps]
    assert not [one for one in told(GaugeModel(), RULES, with_gaps) if 600 <= one[0] < 720]
    assert told(GaugeModel(), RULES, with_zeros), "the twin: zeros in their place are anomalies"


def test_an_alarm_is_told_once_and_what_is_less_rare_is_no_news() -> None:
    values = temperatures(12)
    values[1_000:1_004] = [80.0, 78.0, 76.0, 74.0]
    model, scores = GaugeModel(), []
    for n, value in enumerate(values):
        scores.append(model.observe(RULES, n, value, model.forecast(RULES, n)).score)
    assert scores[1_000] > 0.5 and max(scores[1_001:1_040]) < scores[1_000]
    assert sum(score > 0.5 for score in scores[1_000:1_040]) <= 3


def test_the_first_season_only_teaches() -> None:
    values = temperatures(1)
    values[60] = 500.0
    assert told(GaugeModel(), RULES, values) == []


@pytest.mark.parametrize("weekly", [True, False])
def test_the_forecast_knows_the_weekend_if_it_is_to(weekly: bool) -> None:
    dice, given = Random(4), rules(GAUGE, weekly=weekly)
    usual = [(50 if n // 96 % 7 < 5 else 20) + 5 * daily(n) for n in range(9 * 7 * 96)]
    model, errors = GaugeModel(), []
    for n, value in enumerate(usual):
        forecast = model.forecast(given, n)
        if n > 8 * 7 * 96 and n % 96 < 3:  # at midnight, when the last few values do not help
            errors.append(abs(forecast.mean - value))
        model.observe(given, n, value + dice.gauss(0, 1), forecast)
    assert (max(errors) < 15) == weekly
