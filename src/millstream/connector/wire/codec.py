"""Messages to bytes and back.

    frame = u32 length | u8 tag | body        big endian; the length counts tag and body

Rules
1. Whatever bytes a peer sends, decoding ends in a message or in a `RemoteProtocolError`. How a stream of bytes is cut into frames is the
   business of `decoder`.
2. A count inside a body is judged against the bytes that are left before anything is allocated for it. Nothing may follow a body.
3. Texts are UTF-8, booleans 0 or 1: what decodes also encodes, to the same bytes.
4. What we cannot say on the wire (a text too long, a number too large) is our own mistake: `LocalProtocolError`, before a byte is made.
5. A MESSAGE on stream 0 holds a two-phase-commit message and is decoded to it: its id and event time are 0 and it has no key. In source use
   (`two_phase=False`) stream 0 is a stream like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_RANGE = struct.Struct(">QQQ")
_HEAD = struct.Struct(">QQqH")

#: A MESSAGE up to its key: length, tag, stream, id, event time, length of the key.
MESSAGE = struct.Struct(">IBQQqH")
MESSAGE_TAG = 5

#: What a MESSAGE frame without a key has before its payload, its length field included.
MESSAGE_HEAD = MESSAGE.size
#: What the length field of such a frame says if the payload is empty.
MESSAGE_OVERHEAD = MESSAGE_HEAD - 4

_TWO_PHASE_TAGS = 201


class _Reader:
    """Takes a body apart from front to back."""

    def __init__(self, body: memoryview, at: int = 0) -> None:
        self.body, self.at = body, at

    def number(self, what: struct.Struct) -> int:
        try:
            (value,) = what.unpack_from(self.body, self.at)
        except struct.error:
            raise RemoteProtocolError("a frame is too short for what its tag says") from None
        self.at += what.size
        return int(value)

    def flag(self) -> bool:
        value = self.number(_U8)
        if value > 1:
            raise RemoteProtocolError(f"a boolean is {value} instead of 0 or 1")
        return value == 1

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.body):
            raise RemoteProtocolError("a frame is too short for what its tag says")
        data = bytes(self.body[self.at : end])
        self.at = end
        return data

    def rest(self) -> bytes:
        return self.take(len(self.body) - self.at)

    def text(self, length: struct.Struct = _U16) -> str:
        try:
            return self.take(self.number(length)).decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("a text is not UTF-8") from None

    def count(self, smallest: int) -> int:
        """How many items follow, of which each takes at least so many bytes."""
        value = self.number(_U32)
        if value * smallest > len(self.body) - self.at:
            raise RemoteProtocolError(f"a frame speaks of {value} items and is too short for them")
        return value

    def end(self) -> None:
        if self.at != len(self.body):
            raise RemoteProtocolError(f"a frame has {len(self.body) - self.at} bytes too many")


# ---- what each kind looks like: one pair of functions per tag

_Encode = Callable[..., bytes]
_Decode = Callable[[_Reader], m.Frame]


def _number(what: struct.Struct, value: int) -> bytes:
    try:
        return what.pack(value)
    except struct.error:
        raise LocalProtocolError(f"{value!r} does not fit into {8 * what.size} bits") from None


def _flag(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _text(value: str, length: struct.Struct = _U16) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{value!r} cannot be written as UTF-8") from None
    if len(data) >= 1 << (8 * length.size):
        raise LocalProtocolError(f"a text of {len(data)} bytes is too long: {value[:40]!r}...")
    return _number(length, len(data)) + data


def _hello(x: m.Hello) -> bytes:
    return _text(x.version) + _text(x.cookie) + _text(x.program) + _text(x.instance)


def _notify(x: m.Notify) -> bytes:
    return _number(_U64, x.stream) + _text(x.name) + _number(_U64, x.point)


def _notify_ack(x: m.NotifyAck) -> bytes:
    if x.point == m.U64:
        raise LocalProtocolError("the point of reference 2^64-1 means that there is none; say None")
    return _flag(x.success) + _number(_U64, x.stream) + _number(_U64, m.U64 if x.point is None else x.point)


def _read_notify_ack(r: _Reader) -> m.NotifyAck:
    success, stream, point = r.flag(), r.number(_U64), r.number(_U64)
    return m.NotifyAck(success, stream, None if point == m.U64 else point)


def _message(x: m.Message) -> bytes:
    return message_head(x.stream, x.id, len(x.payload), x.event_time, x.key)[5:] + x.payload


def message_head(stream: int, id: int, payload: int, event_time: int = 0, key: bytes = b"") -> bytes:
    """A MESSAGE frame up to its payload of that length, for those who send the payload without copying it."""
    if len(key) > m.U16:
        raise LocalProtocolError(f"a key of {len(key)} bytes is too long")
    try:
        return MESSAGE.pack(MESSAGE_OVERHEAD + len(key) + payload, MESSAGE_TAG, stream, id, event_time, len(key)) + key
    except struct.error:
        raise LocalProtocolError(
            f"stream {stream}, id {id} or event time {event_time} does not fit into 64 bits, or the payload is too long"
        ) from None


def _read_message(r: _Reader) -> m.Message:
    if len(r.body) < MESSAGE_OVERHEAD:
        raise RemoteProtocolError("a frame is too short for what its tag says")
    stream, id, event_time, key = _HEAD.unpack_from(r.body, r.at)
    r.at += _HEAD.size
    named = r.take(key)
    return m.Message(stream, id, r.rest(), event_time, named)


def _ack(x: m.Ack) -> bytes:
    try:
        points = [_PAIR.pack(*point) for point in x.points]
    except struct.error:
        raise LocalProtocolError(f"ACK of {x.points}: these are no pairs of unsigned 64-bit numbers") from None
    return _number(_U32, x.credits) + _number(_U32, len(points)) + b"".join(points)


def _read_ack(r: _Reader) -> m.Ack:
    credits = r.number(_U32)
    return m.Ack(credits, tuple((r.number(_U64), r.number(_U64)) for _ in range(r.count(_PAIR.size))))


def _reply_uncommitted(x: m.ReplyUncommitted) -> bytes:
    return _number(_U64, x.rtag) + _number(_U32, len(x.txns)) + b"".join(map(_text, x.txns))


def _read_reply_uncommitted(r: _Reader) -> m.ReplyUncommitted:
    rtag = r.number(_U64)
    return m.ReplyUncommitted(rtag, tuple(r.text() for _ in range(r.count(2))))


def _phase1(x: m.Phase1) -> bytes:
    try:
        ranges = [_RANGE.pack(*range) for range in x.ranges]
    except struct.error:
        raise LocalProtocolError(f"PHASE1 of {x.ranges}: these are no triples of unsigned 64-bit numbers") from None
    return _text(x.txn) + _number(_U32, len(ranges)) + b"".join(ranges)


def _read_phase1(r: _Reader) -> m.Phase1:
    txn = r.text()
    return m.Phase1(txn, tuple((r.number(_U64), r.number(_U64), r.number(_U64)) for _ in range(r.count(_RANGE.size))))


def _workers_left(x: m.WorkersLeft) -> bytes:
    return _number(_U64, x.rtag) + _number(_U32, len(x.workers)) + b"".join(map(_text, x.workers))


def _read_workers_left(r: _Reader) -> m.WorkersLeft:
    rtag = r.number(_U64)
    return m.WorkersLeft(rtag, tuple(r.text() for _ in range(r.count(2))))


_FORMS: dict[int, tuple[type[m.Frame], _Encode, _Decode]] = {
    0: (m.Hello, _hello, lambda r: m.Hello(r.text(), r.text(), r.text(), r.text())),
    1: (m.Ok, lambda x: _number(_U32, x.credits), lambda r: m.Ok(r.number(_U32))),
    2: (m.Error, lambda x: _text(x.text), lambda r: m.Error(r.text())),
    3: (m.Notify, _notify, lambda r: m.Notify(r.number(_U64), r.text(), r.number(_U64))),
    4: (m.NotifyAck, _notify_ack, _read_notify_ack),
    MESSAGE_TAG: (m.Message, _message, _read_message),
    6: (m.Ack, _ack, _read_ack),
    7: (m.Restart, lambda x: _text(x.address, _U32), lambda r: m.Restart(r.text(_U32))),
    8: (m.Eos, lambda x: _number(_U64, x.stream), lambda r: m.Eos(r.number(_U64))),
    201: (m.ListUncommitted, lambda x: _number(_U64, x.rtag), lambda r: m.ListUncommitted(r.number(_U64))),
    202: (m.ReplyUncommitted, _reply_uncommitted, _read_reply_uncommitted),
    203: (m.Phase1, _phase1, _read_phase1),
    204: (m.Vote, lambda x: _text(x.txn) + _flag(x.commit), lambda r: m.Vote(r.text(), r.flag())),
    205: (m.Phase2, lambda x: _text(x.txn) + _flag(x.commit), lambda r: m.Phase2(r.text(), r.flag())),
    206: (m.WorkersLeft, _workers_left, _read_workers_left),
}
_TAGS: dict[type[m.Frame], int] = {kind: tag for tag, (kind, _, _) in _FORMS.items()}


def encode(message: m.Frame) -> bytes:
    """The whole frame of a message."""
    tag = _TAGS[type(message)]
    body = _U8.pack(tag) + _FORMS[tag][1](message)
    if tag >= _TWO_PHASE_TAGS:
        return message_head(m.CONTROL_STREAM, 0, len(body)) + body
    return _number(_U32, len(body)) + body


def decode(frame: bytes | bytearray | memoryview, *, two_phase: bool = True) -> m.Frame:
    """The message of one frame, given without its length field."""
    with memoryview(frame) as body:
        message = _decode(_Reader(body), outer=True)
        if two_phase and isinstance(message, m.Message) and message.stream == m.CONTROL_STREAM:
            if message.id or message.event_time or message.key:
                raise RemoteProtocolError("a MESSAGE on stream 0 has an id, an event time or a key")
            with memoryview(message.payload) as inner:
                return _decode(_Reader(inner), outer=False)
        return message


def _decode(reader: _Reader, outer: bool) -> m.Frame:
    if not reader.body:
        raise RemoteProtocolError("a frame of length 0" if outer else "an empty MESSAGE on stream 0")
    tag = reader.number(_U8)
    if tag not in _FORMS or outer == (tag >= _TWO_PHASE_TAGS):
        raise RemoteProtocolError(f"unknown tag {tag}" + ("" if outer else " on stream 0"))
    message = _FORMS[tag][2](reader)
    reader.end()
    return message
