"""The model of a series of measured values: it looks at each bucket in six ways, and asks of each how rare that is by what the series itself has shown.

Rules
1. The ways: the distance from the last few values (`spike`), from the long-term mean (`range`), of the last few from the long-term mean (`level`), of the
   last few from what is usual at this time (`season`), how much the values jump (`spread`), and how rare buckets have been of late (`burst`). A bucket is as
   rare as the rarest of them.
2. A distance is measured in distances that are usual at this time: half by the series, half by the slots around, and never in less than a hundredth of the
   reach that the series has had of late. So the steep edge of a regular day is no anomaly, nor is a jitter in a flat line.
3. Nothing learns from an outlier as it is: means and distances take at most `CLIP` usual distances of it. Of the mean of the last few values that is true,
   too, or a spike would be followed by a dip. A level that stays becomes usual within some seasons, because it is learnt all the same.
4. Only news has a score. After something rare, what is less rare scores nothing; that fades by one power of ten a season. So an anomaly is told once.
5. An anomaly begins with a bucket as rare as one in `rarity`. It ends when no bucket of the last `SHORT` was as rare as one in a hundred, or after half a
   season: then it is a new usual.
6. A bucket without a value says nothing. Steps count, not the time between them.
"""

from __future__ import annotations

from math import log, log10
from typing import Any

import msgspec

from millstream.anomalies.rarity import Sides
from millstream.anomalies.season import DAY_KEEPS, History, Season
from millstream.anomalies.settings import SeriesRules
from millstream.anomalies.verdicts import BEGIN, DIP, FINISH, SPIKE, VARIANCE, Forecast, Judged, Verdict

SHORT = 12  # values in what is called the last few
BURST = 24
CLIP = 6.0
HALVES = 3.0  # seasons, after which a value counts half in the long-term mean
REACH_HALVES = 4.0
LEAST_REACH = 0.01
COMMON = 2.0  # the rarity of one bucket in a hundred

_WARM = 30  # values, before which nothing is clipped
_SLOTS_WARM = 12
_SHORT_GAIN, _BURST_GAIN = 2 / (SHORT + 1), 2 / (BURST + 1)
_PEAK_GAIN = 0.03
_NOTHING = 1e-12


class Episode(msgspec.Struct):
    """The anomaly at hand. calm: for how many buckets all has been usual."""

    kind: str = ""
    since: int = 0
    buckets: int = 0
    expected: float = 0.0
    actual: float = 0.0
    calm: int = 0


class Peaks(msgspec.Struct):
    """The largest distance in a slot: in the slot at hand, in each slot of the day, and in all of them."""

    now: float = 0.0
    buckets: int = 0
    slots: int = 0
    mean: float = 0.0
    day: History = msgspec.field(default_factory=History)

    def usual(self, place: float, least: float) -> float:
        """What a distance is measured in. least: is added to that of the whole series."""
        around = self.day.larger(place)
        return 0.5 * (self.mean + least) + 0.5 * (self.mean if around is None else around)

    def put(self, distance: float) -> None:
        """Takes the distance of a bucket."""
        self.now, self.buckets = max(self.now, distance), self.buckets + 1

    def roll_up(self, slot: int, count: int) -> None:
        """Closes the slot at hand."""
        self.slots += 1
        peak = self.now if self.slots <= _SLOTS_WARM else min(self.now, 4 * max(self.mean, self.day.figure(slot % count)))
        self.mean += (peak - self.mean) * max(1 / self.slots, _PEAK_GAIN)
        self.day.add(slot, count, peak, 1.0, DAY_KEEPS)
        self.now, self.buckets = 0.0, 0


class GaugeModel(msgspec.Struct):
    """The state of one key. fast, slow: the mean of the last few values and the long-term one; deviation, noise: mean distances from them. reach: the
    largest distance of late. told: how rare what was told last was, at which value."""

    next: int | None = None
    heard: int | None = None
    pending: dict[int, list[Any]] = {}
    values: int = 0
    taught_from: int | None = None
    fast: float = 0.0
    slow: float = 0.0
    deviation: float = 0.0
    noise: float = 0.0
    missed: float = 0.0
    reach: float = 0.0
    aside: float = 0.0
    unrest: float = 0.0
    rare: float = 0.0
    told: float = 0.0
    told_at: int = 0
    season: Season = msgspec.field(default_factory=Season)
    jumps: Peaks = msgspec.field(default_factory=Peaks)
    misses: Peaks = msgspec.field(default_factory=Peaks)
    spikes: Sides = msgspec.field(default_factory=Sides)
    ranges: Sides = msgspec.field(default_factory=Sides)
    levels: Sides = msgspec.field(default_factory=Sides)
    seasons: Sides = msgspec.field(default_factory=Sides)
    spreads: Sides = msgspec.field(default_factory=Sides)
    bursts: Sides = msgspec.field(default_factory=Sides)
    episode: Episode = msgspec.field(default_factory=Episode)

    def forecast(self, rules: SeriesRules, bucket: int) -> Forecast:
        usual = self._usual(rules, bucket)
        if usual is not None and self.misses.slots > _SLOTS_WARM and self.missed <= self.noise:
            return Forecast(self.slow + usual[0] + usual[1], self.missed)
        return Forecast(self.fast, self.noise)

    def judges(self, rules: SeriesRules, bucket: int) -> bool:
        return self.taught_from is not None and self.taught_from <= bucket - rules.buckets

    def observe(self, rules: SeriesRules, bucket: int, value: float, forecast: Forecast) -> Judged:
        if not self.values:
            self.taught_from, self.fast, self.slow = bucket, value, value
        self.roll_up(rules, bucket)
        self.next, self.values = bucket + 1, self.values + 1
        found, kind = self._weigh(rules, bucket, value)
        is_judged = self.judges(rules, bucket)
        told = max(0.0, self.told - (self.values - self.told_at) / rules.buckets)
        if found <= told or not is_judged:
            news = 0.0
        else:
            self.told, self.told_at, news = found, self.values, found
        alarm = log10(rules.rarity)
        return Judged(news / (news + alarm), self._verdict(rules, bucket, value, forecast, found, kind, news >= alarm))

    def roll_up(self, rules: SeriesRules, bucket: int) -> None:
        season = self.season
        if season.slot is not None and not season.is_over(rules, bucket):
            return
        if season.slot is not None and season.buckets:
            self.jumps.roll_up(season.slot, rules.slots)
            if self.misses.buckets:
                self.misses.roll_up(season.slot, rules.slots)
        season.roll_up(rules, bucket)

    def _usual(self, rules: SeriesRules, bucket: int) -> tuple[float, float] | None:
        """What the day and the week add to the long-term mean; None where the day is not known."""
        season = self.season
        seen, over = season.day.around(season.place(rules, bucket))
        if not season.day.is_known(season.place(rules, bucket)):
            return None
        if not rules.weekly:
            return seen / over, 0.0
        week_seen, week_over = season.week.at(season.place_in_week(rules, bucket))
        return seen / over, week_seen / (week_over + 1)

    def _weigh(self, rules: SeriesRules, bucket: int, value: float) -> tuple[float, str]:
        """How rare a bucket is in the rarest way, and of which kind that is. All is learnt on the way."""
        place = self.season.place(rules, bucket)
        least = 1e-6 * abs(self.slow) + _NOTHING + LEAST_REACH * self.reach
        jump = value - self.fast
        ways = [(self.spikes.weigh(jump / self.jumps.usual(place, least + 0.02 * self.deviation)), jump)]
        usual = self._usual(rules, bucket)
        miss = 0.0
        if usual is not None:
            miss = value - self.slow - usual[0] - usual[1]
            if self.misses.slots > _SLOTS_WARM:
                distance = miss / self.misses.usual(place, least + 0.02 * self.deviation)
                self.aside += (_clipped(distance, CLIP) - self.aside) * _SHORT_GAIN
                ways.append((self.seasons.weigh(self.aside), self.aside))
        gain = max(_SHORT_GAIN, 1 / self.values)
        taken = _clipped(jump, CLIP * (self.noise + least)) if self.values > _WARM else jump
        fast, deviation = self.fast + taken * gain, self.deviation + least
        ways.append((self.levels.weigh((fast - self.slow) / deviation), fast - self.slow))
        ways.append((self.ranges.weigh((value - self.slow) / deviation), value - self.slow))
        noise = self.noise + least + 0.02 * self.deviation
        self.unrest += (min(abs(jump) / noise, 8.0) - self.unrest) * gain
        rarest, side = max(ways, key=lambda way: way[0])
        kind = SPIKE if side > 0 else DIP
        spread = self.spreads.weigh(4 * log((self.unrest + 0.1) / 1.1))
        if spread > rarest:
            rarest, kind = spread, VARIANCE
        self.rare += (min(rarest, 5.0) - self.rare) * max(_BURST_GAIN, 1 / self.values)
        burst = self.bursts.weigh(self.rare)
        self._learn(rules, value, jump, miss if usual is not None else None, usual or (0.0, 0.0), fast)
        return max(burst, rarest), kind

    def _learn(self, rules: SeriesRules, value: float, jump: float, miss: float | None, usual: tuple[float, float], fast: float) -> None:
        least = 1e-6 * abs(self.slow) + _NOTHING + LEAST_REACH * self.reach
        noise = self.noise + least + 0.02 * self.deviation
        is_warm = self.values > _WARM
        gain = max(1 - 0.5 ** (1 / (HALVES * rules.buckets)), 1 / self.values)
        away = value - self.slow
        self.reach = max(self.reach * 0.5 ** (1 / (REACH_HALVES * rules.buckets)), abs(away))
        taken = _clipped(away, CLIP * (self.deviation + least)) if is_warm else away
        self.fast = fast
        self.slow += gain * taken
        self.deviation += gain * (abs(taken) - self.deviation)
        self.noise += gain * ((min(abs(jump), CLIP * noise) if is_warm else abs(jump)) - self.noise)
        self.jumps.put(abs(jump))
        self.season.put(taken - usual[1], 1.0, taken - usual[0], 1.0)
        if miss is not None:
            self.misses.put(abs(miss))
            self.missed += max(gain, 0.02) * (min(abs(miss), CLIP * (self.missed + least)) - self.missed)

    def _verdict(
        self, rules: SeriesRules, bucket: int, value: float, forecast: Forecast, found: float, kind: str, is_alarm: bool
    ) -> Verdict | None:
        episode = self.episode
        if not episode.kind:
            if not is_alarm:
                return None
            self.episode = episode = Episode(kind, bucket, 1, forecast.mean, value)
            return _told(BEGIN, episode)
        episode.buckets += 1
        episode.expected += forecast.mean
        episode.actual += value
        episode.calm = episode.calm + 1 if found < COMMON else 0
        if episode.calm < SHORT and bucket - episode.since < rules.buckets // 2:
            return None
        self.episode = Episode()
        return _told(FINISH, episode)


def _told(event: str, episode: Episode) -> Verdict:
    return Verdict(episode.kind, event, episode.since, episode.expected / episode.buckets, episode.actual / episode.buckets)


def _clipped(value: float, most: float) -> float:
    return min(max(value, -most), most)
