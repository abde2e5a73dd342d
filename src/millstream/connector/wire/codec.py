"""Messages to bytes and back.

    frame = u32 length | u8 tag | body        big endian; the length counts tag and body

Rules
1. Whatever bytes a peer sends, decoding ends in a message or in a `RemoteProtocolError`.
2. A count inside a body is judged against the bytes that are left before anything is allocated for it. Nothing may follow a body.
3. Texts are UTF-8, booleans 0 or 1: what decodes also encodes, to the same bytes.
4. What we cannot say on the wire (a text too long, a number too large) is our own mistake: `LocalProtocolError`, before a byte is made.
5. A MESSAGE on stream 0 holds a two-phase-commit message: its id and event time are 0 and it has no key. In source use (`two_phase=False`) stream 0
   is a stream like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")

#: A MESSAGE up to its key: length, tag, stream, id, event time, length of the key.
MESSAGE = struct.Struct(">IBQQqH")
MESSAGE_TAG = 5

#: What a MESSAGE frame without a key has before its payload, its length field included.
MESSAGE_HEAD = MESSAGE.size
#: What the length field of such a frame says if the payload is empty.
MESSAGE_OVERHEAD = MESSAGE_HEAD - 4

_TWO_PHASE_TAGS = 201


class _Reader:
    def __init__(self, body: memoryview, at: int = 0) -> None:
        self.body, self.at = body, at

    def number(self, what: struct.Struct) -> int:
        return int(what.unpack(self.take(what.size))[0])

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


# ---- what each kind of field looks like: to bytes, and back


class _Field(msgspec.Struct, frozen=True):
    """A kind of field in a body. smallest: how many bytes it takes at least."""

    encode: Callable[[Any], bytes]
    decode: Callable[[_Reader], Any]
    smallest: int


def _number(what: struct.Struct, value: int) -> bytes:
    try:
        return what.pack(value)
    except struct.error:
        raise LocalProtocolError(f"{value!r} does not fit into {8 * what.size} bits") from None


def _text(value: str, length: struct.Struct = _U16) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{value!r} cannot be written as UTF-8") from None
    if len(data) >= 1 << (8 * length.size):
        raise LocalProtocolError(f"a text of {len(data)} bytes is too long: {value[:40]!r}...")
    return _number(length, len(data)) + data


def _point(value: int | None) -> bytes:
    if value == m.U64:
        raise LocalProtocolError("the point of reference 2^64-1 means that there is none; say None")
    return _number(_U64, m.U64 if value is None else value)


def _several(*of: _Field) -> _Field:
    """Any number of items, each of one field, or a tuple of several."""

    def encode(items: Sequence[Any]) -> bytes:
        rows = [(item,) for item in items] if len(of) == 1 else items
        try:
            parts = [field.encode(value) for row in rows for field, value in zip(of, row, strict=True)]
        except (TypeError, ValueError):
            raise LocalProtocolError(f"{items!r} are no tuples of {len(of)}") from None
        return _number(_U32, len(items)) + b"".join(parts)

    def decode(reader: _Reader) -> tuple[Any, ...]:
        rows = (tuple(field.decode(reader) for field in of) for _ in range(reader.count(smallest)))
        return tuple(row[0] for row in rows) if len(of) == 1 else tuple(rows)

    smallest = sum(field.smallest for field in of)
    return _Field(encode, decode, _U32.size)


_LONG = _Field(partial(_number, _U64), lambda reader: reader.number(_U64), _U64.size)
_INT = _Field(partial(_number, _U32), lambda reader: reader.number(_U32), _U32.size)
_FLAG = _Field(lambda value: b"\x01" if value else b"\x00", lambda reader: reader.flag(), 1)
_NAME = _Field(_text, lambda reader: reader.text(), _U16.size)
_ADDRESS = _Field(lambda value: _text(value, _U32), lambda reader: reader.text(_U32), _U32.size)
_POINT = _Field(_point, lambda reader: None if (value := reader.number(_U64)) == m.U64 else value, _U64.size)

#: By tag, a kind of message and its fields, in the order in which the message has them. MESSAGE has a form of its own.
_FORMS: dict[int, tuple[type[m.Frame], tuple[_Field, ...]]] = {
    0: (m.Hello, (_NAME, _NAME, _NAME, _NAME)),
    1: (m.Ok, (_INT,)),
    2: (m.Error, (_NAME,)),
    3: (m.Notify, (_LONG, _NAME, _LONG)),
    4: (m.NotifyAck, (_FLAG, _LONG, _POINT)),
    MESSAGE_TAG: (m.Message, ()),
    6: (m.Ack, (_INT, _several(_LONG, _LONG))),
    7: (m.Restart, (_ADDRESS,)),
    8: (m.Eos, (_LONG,)),
    201: (m.ListUncommitted, (_LONG,)),
    202: (m.ReplyUncommitted, (_LONG, _several(_NAME))),
    203: (m.Phase1, (_NAME, _several(_LONG, _LONG, _LONG))),
    204: (m.Vote, (_NAME, _FLAG)),
    205: (m.Phase2, (_NAME, _FLAG)),
    206: (m.WorkersLeft, (_LONG, _several(_NAME))),
}
_TAGS: dict[type[m.Frame], int] = {kind: tag for tag, (kind, _) in _FORMS.items()}


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
    stream, id, event_time, key = r.number(_U64), r.number(_U64), r.number(_I64), r.take(r.number(_U16))
    return m.Message(stream, id, r.take(len(r.body) - r.at), event_time, key)


def encode(message: m.Frame) -> bytes:
    if isinstance(message, m.Message):
        return message_head(message.stream, message.id, len(message.payload), message.event_time, message.key) + message.payload
    tag = _TAGS[type(message)]
    values = msgspec.structs.astuple(message)
    body = _U8.pack(tag) + b"".join([field.encode(value) for field, value in zip(_FORMS[tag][1], values, strict=True)])
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
    kind, fields = _FORMS[tag]
    message = _read_message(reader) if kind is m.Message else kind(*[field.decode(reader) for field in fields])
    reader.end()
    return message
