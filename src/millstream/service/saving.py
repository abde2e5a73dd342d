"""How a partition's entries are saved and brought back: snapshots beside its log, snapshots for operators, and restores.

Rules
1. A snapshot beside the log (`home`) covers the log up to its position, so the log may be trimmed there. It is whole before anything is trimmed.
2. A store that is behind the newest snapshot of its home begins with that snapshot; then comes the log.
3. A restore is decided by the log, then written as a snapshot beside it, then seen. Killed in between, a partition comes back as it was before, or
   restored; never half, and never seen and then gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from millstream.core.keyspace import after
from millstream.errors import RefusedRequest
from millstream.service.messages import ENTRY
from millstream.service.partition import Partition
from millstream.service.stores.base import KeyStore, Pinned
from millstream.service.stores.snapshots import Snapshot, drop_older, newest_snapshot, read_snapshot, write_snapshot
from millstream.state.storage import Storage, open_storage


class Listed:
    """Entries in a list, as of a position. Implements `Pinned`."""

    def __init__(self, entries: list[tuple[bytes, bytes]], applied: int) -> None:
        self._entries = entries
        self.applied = applied

    def get(self, key: bytes) -> bytes | None:
        return next((value for name, value in self._entries if name == key), None)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in self._entries if start <= key < stop))

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._entries)

    def close(self) -> None:
        """Nothing is held."""


class UsersEntries:
    """The users' entries of what is pinned, and no others. Implements `Pinned`, as far as a snapshot needs it."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self.applied = pinned.applied
        self.get, self.close = pinned.get, pinned.close

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._pinned.scan(max(start, ENTRY), min(stop, after(ENTRY)))

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return (entry for entry in self._pinned.entries() if entry[0][:1] == ENTRY)


def folder_of(partition: int) -> str:
    """Where the snapshots of a partition lie in its home."""
    return f"snapshots/{partition}"


def name_of(partition: int, lsn: int) -> str:
    """A snapshot's name in the home."""
    return f"{folder_of(partition)}/{lsn:020d}"


def begin_from_snapshot(store: KeyStore, home: Storage, partition: int) -> None:
    """Rule 2."""
    found = newest_snapshot(home, folder_of(partition))
    if found is not None and found.lsn > store.applied:
        about, entries = read_snapshot(home, found.name)
        store.replace(entries, about.lsn)


async def save(partition: Partition, home: Storage) -> None:
    """Rule 1."""
    id, before = partition.descriptor.id, partition.unsaved
    pinned = partition.store.pin()
    try:
        saved = await write_snapshot(pinned, home, name_of(id, pinned.applied))
    finally:
        pinned.close()
    await partition.log.trim(saved.lsn)
    await asyncio.to_thread(drop_older, home, folder_of(id), saved.name)
    partition.unsaved = max(0, partition.unsaved - before)


async def snapshot_to(partition: Partition, place: str) -> Snapshot:
    """A snapshot of users' entries for an operator, into a folder or under a URL."""
    storage, name = _place(place)
    pinned = UsersEntries(partition.store.pin())
    try:
        if _exists(storage, name):
            raise RefusedRequest(f"{place} holds a snapshot already: choose another path")
        return await write_snapshot(pinned, storage, name)
    finally:
        pinned.close()


async def restore_from(partition: Partition, place: str, home: Storage) -> tuple[int, int]:
    """Rule 3: the position of the restore, and how many rows there are."""
    storage, name = _place(place)

    def read() -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in read_snapshot(storage, name)[1] if key[:1] == ENTRY]

    entries = await asyncio.to_thread(read)
    point = partition.descriptor
    foreign = next((key for key, _ in entries if not partition.covers(key[1:])), None)
    if foreign is not None:
        raise RefusedRequest(
            f"the snapshot {place} has key {foreign[1:61]!r}, which partition {point.id} does not cover: it is another partition's"
        )

    async def keep(everything: Iterable[tuple[bytes, bytes]], lsn: int) -> None:
        saved = await write_snapshot(Listed(list(everything), lsn), home, name_of(point.id, lsn))
        await asyncio.to_thread(drop_older, home, folder_of(point.id), saved.name)

    lsn = await partition.replace(entries, keep)
    await partition.log.trim(lsn)
    return lsn, len(entries)


def _place(place: str) -> tuple[Storage, str]:
    """The storage and the name in it that a path or URL stands for."""
    if not place:
        raise RefusedRequest("say where: a path on the node, or a URL")
    if "://" in place:
        root, _, name = place.rstrip("/").rpartition("/")
    else:
        path = Path(place).absolute()
        root, name = str(path.parent), path.name
    if not root or not name:
        raise RefusedRequest(f"{place!r} names no place for a snapshot")
    return open_storage(root), name


def _exists(storage: Storage, name: str) -> bool:
    return storage.exists(f"{name}/snapshot.json")
