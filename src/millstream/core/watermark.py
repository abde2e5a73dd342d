"""Injector watermarks: how far event time is complete where records come in, and what users write for it (`ms.watermarks`).

Rules (MillWheel §4.5, §5.2)
1. A watermark is a promise about what is still to come: no record older than it. It never goes back, whatever a source says.
2. What the records of epoch N imply is used in epoch N+1: the tasks of N do not know each other's records, and finding out first would
   cost a pass over the input. A pipeline without input still has epochs, so what the last records imply is used without a further one.
   Beyond that time stands still while input does: a window that the last record has not closed waits, unless rule 7 is asked for.
3. A declared set of sub-sources waits for all of them: one that was never heard of holds the watermark. Records of one that was
   not declared are taken, and hold nothing back.
4. Partitions that the source knows (`partitions`) need no declaration: one that is read to its end holds nothing back. How far they are read was
   planned with the epoch.
5. An injector or sub-source that has been silent for `idle` holds nothing back until it speaks again. Then its old records are late.
6. A policy is a pure function of what was known and what an epoch's tasks saw, so that a replayed epoch gives the same watermark.
7. With `onward`, an injector (or sub-source) that has been silent for longer goes on with the wall clock: its watermark is where it stood when it was
   last heard, plus the silence beyond `onward`. (Where it stood, not what its newest record implies: one that says nothing new after a silence would
   else stop time for as long as that silence was.) That is a guess about records that never came: what comes later is late. Time in which
   no run was there to listen is no silence (`later`), nor is a backlog, which brings records in every epoch. One of which nothing was ever heard
   stays where it is: it has no time to go on from. It goes on in steps of a second: an epoch's watermark is used by the next
   epoch, so if it moved with every millisecond, each idle epoch would make another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from millstream.core.time import BEGINNING, END, Duration, duration
from millstream.errors import DefinitionError

__all__ = ["Policy", "bounded", "declared", "files", "partitions", "percentile", "sub_sources"]

_PER_OCTAVE = 4  # buckets of lag per doubling
_DECAY = 0.95  # per epoch with records
_ENOUGH = 200  # records, before an estimate counts
_STEP = 1000  # milliseconds


#: What a source declares: how far event time is; or, for `Partitions`, which of them are not read to their end.
Said = int | tuple[str, ...]


class SubProgress(msgspec.Struct):
    newest: int
    watermark: int  # when it last spoke
    heard: int  # the wall clock then
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
    behind: tuple[str, ...] = ()  # partitions that are not read to their end


class Seen(msgspec.Struct):
    """What the tasks of an epoch saw of an injector. Marks are the watermarks that the records themselves carry."""

    records: int = 0
    newest: int | None = None
    mark: int | None = None
    subs: dict[str, tuple[int, int | None]] = {}  # name: newest timestamp, mark
    lags: dict[int, int] = {}

    def add(self, other: Seen) -> None:
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
    """How an injector's watermark follows from its records."""

    idle: int | None = None  # silence after which it holds nothing back; None: never
    onward: int | None = None  # silence after which it goes on with the wall clock; None: never
    mark_column: str | None = None  # its values are watermarks
    sub_column: str | None = None  # it names the sub-source
    function: Callable[..., Any] | None = None  # called on the driver; tasks do not get it

    wants_lags: ClassVar[bool] = False  # how far behind the newest timestamp records come (Seen.lags)
    wants_parts: ClassVar[bool] = False  # all files or partitions of the source, and those that have been read, for `said`
    wants_files: ClassVar[bool] = False  # likewise, and they must be files

    @property
    def repeats_matter(self) -> bool:
        """Whether a record that comes again, and is dropped as a duplicate, may still move the watermark."""
        return True

    def said(self, parts: Mapping[str, int], read: set[str]) -> Said | None:
        """What the source itself declares (driver, once per epoch); None says nothing new. parts: files with their times of modification, or partitions."""
        return None

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        """The watermark that follows from what is known, and what holds it there."""
        raise NotImplementedError

    def going_on(self, value: int, holder: str, silence: int) -> tuple[int, str]:
        """Rule 7: a watermark and its holder, after a silence."""
        if self.onward is None or silence < self.onward or value == BEGINNING:
            return value, holder
        return value + (silence - self.onward) // _STEP * _STEP, f"the wall clock, after a silence of {silence} ms"

    def advance(self, before: Progress, seen: Seen, now: int, said: Said | None = None) -> Progress:
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
            said=before.said if isinstance(said, tuple) else _latest(before.said, said),
            behind=said if isinstance(said, tuple) else before.behind,
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
    """The source itself says how far it is: in a column of its records, or to a function on the driver."""

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        said = seen.mark if self.mark_column is not None else progress.said
        return (BEGINNING if said is None else said), "what its source declares"

    def said(self, parts: Mapping[str, int], read: set[str]) -> int | None:
        return None if self.function is None else self.function()

    def advance(self, before: Progress, seen: Seen, now: int, said: Said | None = None) -> Progress:
        # What the function said in this epoch may speak of records that Spark plans for the next one: it counts from then on.
        after = super().advance(before, seen, now, None)
        after.said = before.said if isinstance(said, tuple) else _latest(before.said, said)
        return after


class Percentile(Policy, frozen=True):
    """All but a share of the records come within a delay that is estimated from the recent past."""

    share: float
    first: int
    at_least: int
    at_most: int

    wants_lags: ClassVar[bool] = True

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

    def advance(self, before: Progress, seen: Seen, now: int, said: Said | None = None) -> Progress:
        lags = before.lags
        if seen.lags:
            lags = {bucket: count * _DECAY for bucket, count in lags.items() if count > 0.01}
            for bucket, more in seen.lags.items():
                lags[bucket] = lags.get(bucket, 0.0) + more
        return super().advance(msgspec.structs.replace(before, lags=lags), seen, now, said)


class SubSources(Policy, frozen=True):
    """The minimum over a declared set of sub-sources, named by a column."""

    names: tuple[str, ...]
    each: Bounded | Declared

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        _hear(self.each, progress, {name: one for name, one in seen.subs.items() if name in self.names}, now)
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


def _hear(each: Policy, progress: Progress, subs: Mapping[str, tuple[int, int | None]], now: int) -> None:
    for name, (newest, mark) in subs.items():
        old = progress.subs.get(name)
        latest = newest if old is None else max(newest, old.newest)
        said, _ = each.value(Progress(newest=latest), Seen(mark=mark), now)
        progress.subs[name] = SubProgress(latest, said if old is None else max(said, old.watermark, old.reached), now)


class Partitions(Policy, frozen=True):
    """The minimum over the partitions of the source that are not read to their end; where all are, the maximum."""

    each: Bounded | Declared

    wants_parts: ClassVar[bool] = True

    def said(self, parts: Mapping[str, int], read: set[str]) -> tuple[str, ...]:
        return tuple(sorted(parts.keys() - read))

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        _hear(self.each, progress, seen.subs, now)
        if not progress.behind:
            newest = max([sub.watermark for sub in progress.subs.values()], default=BEGINNING)
            return newest, "its newest record; all partitions are read to their end" if progress.subs else "no record yet"
        subs = progress.subs
        return min(
            (subs[name].watermark if name in subs else BEGINNING, f"partition {name!r}, which is not read to its end")
            for name in progress.behind
        )


class FileTimes(Policy, frozen=True):
    """The oldest file not yet read holds the watermark (MillWheel §4.5, its example of log files). function: the start of a file, from its path and time."""

    wants_parts: ClassVar[bool] = True
    wants_files: ClassVar[bool] = True

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        return (BEGINNING if progress.said is None else progress.said), "the oldest file not yet read"

    def said(self, parts: Mapping[str, int], read: set[str]) -> int | None:
        assert self.function is not None
        starts = {path: self.function(path, modified) for path, modified in parts.items()}
        unread = [start for path, start in starts.items() if path not in read]
        return min(unread) if unread else max(starts.values(), default=None)


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


# --- what users write, as `ms.watermarks`: each function checks what it is given and makes a policy


def bounded(delay: Duration, *, idle: Duration | None = None, onward: Duration | None = None) -> Bounded:
    """The watermark follows the newest timestamp at a fixed distance.

    idle: after this silence it holds nothing back while others go on. onward: after this silence it goes on with the wall clock, so that
    windows close although input has stopped. What comes after that is late: choose it longer than any pause of the source.

    >>> bounded("2s").value(Progress(newest=10_000), Seen(), 0)[0]
    8000
    >>> bounded("2s", onward="30s").going_on(8_000, "", silence=45_000)[0]
    23000
    """
    millis = duration(delay)
    if millis < 0:
        raise DefinitionError(f"bounded({delay!r}): the delay cannot be negative")
    return Bounded(delay=millis, idle=_silence("idle", idle), onward=_silence("onward", onward))


def declared(by: str | Callable[[], int | None], *, idle: Duration | None = None) -> Declared:
    """The source says how far it is: `by` names a column that carries watermarks (milliseconds), or is a callable on the driver.

    The callable is asked in every epoch, and what it says counts from the next epoch but one: by then everything that the source had
    delivered when it spoke has been read (unless the source is read in limited portions, such as `max_files_per_epoch`). None says nothing new."""
    if not isinstance(by, str) and not callable(by):
        raise DefinitionError(f"declared({by!r}): give a column's name, or a callable without arguments")
    silence = _silence("idle", idle)
    return Declared(mark_column=by, idle=silence) if isinstance(by, str) else Declared(function=by, idle=silence)


def percentile(
    share: float,
    *,
    first: Duration = "10s",
    at_least: Duration = 0,
    at_most: Duration = "1h",
    idle: Duration | None = None,
    onward: Duration | None = None,
) -> Percentile:
    """A share of the records (say 0.99) comes within a delay that is estimated from recent epochs. The rest is late.

    first: the delay until there is enough to estimate from. The estimate is rounded up by at most a fifth. idle, onward: as for `bounded`."""
    if not 0 < share < 1:
        raise DefinitionError(f"percentile({share}): give a share between 0 and 1, such as 0.99")
    first, at_least, at_most = duration(first), duration(at_least), duration(at_most)
    idle, onward = _silence("idle", idle), _silence("onward", onward)
    return Percentile(share=share, first=first, at_least=at_least, at_most=at_most, idle=idle, onward=onward)


def sub_sources(column: str, names: Any, each: Bounded | Declared) -> SubSources:
    """The minimum over a declared set of sub-sources, which a column names. One that is missing holds the watermark, unless `each` has an idle time."""
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise DefinitionError("sub_sources(column, names, each): names is a list of strings")
    if not isinstance(each, (Bounded, Declared)) or (isinstance(each, Declared) and each.mark_column is None):
        raise DefinitionError("sub_sources(column, names, each): each is bounded(...) or declared('column')")
    return SubSources(sub_column=column, mark_column=each.mark_column, names=tuple(names), each=each)


def partitions(each: Bounded | Declared) -> Partitions:
    """For sources with partitions, such as `ms.sources.kafka`: one watermark for each. A partition that is read to its end holds nothing back, so a
    silent one needs no time-out; one with a backlog does, until it is read.

    each: bounded(...) or declared('column') for the records of one partition; its idle= and onward= speak of the source as a whole.

    >>> partitions(bounded("10s")).said({"clicks-0": 0, "clicks-1": 0}, {"clicks-1"})
    ('clicks-0',)
    """
    if not isinstance(each, (Bounded, Declared)) or (isinstance(each, Declared) and each.mark_column is None):
        raise DefinitionError("partitions(each): each is bounded(...) or declared('column')")
    return Partitions(each=each, mark_column=each.mark_column, idle=each.idle, onward=each.onward)


def files(start: str | Callable[[str, int], int] | None = None) -> FileTimes:
    """For `ms.sources.files`: no record is older than the start of the oldest file that has not been read.

    start: a file's start, as a regular expression whose first group is milliseconds in its name, or a callable on (path, modification
    time in ms); by default the modification time. New files must not start before those that are there.

    >>> files(r"log-([0-9]+)").said({"log-100": 0, "log-200": 0}, {"log-100"})
    200
    """
    if start is None or callable(start):
        return FileTimes(function=start or (lambda path, modified: modified))
    pattern = re.compile(start)
    if pattern.groups < 1:
        raise DefinitionError(f"watermarks.files({start!r}): the expression needs a group that is the milliseconds")

    def found(path: str, modified: int) -> int:
        match = pattern.search(path)
        if match is None:
            raise DefinitionError(f"watermarks.files({start!r}): the name of {path} does not match")
        return int(match.group(1))

    return FileTimes(function=found)


def _silence(what: str, given: Duration | None) -> int | None:
    if given is None:
        return None
    millis = duration(given)
    if millis <= 0:
        raise DefinitionError(f"{what}={given!r}: give a time longer than nothing")
    return millis
