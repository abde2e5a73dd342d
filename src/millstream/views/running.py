"""The total of every group of a stream, always up to date: a view whose documents are records, which only come and never change.

Rules
1. Every record adds what its values give, once, however late it is. Nothing of single records is kept.
2. With `expire=` a group goes that nothing has come to for a time. What it showed goes to null; a record that comes behind that begins it anew. One change is
   told per group and epoch, also where both happen in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.core.links import Link, linked
from millstream.core.record import Record, with_value
from millstream.reducers.base import Reducer
from millstream.views.aggregate import Aggregate
from millstream.views.operator import Sending


class RunningTotal(Aggregate):
    def __init__(self, sending: Sending, reducer: Reducer, links: Mapping[str, Sequence[Link]]) -> None:
        """links: by stream, what is done to its records before."""
        super().__init__(sending, reducer, origins=False)
        self.inverts = True  # the total stands in the row: nothing is ever taken out of it
        self.chains = {stream: linked(some, with_value) for stream, some in links.items()}
        self.expired: list[Any] | None = None  # what the row at hand showed before it expired

    def process_record(self, record: Record) -> None:
        chain = self.chains.get(record.stream)
        for one in chain(record) if chain is not None else (record,):
            order = [record.timestamp, record.id] if self.reducer.wants_order else []
            self._add(self.state, [[None, [self.reducer.lift_at(one.value, order)]]])

    def process_expiry(self) -> None:
        if self.expired is None:  # it may expire twice in a visit
            self.expired = self.state.shown
        self.tally("contributions", -self.state.count)

    def finish_key(self) -> None:
        row = self.state
        prev, self.expired = row.shown if self.expired is None else self.expired, None
        row.shown = self.shown_of(row)
        self.say(prev, row.shown, False)
