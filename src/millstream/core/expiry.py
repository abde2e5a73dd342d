"""Expiry: rows that nothing has come to for a time go away.

Rules
1. A row says when its newest record was: its timestamp or, by the wall clock, the time of the epoch that brought it. It is rounded up to an eighth of the time
   that rows are kept, so that most visits leave it as it is. A row expires that much later: never too early, and at most an eighth too late.
2. By event time it expires before a record at that time or later, and when the low watermark is there. So it does not matter whether time or the record
   comes first. By the wall clock it expires when an epoch's clock is there, before that epoch's records.
3. What expires is all of it: state, entries, timers, holds. `process_expiry` is called before; what it leaves in the state goes as well. It is
   tallied ("expired").
4. The row has one timer for it, under a tag of its own. It is not moved when records come: when it fires, the row has expired or the timer is set anew. It
   keeps no row alive that has nothing else.
5. When event time ends nothing expires: the end is no silence.
6. A row of an older program has no such time: it begins with its next visit. A timer of a program that has lost `expire=` does nothing.
7. A late record does not make a row newer.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.core.keyspace import Row
from millstream.core.record import Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK, duration
from millstream.core.visit import NO_TAG
from millstream.errors import DefinitionError

if TYPE_CHECKING:
    from millstream.core.step import Step

EXPIRE = "~expire"  # the tag of its timers
EXPIRED = "expired"  # the tally

Entries = list[tuple[int, str]]


class Expiry:
    """What a step does about it, for the key at hand."""

    newest: int | None  # of the row, rounded
    timer: int | None  # the one that the row has

    def __init__(self, step: Step, after: int, kind: str) -> None:
        self.step = step
        self.after = after
        self.part = max(1, after // 8)
        self.by_clock = kind == WALL_CLOCK
        self.has_ended = step.times.low_watermark == END

    def begin(self, row: Row | None) -> None:
        """Begins a visit, whose state is at hand."""
        self.newest = None if row is None else row.newest
        if self.by_clock and not self.has_ended and self.newest is not None and self.step.times.now >= self.newest + self.after:
            self._expire(Timer(self.newest + self.after, EXPIRE, WALL_CLOCK))

    def guarded(self, process: Callable[[Record], Any]) -> Callable[[Record], Any]:
        """`process_record`, before which the row may expire."""
        by_clock, now, visit = self.by_clock, self.step.times.now, self.step.visit
        until = BEGINNING if by_clock or self.has_ended else visit.low_watermark

        def process_guarded(record: Record) -> Any:
            time = now if by_clock else record.timestamp
            if self.newest is not None and time >= self.newest + self.after:
                self._expire(Timer(self.newest + self.after, EXPIRE, LOW_WATERMARK))
                visit.cause = record
            if (self.newest is None or time > self.newest) and record.timestamp >= self.step.times.late_before:
                self.newest = self._rounded(time)
                if self.newest + self.after <= until:
                    visit.set_timer(
                        EXPIRE, self.newest + self.after, LOW_WATERMARK, None
                    )  # time has gone on already: it goes in this visit
            return process(record)

        return process_guarded

    def fire(self, timer: Timer) -> None:
        """The row's timer has had its turn."""
        if self.has_ended or self.newest is None or timer.kind != LOW_WATERMARK:
            return
        if timer.time >= self.newest + self.after:
            self._expire(timer)
        elif self.newest + self.after < END:
            self.step.visit.set_timer(EXPIRE, self.newest + self.after, LOW_WATERMARK, None)  # it may be due in this very visit

    def lift(self) -> None:
        """Takes the timer out of the others before the row is written, or not."""
        visit = self.step.visit
        mine = {entry for entry in (visit.wall if self.by_clock else visit.low) if entry[1] == EXPIRE}
        self.timer = min(mine)[0] if mine else None
        visit.low = {entry for entry in visit.low if entry[1] != EXPIRE}
        visit.wall = {entry for entry in visit.wall if entry[1] != EXPIRE}

    def keep(self, low: Entries, wall: Entries) -> int | None:
        """What a row that is kept says of its newest record. Its timer joins the others."""
        times = self.step.times
        since = times.now if self.by_clock else times.low_watermark
        if self.newest is None and BEGINNING < since < END:
            self.newest = self._rounded(since)
        if self.newest is not None:
            timer = self.timer
            if not self.has_ended:  # one in the past would hold time back until it has had its turn; one too late is of a longer `expire=`
                timer = min(END if timer is None else timer, max(self.newest + self.after, since + 1))
            if timer is not None and timer < END:
                insort(wall if self.by_clock else low, (timer, EXPIRE))
        return self.newest

    def _rounded(self, time: int) -> int:
        return min(-(-time // self.part) * self.part, END)

    def _expire(self, timer: Timer) -> None:
        step, visit, c = self.step, self.step.visit, self.step.computation
        visit.cause = timer
        low = visit.low_watermark
        visit.wall_time = low if BEGINNING < low < END else timer.time
        step.call(lambda _: c.process_expiry(), timer)
        visit.tally(EXPIRED)
        for gone in (visit.low, visit.wall, visit.due, visit.holds):
            gone.clear()  # type: ignore[attr-defined]
        visit.next_due, visit.last_tag = END, NO_TAG
        c.state = step.kind.fresh()
        step.saved = None
        self.newest = None


def expiry(computation: str, given: Any) -> tuple[int, str] | None:
    """How long rows are kept, and by which time, as `expire=` says it."""
    if given is None:
        return None
    after, kind = given if isinstance(given, tuple) and len(given) == 2 else (given, LOW_WATERMARK)
    if kind not in (LOW_WATERMARK, WALL_CLOCK) or duration(after) <= 0:
        raise DefinitionError(f"computation {computation!r}: expire={given!r}: give a time such as '30d', or ('30d', ms.WALL_CLOCK)")
    return duration(after), kind
