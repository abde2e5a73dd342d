"""A client's writes: their numbers, and the pauses between two tries.

Rules
1. A session's writes to a partition are numbered without holes, and at most `AT_ONCE` are under way.
2. Pauses grow from try to try, and are never the same for two clients.
3. What a node would refuse for its size gets no number (`limits.check_message`): a number that the node never counts would keep its successors waiting.
4. A write that has a number is brought to its end, also if its caller waits no longer: the writes behind it wait for it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Any, TypeVar

from millstream.errors import Busy

AT_ONCE = 48
_T = TypeVar("_T")


class WriteSession:
    """A session's writes to one partition."""

    def __init__(self, began: int) -> None:
        self.name = began.to_bytes(8, "big") + secrets.token_bytes(8)
        self._next = 1
        self._open: set[int] = set()
        self.room = asyncio.Semaphore(AT_ONCE)

    def take(self) -> int:
        """The number of the next write."""
        seq = self._next
        self._next += 1
        self._open.add(seq)
        return seq

    def answered(self, seq: int) -> None:
        """It is known what became of it."""
        self._open.discard(seq)

    @property
    def done(self) -> int:
        """Every write up to this one has been answered."""
        return min(self._open) - 1 if self._open else self._next - 1


async def finished(work: asyncio.Task[_T], left: set[asyncio.Task[Any]]) -> _T:
    """Rule 4. left: the writes that nobody waits for any more."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            left.add(work)
            work.add_done_callback(left.discard)
            work.add_done_callback(lambda work: work.cancelled() or work.exception())
        raise


class Pause:
    """Pauses between two tries: longer each time, and never the same for two clients."""

    def __init__(self) -> None:
        self._next = 0.0

    async def after(self, error: BaseException, deadline: float) -> None:
        wait = max(self._next, error.retry_after if isinstance(error, Busy) else 0.0) * random.uniform(0.7, 1.3)
        self._next = min(1.0, max(0.01, self._next * 2))
        if time.monotonic() + wait >= deadline:
            raise error
        await asyncio.sleep(wait)
