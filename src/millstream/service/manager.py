"""The manager of a node's partitions: what is there, what is desired, and what must be done to get from one to the other.

Rules
1. AddPartition and RemovePartition change the desired state only, by compare-and-set (`registry.py`). The manager alone changes partitions, and
   a node that is killed between the two continues at its next start.
2. What a node has stands on its disk: one small file per partition, written before the partition is opened and removed after its data are gone. So no
   data are without a partition, and `plan` finds what was left half done.
3. A partition that goes first answers what it has taken in. Its entries are kept in `trash/` for an hour, as a snapshot that can be restored.
4. A partition that cannot be opened (damage, an old owner) is told by name, and the others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from millstream import faults
from millstream.errors import DamageError, DefinitionError, Fenced, MillstreamError, NotReady, RefusedRequest
from millstream.service.desired_state import (
    Desired,
    NodeEntry,
    NodeJoined,
    PartitionMoved,
    PartitionRemoved,
    PartitionsAdded,
    RegistryChange,
    plan,
)
from millstream.service.logs.log_contract import LogKind, SharedLog
from millstream.service.logs.none import NoLog
from millstream.service.messages import Descriptor
from millstream.service.partition import SERVING, Partition, PartitionState, RequestPoints
from millstream.service.registry import Registry
from millstream.service.snapshotting import folder_of, load_newest_snapshot, restore_reader, save
from millstream.service.stores.memory import DictStore
from millstream.service.stores.snapshots import newest_snapshot, write_snapshot
from millstream.service.stores.store_contract import SharedStore, StoreKind
from millstream.service.table import Table
from millstream.state.storage import LocalStorage, Storage

TRASH_SECONDS = 3600  # seconds
_TRIES = 50
_AT_ONCE = 64
_LAST = 10.0  # seconds
_BEGINNINGS = 5
_LARGEST = 1 << 48  # ids: they travel, and are packed, as 8 bytes
_SAVE_AFTER = 64 << 20  # bytes in the log

_log = logging.getLogger("millstream.service")


class Manager:
    def __init__(self, node: str, folder: Path, registry: Registry, tables: dict[str, Table]) -> None:
        self.node = node
        self.folder = folder
        self.registry = registry
        self.tables = tables
        self.desired = Desired()
        self.partitions: dict[int, Partition] = {}
        self.started = False  # what was desired at the start is there
        self.on_change: Callable[[], None] = lambda: None  # told after partitions came or went
        self._files = LocalStorage(folder)
        _check_logs(list(tables.values()))
        self.crash_points = RequestPoints(faults.armed())
        self._logs: dict[str, SharedLog] = {}
        self._stores: dict[str, SharedStore] = {}
        self._reconciling = asyncio.Lock()
        self._carried_out = -1  # the version of the desired state that this node stands for
        self._standing: dict[int, Descriptor] = {}  # rule 2, as it stands on the disk. The folder is ours alone, so it is read once

    # --- what a table is kept with

    def log_of(self, kind: LogKind) -> SharedLog:
        """A log is opened once per node, whatever the tables."""
        name = _place_of(kind)
        if name not in self._logs:
            self._logs[name] = kind.open(self.folder)
        return self._logs[name]

    def store_of(self, kind: StoreKind) -> SharedStore:
        name = repr(kind)
        if name not in self._stores:
            self._stores[name] = kind.open(self.folder)
        return self._stores[name]

    def home_of(self, partition: Partition) -> Storage:
        return self.log_of(partition.table.log).home(partition.descriptor.id)

    # --- the beginning

    async def start(self, address: str, take_over: str | None = None) -> None:
        """Makes the node known, gives new tables their first partitions, and opens what is desired."""
        identity = await asyncio.to_thread(self._read_folder)
        self.desired = await asyncio.to_thread(self.registry.read)
        entry = NodeEntry(self.node, address, identity)
        if self.desired.nodes.get(self.node) != entry:
            await self.make_desired(lambda desired: NodeJoined(entry, instead=take_over == self.node))
        if take_over is not None and take_over != self.node:
            await self._take_over(take_over)
        for table in self.tables.values():
            if table.name not in self.desired.tables and table.partitions:
                await self._first_partitions(table)
        await self.reconcile()
        self.started = True
        self._empty_trash()

    def _read_folder(self) -> str:
        """What stands there: the partitions, and the identity of the node, which is returned."""
        for left in (self.folder / "partitions").glob(".tmp-*"):
            left.unlink(missing_ok=True)  # of a file that a kill has kept from being written; the folder is ours alone
        name = "node.json"
        if not self._files.exists(name):
            self._files.create(name, msgspec.json.encode({"name": self.node, "identity": secrets.token_hex(8)}))
        found = msgspec.json.decode(self._files.read(name), type=dict[str, str])
        name = found["name"]
        if name != self.node:
            raise RefusedRequest(f"{self.folder} is the folder of node {name!r}, not of {self.node!r}: say --node {name}, or another --dir")
        for file in self._files.list("partitions"):
            one = msgspec.json.decode(self._files.read(file), type=Descriptor)
            self._standing[one.id] = one
        return found["identity"]

    async def _take_over(self, other: str) -> None:
        if other not in self.desired.nodes:
            raise RefusedRequest(f"no node is called {other!r}; there are: {', '.join(self.desired.nodes) or 'none'}")
        for found in [one for one in self.desired.partitions.values() if one.node == other]:
            table = self.tables.get(found.table)
            if table is None or not table.log.shared:
                raise RefusedRequest(
                    f"partition {found.id} of table {found.table!r} has a log that only node {other!r} can read: it cannot be taken over. "
                    f"Tables with log=ms.service.logs.objects(...) can."
                )
            await self.make_desired(lambda desired, id=found.id: PartitionMoved(id, self.node, desired.partitions[id].term + 1))  # type: ignore[misc]

    # --- the desired state (rule 1)

    async def make_desired(self, change: Callable[[Desired], RegistryChange | None]) -> RegistryChange | None:
        """Makes a change by compare-and-set; made anew from what others have changed meanwhile. None: there is nothing to change."""
        for _ in range(_TRIES):
            desired = await asyncio.to_thread(self.registry.read)
            one = change(desired)
            if one is None:
                self.desired = desired
                return None
            if await asyncio.to_thread(self.registry.change, one, desired.version):
                self.desired = await asyncio.to_thread(self.registry.read)
                self.on_change()
                return one
        raise NotReady("the registry keeps changing; ask again")

    async def add(self, table: str, id: int | None, start: bytes, end: bytes) -> Descriptor:
        found = self.tables.get(table)
        if found is None:
            raise RefusedRequest(f"this node has no table {table!r}; it has: {', '.join(sorted(self.tables)) or 'none'}")
        if id == 0:
            raise RefusedRequest("ids of partitions begin with 1: leave it out to get the next one")
        if id is not None and id >= _LARGEST:
            raise RefusedRequest(f"id {id} is too large: ids grow from the largest that was given out; leave it out to get the next one")

        def change(desired: Desired) -> RegistryChange:
            return PartitionsAdded([Descriptor(desired.next_id if id is None else id, table, start, end, 1, self.node, found.point)])

        made = await self.make_desired(change)
        assert isinstance(made, PartitionsAdded)
        return made.partitions[0]

    async def _first_partitions(self, table: Table) -> None:
        """A new table gets all of them in one change; none if another node has been faster."""

        def change(desired: Desired) -> RegistryChange | None:
            if table.name in desired.tables:
                return None
            ranges = enumerate(table.ranges(), desired.next_id)
            return PartitionsAdded([Descriptor(id, table.name, start, end, 1, self.node, table.point) for id, (start, end) in ranges])

        await self.make_desired(change)

    async def remove(self, table: str, id: int | None, start: bytes, end: bytes) -> Descriptor:
        """A partition is to be no more: by its id, or by its exact range."""
        gone: list[Descriptor] = []
        if id is not None:
            what = f"there is no partition {id}{f' of table {table!r}' if table else ''}"
        else:
            what = f"no partition of table {table!r} has exactly the range from {start!r} to {end!r}"

        def change(desired: Desired) -> RegistryChange:
            named = (one for one in desired.partitions.values() if one.table == table or (id is not None and not table))
            gone[:] = [one for one in named if (one.id == id if id is not None else (one.start, one.end) == (start, end))]
            if not gone:
                raise RefusedRequest(what)
            return PartitionRemoved(gone[0].id)

        await self.make_desired(change)
        return gone[0]

    # --- what is there

    async def reconcile(self) -> None:
        """Carries out what must be done, and nothing else. Called whenever the desired state may have changed."""
        async with self._reconciling:
            self.desired = await asyncio.to_thread(self.registry.read)
            ops = plan(self.node, self._standing, self.desired.partitions)
            for op in ops:
                if not op.opens:
                    await self._close(op.partition, op.moved)
            coming = [one for id, one in self._standing.items() if id not in self.partitions] + [op.partition for op in ops if op.opens]
            for at in range(0, len(coming), _AT_ONCE):
                await asyncio.gather(*(self._open(one) for one in coming[at : at + _AT_ONCE]))
            self.on_change()
            self._carried_out = self.desired.version

    async def _open(self, descriptor: Descriptor) -> None:
        table = self.tables.get(descriptor.table)
        if table is None:
            _log.warning("partition %d belongs to table %r, which this node does not have", descriptor.id, descriptor.table)
            return
        before = self.partitions.get(descriptor.id)
        await asyncio.to_thread(self._files.put, _file_of(descriptor.id), msgspec.json.encode(descriptor))
        self._standing[descriptor.id] = descriptor
        failed: Exception | None = None
        try:
            partition = self._made(descriptor, table)
        except (MillstreamError, OSError) as error:  # of the log or the store of all such tables
            partition, failed = Partition(descriptor, table, NoLog(descriptor.id), DictStore()), error
        self.partitions[descriptor.id] = partition
        partition.reason = "" if before is None else before.reason  # what was said before is not said again
        await self._begin(partition, failed)

    def _made(self, descriptor: Descriptor, table: Table) -> Partition:
        log = self.log_of(table.log).of(descriptor.id)
        return Partition(descriptor, table, log, self.store_of(table.store).of(descriptor.id), crash=self.crash_points)

    async def _begin(self, partition: Partition, failed: Exception | None = None) -> None:
        """Rule 4. failed: why it cannot."""
        try:
            if failed is not None:
                raise failed
            await (self._follow(partition) if partition.table.log.keeps else partition.open())
        except (MillstreamError, OSError) as error:
            if partition.reason != str(error):
                _log.error("partition %d of table %r cannot be opened: %s", partition.descriptor.id, partition.descriptor.table, error)
            partition.state = PartitionState.FENCED if isinstance(error, Fenced) else PartitionState.FAILED
            partition.reason = str(error)
            partition.damage = error if isinstance(error, DamageError) else None

    async def _follow(self, partition: Partition) -> None:
        """Snapshot, then log. An old owner that is not yet aware of us may save and trim meanwhile: then there is a newer snapshot to begin with."""
        home, id = self.home_of(partition), partition.descriptor.id
        for attempt in range(_BEGINNINGS):
            before = partition.store.applied
            try:
                await asyncio.to_thread(load_newest_snapshot, partition.store, home, id)
                await partition.open(restore_reader(home, id))
                return
            except DamageError:
                newest = await asyncio.to_thread(newest_snapshot, home, folder_of(id))
                if attempt + 1 == _BEGINNINGS or newest is None or newest.lsn <= max(before, partition.store.applied):
                    raise

    async def _close(self, descriptor: Descriptor, moved: bool) -> None:
        """Rule 3."""
        partition = self.partitions.pop(descriptor.id, None)
        table = self.tables.get(descriptor.table)
        self.on_change()
        if table is not None:
            if partition is None:
                partition = self._made(descriptor, table)
                if not moved:
                    await self._begin(partition)
            has_data = partition.state in (SERVING, PartitionState.READ_ONLY)
            await partition.leave()
            if has_data and not moved:
                name = f"{descriptor.table}-{descriptor.id}-{int(time.time())}"
                with contextlib.closing(partition.store.pin()) as pinned:
                    await write_snapshot(pinned.entries(), pinned.applied, LocalStorage(self.folder / "trash"), name)
            if not moved or table.log.keeps:  # what another node owns is made anew from the log; a store without a log is all there is
                self.store_of(table.store).forget(descriptor.id)
            if not moved:
                self.log_of(table.log).forget(descriptor.id)
            partition.store.close()
        await asyncio.to_thread(self._files.delete, [_file_of(descriptor.id)])
        self._standing.pop(descriptor.id, None)

    def _empty_trash(self) -> None:
        for path in (self.folder / "trash").glob("*-*-*"):
            stamp = path.name.rsplit("-", 1)[-1]
            if stamp.isdecimal() and time.time() - int(stamp) > TRASH_SECONDS:
                shutil.rmtree(path, ignore_errors=True)

    # --- now and then

    async def refresh(self) -> None:
        desired = await asyncio.to_thread(self.registry.read)
        if desired.version != self._carried_out:
            await self.reconcile()

    async def tend(self) -> None:
        """Saves partitions whose logs have grown, and those that keep old records of a shared log from being removed. One call serves all partitions."""
        await self._open_again()
        due = {id for id, one in self.partitions.items() if one.unsaved > _SAVE_AFTER}
        for log in self._logs.values():
            due.update(id for id in log.pressing() if id in self.partitions)
        for id in due:
            partition = self.partitions.get(id)
            if partition is not None and partition.state == SERVING and partition.table.log.keeps:
                try:
                    await save(partition, self.home_of(partition))
                except MillstreamError as error:
                    _log.warning("partition %d cannot be saved: %s", id, error)
        self._empty_trash()

    async def _open_again(self) -> None:
        """A storage that was away may be back. So partitions that could not be opened, for another reason than damage, are made anew; and those that stopped
        because their shared log was away seal it again, which settles their last writes. (Not on a disk of ours that has failed: it may have lost some.)"""
        async with self._reconciling:
            for id, one in list(self.partitions.items()):
                stopped = one.state is PartitionState.READ_ONLY and one.table.log.shared
                if stopped and self.desired.partitions.get(id) == one.descriptor:
                    await self._close(one.descriptor, moved=True)
                elif one.state is not PartitionState.FAILED or one.damage is not None:
                    continue
                await self._open(one.descriptor)
                self.on_change()

    async def stop(self) -> None:
        """Answers what was taken in, and closes everything. What is desired stays desired."""
        drains = [asyncio.ensure_future(one.drain()) for one in self.partitions.values() if one.state == SERVING]
        if drains:
            await asyncio.wait(drains, timeout=_LAST)  # a log that hangs is not waited for
        for drain in drains:
            drain.cancel()
        for one in self.partitions.values():
            await one.log.close()
            one.store.close()
        for log in self._logs.values():
            await log.close()
        for store in self._stores.values():
            store.close()
        self.partitions = {}


def _place_of(kind: LogKind) -> str:
    """What tells one log of a node from another: where it lies, if it says so."""
    return str(getattr(kind, "place", repr(kind)))


def _check_logs(tables: list[Table]) -> None:
    """A log is one for all tables that use it, so they must agree on it."""
    first: dict[str, Table] = {}
    for table in tables:
        other = first.setdefault(_place_of(table.log), table)
        if other.log != table.log:
            raise DefinitionError(
                f"tables {other.name!r} and {table.name!r} share the one {table.log.describe()} log of the node, and want it different: "
                f"{other.log} and {table.log}. Give both the same."
            )


def _file_of(id: int) -> str:
    return f"partitions/{id:020d}.json"
