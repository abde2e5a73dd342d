"""The last epochs, for people who look: bounded by time as well as by count, so that neither fast epochs nor slow ones leave nothing to see."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

LEAST = 256  # epochs that are kept, however old they are
MOST = 10_000  # epochs that are kept, however young
WINDOW = 60_000  # milliseconds: what is younger is kept


class EpochStats(msgspec.Struct):
    """What one epoch was like. stored: the adaptive edges that stored in it, with the reason. at: the wall clock when it was committed. phases: where the
    milliseconds went."""

    epoch: int
    records: int
    millis: float
    job: bool
    stored: dict[str, str] = {}
    at: int = 0
    phases: dict[str, float] = {}


class History:
    """Keeps the last epochs."""

    def __init__(self) -> None:
        self._kept: deque[EpochStats] = deque(maxlen=MOST)

    def add(self, one: EpochStats) -> None:
        """Adds the newest, and lets go of what is too old."""
        self._kept.append(one)
        while len(self._kept) > LEAST and self._kept[0].at < one.at - WINDOW:
            self._kept.popleft()

    def __iter__(self) -> Iterator[EpochStats]:
        return iter(list(self._kept))  # a reader in another thread sees a moment

    def recent(self, count: int) -> list[EpochStats]:
        """The newest, oldest first."""
        return list(islice(reversed(self._kept), count))[::-1]
