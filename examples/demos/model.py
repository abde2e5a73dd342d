"""One term's model: it predicts the next bucket from the term's history, judges what came, and learns from it.

The prediction is a level times the day's profile at that hour. Level and profile are Gamma-Poisson estimates: counts seen over counts
expected, with a prior that pulls the profile of a rare term to flat and tells how much to doubt it. Rules
1. The first day only teaches. A term is judged from its second day on.
2. Remarkable is at least twice and at least three Poisson deviations more than predicted (a spike), or at most a quarter (a dip).
   Evidence is the logarithm of how much better "remarkable" explains the buckets than "as usual" (Page's cumulative sum, which
   forgets what lies before the last moment at which all was usual). A spike is measured against the upper edge of the prediction,
   a dip against the lower: the model's doubt is never held against the term.
3. An anomaly begins when the evidence passes `ALARM`, and ends when the evidence for "as usual" passes `CALM`. One bucket brings
   at most a third of either, so both take three buckets at least.
4. The model does not learn from suspicious buckets, nor during an anomaly. An anomaly of half a day is a new usual: it ends, and
   the first day begins again.
5. A bucket that is skipped had no query. The model is of one size, however long it lives.
"""

from __future__ import annotations

from math import log, sqrt

import msgspec

from demos import BUCKET, DAY

BUCKETS = DAY // BUCKET
SLOTS = 20
ALARM = 15.0
CALM = 6.0
SUSPICION = 4.0
DIP = 0.25

_PER_SLOT = BUCKETS // SLOTS
_FLATNESS = 8.0
_PRIOR_COUNT, _PRIOR_BUCKETS = 0.5, 5.0
_LEVEL_KEEPS = 0.5 ** (1 / (1.5 * BUCKETS))
_SLOT_KEEPS = 0.5 ** (1 / (2.5 * _PER_SLOT))
_LONGEST = BUCKETS // 2


class Verdict(msgspec.Struct, frozen=True):
    """The begin or the end of an anomaly, at the end of a bucket. `actual` and `expected` are queries since the suspicion began."""

    kind: str
    event: str
    since: int
    expected: float
    actual: int


class Forecast(msgspec.Struct, frozen=True):
    """What the model expects of a bucket, and how far off it may itself be (one deviation, without the bucket's own noise)."""

    mean: float
    doubt: float


class Suspicion(msgspec.Struct):
    """Evidence for one kind of anomaly, and the buckets that it rests on."""

    evidence: float = 0.0
    since: int = 0
    expected: float = 0.0
    actual: int = 0

    def weigh(self, gain: float, bucket: int, mean: float, count: int) -> None:
        """Takes one more bucket into account."""
        if self.evidence == 0.0:
            self.since, self.expected, self.actual = bucket, 0.0, 0
        self.expected += mean
        self.actual += count
        self.evidence = max(0.0, self.evidence + min(gain, ALARM / 3))


class Model(msgspec.Struct):
    """The state of one term. `next` is the bucket that comes next; buckets are numbered from the epoch of Unix time."""

    next: int = 0
    taught_from: int = 0
    level_seen: float = _PRIOR_COUNT
    level_over: float = _PRIOR_BUCKETS
    slot_seen: list[float] = msgspec.field(default_factory=lambda: [0.0] * SLOTS)
    slot_over: list[float] = msgspec.field(default_factory=lambda: [0.0] * SLOTS)
    spike: Suspicion = msgspec.field(default_factory=Suspicion)
    dip: Suspicion = msgspec.field(default_factory=Suspicion)
    open: str = ""
    calm: float = 0.0

    def forecast(self, bucket: int) -> Forecast:
        """Predicts a bucket, between the centres of the two nearest slots."""
        level = self.level_seen / self.level_over
        place = (bucket % BUCKETS + 0.5) / _PER_SLOT - 0.5
        left = int(place // 1)
        share = place - left
        left, right = left % SLOTS, (left + 1) % SLOTS
        seen = self.slot_seen[left] * (1 - share) + self.slot_seen[right] * share + _FLATNESS
        over = self.slot_over[left] * (1 - share) + self.slot_over[right] * share + _FLATNESS
        mean = level * seen / over
        return Forecast(mean, mean * sqrt(1 / self.level_seen + 1 / seen))

    def judges(self, bucket: int) -> bool:
        """Whether the first day is over for a bucket."""
        return 0 < self.taught_from <= bucket - BUCKETS

    def observe(self, bucket: int, count: int, forecast: Forecast) -> Verdict | None:
        """Judges a bucket against its forecast and learns from it."""
        if not self.taught_from:
            self.taught_from = bucket
        self.next = bucket + 1
        if not self.judges(bucket):
            self._teach(bucket, count)
            return None
        mean, doubt = forecast.mean, forecast.doubt
        high, low = mean + doubt, max(mean - doubt, 0.0)
        more = 1 + max(1.0, 3 / sqrt(high))
        for_spike = count * log(more) - high * (more - 1)
        for_dip = count * log(DIP) + low * (1 - DIP)
        if self.open:
            return self._watch(bucket, count, mean, for_spike if self.open == "spike" else for_dip)
        self.spike.weigh(for_spike, bucket, mean, count)
        self.dip.weigh(for_dip, bucket, mean, count)
        for kind, suspicion in (("spike", self.spike), ("dip", self.dip)):
            if suspicion.evidence >= ALARM:
                self.open, self.calm = kind, 0.0
                return self._verdict("begin", suspicion)
        if max(self.spike.evidence, self.dip.evidence) < SUSPICION:
            self._learn(bucket, count, mean)
        return None

    def _watch(self, bucket: int, count: int, mean: float, gain: float) -> Verdict | None:
        """Follows an open anomaly until the traffic is as usual again, or has become usual."""
        suspicion = self.spike if self.open == "spike" else self.dip
        suspicion.expected += mean
        suspicion.actual += count
        self.calm = max(0.0, self.calm + min(-gain, CALM / 3))
        settled = bucket - suspicion.since >= _LONGEST
        if self.calm < CALM and not settled:
            return None
        verdict = self._verdict("end", suspicion)
        self.open, self.spike, self.dip = "", Suspicion(), Suspicion()
        if settled:
            fresh = Model()
            self.taught_from = self.next
            self.level_seen, self.level_over = fresh.level_seen, fresh.level_over
            self.slot_seen, self.slot_over = fresh.slot_seen, fresh.slot_over
        return verdict

    def _verdict(self, event: str, suspicion: Suspicion) -> Verdict:
        return Verdict(self.open, event, suspicion.since, round(suspicion.expected, 2), suspicion.actual)

    def _teach(self, bucket: int, count: int) -> None:
        """The first day: counts only, since the level that the profile refers to is known when the day is over."""
        self.level_seen += count
        self.level_over += 1
        self.slot_seen[bucket % BUCKETS // _PER_SLOT] += count
        if bucket == self.taught_from + BUCKETS - 1:
            self.slot_over = [self.level_seen / self.level_over * _PER_SLOT] * SLOTS

    def _learn(self, bucket: int, count: int, mean: float) -> None:
        level = self.level_seen / self.level_over
        self.level_seen = self.level_seen * _LEVEL_KEEPS + count
        self.level_over = self.level_over * _LEVEL_KEEPS + mean / level
        slot = bucket % BUCKETS // _PER_SLOT
        self.slot_seen[slot] = self.slot_seen[slot] * _SLOT_KEEPS + count
        self.slot_over[slot] = self.slot_over[slot] * _SLOT_KEEPS + level
