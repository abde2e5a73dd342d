"""A client's ways: which node has a key, as far as it knows, and the channels to them.

Rules
1. RouteCache are learnt from the nodes themselves: BAD_NODE says who has a key, `Route` who has a range. The registry is never asked.
2. What is newer wins: a descriptor of a lower term than one that was heard of is not believed. A node that was replaced may not know it yet.
3. A channel is made when it is first needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from millstream.errors import BadNode, Busy, DefinitionError, MillstreamError, NotReady, Unreachable
from millstream.network import Tls
from millstream.service.channel import Channel
from millstream.service.client_session import Backoff
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import KEY, RangeMap, point_of
from millstream.service.results import Owner

ATTEMPT = 5.0  # seconds for one try
_LOOK = 1.0


class RouteCache:
    """The ways to the partitions of one table."""

    def __init__(self, addresses: Sequence[str], table: str, cookie: str, tls: Tls | None, timeout: float) -> None:
        if not addresses:
            raise DefinitionError("give the address of a node, such as 127.0.0.1:7400")
        self.table = table
        self.routes: RangeMap[Owner] = RangeMap()
        self.turn = 0  # which of the given addresses is asked when nobody is known
        self._given = list(addresses)
        self._cookie, self._tls, self._timeout = cookie, tls, timeout
        self._channels: dict[str, Channel] = {}
        self._terms: dict[int, int] = {}

    async def close(self) -> None:
        """Ends the connections."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    def channel(self, owner: Owner | None) -> Channel:
        """To an owner, or to one of the given nodes."""
        address = owner.address if owner is not None and owner.address else self._given[self.turn % len(self._given)]
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = Channel(address, tls=self._tls, cookie=self._cookie)
        return found

    def header(self, owner: Owner | None) -> Any:
        """What a request begins with."""
        if owner is None:
            return pb.Header(table=self.table)
        return pb.Header(table=self.table, partition=owner.descriptor.id, term=owner.descriptor.term)

    def by_id(self, partition: int) -> Owner | None:
        """Who has a partition, as far as that is known."""
        return self.routes.by_id(partition)

    def learn(self, error: BaseException, owner: Owner | None = None) -> None:
        """Rule 1."""
        if isinstance(error, BadNode):
            if owner is not None:
                self.routes.remove(owner)
            for told in error.owners:
                self.remember(told)
        elif isinstance(error, Unreachable):
            self.turn += 1
            if owner is not None:
                self.routes.remove(owner)

    def remember(self, told: pb.Partition) -> None:
        """Rule 2."""
        if told.table == self.table and told.term >= self._terms.get(told.id, 0):
            self._terms[told.id] = told.term
            self.routes.point = told.point or KEY
            self.routes.add(Owner(told))

    async def look_around(self, key: bytes) -> None:
        """Asks one node, and each time another of those that were given, who has a key."""
        self.turn += 1
        start = point_of(self.routes.point, key)
        try:
            reply = await self.channel(None).ask("Route", pb.RouteRequest(table=self.table, start=start, limit=1), _LOOK)
        except MillstreamError:
            return
        for told in reply.partitions:
            self.remember(told)

    async def learn_all(self) -> list[Owner]:
        """All partitions of the table, in the order of their points."""
        deadline, pause = time.monotonic() + self._timeout, Backoff()
        start = b""
        while True:
            try:
                request = pb.RouteRequest(table=self.table, start=start)
                reply = await self.channel(None).ask("Route", request, ATTEMPT)
            except (Busy, NotReady, Unreachable, BadNode) as error:
                self.learn(error)
                await pause.after(error, deadline)
                continue
            for told in reply.partitions:
                self.remember(told)
            if not reply.partitions or not reply.partitions[-1].end:
                return self.routes.all()
            start = reply.partitions[-1].end
