"""What the intake keeps, and how it lies in the files: entries in batches, and the beginning of a segment. Pure.

    segment = beginning | batch | batch | ...
    beginning = "MSINTAKE" | u32 size | u32 size of the marks | u64 position | u32 CRC of the marks | u32 CRC of all before | marks | zeros
    batch = head | marks | ids | event times | key ends | payload ends | streams | kinds | keys | payloads | zeros | u32 CRC from the marks on
    head = "MSB1" | u32 size | u64 position | u32 entries | u32 messages | u32 size of marks | u32 of keys | u32 of payloads | u32 CRC of the head

Rules
1. Numbers are little endian and columns are aligned, as Arrow has them in memory: a reader uses them in place.
2. A position is a count of bytes of batches since the log began. A batch knows its own: a position that points at no batch of this log is noticed.
3. A head has its own checksum, so that one can walk from head to head without reading what is between. The rest has another.
4. A batch can be understood without any other: it names its streams. Its marks (how far each of them is behind it) are what recovery needs; a segment
   begins with the marks of all streams. So nothing before a segment is needed.
5. An entry is a message, a declared watermark, or the end of a stream, in the order in which they came. It is a plain tuple: a server makes hundreds of
   thousands of them in a second, and a named one takes four times as long to make.
6. A mark sums up the entries of a stream up to some place; a watermark never goes back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

import msgspec

from millstream.errors import DamageError

_HEAD = struct.Struct("<4sIQIIIIII")
_BEGINNING = struct.Struct("<8sIIQII")
_SUM = struct.Struct("<I")
_HEAD_MAGIC = b"MSB1"
_BEGINNING_MAGIC = b"MSINTAKE"
HEAD_SIZE = _HEAD.size
BEGINNING_SIZE = _BEGINNING.size

MESSAGE, WATERMARK, END = 0, 1, 2  # kinds of entries

#: What is stored: stream, kind, id, event time, key, payload.
IntakeEntry = tuple[str, int, int, int, bytes, bytes]


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far a stream is at some place of the log: last id, declared watermark, and whether its end was the last thing said. None: nothing yet."""

    name: str
    last: int | None = None
    watermark: int | None = None
    ended: bool = False

    def then(self, later: Mark) -> Mark:
        watermark = max((mark.watermark for mark in (self, later) if mark.watermark is not None), default=None)
        return Mark(self.name, self.last if later.last is None else later.last, watermark, later.ended)


def advance(marks: dict[str, Mark], later: Iterable[Mark]) -> None:
    for mark in later:
        known = marks.get(mark.name)
        marks[mark.name] = mark if known is None else known.then(mark)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Mark]).decode


class Head(NamedTuple):
    """A batch's, between its magic and its checksum."""

    size: int
    position: int
    entries: int
    messages: int
    marks: int
    keys: int
    payloads: int

    @property
    def end(self) -> int:
        return self.position + self.size


class Columns(NamedTuple):
    ids: int
    times: int
    key_ends: int
    payload_ends: int
    streams: int
    kinds: int
    keys: int
    payloads: int


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def columns(head: Head) -> Columns:
    n = head.entries
    return Columns(*accumulate((HEAD_SIZE + _padded(head.marks), 8 * n, 8 * n, 4 * (n + 1), 4 * (n + 1), 4 * n, n, head.keys)))


def encode_batch(position: int, entries: Sequence[IntakeEntry]) -> tuple[bytes, list[Mark]]:
    n = len(entries)
    names, kinds, ids, times, keys, payloads = zip(*entries, strict=True)
    numbers: dict[str, int] = {}
    streams = [numbers.setdefault(name, len(numbers)) for name in names]
    marks = _marks(entries, numbers)
    meta = _encode(marks)
    key_bytes, payload_bytes = b"".join(keys), b"".join(payloads)
    body = b"".join(
        (
            meta.ljust(_padded(len(meta)), b"\0"),
            struct.pack(f"<{n}q", *ids),
            struct.pack(f"<{n}q", *times),
            struct.pack(f"<{n + 1}i", 0, *accumulate(map(len, keys))),
            struct.pack(f"<{n + 1}i", 0, *accumulate(map(len, payloads))),
            struct.pack(f"<{n}I", *streams),
            bytes(kinds),
            key_bytes,
            payload_bytes,
        )
    )
    size = _padded(HEAD_SIZE + len(body) + _SUM.size)
    body += b"\0" * (size - HEAD_SIZE - len(body) - _SUM.size)
    fields = (_HEAD_MAGIC, size, position, n, kinds.count(MESSAGE), len(meta), len(key_bytes), len(payload_bytes))
    head = _HEAD.pack(*fields, 0)[:-4]
    return b"".join((head, _SUM.pack(crc32(head)), body, _SUM.pack(crc32(body)))), marks


def _marks(entries: Sequence[IntakeEntry], names: Iterable[str]) -> list[Mark]:
    last: dict[str, int] = {}
    declared: dict[str, int] = {}
    ended: dict[str, bool] = {}
    for name, kind, id, time, _, _ in entries:
        if kind == MESSAGE:
            last[name] = id
            if ended:
                ended[name] = False
        elif kind == WATERMARK:
            declared[name] = max(time, declared.get(name, time))
            ended[name] = False
        else:
            assert kind == END
            ended[name] = True
    return [Mark(name, last.get(name), declared.get(name), ended.get(name, False)) for name in names]


def decode_head(data: bytes | memoryview, position: int) -> Head | None:
    """The head of the batch at this position; None if these bytes are none."""
    if len(data) < HEAD_SIZE:
        return None
    magic, *fields, checksum = _HEAD.unpack_from(data)
    head = Head(*fields)
    return head if magic == _HEAD_MAGIC and head.position == position and crc32(data[: HEAD_SIZE - 4]) == checksum else None


def is_whole(batch: bytes | memoryview, head: Head) -> bool:
    end = head.size - _SUM.size
    return len(batch) == head.size and crc32(batch[HEAD_SIZE:end]) == _SUM.unpack_from(batch, end)[0]


def whole_batches(data: memoryview, position: int) -> Iterator[tuple[Head, memoryview]]:
    """The batches that these bytes begin with, the first at this position, as far as they are whole."""
    at = 0
    while (head := decode_head(data[at : at + HEAD_SIZE], position)) is not None and is_whole(batch := data[at : at + head.size], head):
        yield head, batch
        at, position = at + head.size, head.end


def decode_marks(batch: bytes | memoryview, head: Head) -> list[Mark]:
    return _decode(batch[HEAD_SIZE : HEAD_SIZE + head.marks])


def encode_beginning(position: int, marks: Iterable[Mark]) -> bytes:
    meta = _encode(list(marks))
    size = _padded(BEGINNING_SIZE + len(meta))
    head = _BEGINNING.pack(_BEGINNING_MAGIC, size, len(meta), position, crc32(meta), 0)[:-4]
    return b"".join((head, _SUM.pack(crc32(head)), meta)).ljust(size, b"\0")


def beginning_size(data: bytes, where: str) -> tuple[int, int]:
    """(size of the beginning, position of the first batch)."""
    if len(data) >= BEGINNING_SIZE:
        magic, size, _, position, _, checksum = _BEGINNING.unpack_from(data)
        if magic == _BEGINNING_MAGIC and crc32(data[: BEGINNING_SIZE - 4]) == checksum:
            return size, position
    raise DamageError(f"{where} is damaged: it does not begin as a segment of an intake. Restore it from a copy.")


def beginning_marks(data: bytes, where: str) -> list[Mark]:
    """Of a beginning whose size is known to be right."""
    _, _, length, _, checksum, _ = _BEGINNING.unpack_from(data)
    meta = data[BEGINNING_SIZE : BEGINNING_SIZE + length]
    if len(meta) != length or crc32(meta) != checksum:
        raise DamageError(f"{where} is damaged: what it says about the streams does not match its checksum. Restore it from a copy.")
    return _decode(meta)
