"""The dispatcher: in which order requests get their turn, and how many may wait; and writes of a session that came before their predecessors.

Rules
1. The inbox is bounded, in requests and in bytes. One more is refused with a hint (`Busy`); nothing that was taken in is ever dropped.
2. `linear`: one queue. A read sees every write that came before it, from any client.
3. `split`: two queues. A read overtakes the writes of others, never one of its own session. It still sees every write that was answered before it was
   asked: that is what linearizable means, and both keep it.
4. A turn takes requests of up to `budget` bytes, and at least one.
5. The writes of a session enter the inbox in the order of their numbers. One whose number is next goes on, and with it those that waited for it. One that was
   there before goes on too: its turn knows its reply. What waits is bounded like the inbox. A write whose caller has gone waits no longer. If it is sent
   again, the newer call counts, and the older one is told so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from millstream.errors import Busy
from millstream.service.dedup_sessions import AHEAD, DedupSessions
from millstream.service.messages import Request

_EARLY = 4096  # writes of all sessions
_ROOM = 32 << 20  # bytes of them


class PendingCall(msgspec.Struct):
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


class EarlyWrites(msgspec.Struct):
    """Those of one session. next: the number that goes on next."""

    next: int
    waiting: dict[int, PendingCall] = {}


class ReorderBuffer:
    """The early writes of one partition. put: takes a write into the inbox."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._sessions: dict[bytes, EarlyWrites] = {}
        self._room = _ROOM
        self.count = 0

    def __contains__(self, session: bytes) -> bool:
        return session in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, call: PendingCall, sessions: DedupSessions) -> None:
        """Rule 5. Raises what the caller is told instead."""
        session, seq = call.request.session, call.request.seq
        early = self._sessions.get(session)
        if early is None:
            last = sessions.last(session)
            if not last:
                sessions.check_new(session)
            early = EarlyWrites(last + 1)
        if seq > early.next:
            if seq >= early.next + AHEAD or self.count >= _EARLY or self._room < call.request.size:
                raise Busy(f"write {seq} of this session is too far ahead of write {early.next}, which has not come yet", 0.1)
            self._sessions[session] = early
            self._wait(early, call, sessions)
            return
        self._put(call)
        if seq == early.next:
            self._sessions[session] = early
            early.next += 1
            while (later := early.waiting.pop(early.next, None)) is not None:
                early.next += 1
                self._release(later)
                self._put(later, force=True)

    def _wait(self, early: EarlyWrites, call: PendingCall, sessions: DedupSessions) -> None:
        session, seq = call.request.session, call.request.seq
        older = early.waiting.pop(seq, None)
        if older is not None:
            self._release(older)
            if not older.future.done():
                older.future.set_exception(Busy(f"write {seq} of this session was sent again while it waited for its predecessor", 0.02))
        self.count += 1
        self._room -= call.request.size
        early.waiting[seq] = call

        def forget(future: Any) -> None:
            if future.cancelled() and early.waiting.get(seq) is call:
                del early.waiting[seq]
                self._release(call)
                if not early.waiting and early.next <= sessions.last(session) + 1:
                    self._sessions.pop(session, None)

        call.future.add_done_callback(forget)

    def _release(self, call: PendingCall) -> None:
        self.count -= 1
        self._room += call.request.size

    def after_turn(self, session: bytes, last: int) -> None:
        """A turn has done a session's writes up to a number; 0: its first was refused, or it was forgotten."""
        early = self._sessions.get(session)
        if early is not None and not early.waiting and (early.next <= last + 1 or not last):
            del self._sessions[session]

    def take_all(self) -> list[PendingCall]:
        calls = [early.waiting[seq] for early in self._sessions.values() for seq in sorted(early.waiting)]
        self._sessions.clear()
        self.count, self._room = 0, _ROOM
        return calls
