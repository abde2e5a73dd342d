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
from typing import Any

import msgspec

from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError

#: A MESSAGE up to its key: length, tag, stream, id, event time, length of the key.
MESSAGE = struct.Struct(">IBQQqH")
MESSAGE_TAG = 5
#: What a MESSAGE frame without a key has before its payload, its length field included; and what that field says if the payload is empty.
MESSAGE_HEAD = MESSAGE.size
MESSAGE_OVERHEAD = MESSAGE_HEAD - 4

_TWO_PHASE_TAGS = 201

#: By tag: a kind of message, its fields in order, and those of an item where its last field is a list. MESSAGE has a form of its own.
#: Q and I are numbers, as `struct` has them; ? a boolean; s a text of up to 2^16 bytes, S of up to 2^32; P a point of reference, or None.
_FORMS: dict[int, tuple[type[m.Frame], str, str]] = {
    0: (m.Hello, "ssss", ""),
    1: (m.Ok, "I", ""),
    2: (m.Error, "s", ""),
    3: (m.Notify, "QsQ", ""),
    4: (m.NotifyAck, "?QP", ""),
    MESSAGE_TAG: (m.Message, "", ""),
    6: (m.Ack, "I", "QQ"),
    7: (m.Restart, "S", ""),
    8: (m.Eos, "Q", ""),
    201: (m.ListUncommitted, "Q", ""),
    202: (m.ReplyUncommitted, "Q", "s"),
    203: (m.Phase1, "s", "QQQ"),
    204: (m.Vote, "s?", ""),
    205: (m.Phase2, "s?", ""),
    206: (m.WorkersLeft, "Q", "s"),
}
_TAGS: dict[type[m.Frame], int] = {kind: tag for tag, (kind, _, _) in _FORMS.items()}
#: The number that a field is, or begins with.
_NUMBERS = {field: struct.Struct(f">{number}") for field, number in zip("BHIQq?sSP", "BHIQqBHIQ", strict=True)}


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self.body, self.at = body, 0

    @property
    def left(self) -> int:
        return len(self.body) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise RemoteProtocolError("a frame is too short for what its tag says")
        self.at += size
        return bytes(self.body[self.at - size : self.at])

    def number(self, field: str) -> int:
        what = _NUMBERS[field]
        return int(what.unpack(self.take(what.size))[0])

    def field(self, field: str) -> Any:
        value = self.number(field)
        if field in "sS":
            try:
                return self.take(value).decode()
            except UnicodeDecodeError:
                raise RemoteProtocolError("a text is not UTF-8") from None
        if field == "?" and value > 1:
            raise RemoteProtocolError(f"a boolean is {value} instead of 0 or 1")
        return value == 1 if field == "?" else None if field == "P" and value == m.U64 else value

    def items(self, fields: str) -> tuple[Any, ...]:
        count = self.number("I")
        if count * sum(_NUMBERS[field].size for field in fields) > self.left:
            raise RemoteProtocolError(f"a frame speaks of {count} items and is too short for them")
        rows = [tuple(self.field(field) for field in fields) for _ in range(count)]
        return tuple(row[0] for row in rows) if len(fields) == 1 else tuple(rows)


def _number(field: str, value: int) -> bytes:
    try:
        return _NUMBERS[field].pack(value)
    except struct.error:
        raise LocalProtocolError(f"{value!r} does not fit into {8 * _NUMBERS[field].size} bits") from None


def _field(field: str, value: Any) -> bytes:
    if field in "sS":
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise LocalProtocolError(f"{value!r} cannot be written as UTF-8") from None
        if len(data) >= 1 << (8 * _NUMBERS[field].size):
            raise LocalProtocolError(f"a text of {len(data)} bytes is too long: {value[:40]!r}...")
        return b"".join((_number(field, len(data)), data))
    if field == "P" and value == m.U64:
        raise LocalProtocolError("the point of reference 2^64-1 means that there is none; say None")
    return _number(field, bool(value) if field == "?" else m.U64 if field == "P" and value is None else value)


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


def encode(message: m.Frame) -> bytes:
    if isinstance(message, m.Message):
        return message_head(message.stream, message.id, len(message.payload), message.event_time, message.key) + message.payload
    tag = _TAGS[type(message)]
    _, fields, of_items = _FORMS[tag]
    values = msgspec.structs.astuple(message)
    parts = [_number("B", tag), *map(_field, fields, values)]
    if of_items:
        try:
            rows = [(item,) if len(of_items) == 1 else item for item in values[-1]]
            pairs = [pair for row in rows for pair in zip(of_items, row, strict=True)]
        except (TypeError, ValueError):
            raise LocalProtocolError(f"{values[-1]!r} is no list of items with {len(of_items)} fields each") from None
        parts += [_number("I", len(rows)), *[_field(*pair) for pair in pairs]]
    body = b"".join(parts)
    if tag >= _TWO_PHASE_TAGS:
        return message_head(m.CONTROL_STREAM, 0, len(body)) + body
    return _number("I", len(body)) + body


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
    tag = reader.number("B")
    if tag not in _FORMS or outer == (tag >= _TWO_PHASE_TAGS):
        raise RemoteProtocolError(f"unknown tag {tag}" + ("" if outer else " on stream 0"))
    if tag == MESSAGE_TAG:
        stream, id, event_time, key = reader.number("Q"), reader.number("Q"), reader.number("q"), reader.take(reader.number("H"))
        return m.Message(stream, id, reader.take(reader.left), event_time, key)
    kind, fields, of_items = _FORMS[tag]
    values = [reader.field(field) for field in fields]
    if of_items:
        values.append(reader.items(of_items))
    message = kind(*values)
    if reader.left:
        raise RemoteProtocolError(f"a frame has {reader.left} bytes too many")
    return message
