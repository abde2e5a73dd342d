"""The calls of both planes over the partitions of a node: `TableBackend` for data, `Control` for operators. `grpc_servers.py` calls them.

Rules
1. A request belongs to the partition that has its keys. If that is not here, or if the keys belong to several, the reply is BAD_NODE with the descriptors of
   the owners. So a client finds its way even when the registry is down.
2. The partition decides. Here messages of service.proto become requests, and answers become messages. What is too large is refused before that.
3. What may be long (a scan, the snapshot of a watch) is read from a pin, in pages, and lets other calls run in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from millstream.core.keyspace import after
from millstream.errors import BadNode, NotReady, RefusedRequest, ServiceError, Stale
from millstream.service.limits import VersionedRow, check_size, columns, pages, while_pinned
from millstream.service.manager import Manager
from millstream.service.messages import ENTRY, LIMIT, Decide, Decision, Descriptor, Level, Op, Request, user_row
from millstream.service.partition import SERVING, Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import KEY, RangeMaps, prefix_end, scan_range
from millstream.service.snapshotting import SnapshotPlaces, restore_from, snapshot_to

_OWNERS = 3 << 10  # bytes of descriptors in an error: metadata has little room

_log = logging.getLogger("millstream.service")


class TableBackend:
    """The tables of one node: maps of what is here, and of what the registry says of all nodes."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._here: RangeMaps[Partition] = RangeMaps()
        self._owners: RangeMaps[Descriptor] = RangeMaps()

    def tables(self) -> list[str]:
        return sorted(self._manager.tables)

    def update(self) -> None:
        self._here.become(self._manager.partitions)
        self._owners.become(self._manager.desired.partitions)

    # --- what is asked

    async def get(self, request: pb.GetRequest) -> pb.GetReply:
        header = request.header
        keys = list(request.keys)
        partition = self._by_keys(header, keys)
        asked = Request(Op.GET, keys, session=header.session, level=_level(header, partition), seen=header.seen)
        answer = partition.read_now(asked)
        if answer is None:
            answer = await partition.read_later(asked)
        return pb.GetReply(at=_at(partition, answer.lsn, header), values=answer.values, versions=answer.versions)

    async def upsert(self, request: pb.UpsertRequest) -> pb.WriteReply:
        keys, values = list(request.keys), list(request.values)
        if len(keys) != len(values):
            raise RefusedRequest(f"{len(keys)} keys and {len(values)} values: give one value for each key")
        return await self._write(Op.STAGE if request.txn else Op.UPSERT, request, keys, values)

    async def remove(self, request: pb.RemoveRequest) -> pb.WriteReply:
        return await self._write(Op.STAGE if request.txn else Op.REMOVE, request, list(request.keys), [])

    async def _write(self, op: Op, request: Any, keys: list[bytes], values: list[bytes]) -> pb.WriteReply:
        header, size = request.header, check_size(keys, values)
        partition = self._by_keys(header, keys)
        asked = _write_request(op, header, keys, size, values=values, expect=list(request.expect), txn=request.txn)
        answer = await partition.write(asked)
        return pb.WriteReply(at=position(partition.descriptor, answer.lsn), again=answer.again)

    async def call(self, request: pb.CallRequest) -> pb.CallReply:
        header, key, argument = request.header, request.key, request.argument
        size = check_size([key], [argument])
        partition = self._by_keys(header, [key])
        answer = await partition.write(_write_request(Op.CALL, header, [key], size, function=request.function, argument=argument))
        return pb.CallReply(at=position(partition.descriptor, answer.lsn), result=answer.result, again=answer.again)

    async def decide(self, request: pb.DecideRequest) -> pb.DecideReply:
        names = [name.encode() for name in request.txns]
        size = check_size(names, [name.encode() for name in request.keep])
        partition = self._by_id(request.header)
        try:
            decision = Decision(request.decision)
        except ValueError:
            raise RefusedRequest(f"there is no decision {request.decision}: see DecideRequest in service.proto") from None
        asked = Decide(decision, list(request.txns), request.fence, list(request.keep))
        answer = await partition.write(Request(Op.DECIDE, names, decide=asked, size=size))
        return pb.DecideReply(at=position(partition.descriptor, answer.lsn), rows=answer.rows)

    async def scan(self, request: pb.ScanRequest) -> AsyncIterator[pb.ScanReply]:
        header = request.header
        if request.part:
            raise RefusedRequest(f"part={request.part!r} is for the live state of a pipeline")
        start, end = scan_range(request)
        partition = self._by_range(header, start, end)
        asked = Request(Op.GET, [], session=header.session, level=_level(header, partition), seen=header.seen)
        await partition.read(asked)
        with contextlib.closing(partition.store.pin()) as pinned, while_pinned():
            at, show = _at(partition, pinned.applied, header), partition.table.gate.leave
            entries = islice(pinned.scan(ENTRY + start, ENTRY + end if end else after(ENTRY)), request.limit or None)
            if request.keys_only:
                rows: Iterator[VersionedRow] = ((key, b"", version) for key, _, version in map(user_row, entries))
            else:
                rows = ((key, show(key, value), version) for key, value, version in map(user_row, entries))
            async for page in pages(rows):
                yield pb.ScanReply(at=at, **columns(page, request.keys_only))

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchReply]:
        header, prefix, keys = request.header, request.prefix, set(request.keys)
        if keys and prefix:
            raise RefusedRequest("watch some keys, or a prefix, not both")
        partition = self._by_keys(header, list(keys)) if keys else self._by_range(header, prefix, prefix_end(prefix))
        wants: Callable[[bytes], bool] = keys.__contains__ if keys else lambda key: key.startswith(prefix)
        since = request.after if request.HasField("after") else None
        await partition.read(Request(Op.GET, [], session=header.session, level=Level.LINEARIZABLE))
        watcher, resumes = partition.watchers.join(wants, partition.store.applied, since)
        here, lsn = partition.descriptor, since or 0
        try:
            if not resumes:
                with contextlib.closing(partition.store.pin()) as pinned, while_pinned():
                    lsn = pinned.applied
                    if since is not None:
                        yield pb.WatchReply(kind=pb.WatchReply.RESET, at=position(here, lsn))
                    entries = pinned.scan(ENTRY + prefix, after(ENTRY + prefix))
                    async for page in pages(map(user_row, entries), most=LIMIT // 2):
                        yield _watch_reply(pb.WatchReply.SNAPSHOT, partition, lsn, [row for row in page if wants(row[0])])
            yield pb.WatchReply(kind=pb.WatchReply.MARK, at=position(here, lsn))
            while True:
                lsn, rows = await watcher.next()
                yield _watch_reply(pb.WatchReply.CHANGES, partition, lsn, rows)
        finally:
            partition.watchers.leave(watcher)

    async def route(self, request: pb.RouteRequest) -> pb.PartitionList:
        table, owners = request.table, self._owners.of(request.table)
        if not self._manager.started or not owners:
            self._check_table(table)
            raise BadNode(f"table {table!r} has no partitions: add one (millstream partitions add)")
        found = owners.behind(request.start, min(request.limit or 1000, 1000))
        return pb.PartitionList(partitions=[describe(owner, self._manager) for owner in found], version=self._manager.desired.version)

    # --- which partition (rule 1)

    def _by_keys(self, header: pb.Header, keys: Sequence[bytes]) -> Partition:
        self._check_table(header.table)
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

    def _by_id(self, header: pb.Header) -> Partition:
        self._check_table(header.table)
        found = self._manager.partitions.get(header.partition)
        if found is None or found.descriptor.table != header.table:
            desired = self._manager.desired.partitions.get(header.partition)
            if desired is not None and desired.table == header.table:
                raise self._bad_node(header.table, [desired], "another node has this partition")
            raise BadNode(f"there is no partition {header.partition} of table {header.table!r}")
        self._manager.crash_points("request.1-routed")
        return found

    def _by_range(self, header: pb.Header, start: bytes, end: bytes) -> Partition:
        self._check_table(header.table)
        if header.partition:
            return self._by_id(header)
        known = self._owners.of(header.table)
        owners = known.overlapping(Descriptor(0, header.table, start, end)) if known.point == KEY else known.all()
        if not owners:
            raise BadNode(f"no partition of table {header.table!r} has keys of that range: add one (millstream partitions add)")
        here = self._manager.partitions.get(owners[0].id) if len(owners) == 1 else None
        if here is None:
            raise self._bad_node(header.table, owners, f"{len(owners)} partitions have keys of that range: ask each of them")
        return here

    def _check_table(self, name: str) -> None:
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
            message = describe(owner, self._manager)
            room -= message.ByteSize() + 4
            if room < 0 and named:
                break
            named.append(message)
        return BadNode(text, named)


def _write_request(op: Op, header: pb.Header, keys: list[bytes], size: int, **what: Any) -> Request:
    return Request(op, keys, session=header.session, seq=header.seq, done=header.done, size=size, **what)


def _watch_reply(kind: Any, partition: Partition, lsn: int, rows: Sequence[VersionedRow]) -> pb.WatchReply:
    show = partition.table.gate.leave
    shown = [(key, show(key, value), version) for key, value, version in rows]
    return pb.WatchReply(kind=kind, at=position(partition.descriptor, lsn), **columns(shown))


def _level(header: pb.Header, partition: Partition) -> Level:
    """The level to read at. BOUNDED that is too old here is confirmed first."""
    try:
        level = Level(header.level)
    except ValueError:
        raise RefusedRequest(f"there is no level {header.level}: see Level in service.proto") from None
    return Level.LINEARIZABLE if level == Level.BOUNDED and partition.age() > header.max_age_ms else level


def _at(partition: Partition, lsn: int, header: pb.Header) -> pb.Position:
    age = partition.age() if header.level else 0
    if header.level == pb.BOUNDED and age > header.max_age_ms:
        raise Stale(f"what is known here may be {age} ms old, and {header.max_age_ms} ms were asked for")
    return position(partition.descriptor, lsn, age)


def position(one: Descriptor, lsn: int, age: int = 0) -> pb.Position:
    return pb.Position(partition=one.id, term=one.term, lsn=lsn, age_ms=age)


def describe(one: Descriptor, manager: Manager) -> pb.Partition:
    owner = manager.desired.nodes.get(one.node)
    found = pb.Partition(**msgspec.structs.asdict(one), primary="" if owner is None else owner.address, state="desired")
    here = manager.partitions.get(one.id)
    if here is not None:
        found.state, found.reason, found.lsn = here.state.value, here.reason, here.store.applied
        found.in_sync.append(one.node)
    return found


class Control:
    def __init__(self, manager: Manager, places: SnapshotPlaces) -> None:
        self._manager = manager
        self._places = places
        self._carrying_out: set[asyncio.Task[None]] = set()

    async def add_partition(self, request: pb.AddPartitionRequest) -> pb.Partition:
        id = request.id if request.HasField("id") else None
        made = await self._manager.add(request.table, id, request.start, request.end)
        self._wake()
        return describe(made, self._manager)

    async def remove_partition(self, request: pb.RemovePartitionRequest) -> pb.Partition:
        id = request.id if request.HasField("id") else None
        gone = await self._manager.remove(request.table, id, request.start, request.end)
        self._wake()
        return describe(gone, self._manager)

    async def list_partitions(self, request: pb.ListPartitionsRequest) -> pb.PartitionList:
        manager = self._manager
        await manager.refresh()
        leaving = [one.descriptor for id, one in manager.partitions.items() if id not in manager.desired.partitions]
        named = (one for one in manager.desired.partitions.values() if request.table in ("", one.table))
        found = [one for one in named if request.node in ("", one.node)]
        listed = [describe(one, manager) for one in (*sorted(found, key=attrgetter("id")), *leaving)]
        return pb.PartitionList(partitions=listed, version=manager.desired.version)

    async def snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotReply:
        partition, place = self._here(request.partition), self._places.find(request.path, to_read=False)
        saved = await snapshot_to(partition, place)
        return pb.SnapshotReply(at=position(partition.descriptor, saved.lsn), path=str(place), rows=saved.rows, bytes=saved.bytes)

    async def restore(self, request: pb.RestoreRequest) -> pb.RestoreReply:
        partition, place = self._here(request.partition), self._places.find(request.path, to_read=True)
        lsn, rows = await restore_from(partition, place, self._manager.home_of(partition))
        return pb.RestoreReply(at=position(partition.descriptor, lsn), rows=rows)

    def _here(self, id: int) -> Partition:
        found = self._manager.partitions.get(id)
        if found is None:
            known = ", ".join(map(str, sorted(self._manager.partitions))) or "none"
            raise RefusedRequest(f"this node serves no partition {id}; it serves: {known}")
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
