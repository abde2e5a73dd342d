"""Frames: how a log on disk keeps bytes so that a torn end can be told from damage. Pure.

    u32 length | u32 complement of the length | payload | u32 CRC-32 of the payload | 0xff

1. The complement denies a length that has changed, so nobody looks for the next frame at a wrong place.
2. The last byte is never zero: what a crash leaves of a frame, a beginning of it followed by nothing or by zeros, does not have it.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple
from zlib import crc32

_HEAD = struct.Struct(">II")
_TAIL = struct.Struct(">IB")
_END = 0xFF
_ALL = (1 << 32) - 1

#: Bytes in front of a payload.
HEAD = _HEAD.size


class Defect(enum.Enum):
    """Why there is no frame at a place."""

    SHORT = "it ends before the frame does"
    LENGTH = "a length is wrong"
    CHECKSUM = "a record does not match its checksum"


class Framed(NamedTuple):
    """What is at a place: a payload from start to stop, and the frame's end; or a defect. A defect has an end if the length can be believed."""

    start: int
    stop: int
    end: int
    defect: Defect | None = None
    mark: int = _END


def frame(payload: bytes) -> bytes:
    """A payload with what tells whether it is whole.

    >>> framed_at(frame(b"tea"), 0)
    Framed(start=8, stop=11, end=16, defect=None, mark=255)
    """
    return b"".join((_HEAD.pack(len(payload), len(payload) ^ _ALL), payload, _TAIL.pack(crc32(payload), _END)))


def framed_at(data: bytes | memoryview, at: int) -> Framed:
    """The frame that begins at a place.

    >>> framed_at(b"x" + frame(b"tea")[:-1], 1).defect
    <Defect.SHORT: 'it ends before the frame does'>
    """
    start = at + HEAD
    if start > len(data):
        return Framed(start, start, 0, Defect.SHORT)
    length, complement = _HEAD.unpack_from(data, at)
    if length ^ complement != _ALL:
        return Framed(start, start, 0, Defect.LENGTH)
    stop = start + length
    end = stop + _TAIL.size
    if end > len(data):
        return Framed(start, stop, end, Defect.SHORT)
    checksum, mark = _TAIL.unpack_from(data, stop)
    wrong = mark != _END or crc32(memoryview(data)[start:stop]) != checksum
    return Framed(start, stop, end, Defect.CHECKSUM if wrong else None, mark)
