"""The detector: the computation around a model, one series per key.

Rules
1. What comes of a bucket waits in the state until the low watermark has passed the bucket's end. Then its timer fires, and the model observes it: buckets
   come to the model in order, each once and complete, however records fall into epochs. The result of a window has no longer to wait than its window.
2. A bucket has the sum of its records for counts, and their mean for gauges. Both are exact, so the order of arrival does not matter.
3. A bucket of counts without a record is a zero. While a key is silent, zeros are observed one by one for `patience` buckets; the rest is made up for when
   the key comes back, for a season at the most. A bucket of a gauge without a record is missing, and nothing is made of it.
4. Nobody knows what would have followed the end of the traffic. Who knows when that is says so (`until`), and from there on there are no zeros.
5. The timer of a slot's end closes the slot, so history becomes coarse also where a key has fallen silent.
6. None, NaN and infinite values are tallied and are no values: a record with one is as good as missing. A negative count is an error.
7. A record that is late is counted, goes where `late=` says, and is not observed: its bucket was.
8. The timestamp of a verdict or forecast is the last moment of its bucket, so the windows behind it have it where it belongs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite, nan
from typing import Any

import msgspec

from millstream.anomalies.counts import CountModel
from millstream.anomalies.gauge import GaugeModel
from millstream.anomalies.settings import COUNTS, GAUGE, SeriesRules, as_fields, tracked
from millstream.anomalies.verdicts import Forecast, Judged, Verdict
from millstream.core.computation import Computation
from millstream.core.record import Record, Timer
from millstream.reducers import exact

BUCKET = "bucket"


class Detector(Computation):
    """Holds every bucket of a key's series against the model in its state.

    streams: that of the begins and ends of anomalies, and that of the forecasts. forecasts: whether forecasts are told: of all keys, or of some. fields: the
    names of what the key is made of. `detector` makes one.
    """

    state: Any

    def __init__(
        self,
        rules: SeriesRules,
        streams: tuple[str, str],
        *,
        value: str | None = None,
        forecasts: bool | Collection[Any] = False,
        fields: Sequence[str] = (),
    ) -> None:
        self.rules, self.value, self.fields = rules, value, tuple(fields)
        self.anomalies, self.told = streams
        self.forecasts = forecasts if isinstance(forecasts, bool) else frozenset(forecasts)

    def process_record(self, record: Record) -> None:
        bucket = record.timestamp // self.rules.width
        given = record.value if self.value is None else self._field(record.value)
        if isinstance(given, dict):
            raise ValueError(f"detect(): a record is a dict with {', '.join(map(repr, given))}: say which is the value, with value=")
        number = nan if given is None else float(given)
        if not isfinite(number):
            self.tally("without a value")
            return
        if number < 0 and self.rules.kind == COUNTS:
            raise ValueError(f"a count of {given!r}: say kind={GAUGE!r} where values may be negative")
        count, total = self.state.pending.get(bucket, (0, 0))
        self.state.pending[bucket] = [count + 1, exact.plus(total, number)]
        self.set_timer(BUCKET, (bucket + 1) * self.rules.width)

    def _field(self, value: Any) -> Any:
        try:
            return value[self.value]
        except (KeyError, TypeError):
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            raise ValueError(f"detect(value={self.value!r}): a record has no such field; it has {there}") from None

    def process_timer(self, timer: Timer) -> None:
        rules, state = self.rules, self.state
        bucket = timer.time // rules.width - 1
        given = state.pending.pop(bucket, None)
        if given is not None:
            self._observe_given(bucket, *given)
        elif rules.kind == COUNTS and bucket == state.next and self._is_expected(bucket):
            self._observe(bucket, 0.0)
        state.roll_up(rules, bucket + 1)
        if rules.kind == COUNTS and state.next == bucket + 1 and self._is_expected(bucket + 1):
            self.set_timer(BUCKET, (bucket + 2) * rules.width)
        elif state.season.buckets:
            self.set_timer(BUCKET, rules.slot_end(bucket + 1) * rules.width)

    def _observe_given(self, bucket: int, count: int, total: Any) -> None:
        rules, state = self.rules, self.state
        if rules.kind == COUNTS and state.next is not None:
            for skipped in range(max(state.next, rules.caught_up_from(bucket)), bucket):
                self._observe(skipped, 0.0)
        state.heard = bucket
        self._observe(bucket, float(exact.shown(total) if rules.kind == COUNTS else exact.divided(total, count)))

    def _is_expected(self, bucket: int) -> bool:
        """Whether a bucket without a record is told to be zero before anybody knows whether the key comes back."""
        heard = self.state.heard
        return heard is not None and bucket <= heard + self.rules.patience and bucket * self.rules.width < self.rules.until

    def _observe(self, bucket: int, value: float) -> None:
        rules, state = self.rules, self.state
        state.roll_up(rules, bucket)
        forecast = state.forecast(rules, bucket)
        is_judged = state.judges(rules, bucket)
        judged = state.observe(rules, bucket, value, forecast)
        if judged.verdict is not None:
            self._tell(self._anomaly(bucket, judged.verdict), self.anomalies)
        if self.forecasts and tracked(self.forecasts, self.key):
            self._tell(self._forecast(bucket, value, forecast if is_judged else None, judged), self.told)

    def _tell(self, value: dict[str, Any], stream: str) -> None:
        self.produce(value, timestamp=max(self.cause.time - 1, self.output_watermark), stream=stream)  # type: ignore[union-attr]

    def _anomaly(self, bucket: int, verdict: Verdict) -> dict[str, Any]:
        width = self.rules.width
        return as_fields(self.fields, self.key) | {
            "kind": verdict.kind,
            "event": verdict.event,
            "at": (bucket + 1) * width,
            "since": verdict.since * width,
            "expected": round(verdict.expected, 3),
            "actual": self._number(verdict.actual),
        }

    def _forecast(self, bucket: int, value: float, forecast: Forecast | None, judged: Judged) -> dict[str, Any]:
        row = as_fields(self.fields, self.key) | {"at": bucket * self.rules.width, "actual": self._number(value)}
        if forecast is not None:
            row |= {"expected": round(forecast.mean, 3), "doubt": round(forecast.doubt, 3), "score": round(judged.score, 6)}
        return row

    def _number(self, value: float) -> float:
        return int(value) if self.rules.kind == COUNTS and value.is_integer() else value


class CountDetector(Detector):
    """For numbers of events."""

    State: type[msgspec.Struct] = CountModel


class GaugeDetector(Detector):
    """For values that are measured."""

    State: type[msgspec.Struct] = GaugeModel


def detector(
    rules: SeriesRules,
    streams: tuple[str, str] = ("anomalies", "forecasts"),
    value: str | None = None,
    forecasts: bool | Collection[Any] = False,
    fields: Sequence[str] = (),
) -> Detector:
    """The detector for a kind of series."""
    kind = CountDetector if rules.kind == COUNTS else GaugeDetector
    return kind(rules, streams, value=value, forecasts=forecasts, fields=fields)
