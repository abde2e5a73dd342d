"""The files of the disk log: which there are, what a crash has left of the last one, and how a frame gets into them. One thread at a time.

Rules
1. A file has its name when it is whole: preallocated, with its first frame, synced. So a file without a first frame is damage.
2. What was written and not synced does not count. Opening the log syncs the last file, reads it from the disk and not from memory, and wipes a torn end
   before anything is appended.
3. A sync that failed is never tried again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from millstream.errors import DamageError, StorageError
from millstream.service.logs.frames import FORGOT, STAND, FrameRef, WalEntry, WalGroup, decode_file, encode_group, padded
from millstream.state.durable import lock_folder, sync_folder

#: Writes all bytes at a place of a file.
Write = Callable[[int, bytes, int], None]
#: Makes what was written to a file durable.
Sync = Callable[[int], None]


class Trimmed(Protocol):
    """What is asked of a partition's log: how far it was trimmed."""

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
        """The name of a file."""
        return self._folder / f"{number:012d}.log"

    def numbers(self) -> list[int]:
        """The files that there are; DamageError if one is missing."""
        for path in self._folder.glob(".new-*"):
            path.unlink()
        found = sorted(int(path.stem) for path in self._folder.glob("*.log") if path.stem.isdigit())
        for number, following in itertools.pairwise(found):
            if following != number + 1:
                raise DamageError(f"{self.path(number + 1)} is missing: there are files before and behind it. Restore it from a copy.")
        return found

    def load(self, number: int, is_last: bool) -> list[WalGroup]:
        """What is in a file. The last one is made ready to go on: rule 2."""
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
        """Writes one frame of entries, and syncs it."""
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
        """A new file with room for so many bytes, which begins with where all partitions stand. Rule 1."""
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
        """Closes the files and ends the lock."""
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
