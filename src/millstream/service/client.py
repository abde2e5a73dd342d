"""A client of one table: reads of any level, writes that count once, scans and watches. For asyncio; `Client` (`blocking.py`) is for other programs.

Routes are in `route_cache.py`, writes and their retries in `client_session.py`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.time import duration
from millstream.errors import BadNode, Busy, NotReady, RefusedRequest, Stale, UnknownOutcome, Unreachable
from millstream.network import Tls
from millstream.service.channel import Backoff
from millstream.service.client_session import BATCH, Writer, batches
from millstream.service.messages import Decision, Descriptor, Level, level_of
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import HASH, KEY, LIVE, scan_range
from millstream.service.route_cache import ATTEMPT, Owner, RouteCache

Text = str | bytes


class KeyResult(msgspec.Struct, frozen=True):
    """What a key has. version: 0 if it is not there. lsn: the position of the partition that answered; of live state, the epoch. age: how old that may be,
    and low_watermark: how far event time is complete (live state); both in milliseconds."""

    key: bytes
    value: bytes | None
    version: int
    partition: int = 0
    lsn: int = 0
    age: int = 0
    epoch: int = 0
    low_watermark: int = 0


def _result(key: bytes, value: bytes | None, version: int, at: Any) -> KeyResult:
    return KeyResult(key, value, version, at.partition, at.lsn, at.age_ms, at.epoch, at.low_watermark)


class WatchEvent(msgspec.Struct, frozen=True):
    """What a watch tells. kind: "snapshot", "changes", "mark" or "reset". A value of None: the key is gone."""

    kind: str
    partition: int
    lsn: int
    rows: list[tuple[bytes, bytes | None, int]]
    epoch: int = 0
    low_watermark: int = 0
    first: int = 0


class AsyncClient:
    """A client of one table, for asyncio. addresses: of one node or several; others are learnt.

    timeout: how long a call may take in all, with its retries. cookie, tls: as the nodes want them.
    """

    def __init__(
        self, addresses: str | Sequence[str], table: str, *, cookie: str = "", tls: Tls | None = None, timeout: str | int = "10s"
    ) -> None:
        given = [addresses] if isinstance(addresses, str) else list(addresses)
        self.table = table
        self._timeout = duration(timeout) / 1000
        self._routes = RouteCache(given, table, cookie, tls, self._timeout)
        self._writer = Writer(self._routes, self._timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        await self._routes.close()

    async def get(self, key: Text, *, level: Level | str = Level.LINEARIZABLE, max_age: str | int = 0) -> bytes | None:
        """The value of a key; None if it is not there."""
        return (await self.get_many([key], level=level, max_age=max_age))[0].value

    async def get_many(
        self,
        keys: Iterable[Text],
        *,
        level: Level | str = Level.LINEARIZABLE,
        max_age: str | int = 0,
        as_of: int | None = None,
        complete_to: int | None = None,
        as_json: bool = False,
    ) -> list[KeyResult]:
        """The values and versions of keys, in their order. Those of one partition are as of one position, up to 2,000 keys and 1 MiB of values.

        level: by its name, or as ms.service.Level. max_age: for level "bounded". as_of, complete_to, as_json: for live state, the epoch to read, the
        event time (milliseconds) to wait for, as long as the client's timeout, and rows as JSON text instead of what the pipeline keeps.
        """
        level = level_of(level)
        wanted = [to_bytes(key) for key in keys]
        found: list[KeyResult | None] = [None] * len(wanted)

        async def read(places: list[int], owner: Owner | None, left: float) -> None:
            header = self._routes.header(owner)
            header.level = int(level)  # type: ignore[assignment]
            header.max_age_ms = duration(max_age) if max_age else 0
            header.form = pb.JSON if as_json else pb.BYTES
            if as_of is not None:
                header.as_of, header.level = as_of, pb.AS_OF
            if complete_to is not None:
                header.complete_to = complete_to
            if level == Level.SESSION and owner is not None:
                header.seen = self._writer.seen.get(owner.descriptor.id, 0)
                if (session := self._writer.sessions.get(owner.descriptor.id)) is not None:
                    header.session = session.name
            request = pb.GetRequest(header=header, keys=[wanted[place] for place in places])
            reply = await self._routes.channel(owner).ask("Get", request, left if complete_to is not None else min(left, ATTEMPT))
            self._writer.note(reply.at)
            for place, value, version in zip(places, reply.values, reply.versions, strict=True):
                found[place] = _result(wanted[place], value if version else None, version, reply.at)

        try:
            await self._routes.read_all(wanted, read)
        except Unreachable:
            if complete_to is None:
                raise
            now = (await self.get_many(wanted[:1], as_json=as_json))[0]
            raise Stale(
                f"{self.table!r} is complete to {now.low_watermark} (its low watermark in epoch {now.epoch}), and {complete_to} was asked for: it did not "
                f"come within {self._timeout:g} s"
            ) from None
        return [result for result in found if result is not None]

    async def put(self, key: Text, value: Text, *, expect: int | None = None) -> int:
        """Writes a key, once; its version. expect: only if it has this version (0: only if it is not there), or `Conflict`."""
        asked = pb.UpsertRequest(keys=[to_bytes(key)], values=[to_bytes(value)], expect=[] if expect is None else [expect])
        return int((await self._writer.write("Upsert", asked, to_bytes(key))).at.lsn)

    async def put_many(self, rows: Mapping[Text, Text] | Iterable[tuple[Text, Text]]) -> int:
        """Writes many keys: batches by partition, each whole or not at all, several at once; how many rows. Of pairs with one key the last counts."""
        given = rows if isinstance(rows, Mapping) else dict(rows)
        keys = [key if type(key) is bytes else to_bytes(key) for key in given]
        values = [value if type(value) is bytes else to_bytes(value) for value in given.values()]
        await self._writer.write_many(keys, values)
        return len(keys)

    async def remove(self, key: Text, *, expect: int | None = None) -> int:
        """Removes a key, once; the position of that. To remove what is not there is no error."""
        asked = pb.RemoveRequest(keys=[to_bytes(key)], expect=[] if expect is None else [expect])
        return int((await self._writer.write("Remove", asked, to_bytes(key))).at.lsn)

    async def call(self, function: str, key: Text, argument: Text = b"") -> bytes:
        """Runs a function of the table on a key, once; its result."""
        asked = pb.CallRequest(function=function, key=to_bytes(key), argument=to_bytes(argument))
        return bytes((await self._writer.write("Call", asked, to_bytes(key))).result)

    async def scan(
        self,
        *,
        start: Text = b"",
        end: Text = b"",
        prefix: Text = b"",
        limit: int = 0,
        keys_only: bool = False,
        part: str = "",
        as_of: int | None = None,
        as_json: bool = False,
    ) -> AsyncIterator[KeyResult]:
        """Entries in the order of their keys. Those of one partition are as of one position.

        part, as_of, as_json: for live state, what to scan ("timers", "holds", "map:FIELD"), the epoch to read, and rows as JSON.
        """
        owners = await self._routes.learn_all()
        asked = pb.ScanRequest(start=to_bytes(start), end=to_bytes(end), prefix=to_bytes(prefix), limit=limit, part=part)
        asked.keys_only, asked.header.form = keys_only, pb.JSON if as_json else pb.BYTES
        if as_of is not None:
            asked.header.as_of, asked.header.level = as_of, pb.AS_OF
        point = self._routes.owners.point
        if point == KEY:
            wanted = Descriptor(0, self.table, *scan_range(asked))
            owners = [one for one in owners if one.descriptor.overlaps(wanted)]
        streams = [self._scan_one(owner, asked) for owner in owners]
        given = 0
        for stream in [merged(streams)] if point == HASH and len(owners) > 1 else streams:
            async for result in stream:
                yield result
                given += 1
                if given == limit:
                    return

    async def watch(
        self, *, keys: Iterable[Text] = (), prefix: Text = b"", after: Mapping[int, int] | None = None, as_json: bool = False
    ) -> AsyncIterator[WatchEvent]:
        """What is there, then every change, of all partitions. after: by partition, the position to go on from."""
        queue: asyncio.Queue[WatchEvent | BaseException] = asyncio.Queue(maxsize=64)
        wanted = [to_bytes(key) for key in keys]

        async def follow(owner: Owner, mine: list[bytes]) -> None:
            try:
                asked = pb.WatchRequest(header=self._routes.header(owner), keys=mine, prefix=to_bytes(prefix))
                asked.header.form = pb.JSON if as_json else pb.BYTES
                if after is not None and owner.descriptor.id in after:
                    asked.after = after[owner.descriptor.id]
                async for reply in self._routes.channel(owner).stream("Watch", asked):
                    at, found = reply.at, zip(reply.keys, reply.values, reply.versions, strict=True)
                    rows = [(key, value if version else None, version) for key, value, version in found]
                    kind = pb.WatchReply.Kind.Name(reply.kind).lower()
                    await queue.put(WatchEvent(kind, at.partition, at.lsn, rows, at.epoch, at.low_watermark, reply.first))
                raise Unreachable(f"{owner.address}: the stream has ended")
            except Exception as error:
                await queue.put(error)

        owners = await self._routes.learn_all()
        tasks = []
        for owner in owners:
            mine = [key for key in wanted if self._routes.owners.find(key) is owner]
            if mine or not wanted:
                tasks.append(asyncio.ensure_future(follow(owner, mine)))
        try:
            while True:
                told = await queue.get()
                if isinstance(told, BaseException):
                    raise told
                yield told
        finally:
            for task in tasks:
                task.cancel()

    async def stage(self, rows: Iterable[tuple[bytes, bytes | None]], txn: str) -> dict[int, int]:
        """For sinks that write in two phases: stages rows (None removes the key) in a transaction, which `decide` ends; how many in each partition."""
        given = dict(rows)
        puts = {key: value for key, value in given.items() if value is not None}
        counts = await self._writer.write_many(list(puts), list(puts.values()), txn)
        counts.update(await self._writer.write_many([key for key in given if key not in puts], None, txn))
        return dict(counts)

    async def decide(self, partition: int, txns: Sequence[str], decision: Decision, fence: int, keep: Sequence[str] = ()) -> list[int]:
        """Decides staged transactions in one partition; how many rows each has. Doing it again is harmless. Names of up to 512 KiB share a position."""
        found: list[int] = []
        routes = self._routes
        for names, _ in batches([range(len(txns))], [txn.encode() for txn in txns], None, BATCH):
            asked = pb.DecideRequest(txns=[name.decode() for name in names], decision=int(decision), fence=fence, keep=keep)  # type: ignore[arg-type]
            deadline, backoff, reply = time.monotonic() + self._timeout, Backoff(), None
            while reply is None:
                owner = routes.owners.by_id(partition)
                if owner is None:
                    await routes.learn_all()
                    owner = routes.owners.by_id(partition)
                    if owner is None:
                        raise RefusedRequest(f"table {self.table!r} has no partition {partition}")
                asked.header.CopyFrom(routes.header(owner))
                try:
                    reply = await routes.channel(owner).ask("Decide", asked, ATTEMPT)
                except (BadNode, Busy, NotReady, UnknownOutcome, Unreachable) as error:
                    routes.learn(error)
                    await backoff.after(error, deadline)
            found += reply.rows
        return found

    async def is_live(self) -> bool:
        """Whether this is the live state of a pipeline, and not a table."""
        await self._routes.learn_all()
        return self._routes.owners.point == LIVE

    async def partitions(self) -> list[int]:
        """The ids of the table's partitions, in the order of their points."""
        return [owner.descriptor.id for owner in await self._routes.learn_all()]

    async def _scan_one(self, owner: Owner, asked: Any) -> AsyncIterator[KeyResult]:
        request = pb.ScanRequest()
        request.CopyFrom(asked)
        request.header.MergeFrom(self._routes.header(owner))
        async for reply in self._routes.channel(owner).stream("Scan", request, self._timeout * 6):
            at = reply.at
            values = reply.values if reply.values else [b""] * len(reply.keys)
            versions = reply.versions if reply.versions else [at.lsn] * len(reply.keys)
            for key, value, version in zip(reply.keys, values, versions, strict=True):
                yield _result(key, value, version, at)


async def merged(streams: Sequence[AsyncIterator[KeyResult]]) -> AsyncIterator[KeyResult]:
    """The results of several streams, in the order of their keys."""
    heads: list[tuple[bytes, int, KeyResult]] = []
    for number, stream in enumerate(streams):
        async for first in stream:
            heads.append((first.key, number, first))
            break
    heapq.heapify(heads)
    while heads:
        _, number, found = heads[0]
        yield found
        async for following in streams[number]:
            heapq.heapreplace(heads, (following.key, number, following))
            break
        else:
            heapq.heappop(heads)


def to_bytes(text: Text) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    hint = ": for a key of a pipeline's live state, use ms.service.live_key" if isinstance(text, (int, tuple)) else ""
    raise RefusedRequest(f"keys and values are bytes or text, and not {type(text).__name__}, as {text!r:.60} is{hint}")
