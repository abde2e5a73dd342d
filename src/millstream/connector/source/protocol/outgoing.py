"""A stream as its pusher keeps it: what waits to be sent, what to be acknowledged, and what is left to do after each reconnect. No sockets, no clock.

Rules
1. Messages wait in two queues: `unsent`, and behind their sending `unacknowledged`. Ids increase in both, and over both.
2. What is acknowledged is forgotten, wherever it waits. When the connection is lost, everything else is unsent again, in its order.
3. A declared watermark waits behind the messages before it. Once sent it is forgotten, and after a lost connection the latest is sent again, behind
   everything that waits: it is a promise about what comes later.
4. The end is sent when nothing else waits, and again after a lost connection. Only a stream that has nothing left to be acknowledged is left alone:
   it may be somebody else's by now.
5. Methods that queue or drop bytes return how many: what a client keeps is bounded over all of its streams.
"""

from __future__ import annotations

from collections import deque

import msgspec

from millstream.connector.source.protocol.session import WATERMARK_KEY
from millstream.connector.wire.codec import message_head


class Queued(msgspec.Struct, frozen=True, gc=False):
    """A frame that waits. That of a watermark has the id of the message before it, and is no message."""

    id: int
    frame: bytes
    is_message: bool = True


class Outgoing:
    """One stream. Invariant: acknowledged is None or acknowledged <= last, -1 being before everything."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.is_known = False  # whether a server has accepted it, now or earlier
        self.has_ended = False  # whether the program has said that nothing more comes
        self.is_told = False  # whether EOS is sent: nothing is left to say on this connection
        self.unsent: deque[Queued] = deque()
        self.unacknowledged: deque[Queued] = deque()
        self.last = -1  # the last id queued, or known to be committed
        self.acknowledged: int | None = None
        self.declared: int | None = None
        self.refused_since: float | None = None  # None unless somebody else pushes it
        self.ask_at = 0.0

    @property
    def waiting(self) -> int:
        return sum(one.is_message for one in self.unsent) + sum(one.is_message for one in self.unacknowledged)

    # ---- what the program asks for

    @property
    def waits(self) -> bool:
        """Whether anything is left that has to be sent or acknowledged."""
        return bool(self.unacknowledged) or (self.has_ended and not self.is_told) or any(item.is_message for item in self.unsent)

    def push(self, id: int, frame: bytes) -> int:
        self.last = id
        self.unsent.append(Queued(id, frame))
        return len(frame)

    def declare(self, watermark: int) -> int:
        if self.declared is not None and watermark <= self.declared:
            return 0
        self.declared = watermark
        return self._mark(watermark)

    def _mark(self, watermark: int) -> int:
        frame = message_head(self.number, max(self.last, 0), 0, watermark, WATERMARK_KEY)
        self.unsent.append(Queued(self.last, frame, is_message=False))
        return len(frame)

    # ---- what the server says, and what becomes of the connection

    def accepted(self, point: int | None) -> int:
        self.is_known, self.refused_since = True, None
        return 0 if point is None else self.acknowledge(point)

    def refused(self, now: float, again: float) -> float:
        """Somebody else pushes it. It may be asked for again in a while; returns for how long it has been refused, over lost connections."""
        self.refused_since = now if self.refused_since is None else self.refused_since
        self.ask_at = now + again
        return now - self.refused_since

    def acknowledge(self, point: int) -> int:
        self.acknowledged = point if self.acknowledged is None else max(point, self.acknowledged)
        self.last = max(self.last, self.acknowledged)
        forgotten, marks = 0, []
        for queue in (self.unacknowledged, self.unsent):
            while queue and queue[0].id <= self.acknowledged:
                item = queue.popleft()
                if item.is_message:
                    forgotten += len(item.frame)
                else:
                    marks.append(item)  # still to be sent
        self.unsent.extendleft(reversed(marks))
        return forgotten

    def lost(self) -> int:
        if self.is_told and not self.unacknowledged:
            return 0
        self.is_told, self.ask_at = False, 0.0
        self.unsent.extendleft(reversed(self.unacknowledged))
        self.unacknowledged.clear()
        is_last = bool(self.unsent) and not self.unsent[-1].is_message
        return 0 if self.declared is None or is_last else self._mark(self.declared)

    # ---- what is sent

    def take(self, parts: list[bytes], most: int, size: int) -> tuple[int, int, int | None, int]:
        """Puts what can be sent behind `parts`: at most so many frames, and not many more bytes. Returns how many frames, their bytes, the last message's id,
        and how many bytes need not be kept any more."""
        unsent, keep, add = self.unsent, self.unacknowledged.append, parts.append
        count = bytes_taken = forgotten = 0
        last: int | None = None
        while unsent and count < most and bytes_taken < size:
            item = unsent.popleft()
            frame = item.frame
            add(frame)
            bytes_taken += len(frame)
            count += 1
            if item.is_message:
                last = item.id
                keep(item)
            else:
                forgotten += len(frame)
        return count, bytes_taken, last, forgotten

    @property
    def is_ready_to_end(self) -> bool:
        return self.has_ended and not self.is_told and not self.unsent
