"""Records for computations that loop over them themselves (`process_records`).

Rules
1. Records are in the order, and are the cause of what is produced, as if each had a call of its own. A run of them ends where a timer is due: it fires
   between two calls, when what the hook has in hand is in the state again.
2. A hook that leaves records unread is an error: they would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.core.arrivals import Arrivals
from millstream.core.computation import RETURNED
from millstream.core.record import Record

if TYPE_CHECKING:
    from millstream.core.step import Step


def process_runs(step: Step, arrivals: Arrivals, at: int, stop: int) -> int:
    """Has the records of the key at hand processed, and the timers that are due in between. Where they end."""
    timestamps, index, batches, source = arrivals.timestamps, arrivals.index, arrivals.batches, arrivals.source
    c, visit, key = step.computation, step.visit, step.computation.key

    def run() -> Iterator[Record]:
        nonlocal at
        batch = batches[0]
        while at < stop and visit.next_due > timestamps[at]:
            if source is not None:
                batch = batches[source[at]]
            visit.cause = record = Record(key, timestamps[at], batch, index[at])
            at += 1
            yield record

    while at < stop:
        step.fire_until(timestamps[at])
        if c.process_records(run()) is not None:  # type: ignore[func-returns-value]
            raise TypeError(RETURNED)
        if at < stop and visit.next_due > timestamps[at]:
            raise ValueError("process_records has left records unread: they would be lost. Take all of them.")
    return at
