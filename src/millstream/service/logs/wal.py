"""The files of the disk log: what they are made of, what of them can be read after a crash, and how a frame gets into them. One thread at a time.

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
4. A file has its name when it is whole: preallocated, with its first frame, synced. So a file without a first frame is damage.
5. What was written and not synced does not count. Opening the log syncs the last file, reads it from the disk and not from memory, and wipes a torn end
   before anything is appended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from millstream.errors import DamageError, StorageError
from millstream.state.durable import lock_folder, sync_folder
from millstream.state.framing import HEAD, Defect, Framed, frame, framed_at

SECTOR = 512
RECORD, STAND, FORGOT = 1, 2, 3
_ENTRY = struct.Struct(">BQQQQI")
_NAME = b"MSWL1\n"
_EMPTY = bytes(SECTOR)


class WalEntry(NamedTuple):
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
    error = DamageError(
        f"{where} is damaged at byte {at}: {what}. What was confirmed behind it cannot be told. "
        f"Restore the file from a copy, or restore the partitions from their snapshots."
    )
    error.object = where
    return error


#: Writes all bytes at a place of a file.
Write = Callable[[int, bytes, int], None]
#: Makes what was written to a file durable.
Sync = Callable[[int], None]


class Trimmed(Protocol):
    trimmed: int


class WalFiles:
    """The files in a node's folder, which this process owns until `close`."""

    def __init__(self, folder: Path, segment_bytes: int, write: Write, sync: Sync) -> None:
        self._folder = folder / "wal"
        self._segment = segment_bytes
        self._write, self._sync = write, sync
        self._fd = -1
        self.file = self._at = self._size = 0
        self.stands: dict[int, tuple[int, int]] = {}  # by partition: term and last position, as written
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for above in (folder, folder.absolute().parent):
                sync_folder(above)
            self._lock = lock_node_folder(folder, "log.lock")
        except OSError as error:
            raise StorageError(f"cannot use {folder} for a log: {error.strerror or error}") from error

    def path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.log"

    def numbers(self) -> list[int]:
        for path in self._folder.glob(".new-*"):
            path.unlink()
        found = sorted(int(path.stem) for path in self._folder.glob("*.log") if path.stem.isdigit())
        for number, following in itertools.pairwise(found):
            if following != number + 1:
                raise DamageError(f"{self.path(number + 1)} is missing: there are files before and behind it. Restore it from a copy.")
        return found

    def load(self, number: int, is_last: bool) -> list[WalGroup]:
        """What is in a file. The last one is made ready to go on: rule 5."""
        path = self.path(number)
        try:
            fd = os.open(path, os.O_RDWR)
            try:
                if is_last:
                    self._sync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                with open(fd, "rb", closefd=False) as handle:
                    data = handle.read()
                groups, end, torn = decode_file(data, str(path), is_last)
                if torn:
                    self._write(fd, bytes(len(data.rstrip(b"\0")) - end), end)
                    self._sync(fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise StorageError(f"cannot open the log {path}: {error.strerror or error}") from error
        if is_last:
            self._fd, self.file, self._at, self._size = fd, number, end, len(data)
        else:
            os.close(fd)
        return groups

    def append(self, entries: Sequence[WalEntry], logs: Mapping[int, Trimmed]) -> FrameRef:
        data = encode_group(entries)
        if self._at + len(data) > self._size:
            self.begin_file(self.file + 1, len(data), logs)
        at = self._at
        self._write(self._fd, data, at)
        self._sync(self._fd)
        self._at = at + padded(len(data))
        for entry in entries:
            if entry.kind == FORGOT:
                self.stands.pop(entry.partition, None)
            else:
                self.stands[entry.partition] = (entry.term, entry.last)
        return FrameRef(self.file, at, len(data))

    def begin_file(self, number: int, room: int, logs: Mapping[int, Trimmed]) -> None:
        """A new file with room for so many bytes, which begins with where all partitions stand. Rule 4."""
        stands = []
        for partition, (term, last) in sorted(self.stands.items()):
            log = logs.get(partition)  # read beside the event loop: a number that only grows, and too low a one does no harm
            stands.append(WalEntry(STAND, partition, term, 0 if log is None else min(log.trimmed, last), last))
        data = encode_group(stands)
        size = max(self._segment, padded(len(data)) + padded(room))
        hidden = self._folder / f".new-{number}"
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)
            self._write(fd, data, 0)
            self._sync(fd)
            os.rename(hidden, self.path(number))
            sync_folder(self._folder)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.file, self._at, self._size = fd, number, padded(len(data)), size

    def close(self) -> None:
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1


def lock_node_folder(folder: Path, name: str) -> int:
    """Locks a node's folder for this process until the descriptor is closed."""
    fd = lock_folder(folder, name)
    if fd is None:
        raise StorageError(f"{folder} is in use by another node: stop it, or give this one a folder of its own (--dir)")
    return fd


def remove_files(paths: list[Path]) -> None:
    """Removes files, oldest first, each durably before the next: what is left has no hole."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        sync_folder(path.parent)
