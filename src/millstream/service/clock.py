"""The clock of a partition: milliseconds that never go back and never stand still.

Rule: the next time is the wall clock's, or the last time + 1 if that is later. The last time travels in the log, so the clock goes on from there after a
restart and on another node, whatever the wall clock says there.
"""

from __future__ import annotations


class PartitionClock:
    """Gives every write its time.

    >>> clock = PartitionClock(last=100)
    >>> clock.next(wall=90), clock.next(wall=90), clock.next(wall=200)
    (101, 102, 200)
    """

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self, wall: int) -> int:
        """The time of the next write."""
        last = self.last + 1
        self.last = wall if wall > last else last
        return self.last
