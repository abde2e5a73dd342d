"""The data plane's calls over the partitions of a node. `grpc_servers.py` calls it.

Rules
1. The router finds the partition; the partition decides. Here messages of service.proto become requests, and answers become messages.
2. A request that is too large is refused before anything is done.
3. What may be long (a scan, the snapshot of a watch) is read from a pin, in pages, and lets other calls run in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from millstream.core.keyspace import after
from millstream.errors import RefusedRequest, Stale
from millstream.service.limits import check_size, while_pinned
from millstream.service.messages import ENTRY, LIMIT, Decide, Decision, Level, Op, Request, user_row
from millstream.service.paging import VersionedRow, columns, pages
from millstream.service.partition import Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import prefix_end, scan_range
from millstream.service.router import Router, position


class TableBackend:
    """The tables of one node."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def tables(self) -> list[str]:
        return self._router.tables()

    async def get(self, request: pb.GetRequest) -> pb.GetReply:
        header = request.header
        keys = list(request.keys)
        partition = self._router.by_keys(header, keys)
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
        partition = self._router.by_keys(header, keys)
        asked = _write_request(op, header, keys, size, values=values, expect=list(request.expect), txn=request.txn)
        answer = await partition.write(asked)
        return pb.WriteReply(at=position(partition.descriptor, answer.lsn), again=answer.again)

    async def call(self, request: pb.CallRequest) -> pb.CallReply:
        header, key, argument = request.header, request.key, request.argument
        size = check_size([key], [argument])
        partition = self._router.by_keys(header, [key])
        answer = await partition.write(_write_request(Op.CALL, header, [key], size, function=request.function, argument=argument))
        return pb.CallReply(at=position(partition.descriptor, answer.lsn), result=answer.result, again=answer.again)

    async def decide(self, request: pb.DecideRequest) -> pb.DecideReply:
        names = [name.encode() for name in request.txns]
        size = check_size(names, [name.encode() for name in request.keep])
        partition = self._router.by_id(request.header)
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
        partition = self._router.by_range(header, start, end)
        asked = Request(Op.GET, [], session=header.session, level=_level(header, partition), seen=header.seen)
        with contextlib.closing(await partition.pinned(asked)) as pinned, while_pinned():
            at, show = _at(partition, pinned.applied, header), partition.table.gate.leave
            entries = islice(pinned.scan(ENTRY + start, ENTRY + end if end else after(ENTRY)), request.limit or None)
            if request.keys_only:
                rows: Iterator[VersionedRow] = ((key, b"", version) for key, _, version in map(user_row, entries))
            else:
                rows = ((key, show(key, value), version) for key, value, version in map(user_row, entries))
            async for page in pages(rows):
                keys, values, versions = columns(page)
                yield pb.ScanReply(at=at, keys=keys, values=[] if request.keys_only else values, versions=versions)

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchReply]:
        header, prefix, keys = request.header, request.prefix, set(request.keys)
        if keys and prefix:
            raise RefusedRequest("watch some keys, or a prefix, not both")
        if keys:
            partition = self._router.by_keys(header, list(keys))
        else:
            partition = self._router.by_range(header, prefix, prefix_end(prefix))
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
        return self._router.route(request.table, request.start, request.limit)


def _write_request(op: Op, header: pb.Header, keys: list[bytes], size: int, **what: Any) -> Request:
    return Request(op, keys, session=header.session, seq=header.seq, done=header.done, size=size, **what)


def _watch_reply(kind: Any, partition: Partition, lsn: int, rows: Sequence[VersionedRow]) -> pb.WatchReply:
    keys, values, versions = columns(rows)
    shown = map(partition.table.gate.leave, keys, values)
    return pb.WatchReply(kind=kind, at=position(partition.descriptor, lsn), keys=keys, values=shown, versions=versions)


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
