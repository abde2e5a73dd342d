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
from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import Any, TypeVar

from millstream.errors import Busy

AT_ONCE = 48
_T = TypeVar("_T")


class ClientSession:
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


class Backoff:
    """Pauses between two tries: longer each time, and never the same for two clients."""

    def __init__(self) -> None:
        self._next = 0.0

    async def after(self, error: BaseException, deadline: float) -> None:
        wait = max(self._next, error.retry_after if isinstance(error, Busy) else 0.0) * random.uniform(0.7, 1.3)
        self._next = min(1.0, max(0.01, self._next * 2))
        if time.monotonic() + wait >= deadline:
            raise error
        await asyncio.sleep(wait)


class KeysMoved(Exception):
    """Keys that were put together belong to several partitions now."""


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
                yield _chosen(places[first:at], keys), None if values is None else _chosen(places[first:at], values)
                first, size = at, 0
            size += sizes[place]
        if len(places) > first:
            yield _chosen(places[first:], keys), None if values is None else _chosen(places[first:], values)


def _chosen(places: Sequence[int], of: Sequence[bytes]) -> list[bytes]:
    if isinstance(places, range):
        return list(of[places.start : places.stop])
    return [of[place] for place in places]
