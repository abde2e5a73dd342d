"""A node: a process that serves partitions of tables, on two planes.

    node = Node([history], name="n1", folder="n1-data", data="127.0.0.1:7400")
    await node.start()

Rules
1. A request belongs to the partition that has its keys. If that is not here, or the keys belong to several, the answer is BAD_NODE with the whole
   descriptors of the owners: a client finds its way with the registry down.
2. A request that is too large is refused before anything is done.
3. One event loop serves all partitions; one task looks after them. A partition has none of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from millstream.core.keyspace import after
from millstream.errors import BadNode, DefinitionError, MillstreamError, NotReady, RefusedRequest, ServiceError
from millstream.network import Tls
from millstream.service.control import Control
from millstream.service.grpc_servers import ControlPlane, DataPlane
from millstream.service.limits import CONTROL, DATA, Limits, check_size, while_pinned
from millstream.service.logs.wal import lock_node_folder
from millstream.service.manager import Manager
from millstream.service.messages import ENTRY, Answer, Decide, Decision, Descriptor, Level, Op, Request
from millstream.service.partition import SERVING, Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import KEY, RangeMaps, prefix_end
from millstream.service.registries.desired_state import Registry
from millstream.service.registries.object_registry import StorageRegistry
from millstream.service.results import scan_range
from millstream.service.snapshotting import SnapshotPlaces
from millstream.service.table import Table
from millstream.service.wire import described, position
from millstream.state.storage import open_storage

_OWNERS = 3 << 10  # bytes of descriptors in an error: metadata has little room
_PAGE = 1 << 20  # bytes of one reply of a scan
_LOOK_EVERY = 1.0  # seconds between two looks at the registry

_log = logging.getLogger("millstream.service")


class Node:
    """One process of the state service. Implements `DataBackend`."""

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        name: str = "n1",
        folder: str | os.PathLike[str],
        data: str = "127.0.0.1:0",
        control: str | None = None,
        registry: Registry | str | None = None,
        tls: Tls | None = None,
        cookie: str = "",
        control_tls: Tls | None = None,
        control_cookie: str = "",
        limits: Limits = DATA,
        control_limits: Limits = CONTROL,
        take_over: str | None = None,
        advertise: str | None = None,
        backups: str | os.PathLike[str] | None = None,
        force: bool = False,
        crash: str = "",
    ) -> None:
        self.name = name
        self.folder = Path(folder).absolute()
        self._tables = {table.name: table for table in tables}
        if len(self._tables) < len(tables):
            raise DefinitionError(f"two tables share a name: {', '.join(sorted(table.name for table in tables))}")
        if registry is None or isinstance(registry, str):
            registry = StorageRegistry(open_storage(registry or self.folder / "registry"))
        self.manager = Manager(name, self.folder, registry, self._tables, crash)
        self._crash = self.manager.points
        self._maps: RangeMaps[Partition] = RangeMaps()
        self._owners: RangeMaps[Descriptor] = RangeMaps()  # who is to serve what, as the registry says
        self.data = DataPlane(self, data, tls=tls, cookie=cookie, limits=limits, force=force)
        self.control = ControlPlane(
            Control(self.manager, SnapshotPlaces(self.folder, self.folder / "backups" if backups is None else Path(backups))),
            control or f"unix:{self.folder / 'control.sock'}",
            tls=control_tls,
            cookie=control_cookie,
            limits=control_limits,
        )
        self._take_over = take_over
        self._advertise = advertise
        self._tending: asyncio.Task[None] | None = None
        self._is_started = False
        self._lock: Any = None
        self._healthy: dict[str, bool] = {}

    # --- the process

    async def start(self) -> None:
        """Locks the folder, listens, and serves what is desired."""
        self._lock = lock_node_folder(self.folder, "lock")
        try:
            self.manager.on_change = self._remap
            await self.data.start()
            await self._tell_health()
            await self.manager.start(self._advertise or self.data.address, self._take_over)
            self._is_started = True
            await self.control.start()
            await self._tell_health()
        except BaseException:
            await self.stop()
            raise
        self._tending = asyncio.ensure_future(self._tend())

    async def stop(self) -> None:
        """Takes no more calls, answers those under way, and closes its files."""
        if self._tending is not None:
            self._tending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tending
        await self.control.stop()
        await self.data.stop()
        await self.manager.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def close(self) -> None:
        """The plane's backend has nothing of its own."""

    async def _tend(self) -> None:
        """The one task of a node."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self.manager.look()
                await self.manager.tend()
                await self._tell_health()
            except (MillstreamError, OSError) as error:
                _log.warning("the registry or a log cannot be looked at: %s", error)
            except Exception:  # the one task must not end
                _log.exception("the partitions cannot be looked after")

    async def _tell_health(self) -> None:
        """A table is well if all of its partitions here serve; the node, if all tables are."""
        ill = {one.descriptor.table for one in self.manager.partitions.values() if one.state != SERVING}
        if not self.manager.started:
            ill = set(self._tables)
        for name in ("", *self._tables):
            well = not ill if not name else name not in ill
            if self._healthy.get(name) is not well:
                self._healthy[name] = well
                await self.data.say_health(name, well)

    def tables(self) -> list[str]:
        return sorted(self._tables)

    # --- who has a key (rule 1)

    def _remap(self) -> None:
        self._maps.become(self.manager.partitions)
        self._owners.become(self.manager.desired.partitions)

    def _find(self, header: pb.Header, keys: Sequence[bytes]) -> Partition:
        """The partition that has all of the keys."""
        self._check_table(header.table)
        if not keys:
            raise RefusedRequest("no key was given")
        known = self._maps.of(header.table)
        if len(keys) == 1:
            found = known.find(keys[0])
        elif known.point == KEY:
            found = known.find(min(keys))
            if found is not known.find(max(keys)):
                found = None
        else:
            found = known.find(keys[0])
            if any(known.find(key) is not found for key in keys):
                found = None
        if found is None or (header.partition and header.partition != found.descriptor.id):
            raise self._bad_node(header.table, keys)
        self._crash("request.1-routed")
        return found

    def _check_table(self, name: str) -> None:
        if not self._is_started:
            raise NotReady(f"node {self.name!r} is starting: its partitions are being opened")
        if name not in self._tables:
            owners = self._owners.of(name)
            if owners:
                raise self._bad_node_of(name, owners.all(), f"table {name!r} is not on this node")
            raise RefusedRequest(f"there is no table {name!r}; this node has: {', '.join(self.tables()) or 'none'}")

    def _bad_node(self, table: str, keys: Sequence[bytes]) -> MillstreamError:
        owners = self._owners.of(table)
        found: dict[int, Descriptor] = {}
        for key in keys:
            owner = owners.find(key)
            if owner is None:
                return BadNode(f"no partition of table {table!r} has key {key[:60]!r}: add one that does (millstream partitions add)")
            found[owner.id] = owner
        several = f"{len(found)} partitions have these keys" if len(found) > 1 else "another partition has this key"
        return self._bad_node_of(table, list(found.values()), f"{several}: send them to each owner apart")

    def _bad_node_of(self, table: str, owners: Sequence[Descriptor], text: str) -> ServiceError:
        """Who has it instead. If that is this node itself, it is about to."""
        if len(owners) == 1 and owners[0].node == self.name and owners[0].id not in self.manager.partitions:
            return NotReady(f"partition {owners[0].id} of table {table!r} is being opened on this node")
        told: list[pb.Partition] = []
        room = _OWNERS
        for one in owners:
            message = self.described(one)
            room -= message.ByteSize() + 4
            if room < 0 and told:
                break
            told.append(message)
        return BadNode(text, told)

    def described(self, one: Descriptor) -> pb.Partition:
        """A partition as clients are told of it."""
        node = self.manager.desired.nodes.get(one.node)
        here = self.manager.partitions.get(one.id)
        return described(one, "" if node is None else node.address, here)

    # --- the data plane

    async def get(self, request: pb.GetRequest) -> pb.GetReply:
        header = request.header
        keys = list(request.keys)
        partition = self._find(header, keys)
        asked = Request(Op.GET, keys, session=header.session, level=_level(header, partition), seen=header.seen)
        answer = partition.read_now(asked)
        if answer is None:
            answer = await partition.read(asked)
        return pb.GetReply(at=self._at(partition, answer, header), values=answer.values, versions=answer.versions)

    async def upsert(self, request: pb.UpsertRequest) -> pb.WriteReply:
        keys, values = list(request.keys), list(request.values)
        if len(keys) != len(values):
            raise RefusedRequest(f"{len(keys)} keys and {len(values)} values: give one value for each key")
        size = check_size(keys, values)
        op = Op.STAGE if request.txn else Op.UPSERT
        return await self._write(request.header, Request(op, keys, values, list(request.expect), txn=request.txn, size=size))

    async def remove(self, request: pb.RemoveRequest) -> pb.WriteReply:
        keys = list(request.keys)
        op = Op.STAGE if request.txn else Op.REMOVE
        return await self._write(request.header, Request(op, keys, [], list(request.expect), txn=request.txn, size=check_size(keys, ())))

    async def _write(self, header: pb.Header, asked: Request) -> pb.WriteReply:
        partition = self._find(header, asked.keys)
        asked.session, asked.seq, asked.done = header.session, header.seq, header.done
        answer = await partition.write(asked)
        return pb.WriteReply(at=position(partition.descriptor, answer.lsn), again=answer.again)

    async def call(self, request: pb.CallRequest) -> pb.CallReply:
        header = request.header
        size = check_size([request.key], [request.argument])
        asked = Request(Op.CALL, [request.key], function=request.function, argument=request.argument, size=size)
        partition = self._find(header, asked.keys)
        asked.session, asked.seq, asked.done = header.session, header.seq, header.done
        answer = await partition.write(asked)
        return pb.CallReply(at=position(partition.descriptor, answer.lsn), result=answer.result, again=answer.again)

    async def decide(self, request: pb.DecideRequest) -> pb.DecideReply:
        names = [name.encode() for name in request.txns]
        size = check_size(names, [name.encode() for name in request.keep])
        partition = self._by_id(request.header)
        asked = Decide(_decision(request.decision), list(request.txns), request.fence, list(request.keep))
        answer = await partition.write(Request(Op.DECIDE, names, decide=asked, size=size))
        return pb.DecideReply(at=position(partition.descriptor, answer.lsn), rows=answer.rows)

    async def scan(self, request: pb.ScanRequest) -> AsyncIterator[pb.ScanReply]:
        header = request.header
        start, end = request.start, request.end
        if request.prefix:
            start, end = scan_range(request)
        if request.part:
            raise RefusedRequest(f"part={request.part!r} is for the live state of a pipeline")
        partition = self._one(header, start, end)
        asked = Request(Op.GET, [], session=header.session, level=_level(header, partition), seen=header.seen)
        with contextlib.closing(await partition.pinned(asked)) as pinned, while_pinned():
            at, leave = self._at(partition, Answer(pinned.applied), header), partition.table.gate.leave
            reply, size, left = pb.ScanReply(at=at), 0, request.limit or 1 << 62
            for count, (entry, raw) in enumerate(pinned.scan(ENTRY + start, ENTRY + end if end else after(ENTRY))):
                if not left:
                    break
                left -= 1
                shown = b"" if request.keys_only else leave(entry[1:], raw[8:])
                if size + len(entry) + len(shown) > _PAGE and size:
                    yield reply
                    reply, size = pb.ScanReply(at=at), 0
                reply.keys.append(entry[1:])
                if not request.keys_only:
                    reply.values.append(shown)
                reply.versions.append(int.from_bytes(raw[:8], "big"))
                size += len(entry) + len(shown) + 16
                if count % 1024 == 1023:
                    await asyncio.sleep(0)
            yield reply

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchReply]:
        header, prefix = request.header, request.prefix
        keys = set(request.keys)
        if keys and prefix:
            raise RefusedRequest("watch some keys, or a prefix, not both")
        partition = self._find(header, list(keys)) if keys else self._one(header, prefix, prefix_end(prefix))
        wants = keys.__contains__ if keys else lambda key: key.startswith(prefix)
        since = request.after if request.HasField("after") else None
        await partition.read(Request(Op.GET, [], session=header.session, level=Level.LINEARIZABLE))
        watching, goes_on = partition.watchers.join(wants, partition.store.applied, since)
        here = partition.descriptor
        try:
            if not goes_on:
                with contextlib.closing(partition.store.pin()) as pinned, while_pinned():
                    lsn = pinned.applied
                    if since is not None:
                        yield pb.WatchReply(kind=pb.WatchReply.RESET, at=position(here, lsn))
                    low, high = ENTRY + prefix, after(ENTRY + prefix)
                    async for rows in _pages((entry[1:], raw[8:], int.from_bytes(raw[:8], "big")) for entry, raw in pinned.scan(low, high)):
                        wanted = [row for row in rows if wants(row[0])]
                        yield _watched(pb.WatchReply.SNAPSHOT, position(here, lsn), wanted, partition)
                yield pb.WatchReply(kind=pb.WatchReply.MARK, at=position(here, lsn))
            else:
                yield pb.WatchReply(kind=pb.WatchReply.MARK, at=position(here, since or 0))
            while True:
                lsn, rows = await watching.next()
                yield _watched(pb.WatchReply.CHANGES, position(here, lsn), rows, partition)
        finally:
            partition.watchers.leave(watching)

    async def route(self, request: pb.RouteRequest) -> pb.PartitionList:
        owners = self._owners.of(request.table)
        if not self._is_started or not owners:
            self._check_table(request.table)
            raise BadNode(f"table {request.table!r} has no partitions: add one (millstream partitions add)")
        found = owners.behind(request.start, min(request.limit or 1000, 1000))
        return pb.PartitionList(partitions=[self.described(one) for one in found], version=self.manager.desired.version)

    def _by_id(self, header: pb.Header) -> Partition:
        self._check_table(header.table)
        found = self.manager.partitions.get(header.partition)
        if found is None or found.descriptor.table != header.table:
            desired = self.manager.desired.partitions.get(header.partition)
            if desired is not None and desired.table == header.table:
                raise self._bad_node_of(header.table, [desired], "another node has this partition")
            raise BadNode(f"there is no partition {header.partition} of table {header.table!r}")
        self._crash("request.1-routed")
        return found

    def _one(self, header: pb.Header, start: bytes, end: bytes) -> Partition:
        """The partition that a range of keys lies in."""
        self._check_table(header.table)
        if header.partition:
            return self._by_id(header)
        known = self._owners.of(header.table)
        owners = known.overlapping(Descriptor(0, header.table, start, end)) if known.point == KEY else known.all()
        if not owners:
            raise BadNode(f"no partition of table {header.table!r} has keys of that range: add one (millstream partitions add)")
        here = self.manager.partitions.get(owners[0].id) if len(owners) == 1 else None
        if here is None:
            raise self._bad_node_of(header.table, owners, f"{len(owners)} partitions have keys of that range: ask each apart")
        return here

    def _at(self, partition: Partition, answer: Answer, header: pb.Header) -> pb.Position:
        age = partition.age() if header.level else 0
        if header.level == pb.BOUNDED and age > header.max_age_ms:
            from millstream.errors import Stale

            raise Stale(f"what is known here may be {age} ms old, and {header.max_age_ms} ms were asked for")
        return position(partition.descriptor, answer.lsn, age)


async def _pages(rows: Any) -> AsyncIterator[list[tuple[bytes, bytes, int]]]:
    page: list[tuple[bytes, bytes, int]] = []
    size = 0
    for count, row in enumerate(rows):
        page.append(row)
        size += len(row[0]) + len(row[1]) + 16
        if size > _PAGE // 2:
            yield page
            page, size = [], 0
        if count % 1024 == 1023:
            await asyncio.sleep(0)
    yield page


def _watched(kind: Any, at: pb.Position, rows: Sequence[tuple[bytes, bytes, int]], partition: Partition) -> pb.WatchReply:
    return pb.WatchReply(
        kind=kind,
        at=at,
        keys=[row[0] for row in rows],
        values=[partition.table.gate.leave(row[0], row[1]) for row in rows],
        versions=[row[2] for row in rows],
    )


def _level(header: pb.Header, partition: Partition) -> Level:
    try:
        found = Level(header.level)
        return (
            Level.LINEARIZABLE if found == Level.BOUNDED and partition.age() > header.max_age_ms else found
        )  # too old: it is confirmed first
    except ValueError:
        raise RefusedRequest(f"there is no level {header.level}: see Level in service.proto") from None


def _decision(number: int) -> Decision:
    try:
        return Decision(number)
    except ValueError:
        raise RefusedRequest(f"there is no decision {number}: see DecideRequest in service.proto") from None
