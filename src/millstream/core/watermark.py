"""Injector watermarks: how far event time is complete where records come in.

Rules (MillWheel §4.5, §5.2)
1. A watermark is a promise about what is still to come: no record older than it. It never goes back, whatever a source says.
2. What the records of epoch N imply is used in epoch N+1: the tasks of N do not know each other's records, and finding out first would
   cost a pass over the input. A pipeline without input still has epochs, so what the last records imply is used without a further one.
   Beyond that time stands still while input does: a window that the last record has not closed waits, unless rule 6 is asked for.
3. A declared set of sub-sources waits for all of them: one that was never heard of holds the watermark. Records of one that was
   not declared are taken, and hold nothing back.
4. An injector or sub-source that has been silent for `idle` holds nothing back until it speaks again. Then its old records are late.
5. A policy is a pure function of what was known and what an epoch's tasks saw, so that a replayed epoch gives the same watermark.
6. With `onward`, an injector (or sub-source) that has been silent for longer goes on with the wall clock: its watermark is where it stood when it was
   last heard, plus the silence beyond `onward`. (Where it stood, not what its newest record implies: one that says nothing new after a silence would
   else stop time for as long as that silence was.) That is a guess about records that never came: what comes later is late. Time in which
   no run was there to listen is no silence (`later`), nor is a backlog, which brings records in every epoch. One of which nothing was ever heard
   stays where it is: it has no time to go on from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from millstream.core.time import BEGINNING, END

_PER_OCTAVE = 4  # buckets of lag per doubling
_DECAY = 0.95  # per epoch with records
_ENOUGH = 200  # records, before an estimate counts


class SubProgress(msgspec.Struct):
    """One sub-source: its newest timestamp, its watermark, and the wall clock when it last spoke."""

    newest: int
    watermark: int  # when it last spoke
    heard: int
    reached: int = BEGINNING  # its watermark after the last epoch, if it has gone on since


class Progress(msgspec.Struct):
    """What is known of an injector after an epoch. `watermark` is for the next epoch, `used` was that of this one."""

    newest: int | None = None
    watermark: int = BEGINNING
    used: int = BEGINNING
    records: int = 0
    heard: int | None = None  # wall clock of the last records; before the first, of the first epoch
    idle: bool = False
    subs: dict[str, SubProgress] = {}
    lags: dict[int, float] = {}  # decayed counts of records per bucket of lag
    said: int | None = None  # what the source declared before this epoch, not yet to be relied on
    holder: str = ""  # what the watermark waits for
    since: int | None = None  # wall clock of the first epoch
    stood: int = BEGINNING  # the watermark when records last came


class Seen(msgspec.Struct):
    """What the tasks of an epoch saw of an injector. Marks are the watermarks that the records themselves carry."""

    records: int = 0
    newest: int | None = None
    mark: int | None = None
    subs: dict[str, tuple[int, int | None]] = {}  # name: newest timestamp, mark
    lags: dict[int, int] = {}

    def add(self, other: Seen) -> None:
        """Takes in what another task saw."""
        self.records += other.records
        self.newest = _latest(self.newest, other.newest)
        self.mark = _latest(self.mark, other.mark)
        for name, (newest, mark) in other.subs.items():
            mine = self.subs.get(name, (newest, mark))
            self.subs[name] = (max(mine[0], newest), _latest(mine[1], mark))
        for bucket, count in other.lags.items():
            self.lags[bucket] = self.lags.get(bucket, 0) + count


def _latest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How an injector's watermark follows from its records.

    idle: silence after which it holds nothing back (None: never). onward: silence after which it goes on with the wall clock (None: never).
    """

    idle: int | None = None
    onward: int | None = None

    @property
    def mark_column(self) -> str | None:
        """A column whose values are watermarks."""
        return None

    @property
    def sub_column(self) -> str | None:
        """A column that names the sub-source."""
        return None

    @property
    def wants_lags(self) -> bool:
        """Whether it wants to know how far behind the newest timestamp records come (Seen.lags)."""
        return False

    @property
    def wants_files(self) -> bool:
        """Whether it asks, on the driver, for a source's files."""
        return False

    @property
    def repeats_matter(self) -> bool:
        """Whether a record that comes again, and is dropped as a duplicate, may still move the watermark."""
        return True

    def said(self, files: Mapping[str, int], read: set[str]) -> int | None:
        """What the source itself declares (driver, once per epoch); None says nothing new. Where `wants_files`: all files of the source with their
        times of modification, and those that have been read."""
        return None

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        """The watermark that follows from what is known, and what holds it there."""
        raise NotImplementedError

    def for_tasks(self) -> Policy:
        """What tasks need of it; functions belong to the driver."""
        return self

    def going_on(self, value: int, holder: str, silence: int) -> tuple[int, str]:
        """Rule 6: a watermark and its holder, after a silence."""
        if self.onward is None or silence < self.onward or value == BEGINNING:
            return value, holder
        return value + silence - self.onward, f"the wall clock, after a silence of {silence} ms"

    def advance(self, before: Progress, seen: Seen, now: int, said: int | None = None) -> Progress:
        """What is known after an epoch at wall clock `now`."""
        heard = now if seen.records or before.heard is None else before.heard
        after = Progress(
            newest=_latest(before.newest, seen.newest),
            watermark=before.watermark,
            used=before.watermark,
            records=before.records + seen.records,
            heard=heard,
            idle=self.idle is not None and now - heard >= self.idle,
            subs=dict(before.subs),
            lags=before.lags,
            said=_latest(before.said, said),
            since=now if before.since is None else before.since,
            stood=before.watermark if seen.records else before.stood,
        )
        value, after.holder = self.value(after, seen, now)
        after.stood = max(after.stood, value)
        value, after.holder = self.going_on(after.stood, after.holder, now - heard)
        after.watermark = max(before.watermark, value)
        if after.idle:
            after.holder = "nothing: it is idle"
        return after


class Bounded(Policy, frozen=True):
    """Records come at most `delay` milliseconds of event time behind the newest one seen. is_given: whether somebody has said so."""

    delay: int
    is_given: bool = True

    @property
    def repeats_matter(self) -> bool:
        return self.idle is not None or self.onward is not None

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        if progress.newest is None:
            return BEGINNING, "no record yet"
        return max(progress.newest - self.delay, BEGINNING), f"its newest record, less {self.delay} ms"


class Declared(Policy, frozen=True):
    """The source itself says how far it is: in a column of its records, or to a callable on the driver."""

    column: str | None = None
    function: Callable[[], int | None] | None = None

    @property
    def mark_column(self) -> str | None:
        return self.column

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        said = seen.mark if self.column is not None else progress.said
        return (BEGINNING if said is None else said), "what its source declares"

    def said(self, files: Mapping[str, int], read: set[str]) -> int | None:
        return None if self.function is None else self.function()

    def for_tasks(self) -> Policy:
        return Declared(column=self.column)

    def advance(self, before: Progress, seen: Seen, now: int, said: int | None = None) -> Progress:
        # What the callable said in this epoch may speak of records that Spark plans for the next one: it counts from then on.
        after = super().advance(before, seen, now, None)
        after.said = _latest(before.said, said)
        return after


class Percentile(Policy, frozen=True):
    """All but a share of the records come within a delay that is estimated from the recent past."""

    share: float
    first: int
    at_least: int
    at_most: int

    @property
    def wants_lags(self) -> bool:
        return True

    def delay(self, lags: Mapping[int, float]) -> int:
        """The delay that covers the share of the records in a histogram of lags."""
        total = sum(lags.values())
        if total < _ENOUGH:
            return self.first
        wanted, gathered = self.share * total, 0.0
        for bucket in sorted(lags):
            gathered += lags[bucket]
            if gathered >= wanted:
                return min(max(bucket_end(bucket), self.at_least), self.at_most)
        return self.at_most

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        if progress.newest is None:
            return BEGINNING, "no record yet"
        delay = self.delay(progress.lags)
        return max(progress.newest - delay, BEGINNING), f"its newest record, less the estimated {delay} ms"

    def advance(self, before: Progress, seen: Seen, now: int, said: int | None = None) -> Progress:
        lags = before.lags
        if seen.lags:
            lags = {bucket: count * _DECAY for bucket, count in lags.items() if count > 0.01}
            for bucket, more in seen.lags.items():
                lags[bucket] = lags.get(bucket, 0.0) + more
        return super().advance(msgspec.structs.replace(before, lags=lags), seen, now, said)


class SubSources(Policy, frozen=True):
    """The minimum over a declared set of sub-sources, named by a column."""

    column: str
    names: tuple[str, ...]
    each: Bounded | Declared

    @property
    def sub_column(self) -> str | None:
        return self.column

    @property
    def mark_column(self) -> str | None:
        return self.each.mark_column

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        for name, (newest, mark) in seen.subs.items():
            if name not in self.names:
                continue
            old = progress.subs.get(name)
            latest = newest if old is None else max(newest, old.newest)
            said, _ = self.each.value(Progress(newest=latest), Seen(mark=mark), now)
            progress.subs[name] = SubProgress(latest, said if old is None else max(said, old.watermark, old.reached), now)
        since = now if progress.since is None else progress.since
        holding: list[tuple[int, str]] = []
        for name in self.names:
            sub = progress.subs.get(name)
            silent = now - (since if sub is None else sub.heard)
            if self.each.idle is not None and silent >= self.each.idle:
                continue
            if sub is None:
                holding.append((BEGINNING, f"sub-source {name!r}, of which nothing was heard"))
            else:
                value, why = self.each.going_on(sub.watermark, "", silent)
                progress.subs[name] = msgspec.structs.replace(sub, reached=value)
                holding.append((value, f"sub-source {name!r}" + (f": {why}" if why else "")))
        progress.idle = not holding
        if not holding:
            return max([sub.watermark for sub in progress.subs.values()], default=BEGINNING), "nothing: all sub-sources are idle"
        return min(holding)


class FileTimes(Policy, frozen=True):
    """The oldest file not yet read holds the watermark (MillWheel §4.5, its example of log files)."""

    start: Callable[[str, int], int]

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        return (BEGINNING if progress.said is None else progress.said), "the oldest file not yet read"

    @property
    def wants_files(self) -> bool:
        return True

    def said(self, files: Mapping[str, int], read: set[str]) -> int | None:
        return self.from_files(files, read)

    def for_tasks(self) -> Policy:
        return Bounded(delay=0)

    def from_files(self, files: Mapping[str, int], read: set[str]) -> int | None:
        """The watermark, given all files with their times of modification, and those that have been read."""
        starts = {path: self.start(path, modified) for path, modified in files.items()}
        unread = [start for path, start in starts.items() if path not in read]
        if unread:
            return min(unread)
        return max(starts.values(), default=None)


def lags_of(lags: Any) -> dict[int, int]:
    """How many of some lags in milliseconds (an array of ints) are in each bucket: 0 for none, then four per doubling.

    >>> lags_of(np.array([-5, 0, 1, 2, 3]))
    {0: 2, 1: 1, 5: 1, 7: 1}
    """
    behind = lags > 0
    numbers = np.zeros(len(lags), np.int64)
    numbers[behind] = 1 + np.floor(_PER_OCTAVE * np.log2(lags[behind])).astype(np.int64)
    counts = np.bincount(numbers)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}


def bucket_end(number: int) -> int:
    """The largest lag in a bucket."""
    return 0 if number == 0 else math.ceil(2 ** (number / _PER_OCTAVE))


def later(progress: Progress, millis: int) -> Progress:
    """Progress as if everything had been heard so much later: for the time in which no run was there to listen."""
    subs = {name: msgspec.structs.replace(sub, heard=sub.heard + millis) for name, sub in progress.subs.items()}
    heard, since = (None if time is None else time + millis for time in (progress.heard, progress.since))
    return msgspec.structs.replace(progress, heard=heard, since=since, subs=subs)


def effective(injectors: Mapping[str, Progress], drain: bool = False) -> dict[str, int]:
    """The watermarks that injectors contribute to the next epoch: an idle one follows the slowest that is not."""
    if drain:
        return dict.fromkeys(injectors, END)
    awake = [p.watermark for p in injectors.values() if not p.idle]
    floor = min(awake, default=BEGINNING)
    return {name: max(p.watermark, floor) if p.idle else p.watermark for name, p in injectors.items()}
