"""How rare is a value, by what its own series has shown so far?

Rules
1. What was seen is counted in bins that are half an octave wide, so the answer fits a series of any shape: regular spikes, few different values, heavy tails.
   No distribution is assumed where something was seen.
2. Rarity is the logarithm (of ten) of the number of buckets among which there is one as large. Above all that was ever seen it grows as a power of the
   value, and the power is that of the largest twentieth of what was seen (Hill's estimate), with a prior of `POWER`.
3. Nothing is rare among fewer than `FEWEST` values.
4. Counts are halved when there are `MOST` values: what was long ago counts less, and the size stays.
"""

from __future__ import annotations

from math import log, log10

import msgspec

BINS = 24
LOWEST = -6  # the bin of 1/8
FEWEST = 50
MOST = 8_192
POWER = 1.5
STEEPEST = 8.0

_WIDTH = log(2) / 2
_TOP = BINS - 1e-9


class Tail(msgspec.Struct):
    """What was seen on one side. Nothing larger than 0 has a bin of its own below the lowest one."""

    total: int = 0
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * BINS)

    def rarity(self, value: float) -> float:
        """How rare a value is; 0 for what is below the lowest bin."""
        place = _place(value)
        if place <= 0 or self.total < FEWEST:
            return 0.0
        at, counts = int(place), self.counts
        above = sum(counts[at + 1 :]) + counts[at] * (at + 1 - place)
        found = log10((self.total + 1) / (above + 0.5))
        if above == 0:
            top = BINS - 1
            while top >= 0 and not counts[top]:
                top -= 1
            if place > top + 1:
                found += self._power(top) * (place - top - 1) * _WIDTH / log(10)
        return found

    def learn(self, value: float) -> None:
        """Counts a value."""
        self.total += 1
        place = _place(value)
        if place >= 0:
            self.counts[int(place)] += 1
        if self.total >= MOST:
            self.total //= 2
            self.counts = [(count + 1) // 2 for count in self.counts]

    def _power(self, top: int) -> float:
        wanted, found, excess, at = max(10.0, self.total / 20), 0, 0.0, top
        while at >= 0 and found < wanted:
            found += self.counts[at]
            at -= 1
        for bin in range(at + 1, top + 1):
            excess += self.counts[bin] * (bin - at - 0.5) * _WIDTH
        return min(STEEPEST, (found + 2) / (excess + 2 / POWER))


class Sides(msgspec.Struct):
    """Values with a sign: both sides apart, so that dips are rare in a series of spikes."""

    up: Tail = msgspec.field(default_factory=Tail)
    down: Tail = msgspec.field(default_factory=Tail)

    def weigh(self, value: float) -> float:
        """How rare a value is; then it is counted."""
        found = self.up.rarity(value) if value > 0 else self.down.rarity(-value)
        self.up.learn(value)
        self.down.learn(-value)
        return found


def _place(value: float) -> float:
    """In bins from the lowest one; what is beyond the last one is in it."""
    return min(log(value) / _WIDTH - LOWEST, _TOP) if value > 0 else -1.0
