"""The control plane's calls: what operators may do to the partitions of a node. `manager.py` does it."""

from __future__ import annotations

import asyncio
import logging

from millstream.errors import RefusedRequest
from millstream.service.manager import Manager
from millstream.service.partition import SERVING, Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.router import partition_message, position
from millstream.service.snapshotting import SnapshotPlaces, restore_from, snapshot_to

_log = logging.getLogger("millstream.service")


class Control:
    """What `grpc_servers.ControlPlane` calls."""

    def __init__(self, manager: Manager, places: SnapshotPlaces) -> None:
        self._manager = manager
        self._places = places
        self._carrying_out: set[asyncio.Task[None]] = set()

    async def add_partition(self, request: pb.AddPartitionRequest) -> pb.Partition:
        id = request.id if request.HasField("id") else None
        made = await self._manager.add(request.table, id, request.start, request.end)
        self._wake()
        return partition_message(made, self._manager.address_of(made.node))

    async def remove_partition(self, request: pb.RemovePartitionRequest) -> pb.Partition:
        id = request.id if request.HasField("id") else None
        gone = await self._manager.remove(request.table, id, request.start, request.end)
        self._wake()
        return partition_message(gone, self._manager.address_of(gone.node))

    async def list_partitions(self, request: pb.ListPartitionsRequest) -> pb.PartitionList:
        manager = self._manager
        await manager.refresh()
        found = [
            one
            for one in manager.desired.partitions.values()
            if (not request.table or one.table == request.table) and (not request.node or one.node == request.node)
        ]
        leaving = [one for one in manager.partitions.values() if one.descriptor.id not in manager.desired.partitions]
        listed = [
            partition_message(one, self._manager.address_of(one.node), manager.partitions.get(one.id))
            for one in sorted(found, key=lambda one: one.id)
        ]
        listed += [partition_message(one.descriptor, self._manager.address_of(one.descriptor.node), one) for one in leaving]
        return pb.PartitionList(partitions=listed, version=manager.desired.version)

    async def snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotReply:
        partition = self._here(request.partition)
        place = self._places.to_write(request.path)
        saved = await snapshot_to(partition, place)
        return pb.SnapshotReply(at=position(partition.descriptor, saved.lsn), path=str(place), rows=saved.rows, bytes=saved.bytes)

    async def restore(self, request: pb.RestoreRequest) -> pb.RestoreReply:
        partition = self._here(request.partition)
        lsn, rows = await restore_from(partition, self._places.to_read(request.path), self._manager.home_of(partition))
        return pb.RestoreReply(at=position(partition.descriptor, lsn), rows=rows)

    def _here(self, id: int) -> Partition:
        found = self._manager.partitions.get(id)
        if found is None:
            raise RefusedRequest(
                f"this node serves no partition {id}; it serves: {', '.join(map(str, sorted(self._manager.partitions))) or 'none'}"
            )
        if found.state != SERVING:
            raise RefusedRequest(f"partition {id} is {found.state.value}: {found.reason}")
        return found

    def _wake(self) -> None:
        """The manager carries out what is desired, beside this call. Of two that do so, one waits and has not looked yet: it does this, too."""
        if len(self._carrying_out) > 1:
            return
        task = asyncio.ensure_future(self._manager.reconcile())
        self._carrying_out.add(task)
        task.add_done_callback(self._carried_out)

    def _carried_out(self, task: asyncio.Task[None]) -> None:
        self._carrying_out.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("what is desired cannot be carried out yet, and is tried again: %s", task.exception())
