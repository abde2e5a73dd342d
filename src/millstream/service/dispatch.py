"""The dispatcher: in which order requests get their turn, and how many may wait.

Rules
1. The inbox is bounded, in requests and in bytes. One more is refused with a hint (`Busy`); nothing that was taken in is ever dropped.
2. `linear`: one queue. A read sees every write that came before it, from any client.
3. `split`: two queues. A read overtakes the writes of others, never one of its own session. It still sees every write that was answered before it was
   asked: that is what linearizable means, and both keep it.
4. A turn takes requests of up to `budget` bytes, and at least one.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any, Protocol

import msgspec

from millstream.errors import Busy
from millstream.service.messages import Request


class PendingCall(msgspec.Struct):
    """A request, and the future that its caller waits for."""

    request: Request
    future: Any  # asyncio.Future[Answer]


class Dispatcher(Protocol):
    """The inbox of one partition; your own may have another order."""

    #: Whether a read waits for all writes that came before it (rule 2), or only for its own session's.
    orders_reads: bool

    def put(self, call: PendingCall, force: bool = False) -> None:
        """Takes a call in; Busy if there are too many. force: it has waited for its predecessor already, and must be taken."""

    def take(self, budget: int) -> list[PendingCall]:
        """The calls of the next turn, in order. Empty: there is nothing."""

    def __len__(self) -> int: ...


class DispatchKind(msgspec.Struct, frozen=True):
    """A dispatcher as a table asks for it (`dispatch=`)."""

    is_split: bool
    requests: int = 4096
    room: int = 32 << 20  # bytes

    def make(self) -> Dispatcher:
        return PartitionInbox(self.requests, self.room, orders_reads=not self.is_split)

    def describe(self) -> str:
        return "split" if self.is_split else "linear"


linear = partial(DispatchKind, False)  # one queue: reads and writes in the order in which they came
split = partial(DispatchKind, True)  # two queues: reads do not wait for the writes of others


class PartitionInbox:
    """One queue (rule 2), or a queue for reads beside that for writes (rule 3)."""

    def __init__(self, requests: int, room: int, orders_reads: bool) -> None:
        self.orders_reads = orders_reads
        self._reads: deque[PendingCall] = deque()  # that overtake writes
        self._queue: deque[PendingCall] = deque()
        self._writing: Counter[bytes] = Counter()  # sessions with writes that wait, if reads may overtake others
        self._requests, self._room = requests, room

    def put(self, call: PendingCall, force: bool = False) -> None:
        request = call.request
        if not force and (len(self) >= self._requests or self._room < request.size):
            raise Busy(f"{len(self)} requests wait for this partition already", 0.02)
        self._room -= request.size
        if self.orders_reads:
            self._queue.append(call)
        elif request.writes:
            self._queue.append(call)
            self._writing[request.session] += 1
        elif request.session and request.session in self._writing:
            self._queue.append(call)
        else:
            self._reads.append(call)

    def take(self, budget: int) -> list[PendingCall]:
        taken = _take(self._reads, budget) if self._reads else []
        left = budget - sum([call.request.size for call in taken])
        if self._queue and left > 0:
            later = _take(self._queue, left)
            for call in later if self._writing else ():
                if call.request.writes:
                    session = call.request.session
                    self._writing[session] -= 1
                    if not self._writing[session]:
                        del self._writing[session]
            taken += later
        self._room += sum([call.request.size for call in taken])
        return taken

    def __len__(self) -> int:
        return len(self._reads) + len(self._queue)


def _take(queue: deque[PendingCall], budget: int) -> list[PendingCall]:
    taken: list[PendingCall] = []
    while queue:
        size = queue[0].request.size
        if taken and size > budget:
            break
        budget -= size
        taken.append(queue.popleft())
    return taken
