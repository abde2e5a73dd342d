"""Writes of a session that came before their predecessors: they enter the inbox in the order of their numbers.

Rules
1. A write whose number is next goes on, and with it those that waited for it. One that was there before goes on too: its turn knows its reply.
2. What waits is bounded, in writes and in bytes; one more is refused with a hint (`Busy`).
3. A write whose caller has gone waits no longer. If it is sent again, the newer call counts, and the older one is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.errors import Busy
from millstream.service.completion_window import CompletionWindow
from millstream.service.dedup_sessions import AHEAD, DedupSessions
from millstream.service.dispatch import PendingCall

_EARLY = 4096  # writes of all sessions
_ROOM = 32 << 20  # bytes of them


class ReorderBuffer:
    """The early writes of one partition. put: takes a write into the inbox."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._windows: dict[bytes, CompletionWindow[PendingCall]] = {}
        self._room = _ROOM
        self.count = 0

    def __contains__(self, session: bytes) -> bool:
        return session in self._windows

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, call: PendingCall, sessions: DedupSessions) -> None:
        """Rules 1 and 2. Raises what the caller is told instead."""
        session, seq = call.request.session, call.request.seq
        window = self._windows.get(session)
        if window is None:
            last = sessions.last(session)
            if not last:
                sessions.check_new(session)
            if seq <= last + 1:
                self._put(call)
                if seq == last + 1:
                    self._windows[session] = CompletionWindow(seq + 1, AHEAD)
                return
            window = CompletionWindow(last + 1, AHEAD)
        if seq < window.next:
            self._put(call)
        elif seq == window.next:
            self._put(call)
            for later in window.arrive(seq, call)[1:]:
                self._release(later)
                self._put(later, force=True)
        else:
            if not window.has_room(seq) or self.count >= _EARLY or self._room < call.request.size:
                raise Busy(f"write {seq} of this session is too far ahead of write {window.next}, which has not come yet", 0.1)
            self._windows[session] = window
            self._wait(window, call, sessions)

    def _wait(self, window: CompletionWindow[PendingCall], call: PendingCall, sessions: DedupSessions) -> None:
        session, seq = call.request.session, call.request.seq
        older = window.withdraw(seq)
        if older is not None:
            self._release(older)
            if not older.future.done():
                older.future.set_exception(Busy(f"write {seq} of this session was sent again while it waited for its predecessor", 0.02))
        self.count += 1
        self._room -= call.request.size
        window.arrive(seq, call)

        def forget(future: asyncio.Future[object]) -> None:
            """Rule 3."""
            if future.cancelled() and window.holds(seq, call):
                window.withdraw(seq)
                self._release(call)
                if not len(window) and window.next <= sessions.last(session) + 1:
                    self._windows.pop(session, None)

        call.future.add_done_callback(forget)

    def _release(self, call: PendingCall) -> None:
        self.count -= 1
        self._room += call.request.size

    def after_turn(self, session: bytes, last: int) -> None:
        """A turn has done a session's writes up to a number; 0: its first was refused, or it was forgotten."""
        window = self._windows.get(session)
        if window is not None and not len(window) and (window.next <= last + 1 or not last):
            del self._windows[session]

    def take_all(self) -> list[PendingCall]:
        """All that wait, which are taken out."""
        calls = [call for window in self._windows.values() for call in window.waiting()]
        self._windows.clear()
        self.count, self._room = 0, _ROOM
        return calls
