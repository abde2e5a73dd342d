"""How a partition's entries are saved and brought back: snapshots beside its log, snapshots for operators, and restores.

Rules
1. A snapshot beside the log (`home`) covers the log up to its position, so the log may be trimmed there. It is whole before anything is trimmed.
2. A store that is behind the newest snapshot of its home begins with that snapshot; then comes the log.
3. A restore lies beside the log under a name of its own first; then the log decides, with a record that names it; then it is seen. Killed in between, a
   partition comes back as it was before, or restored; never half, and never seen and then gone. Whoever was replaced meanwhile has restored nothing.
   It goes when a snapshot covers its record.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

from millstream.core.keyspace import after
from millstream.errors import MillstreamError, RefusedRequest
from millstream.service.messages import ENTRY
from millstream.service.partition import Partition
from millstream.service.replay import Restored
from millstream.service.stores.base import KeyStore, Pinned
from millstream.service.stores.snapshots import Snapshot, drop_older, drop_snapshot, newest_snapshot, read_snapshot, write_snapshot
from millstream.state.storage import Storage, open_storage

_log = logging.getLogger("millstream.service")


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


def restore_name(partition: int, name: str) -> str:
    """Where a restore lies in the home."""
    return f"restores/{partition}/{name}"


def restored_in(home: Storage, partition: int) -> Restored:
    """Gives the entries of a restore that lies in a home."""
    return lambda name: list(read_snapshot(home, restore_name(partition, name))[1])


async def save(partition: Partition, home: Storage) -> None:
    """Rule 1."""
    id, before, restores = partition.descriptor.id, partition.unsaved, list(partition.restores)
    pinned = partition.store.pin()
    try:
        saved = await write_snapshot(pinned, home, name_of(id, pinned.applied))
    finally:
        pinned.close()
    await partition.log.trim(saved.lsn)
    await asyncio.to_thread(drop_older, home, folder_of(id), saved.name)
    partition.unsaved = max(0, partition.unsaved - before)
    for name in restores:
        await asyncio.to_thread(drop_snapshot, home, restore_name(id, name))
        if name in partition.restores:
            partition.restores.remove(name)


async def snapshot_to(partition: Partition, place: str) -> Snapshot:
    """A snapshot of users' entries for an operator, into a folder or under a URL."""
    storage, name = _place(place)
    pinned = UsersEntries(partition.store.pin())
    try:
        if await asyncio.to_thread(_exists, storage, name):
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

    check = getattr(partition.store, "check", None)
    if check is not None:
        check(entries)
    name = secrets.token_hex(8)
    if partition.table.log.keeps:
        await write_snapshot(Listed(entries, 0), home, restore_name(point.id, name))
    lsn = await partition.replace(entries, name)
    if partition.table.log.keeps:
        try:
            await save(partition, home)
        except MillstreamError as error:  # it is restored; the log is as long as before
            _log.warning("partition %d was restored, and cannot be saved: %s", point.id, error)
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
