"""How a partition's entries are saved and brought back: from its log, from snapshots beside it, snapshots for operators, and restores.

Rules
1. A snapshot beside the log (`home`) covers the log up to its position, so the log may be trimmed there. It is whole before anything is trimmed.
2. A store that is behind the newest snapshot of its home begins with that snapshot; then comes the log.
3. A restore lies beside the log under a name of its own first; then the log decides, with a record that names it; then it is seen. Killed in between, a
   partition comes back as it was before, or restored; never half, and never seen and then gone. An owner that was replaced meanwhile has restored nothing.
   It goes when a snapshot covers its record.
4. Operators' snapshots lie below the node's backups folder, or under the URL of an object store. No other folder of the machine is written to, least of all
   the node's own, whose snapshots a partition would begin with. What is there already is not written over, but for the rest of a snapshot that was not
   finished. What a node has kept itself (`snapshots/`, `trash/`) may be restored.
5. A store follows its log record by record. What a record says by name only (transactions that were staged before, a restore) is looked up where it lies.
6. A restore replaces users' entries, all with the position of its record. What else the partition keeps (sessions, staged rows, labels, its clock) stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import DamageError, DefinitionError, MillstreamError, RefusedRequest
from millstream.service.messages import ENTRY, LogRecord
from millstream.service.state_machine import promoted_rows
from millstream.service.stores import snapshots
from millstream.service.stores.store_contract import KeyStore
from millstream.state.storage import LocalStorage, Storage, open_storage

if TYPE_CHECKING:
    from millstream.service.partition import Partition

_log = logging.getLogger("millstream.service")


#: Gives the users' entries of a restore, by its name.
RestoreReader = Callable[[str], list[tuple[bytes, bytes]]]
RECORD = 512  # bytes that a record has besides what users wrote, about


def folder_of(partition: int) -> str:
    return f"snapshots/{partition}"


def load_newest_snapshot(store: KeyStore, home: Storage, partition: int) -> None:
    """Rule 2."""
    found = snapshots.newest_snapshot(home, folder_of(partition))
    if found is not None and found.lsn > store.applied:
        about, entries = snapshots.read_snapshot(home, found.name)
        store.replace(entries, about.lsn)


def restore_name(partition: int, name: str) -> str:
    return f"restores/{partition}/{name}"


def restore_reader(home: Storage, partition: int) -> RestoreReader:
    return lambda name: list(snapshots.read_snapshot(home, restore_name(partition, name))[1])


async def save(partition: Partition, home: Storage) -> None:
    """Rule 1."""
    id, before, restores = partition.descriptor.id, partition.unsaved, list(partition.restores)
    with contextlib.closing(partition.store.pin()) as pinned:
        saved = await snapshots.write_snapshot(pinned.entries(), pinned.applied, home, f"{folder_of(id)}/{pinned.applied:020d}")
    await partition.log.trim(saved.lsn)
    await asyncio.to_thread(snapshots.drop_older, home, folder_of(id), saved.name)
    partition.unsaved = max(0, partition.unsaved - before)
    for name in restores:
        await asyncio.to_thread(snapshots.drop_snapshot, home, restore_name(id, name))
        if name in partition.restores:
            partition.restores.remove(name)


class SnapshotPlace(NamedTuple):
    """Where a snapshot lies, or is to lie."""

    storage: Storage
    name: str

    def __str__(self) -> str:
        return f"{self.storage.url}/{self.name}"

    def check_free(self) -> None:
        """Rule 4: nothing is written over."""
        if self.storage.exists(f"{self.name}/{snapshots.WHOLE}"):
            raise RefusedRequest(f"{self} holds a snapshot already: choose another path")
        other = [name for name in self.storage.list(self.name) if not snapshots.is_part(name.rsplit("/", 1)[-1])] + self.storage.folders(
            self.name
        )
        if isinstance(self.storage, LocalStorage) and (self.storage.root / self.name).is_file():
            other = [self.name]
        if other:
            raise RefusedRequest(f"{self} holds something that is no snapshot ({other[0]}): choose another path")


class SnapshotPlaces:
    """Where the snapshots of operators may lie (rule 4). folder: the node's own. root: its backups folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._own, self._root = folder.resolve(), root.resolve()
        if self._own.is_relative_to(self._root) or (_is_below(self._root, self._own) and self._root != self._own / "backups"):
            raise DefinitionError(
                f"the backups folder {root} is the node's own folder {folder}, lies in it or has it in it: choose another (--backups)"
            )

    def find(self, place: str, *, to_read: bool) -> SnapshotPlace:
        allowed = [self._root, self._own / "snapshots", self._own / "trash"] if to_read else [self._root]
        if not place:
            raise RefusedRequest("say where: a path below the node's backups folder, or a URL")
        text = place.removeprefix("file://")
        if "://" in text:
            root, _, name = text.rstrip("/").rpartition("/")
            if root.endswith(":/") or not name:
                raise RefusedRequest(f"{place!r} names no place for a snapshot")
            return SnapshotPlace(open_storage(root), name)
        path = (self._root / text).resolve()
        if not any(_is_below(path, one) for one in allowed):
            hint = "give a path in it, or serve the node with another (--backups)"
            raise RefusedRequest(f"{place!r} is not below the backups folder of this node, {self._root}: {hint}")
        return SnapshotPlace(open_storage(path.parent), path.name)


def _is_below(path: Path, folder: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


async def snapshot_to(partition: Partition, place: SnapshotPlace) -> snapshots.Snapshot:
    await asyncio.to_thread(place.check_free)
    with contextlib.closing(partition.store.pin()) as pinned:
        users = (entry for entry in pinned.entries() if entry[0][:1] == ENTRY)
        return await snapshots.write_snapshot(users, pinned.applied, place.storage, place.name)


async def restore_from(partition: Partition, place: SnapshotPlace, home: Storage) -> tuple[int, int]:
    """Rule 3: the position of the restore, and how many rows there are."""

    def read() -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in snapshots.read_snapshot(*place)[1] if key[:1] == ENTRY]

    entries, id = await asyncio.to_thread(read), partition.descriptor.id
    foreign = next((key for key, _ in entries if not partition.machine.covers(key[1:])), None)
    if foreign is not None:
        raise RefusedRequest(
            f"the snapshot {place} has key {foreign[1:61]!r}, which partition {id} does not cover: it is another partition's"
        )
    check = getattr(partition.store, "check", None)
    if check is not None:
        check(entries)
    name = secrets.token_hex(8)
    if partition.table.log.keeps:
        await snapshots.write_snapshot(entries, 0, home, restore_name(id, name))
    lsn = await partition.replace(entries, name)
    if partition.table.log.keeps:
        try:
            await save(partition, home)
        except MillstreamError as error:  # it is restored; the log is as long as before
            _log.warning("partition %d was restored, and cannot be saved: %s", id, error)
    return lsn, len(entries)


async def replay_log(store: KeyStore, records: AsyncIterator[LogRecord], restored: RestoreReader | None) -> tuple[list[str], int]:
    """Rule 5. The names of restores among the records, and about how many bytes these have, to decide when to save."""
    restores, size = [], 0
    async for record in records:
        if record.restored:
            if restored is None:
                raise DamageError(f"position {record.last} of partition {record.partition} is a restore, and its entries cannot be found")
            replace_user_entries(store, await asyncio.to_thread(restored, record.restored), record.last)
            restores.append(record.restored)
        else:
            store.apply([*promoted_rows(store, record), *record.changes], record.last)
        size += RECORD + sum(len(key) + len(value or b"") for key, value in record.changes)
    return restores, size


def replace_user_entries(store: KeyStore, entries: Iterable[tuple[bytes, bytes]], lsn: int) -> None:
    """Rule 6."""
    version = lsn.to_bytes(8, "big")
    own = [(key, value) for key, value in store.scan(b"", b"\xff") if key[:1] != ENTRY]
    store.replace([*own, *((key, version + value[8:]) for key, value in entries)], lsn)
