"""Bytes of a pushing client to messages: what `codec` does, with runs of MESSAGEs taken apart at once.

Rules
1. It gives the same messages as `codec.Decoder`, and fails on the same bytes: a test compares the two on whatever it can think of. All frames
   but MESSAGE are decoded there.
2. Consecutive MESSAGEs that are wholly there come as one list of tuples. That is four times as fast, which is what a server in
   Python needs when lines are short.
3. No more than `limit` bytes and one read are ever held. What is held of a frame is not touched again until the frame is whole: a peer that sends
   a large frame byte by byte costs no more than one that sends it at once.
"""

from __future__ import annotations

import struct

from millstream.connector import messages as m
from millstream.connector.codec import MESSAGE_HEAD, MESSAGE_OVERHEAD, decode
from millstream.connector.source_session import Pushed
from millstream.errors import RemoteProtocolError

_LENGTH = struct.Struct(">I")
_MESSAGE = struct.Struct(">IBQQqH")
_TAG = 5


class SourceDecoder:
    """Bytes in as they come; frames, and runs of MESSAGEs, out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = b""
        self._at = 0
        self._partial = bytearray()  # the beginning of a frame that needs `_needed` bytes; then the buffer is used up
        self._needed = 0
        self._error: RemoteProtocolError | None = None

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return len(self._buffer) - self._at + len(self._partial)

    def receive(self, data: bytes) -> None:
        """Takes what came from the peer."""
        if self._error is not None:
            return
        if not self._partial:
            self._buffer, self._at = self._buffer[self._at :] + data, 0  # as a rule the buffer is used up
            return
        self._partial += data
        if len(self._partial) >= self._needed:
            self._buffer, self._at = bytes(self._partial), 0
            self._partial = bytearray()

    def next(self) -> m.Frame | list[Pushed] | None:
        """The next frame, or run of MESSAGEs; None if more bytes are needed."""
        if self._error is not None:
            raise self._error
        try:
            return self._run() or self._frame()
        except RemoteProtocolError as error:
            self._error, self._buffer, self._at, self._partial = error, b"", 0, bytearray()
            raise

    def _run(self) -> list[Pushed]:
        buffer, at, limit = self._buffer, self._at, self.limit
        size, unpack, run = len(buffer), _MESSAGE.unpack_from, []
        while at + MESSAGE_HEAD <= size:
            length, tag, stream, id, event_time, key = unpack(buffer, at)
            end = at + 4 + length
            if tag != _TAG or end > size or length > limit or length < MESSAGE_OVERHEAD + key:
                break
            start = at + MESSAGE_HEAD
            run.append((stream, id, event_time, buffer[start : start + key], buffer[start + key : end]))
            at = end
        self._at = at
        return run

    def _frame(self) -> m.Frame | None:
        left = len(self._buffer) - self._at
        if left < 4:
            self._keep(4)
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if not 0 < length <= self.limit:
            raise RemoteProtocolError("a frame of length 0" if not length else f"a frame of {length} bytes; the limit is {self.limit}")
        if left < 4 + length:
            self._keep(4 + length)
            return None
        frame = self._buffer[self._at + 4 : self._at + 4 + length]
        self._at += 4 + length
        return decode(frame, two_phase=False)

    def _keep(self, needed: int) -> None:
        """Rule 3."""
        if self._at < len(self._buffer):
            self._partial += self._buffer[self._at :]
            self._needed = needed
        self._buffer, self._at = b"", 0
