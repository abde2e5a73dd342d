"""The store in LMDB: one environment per node, for what does not fit in memory or must outlive the process.

    FOLDER/lmdb/durable          what is synced with every apply
    FOLDER/lmdb/<boot of the host>    what is not

    8 bytes of partition, then the key of an entry; all ones, then 8 bytes of partition: the position that was applied

Rules
1. `applied` is written in the transaction of what was applied. So after kill -9 the store goes on from there.
2. Without syncs a power cut can tear the file. So its folder is named after the boot of the host: another boot begins afresh, from snapshot and log.
3. A pin is a read transaction. While it is open LMDB uses no page again that it can see: a pin that stays open makes the file grow.
4. Gets of the thread that opened the store (the event loop's) share one read transaction; it ends with the next write, since it would keep old pages.
   Another thread may write (a restore): the owner sees that and begins anew. LMDB lets in one writer at a time.
5. A partition without `applied` has no entries: what a removal that was killed has left of it goes when the partition is opened.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import lmdb as _lmdb

from millstream.core.keyspace import after
from millstream.errors import StorageError
from millstream.service.messages import Change
from millstream.service.stores.store_contract import Pinned
from millstream.state.longkeys import LONG, scan_entries, stored_entry, stored_key, value_of
from millstream.state.state_cache import boot_id

_NUMBER = struct.Struct(">Q")
_APPLIED = b"\xff" * _NUMBER.size
_SHORT = LONG - _NUMBER.size
_PINS = 4096
_CHUNK = 10_000
_PORTION = 1_000  # entries that are deleted at once, while others may want to write


def _found(transaction: _lmdb.Transaction, prefix: bytes, key: bytes) -> bytes | None:
    full = prefix + key
    if len(full) < LONG:
        found: bytes | None = transaction.get(full)  # type: ignore[assignment]
        return found
    return value_of(full, transaction.get(stored_key(full)))  # type: ignore[arg-type]


def _applied(transaction: _lmdb.Transaction, prefix: bytes) -> int:
    found = transaction.get(_APPLIED + prefix)
    return 0 if found is None else int(_NUMBER.unpack(found)[0])


class LmdbPin:
    """The entries as of one position: a read transaction."""

    def __init__(self, transaction: _lmdb.Transaction, prefix: bytes) -> None:
        self._transaction, self._prefix = transaction, prefix
        self.applied = _applied(transaction, prefix)

    def get(self, key: bytes) -> bytes | None:
        return _found(self._transaction, self._prefix, key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._between(self._prefix + start, self._prefix + stop)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._between(self._prefix, after(self._prefix))

    def _between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in scan_entries(self._transaction, low, high):
            yield key[len(self._prefix) :], value

    def close(self) -> None:
        self._transaction.abort()


class LmdbStore:
    def __init__(self, shared: SharedLmdb, partition: int) -> None:
        self.durable = shared.durable
        self._shared = shared
        self._prefix = _NUMBER.pack(partition)
        with contextlib.closing(self.pin()) as pinned:
            self.applied = pinned.applied
            is_left_over = self.applied == 0 and next(pinned.entries(), None) is not None
        if is_left_over:
            shared.clear(self._prefix)

    def get(self, key: bytes) -> bytes | None:
        return _found(self._shared.reader(), self._prefix, key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with contextlib.closing(self.pin()) as pinned:
            yield from pinned.scan(start, stop)

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        with self._shared.writing() as transaction:
            self._put(transaction, changes)
            transaction.put(_APPLIED + self._prefix, _NUMBER.pack(upto))
        self.applied = upto

    def _put(self, transaction: _lmdb.Transaction, changes: Iterable[Change]) -> None:
        prefix = self._prefix
        last = dict(changes)
        if any(len(key) >= _SHORT for key in last):
            pairs = [stored_entry(prefix + key, value) for key, value in last.items()]
        else:
            pairs = [(prefix + key, value) for key, value in last.items()]
        if None in last.values():
            for key, value in pairs:
                if value is None:
                    transaction.delete(key)
            pairs = [pair for pair in pairs if pair[1] is not None]
        with transaction.cursor() as cursor:
            cursor.putmulti(pairs)  # type: ignore[arg-type]

    def pin(self) -> Pinned:
        return LmdbPin(self._shared.reading(), self._prefix)

    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        moves = iter(entries)
        with self._shared.writing() as transaction:
            _delete(transaction, self._prefix)
            while chunk := list(islice(moves, _CHUNK)):
                self._put(transaction, chunk)
            transaction.put(_APPLIED + self._prefix, _NUMBER.pack(upto))
        self.applied = upto

    def close(self) -> None:
        """Nothing of its own is open."""


def _delete(transaction: _lmdb.Transaction, prefix: bytes, most: int = 1 << 62) -> bool:
    """Deletes entries of a partition, at most so many. Whether there may be more."""
    with transaction.cursor() as cursor:
        found = cursor.set_range(prefix)
        while found and most and bytes(cursor.key()).startswith(prefix):
            found = cursor.delete() and bool(cursor.key())
            most -= 1
    return not most


class SharedLmdb:
    """The environment that the partitions of a node share. It is opened once per process, as LMDB demands."""

    def __init__(self, folder: Path, durable: bool, map_size: int) -> None:
        self.folder, self.durable = folder, durable
        self._users = 0
        self._stores: dict[int, LmdbStore] = {}
        self._reader: _lmdb.Transaction | None = None
        self._owner = threading.get_ident()
        self._version = self._seen = 0
        self._clearing: list[threading.Thread] = []
        self._is_closing = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.env = _lmdb.open(
                str(folder), map_size=map_size, sync=durable, metasync=durable, readahead=False, max_readers=_PINS, max_spare_txns=8
            )
        except (_lmdb.Error, OSError) as error:
            raise StorageError(f"cannot open the store {folder}: {error}") from error

    def reading(self) -> _lmdb.Transaction:
        """What is there now, for as long as the transaction is open."""
        try:
            return self.env.begin()
        except _lmdb.ReadersFullError as error:
            raise StorageError(f"{_PINS} snapshots, scans and watches read {self.folder} at once, and there can be no more") from error

    def reader(self) -> _lmdb.Transaction:
        """What is there now, for a get. Rule 4."""
        if self._owner != threading.get_ident():
            return self.reading()  # it ends with its last user
        reader = self._reader
        if reader is not None:
            if self._seen == self._version:
                return reader
            reader.abort()
        self._seen = self._version
        reader = self._reader = self.reading()
        return reader

    @contextlib.contextmanager
    def writing(self) -> Iterator[_lmdb.Transaction]:
        """One change of the environment: all of it, or nothing and a StorageError."""
        if self._reader is not None and self._owner == threading.get_ident():
            self._reader.abort()  # a reader of what was before would keep its pages
            self._reader = None
        try:
            with self.env.begin(write=True) as transaction:
                yield transaction
        except _lmdb.Error as error:
            is_full = isinstance(error, _lmdb.MapFullError)
            hint = "Open it with a larger map_size." if is_full else "Make room or repair the disk, then start again."
            raise StorageError(f"cannot write {self.folder}: {error}. Nothing of it was applied. {hint}") from error
        self._version += 1  # readers of what was before are old

    def clear(self, prefix: bytes) -> None:
        """Rule 5: the entries of a partition without `applied` go, in portions."""
        more = True
        while more and not self._is_closing:
            with self.writing() as transaction:
                more = _applied(transaction, prefix) == 0 and _delete(transaction, prefix, _PORTION)

    def of(self, partition: int) -> LmdbStore:
        found = self._stores.get(partition)
        if found is None:
            found = self._stores[partition] = LmdbStore(self, partition)
        return found

    def forget(self, partition: int) -> None:
        """Its entries do not count from now on, and go one after the other beside the event loop."""
        self._stores.pop(partition, None)
        prefix = _NUMBER.pack(partition)
        with self.writing() as transaction:
            transaction.delete(_APPLIED + prefix)
        thread = threading.Thread(target=self.clear, args=(prefix,), name=f"clears partition {partition}", daemon=True)
        self._clearing = [other for other in self._clearing if other.is_alive()] + [thread]
        thread.start()

    def close(self) -> None:
        """Closes the environment, when its last user in this process has closed it."""
        with _OPENING:
            self._users -= 1
            if self._users:
                return
            _OPEN.pop(self.folder, None)
        self._is_closing = True
        for thread in self._clearing:
            thread.join()
        self._reader = None
        self._stores.clear()
        self.env.close()


_OPEN: dict[Path, SharedLmdb] = {}
_OPENING = threading.Lock()


def _folder(root: Path, durable: bool) -> Path:
    """Rule 2."""
    if durable:
        return root / "durable"
    boot = boot_id()
    for other in root.glob("*") if root.is_dir() else ():
        if other.name != "durable" and (other.name != boot or boot == "unknown") and other not in _OPEN:
            shutil.rmtree(other, ignore_errors=True)
    return root / boot


@dataclass(frozen=True)
class LmdbKind:
    """A store on a disk of the node, for more than fits into memory: one LMDB environment for all its partitions. After a restart it goes on where it was.

    durable: every change is on the disk before it counts, so no log is needed (`log=ms.service.logs.none()`). map_size: its limit, which costs addresses only.
    """

    durable: bool = False
    map_size: int = 1 << 38

    def open(self, folder: Path) -> SharedLmdb:
        with _OPENING:
            place = _folder(folder.absolute() / "lmdb", self.durable)
            found = _OPEN.get(place)
            if found is None:
                found = _OPEN[place] = SharedLmdb(place, self.durable, self.map_size)
            found._users += 1
        return found

    def describe(self) -> str:
        return "lmdb, durable" if self.durable else "lmdb"
