"""The model of a series of counts: it predicts the next bucket from the history of its key, judges what came, and learns from it.

The prediction is a level times the profile of the day, and that of the week if it is wanted. Both are Gamma-Poisson estimates: counts seen over counts
expected, with a prior that pulls the profile of a rare key to flat and tells how much to doubt it.

Rules
1. The first season only teaches, and with a weekly rhythm the first week. A key is judged from then on.
2. Remarkable is at least twice and at least three Poisson deviations more than predicted (a spike), or at most a quarter (a dip). Evidence is the logarithm
   of how much better "remarkable" explains the buckets than "as usual" (Page's cumulative sum, which forgets what lies before the last moment at which all
   was usual). A spike is measured against the upper edge of the prediction, a dip against the lower: the model's doubt is never held against the key.
3. An anomaly begins when the evidence passes `ALARM`, and ends when the evidence for "as usual" passes `CALM`. One bucket brings at most a third of either,
   so both take three buckets at least.
4. The model does not learn from suspicious buckets, nor during an anomaly. An anomaly of half a season is a new usual: it ends, and the first season begins
   again. What is known of the week stays.
5. A bucket that is skipped had no events. Whoever calls says so with a zero.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import msgspec

from millstream.anomalies.season import History, Season
from millstream.anomalies.settings import DAYS, PARTS, SeriesRules
from millstream.anomalies.verdicts import BEGIN, DIP, FINISH, SPIKE, Forecast, Judged, Verdict

ALARM = 15.0
CALM = 6.0
SUSPICION = 4.0
LEAST = 0.25  # of what is usual: a dip

_FLATNESS = 8.0
_PRIOR_COUNT, _PRIOR_BUCKETS = 0.5, 5.0
_LEAST_SEEN = 1e-6
_LEVEL_HALVES = 1.5  # in seasons


class Suspicion(msgspec.Struct):
    """Evidence for one kind of anomaly, and the buckets that it rests on."""

    evidence: float = 0.0
    since: int = 0
    expected: float = 0.0
    actual: float = 0.0

    def weigh(self, gain: float, bucket: int, mean: float, count: float) -> None:
        """Takes one more bucket into account."""
        if self.evidence == 0.0:
            self.since, self.expected, self.actual = bucket, 0.0, 0.0
        self.expected += mean
        self.actual += count
        self.evidence = max(0.0, self.evidence + min(gain, ALARM / 3))


class CountModel(msgspec.Struct):
    """The state of one key. Buckets are numbered from 1970. pending: of buckets that are not complete yet, how many values have come, and their sum.
    heard: the last bucket that had events. open: the kind of the anomaly at hand."""

    next: int | None = None
    heard: int | None = None
    pending: dict[int, list[Any]] = {}
    taught_from: int | None = None
    is_taught: bool = False
    knows_week: bool = False
    level_seen: float = _PRIOR_COUNT
    level_over: float = _PRIOR_BUCKETS
    season: Season = msgspec.field(default_factory=Season)
    spike: Suspicion = msgspec.field(default_factory=Suspicion)
    dip: Suspicion = msgspec.field(default_factory=Suspicion)
    open: str = ""
    calm: float = 0.0

    def forecast(self, rules: SeriesRules, bucket: int) -> Forecast:
        mean = self.level_seen / self.level_over
        doubt = 1 / self.level_seen
        for factor, seen in self._factors(rules, bucket):
            mean *= factor
            doubt += 1 / seen
        return Forecast(mean, mean * sqrt(doubt))

    def judges(self, rules: SeriesRules, bucket: int) -> bool:
        seasons = DAYS if rules.weekly and not self.knows_week else 1
        return self.is_taught or (self.taught_from is not None and self.taught_from <= bucket - seasons * rules.buckets)

    def observe(self, rules: SeriesRules, bucket: int, value: float, forecast: Forecast) -> Judged:
        if self.taught_from is None:
            self.taught_from = bucket
        self.roll_up(rules, bucket)
        self.next = bucket + 1
        if not self.judges(rules, bucket):
            self._teach(rules, bucket, value)
            return Judged()
        if not self.is_taught:
            self._finish_teaching(rules)
            forecast = self.forecast(rules, bucket)
        mean, doubt = forecast.mean, forecast.doubt
        high, low = mean + doubt, max(mean - doubt, 0.0)
        more = 1 + max(1.0, 3 / sqrt(high))
        for_spike = value * log(more) - high * (more - 1)
        for_dip = value * log(LEAST) + low * (1 - LEAST)
        if self.open:
            return Judged(0.0, self._watch(rules, bucket, value, mean, for_spike if self.open == SPIKE else for_dip))
        self.spike.weigh(for_spike, bucket, mean, value)
        self.dip.weigh(for_dip, bucket, mean, value)
        evidence = max(self.spike.evidence, self.dip.evidence)
        score = evidence / (evidence + ALARM)
        for kind, suspicion in ((SPIKE, self.spike), (DIP, self.dip)):
            if suspicion.evidence >= ALARM:
                self.open, self.calm = kind, 0.0
                return Judged(score, self._verdict(BEGIN, suspicion))
        if evidence < SUSPICION:
            self._learn(rules, bucket, value, mean)
        return Judged(score)

    def roll_up(self, rules: SeriesRules, bucket: int) -> None:
        if self.season.slot is None or self.season.is_over(rules, bucket):
            self.season.roll_up(rules, bucket)

    def _factors(self, rules: SeriesRules, bucket: int) -> list[tuple[float, float]]:
        """What the day and the week multiply the level by, each with the counts that it rests on."""
        season, given = self.season, []
        seen, over = season.day.around(season.place(rules, bucket), _FLATNESS)
        given.append((seen / over, seen))
        if rules.weekly:
            seen, over = season.week.at(season.place_in_week(rules, bucket), _FLATNESS)
            given.append((seen / over, seen))
        return given

    def _watch(self, rules: SeriesRules, bucket: int, value: float, mean: float, gain: float) -> Verdict | None:
        """Follows an open anomaly until the series is as usual again, or has become usual."""
        suspicion = self.spike if self.open == SPIKE else self.dip
        suspicion.expected += mean
        suspicion.actual += value
        self.calm = max(0.0, self.calm + min(-gain, CALM / 3))
        has_settled = bucket - suspicion.since >= rules.buckets // 2
        if self.calm < CALM and not has_settled:
            return None
        verdict = self._verdict(FINISH, suspicion)
        self.open, self.spike, self.dip = "", Suspicion(), Suspicion()
        if has_settled:
            self.taught_from, self.is_taught = self.next, False
            self.level_seen, self.level_over = _PRIOR_COUNT, _PRIOR_BUCKETS
            self.season = Season(week=self.season.week)
            self.season.roll_up(rules, bucket)
        return verdict

    def _verdict(self, event: str, suspicion: Suspicion) -> Verdict:
        return Verdict(self.open, event, suspicion.since, round(suspicion.expected, 2), suspicion.actual)

    def _teach(self, rules: SeriesRules, bucket: int, value: float) -> None:
        """Counts only, and for how many buckets: the level that the profile refers to is known when the first season is over."""
        week = self._factors(rules, bucket)[1][0] if self.knows_week else 1.0
        self.level_seen += value
        self.level_over += week
        self.season.put(value, week, *((0.0, 0.0) if self.knows_week else (value, 1.0)))

    def _finish_teaching(self, rules: SeriesRules) -> None:
        level, season = self.level_seen / self.level_over, self.season
        season.day = History(season.day.seen, [over * level for over in season.day.over])
        season.over *= level
        if rules.weekly and not self.knows_week:
            slots = range(rules.slots)
            parts = [[season.day.figure(slot) for slot in slots if slot * PARTS // rules.slots == part] for part in range(PARTS)]
            usual = [level * sum(part) / max(1, len(part)) for part in parts]
            season.week = History(season.week.seen, [over * usual[at % PARTS] for at, over in enumerate(season.week.over)])
            season.week_over *= usual[0 if season.slot is None else season.slot * PARTS // rules.slots % PARTS]
            self.knows_week = True
        self.is_taught = True

    def _learn(self, rules: SeriesRules, bucket: int, value: float, mean: float) -> None:
        level, keep = self.level_seen / self.level_over, 0.5 ** (1 / (_LEVEL_HALVES * rules.buckets))
        self.level_seen = max(self.level_seen * keep + value, _LEAST_SEEN)
        self.level_over = self.level_over * keep + mean / level
        factors = self._factors(rules, bucket)
        week = factors[1][0] if rules.weekly else 1.0
        self.season.put(value, level * week, value, level * factors[0][0])
