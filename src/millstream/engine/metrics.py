"""The last epochs, for people who look: bounded by time as well as by count, so that neither fast epochs nor slow ones leave nothing to see.

Rules
1. The phases of an epoch have the same names in both modes: `PHASES`. What Spark does with rows (reading, keying, the shuffle) cannot be told apart in
   micro-batches, and is the exchange; what it costs to reach resident tasks is the dispatch. The wait is for tasks that are not there yet.
2. Phases of tasks are those of the slowest of a level, so all phases add up to what an epoch takes. Several sinks are told apart in `sinks`, too.
3. Nothing here is per record or per key. A shard in which nothing happened costs a look at its receipt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

import msgspec

from millstream.engine.receipts import Receipt
from millstream.state.heartbeat import ShardLoad

LEAST = 256  # epochs that are kept, however old they are
MOST = 10_000  # epochs that are kept, however young
SPEED = 10_000  # milliseconds over which speeds are told
WINDOW = 60_000  # milliseconds: what is younger is kept
PHASES = ("plan", "wait", "read", "exchange", "step", "stage", "dispatch", "check", "commit", "publish", "upkeep")
MOST_SHARDS = 512  # that are told of


class EpochStats(msgspec.Struct):
    """What one epoch was like. stored: the adaptive edges that stored in it, with the reason. at: the wall clock when it was committed. phases: where the
    milliseconds went; sinks: those of publishing, by sink. tries: how often it was begun again. written: bytes of its deltas and stored productions."""

    epoch: int
    records: int
    millis: float
    job: bool
    stored: dict[str, str] = {}
    at: int = 0
    phases: dict[str, float] = {}
    sinks: dict[str, float] = {}
    tries: int = 0
    written: int = 0


class _Base(NamedTuple):
    """What loads and works were at a moment."""

    at: float
    loads: dict[int, tuple[float, int]]
    works: dict[str, float]


class Metrics:
    """Keeps the last epochs, and the phases of the one under way."""

    def __init__(self) -> None:
        self._kept: deque[EpochStats] = deque(maxlen=MOST)
        self._phases: dict[str, float] = {}  # milliseconds
        self._spent: dict[str, float] = {}  # of all epochs before
        self._tries = 0
        self.retries = 0
        self._loads: dict[int, tuple[float, int]] = {}  # by shard, the milliseconds of its steps, and records, since the run began
        self._works: dict[str, float] = {}  # by computation, likewise
        self._bases: list[_Base] = [_Base(time.monotonic(), {}, {})]  # what was known some seconds ago, and before that

    def go_on(self, spent: Mapping[str, float]) -> None:
        """What the runs before this one have spent, by phase."""
        self._spent = dict(spent)

    def note(self, phase: str, since: float) -> float:
        """Adds what has passed since a moment; the moment now."""
        now = time.perf_counter()
        self.add_phase(phase, (now - since) * 1000)
        return now

    def add_phase(self, phase: str, millis: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + millis

    def begin_again(self) -> None:
        """The epoch under way is begun again."""
        self._tries += 1
        self.retries += 1

    def end_of_tasks(self, since: float, receipts: Sequence[Receipt]) -> float:
        """The tasks of the epoch under way, which began at a moment, have ended; the moment now. Where they did not tell their phases, their receipts do."""
        now = time.perf_counter()
        if "dispatch" not in self._phases:
            slowest: dict[int, tuple[float, float]] = {}  # by level
            for one in receipts:
                step, staging = sum(work.millis for work in one.work.values()), one.staging
                if step + staging > sum(slowest.get(one.level, (0.0, 0.0))):
                    slowest[one.level] = (step, staging)
            told = {"step": sum(step for step, _ in slowest.values()), "stage": sum(staging for _, staging in slowest.values())}
            for phase, millis in {"exchange": max(0.0, (now - since) * 1000 - sum(told.values())), **told}.items():
                self.add_phase(phase, millis)
        return now

    def note_work(self, receipts: Iterable[Receipt]) -> None:
        """What the shards of the epoch under way did."""
        loads, works = self._loads, self._works
        for receipt in receipts:
            for name, work in receipt.work.items():
                if work.millis:
                    millis, records = loads.get(receipt.shard, (0.0, 0))
                    loads[receipt.shard] = (millis + work.millis, records + work.counts.records)
                    works[name] = works.get(name, 0.0) + work.millis

    @property
    def spent(self) -> dict[str, float]:
        """By phase, the milliseconds of all epochs, up to what was noted last."""
        names = {**self._spent, **self._phases}
        return {name: round(self._spent.get(name, 0.0) + self._phases.get(name, 0.0), 3) for name in names}

    def loads(self) -> tuple[list[ShardLoad], int, dict[str, float]]:
        """The shards with the most to do in the last seconds (by number), how many had anything, and what each computation took."""
        loads, works = self._loads.copy(), self._works.copy()
        _, before, works_before = self._bases[0]
        if time.monotonic() - self._bases[-1].at > SPEED / 2000:
            self._bases = [*self._bases, _Base(time.monotonic(), loads, works)][-2:]
        found = []
        for shard, (millis, records) in loads.items():
            known = before.get(shard, (0.0, 0))
            if millis > known[0]:
                found.append(ShardLoad(shard, round(millis - known[0], 3), records - known[1]))
        most = nlargest(MOST_SHARDS, found, key=lambda one: one.millis)
        recent = {name: round(millis - works_before.get(name, 0.0), 3) for name, millis in works.items()}
        return sorted(most, key=lambda one: one.shard), len(found), recent

    def add(self, one: EpochStats) -> None:
        """Adds the newest epoch with the phases that were noted, and lets go of what is too old."""
        self._spent = self.spent
        one.phases, self._phases = self._phases, {}
        one.tries, self._tries = self._tries, 0
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

    def records_per_second(self, now: int) -> float:
        """How many records a second there were in the last `SPEED` milliseconds, pauses included."""
        kept = list(self._kept)
        since = max(1_000, min(SPEED, now - kept[0].at + int(kept[0].millis))) if kept else SPEED
        return sum(one.records for one in reversed(kept) if one.at > now - SPEED) * 1000 / since

    def phases(self) -> dict[str, float]:
        """Where the milliseconds of an epoch with tasks went in the last `SPEED` milliseconds, on average."""
        kept = list(self._kept)
        found = [one.phases for one in kept if one.job and one.at >= kept[-1].at - SPEED]
        names = dict.fromkeys(name for phases in found for name in phases)
        return {name: round(sum(phases.get(name, 0.0) for phases in found) / len(found), 2) for name in names}

    def recent(self, count: int) -> list[EpochStats]:
        return list(islice(reversed(self._kept), count))[::-1]
