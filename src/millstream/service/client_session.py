"""A client's writes: their sessions and numbers, and the retries that make each of them count once.

Rules
1. A write has a session and a number per partition, without holes, and keeps them however often it is sent. At most `AT_ONCE` are under way.
2. When it is not known whether a write was done, it is sent again with the same number until the deadline. A refusal is final.
3. When the deadline passes without an answer, `UnknownOutcome` is raised, and that session ends: its later writes would wait for the missing number.
4. What a node would refuse for its size gets no number (`limits.check_message`), for the same reason.
5. A write that has a number is brought to its end, even if its caller waits no longer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

from millstream.errors import BadNode, Busy, MillstreamError, NotReady, ServiceError, SessionExpired, UnknownOutcome, Unreachable
from millstream.service.channel import Backoff
from millstream.service.limits import check_message
from millstream.service.messages import LIMIT
from millstream.service.proto import service_pb2 as pb
from millstream.service.route_cache import ATTEMPT, RouteCache

AT_ONCE = 48
BATCH = LIMIT // 2


class ClientSession:
    def __init__(self, partition: int, known_after: int = 0) -> None:
        """known_after: the session must be younger than this, in milliseconds."""
        self.partition = partition
        self.name = max(time.time_ns() // 1_000_000, known_after + 1).to_bytes(8, "big") + secrets.token_bytes(8)
        self._next = 1
        self._open: set[int] = set()
        self.room = asyncio.Semaphore(AT_ONCE)

    def take(self) -> int:
        seq = self._next
        self._next += 1
        self._open.add(seq)
        return seq

    def answered(self, seq: int) -> None:
        self._open.discard(seq)

    @property
    def done(self) -> int:
        """Every write up to this one has been answered."""
        return min(self._open) - 1 if self._open else self._next - 1


class KeysMoved(Exception):
    """Keys that were one partition's when they were put together belong to several now."""


class NumberedWrite(NamedTuple):
    """One write. together: all of its keys, if they were put together because one partition has them."""

    name: str
    message: Any
    key: bytes
    together: Sequence[bytes]
    deadline: float
    backoff: Backoff


class Writer:
    """Sends the writes of one client. timeout: seconds for one write, with its retries."""

    def __init__(self, routes: RouteCache, timeout: float) -> None:
        self._routes, self._timeout = routes, timeout
        self.sessions: dict[int, ClientSession] = {}  # by partition
        self.abandoned: set[asyncio.Task[Any]] = set()  # writes whose callers wait no longer
        self.seen: dict[int, int] = {}  # by partition, the highest position that this client has been told

    def close(self) -> None:
        for task in self.abandoned:
            task.cancel()

    def note(self, at: Any) -> None:
        if at.lsn > self.seen.get(at.partition, 0):
            self.seen[at.partition] = at.lsn

    async def write(self, name: str, message: Any, key: bytes, together: Sequence[bytes] = ()) -> Any:
        check_message(message, together)  # rule 4
        write = NumberedWrite(name, message, key, together, time.monotonic() + self._timeout, Backoff())
        while True:
            owner = self._routes.owners.find(key)
            if owner is None:
                await self._routes.learn_all()
                owner = self._routes.owners.find(key)
                if owner is None:
                    raise self._routes.no_owner(key)
            if together and len(self._routes.owners.split(together) or ()) != 1:
                raise KeysMoved
            id = owner.descriptor.id
            session = self.sessions.get(id)
            if session is None:
                session = self.sessions[id] = ClientSession(id)
            async with session.room:
                if self.sessions.get(id) is not session:
                    continue  # given up meanwhile
                reply = await self._finish(asyncio.ensure_future(self._send(write, session)))
            if reply is not None:
                return reply

    async def _finish(self, work: asyncio.Task[Any]) -> Any:
        """Rule 5."""
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                self.abandoned.add(work)
                work.add_done_callback(self.abandoned.discard)
                work.add_done_callback(lambda work: work.cancelled() or work.exception())
            raise

    async def _send(self, write: NumberedWrite, session: ClientSession) -> Any:
        """One write under one number; None if it was certainly not done and needs a new number, for another partition or session."""
        seq, unsure = session.take(), False
        routes, key, header = self._routes, write.key, write.message.header
        try:
            while True:
                owner = routes.owners.find(key)
                if owner is None or owner.descriptor.id != session.partition:
                    if unsure:
                        raise UnknownOutcome(f"key {key[:60]!r}: the partition that may have done the write is gone")
                    self._give_up(session)
                    return None
                if not unsure and self.sessions.get(session.partition) is not session:
                    return None  # an earlier write was given up, so this number would wait for ever
                header.CopyFrom(routes.header(owner))
                header.session, header.seq, header.done = session.name, seq, session.done
                left = write.deadline - time.monotonic()
                try:
                    if left <= 0:
                        raise Unreachable(f"key {key[:60]!r}: no answer in time", sent=False)
                    reply = await routes.channel(owner).ask(write.name, write.message, min(left, ATTEMPT))
                    self.note(reply.at)
                    return reply
                except SessionExpired as error:
                    if unsure:
                        raise
                    self._give_up(session)
                    if error.known_after:
                        self.sessions[session.partition] = ClientSession(session.partition, error.known_after)
                    return None
                except BadNode as error:
                    routes.learn(error, owner)
                    if not error.owners:
                        await routes.look_around(key)
                    await write.backoff.after(error, write.deadline)  # raises it at the deadline: rule 3
                    if write.together and not unsure:
                        self._give_up(session)
                        return None
                except (Busy, NotReady, UnknownOutcome, Unreachable) as error:
                    unsure = unsure or isinstance(error, UnknownOutcome) or (isinstance(error, Unreachable) and error.sent)
                    if isinstance(error, Unreachable):
                        await routes.look_around(key)  # another node may have the partition now, and what was done in it
                    await write.backoff.after(error, write.deadline)
        except (MillstreamError, asyncio.CancelledError) as error:
            if isinstance(error, ServiceError) and error.counted:
                raise
            self._give_up(session)
            if unsure and not isinstance(error, (UnknownOutcome, SessionExpired, asyncio.CancelledError)):
                raise UnknownOutcome(f"it is not known whether the write was done. The last error: {error}") from error
            raise
        finally:
            session.answered(seq)

    def _give_up(self, session: ClientSession) -> None:
        if self.sessions.get(session.partition) is session:
            del self.sessions[session.partition]

    async def write_many(self, keys: Sequence[bytes], values: Sequence[bytes] | None, txn: str = "") -> Counter[int]:
        """Writes many keys, in batches by partition: how many rows went to each. values: None removes the keys. txn: stages them instead."""
        split = self._routes.owners.split(keys)
        if split is None:
            await self._routes.learn_all()
            split = self._routes.owners.split(keys)
        if split is None:
            raise self._routes.no_owner(next(key for key in keys if self._routes.owners.find(key) is None))

        async def send(mine: list[bytes], theirs: list[bytes] | None) -> Mapping[int, int]:
            try:
                if theirs is None:
                    reply = await self.write("Remove", pb.RemoveRequest(keys=mine, txn=txn), mine[0], mine)
                else:
                    reply = await self.write("Upsert", pb.UpsertRequest(keys=mine, values=theirs, txn=txn), mine[0], mine)
            except KeysMoved:
                return await self.write_many(mine, theirs, txn)
            return {reply.at.partition: len(mine)}

        counts: Counter[int] = Counter()
        for sent in await asyncio.gather(*(send(*batch) for batch in batches(split.values(), keys, values, BATCH))):
            counts.update(sent)
        return counts


def batches(
    groups: Iterable[Sequence[int]], keys: Sequence[bytes], values: Sequence[bytes] | None, most: int
) -> Iterator[tuple[list[bytes], list[bytes] | None]]:
    """Keys and values by their places, cut so that none has more bytes than `most`, or than one row has.

    >>> list(batches([[0, 2], [1]], [b"a", b"b", b"c"], [b"11", b"22", b"33"], 100))
    [([b'a', b'c'], [b'11', b'33']), ([b'b'], [b'22'])]
    >>> [len(mine) for mine, _ in batches([range(5)], [b"a"] * 5, None, 2)]
    [2, 2, 1]
    """
    sizes = list(map(len, keys)) if values is None else list(map(add, map(len, keys), map(len, values)))
    for places in groups:
        first = size = 0
        for at, place in enumerate(places):
            if size and size + sizes[place] > most:
                yield _at(places[first:at], keys), None if values is None else _at(places[first:at], values)
                first, size = at, 0
            size += sizes[place]
        if len(places) > first:
            yield _at(places[first:], keys), None if values is None else _at(places[first:], values)


def _at(places: Sequence[int], of: Sequence[bytes]) -> list[bytes]:
    if isinstance(places, range):
        return list(of[places.start : places.stop])
    return [of[place] for place in places]
