"""The long-term history of a series: what is usual at this time of the day, and of the week.

Rules
1. History goes from fine to coarse. What the buckets of the slot at hand come to is summed up (`open_*`). When the slot has ended, the sum becomes a part of
   that slot of the day, and of that part of the week, and nothing is left of the buckets. So the size does not depend on how long a series lives.
2. A slot keeps how much was seen, and over how much: seen / over is its figure. Both fade, so that a day counts half after `DAY_HALVES` days, a week
   after `WEEK_HALVES` weeks.
3. Between the centres of two slots of the day the figure goes in a straight line. Those of the week have steps: a Saturday begins at once.
4. A slot is closed by a timer or by the first bucket behind it, whichever comes first. Either does the same.
5. What was not seen yet has the prior alone.
"""

from __future__ import annotations

import msgspec

from millstream.anomalies.settings import DAYS, PARTS, SeriesRules

DAY_HALVES = 2.5
WEEK_HALVES = 4.0

DAY_KEEPS = 0.5 ** (1 / DAY_HALVES)


class History(msgspec.Struct):
    """Slots in a circle: of a day, or of a week."""

    seen: list[float] = []
    over: list[float] = []

    def add(self, slot: int, count: int, seen: float, over: float, keep: float) -> None:
        """Takes the sums of a slot. count: how many slots there are."""
        if not self.seen:
            self.seen, self.over = [0.0] * count, [0.0] * count
        at = slot % count
        self.seen[at] = self.seen[at] * keep + seen
        self.over[at] = self.over[at] * keep + over

    def around(self, place: float, prior: float = 0.0) -> tuple[float, float]:
        """What was seen, and over how much, at a place between slots. prior: is added to both."""
        if not self.seen:
            return prior, prior
        left, right, share = self._between(place)
        seen, over = self.seen, self.over
        return seen[left] * (1 - share) + seen[right] * share + prior, over[left] * (1 - share) + over[right] * share + prior

    def at(self, place: float, prior: float = 0.0) -> tuple[float, float]:
        """What was seen, and over how much, in the slot of a place. prior: is added to both."""
        return (self.seen[int(place)] + prior, self.over[int(place)] + prior) if self.seen else (prior, prior)

    def figure(self, slot: int) -> float:
        """Seen over over, of one slot; 0 where nothing was seen."""
        return self.seen[slot] / self.over[slot] if self.over and self.over[slot] else 0.0

    def is_known(self, place: float) -> bool:
        """Whether both slots around a place were seen."""
        if not self.seen:
            return False
        left, right, _ = self._between(place)
        return self.over[left] > 0 < self.over[right]

    def larger(self, place: float) -> float | None:
        """The larger figure of the slots around a place; None where one of them was not seen."""
        if not self.is_known(place):
            return None
        left, right, _ = self._between(place)
        return max(self.figure(left), self.figure(right))

    def _between(self, place: float) -> tuple[int, int, float]:
        place -= 0.5
        left, count = int(place // 1), len(self.seen)
        return left % count, (left + 1) % count, place - left


class Season(msgspec.Struct):
    """The day and, where that is asked for, the week. slot: the slot at hand, counted from 1970. `week_*`: its sums as the week has them."""

    day: History = msgspec.field(default_factory=History)
    week: History = msgspec.field(default_factory=History)
    slot: int | None = None
    buckets: int = 0
    seen: float = 0.0
    over: float = 0.0
    week_seen: float = 0.0
    week_over: float = 0.0

    def place(self, rules: SeriesRules, bucket: int) -> float:
        """Where in the day the middle of a bucket is, in slots."""
        return (bucket % rules.buckets + 0.5) * rules.slots / rules.buckets

    def place_in_week(self, rules: SeriesRules, bucket: int) -> float:
        """Where in the week the middle of a bucket is, in parts."""
        return (bucket % (DAYS * rules.buckets) + 0.5) * PARTS / rules.buckets

    def put(self, seen: float, over: float, week_seen: float = 0.0, week_over: float = 0.0) -> None:
        """Adds a bucket to the slot at hand."""
        self.buckets += 1
        self.seen += seen
        self.over += over
        self.week_seen += week_seen
        self.week_over += week_over

    def is_over(self, rules: SeriesRules, bucket: int) -> bool:
        """Whether a bucket is behind the slot at hand."""
        return self.slot is not None and rules.slot(bucket) != self.slot

    def roll_up(self, rules: SeriesRules, bucket: int) -> None:
        """Closes the slot at hand, and goes on to the one of a bucket."""
        if self.slot is not None and self.buckets:
            self.day.add(self.slot, rules.slots, self.seen, self.over, DAY_KEEPS)
            if rules.weekly:
                part = self.slot * PARTS // rules.slots
                self.week.add(part, DAYS * PARTS, self.week_seen, self.week_over, 0.5 ** (PARTS / (WEEK_HALVES * rules.slots)))
        self.slot, self.buckets = rules.slot(bucket), 0
        self.seen = self.over = self.week_seen = self.week_over = 0.0
