"""Writes of a session that came before their predecessors: they enter the inbox in the order of their numbers.

Rules
1. A write whose number is next goes on, and with it those that waited for it. One that was there before goes on too: its turn knows its reply.
2. What waits is bounded, in writes and in bytes; one more is refused with a hint (`Busy`).
3. A write whose caller has gone waits no longer. If it is sent again, the newer call counts, and the older one is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from millstream.errors import Busy
from millstream.service.dedup_sessions import AHEAD, DedupSessions
from millstream.service.dispatch import PendingCall

_EARLY = 4096  # writes of all sessions
_ROOM = 32 << 20  # bytes of them


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
        """Rules 1 and 2. Raises what the caller is told instead."""
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

        def forget(future: asyncio.Future[object]) -> None:
            """Rule 3."""
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
