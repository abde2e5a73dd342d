"""A fast store over a slow one: a cache on a local disk or in memory over a managed disk.

Rules
1. The slow store is written first, and decides: what it refuses is never seen. Scans, pins and `applied` are its own.
2. The fast one keeps copies of values, at most so many, those asked for or written last. It may lose any of them, or all, at any moment: a copy that is
   not there is read from the slow one.
3. Only a copy that this process has put there, and has not changed since, is served: what a fast store remembers of an earlier life is cleared. A fast
   store that fails is not asked again, since it may still have what was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from millstream.errors import DefinitionError
from millstream.service.messages import Change
from millstream.service.stores.memory import memory
from millstream.service.stores.store_contract import KeyStore, Pinned, SharedStore, StoreKind

_TOGETHER = 256  # copies that are written to the fast store at once
_log = logging.getLogger("millstream.service")


class CachedStore:
    """The entries of one partition, and copies of some."""

    def __init__(self, fast: KeyStore | None, slow: KeyStore, entries: int) -> None:
        self._fast, self._slow, self._limit = fast, slow, entries
        self.durable = slow.durable
        self._known: dict[bytes, None] = {}  # copies in the fast store, oldest first
        self._fresh: dict[bytes, bytes] = {}  # copies that are not there yet; they count before those that are
        self._dead: set[bytes] = set()  # keys that the fast store may have, and that are not served from it any more
        if fast is not None:
            try:
                fast.replace((), 0)
            except Exception as error:
                self._lose(error)

    @property
    def applied(self) -> int:
        """The slow one's."""
        return self._slow.applied

    def get(self, key: bytes) -> bytes | None:
        value = self._fresh.get(key)
        if value is not None:
            return value
        if key in self._known and self._fast is not None:
            try:
                value = self._fast.get(key)
            except Exception as error:
                self._lose(error)
            if value is not None:
                if key in self._known:
                    del self._known[key]
                    self._known[key] = None
                return value
            self._known.pop(key, None)
            self._dead.add(key)
        value = self._slow.get(key)
        if value is not None and self._fast is not None:
            self._fresh[key] = value
            self._flush()
        return value

    def _flush(self) -> None:
        """Hands copies to the fast store, when there are enough of them, and takes old ones away."""
        if self._fast is None or len(self._fresh) + len(self._dead) < min(_TOGETHER, self._limit):
            return
        fresh, gone, known = self._fresh, self._dead, self._known
        self._fresh, self._dead = {}, set()
        for key in fresh:
            if key in known:
                del known[key]
                gone.add(key)
        for key in list(fresh)[: -self._limit]:
            del fresh[key]
        for key in list(islice(known, max(0, len(known) + len(fresh) - self._limit))):
            del known[key]
            gone.add(key)
        try:
            self._fast.apply([*((key, None) for key in gone), *fresh.items()], self._slow.applied)
        except Exception as error:
            self._lose(error)
            return
        known.update(dict.fromkeys(fresh))

    def _lose(self, error: Exception) -> None:
        """Rule 3."""
        _log.warning("the fast store of a cached one failed and is not used any more: %s", error)
        self._fast = None
        self._known, self._fresh, self._dead = {}, {}, set()

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._slow.scan(start, stop)

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        self._slow.apply(changes, upto)
        if self._fast is None:
            return
        for key, value in changes:
            if value is None:
                self._fresh.pop(key, None)
                if key in self._known:
                    del self._known[key]
                    self._dead.add(key)
            else:
                self._fresh[key] = value
        self._flush()

    def pin(self) -> Pinned:
        return self._slow.pin()

    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        self._slow.replace(entries, upto)
        self._known, self._fresh, self._dead = {}, {}, set()
        if self._fast is not None:
            try:
                self._fast.replace((), 0)
            except Exception as error:
                self._lose(error)

    def close(self) -> None:
        """Copies may go."""
        self._known, self._fresh, self._dead = {}, {}, set()
        self._slow.close()


class SharedCached:
    """What the partitions of a node share of both stores."""

    def __init__(self, fast: SharedStore | None, slow: SharedStore, entries: int) -> None:
        self._fast, self._slow, self._entries = fast, slow, entries
        self._stores: dict[int, CachedStore] = {}

    def of(self, partition: int) -> CachedStore:
        found = self._stores.get(partition)
        if found is None:
            fast = None if self._fast is None else self._fast.of(partition)
            found = self._stores[partition] = CachedStore(fast, self._slow.of(partition), self._entries)
        return found

    def forget(self, partition: int) -> None:
        self._stores.pop(partition, None)
        self._slow.forget(partition)
        if self._fast is not None:
            self._fast.forget(partition)

    def close(self) -> None:
        self._stores.clear()
        self._slow.close()
        if self._fast is not None:
            self._fast.close()


@dataclass(frozen=True)
class CachedKind:
    """See `cached`."""

    fast: StoreKind
    over: StoreKind
    entries: int

    @property
    def durable(self) -> bool:
        """The slow one's."""
        return self.over.durable

    def open(self, folder: Path) -> SharedCached:
        slow = self.over.open(folder)
        try:
            fast: SharedStore | None = self.fast.open(folder / "cache")
        except Exception as error:  # rule 2: a cache that is not there is an empty one
            _log.warning("there is no cache over the store in %s: %s", folder, error)
            fast = None
        return SharedCached(fast, slow, self.entries)

    def describe(self) -> str:
        return f"{self.over.describe()}, {self.entries} entries cached in {self.fast.describe()}"


def cached(fast: StoreKind | None = None, *, over: StoreKind, entries: int = 100_000) -> CachedKind:
    """A store with copies of the values used last, in a faster one (memory, if none is given). entries: how many copies a partition has at most.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = cached(memory(), over=memory(), entries=10).open(Path(folder)).of(1)
    ...     store.apply([(b"Ka", b"1")], upto=1)
    ...     store.get(b"Ka")
    b'1'
    """
    if entries < 1:
        raise DefinitionError(f"entries={entries}: a cache has at least one")
    return CachedKind(fast or memory(), over, entries)
