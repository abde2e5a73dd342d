"""The scorer of NAB against what must come out: nothing, perfection, and cases that were worked out by hand."""

from __future__ import annotations

import sys
from math import exp
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.nab_score import PROFILES, Labelled, Profile, probation, scored, sigmoid

STANDARD = PROFILES["standard"]


def series(length: int, windows: list[tuple[int, int]], detections: dict[int, float]) -> Labelled:
    return Labelled(length, windows, [detections.get(at, 0.0) for at in range(length)])


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_no_detection_is_0_and_every_window_at_its_left_end_is_100(profile: Profile) -> None:
    windows = [(200, 249), (600, 699)]
    null = scored([series(1_000, windows, {})], profile, threshold=0.5)
    assert (null.score, null.found, null.missed, null.false) == (0.0, 0, 2, 0)
    perfect = scored([series(1_000, windows, {200: 1.0, 600: 1.0})], profile)
    assert (perfect.score, perfect.found, perfect.missed, perfect.false) == (pytest.approx(100), 2, 0, 0)


def test_a_detector_that_alarms_at_random_places_is_worth_nothing() -> None:
    every = scored([series(1_000, [(600, 699)], dict.fromkeys(range(1_000), 1.0))], STANDARD, threshold=0.5)
    assert every.score < 0 and every.false == 1_000 - 150 - 100


def test_later_in_the_window_is_worth_less() -> None:
    at_the_end = scored([series(1_000, [(600, 699)], {699: 1.0})], STANDARD, threshold=0.5)
    y = -1 / 100
    assert at_the_end.score == pytest.approx(100 * (1 + (2 / (1 + exp(5 * y)) - 1) / (2 / (1 + exp(-5)) - 1)) / 2)
    assert 50 < at_the_end.score < 52


def test_only_the_earliest_detection_of_a_window_counts() -> None:
    one = scored([series(1_000, [(600, 699)], {620: 1.0})], STANDARD, threshold=0.5)
    more = scored([series(1_000, [(600, 699)], {620: 1.0, 621: 1.0, 690: 0.9})], STANDARD, threshold=0.5)
    assert one == more._replace(threshold=one.threshold)
    assert scored([series(1_000, [(600, 699)], {610: 0.9, 620: 1.0})], STANDARD, threshold=0.8).score > one.score


def test_a_false_alarm_costs_more_the_farther_it_is_behind_a_window() -> None:
    windows = [(400, 499)]
    near, far, before = (scored([series(1_000, windows, {400: 1.0, at: 1.0})], STANDARD, threshold=0.5).score for at in (505, 900, 300))
    assert 100 > near > far
    assert far == pytest.approx(100 - 100 * 0.11 / 2, abs=0.01)  # of the way from -1 to 1
    assert before == pytest.approx(100 - 100 * 0.11 / 2)
    assert near == pytest.approx(100 + 100 * 0.11 / 2 * sigmoid(6 / 99))


def test_nothing_counts_in_the_probation() -> None:
    assert (probation(1_000), probation(22_000)) == (150, 750)
    assert scored([series(1_000, [(600, 699)], {149: 1.0, 600: 1.0})], STANDARD).score == pytest.approx(100)
    counted = scored([series(1_000, [(600, 699)], {150: 1.0, 600: 1.0})], STANDARD, threshold=0.5)
    assert counted.false == 1 and counted.score < 95


def test_the_profiles_weigh_what_is_wrong() -> None:
    false = [series(1_000, [(600, 699)], {600: 1.0, 300: 1.0})]
    missed = [series(1_000, [(600, 699), (800, 899)], {600: 1.0})]
    by = {name: (scored(false, one, 0.5).score, scored(missed, one, 0.5).score) for name, one in PROFILES.items()}
    assert by["standard"] == (pytest.approx(94.5), pytest.approx(50))
    assert by["low FP"] == (pytest.approx(89), pytest.approx(50))
    assert by["low FN"] == (pytest.approx(100 * (3 - 0.11) / 3), pytest.approx(50))


def test_one_threshold_is_chosen_for_all_series() -> None:
    """The second series would like a low one, at which the first one gives too many alarms."""
    noisy = series(1_000, [(600, 699)], {600: 0.9, **dict.fromkeys(range(160, 200), 0.4)})
    faint = series(1_000, [(600, 699)], {600: 0.3})
    chosen = scored([noisy, faint], STANDARD)
    assert (chosen.threshold, chosen.found, chosen.false) == (0.9, 1, 0)
    assert scored([faint], STANDARD).threshold == 0.3
    assert scored([faint, faint, faint, faint, faint, noisy], STANDARD).threshold == 0.3


@given(st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=60, max_size=60), st.sampled_from(list(PROFILES.values())))
def test_the_quick_sum_over_all_thresholds_is_that_of_one_after_the_other(scores: list[float], profile: Profile) -> None:
    windows = [(12, 20), (30, 30), (40, 50)]

    def slow(threshold: float) -> float:
        total = 0.0
        for first, last in windows:
            hits = [at for at in range(first, last + 1) if scores[at] >= threshold]
            total += profile.tp * sigmoid(-(last - hits[0] + 1) / (last - first + 1)) / sigmoid(-1) if hits else -profile.fn
        for at in range(probation(60), 60):
            if scores[at] >= threshold and not any(first <= at <= last for first, last in windows):
                past = [one for one in windows if one[1] < at]
                total += profile.fp * (sigmoid((at - past[-1][1]) / max(1, past[-1][1] - past[-1][0])) if past else -1.0)
        return 100 * (total + 3 * profile.fn) / (3 * profile.tp + 3 * profile.fn)

    corpus = [Labelled(60, windows, scores)]
    for threshold in sorted({score for score in scores[probation(60) :]}):
        assert scored(corpus, profile, threshold).score == pytest.approx(slow(threshold))
    assert scored(corpus, profile).score == pytest.approx(max(0.0, *(slow(threshold) for threshold in {*scores[probation(60) :]})))
