"""Labelled series: those of a folder with NAB's data, and artificial ones that are made here, by seeds.

Rules
1. NAB's data are read where they are; nothing of them is kept here. Times are taken as UTC.
2. The artificial series are for choosing what a detector is told. They have what is known of such series in general: noise of several kinds, a rhythm of the
   day, bursts, few different values; and spikes, dips, changes of level and of variance, flat stretches, drifts. Nothing in them was taken from the labels
   of the others.
3. For a run through one pipeline, series are moved by whole weeks, so that all begin in the same one. What they are in the day and week stays.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import exp, pi, sin, sqrt
from pathlib import Path
from typing import NamedTuple

WEEK = 7 * 86_400_000
STEP = 300_000
BEGIN = 2_300 * WEEK  # in 2014
LENGTH = 4_032
DAY = 86_400_000


class LabelledSeries(NamedTuple):
    """times: in milliseconds. windows: the first and the last point of what is labelled."""

    name: str
    times: list[int]
    values: list[float]
    windows: list[tuple[int, int]]

    @property
    def category(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_artificial(self) -> bool:
        return self.name.startswith(("artificial", "made"))


def nab(folder: Path) -> Iterator[LabelledSeries]:
    """All series of NAB in a folder that has its `data` and `labels`."""
    for name, labels in sorted(json.loads((folder / "labels" / "combined_windows.json").read_text()).items()):
        with (folder / "data" / name).open() as file:
            rows = [(_millis(row["timestamp"]), float(row["value"])) for row in csv.DictReader(file)]
        times = [time for time, _ in rows]
        windows = []
        for begin, end in ((_millis(begin), _millis(end)) for begin, end in labels):
            inside = [at for at, time in enumerate(times) if begin <= time <= end]
            windows.append((inside[0], inside[-1]))
        yield LabelledSeries(name, times, [value for _, value in rows], windows)


def moved(series: LabelledSeries) -> LabelledSeries:
    """A series that begins in the first week of all."""
    by = min(series.times) // WEEK * WEEK - BEGIN
    return series._replace(times=[time - by for time in series.times])


def _millis(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def made(seed: int, count: int, step: int = STEP) -> Iterator[LabelledSeries]:
    """Artificial series, with a point in every step: two weeks of them in steps of five minutes."""
    for number in range(count):
        dice = random.Random(1_000 * seed + number)
        points = _BASES[number % len(_BASES)](dice, DAY // step)
        values = [next(points) for _ in range(LENGTH)]
        mean = sum(values) / LENGTH
        spread = sqrt(sum((value - mean) ** 2 for value in values) / LENGTH)
        thirds = sorted(dice.sample(range(3), dice.choice([0, 1, 1, 2, 2, 3])))
        half = LENGTH // 20 // max(1, len(thirds))
        windows = []
        for third in thirds:
            at = 900 + 1_000 * third + dice.randrange(500)
            dice.choice(_ANOMALIES)(dice, values, at, spread * dice.choice([3, 5, 8]), DAY // step)
            windows.append((at - half, at + half))
        yield LabelledSeries(f"made/{seed}-{number}", [BEGIN + step * n for n in range(LENGTH)], values, windows)


# --- what is usual


def _rhythm(dice: random.Random, day: int) -> Callable[[int], float]:
    height, phase = dice.choice([0, 3, 8]), dice.uniform(0, 2 * pi)
    return lambda n: height * sin(2 * pi * n / day + phase)


def _noisy(dice: random.Random, day: int) -> Iterator[float]:
    noise, rhythm, n = dice.choice([0.3, 1, 2]), _rhythm(dice, day), 0
    while True:
        yield 20 + rhythm(n) + dice.gauss(0, noise)
        n += 1


def _wandering(dice: random.Random, day: int) -> Iterator[float]:
    noise, keeps, rhythm, n, away = dice.choice([0.6, 2, 4]), dice.choice([0.8, 0.95, 0.99]), _rhythm(dice, day), 0, 0.0
    while True:
        away = keeps * away + dice.gauss(0, noise * sqrt(1 - keeps * keeps))
        yield 50 + away + rhythm(n)
        n += 1


def _square(dice: random.Random, day: int) -> Iterator[float]:
    noise, n = dice.choice([0.3, 1, 2]), 0
    while True:
        yield 20 + (12 if 0.35 < n % day / day < 0.76 else 0) + dice.gauss(0, noise)
        n += 1


def _skewed(dice: random.Random, day: int) -> Iterator[float]:
    rhythm, n = _rhythm(dice, day), 0
    while True:
        yield exp(1 + 0.5 * dice.gauss(0, 1) + 0.1 * rhythm(n))
        n += 1


def _bursting(dice: random.Random, day: int) -> Iterator[float]:
    noise, every, n = dice.choice([0.3, 1, 2]), dice.choice([36, 72, 150]), 0
    while True:
        yield 10 + dice.gauss(0, noise) + (dice.uniform(10, 25) if n % every < 3 else 0)
        n += 1


def _counting(dice: random.Random, day: int) -> Iterator[float]:
    rhythm, n = _rhythm(dice, day), 0
    while True:
        least, product, count = exp(-max(0.5, 6 + rhythm(n))), dice.random(), 0
        while product > least:
            product *= dice.random()
            count += 1
        yield float(count)
        n += 1


def _few_values(dice: random.Random, day: int) -> Iterator[float]:
    noise = dice.choice([0.12, 0.4, 0.8])
    while True:
        yield 30 + round(dice.gauss(0, noise)) * 0.5 + (dice.choice([2, 5, 20]) if dice.random() < 0.01 else 0)


_BASES = (_noisy, _noisy, _wandering, _square, _skewed, _bursting, _counting, _few_values)

# --- what is not


def _spike(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    for n in range(at, at + dice.choice([1, 2, 6])):
        values[n] += size


def _dip(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    _spike(dice, values, at, -size, day)


def _level(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    for n in range(at, min(LENGTH, at + dice.choice([60, 300, 3_000]))):
        values[n] += size / 1.5


def _unrest(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    for n in range(at, at + dice.choice([40, 150])):
        values[n] += dice.gauss(0, size / 1.5)


def _flat(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    for n in range(at, at + day * dice.choice([1, 3]) // 3):
        values[n] = values[at]


def _faint(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    mean = sum(values[at - day : at]) / day
    for n in range(at, at + 200):
        values[n] = mean + 0.3 * (values[n] - mean)


def _drift(dice: random.Random, values: list[float], at: int, size: float, day: int) -> None:
    for n in range(at, at + 400):
        values[n] += size * (n - at) / 200


_ANOMALIES = (_spike, _dip, _level, _unrest, _flat, _faint, _drift)
