"""Writes that came before their elders: a session's writes go into the inbox in the order of their numbers.

Rules
1. A write whose number is next goes on, and with it those that waited for it. One that was there before goes on too: its turn knows its answer.
2. What waits is bounded, in writes and in bytes; one more is refused with a hint (`Busy`).
3. A write that nobody waits for any more waits no longer. If its sender sends it again, the younger one counts, and the older is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.errors import Busy
from millstream.service.completion_window import CompletionWindow
from millstream.service.dedup_sessions import AHEAD, DedupSessions
from millstream.service.messages import Request

_EARLY = 4096  # writes of all sessions
_ROOM = 32 << 20  # bytes of them


class ReorderBuffer:
    """Those of one partition. put: takes a write into the inbox."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._windows: dict[bytes, CompletionWindow[Request]] = {}
        self._room = _ROOM
        self.count = 0

    def __contains__(self, session: bytes) -> bool:
        return session in self._windows

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, request: Request, sessions: DedupSessions) -> None:
        """Rule 1, and rule 2. Raises what is to be answered instead."""
        session, seq = request.session, request.seq
        window = self._windows.get(session)
        if window is None:
            last = sessions.last(session)
            if not last:
                sessions.check_new(session)
            if seq <= last + 1:
                self._put(request)
                if seq == last + 1:
                    self._windows[session] = CompletionWindow(seq + 1, AHEAD)
                return
            window = CompletionWindow(last + 1, AHEAD)
        if seq < window.next:
            self._put(request)
        elif seq == window.next:
            self._put(request)
            for later in window.arrive(seq, request)[1:]:
                self._is_gone(later)
                self._put(later, force=True)
        else:
            if not window.has_room(seq) or self.count >= _EARLY or self._room < request.size:
                raise Busy(f"write {seq} of this session is too far ahead of write {window.next}, which has not come yet", 0.1)
            self._windows[session] = window
            self._wait(window, request, sessions)

    def _wait(self, window: CompletionWindow[Request], request: Request, sessions: DedupSessions) -> None:
        older = window.withdraw(request.seq)
        if older is not None:
            self._is_gone(older)
            if not older.future.done():
                older.future.set_exception(Busy(f"write {request.seq} of this session was sent again while it waited for its elder", 0.02))
        self.count += 1
        self._room -= request.size
        window.arrive(request.seq, request)

        def unwanted(future: asyncio.Future[object]) -> None:
            """Rule 3."""
            if future.cancelled() and window.holds(request.seq, request):
                window.withdraw(request.seq)
                self._is_gone(request)
                if not len(window) and window.next <= sessions.last(request.session) + 1:
                    self._windows.pop(request.session, None)

        request.future.add_done_callback(unwanted)

    def _is_gone(self, request: Request) -> None:
        self.count -= 1
        self._room += request.size

    def turned(self, session: bytes, last: int) -> None:
        """A turn has done a session's writes up to a number; 0: its first was refused, or it was forgotten."""
        window = self._windows.get(session)
        if window is not None and not len(window) and (window.next <= last + 1 or not last):
            del self._windows[session]

    def end(self) -> list[Request]:
        """All that wait, which wait here no longer."""
        found = [request for window in self._windows.values() for request in window.waiting()]
        self._windows.clear()
        self.count, self._room = 0, _ROOM
        return found
