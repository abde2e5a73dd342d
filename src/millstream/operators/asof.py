"""AsOfJoin: each left record with the newest right one that is not after it, by event time.

Rules
1. The partner of a left record at t is the right record of its key with the greatest (timestamp, id) whose timestamp is at most t, and at least t - back
   where that is given.
2. It is told when the low watermark has passed t, with the timestamp t. So right records that arrive later and are older count: the result is what was true
   at that time, not what had arrived by then.
3. Without a partner it gives a row with None ("left") or none at all ("inner").
4. A record of either side is late if it is older than the low watermark before the epoch. It is counted, goes where `late=` says, and plays no part.
5. Of the right side is kept what may still be needed: what is newer than the low watermark, and the newest of the rest (the current one), which goes `back`
   later. Without `back` it stays: one record per key.
"""

from __future__ import annotations

from millstream.core.record import Record
from millstream.errors import DefinitionError
from millstream.operators.buffer import Buffered, Buffering, Kept, decode_one, encode_kept
from millstream.operators.interval_join import INNER, LEFT

_LEFT, _RIGHT = 0, 1


class RightsBuffered(Buffered):
    """What waits, and the newest right record that the low watermark has passed."""

    current: bytes = b""


class AsOfJoin(Buffering):
    """Two inputs on one key, whose rows are {"left": value, "right": value}. back: in milliseconds, None for any time."""

    State = RightsBuffered

    def __init__(self, left_stream: str, back: int | None = None, how: str = LEFT) -> None:
        if how not in (LEFT, INNER):
            raise DefinitionError(f"an as-of join with how={how!r}: use {LEFT!r} or {INNER!r}")
        if back is not None and back < 0:
            raise DefinitionError(f"an as-of join with back={back}: it cannot be negative")
        self.left_stream = left_stream
        self.back = back
        self.how = how

    def process_record(self, record: Record) -> None:
        if record.timestamp < self.late_before:
            self.late(record)
            return
        side = _LEFT if record.stream == self.left_stream else _RIGHT
        self.keep(record, side)
        if side == _LEFT or self.wakes is None:
            self.wake_at(record.timestamp + 1)

    def look(self, time: int) -> None:
        state = self.state
        current = decode_one(state.current) if state.current else None
        rights = iter(self.buffer.take(_RIGHT, time))
        after = next(rights, None)
        for left in self.buffer.take(_LEFT, time):
            while after is not None and after.timestamp <= left.timestamp:
                current, after = after, next(rights, None)
            self._tell(left, current)
        while after is not None:
            current, after = after, next(rights, None)
        if current is not None and self.back is not None and current.timestamp + self.back < time:
            current = None
        state.current = b"" if current is None else encode_kept(Kept(current.timestamp, current.id, current.body))

    def _tell(self, left: Kept, right: Kept | None) -> None:
        if right is not None and self.back is not None and right.timestamp < left.timestamp - self.back:
            right = None
        if right is not None or self.how == LEFT:
            self.tell({"left": self.value_of(left), "right": None if right is None else self.value_of(right)}, left.timestamp)

    def next_look(self) -> int | None:
        lefts, rights = self.buffer.oldest(_LEFT), self.buffer.oldest(_RIGHT)
        looks = [lefts[0].timestamp + 1] if lefts else []
        if rights:
            looks.append(rights[-1].timestamp + 1)
        elif self.state.current and self.back is not None:
            looks.append(decode_one(self.state.current).timestamp + self.back + 1)
        return min(looks, default=None)
