"""InOrder: the records of a key in order of (timestamp, id), whatever their order of arrival.

Rules
1. A record is told when the low watermark has passed it: then nothing older comes any more. It keeps its timestamp, its id and its value.
2. A record is late if it is older than the low watermark before the epoch: what comes behind it may have been told. It is counted, goes where `late=` says,
   and is not told. So what is told of a key never goes back in time.
3. After the last one nothing is left of the key.
"""

from __future__ import annotations

from millstream.core.record import Record
from millstream.operators.buffer import Buffering


class InOrder(Buffering):
    def process_record(self, record: Record) -> None:
        if record.timestamp < self.late_before:
            self.late(record)
            return
        self.keep(record)
        self.wake_at(record.timestamp + 1)

    def look(self, time: int) -> None:
        for one in self.buffer.take(0, time):
            self.tell(self.value_of(one), one.timestamp, one.id)

    def next_look(self) -> int | None:
        some = self.buffer.oldest(0)
        return some[0].timestamp + 1 if some else None
