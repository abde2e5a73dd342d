"""A computation that looks at a key when there may be something to do.

Rule: the one timer of a key is a look, not a fact. It is set for the earliest time at which there may be something to do, is not moved when that is no longer
so, and is looked at again when it fires.
"""

from __future__ import annotations

from millstream.core.computation import Computation
from millstream.core.record import Timer
from millstream.core.time import BEGINNING, END, WALL_CLOCK

WAKE = "wake"


class Waking(Computation):
    def wake_at(self, time: int) -> None:
        """Sets the timer, unless there is an earlier one."""
        time, wake = min(time, END - 1), self.wakes
        if wake is None or time < wake:
            if wake is not None:
                self.cancel_timer(WAKE, wake)
            self.set_timer(WAKE, time)

    @property
    def wakes(self) -> int | None:
        """When the timer is set for, if it is."""
        return next((time for time, tag in self._visit.low if tag == WAKE), None)

    @property
    def least(self) -> int:
        """The oldest timestamp that a production may have now: late for nobody."""
        cause = self.cause
        time = cause.timestamp if not isinstance(cause, Timer) else BEGINNING if cause.kind == WALL_CLOCK else cause.time - 1
        return max(self.output_watermark, time)
