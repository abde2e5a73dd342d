"""The score of the Numenta Anomaly Benchmark (NAB 1.1), in plain Python: what detections in labelled series are worth.

Rules
1. A detector gives every point a score. One threshold for all series makes detections of them: the one with the greatest total, as NAB chooses it.
2. The first 15 % of a series, of at most 5,000 points, are its probation. Nothing counts there.
3. A window with a detection gives `tp` times `sigmoid(y)` at the earliest one, where y goes from -1 at the left end of the window to 0 behind its
   right end, divided by `sigmoid(-1)`: a detection at the left end is worth `tp`. A window without one costs `fn`.
4. A detection outside of windows costs `fp` times `sigmoid(y)`, where y is how far it is behind the last window, in widths of that window; and `fp`
   as a whole where there was none yet.
5. The total is given on a scale on which no detection at all is 0, and every window at its left end, without anything else, is 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import exp, inf
from typing import NamedTuple

LONGEST_PROBATION = 5_000
PROBATION = 0.15


class Profile(NamedTuple):
    """What is right and wrong is worth."""

    tp: float
    fp: float
    fn: float


PROFILES = {"standard": Profile(1.0, 0.11, 1.0), "low FP": Profile(1.0, 0.22, 1.0), "low FN": Profile(1.0, 0.11, 2.0)}


class Labelled(NamedTuple):
    """A series: how many points it has, the windows as (first, last) point, and the score of every point."""

    length: int
    windows: Sequence[tuple[int, int]]
    scores: Sequence[float]


class Scored(NamedTuple):
    """The total on the scale from 0 to 100, the threshold that gave it, and how many windows were found, how many were not, and how many alarms were false."""

    score: float
    threshold: float
    found: int
    missed: int
    false: int


class _Point(NamedTuple):
    """A point outside of all probations. worth: at a weight of one. window: in which it is, None outside of all."""

    score: float
    worth: float
    window: tuple[int, int] | None


def probation(length: int) -> int:
    """How many points at the beginning do not count."""
    return int(PROBATION * min(length, LONGEST_PROBATION))


def sigmoid(y: float) -> float:
    """From almost 1 at -1 over 0 at 0 to -1."""
    return -1.0 if y > 3 else 2 / (1 + exp(5 * y)) - 1


def scored(corpus: Sequence[Labelled], profile: Profile, threshold: float | None = None) -> Scored:
    """The total of a detector. threshold: None for the best."""
    points = [point for number, series in enumerate(corpus) for point in _points(number, series)]
    windows = sum(last >= probation(series.length) for series in corpus for _, last in series.windows)
    totals = _totals(points, windows, profile)
    if threshold is None:
        chosen = max(totals, key=lambda one: (one.score, one.threshold))
    else:
        chosen = min((one for one in totals if one.threshold >= threshold), key=lambda one: one.threshold)
    null, perfect = -profile.fn * windows, profile.tp * windows
    return chosen._replace(score=100 * (chosen.score - null) / (perfect - null) if windows else 0.0)


def _totals(points: Iterable[_Point], windows: int, profile: Profile) -> list[Scored]:
    """The total, not yet scaled, for every threshold that makes a difference; the first one makes no detection."""
    best: dict[tuple[int, int], float] = {}
    total, false = -profile.fn * windows, 0
    found = [Scored(total, inf, 0, windows, 0)]
    for threshold, group in groupby(sorted(points, key=lambda point: -point.score), key=lambda point: point.score):
        for point in group:
            if point.window is None:
                total += profile.fp * point.worth
                false += 1
            elif point.window not in best:
                best[point.window] = point.worth
                total += profile.fn + profile.tp * point.worth
            elif point.worth > best[point.window]:
                total += profile.tp * (point.worth - best[point.window])
                best[point.window] = point.worth
        found.append(Scored(total, threshold, len(best), windows - len(best), false))
    return found


def _points(number: int, series: Labelled) -> Iterable[_Point]:
    begin = probation(series.length)
    windows = sorted(series.windows)
    for at in range(begin, series.length):
        inside = next(((first, last) for first, last in windows if first <= at <= last), None)
        if inside is not None:
            first, last = inside
            worth = sigmoid(-(last - at + 1) / (last - first + 1)) / sigmoid(-1)
            yield _Point(series.scores[at], worth, (number, first))
            continue
        before = [(first, last) for first, last in windows if last < at]
        if before:
            first, last = before[-1]
            yield _Point(series.scores[at], sigmoid((at - last) / max(1, last - first)), None)
        else:
            yield _Point(series.scores[at], -1.0, None)
