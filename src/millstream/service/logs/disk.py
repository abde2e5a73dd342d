"""The log on a node's own disk: one for all its partitions, with one write and one sync for all that is pending.

    FOLDER/log.lock             held by the process that uses the folder
    FOLDER/wal/<number>.log     files of frames (`wal.py`), preallocated

Rules
1. One thread writes. It takes all that is pending, makes one frame of it, writes it, syncs it, and tells the event loop once. So a thousand partitions share
   a sync, and none has a file, a task or a timer.
2. A sync that failed is never tried again: the kernel may have dropped what it could not write, and would report success the second time. The log has
   failed then, until a restart; what was under way may be there or not.
3. Positions, terms and what was trimmed are known from the newest file alone, since a file begins with where all partitions stand. So the oldest
   files go as soon as all their records are trimmed or forgotten. They go oldest first: what is left has no hole.
4. The event loop owns what readers see (index, positions); the thread owns the files (`wal.py`). They exchange messages only.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import DamageError, Fenced, NotReady, StorageError, UnknownOutcome
from millstream.service.logs import wal
from millstream.service.messages import LogRecord, decode_record, encode_record
from millstream.state.durable import write_all
from millstream.state.storage import LocalStorage, Storage

SEGMENT = 64 << 20
_GROUP = 8 << 20  # bytes that go into one frame at most, unless one record has more
_READ = 4 << 20  # bytes that are read at once
_MANY = 4  # files, before partitions are asked for snapshots

_REMOVED = 1 << 62  # the term of a partition that is gone: no other is as high


class PendingEntry(NamedTuple):
    """An entry on its way to the thread, and the future that is told when it is durable."""

    entry: wal.WalEntry
    log: DiskLog
    future: asyncio.Future[None] | None


class DiskLog:
    """The log of one partition. Made by `SharedDiskLog.of`."""

    alone = True

    def __init__(self, shared: SharedDiskLog, partition: int) -> None:
        self.partition = partition
        self.term = 0  # nothing of a lower term is taken
        self.next = 1  # where the next append begins
        self.last = 0  # confirmed
        self.trimmed = 0
        self.frames: list[wal.FrameRef] = []  # that have what was not trimmed, and the last position of each: an index (rule 4)
        self._lasts = array("Q")
        self._shared = shared

    async def seal(self, term: int) -> int:
        if term < self.term:
            raise self._too_late(term)
        last, self.term = self.next - 1, term
        await self._shared.take(self, wal.STAND, term, self.trimmed, last, b"")
        return last

    def append(self, record: LogRecord) -> Awaitable[None]:
        term, first, last = record.term, record.first, record.last
        if term >= self.term and first == self.next and last >= first:
            self.term = term
            self.next = last + 1
            return self._shared.take(self, wal.RECORD, term, first, last, encode_record(record))
        if self._shared.failed is not None:
            return self._shared.take(self, wal.RECORD, term, first, last, b"")
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if term < self.term:
            refused.set_exception(self._too_late(term))
        else:
            refused.set_exception(ValueError(f"positions {first} to {last} do not follow {self.next - 1} in partition {self.partition}"))
        return refused

    def _too_late(self, term: int) -> Fenced:
        if self.term == _REMOVED:
            return Fenced(f"partition {self.partition} was removed from this node")
        return Fenced(f"partition {self.partition} is sealed in term {self.term}: term {term} is over")

    async def read(self, after: int) -> AsyncIterator[LogRecord]:
        if after < self.trimmed and after < self.last:
            raise DamageError(
                f"the log of partition {self.partition} begins behind position {self.trimmed}: what follows {after} is needed and has been trimmed. "
                f"Restore the partition from a newer snapshot."
            )
        while after < self.last:
            begin = end = bisect_right(self._lasts, after)
            size = 0
            while end < len(self.frames) and size < _READ:
                size += self.frames[end].size
                end += 1
            if begin == end:
                raise DamageError(f"the log of partition {self.partition} has nothing behind position {after}, but {self.last} is its last")
            for record in await asyncio.to_thread(self._shared.records_in, self.partition, self.frames[begin:end]):
                if record.last > after:
                    if record.first > after + 1 and record.first > self.trimmed + 1:
                        raise DamageError(f"the log of partition {self.partition} has no record of position {after + 1}")
                    after = record.last
                    yield record

    def confirmed(self, frame: wal.FrameRef, first: int, last: int) -> None:
        """Rule 4: the thread has written positions first to last."""
        if self.frames and self.frames[-1] == frame:
            self._lasts[-1] = last
        else:
            if not self.frames:
                self.trimmed = first - 1
            self.frames.append(frame)
            self._lasts.append(last)
        self.last = last

    async def confirm(self, term: int) -> None:
        """No other process can seal this log while the folder is locked."""
        if term < self.term:
            raise self._too_late(term)

    async def trim(self, upto: int) -> None:
        upto = min(upto, self.last)
        if upto > self.trimmed:
            self.trimmed = upto
            gone = bisect_right(self._lasts, upto)
            del self.frames[:gone], self._lasts[:gone]
            await self._shared.sweep()

    async def close(self) -> None:
        """Nothing of its own is open."""


class SharedDiskLog:
    """The files and the thread that all partitions of a node share. `write` and `sync` can be others, for tests of what disks do."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT, *, write: wal.Write = write_all, sync: wal.Sync = os.fdatasync) -> None:
        self.folder = folder
        self.failed: str | None = None  # why nothing is taken any more
        self._is_closed = False
        self._logs: dict[int, DiskLog] = {}
        self._files: dict[int, dict[int, int]] = {}  # by number: the last position of each partition in it
        self._queue: queue.SimpleQueue[PendingEntry | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wal = wal.WalFiles(folder, segment_bytes, write, sync)
        try:
            self._open()
        except BaseException:
            self._wal.close()
            raise

    # opening: rule 3, and rule 5 of `wal.py`

    def _open(self) -> None:
        files = self._wal
        numbers = files.numbers()
        for number in numbers:
            self._files[number] = {}
            for group in files.load(number, number == numbers[-1]):
                frame = wal.FrameRef(number, group.at, group.size)
                for entry in group.entries:
                    self._know(entry, frame, begins=number == numbers[0] and group.at == 0)
        for partition, log in self._logs.items():
            log.next = log.last + 1
            if not log.frames:
                log.trimmed = log.last
            files.stands[partition] = (log.term, log.last)
        if not numbers:
            files.begin_file(1, 0, {})
            self._files[1] = {}

    def _know(self, entry: wal.WalEntry, frame: wal.FrameRef, begins: bool) -> None:
        kind, partition, term, first, last, _ = entry
        if kind == wal.FORGOT:
            self._drop(partition)
            return
        log, hole = self.of(partition), ""
        log.term = max(log.term, term)
        if kind == wal.STAND:
            log.trimmed = max(log.trimmed, first)
            if begins:
                log.last = last
            elif last != log.last:
                hole = f"{last} positions were written, and {log.last} are found"
        elif first != log.last + 1:
            hole = f"position {first} comes behind {log.last}"
        else:
            log.confirmed(frame, first, last)
            self._files[frame.file][partition] = last
        if hole:
            raise wal.damaged(str(self._wal.path(frame.file)), frame.at, f"partition {partition} has a hole, {hole}")

    # the event loop's side

    def of(self, partition: int) -> DiskLog:
        found = self._logs.get(partition)
        if found is None:
            found = self._logs[partition] = DiskLog(self, partition)
        return found

    def home(self, partition: int) -> Storage:
        return LocalStorage(self.folder)

    def take(self, log: DiskLog, kind: int, term: int, first: int, last: int, data: bytes) -> asyncio.Future[None]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, name=f"log {self.folder.name}", daemon=True)
            self._thread.start()
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failed is not None or self._is_closed:
            future.set_exception(NotReady(f"the log in {self.folder} takes nothing any more: {self.failed or 'it is closed'}"))
        else:
            self._queue.put(PendingEntry(wal.WalEntry(kind, log.partition, term, first, last, data), log, future))
        return future

    def forget(self, partition: int) -> None:
        log = self._drop(partition)
        if log is not None:
            log.term = _REMOVED
            if self.failed is None and not self._is_closed:
                self._queue.put(PendingEntry(wal.WalEntry(wal.FORGOT, partition, 0, 0, 0), log, None))

    def _drop(self, partition: int) -> DiskLog | None:
        for held in self._files.values():
            held.pop(partition, None)
        return self._logs.pop(partition, None)

    def pressing(self) -> list[int]:
        old = sorted(self._files)[:-_MANY]
        return sorted({p for number in old for p, last in self._files[number].items() if last > self.of(p).trimmed})

    async def sweep(self) -> None:
        gone: list[Path] = []
        for number in sorted(self._files)[:-1]:
            held = self._files[number]
            for partition in [p for p, last in held.items() if last <= self.of(p).trimmed]:
                del held[partition]
            if held:
                break
            gone.append(self._wal.path(number))
            del self._files[number]
        if gone:
            await asyncio.to_thread(wal.remove_files, gone)

    def records_in(self, partition: int, frames: list[wal.FrameRef]) -> list[LogRecord]:
        """The records of a partition in some frames. Called in a thread."""
        found: list[LogRecord] = []
        for number, group in groupby(frames, key=attrgetter("file")):
            path = self._wal.path(number)
            try:
                with path.open("rb", buffering=0) as file:
                    for frame in group:
                        entries = wal.decode_group(os.pread(file.fileno(), frame.size, frame.at), frame.at, str(path))
                        found.extend(decode_record(one.data) for one in entries if one.kind == wal.RECORD and one.partition == partition)
            except FileNotFoundError as error:
                raise DamageError(f"{path} is gone: partition {partition} was trimmed while it was read") from error
            except OSError as error:
                raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
        return found

    def _written(self, frame: wal.FrameRef, group: list[PendingEntry]) -> None:
        held = self._files.setdefault(frame.file, {})
        for entry, log, future in group:
            if entry.kind == wal.RECORD and log.term != _REMOVED:
                log.confirmed(frame, entry.first, entry.last)
                held[log.partition] = entry.last
            if future is not None and not future.done():
                future.set_result(None)

    def _give_up(self, why: str, group: list[PendingEntry]) -> None:
        self.failed = why
        for _, _, future in group:
            if future is not None and not future.done():
                future.set_exception(UnknownOutcome(f"the log in {self.folder} failed: {why}. The write may be there after a restart."))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._wal.close()

    # the thread's side: rules 1 and 2

    def _work(self) -> None:
        failed = ""
        while True:
            group, is_over = self._pending()
            if group:
                if not failed:
                    try:
                        tell: tuple[Any, ...] = (self._written, self._wal.append([pending.entry for pending in group], self._logs), group)
                    except Exception as error:  # whatever it is: no caller waits for ever
                        failed = f"{getattr(error, 'strerror', None) or error} ({self._wal.path(self._wal.file)})"
                if failed:
                    tell = (self._give_up, failed, group)
                assert self._loop is not None
                try:
                    self._loop.call_soon_threadsafe(*tell)
                except RuntimeError:  # the loop is closed: no caller waits
                    return
            if is_over:
                return

    def _pending(self) -> tuple[list[PendingEntry], bool]:
        group: list[PendingEntry] = []
        item, size = self._queue.get(), 0
        while item is not None:
            group.append(item)
            size += len(item.entry.data)
            if size >= _GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True


@dataclass(frozen=True)
class DiskKind:
    """A log on the node's own disk. A write is confirmed when it is on the disk; if the disk is lost, so is the log."""

    segment_bytes: int = SEGMENT
    place = "wal"
    shared = False
    keeps = True

    def open(self, folder: Path) -> SharedDiskLog:
        return SharedDiskLog(folder, self.segment_bytes)

    def describe(self) -> str:
        return "disk"


disk = DiskKind
