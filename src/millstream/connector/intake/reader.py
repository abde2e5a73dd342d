"""Reading the intake's files, from any process: which positions there are, and what is between two of them.

    DIR/END             how far the log is durable; nothing behind it may be read
    DIR/ACKNOWLEDGED    how far epochs are committed, and how far they were before the last one
    DIR/<position>.log  segments, named after the position of their first batch

Rules
1. Readers change nothing, and need nobody but the files: they run where Spark's tasks run.
2. What is between two positions is the same whenever it is read, until it is collected: an epoch that is run again gets the same entries.
3. A position that is not there, or is inside a batch, is a `DamageError` that says which log and what to do.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.connector.intake.format import BEGINNING_SIZE, HEAD_SIZE, Head, beginning_size, decode_head, is_whole
from millstream.errors import DamageError, StorageError

SUFFIX = ".log"
END_FILE = "END"
ACKNOWLEDGED_FILE = "ACKNOWLEDGED"
_END = struct.Struct("<QQ")
_ALL = (1 << 64) - 1
_TRIES = 100


class Acknowledged(msgspec.Struct, frozen=True):
    """Epochs up to `position` are committed; the one before the last ended at `before`. Invariant: before <= position."""

    position: int = 0
    before: int = 0


def segment_name(position: int) -> str:
    return f"{position:020d}{SUFFIX}"


def segments(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise StorageError(f"the intake {folder} cannot be read: {error}. It must be reachable from where Spark runs.") from error
    return sorted(int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdecimal())


def encode_end(position: int) -> bytes:
    return _END.pack(position, position ^ _ALL)


def durable_end(folder: Path) -> int | None:
    """How far the log is durable; None if that is not known."""
    for _ in range(_TRIES):
        try:
            data = (folder / END_FILE).read_bytes()
        except FileNotFoundError:
            return None
        if len(data) == _END.size:
            position, complement = _END.unpack(data)
            if position ^ complement == _ALL:
                return int(position)
    return None


def readable_end(folder: Path, start: int, target: int | None) -> int:
    """How far an epoch may read that begins at `start`. target: where a bounded run ends."""
    end = durable_end(folder) or 0
    if start > end:
        raise DamageError(
            f"the checkpoint has read the intake {folder} up to {start}, and it ends at {end}: it is not the one that was read. "
            f"Restore both from the same copy, or start with a new checkpoint."
        )
    return end if target is None else max(start, min(end, target))


def acknowledged(folder: Path) -> Acknowledged:
    path = folder / ACKNOWLEDGED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Acknowledged)
    except FileNotFoundError:
        return Acknowledged()
    except msgspec.MsgspecError as error:
        raise DamageError(f"{path} is damaged: {error}. Restore it from a copy.") from error


def batches(folder: Path, start: int, end: int, *, whole: bool = True) -> Iterator[tuple[Head, bytes]]:
    """The batches between two positions, over segments, and their heads. whole: they are read and checked; else they are empty."""

    def lost(why: str) -> DamageError:
        return DamageError(
            f"the intake {folder} cannot be read from {start} to {end}: at {at}, {why}. "
            f"If the checkpoint or the intake was restored from a copy, restore both from the same one."
        )

    at = start
    if start >= end:
        return
    begins = segments(folder)
    first = max((number for number, begin in enumerate(begins) if begin <= start), default=None)
    if first is None:
        raise lost(f"the log begins at {begins[0] if begins else 'no place'}: it was read and collected, or its files are gone")
    for begin, following in zip(begins[first:], [*begins[first + 1 :], None], strict=True):
        path = folder / segment_name(begin)
        try:
            handle = open(path, "rb", buffering=(1 << 20) if whole else 0)  # noqa: SIM115
        except OSError as error:
            raise lost(f"{path.name} cannot be opened: {error}") from error
        with handle:
            size, position = beginning_size(handle.read(BEGINNING_SIZE), str(path))
            if position != begin:
                raise lost(f"{path.name} begins at {position}")
            handle.seek(size + at - position)
            while at < end and at != following:
                head = decode_head(handle.read(HEAD_SIZE), at)
                if head is None or head.end > end:
                    raise lost(f"no batch begins there in {path.name}, or it is damaged")
                if whole:
                    handle.seek(-HEAD_SIZE, os.SEEK_CUR)
                    batch = handle.read(head.size)
                    if not is_whole(batch, head):
                        raise lost(f"a batch in {path.name} does not match its checksum")
                else:
                    batch = b""
                    handle.seek(head.size - HEAD_SIZE, os.SEEK_CUR)
                yield head, batch
                at = head.end
        if at >= end:
            return
    raise lost("the log ends there")


def until(folder: Path, start: int, end: int, messages: int | None, size: int | None) -> int:
    """The furthest position, up to `end`, with no more than so many messages and bytes before it; but one batch at least."""
    if messages is None and size is None:
        return end
    at, count = start, 0
    for head, _ in batches(folder, start, end, whole=False):
        count += head.messages
        too_many = messages is not None and count > messages
        too_large = size is not None and head.end - start > size
        if at > start and (too_many or too_large):
            return at
        at = head.end
        if (messages is not None and count >= messages) or (size is not None and at - start >= size):
            return at  # without a look at the next one
    return at


def split(folder: Path, start: int, end: int, parts: int, smallest: int = 128 << 10) -> list[tuple[int, int]]:
    """What is between two positions, in at most so many splits of about equal size, and none smaller than need be."""
    if start >= end:
        return []
    parts = max(1, min(parts, -(-(end - start) // smallest)))
    if parts == 1:
        return [(start, end)]
    splits: list[tuple[int, int]] = []
    begin = start
    for head, _ in batches(folder, start, end, whole=False):
        if head.end == end or head.end - start >= (end - start) * (len(splits) + 1) // parts:
            splits.append((begin, head.end))
            begin = head.end
    return splits
