"""One accepted connection: bytes in with a bound, bytes out with a bound.

Rules
1. At most two buffers are held: one that the reader works on and one that fills meanwhile. When that is full, nothing more is read from the
   socket: the peer's TCP window closes, and a slow disk slows down its own worker and nobody else.
2. Before the greeting the buffers are small, so a crowd that never greets costs little.
3. What is sent is small, and whoever does not read it is not read from either (`drain`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SMALL = 4 << 10
LARGE = 512 << 10
_LEAST = 2 << 10


class Wire(asyncio.BufferedProtocol):
    """The server's end of a connection."""

    def __init__(self, made: Callable[[Wire], None]) -> None:
        self._made = made
        self._size = SMALL
        self._filling = bytearray(SMALL)
        self._spare = bytearray()
        self._filled = 0
        self._paused = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = False

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=64 << 10)
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._filling)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._readable.set()
        if self._filled + _LEAST > len(self._filling) and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.closed = True
        self._readable.set()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # ---- called by the server

    @property
    def peer(self) -> str:
        return str(self.transport.get_extra_info("peername"))

    def enlarge(self) -> None:
        """The peer has greeted: from the next buffer on, large ones."""
        self._size = LARGE

    async def read(self) -> memoryview | None:
        """What has come, to be used until the next call; None when nothing more will."""
        while not self._filled:
            if self.closed:
                return None
            self._readable.clear()
            await self._readable.wait()
        full, size = self._filling, self._filled
        if len(self._spare) != self._size:
            self._spare = bytearray(self._size)
        self._filling, self._spare, self._filled = self._spare, full, 0
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()
        return memoryview(full)[:size]

    def write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def close(self, last: bytes = b"") -> None:
        """Ends the connection; what has not been read is dropped. The last words are sent if that does not take waiting."""
        self.write(last)
        self._filled = 0
        self.closed = True
        self._readable.set()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
