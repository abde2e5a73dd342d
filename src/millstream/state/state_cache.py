"""The state cache: this host's copy of one shard's entries, in LMDB, shared by its worker processes.

Rules
1. It holds committed entries only, and a marker: the last epoch applied and the run that committed it, written in the same transaction. It is a cache:
   deleting it costs time, never data.
2. Behind the manifest: apply the segments that are newer than the marker. A segment that covers more epochs than are missing may be applied whole, because
   it ends in the same entries. Anything else (ahead, of another history, older than the base): load anew.
3. A reader checks the marker inside its own read transaction, so a writer next to it cannot move the ground under its feet.
4. No fsync: after a power cut the file may be torn, so the folder is named after the boot and the next boot starts afresh.
5. Workers have state caches of their own, and readers have others (`held`), which never go back: a reader may want an older epoch than the newest, and what it
   holds open keeps LMDB from using pages again.
6. Whoever has a state cache open holds a lock in the folder of its checkpoint, so that nobody clears it away (`cache_cleanup.py`).
7. An environment is opened once per process. While somebody holds one of its epochs its map cannot grow, since growing moves it; so readers map much at once.

Why LMDB: several processes may open it (RocksDB has one writer process), and get and open are several times faster. Figures: benchmarks/README.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from millstream.state.cache_cleanup import IN_USE, use
from millstream.state.heartbeat import StateCacheStats
from millstream.state.longkeys import LONG, scan_entries, stored_entry, stored_key, value_of
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef, read_blocks
from millstream.state.storage import Storage

_MARKER = b"\0marker"
_MAP_SIZE = 1 << 30
_CHUNK = 256  # how many entries of a scan are read at a time where threads share a transaction


class _Busy(Exception):
    """The map must move, and somebody holds an epoch."""


class StateCacheView:
    """The entries of a shard as of one epoch: a read transaction. Implements the core's Store."""

    def __init__(self, transaction: lmdb.Transaction, stats: Callable[[], StateCacheStats]) -> None:
        self._transaction = transaction
        self.stats = stats
        self._get: Callable[[bytes], bytes | None] = transaction.get  # type: ignore[assignment]

    def get(self, key: bytes) -> bytes | None:
        return self._get(key) if len(key) < LONG else value_of(key, self._get(stored_key(key)))

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What `get` gives for each of some keys."""
        return list(map(self._get if max(map(len, keys), default=0) < LONG else self.get, keys))

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return scan_entries(self._transaction, start, stop, reverse, _MARKER)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Entries with start <= key < stop, in order, without their values. For short keys only."""
        with self._transaction.cursor() as cursor:
            if cursor.set_range(start):
                moves: Any = cursor.iternext(keys=True, values=False)
                for key in moves:
                    if key >= stop:
                        break
                    yield key

    def close(self) -> None:
        self._transaction.abort()


class StateCache:
    """One shard's LMDB environment in this process."""

    def __init__(self, folder: Path, map_size: int | None = None) -> None:
        self.folder = folder
        self._map_size = map_size or _MAP_SIZE
        self._lock = threading.RLock()
        self._is_retired = False
        self._holders = self._loads = self._catch_ups = self._segments = 0
        self._open()

    def _open(self) -> None:
        for last in (False, True):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._env = lmdb.open(
                    str(self.folder), map_size=self._map_size, sync=False, metasync=False, readahead=True, max_readers=512, max_spare_txns=2
                )
                return
            except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError):
                if last:
                    raise
                shutil.rmtree(self.folder, ignore_errors=True)  # a torn cache: load it anew

    def view(self, storage: Storage, chain: Sequence[SegmentRef], manifest: Manifest | None) -> StateCacheView:
        """The entries as of a manifest (None: before the first epoch), after catching up with it."""
        for _ in range(100):
            try:
                transaction = self._env.begin()
            except lmdb.MapResizedError:
                self._resize(0)
                continue
            if transaction.get(_MARKER) == mark_of(manifest):
                return StateCacheView(transaction, self.stats)
            transaction.abort()
            with self._lock:
                self._catch_up(storage, chain, manifest)
        raise RuntimeError(f"the state cache in {self.folder} keeps changing: two runs share it")

    def hold(self, storage: Storage, chain: Sequence[SegmentRef], manifest: Manifest) -> Held | None:
        """The entries as of a manifest, for as long as somebody wants them and for any thread, whatever becomes of the state cache. None if it has gone past
        that manifest, or would have to move under somebody else's feet: then the log must be read."""
        with self._lock:
            with contextlib.suppress(lmdb.MapResizedError), self._env.begin() as transaction:
                mark = transaction.get(_MARKER)
                if mark is not None and msgspec.msgpack.decode(mark)[0] > manifest.epoch:
                    return None
            try:
                found = Held(self.view(storage, chain, manifest), self._let_go)
            except _Busy:
                return None
            self._holders += 1
        return found

    def stats(self) -> StateCacheStats:
        """How large it is, and what it cost this process so far."""
        stat, info = self._env.stat(), self._env.info()
        return StateCacheStats(
            bytes=(info["last_pgno"] + 1) * stat["psize"],
            entries=max(0, stat["entries"] - 1),  # one of them is the marker, which comes with the first
            loads=self._loads,
            catch_ups=self._catch_ups,
            segments=self._segments,
        )

    def _let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._is_retired and not self._holders:
                self._env.close()

    def _resize(self, size: int) -> None:
        if self._holders:
            raise _Busy
        self._env.set_mapsize(size)

    def _catch_up(self, storage: Storage, chain: Sequence[SegmentRef], manifest: Manifest | None) -> None:
        """With the lock."""
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    marker = transaction.get(_MARKER)
                    if marker == mark_of(manifest):
                        return
                    due = missing(marker, chain, manifest)
                    if due is None:
                        transaction.drop(self._env.open_db(None, txn=transaction), delete=False)
                        due = chain
                    sorted_so_far = empty = len(due) == len(chain)
                    for ref in due:
                        sorted_so_far = self._apply(transaction, storage, ref, sorted_so_far and ref.base)
                    if (mark := mark_of(manifest)) is not None:
                        transaction.put(_MARKER, mark)
                self._loads += empty
                self._catch_ups += not empty
                self._segments += len(due)
                return
            except lmdb.MapFullError:
                self._resize(self._env.info()["map_size"] * 2)
            except lmdb.MapResizedError:
                self._resize(0)
            except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError):
                if self._holders:
                    raise _Busy from None
                self._env.close()
                shutil.rmtree(self.folder, ignore_errors=True)
                self._open()

    def _apply(self, transaction: lmdb.Transaction, storage: Storage, ref: SegmentRef, append: bool) -> bool:
        """Puts and deletes. `append` says that every key is behind all that are there, which is faster; returns whether that still holds."""
        with transaction.cursor() as cursor:
            for keys, values in read_blocks(storage, ref):
                pairs: list[Any] = list(zip(keys, values, strict=True))
                if any(len(key) >= LONG for key in keys):
                    pairs = [stored_entry(*pair) for pair in pairs]
                    append = False
                if None in values:
                    for key, value in pairs:
                        if value is None:
                            transaction.delete(key)
                    pairs = [pair for pair in pairs if pair[1] is not None]
                cursor.putmulti(pairs, append=append)
        return append

    def retire(self) -> None:
        """Nobody comes any more: it is closed when nobody holds an epoch of it."""
        with self._lock:
            self._is_retired = True
            if not self._holders:
                self._env.close()


class Held:
    """A view that threads may share: one reads at a time, a portion of a scan at once."""

    def __init__(self, view: StateCacheView, let_go: Callable[[], None]) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._let_go = weakref.finalize(self, let_go)
        self._let_go.atexit = False

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._view.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._lock:
                part = list(islice(self._view.scan(start, stop), _CHUNK))
            yield from part
            if len(part) < _CHUNK:
                return
            start = part[-1][0] + b"\0"

    def close(self) -> None:
        """Ends the transaction. Who forgets it holds the epoch until this object is gone."""
        with self._lock:
            self._view.close()
        self._let_go()


def mark_of(manifest: Manifest | None) -> bytes | None:
    """What a state cache's marker says when it stands at a manifest."""
    return None if manifest is None else msgspec.msgpack.encode((manifest.epoch, manifest.token_at(manifest.epoch)))


def missing(marker: bytes | None, chain: Sequence[SegmentRef], manifest: Manifest | None) -> Sequence[SegmentRef] | None:
    """The segments that lead from a marker to a manifest, or None if there is no such way."""
    if marker is None or manifest is None:
        return None
    epoch, token = msgspec.msgpack.decode(marker)
    if epoch > manifest.epoch or manifest.token_at(epoch) != token:
        return None
    newer = [ref for ref in chain if ref.last > epoch]
    return None if any(ref.base for ref in newer) else newer


_OPEN: dict[str, StateCache] = {}  # by folder
_IN_USE: dict[Path, int] = {}  # by root: the lock that says so
_OPENING = threading.Lock()


def boot_id() -> str:
    """Tells one boot of the host from the next."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def state_cache_root(checkpoint_id: str, folder: str | None = None) -> Path:
    """The folder of a checkpoint's state caches on this host."""
    return state_caches_folder(folder) / boot_id() / checkpoint_id


def state_caches_folder(folder: str | None = None) -> Path:
    """The folder of all state caches on this host: MILLSTREAM_STATE_CACHE, else one beside the blocks of Spark's executor (in a container that is the volume
    for such things), else one for temporary files."""
    return Path(folder or os.environ.get("MILLSTREAM_STATE_CACHE") or os.path.join(_local_folder(), f"millstream-{os.getuid()}"))


def _local_folder() -> str:
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # Spark tells its Python workers
    if os.path.basename(local).startswith("blockmgr-"):
        local = os.path.dirname(local)
    return local or tempfile.gettempdir()


def open_state_cache(root: Path, lineage: str, shard: int, map_size: int | None = None) -> StateCache:
    """The state cache of a shard, opened once per process. It is named after the state's lineage: a computation that takes over the name of one
    that is gone must not find its rows."""
    folder = f"{root}/{lineage}/{shard}"
    with _OPENING:
        if root not in _IN_USE or not os.path.exists(f"{root}/{IN_USE}"):
            before, _IN_USE[root] = _IN_USE.get(root), use(root)
            if before is not None:
                os.close(before)
        found = _OPEN.get(folder)
        if found is not None and not os.path.exists(f"{folder}/data.mdb"):  # somebody deleted the cache under us
            found.retire()
            found = None
        if found is None:
            found = _OPEN[folder] = StateCache(Path(folder), map_size)
    return found


def close_state_cache(root: Path, lineage: str, shard: int) -> None:
    """Nobody in this process asks for it any more: it is closed when nobody holds an epoch of it, and opened anew if somebody comes after all."""
    with _OPENING:
        found = _OPEN.pop(f"{root}/{lineage}/{shard}", None)
        if root in _IN_USE and not any(folder.startswith(f"{root}/") for folder in _OPEN):
            os.close(_IN_USE.pop(root))
    if found is not None:
        found.retire()
