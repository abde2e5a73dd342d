"""Writes that came before their elders: a session's writes go on in the order of their numbers, whatever the order of their coming.

Rules
1. A write that is too early waits until its elders are here. There is room for so many of one session, and for so many of all; one more is told to come back.
2. Nothing is kept for a session of which nothing waits and nothing is under way, nor for a write whose sender has gone. So sessions that nobody goes on
   with cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.errors import Busy
from millstream.service.messages import Request
from millstream.service.sessions import AHEAD
from millstream.service.window import Window

_MOST = 4096  # writes of all sessions


class Elders:
    """Who waits for whom. last: the last number of a session that had its turn. put: takes a request into the inbox; Busy if it is full."""

    def __init__(self, last: Callable[[bytes], int], put: Callable[..., None]) -> None:
        self._last, self._put = last, put
        self._windows: dict[bytes, Window[Request]] = {}
        self.waiting = 0

    def __contains__(self, session: bytes) -> bool:
        return session in self._windows

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, request: Request) -> None:
        """Into the inbox, with those that have waited for it; or rule 1."""
        session, seq = request.session, request.seq
        window = self._windows.get(session)
        if window is None:
            window = Window(self._last(session) + 1, AHEAD)
        if seq < window.next:
            self._put(request)
        elif seq == window.next:
            self._put(request)
            self._windows[session] = window
            for later in window.arrive(seq, request)[1:]:
                self.waiting -= 1
                self._put(later, force=True)
        else:
            if not window.has_room(seq) or self.waiting >= _MOST:
                raise Busy(f"write {seq} of this session is too far ahead of write {window.next}, which has not come yet", 0.1)
            if window.has(seq):
                raise Busy(f"write {seq} of this session is here already, and waits for write {window.next}", 0.02)
            self._windows[session] = window
            self.waiting += 1
            window.arrive(seq, request)
            request.future.add_done_callback(partial(self._withdraw, session, seq))

    def _withdraw(self, session: bytes, seq: int, future: asyncio.Future[Any]) -> None:
        window = self._windows.get(session)
        if future.cancelled() and window is not None and window.withdraw(seq):
            self.waiting -= 1
            self.settle(session)

    def settle(self, session: bytes) -> None:
        """Rule 2, after a turn."""
        window = self._windows.get(session)
        if window is not None and not len(window) and window.next <= self._last(session) + 1:
            del self._windows[session]

    def clear(self) -> list[Request]:
        """Nobody waits any more; who did."""
        found = [request for window in self._windows.values() for request in window.waiting()]
        self._windows.clear()
        self.waiting = 0
        return found
