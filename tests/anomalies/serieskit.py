"""Series for the tests of models and detectors, and what models say of them."""

from __future__ import annotations

from collections.abc import Iterable
from math import pi, sin
from random import Random
from typing import Any

import millstream as ms
from millstream.anomalies.counts import CountModel
from millstream.anomalies.gauge import GaugeModel
from millstream.anomalies.settings import SeriesRules

MINUTE = 60_000
DAY = 1_440 * MINUTE
BEGIN = 20_000 * DAY  # a Monday, in 2024
SCHEMA = "device string, at long, value double, id string"


def rules(kind: str, **options: Any) -> SeriesRules:
    """A day of 96 buckets of a quarter of an hour."""
    return SeriesRules.of(kind, "15m", "1d", **options)


def poisson(dice: Random, mean: float) -> int:
    """How many events come, if they come one by one at a rate."""
    count, left = -1, mean
    while left > 0:
        left -= dice.expovariate(1.0)
        count += 1
    return max(count, 0)


def daily(n: int, buckets: int = 96) -> float:
    """A rhythm from -1 to 1."""
    return sin(2 * pi * n / buckets)


def told(model: CountModel | GaugeModel, given: SeriesRules, values: Iterable[float | None], start: int = 0) -> list[tuple[int, str, str]]:
    """What a model says of a series: (place, kind, event). None: the bucket is missing."""
    found = []
    for n, value in enumerate(values):
        if value is not None:
            judged = model.observe(given, start + n, value, model.forecast(given, start + n))
            if judged.verdict is not None:
                found.append((n, judged.verdict.kind, judged.verdict.event))
    return found


def pipeline(kind: str, **options: Any) -> ms.Pipeline:
    """From readings of devices to anomalies and forecasts of all of them."""
    made = ms.Pipeline("devices")
    source = ms.sources.files("readings/", schema=SCHEMA, format="json", max_files_per_epoch=1)
    readings = made.inject("readings", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("30m"))
    settings = {"bucket": "15m", "season": "1d", "value": "value", "kind": kind, "forecasts": True, "name": "anomalies"}
    readings.by("device").detect(**settings | options)
    return made


def readings(device: str, values: Iterable[float | None], begin: int = BEGIN, step: int = 15 * MINUTE) -> list[dict[str, Any]]:
    """A record in the middle of every bucket."""
    return [
        {"device": device, "at": begin + n * step + step // 2, "value": value, "id": f"{device}-{begin}-{n}"}
        for n, value in enumerate(values)
        if value is not None
    ]
