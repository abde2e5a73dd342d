"""The client: keys to nodes, writes that count once, reads of any level. `AsyncClient` for asyncio, `Client` for everybody else (`blocking.py`).

Rules
1. The way to a key is remembered, and learnt from the nodes themselves: BAD_NODE says who has it. The registry is never asked.
2. A write has a session and a number per partition, and keeps them however often it is sent. When it is not known whether a write was done, it is sent again
   with the same number until the deadline; a refusal is final.
3. When a deadline passes and nobody knows, `UnknownOutcome` is raised, and that session is not used any more: a number that nobody answered would
   keep its successors waiting.
4. BUSY, NOT_READY and nodes that are away are tried again, with pauses that grow and are never the same for two clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from millstream.core.time import duration
from millstream.errors import (
    BadNode,
    Busy,
    MillstreamError,
    NotReady,
    RefusedRequest,
    ServiceError,
    SessionExpired,
    Stale,
    TooLarge,
    UnknownOutcome,
    Unreachable,
)
from millstream.network import Tls
from millstream.service.client_session import Backoff, ClientSession, KeysMoved, batches, finished
from millstream.service.limits import check_message
from millstream.service.messages import LIMIT, Decision, Level, level_of
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import HASH, KEY, LIVE, scan_range
from millstream.service.results import KeyResult, Owner, Text, WatchEvent, merged, to_bytes, watch_event
from millstream.service.route_cache import ATTEMPT, RouteCache

_BATCH = LIMIT // 2


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
        self._ways = RouteCache(given, table, cookie, tls, self._timeout)
        self._sessions: dict[int, ClientSession] = {}
        self._seen: dict[int, int] = {}
        self._left: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends its connections."""
        for task in self._left:
            task.cancel()
        await self._ways.close()

    async def get(self, key: Text, *, level: Level | str = Level.LINEARIZABLE, max_age: str | int = 0) -> bytes | None:
        """The value of a key; None if it is not there."""
        return (await self.find([key], level=level, max_age=max_age))[0].value

    async def find(
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
            header = self._ways.header(owner)
            header.level = int(level)  # type: ignore[assignment]
            header.max_age_ms = duration(max_age) if max_age else 0
            header.form = pb.JSON if as_json else pb.BYTES
            if as_of is not None:
                header.as_of, header.level = as_of, pb.AS_OF
            if complete_to is not None:
                header.complete_to = complete_to
            if level == Level.SESSION and owner is not None:
                header.seen = self._seen.get(owner.descriptor.id, 0)
                session = self._sessions.get(owner.descriptor.id)
                header.session = session.name if session else b""
            request = pb.GetRequest(header=header, keys=[wanted[place] for place in places])
            reply = await self._ways.channel(owner).ask("Get", request, left if complete_to is not None else min(left, ATTEMPT))
            self._note(reply.at)
            for place, value, version in zip(places, reply.values, reply.versions, strict=True):
                at = reply.at
                found[place] = KeyResult(
                    wanted[place], value if version else None, version, at.partition, at.lsn, at.age_ms, at.epoch, at.low_watermark
                )

        try:
            await self._spread(wanted, read)
        except Unreachable:
            if complete_to is None:
                raise
            now = (await self.find(wanted[:1], as_json=as_json))[0]
            raise Stale(
                f"{self.table!r} is complete to {now.low_watermark} (its low watermark in epoch {now.epoch}), and {complete_to} was asked for: it did not "
                f"come within {self._timeout:g} s"
            ) from None
        return [one for one in found if one is not None]

    async def put(self, key: Text, value: Text, *, expect: int | None = None) -> int:
        """Writes a key, once; its version. expect: only if it has this version (0: only if it is not there), or `Conflict`."""
        asked = pb.UpsertRequest(keys=[to_bytes(key)], values=[to_bytes(value)], expect=[] if expect is None else [expect])
        return int((await self._write("Upsert", asked, to_bytes(key))).at.lsn)

    async def put_many(self, rows: Mapping[Text, Text] | Iterable[tuple[Text, Text]], *, txn: str = "") -> int:
        """Writes many keys: batches by partition, each whole or not at all, several at once; how many rows. Of pairs with one key the last counts.

        txn: stages them instead.
        """
        given = rows if isinstance(rows, Mapping) else dict(rows)
        keys = [key if type(key) is bytes else to_bytes(key) for key in given]
        values = [value if type(value) is bytes else to_bytes(value) for value in given.values()]
        await self._many(keys, values, txn)
        return len(keys)

    async def stage(self, rows: Sequence[tuple[bytes, bytes | None]], txn: str) -> dict[int, int]:
        """Stages rows (a value of None removes the key) under a transaction, which `decide` ends; how many in each partition."""
        found: dict[int, int] = {}
        puts = [(key, value) for key, value in rows if value is not None]
        gone = [key for key, value in rows if value is None]
        counts = [await self._many([key for key, _ in puts], [value for _, value in puts], txn), await self._many(gone, None, txn)]
        for count in counts:
            for partition, many in count.items():
                found[partition] = found.get(partition, 0) + many
        return found

    async def remove(self, key: Text, *, expect: int | None = None) -> int:
        """Removes a key, once; the position of that. To remove what is not there is no error."""
        asked = pb.RemoveRequest(keys=[to_bytes(key)], expect=[] if expect is None else [expect])
        return int((await self._write("Remove", asked, to_bytes(key))).at.lsn)

    async def call(self, function: str, key: Text, argument: Text = b"") -> bytes:
        """Runs a function of the table on a key, once; its result."""
        asked = pb.CallRequest(function=function, key=to_bytes(key), argument=to_bytes(argument))
        return bytes((await self._write("Call", asked, to_bytes(key))).result)

    async def decide(self, partition: int, txns: Sequence[str], decision: Decision, fence: int, keep: Sequence[str] = ()) -> list[int]:
        """Decides staged transactions in one partition (`staged_txns.py`); how many rows each has. Doing it again is harmless.

        All of them are decided at one position, unless their names come to more than 512 KiB: then at several.
        """
        found: list[int] = []
        for names, _ in batches([range(len(txns))], [txn.encode() for txn in txns], None, _BATCH):
            asked = pb.DecideRequest(txns=[name.decode() for name in names], decision=int(decision), fence=fence, keep=keep)  # type: ignore[arg-type]
            found += (await self._decide(partition, asked)).rows
        return found

    async def _decide(self, partition: int, asked: pb.DecideRequest) -> pb.DecideReply:
        deadline, pause = time.monotonic() + self._timeout, Backoff()
        while True:
            owner = self._ways.by_id(partition)
            if owner is None:
                await self._ways.learn_all()
                owner = self._ways.by_id(partition)
                if owner is None:
                    raise RefusedRequest(f"table {self.table!r} has no partition {partition}")
            asked.header.CopyFrom(self._ways.header(owner))
            try:
                reply: pb.DecideReply = await self._ways.channel(owner).ask("Decide", asked, ATTEMPT)
                return reply
            except (BadNode, Busy, NotReady, UnknownOutcome, Unreachable) as error:
                self._ways.learn(error)
                await pause.after(error, deadline)

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
        owners = await self._ways.learn_all()
        asked = pb.ScanRequest(
            start=to_bytes(start), end=to_bytes(end), prefix=to_bytes(prefix), limit=limit, keys_only=keys_only, part=part
        )
        asked.header.form = pb.JSON if as_json else pb.BYTES
        if as_of is not None:
            asked.header.as_of, asked.header.level = as_of, pb.AS_OF
        given = 0
        if self._ways.routes.point != HASH or len(owners) == 1:
            low, high = scan_range(asked)
            for owner in owners:
                here = owner.descriptor
                if self._ways.routes.point == KEY and ((here.end and here.end <= low) or (high and high <= here.start)):
                    continue
                async for found in self._scan_one(owner, asked):
                    yield found
                    given += 1
                    if limit and given >= limit:
                        return
            return
        async for found in merged([self._scan_one(owner, asked) for owner in owners]):
            yield found
            given += 1
            if limit and given >= limit:
                return

    async def watch(
        self, *, keys: Iterable[Text] = (), prefix: Text = b"", after: Mapping[int, int] | None = None, as_json: bool = False
    ) -> AsyncIterator[WatchEvent]:
        """What is there, then every change, of all partitions. after: by partition, the position to go on from."""
        queue: asyncio.Queue[WatchEvent | BaseException] = asyncio.Queue(maxsize=64)
        wanted = [to_bytes(key) for key in keys]

        async def follow(owner: Owner, mine: list[bytes]) -> None:
            try:
                asked = pb.WatchRequest(header=self._ways.header(owner), keys=mine, prefix=to_bytes(prefix))
                asked.header.form = pb.JSON if as_json else pb.BYTES
                if after is not None and owner.descriptor.id in after:
                    asked.after = after[owner.descriptor.id]
                async for reply in self._ways.channel(owner).stream("Watch", asked):
                    await queue.put(watch_event(reply))
                raise Unreachable(f"{owner.address}: the stream has ended")
            except Exception as error:
                await queue.put(error)

        owners = await self._ways.learn_all()
        tasks = []
        for owner in owners:
            mine = [key for key in wanted if self._ways.routes.find(key) is owner]
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

    async def is_live(self) -> bool:
        """Whether this is the live state of a pipeline, and not a table."""
        await self._ways.learn_all()
        return self._ways.routes.point == LIVE

    async def partitions(self) -> list[int]:
        """The ids of the table's partitions, in the order of their points."""
        return [owner.descriptor.id for owner in await self._ways.learn_all()]

    # --- ways and means

    def _note(self, at: Any) -> None:
        if at.lsn > self._seen.get(at.partition, 0):
            self._seen[at.partition] = at.lsn

    async def _spread(self, keys: Sequence[bytes], read: Any) -> None:
        """Has keys read by those who have them, until all are."""
        left, deadline, pause, most = list(range(len(keys))), time.monotonic() + self._timeout, Backoff(), 2000
        while left:
            groups: dict[int, tuple[Owner | None, list[int]]] = {}
            for place in left:
                owner = self._ways.routes.find(keys[place])
                groups.setdefault(0 if owner is None else owner.descriptor.id, (owner, []))[1].append(place)
            jobs = [(owner, places[at : at + most]) for owner, places in groups.values() for at in range(0, len(places), most)]
            done = await asyncio.gather(
                *(read(places, owner, deadline - time.monotonic()) for owner, places in jobs), return_exceptions=True
            )
            left, again = [], None
            for (owner, places), error in zip(jobs, done, strict=True):
                if error is None:
                    continue
                if isinstance(error, TooLarge) and len(places) > 1:  # the answer would be: ask for fewer at once
                    most = min(most, len(places) // 2)
                    left += places
                    continue
                if not isinstance(error, (BadNode, Busy, NotReady, Unreachable)):
                    raise error
                self._ways.learn(error, owner)
                if isinstance(error, BadNode) and not error.owners:
                    await self._ways.look_around(keys[places[0]])
                    if self._ways.routes.find(keys[places[0]]) is None:
                        raise error
                left += places
                again = error
            if again is not None:
                await pause.after(again, deadline)

    async def _scan_one(self, owner: Owner, asked: Any) -> AsyncIterator[KeyResult]:
        request = pb.ScanRequest()
        request.CopyFrom(asked)
        request.header.MergeFrom(self._ways.header(owner))
        async for reply in self._ways.channel(owner).stream("Scan", request, self._timeout * 6):
            at = reply.at
            values = reply.values if reply.values else [b""] * len(reply.keys)
            versions = reply.versions if reply.versions else [at.lsn] * len(reply.keys)
            for key, value, version in zip(reply.keys, values, versions, strict=True):
                yield KeyResult(key, value, version, at.partition, at.lsn, at.age_ms, at.epoch, at.low_watermark)

    async def _many(self, keys: list[bytes], values: list[bytes] | None, txn: str) -> dict[int, int]:
        """Batches by partition; how many rows went to each."""
        routes = self._ways.routes
        split = routes.split(keys)
        if split is None:
            await self._ways.learn_all()
            split = routes.split(keys)
        if split is None:
            lost = next(key for key in keys if routes.find(key) is None)
            raise BadNode(f"no partition of table {self.table!r} has key {lost[:60]!r}")

        async def send(mine: list[bytes], theirs: list[bytes] | None) -> dict[int, int]:
            try:
                if theirs is None:
                    reply = await self._write("Remove", pb.RemoveRequest(keys=mine, txn=txn), mine[0], mine)
                else:
                    reply = await self._write("Upsert", pb.UpsertRequest(keys=mine, values=theirs, txn=txn), mine[0], mine)
            except KeysMoved:  # they were one partition's when they were put together
                return await self._many(mine, theirs, txn)
            return {reply.at.partition: len(mine)}

        counts: dict[int, int] = {}
        for found in await asyncio.gather(*(send(*batch) for batch in batches(split.values(), keys, values, _BATCH))):
            for partition, rows in found.items():
                counts[partition] = counts.get(partition, 0) + rows
        return counts

    async def _write(self, name: str, asked: Any, key: bytes, together: Sequence[bytes] = ()) -> Any:
        """Rules 2 to 4."""
        check_message(asked, together)  # before it has a number: one that the node refuses unseen would keep its successors waiting
        deadline, pause = time.monotonic() + self._timeout, Backoff()
        while True:
            owner = self._ways.routes.find(key)
            if owner is None:
                await self._ways.learn_all()
                owner = self._ways.routes.find(key)
                if owner is None:
                    raise BadNode(f"no partition of table {self.table!r} has key {key[:60]!r}")
            if together and len(self._ways.routes.split(together) or ()) != 1:
                raise KeysMoved
            id = owner.descriptor.id
            session = self._sessions.get(id)
            if session is None:
                session = self._sessions[id] = ClientSession(time.time_ns() // 1_000_000)
            async with session.room:
                if self._sessions.get(id) is not session:
                    continue  # given up meanwhile
                work = asyncio.ensure_future(self._numbered(name, asked, key, together, id, session, deadline, pause))
                reply = await finished(work, self._left)
            if reply is not None:
                return reply

    async def _numbered(
        self, name: str, asked: Any, key: bytes, together: Sequence[bytes], id: int, session: ClientSession, deadline: float, pause: Backoff
    ) -> Any:
        """One write under one number; None if it was certainly not done and must be numbered anew, for another partition or session."""
        seq, unsure = session.take(), False
        try:
            while True:
                owner = self._ways.routes.find(key)
                if owner is None or owner.descriptor.id != id:
                    if unsure:
                        raise UnknownOutcome(f"key {key[:60]!r}: the partition that may have done the write is gone")
                    self._give_up(id, session)
                    return None
                if not unsure and self._sessions.get(id) is not session:
                    return None  # an elder was given up, so this number would wait for ever
                asked.header.CopyFrom(self._ways.header(owner))
                asked.header.session, asked.header.seq, asked.header.done = session.name, seq, session.done
                left = deadline - time.monotonic()
                try:
                    if left <= 0:
                        raise Unreachable(f"key {key[:60]!r}: no answer in time", sent=False)
                    reply = await self._ways.channel(owner).ask(name, asked, min(left, ATTEMPT))
                    self._note(reply.at)
                    return reply
                except SessionExpired as error:
                    self._give_up(id, session)
                    if unsure:
                        raise
                    if error.known_after:
                        self._sessions[id] = ClientSession(max(time.time_ns() // 1_000_000, error.known_after + 1))
                    return None
                except BadNode as error:
                    self._ways.learn(error, owner)
                    if not error.owners:
                        await self._ways.look_around(key)
                    await self._patiently(error, pause, deadline, unsure, id, session)
                    if together and not unsure:
                        self._give_up(id, session)
                        return None
                except (Busy, NotReady, UnknownOutcome, Unreachable) as error:
                    unsure = unsure or isinstance(error, UnknownOutcome) or (isinstance(error, Unreachable) and error.sent)
                    if isinstance(error, Unreachable):
                        await self._ways.look_around(key)  # somebody else may have the partition now, and what was done in it
                    await self._patiently(error, pause, deadline, unsure, id, session)
        except (MillstreamError, asyncio.CancelledError) as error:
            if isinstance(error, ServiceError) and error.counted:
                raise
            self._give_up(id, session)
            if unsure and not isinstance(error, (UnknownOutcome, SessionExpired, asyncio.CancelledError)):
                raise UnknownOutcome(f"the write may have been done before it was refused: {error}") from error
            raise
        finally:
            session.answered(seq)

    async def _patiently(self, error: ServiceError, pause: Backoff, deadline: float, unsure: bool, id: int, session: ClientSession) -> None:
        """Waits, or rule 3."""
        try:
            await pause.after(error, deadline)
        except ServiceError:
            self._give_up(id, session)
            if unsure:
                raise UnknownOutcome(f"nobody said in time whether the write was done. The last word: {error}") from error
            raise

    def _give_up(self, id: int, session: ClientSession) -> None:
        if self._sessions.get(id) is session:
            del self._sessions[id]
