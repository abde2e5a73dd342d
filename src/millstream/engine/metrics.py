"""The last epochs, for people who look: bounded by time as well as by count, so that neither fast epochs nor slow ones leave nothing to see."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

LEAST = 256  # epochs that are kept, however old they are
MOST = 10_000  # epochs that are kept, however young
SPEED = 10_000  # milliseconds over which speeds are told
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

    def _last_seconds(self) -> list[EpochStats]:
        """The epochs of the last `SPEED` milliseconds before the newest one, newest first; at least that one."""
        found: list[EpochStats] = []
        for one in reversed(list(self._kept)):
            if found and one.at < found[0].at - SPEED:
                break
            found.append(one)
        return found

    def per_second(self, now: int) -> float:
        """How many epochs a second there were in the last `SPEED` milliseconds, idle ones of the clock included."""
        kept = list(self._kept)
        recent = sum(one.at > now - SPEED for one in kept)
        since = max(1_000, min(SPEED, now - kept[0].at)) if kept else SPEED
        return recent * 1000 / since

    def phases(self) -> dict[str, float]:
        """Where the milliseconds of an epoch with tasks went lately, on average. A phase that is told in parts is left out."""
        found = [one for one in self._last_seconds() if one.job]
        total: dict[str, float] = {}
        for one in found:
            for name, millis in one.phases.items():
                total[name] = total.get(name, 0.0) + millis
        if "orders and receipts" in total:
            total.pop("tasks", None)
        return {name: round(millis / len(found), 2) for name, millis in total.items()}

    def recent(self, count: int) -> list[EpochStats]:
        """The newest, oldest first."""
        return list(islice(reversed(self._kept), count))[::-1]
