"""Deduplicate: the first record of a key within a time.

Rules
1. A record is repeated if one that was told is less than `within` away from it in event time, before or after: it is dropped and tallied ("repeated").
   Any other is told at once, with its timestamp and id. So two that are told of one key are never less than `within` apart.
2. First is what arrives first, and within an epoch what is older: which of two records is told depends on their arrival. Where that matters, put `InOrder`
   before it. (Waiting for the low watermark instead would make everybody pay for that.)
3. A record is late if it is older than the low watermark before the epoch: what it may repeat may be forgotten. It is counted, and goes where `late=` says.
4. A record that was told is remembered until the low watermark is `within` later: then nothing can repeat it that is not late. After the last one nothing
   is left of the key.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from millstream.core.computation import Computation
from millstream.core.record import Record, Timer
from millstream.core.time import END
from millstream.errors import DefinitionError

FORGET = "forget"


class Deduplicate(Computation):
    """Times are in milliseconds."""

    State = list  # the timestamps of what was told, in order
    judges_lateness = True

    def __init__(self, within: int) -> None:
        if within <= 0:
            raise DefinitionError(f"deduplicate with within={within}: it must be longer than nothing")
        self.within = within

    def process_record(self, record: Record) -> None:
        time, told = record.timestamp, self.state
        if time < self.late_before:
            self.late(record)
            return
        at = bisect_left(told, time)
        if any(abs(time - near) < self.within for near in told[max(0, at - 1) : at + 1]):
            self.tally("repeated")
            return
        insort(told, time)
        if at == 0:
            if len(told) > 1:
                self.cancel_timer(FORGET)
            self.wake(time)
        self.produce(record.value, timestamp=max(time, self.output_watermark), id=record)

    def process_timer(self, timer: Timer) -> None:
        del self.state[: bisect_left(self.state, timer.time - self.within + 1) if timer.time < END - 1 else None]
        if self.state:
            self.wake(self.state[0])

    def wake(self, oldest: int) -> None:
        self.set_timer(FORGET, min(oldest + self.within, END - 1))
