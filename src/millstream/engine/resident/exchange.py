"""Rows from task to task: every task sends every other one frame per level, also an empty one, so that each knows when its input is complete.

Rules
1. What counts is decided by `core/membership.ExchangeBuffer`; here are the sockets.
2. A thread reads each connection, so that two tasks that send to each other never wait for each other. What is buffered is at most one epoch: nobody
   sends for the next one before this one is over.
3. Who cannot be reached is named, and so is a peer whose connection breaks while something of it is missing: the driver decides what becomes of it. Of one
   that is closed nothing is said: either its task has ended, which the driver sees itself, or it will send over another one.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from millstream.core.membership import Attempt, ExchangeBuffer, Member
from millstream.engine.resident import messages, wire
from millstream.errors import MillstreamError
from millstream.network import parse_address, written

_log = logging.getLogger("millstream.resident")


class PeerLost(Exception):
    """A task cannot reach another one."""

    def __init__(self, slots: Sequence[int], why: str) -> None:
        super().__init__(why)
        self.slots = list(slots)


class GivenUp(Exception):
    """The attempt at work is over before its end."""


class Exchange:
    """One task's end of the exchange."""

    def __init__(
        self, slot: int, slots: int, host: str, cookie: bytes, server: ssl.SSLContext | None, client: ssl.SSLContext | None, trusting: bool
    ) -> None:
        self._slot, self._cookie, self._server_tls, self._client_tls = slot, cookie, server, client
        self._buffer = ExchangeBuffer(slots, trusting)
        self._changed = threading.Condition()
        self._given_up = Attempt()
        self._sending: Attempt | None = None
        self._is_over = False
        self._members: dict[int, Member] = {}
        self._links: dict[int, tuple[Member, wire.TaskLink]] = {}
        self._incoming: list[wire.TaskLink] = []
        self._came_by: dict[int, wire.TaskLink] = {}  # by sender: the last connection over which a frame came
        self._cut: set[int] = set()  # senders whose last connection has broken
        self._listener = wire.listen(host)
        self.address = written(host, self._listener.getsockname()[1])
        wire.accept_all(self._listener, self._hear, "millstream-exchange")

    # --- what the driver says

    def generation(self, members: Sequence[Member]) -> None:
        """All slots are filled: who sits where."""
        self._members = {member.slot: member for member in members}
        for slot, (known, link) in list(self._links.items()):
            if self._members.get(slot) != known:
                link.close()
                del self._links[slot]
        with self._changed:
            self._cut.clear()

    def is_given_up(self, attempt: Attempt) -> bool:
        """Whether nobody waits for an answer to an attempt any more."""
        return self._given_up >= attempt

    def give_up(self, attempt: Attempt) -> None:
        """An attempt, and all before it, are over (from the thread that hears the driver)."""
        with self._changed:
            self._given_up = max(self._given_up, attempt)
            self._changed.notify_all()
            stuck = self._sending is not None and self._sending <= attempt
        if stuck:  # whoever it sends to may not read any more: what is under way is cut off, and made anew when it is needed
            for _, link in list(self._links.values()):
                link.close()

    def end(self) -> None:
        """The run is over (from any thread)."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        wire.stop(self._listener)
        for link in [*(link for _, link in list(self._links.values())), *list(self._incoming)]:
            link.close()

    # --- what the task does

    def begin(self, attempt: Attempt) -> None:
        with self._changed:
            self._buffer.begin(attempt)

    def send(self, attempt: Attempt, level: int, frames: dict[int, Any]) -> None:
        """Sends everybody else its frame of a level: bytes by slot; nothing is an empty frame."""
        self._sending = attempt
        others = sorted(self._members, key=lambda slot: (slot - self._slot) % len(self._members))[1:]
        try:
            for slot in others:
                member = self._members[slot]
                if slot not in self._links:
                    self._links[slot] = (member, wire.connect(*parse_address(member.address), self._cookie, self._client_tls))
                self._links[slot][1].send(messages.ROWS, [frames.get(slot, b"")], attempt, level, self._slot)
        except (OSError, MillstreamError) as error:
            self._links.pop(slot, None)
            if self._given_up >= attempt:
                raise GivenUp from error
            raise PeerLost([slot], str(error)) from error
        finally:
            self._sending = None

    def gather(self, attempt: Attempt, level: int) -> list[Any]:
        """The frames of a level, when all are there. Raises GivenUp or PeerLost."""
        with self._changed:
            self._buffer.put(self._slot, attempt, level, b"")  # its own frame goes nowhere: what it has for itself it keeps
            while not self._buffer.is_complete(level):
                if self._given_up >= attempt or self._is_over:
                    raise GivenUp
                cut = [slot for slot in self._buffer.missing(level) if slot in self._cut]
                if cut:
                    raise PeerLost(cut, "the connection has broken")
                self._changed.wait()
            return [data for data in self._buffer.take(level) if len(data)]

    # --- threads

    def _hear(self, sock: socket.socket) -> None:
        try:
            connection = wire.accept(sock, self._cookie, self._server_tls)
        except (OSError, MillstreamError):
            return  # whoever it was, it does not belong here
        self._incoming.append(connection)
        read_all(connection, lambda frame: self._got(connection, frame))
        self._incoming.remove(connection)
        with self._changed:
            if connection.is_broken:
                self._cut |= {sender for sender, last in self._came_by.items() if last is connection}
            self._changed.notify_all()

    def _got(self, connection: wire.TaskLink, frame: wire.ResidentFrame) -> None:
        if frame.kind == messages.ROWS:
            with self._changed:
                self._came_by[frame.sender] = connection
                self._cut.discard(frame.sender)
                if self._buffer.put(frame.sender, frame.attempt, frame.level, frame.body):
                    self._changed.notify_all()


def read_all(connection: wire.TaskLink, got: Callable[[wire.ResidentFrame], None]) -> None:
    try:
        while (frame := connection.receive()) is not None:
            got(frame)
    except Exception as error:  # it is no frame, or one that nobody understands: the connection is closed
        _log.info("a connection is closed: %s: %s", type(error).__name__, error)
    finally:
        connection.close()
