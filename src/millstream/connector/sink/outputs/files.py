"""Outputs as files: all bytes of a worker in one file, and beside it the log that says how many of them are committed.

    DIR/lock                     held by the server that runs
    DIR/workers/NAME/output      the bytes; those behind the committed offset are a tail that may still go
    DIR/workers/NAME/log         the transactions (`txnlog`)
    DIR/left/NAME.N/             the same, of a worker that has left

Rules
1. Before a vote: the bytes are synced, then the record that promises them. Before a commit is over: its record is synced. A new file counts only when
   its folder is synced too.
2. Committed is what the log says. A reader takes no byte behind that offset, so it needs no lock and no server. Recovery cuts off what is neither
   committed nor promised.
3. An output that is shorter than its log says is refused: bytes were lost, and to fill up with zeros would hide it.
4. A log that has grown is replaced by its condensed form, in one rename.
5. One server owns a folder: a second one would cut what the first one appends.
6. A worker's name becomes a file name only through `file_name`: different names have different ones, of letters, digits, `_`, `-`, `%` and `~` alone.
   A long one is cut and told apart by its SHA-256, behind a `~`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.protocol import txnlog
from millstream.connector.sink.protocol.ledger import Recovered
from millstream.errors import DamageError, SinkError
from millstream.state.durable import lock_folder, replace_file, sync_folder, write_all

#: A log longer than this is replaced by its condensed form.
LOG_LIMIT = 1 << 20
_PIECE = 1 << 20
_LONGEST, _CUT = 120, 40  # characters of a file name


def _sync(fd: int) -> None:
    getattr(os, "fdatasync", os.fsync)(fd)


def file_name(name: str) -> str:
    """The name of the folder that belongs to that worker alone (rule 6).

    >>> file_name("app-w-worker1-id-7"), file_name("../../etc/passwd")
    ('app-w-worker1-id-7', '%2E%2E%2F%2E%2E%2Fetc%2Fpasswd')
    """
    safe = quote(name.encode(), safe="").replace(".", "%2E").replace("~", "%7E")
    return safe if len(safe) <= _LONGEST else f"{safe[:_CUT]}~{hashlib.sha256(name.encode()).hexdigest()}"


class FileOutputs:
    """Outputs in a folder, which this process owns until `close`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        for path in (self.folder, self.folder / "workers", self.folder / "left"):
            path.mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder)
        lock = lock_folder(self.folder)
        if lock is None:
            raise SinkError(f"another sink writes to {self.folder}: stop it first, or use another folder")
        self._lock = lock

    def __call__(self, worker: str) -> FileOutput:
        return FileOutput(self.folder, worker)

    def close(self) -> None:
        os.close(self._lock)


class FileOutput(Output):
    def __init__(self, folder: Path, worker: str) -> None:
        self._root, self._worker = folder, worker
        self._folder = folder / "workers" / file_name(worker)
        self._data = self._log = -1
        self._log_size = 0

    def recover(self) -> Recovered:
        self.close()
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            sync_folder(self._folder.parent)
        fresh = not (self._folder / "log").exists()
        self._log = os.open(self._folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._data = os.open(self._folder / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if fresh:
            sync_folder(self._folder)
        found, size = self._read_log()
        os.ftruncate(self._log, size)  # behind it is a torn tail, if anything
        if not size:
            write_all(self._log, txnlog.condensed(self._worker, Recovered()))
        os.fsync(self._log)
        self._log_size = os.fstat(self._log).st_size
        keep, there = found.held, os.fstat(self._data).st_size
        if there < keep:
            raise DamageError(
                f"the output {self._folder / 'output'} has {there} bytes, but its log says that {keep} were made durable. "
                f"Restore it from a copy, or move the folder away if the worker may begin again."
            )
        os.ftruncate(self._data, keep)
        os.fsync(self._data)
        return found

    def _read_log(self) -> tuple[Recovered, int]:
        """What the log says, and how many bytes of it say something."""
        data = os.pread(self._log, os.fstat(self._log).st_size, 0)
        entries, size = txnlog.decode_log(data, str(self._folder / "log"))
        named = [entry.worker for entry in entries if isinstance(entry, txnlog.Named)]
        if named and named[-1] != self._worker:
            raise DamageError(f"{self._folder / 'log'} belongs to worker {named[-1]!r}, not to {self._worker!r}")
        return txnlog.recovered(entries), size

    def begin(self, offset: int) -> None:
        there = os.fstat(self._data).st_size
        if there != offset:
            raise DamageError(f"the output {self._folder / 'output'} has {there} bytes instead of {offset}: somebody else has changed it")

    def begin_next(self, offset: int) -> bool:
        self.begin(offset)
        return True

    def append(self, data: bytes) -> None:
        write_all(self._data, data)

    def prepare(self, txn: str, start: int, end: int) -> None:
        if end > start:
            _sync(self._data)
        self._record(txnlog.Prepared(txn, start, end))

    def veto(self, txn: str, why: str) -> None:
        self._record(txnlog.Vetoed(txn, why))

    def commit(self, txn: str, end: int) -> None:
        self._record(txnlog.Committed(txn, end))
        if self._log_size > LOG_LIMIT:
            self._condense()

    def rollback(self, txn: str, committed: int) -> None:
        self._record(txnlog.RolledBack(txn, committed))  # first: a promise whose bytes are gone would be damage
        os.ftruncate(self._data, committed)

    def seal(self, fence: int) -> None:
        self._record(txnlog.Sealed(fence))

    def same(self, offset: int, data: bytes) -> bool:
        return os.pread(self._data, len(data), offset) == data

    def archive(self) -> None:
        self.close()
        if not self._folder.is_dir():
            return
        number = 0
        while (target := self._root / "left" / f"{self._folder.name}.{number}").exists():
            number += 1
        self._folder.rename(target)
        sync_folder(target.parent)
        sync_folder(self._folder.parent)

    def close(self) -> None:
        for fd in (self._data, self._log):
            if fd >= 0:
                os.close(fd)
        self._data = self._log = -1

    def _record(self, entry: txnlog.LogEntry) -> None:
        data = txnlog.encode_entry(entry)
        write_all(self._log, data)
        _sync(self._log)
        self._log_size += len(data)

    def _condense(self) -> None:
        found, _ = self._read_log()
        replace_file(self._folder / "log", txnlog.condensed(self._worker, found), beside="log.new")
        os.close(self._log)
        self._log = os.open(self._folder / "log", os.O_RDWR | os.O_APPEND)
        self._log_size = os.fstat(self._log).st_size


def committed(folder: Path | str, worker: str) -> int:
    """How many bytes of a worker's output are committed, with a server running or not."""
    path = Path(folder) / "workers" / file_name(worker) / "log"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SinkError(f"{folder} has no output of a worker {worker!r}. It has: {', '.join(sorted(workers(folder))) or 'none'}.") from None
    entries, _ = txnlog.decode_log(data, str(path))
    return txnlog.recovered(entries).committed


def workers(folder: Path | str) -> list[str]:
    """The names of the workers whose output is in a folder."""
    if not Path(folder).is_dir():
        raise SinkError(f"there is no folder {folder}")
    found = []
    for path in sorted((Path(folder) / "workers").glob("*/log")):
        entries, _ = txnlog.decode_log(path.read_bytes(), str(path))
        found += [entry.worker for entry in entries[:1] if isinstance(entry, txnlog.Named)]
    return found


def read(folder: Path | str, worker: str, *, follow: bool = False, every: float = 0.2) -> Iterator[bytes]:
    """The committed bytes of a worker, piece by piece; with `follow` also those that are committed later, without end."""
    end = committed(folder, worker)
    path = Path(folder) / "workers" / file_name(worker) / "output"
    with open(path, "rb", buffering=0) as file:
        at = 0
        while True:
            while at < end:
                piece = os.pread(file.fileno(), min(_PIECE, end - at), at)
                if not piece:
                    raise DamageError(f"the output of worker {worker!r} in {folder} ends at {at}, but {end} bytes are committed")
                at += len(piece)
                yield piece
            if not follow:
                return
            time.sleep(every)
            found = committed(folder, worker)
            if not os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                raise SinkError(f"worker {worker!r} has left, and its output was archived; what follows under this name begins at 0")
            end = max(end, found)
