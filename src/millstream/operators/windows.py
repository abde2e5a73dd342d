"""Window kinds, `ms.windows`: which windows a time falls into. Pure arithmetic, for one time and for a column of them.

Words: a *window* is [start, end). A *pane* is the part of time that all windows share: a record touches one pane, whatever the slide, and a window is
the sum of its panes. Panes are named by their ends, because that is what they wait for.

Rules
1. Windows are aligned to 1970-01-01 UTC plus `offset`; those of the calendar to local midnight, Monday, the first of the month or of the year.
2. A calendar window ends where the next one begins. So a day of 23 or 25 hours is one window, and a day that a zone has left out is none. A midnight that
   a zone has left out is the first moment after the gap.
3. A window that would reach beyond the end of time ends there.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from functools import lru_cache
from math import gcd
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from millstream.core.time import BEGINNING, END, Duration, duration
from millstream.errors import DefinitionError

__all__ = ["calendar", "hopping", "same", "session", "tumbling"]

MOST_PANES = 1_000
_UNITS = ("day", "week", "month", "year")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLI = datetime.timedelta(milliseconds=1)
_QUARTER = 15 * 60_000


class Fixed(msgspec.Struct, frozen=True, tag=True):
    """Windows of one size, one every so often."""

    size: int
    every: int
    offset: int = 0

    @property
    def pane(self) -> int:
        return gcd(self.size, self.every)

    def pane_end(self, time: int) -> int:
        pane = self.pane
        return min(time - (time - self.offset) % pane + pane, END)

    def pane_ends(self, times: Any) -> Any:
        if len(times) and (int(times.max()) > END - 2 * self.size or int(times.min()) < BEGINNING + 2 * self.size):
            return np.array([self.pane_end(time) for time in times.tolist()], np.int64)
        pane = self.pane
        return times - (times - self.offset) % pane + pane

    def last_end(self, pane_end: int) -> int:
        """The end of the last window that has this pane."""
        start = pane_end - self.pane
        return min(start - (start - self.offset) % self.every + self.size, END)

    def last_ends(self, pane_ends: Any) -> Any:
        known, of = np.unique(pane_ends, return_inverse=True)
        return np.array([self.last_end(end) for end in known.tolist()], np.int64)[of]

    def next_end(self, pane_end: int, after: int) -> int:
        """The end of the first window that has this pane and ends later than a time; what `last_end` says, if there is none."""
        least = max(pane_end, after + 1)
        return min(least + (self.offset + self.size - least) % self.every, self.last_end(pane_end))

    def closing(self, pane_ends: Iterable[int], after: int, until: int) -> list[tuple[int, int]]:
        """The windows with after < end <= until that have any of some panes, in order of time."""
        ends = set()
        for pane_end in pane_ends:
            last = min(self.last_end(pane_end), until)
            end = self.next_end(pane_end, after)
            while after < end <= last:
                ends.add(end)
                if end == END:
                    break
                end = min(end + self.every, END)
        return [(self.start_of(end), end) for end in sorted(ends)]

    def start_of(self, end: int) -> int:
        return max(end - self.size, BEGINNING)

    def pane_start(self, end: int) -> int:
        """Where the pane with this end begins."""
        return max(end - 1 - (end - 1 - self.offset) % self.pane, BEGINNING)

    def describe(self) -> str:
        told = f"tumbling({_told(self.size)}" if self.size == self.every else f"hopping({_told(self.size)}, every={_told(self.every)}"
        return f"{told}{f', offset={_told(self.offset)}' if self.offset else ''})"


class Calendar(msgspec.Struct, frozen=True, tag=True):
    """Days, weeks, months or years of a time zone."""

    unit: str
    zone: str

    def pane_end(self, time: int) -> int:
        return _bounds(self.unit, self.zone, time)[1]

    def pane_ends(self, times: Any) -> Any:
        """Times of one quarter of an hour are nearly always of one day, so few are looked at."""
        quarters, where = np.unique(times // _QUARTER, return_inverse=True)
        ends = np.array([self.pane_end(quarter * _QUARTER) for quarter in quarters.tolist()], np.int64)
        found = ends[where]
        for at in np.flatnonzero(found < (times // _QUARTER + 1) * _QUARTER).tolist():  # a boundary within the quarter
            found[at] = self.pane_end(int(times[at]))
        return found

    def last_end(self, pane_end: int) -> int:
        return pane_end

    def last_ends(self, pane_ends: Any) -> Any:
        return pane_ends

    def next_end(self, pane_end: int, after: int) -> int:
        return pane_end

    def closing(self, pane_ends: Iterable[int], after: int, until: int) -> list[tuple[int, int]]:
        return [(self.start_of(end), end) for end in sorted(set(pane_ends)) if after < end <= until]

    def start_of(self, end: int) -> int:
        return _bounds(self.unit, self.zone, end - 1)[0]

    pane_start = start_of

    def describe(self) -> str:
        return f"calendar({self.unit!r}, zone={self.zone!r})"


class Same(msgspec.Struct, frozen=True, tag=True):
    """The window that a result came from: it stands in the value, as `start` and `end`."""

    def describe(self) -> str:
        return "same()"


class Session(msgspec.Struct, frozen=True, tag=True):
    """Records with less than a gap between them."""

    gap: int

    def describe(self) -> str:
        return f"session({_told(self.gap)})"


WindowKind = Fixed | Calendar | Same | Session


def tumbling(size: Duration, *, offset: Duration = 0) -> Fixed:
    """Windows one behind the other, such as every minute.

    >>> tumbling("1m").pane_end(61_000)
    120000
    """
    return hopping(size, every=size, offset=offset)


def hopping(size: Duration, *, every: Duration, offset: Duration = 0) -> Fixed:
    """Windows of a size, of which one begins every so often, such as the last ten minutes, every minute.

    >>> hopping("10s", every="2s").closing([2000], 4000, 8000)
    [(-4000, 6000), (-2000, 8000)]
    """
    long, step = duration(size), duration(every)
    if long <= 0 or step <= 0:
        raise DefinitionError(f"a window of {size!r} every {every!r}: give times longer than nothing, such as '1m'")
    if step > long:
        raise DefinitionError(
            f"hopping({size!r}, every={every!r}): records between two windows would be lost. Give an `every` that is not longer."
        )
    if long // gcd(long, step) > MOST_PANES:
        raise DefinitionError(
            f"hopping({size!r}, every={every!r}) has {long // gcd(long, step):,} panes, and {MOST_PANES:,} is the most. Give a longer `every`, or one "
            f"that divides the size."
        )
    return Fixed(long, step, duration(offset) % step)


def session(gap: Duration) -> Session:
    """The records of a key that follow each other with less than a gap between two. Its end is the last of them plus the gap."""
    millis = duration(gap)
    if millis <= 0:
        raise DefinitionError(f"session({gap!r}): give a time longer than nothing, such as '30m'")
    return Session(millis)


def calendar(unit: str, *, zone: str = "UTC") -> Calendar:
    """Local days, weeks (from Monday), months or years.

    >>> calendar("day", zone="Europe/Berlin").start_of(calendar("day", zone="Europe/Berlin").pane_end(0))
    -3600000
    """
    if unit not in _UNITS:
        raise DefinitionError(f"calendar({unit!r}): use {', '.join(map(repr, _UNITS))}; shorter ones are tumbling('1h') and the like")
    try:
        ZoneInfo(zone)
    except Exception as error:
        raise DefinitionError(f"calendar({unit!r}, zone={zone!r}): there is no such time zone: write it as 'Europe/Berlin'") from error
    return Calendar(unit, zone)


def same() -> Same:
    """The window that a result came from: a second window operator on results of a first one."""
    return Same()


def _told(millis: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if millis % length == 0:
            return repr(f"{millis // length}{unit}")
    return repr(f"{millis}ms")


def _bounds(unit: str, zone: str, time: int) -> tuple[int, int]:
    """The window of a time. Windows are looked up by the UTC quarter of an hour, and corrected where a boundary lies within it."""
    start, end = _around(unit, zone, time // _QUARTER)
    while time >= end:
        start, end = end, _following(unit, zone, end)
    return start, end


@lru_cache(maxsize=4096)
def _around(unit: str, zone: str, quarter: int) -> tuple[int, int]:
    """The window of the first moment of a quarter of an hour."""
    time = quarter * _QUARTER
    try:
        date = _first_day(unit, (_EPOCH + time * _MILLI).astimezone(ZoneInfo(zone)).date())
        start, end = _midnight(zone, date), _midnight(zone, _next_day(unit, date))
        while time >= end:  # a clock was put back over midnight
            date = _next_day(unit, date)
            start, end = end, _midnight(zone, _next_day(unit, date))
    except (OverflowError, ValueError):
        raise ValueError(f"the timestamp {time} is in no calendar: its year is not between 1 and 9999") from None
    return start, end


@lru_cache(maxsize=1024)
def _following(unit: str, zone: str, start: int) -> int:
    """Where the window that begins at a time ends."""
    date = _first_day(unit, (_EPOCH + start * _MILLI).astimezone(ZoneInfo(zone)).date())
    end = start
    while end <= start:
        date = _next_day(unit, date)
        end = _midnight(zone, date)
    return end


def _first_day(unit: str, date: datetime.date) -> datetime.date:
    if unit == "week":
        return date - datetime.timedelta(days=date.weekday())
    return date if unit == "day" else date.replace(day=1) if unit == "month" else date.replace(month=1, day=1)


def _next_day(unit: str, date: datetime.date) -> datetime.date:
    if unit == "year":
        return date.replace(year=date.year + 1)
    if unit == "month":
        return (date + datetime.timedelta(days=31)).replace(day=1)
    return date + datetime.timedelta(days=7 if unit == "week" else 1)


def _midnight(zone: str, date: datetime.date) -> int:
    """The first moment of a local day (rule 2)."""
    info = ZoneInfo(zone)
    local = datetime.datetime(date.year, date.month, date.day, tzinfo=info)
    early, late = ((local.replace(fold=fold) - _EPOCH) // _MILLI for fold in (1, 0))
    if early >= late:
        return late
    before = (_EPOCH + early * _MILLI).astimezone(info).utcoffset()
    while late - early > 1:  # the local time does not exist: where the gap begins
        middle = (early + late) // 2
        if (_EPOCH + middle * _MILLI).astimezone(info).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late
