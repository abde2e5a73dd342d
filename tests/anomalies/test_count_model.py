"""The model of counts: what it learns, what it tells, and what it takes for usual."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from serieskit import daily, poisson, rules, told

from millstream.anomalies.counts import CountModel
from millstream.anomalies.settings import COUNTS, SeriesRules

MINUTES = SeriesRules.of(COUNTS, "1s", "60s")
CALM = [10.0] * 120


def test_one_odd_bucket_is_no_anomaly() -> None:
    for odd in (500.0, 0.0):
        assert told(CountModel(), MINUTES, [*CALM, odd, *CALM]) == []


def test_an_anomaly_has_a_begin_and_an_end() -> None:
    at = len(CALM)
    assert told(CountModel(), MINUTES, [*CALM, *[40.0] * 8, *CALM]) == [(at + 2, "spike", "begin"), (at + 10, "spike", "end")]
    assert told(CountModel(), MINUTES, [*CALM, *[0.0] * 8, *CALM]) == [(at + 2, "dip", "begin"), (at + 10, "dip", "end")]


def test_the_first_season_only_teaches() -> None:
    assert told(CountModel(), MINUTES, [*[10.0] * 30, *[100.0] * 10, *[10.0] * 20]) == []


def test_half_a_season_is_a_new_usual() -> None:
    said = told(CountModel(), MINUTES, [*CALM, *[40.0] * 240])
    assert [event for _, _, event in said] == ["begin", "end"] and said[1][0] == len(CALM) + 30


def test_it_learns_the_rhythm_of_the_day() -> None:
    usual = [float(round(20 + 15 * daily(n))) for n in range(6 * 96)]
    model, given = CountModel(), rules(COUNTS)
    assert told(model, given, usual) == []
    assert max(abs(model.forecast(given, 6 * 96 + n).mean - usual[n]) for n in range(96)) < 3


@pytest.mark.parametrize("mean", [0.2, 3.0, 50.0])
def test_counts_that_are_only_random_raise_no_alarm(mean: float) -> None:
    dice = Random(5)
    values = [float(poisson(dice, mean * (1.5 + daily(n)))) for n in range(10 * 96)]
    assert told(CountModel(), rules(COUNTS), values) == []


@pytest.mark.parametrize("weekly", [True, False])
def test_a_quiet_weekend_is_usual_only_for_the_model_that_knows_weeks(weekly: bool) -> None:
    dice = Random(5)
    values = [float(poisson(dice, (60 if n // 96 % 7 < 5 else 12) * (1.3 + daily(n)))) for n in range(10 * 7 * 96)]
    said = told(CountModel(), rules(COUNTS, weekly=weekly), values)
    late = [n for n, _, event in said if event == "begin" and n > 6 * 7 * 96]
    assert not late if weekly else len(late) >= 4


def test_a_score_reaches_one_half_where_an_anomaly_begins() -> None:
    model, dice = CountModel(), Random(3)
    for n, value in enumerate([*[float(poisson(dice, 10)) for _ in range(200)], *[45.0] * 10]):
        judged = model.observe(MINUTES, n, value, model.forecast(MINUTES, n))
        begins = judged.verdict is not None and judged.verdict.event == "begin"
        assert begins == (judged.score >= 0.5) and 0 <= judged.score < 1
        if begins:
            return
    pytest.fail("nothing began")


def test_a_series_of_zeros_stays_one() -> None:
    model = CountModel()
    assert told(model, MINUTES, [1.0, *[0.0] * 200_000]) == []
    assert np.isfinite(model.forecast(MINUTES, 200_001).mean)
