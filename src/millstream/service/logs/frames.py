"""What the disk log's files are made of, and what of a file can be read after a crash. Pure.

    file     frames (`state/framing.py`), each at a multiple of 512 bytes; zeros in between and behind
    frame    a group of entries, written and synced at once
    entry    kind | partition | term | first | last | length | bytes

    RECORD   positions first to last of a partition, written in a term; the bytes are an encoded LogRecord
    STAND    a partition's term, what was trimmed (first) and its last position. The first frame of a file has one for every partition, so older files
             can go. A seal is one too.
    FORGOT   the partition was removed: nothing before counts

Rules
1. A frame begins in a sector of its own. So a write never touches a sector that holds something confirmed.
2. One frame is under way at a time. So what a crash leaves is a part of the last frame: a beginning of it followed by zeros or by nothing; or, since a
   power cut may keep later sectors and lose earlier ones, a frame with nothing behind it that has a sector of zeros and a wrong checksum; or a lost
   first sector, and behind it no frame that is whole. That is a torn end. None of it was ever confirmed, so it is dropped.
3. Everything else that cannot be read is damage, and is named by its place. So is a torn end in a file that is not the last one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.errors import DamageError
from millstream.state.framing import HEAD, Defect, Framed, frame, framed_at

SECTOR = 512
RECORD, STAND, FORGOT = 1, 2, 3
_ENTRY = struct.Struct(">BQQQQI")
_NAME = b"MSWL1\n"
_EMPTY = bytes(SECTOR)


class WalEntry(NamedTuple):
    """One entry of a group."""

    kind: int
    partition: int
    term: int
    first: int
    last: int
    data: bytes = b""


class FrameRef(NamedTuple):
    """Where a frame is: the number of its file, its offset and its size."""

    file: int
    at: int
    size: int


class WalGroup(NamedTuple):
    """A frame of a file: where it is, and what is in it."""

    at: int
    size: int
    entries: list[WalEntry]


def padded(size: int) -> int:
    """The next multiple of a sector.

    >>> padded(1), padded(512), padded(513)
    (512, 512, 1024)
    """
    return -(-size // SECTOR) * SECTOR


def encode_group(entries: Iterable[WalEntry]) -> bytes:
    """One frame of entries.

    >>> decode_group(encode_group([WalEntry(RECORD, 7, 1, 1, 2, b"x")]), 0, "here")
    [WalEntry(kind=1, partition=7, term=1, first=1, last=2, data=b'x')]
    """
    parts = [_NAME]
    for kind, partition, term, first, last, data in entries:
        parts.append(_ENTRY.pack(kind, partition, term, first, last, len(data)))
        parts.append(data)
    return frame(b"".join(parts))


def _entries(payload: bytes, at: int, where: str) -> Iterator[WalEntry]:
    if not payload.startswith(_NAME):
        raise damaged(where, at, "it is no frame of this log, or of a version that this Millstream does not know")
    here = len(_NAME)
    while here < len(payload):
        kind, partition, term, first, last, length = _ENTRY.unpack_from(payload, here)
        here += _ENTRY.size
        yield WalEntry(kind, partition, term, first, last, payload[here : here + length])
        here += length


def decode_group(data: bytes, at: int, where: str) -> list[WalEntry]:
    """The entries of one frame, which is all of the data; `at` is its place in the file, for the error."""
    found = framed_at(data, 0)
    if found.defect is not None:
        raise damaged(where, at, found.defect.value)
    return list(_entries(data[found.start : found.stop], at, where))


def decode_file(data: bytes, where: str, is_last: bool) -> tuple[list[WalGroup], int, bool]:
    """The groups of a file, where the next one goes, and whether there is a torn end to be wiped. Rules 2 and 3."""
    used = len(data.rstrip(b"\0"))
    groups: list[WalGroup] = []
    at = 0
    while at < used:
        found = framed_at(data, at)
        if found.defect is not None:
            if is_last and groups and is_torn(data, at, used, found):
                return groups, at, True
            raise damaged(where, at, found.defect.value)
        groups.append(WalGroup(at, found.end - at, list(_entries(data[found.start : found.stop], at, where))))
        at = padded(found.end)
    if not groups:
        raise damaged(where, 0, "it is empty, but a file begins with where its partitions stand")
    return groups, at, False


def is_torn(data: bytes, at: int, used: int, found: Framed) -> bool:
    """Rule 2: whether what is at a place can be what a crash has left of the last frame."""
    if found.defect is Defect.SHORT:
        return True
    if found.defect is Defect.LENGTH:
        if used < at + HEAD:
            return True
        return data[at : at + SECTOR] == _EMPTY and not any(
            framed_at(data, later).defect is None for later in range(at + SECTOR, used, SECTOR)
        )
    if used > found.end:
        return False
    return found.mark == 0 or any(data[sector : sector + SECTOR] == _EMPTY for sector in range(at, found.end - SECTOR + 1, SECTOR))


def damaged(where: str, at: int, what: str) -> DamageError:
    """The error that names a file, a place in it, and what is wrong there."""
    error = DamageError(
        f"{where} is damaged at byte {at}: {what}. What was confirmed behind it cannot be told. "
        f"Restore the file from a copy, or restore the partitions from their snapshots."
    )
    error.object = where
    return error
