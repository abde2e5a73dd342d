"""The intake: a durable log of everything that was pushed into a pipeline and is not yet committed. This is its writing end.

Rules
1. One process writes: the folder is locked.
2. A batch counts as received when its bytes are forced to disk. Only then does `END` move beyond it, and only what is before `END` may be read.
3. A write that fails is taken back before anything else is written: the file is cut at `END`, synced, and read from the disk, not from memory (which
   nobody believes after a sync that failed), up to `END`; likewise when an intake is opened. What is not whole then is damage. As long as the disk
   refuses, the intake takes nothing.
4. What a crash leaves behind `END` is either whole, and kept, or torn, and cut off. Anything wrong before it, or before the acknowledged position, is
   damage: an error, and nothing is changed.
5. A segment is created whole (written under another name, forced to disk, renamed) before anything is appended to it.
6. `ACKNOWLEDGED` is durable before anybody is told. Segments wholly before the epoch that was acknowledged last are deleted; that epoch stays
   readable: Spark may ask for it again, if it died before it noted the commit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from millstream.connector.intake import format as layout
from millstream.connector.intake import reader
from millstream.connector.intake.format import IntakeEntry, Mark, advance
from millstream.connector.intake.reader import ACKNOWLEDGED_FILE, END_FILE, Acknowledged, segment_name
from millstream.errors import CheckpointError, DamageError, StorageError
from millstream.state.durable import lock_folder, replace_file, write_all

SEGMENT_SIZE = 64 << 20
_LOCK_FILE = "LOCK"
_HALF = ".new"


class BatchRef(msgspec.Struct, frozen=True):
    end: int
    entries: int
    marks: list[Mark]


class Intake:
    """Opens a folder, recovers it, and appends. `write` belongs to one thread, `acknowledge` to another."""

    def __init__(self, folder: str | os.PathLike[str], segment_size: int = SEGMENT_SIZE) -> None:
        self.folder = Path(folder)
        self._segment_size = segment_size
        self._lock = threading.Lock()  # of the list of segments
        self._held: int | None = None
        self._file = self._end_file = -1
        self._segments: list[int] = []
        self._beginning = 0  # bytes before the first batch of the last segment
        self._is_suspect = False  # rule 3
        self.end = 0
        self.acknowledged = Acknowledged()
        #: acknowledged.position <= end of each of these; how far the streams are at `acknowledged`, and behind the last batch
        self.unacknowledged: list[BatchRef] = []
        self.marks_acknowledged: dict[str, Mark] = {}
        self.marks_received: dict[str, Mark] = {}

    # ---- opening

    def open(self) -> Intake:
        try:
            self._held = lock_folder(self.folder, _LOCK_FILE)
            if self._held is None:
                raise CheckpointError(
                    f"the intake {self.folder} is in use by another process. Stop it, or give this source a folder of its own."
                )
            self._recover()
        except OSError as error:
            self.close()
            raise StorageError(f"the intake {self.folder} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise
        return self

    def _recover(self) -> None:
        for name in os.listdir(self.folder):
            if name.endswith(_HALF):
                os.unlink(self.folder / name)
        self.acknowledged = reader.acknowledged(self.folder)
        told = max(reader.durable_end(self.folder) or 0, self.acknowledged.position)
        self._segments = reader.segments(self.folder)
        if not self._segments:
            if told:
                raise self._damage(f"it was at {told}, and its segments are gone")
            self._begin_segment(0)
        else:
            self._scan(told)
        self._end_file = os.open(self.folder / END_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(self._end_file, reader.encode_end(self.end), 0)

    def _scan(self, told: int) -> None:
        position = self.acknowledged.position
        first = max((at for at, begin in enumerate(self._segments) if begin <= position), default=None)
        if first is None:
            raise self._damage(f"epochs up to {position} are committed, and it begins at {self._segments[0]}")
        at = self._segments[first]
        for number in range(first, len(self._segments)):
            path = self.folder / segment_name(self._segments[number])
            if self._segments[number] != at:
                raise self._damage(f"{path.name} does not follow what ends at {at}")
            at = self._scan_segment(path, number == first, number + 1 == len(self._segments), told)
        if at < told:
            raise self._damage(f"it ends at {at}, and had been durable up to {told}")
        self.end = at

    def _scan_segment(self, path: Path, is_first: bool, is_last: bool, told: int) -> int:
        if is_last:
            self._file = os.open(path, os.O_RDWR)
            _settle(self._file)
        data = path.read_bytes()
        size, at = layout.beginning_size(data[: layout.BEGINNING_SIZE], str(path))
        if is_first:
            advance(self.marks_received, layout.beginning_marks(data[:size], str(path)))
            self.marks_acknowledged = dict(self.marks_received)
        offset = size
        for head, batch in layout.whole_batches(memoryview(data)[size:], at):
            marks = layout.decode_marks(batch, head)
            advance(self.marks_received, marks)
            if head.end <= self.acknowledged.position:
                advance(self.marks_acknowledged, marks)
            elif at < self.acknowledged.position:
                raise self._damage(f"the acknowledged position {self.acknowledged.position} is inside the batch at {at}")
            else:
                self.unacknowledged.append(BatchRef(head.end, head.entries, marks))
            at, offset = head.end, offset + head.size
        if offset < len(data) and not (is_last and at >= told):  # else it is torn
            raise self._damage(f"the batch at {at} in {path.name} does not match its checksum")
        if is_last:
            self._beginning = size
            if offset < len(data):
                os.ftruncate(self._file, offset)
            os.fsync(self._file)
        return at

    def _damage(self, what: str) -> DamageError:
        return DamageError(f"the intake {self.folder} is damaged: {what}. Restore it from a copy, together with the checkpoint.")

    # ---- writing

    def write(self, groups: Sequence[Sequence[IntakeEntry]]) -> list[BatchRef]:
        done: list[BatchRef] = []
        try:
            if self._is_suspect:
                self._take_back()
            if self._written() >= self._segment_size:
                before = self._file
                self._begin_segment(self.end)
                os.close(before)
            at, parts = self.end, []
            for group in groups:
                batch, marks = layout.encode_batch(at, group)
                at += len(batch)
                parts.append(batch)
                done.append(BatchRef(at, len(group), marks))
            write_all(self._file, b"".join(parts), self._beginning + self._written())
            os.fdatasync(self._file)
        except OSError as error:
            self._is_suspect = True
            with contextlib.suppress(OSError):
                self._take_back()
            raise StorageError(f"the intake {self.folder} cannot be written: {error}") from error
        self.end = at
        for ref in done:
            advance(self.marks_received, ref.marks)
        os.pwrite(self._end_file, reader.encode_end(self.end), 0)
        return done

    def _written(self) -> int:
        return self.end - self._segments[-1]

    def _take_back(self) -> None:
        os.ftruncate(self._file, self._beginning + self._written())
        _settle(self._file)
        path, at = self.folder / segment_name(self._segments[-1]), self._segments[-1]
        for head, _ in layout.whole_batches(memoryview(path.read_bytes())[self._beginning :], at):
            at = head.end
        if at < self.end:
            raise self._damage(f"the batch at {at} in {path.name} does not match its checksum, after a write that failed")
        self._is_suspect = False

    def _begin_segment(self, position: int) -> None:
        beginning = layout.encode_beginning(position, self.marks_received.values())
        path = self.folder / segment_name(position)
        try:
            replace_file(path, beginning, beside=path.name + _HALF)
            self._file = os.open(path, os.O_RDWR)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._beginning = len(beginning)
        with self._lock:
            self._segments.append(position)

    # ---- acknowledging

    def acknowledge(self, position: int) -> bool:
        """Everything before this position is committed: durable when this returns. False if that is known already."""
        if position > self.end:
            raise CheckpointError(
                f"epochs are committed up to {position}, and the intake {self.folder} ends at {self.end}: it is not the one that they were read from"
            )
        if position <= self.acknowledged.position:
            return False
        now = Acknowledged(position, self.acknowledged.position)
        try:
            replace_file(self.folder / ACKNOWLEDGED_FILE, msgspec.json.encode(now), beside=ACKNOWLEDGED_FILE + _HALF)
        except OSError as error:
            raise StorageError(f"the intake {self.folder} cannot note what is committed: {error}") from error
        self.acknowledged = now
        self._collect()
        return True

    def _collect(self) -> None:
        """Rule 6. What cannot be deleted now is deleted another time."""
        with self._lock:
            while len(self._segments) > 1 and self._segments[1] <= self.acknowledged.before:
                try:
                    (self.folder / segment_name(self._segments[0])).unlink(missing_ok=True)
                except OSError:
                    return
                del self._segments[0]

    def close(self) -> None:
        for fd in (self._file, self._end_file, self._held):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._file = self._end_file = -1
        self._held = None


def _settle(fd: int) -> None:
    """What is read of a file from here on comes from the disk."""
    os.fdatasync(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
