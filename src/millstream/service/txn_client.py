"""A client for sinks that write in two phases: it stages rows under a transaction, and decides what becomes of them (`staged_txns.py`). Internal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from millstream.errors import BadNode, Busy, NotReady, RefusedRequest, UnknownOutcome, Unreachable
from millstream.service.blocking import Client, waits
from millstream.service.channel import Backoff
from millstream.service.client import AsyncClient
from millstream.service.client_session import BATCH, batches
from millstream.service.messages import Decision
from millstream.service.proto import service_pb2 as pb
from millstream.service.route_cache import ATTEMPT


class AsyncTxnClient(AsyncClient):
    """For asyncio."""

    async def stage(self, rows: Iterable[tuple[bytes, bytes | None]], txn: str) -> dict[int, int]:
        """Stages rows (a value of None removes the key) under a transaction, which `decide` ends; how many in each partition."""
        puts: dict[bytes, bytes] = {}
        removals: list[bytes] = []
        for key, value in rows:
            if value is None:
                removals.append(key)
            else:
                puts[key] = value
        counts = Counter(await self._writer.write_many(list(puts), list(puts.values()), txn))
        counts.update(await self._writer.write_many(removals, None, txn))
        return dict(counts)

    async def decide(self, partition: int, txns: Sequence[str], decision: Decision, fence: int, keep: Sequence[str] = ()) -> list[int]:
        """Decides staged transactions in one partition (`staged_txns.py`); how many rows each has. Doing it again is harmless.

        All of them are decided at one position, unless their names come to more than 512 KiB: then at several.
        """
        found: list[int] = []
        for names, _ in batches([range(len(txns))], [txn.encode() for txn in txns], None, BATCH):
            asked = pb.DecideRequest(txns=[name.decode() for name in names], decision=int(decision), fence=fence, keep=keep)  # type: ignore[arg-type]
            found += (await self._decide(partition, asked)).rows
        return found

    async def _decide(self, partition: int, asked: pb.DecideRequest) -> pb.DecideReply:
        deadline, backoff = time.monotonic() + self._timeout, Backoff()
        while True:
            owner = self._routes.owners.by_id(partition)
            if owner is None:
                await self._routes.learn_all()
                owner = self._routes.owners.by_id(partition)
                if owner is None:
                    raise RefusedRequest(f"table {self.table!r} has no partition {partition}")
            asked.header.CopyFrom(self._routes.header(owner))
            try:
                reply: pb.DecideReply = await self._routes.channel(owner).ask("Decide", asked, ATTEMPT)
                return reply
            except (BadNode, Busy, NotReady, UnknownOutcome, Unreachable) as error:
                self._routes.learn(error)
                await backoff.after(error, deadline)


class TxnClient(Client):
    """For programs without asyncio."""

    kind = AsyncTxnClient
    stage = waits(AsyncTxnClient.stage)
    decide = waits(AsyncTxnClient.decide)
