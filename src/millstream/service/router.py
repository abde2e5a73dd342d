"""Which partition of a node has the keys of a request, and who has them if it is not here.

Rule: a request belongs to the partition that has its keys. If that is not here, or if the keys belong to several, the reply is BAD_NODE with the
descriptors of the owners. So a client finds its way even when the registry is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.errors import BadNode, NotReady, RefusedRequest, ServiceError
from millstream.service.manager import Manager
from millstream.service.messages import Descriptor
from millstream.service.partition import Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import KEY, RangeMaps

_OWNERS = 3 << 10  # bytes of descriptors in an error: metadata has little room


class Router:
    """The maps of one node: of what is here, and of what the registry says of all nodes."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._here: RangeMaps[Partition] = RangeMaps()
        self._owners: RangeMaps[Descriptor] = RangeMaps()

    def update(self) -> None:
        """Partitions came or went."""
        self._here.become(self._manager.partitions)
        self._owners.become(self._manager.desired.partitions)

    def tables(self) -> list[str]:
        return sorted(self._manager.tables)

    def by_keys(self, header: pb.Header, keys: Sequence[bytes]) -> Partition:
        """The partition here that has all of the keys."""
        self.check_table(header.table)
        if not keys:
            raise RefusedRequest("no key was given")
        known = self._here.of(header.table)
        found = known.find(keys[0])
        if len(keys) > 1:
            others: Iterable[bytes] = (min(keys), max(keys)) if known.point == KEY else keys
            if any(known.find(key) is not found for key in others):
                found = None
        if found is None or (header.partition and header.partition != found.descriptor.id):
            raise self._owners_of(header.table, keys)
        self._manager.crash_points("request.1-routed")
        return found

    def by_id(self, header: pb.Header) -> Partition:
        """The partition that the header names."""
        self.check_table(header.table)
        found = self._manager.partitions.get(header.partition)
        if found is None or found.descriptor.table != header.table:
            desired = self._manager.desired.partitions.get(header.partition)
            if desired is not None and desired.table == header.table:
                raise self._bad_node(header.table, [desired], "another node has this partition")
            raise BadNode(f"there is no partition {header.partition} of table {header.table!r}")
        self._manager.crash_points("request.1-routed")
        return found

    def by_range(self, header: pb.Header, start: bytes, end: bytes) -> Partition:
        """The partition here that has a whole range of keys."""
        self.check_table(header.table)
        if header.partition:
            return self.by_id(header)
        known = self._owners.of(header.table)
        owners = known.overlapping(Descriptor(0, header.table, start, end)) if known.point == KEY else known.all()
        if not owners:
            raise BadNode(f"no partition of table {header.table!r} has keys of that range: add one (millstream partitions add)")
        here = self._manager.partitions.get(owners[0].id) if len(owners) == 1 else None
        if here is None:
            raise self._bad_node(header.table, owners, f"{len(owners)} partitions have keys of that range: ask each of them")
        return here

    def route(self, table: str, start: bytes, limit: int) -> pb.PartitionList:
        """The owners of a table's points from one on."""
        owners = self._owners.of(table)
        if not self._manager.started or not owners:
            self.check_table(table)
            raise BadNode(f"table {table!r} has no partitions: add one (millstream partitions add)")
        found = owners.behind(start, min(limit or 1000, 1000))
        return pb.PartitionList(partitions=[self._describe(owner) for owner in found], version=self._manager.desired.version)

    def check_table(self, name: str) -> None:
        """Raises unless this node is ready and has a table."""
        if not self._manager.started:
            raise NotReady(f"node {self._manager.node!r} is starting: its partitions are being opened")
        if name not in self._manager.tables:
            owners = self._owners.of(name)
            if owners:
                raise self._bad_node(name, owners.all(), f"table {name!r} is not on this node")
            raise RefusedRequest(f"there is no table {name!r}; this node has: {', '.join(self.tables()) or 'none'}")

    def _owners_of(self, table: str, keys: Sequence[bytes]) -> ServiceError:
        owners = self._owners.of(table)
        found: dict[int, Descriptor] = {}
        for key in keys:
            owner = owners.find(key)
            if owner is None:
                return BadNode(f"no partition of table {table!r} has key {key[:60]!r}: add one that does (millstream partitions add)")
            found[owner.id] = owner
        several = f"{len(found)} partitions have these keys" if len(found) > 1 else "another partition has this key"
        return self._bad_node(table, list(found.values()), f"{several}: send each owner its own")

    def _bad_node(self, table: str, owners: Sequence[Descriptor], text: str) -> ServiceError:
        """Names the owners. An owner on this node itself that is not there yet is being opened."""
        if len(owners) == 1 and owners[0].node == self._manager.node and owners[0].id not in self._manager.partitions:
            return NotReady(f"partition {owners[0].id} of table {table!r} is being opened on this node")
        named: list[pb.Partition] = []
        room = _OWNERS
        for owner in owners:
            message = self._describe(owner)
            room -= message.ByteSize() + 4
            if room < 0 and named:
                break
            named.append(message)
        return BadNode(text, named)

    def _describe(self, owner: Descriptor) -> pb.Partition:
        return partition_message(owner, self._manager.address_of(owner.node), self._manager.partitions.get(owner.id))


def position(one: Descriptor, lsn: int, age: int = 0) -> pb.Position:
    return pb.Position(partition=one.id, term=one.term, lsn=lsn, age_ms=age)


def partition_message(one: Descriptor, address: str, here: Partition | None = None) -> pb.Partition:
    """A partition as callers are told of it. here: if this node serves it."""
    found = pb.Partition(
        id=one.id,
        table=one.table,
        start=one.start,
        end=one.end,
        term=one.term,
        primary=address,
        node=one.node,
        point=one.point,
        state="desired",
    )
    if here is not None:
        found.state, found.reason, found.lsn = here.state.value, here.reason, here.store.applied
        found.in_sync.append(one.node)
    return found
