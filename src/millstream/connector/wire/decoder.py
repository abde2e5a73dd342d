"""A stream of bytes to messages: where frames begin and end, and runs of MESSAGEs taken apart at once.

Rules
1. Whatever bytes a peer sends, decoding ends in messages or in one `RemoteProtocolError`; after that the decoder gives nothing but the same error.
2. A frame is no longer than `limit`, which is judged as soon as its four bytes of length are there: a peer cannot make us hold more than `limit`
   bytes and whatever one `receive` brought. A frame of length 0 is an error.
3. What is held of a frame is not touched again until it is whole: a large frame that comes byte by byte costs no more than one that comes at once.
4. MESSAGEs that are wholly there are taken apart together, in `_run` and `_joined`: four times as fast as one by one. All other frames, and a MESSAGE
   that is wrong, are decoded in `codec`.
5. `Decoder` gives messages. With `join`, consecutive MESSAGEs of that stream, each beginning where the one before it ended, are given as one: to a
   sink, ids are offsets, and keys and event times do not matter.
6. `RunDecoder`, for a source, gives runs of MESSAGEs as lists: the same messages as a `Decoder`, with errors on the same bytes.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import MESSAGE, MESSAGE_HEAD, MESSAGE_OVERHEAD, MESSAGE_TAG, decode
from millstream.errors import RemoteProtocolError

#: What a sink or a worker accepts unless told otherwise.
FRAME_LIMIT = 16 << 20

#: A MESSAGE of a run: stream, id, event time, key, payload. A plain tuple, because of rule 4.
Pushed = tuple[int, int, int, bytes, bytes]

_LENGTH = struct.Struct(">I")

T = TypeVar("T")


class _Frames(Generic[T]):
    def __init__(self, limit: int, *, two_phase: bool) -> None:
        self.limit = limit
        self._two_phase = two_phase
        self._buffer = b""
        self._at = 0  # 0 <= _at <= len(_buffer); what is before it has been given out
        self._partial = bytearray()  # the beginning of a frame that needs `_needed` bytes; then the buffer is used up
        self._needed = 0
        self._error: RemoteProtocolError | None = None

    @property
    def pending(self) -> int:
        return len(self._buffer) - self._at + len(self._partial)

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        if self._error is not None:
            return
        if self._partial:
            self._partial += data
            if len(self._partial) >= self._needed:
                self._buffer, self._at = bytes(self._partial), 0
                self._partial = bytearray()
            return
        left = self._buffer[self._at :]  # as a rule the buffer is used up
        self._buffer, self._at = left + data if left else bytes(data), 0

    def next(self) -> T | None:
        """The next of what is given; None if more bytes are needed for it. Rule 1."""
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except RemoteProtocolError as error:
            self._error, self._buffer, self._at, self._partial = error, b"", 0, bytearray()
            raise

    def _next(self) -> T | None:
        raise NotImplementedError

    def _run(self) -> list[Pushed]:
        buffer, at, limit = self._buffer, self._at, self.limit
        size, unpack = len(buffer), MESSAGE.unpack_from
        run: list[Pushed] = []
        while at + MESSAGE_HEAD <= size:
            length, tag, stream, id, event_time, key = unpack(buffer, at)
            end = at + 4 + length
            if tag != MESSAGE_TAG or end > size or length > limit or length < MESSAGE_OVERHEAD + key:
                break
            start = at + MESSAGE_HEAD + key
            run.append((stream, id, event_time, buffer[start - key : start], buffer[start:end]))
            at = end
        self._at = at
        return run

    def _joined(self, stream: int) -> tuple[int, list[memoryview]]:
        """The run of one stream that begins here: where its first MESSAGE begins, and the payloads (rule 5). Made of `_run` it is a fifth slower."""
        buffer, at, limit = self._buffer, self._at, self.limit
        size, unpack = len(buffer), MESSAGE.unpack_from
        first = following = -1
        payloads: list[memoryview] = []
        view = memoryview(buffer)
        while at + MESSAGE_HEAD <= size:
            length, tag, of, id, _, key = unpack(buffer, at)
            end = at + 4 + length
            if tag != MESSAGE_TAG or end > size or length > limit or length < MESSAGE_OVERHEAD + key or of != stream:
                break
            if id != following:
                if payloads:
                    break
                first = id
            start = at + MESSAGE_HEAD + key
            payloads.append(view[start:end])
            following = id + end - start
            at = end
        self._at = at
        return first, payloads

    def _frame(self) -> m.Frame | None:
        left = len(self._buffer) - self._at
        if left < _LENGTH.size:
            self._keep(_LENGTH.size)
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if not 0 < length <= self.limit:
            raise RemoteProtocolError("a frame of length 0" if not length else f"a frame of {length} bytes; the limit is {self.limit}")
        end = self._at + _LENGTH.size + length
        if len(self._buffer) < end:
            self._keep(_LENGTH.size + length)
            return None
        frame = self._buffer[self._at + _LENGTH.size : end]
        self._at = end
        return decode(frame, two_phase=self._two_phase)

    def _keep(self, needed: int) -> None:
        if self._at < len(self._buffer):
            self._partial += self._buffer[self._at :]
            self._needed = needed
        self._buffer, self._at = b"", 0


class Decoder(_Frames[m.Frame]):
    """Bytes in as they come; messages out."""

    def __init__(self, limit: int = FRAME_LIMIT, *, two_phase: bool = True, join: int | None = None) -> None:
        super().__init__(limit, two_phase=two_phase)
        self._join = join
        #: How many frames the last message was made of.
        self.frames = 0

    def _next(self) -> m.Frame | None:
        if self._join is not None:
            first, payloads = self._joined(self._join)
            if payloads:
                self.frames = len(payloads)
                return m.Message(self._join, first, b"".join(payloads))
        self.frames = 1
        return self._frame()


class RunDecoder(_Frames[m.Frame | list[Pushed]]):
    """Bytes in as they come; frames, and runs of MESSAGEs, out."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, two_phase=False)

    def _next(self) -> m.Frame | list[Pushed] | None:
        return self._run() or self._frame()
