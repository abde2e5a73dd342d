"""The last epochs, for people who look: bounded by time as well as by count, so that neither fast epochs nor slow ones leave nothing to see."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

LEAST = 256  # epochs that are kept, however old they are
MOST = 10_000  # epochs that are kept, however young
SPEED = 10_000  # milliseconds over which speeds are told
WINDOW = 60_000  # milliseconds: what is younger is kept
BETWEEN_TASKS = "orders and receipts"  # the phase that tasks which tell their own phases leave over


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


class Metrics:
    """Keeps the last epochs, and the phases of the one under way."""

    def __init__(self) -> None:
        self._kept: deque[EpochStats] = deque(maxlen=MOST)
        self._phases: dict[str, float] = {}  # milliseconds

    def note(self, phase: str, since: float) -> float:
        """Adds what has passed since a moment; the moment now."""
        now = time.perf_counter()
        self.add_phase(phase, (now - since) * 1000)
        return now

    def add_phase(self, phase: str, millis: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + millis

    def end_of_tasks(self, since: float) -> float:
        """The tasks of the epoch under way, which began at a moment, have ended; the moment now. Phases of their own stand in the place of one for all."""
        return time.perf_counter() if BETWEEN_TASKS in self._phases else self.note("tasks", since)

    def add(self, one: EpochStats) -> None:
        """Adds the newest epoch with the phases that were noted, and lets go of what is too old."""
        one.phases, self._phases = self._phases, {}
        self._kept.append(one)
        while len(self._kept) > LEAST and self._kept[0].at < one.at - WINDOW:
            self._kept.popleft()

    def __iter__(self) -> Iterator[EpochStats]:
        return iter(list(self._kept))  # a reader in another thread sees a moment

    def per_second(self, now: int) -> float:
        """How many epochs a second there were in the last `SPEED` milliseconds, idle ones of the clock included."""
        kept = list(self._kept)
        recent = sum(one.at > now - SPEED for one in kept)
        since = max(1_000, min(SPEED, now - kept[0].at)) if kept else SPEED
        return recent * 1000 / since

    def phases(self) -> dict[str, float]:
        """Where the milliseconds of an epoch with tasks went in the last `SPEED` milliseconds, on average."""
        kept = list(self._kept)
        found = [one.phases for one in kept if one.job and one.at >= kept[-1].at - SPEED]
        names = dict.fromkeys(name for phases in found for name in phases)
        return {name: round(sum(phases.get(name, 0.0) for phases in found) / len(found), 2) for name in names}

    def recent(self, count: int) -> list[EpochStats]:
        return list(islice(reversed(self._kept), count))[::-1]
