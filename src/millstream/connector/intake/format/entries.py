"""What the intake keeps, as values: entries, and how far each stream is at some place of the log.

Rules
1. An entry is a message, a declared watermark, or the end of a stream. They lie in the log in the order in which they came.
2. A mark sums up the entries of a stream up to some place. Marks of later places are taken in one after the other; a watermark never goes back.
3. An entry is a plain tuple. A server makes and stores hundreds of thousands of them in a second, and a named one takes four times as long to make.
   Who reads one takes it apart by names: `stream, kind, id, time, key, payload = entry`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

MESSAGE, WATERMARK, END = 0, 1, 2  # kinds of entries

#: What is stored: stream, kind, id, event time, key, payload.
IntakeEntry = tuple[str, int, int, int, bytes, bytes]


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far a stream is at some place of the log: last id, declared watermark, and whether its end was the last thing said. None: nothing yet."""

    name: str
    last: int | None = None
    watermark: int | None = None
    ended: bool = False

    def then(self, later: Mark) -> Mark:
        """This, and what came after it."""
        watermark = max((mark.watermark for mark in (self, later) if mark.watermark is not None), default=None)
        return Mark(self.name, self.last if later.last is None else later.last, watermark, later.ended)


def advance(marks: dict[str, Mark], later: Iterable[Mark]) -> None:
    """Takes later marks in."""
    for mark in later:
        known = marks.get(mark.name)
        marks[mark.name] = mark if known is None else known.then(mark)
