"""IntervalJoin: the records of two streams that are near each other in event time.

Rules
1. A pair is a left and a right record of one key with -before <= right - left <= after, both ends included.
2. A record is late if it is older than the low watermark before the epoch, less the lateness. It is counted, goes where `late=` says, and has no partner.
3. Every pair of two records that were not late comes exactly once, at the arrival of the second. Its timestamp is that of the newer one; where lateness
   has let in a record that is older than what was promised, the oldest that is still allowed.
4. With how="left" a left record that has had no partner gives one row with None when the low watermark has passed left + after + lateness: then none can
   come any more, so no such row is followed by a pair. Its timestamp is left + after + lateness. "right" does the same for right + before +
   lateness; "outer" for both. It needs no further record of that key, or of any, but time that goes on.
5. A record goes when no partner of it can come any more: by itself where a row may have to be told, else with its time bucket, a sixteenth of the interval.
   After the last one nothing is left of the key.
"""

from __future__ import annotations

from millstream.core.record import Record
from millstream.errors import DefinitionError
from millstream.operators.buffer import Buffering, Kept

INNER, LEFT, RIGHT, OUTER = "inner", "left", "right", "outer"
HOWS = (INNER, LEFT, RIGHT, OUTER)

_LEFT, _RIGHT = 0, 1


class IntervalJoin(Buffering):
    """Two inputs on one key, whose pairs come as {"left": value, "right": value}. Times are in milliseconds."""

    def __init__(self, left_stream: str, after: int, before: int = 0, how: str = INNER, lateness: int = 0) -> None:
        if how not in HOWS:
            raise DefinitionError(f"a join with how={how!r}: use one of {', '.join(HOWS)}")
        if min(after, before, lateness) < 0:
            raise DefinitionError(f"a join with after={after}, before={before}, lateness={lateness}: none of them can be negative")
        self.left_stream = left_stream
        self.lateness = lateness
        self.reach = (after, before)  # by side: how much newer a partner may be
        self.tells = (how in (LEFT, OUTER), how in (RIGHT, OUTER))  # by side: whether a record without partner gives a row
        self.width = max(1, (before + after) // 16)

    def process_record(self, record: Record) -> None:
        time = record.timestamp
        if time < self.late_before - self.lateness:
            self.late(record)
            return
        side = _LEFT if record.stream == self.left_stream else _RIGHT
        other = _RIGHT - side
        partners = self.buffer.find(other, time - self.reach[other], time + self.reach[side])
        for one in partners:
            self.tell(self.row(side, record.value, self.value_of(one)), max(time, one.timestamp))
        if partners and self.tells[other]:
            self.buffer.mark_paired(partners)
        self.keep(record, side, is_paired=bool(partners))
        self.wake_at(self.expiry(side, time, is_silent=bool(partners) or not self.tells[side]))

    def look(self, time: int) -> None:
        alone: list[Kept] = []
        for side in (_LEFT, _RIGHT):
            gone = self.buffer.take(side, time - self.reach[side] - self.lateness)
            alone += [one for one in gone if self.tells[side] and not one.is_paired]
        for one in sorted(alone, key=lambda one: (one.timestamp + self.reach[one.side], one.side, one.id)):
            self.tell(self.row(one.side, self.value_of(one), None), one.timestamp + self.reach[one.side] + self.lateness)

    def next_look(self) -> int | None:
        looks = []
        for side in (_LEFT, _RIGHT):
            some = self.buffer.oldest(side)
            if some:
                looks.append(self.expiry(side, some[0].timestamp, is_silent=True))
                alone = next((one for one in some if not one.is_paired), None) if self.tells[side] else None
                if alone is not None:
                    looks.append(self.expiry(side, alone.timestamp))
        return min(looks, default=None)

    def expiry(self, side: int, time: int, is_silent: bool = False) -> int:
        """When a record goes: as soon as no partner can come, or together with its bucket."""
        last = (time // self.width + 1) * self.width - 1 if is_silent else time
        return last + self.reach[side] + self.lateness + 1

    def row(self, side: int, own: object, others: object) -> dict[str, object]:
        return {"left": own, "right": others} if side == _LEFT else {"left": others, "right": own}
