"""Which node has a key, as far as a client knows, and the channels to the nodes.

Rules
1. Routes are learnt from the nodes themselves: BAD_NODE says who has a key, `Route` who has a range. The registry is never asked.
2. What is newer wins: a descriptor of a lower term than a known one is not believed. A node that was replaced may not know it yet.
3. A channel is made when it is first needed.
4. Reads that meet BUSY, NOT_READY, BAD_NODE or a node that is away are sent again until their deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from millstream.errors import BadNode, Busy, DefinitionError, MillstreamError, NotReady, TooLarge, Unreachable
from millstream.network import Tls
from millstream.service.channel import Backoff, Channel
from millstream.service.messages import Descriptor
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import KEY, RangeMap, point_of

ATTEMPT = 5.0  # seconds for one try
_LOOK = 1.0


class Owner:
    def __init__(self, found: pb.Partition) -> None:
        self.descriptor = Descriptor(found.id, found.table, found.start, found.end, found.term, found.node, found.point or KEY)
        self.address = found.primary


class RouteCache:
    def __init__(self, addresses: Sequence[str], table: str, cookie: str, tls: Tls | None, timeout: float) -> None:
        if not addresses:
            raise DefinitionError("give the address of a node, such as 127.0.0.1:7400")
        self.table = table
        self.owners: RangeMap[Owner] = RangeMap()
        self._turn = 0  # which of the given addresses is asked when no owner is known
        self._given = list(addresses)
        self._cookie, self._tls, self._timeout = cookie, tls, timeout
        self._channels: dict[str, Channel] = {}
        self._terms: dict[int, int] = {}

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    def channel(self, owner: Owner | None) -> Channel:
        address = owner.address if owner is not None and owner.address else self._given[self._turn % len(self._given)]
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = Channel(address, tls=self._tls, cookie=self._cookie)
        return found

    def header(self, owner: Owner | None) -> Any:
        if owner is None:
            return pb.Header(table=self.table)
        return pb.Header(table=self.table, partition=owner.descriptor.id, term=owner.descriptor.term)

    def no_owner(self, key: bytes) -> BadNode:
        return BadNode(f"no partition of table {self.table!r} has key {key[:60]!r}")

    def learn(self, error: BaseException, owner: Owner | None = None) -> None:
        """Rule 1."""
        if owner is not None and isinstance(error, (BadNode, Unreachable)):
            self.owners.remove(owner)
        if isinstance(error, BadNode):
            for told in error.owners:
                self.remember(told)
        elif isinstance(error, Unreachable):
            self._turn += 1

    def remember(self, told: pb.Partition) -> None:
        """Rule 2."""
        if told.table == self.table and told.term >= self._terms.get(told.id, 0):
            self._terms[told.id] = told.term
            self.owners.point = told.point or KEY
            self.owners.add(Owner(told))

    async def look_around(self, key: bytes) -> None:
        """Asks one node, and each time another of those that were given, who has a key."""
        self._turn += 1
        start = point_of(self.owners.point, key)
        try:
            reply = await self.channel(None).ask("Route", pb.RouteRequest(table=self.table, start=start, limit=1), _LOOK)
        except MillstreamError:
            return
        for told in reply.partitions:
            self.remember(told)

    async def learn_all(self) -> list[Owner]:
        """All partitions of the table, in the order of their points."""
        deadline, backoff = time.monotonic() + self._timeout, Backoff()
        start = b""
        while True:
            try:
                request = pb.RouteRequest(table=self.table, start=start)
                reply = await self.channel(None).ask("Route", request, ATTEMPT)
            except (Busy, NotReady, Unreachable, BadNode) as error:
                self.learn(error)
                await backoff.after(error, deadline)
                continue
            for told in reply.partitions:
                self.remember(told)
            if not reply.partitions or not reply.partitions[-1].end:
                return self.owners.all()
            start = reply.partitions[-1].end

    async def read_all(self, keys: Sequence[bytes], read: Callable[[list[int], Owner | None, float], Awaitable[None]]) -> None:
        """Has the owners of keys read them, until all are read (rule 4). read: gets places of keys, their owner, and the seconds that are left."""
        left, deadline, backoff, most = list(range(len(keys))), time.monotonic() + self._timeout, Backoff(), 2000
        while left:
            groups: dict[int, tuple[Owner | None, list[int]]] = {}
            for place in left:
                owner = self.owners.find(keys[place])
                groups.setdefault(0 if owner is None else owner.descriptor.id, (owner, []))[1].append(place)
            jobs = [(owner, places[at : at + most]) for owner, places in groups.values() for at in range(0, len(places), most)]
            seconds = deadline - time.monotonic()
            outcomes = await asyncio.gather(*(read(places, owner, seconds) for owner, places in jobs), return_exceptions=True)
            left, again = [], None
            for (owner, places), error in zip(jobs, outcomes, strict=True):
                if error is None:
                    continue
                if isinstance(error, TooLarge) and len(places) > 1:  # the reply would be: ask for fewer at once
                    most = min(most, len(places) // 2)
                    left += places
                    continue
                if not isinstance(error, (BadNode, Busy, NotReady, Unreachable)):
                    raise error
                self.learn(error, owner)
                if isinstance(error, BadNode) and not error.owners:
                    await self.look_around(keys[places[0]])
                    if self.owners.find(keys[places[0]]) is None:
                        raise error
                left += places
                again = error
            if again is not None:
                await backoff.after(again, deadline)
