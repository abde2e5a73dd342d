"""One accepted connection of a server: a blocking socket, the thread that reads it, and others that may end it.

Rules
1. Only the connection's own thread reads, writes and closes the socket. Others may `cut` it: then the thread says the last words, and closes.
2. What is read is worked off before more is read. When the work is slow the peer's TCP window closes, and nothing piles up.
3. Whoever does not read what is sent to it is given up after `patience` seconds.
4. The first last words that are said, by whoever, are heard. To close with unread input makes TCP throw them away, so what is still coming is read
   and dropped, for a short time.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time

from millstream.connector.wire.codec import encode
from millstream.connector.wire.messages import Frame
from millstream.network import keep_alive

SMALL = 4 << 10
LARGE = 256 << 10
_LINGER = 0.5
_LINGER_STRANGER = 0.05
_LINGER_BYTES = 8 << 20


class Connection:
    def __init__(self, sock: socket.socket, patience: float, peer: str = "") -> None:
        self._socket, self._patience, self.peer = sock, patience, peer
        self._buffer = memoryview(bytearray(SMALL))
        self._linger_for = _LINGER_STRANGER
        self._lock = threading.Lock()
        self._closed = self.is_cut = False
        self.last_words: Frame | None = None

    def open(self, context: ssl.SSLContext | None, deadline: float) -> None:
        keep_alive(self._socket)
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        if context is not None:
            wrapped = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            with self._lock:
                self._socket = wrapped
            wrapped.do_handshake()

    def enlarge(self) -> None:
        """The peer is known: from now on it may be silent, and speak at length."""
        self._buffer = memoryview(bytearray(LARGE))
        self._socket.settimeout(self._patience)
        self._linger_for = _LINGER

    def read(self, deadline: float | None = None) -> memoryview | None:
        """What has come, to be used until the next call; None when the connection is over or cut."""
        while not self.is_cut:
            if deadline is not None:
                self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                size = self._socket.recv_into(self._buffer)
            except TimeoutError:
                if deadline is not None:
                    raise
                continue
            return self._buffer[:size] if size and not self.is_cut else None
        return None

    def send(self, data: bytes | bytearray) -> None:
        if data:
            self._socket.sendall(data)

    def part(self, last_words: Frame | None) -> None:
        """From any thread: what the peer is told when the connection is closed, unless it is to be told something else already."""
        with self._lock:
            if self.last_words is None:
                self.last_words = last_words

    def cut(self, last_words: Frame | None, *, at_once: bool = False) -> None:
        """From any thread: nothing more is read. With `at_once` nothing more is sent either."""
        self.part(last_words)
        with self._lock:
            self.is_cut = True
            if not self._closed:
                try:
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR if at_once else socket.SHUT_RD)
                except OSError:
                    pass

    def close(self) -> None:
        try:
            if self.last_words is not None:
                self._socket.settimeout(_LINGER)
                self._socket.sendall(encode(self.last_words))
                if not self.is_cut:
                    self._linger()
        except (OSError, ValueError):
            pass
        with self._lock:
            self._closed = True
            self._socket.close()

    def _linger(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        until, dropped = time.monotonic() + self._linger_for, 0
        while dropped < _LINGER_BYTES and (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            if not (size := self._socket.recv_into(self._buffer)):
                break
            dropped += size
