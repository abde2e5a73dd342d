"""What a model says of a bucket: what it expected, how remarkable the bucket is, and that an anomaly has begun or ended.

Rules
1. A score is between 0 and 1, and one half where an anomaly begins. It says how sure the model is, not how large the anomaly is.
2. `expected` and `actual` of a verdict are of all buckets from `since` on: their sum for counts, their mean for gauges.
3. What a model can be asked is the same for counts and gauges (`SeriesModel`), so the computation does not tell them apart.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from millstream.anomalies.settings import SeriesRules

BEGIN, FINISH = "begin", "end"
SPIKE, DIP, VARIANCE = "spike", "dip", "variance"


class Forecast(msgspec.Struct, frozen=True):
    """What a model expects of a bucket. doubt: for counts, how far off the expectation may itself be, without the noise of counting (one deviation); for
    gauges, how far off values have been of late (the mean distance)."""

    mean: float
    doubt: float


class Verdict(msgspec.Struct, frozen=True):
    """The begin or the end of an anomaly. since: the bucket in which it began."""

    kind: str
    event: str
    since: int
    expected: float
    actual: float


class Judged(msgspec.Struct, frozen=True):
    """A bucket's score, and a verdict if there is one."""

    score: float = 0.0
    verdict: Verdict | None = None


class SeriesModel(Protocol):
    """The model of one series, which is the state of its key. next: the bucket behind the newest one that was observed."""

    next: int | None

    def forecast(self, rules: SeriesRules, bucket: int) -> Forecast:
        """What is expected of a bucket."""

    def judges(self, rules: SeriesRules, bucket: int) -> bool:
        """Whether enough was seen to judge a bucket."""

    def observe(self, rules: SeriesRules, bucket: int, value: float, forecast: Forecast) -> Judged:
        """Judges a bucket against its forecast, and learns from it. Buckets come in order."""

    def roll_up(self, rules: SeriesRules, bucket: int) -> None:
        """Closes the slot at hand if a bucket is behind it."""
