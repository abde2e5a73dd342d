"""How much may be asked of a plane, how often and for how long.

Rules
1. The data plane takes much and answers soon; the control plane takes little and may take long. A mesh that limits by itself switches these off.
2. What is over a limit is refused at once, with a hint when to come back. Nothing waits for a limit, so nothing piles up.
3. A client that reads from a pin must finish within `PINNED` seconds, or its stream ends: a pin keeps the store from reusing space.
4. A long answer comes in pages of at most `messages.LIMIT` bytes, or one row (of `LARGEST` bytes at most). There is always one, perhaps empty.
5. What is read on the event loop gives way every few milliseconds. What may take long for one row is read in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any

import msgspec

from millstream.errors import Busy, RefusedRequest, TooLarge
from millstream.service.messages import LIMIT, LONGEST_KEY

PINNED = 600.0  # seconds
FRAME = 64 << 10  # bytes that a message may have besides its keys and values
LARGEST = 2 << 20  # bytes of keys and values in one answer, if it is one row
_SLICE = 0.003  # seconds on the event loop at once
_END: Any = object()

#: A key, its value, and its version; 0: the key is gone.
VersionedRow = tuple[bytes, bytes, int]


class Limits(msgspec.Struct, frozen=True):
    """at_once: calls under way. rate, burst: calls per second, and how many together (0: any). deadline: seconds of a call that names none. message: bytes."""

    at_once: int
    rate: float
    burst: int
    deadline: float
    longest: float  # seconds of any call
    message: int = LIMIT + FRAME


DATA = Limits(at_once=2000, rate=0, burst=0, deadline=5, longest=60)
CONTROL = Limits(at_once=16, rate=1, burst=5, deadline=600, longest=600)


def off(limits: Limits) -> Limits:
    """For planes behind a mesh that limits by itself. A message is never larger: who reads it has only so much room."""
    return msgspec.structs.replace(limits, at_once=0, rate=0, burst=0, longest=24 * 3600)


class PinLease:
    """Rule 3, for one stream: whether it holds a pin, and `over`, which is set once it has held one for too long."""

    def __init__(self) -> None:
        self.is_held, self.over = False, asyncio.Event()
        _lease.set(self)


_lease: ContextVar[PinLease | None] = ContextVar("_lease", default=None)


@contextlib.contextmanager
def while_pinned(seconds: float | None = None) -> Iterator[None]:
    """Within this block, the stream that is answered holds a pin, for so many seconds (`PINNED`) at most."""
    lease = _lease.get()
    if lease is None:
        yield
        return
    lease.is_held, ending = True, asyncio.get_running_loop().call_later(seconds or PINNED, lease.over.set)
    try:
        yield
    finally:
        lease.is_held = False
        ending.cancel()


class Bucket:
    """Tokens: one for each call, `rate` new ones a second, `burst` at most.

    >>> bucket = Bucket(1, 2)
    >>> bucket.take(0.0), bucket.take(0.0)
    (None, None)
    >>> bucket.take(0.5)
    Traceback (most recent call last):
    ...
    millstream.errors.Busy: more than 1 call a second; come back in 0.5 s
    >>> bucket.take(1.5)
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), 0.0

    def take(self, now: float) -> None:
        """Takes one, or raises Busy. now: seconds of a clock that does not go back."""
        if not self._rate:
            return
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            wait = (1 - self._tokens) / self._rate
            raise Busy(f"more than {self._rate:g} call a second; come back in {wait:.1f} s", wait)
        self._tokens -= 1


def check_size(keys: Sequence[bytes], values: Sequence[bytes]) -> int:
    """The bytes of a write, which may not be too many. Clients look before they number a write, nodes before they do anything.

    >>> check_size([b"tea"], [b"7"])
    4
    """
    if not keys:
        raise RefusedRequest("no key was given")
    longest = max(map(len, keys))
    if longest > LONGEST_KEY:
        raise TooLarge(f"a key has {longest:,} bytes; {LONGEST_KEY:,} are allowed")
    size = sum(map(len, keys)) + sum(map(len, values))
    if size > LIMIT:
        raise TooLarge(f"keys and values come to {size:,} bytes; {LIMIT:,} are allowed in one request: send them in several")
    return size


def check_message(asked: Any, together: Sequence[bytes] = ()) -> None:
    """Checks a write as it travels: what it has besides keys and values must not be too much either. together: its keys, if it was cut to fit."""
    if together:
        check_size(together, ())
    elif hasattr(asked, "argument"):
        check_size([asked.key], [asked.argument])
    else:
        check_size(asked.keys, getattr(asked, "values", ()))
    size = asked.ByteSize()
    if size > LIMIT + FRAME // 2:
        raise TooLarge(f"{len(getattr(asked, 'keys', ())):,} keys make a message of {size:,} bytes: send them in several requests")


async def pages(rows: Iterator[VersionedRow], *, most: int = LIMIT, in_thread: bool = False) -> AsyncIterator[list[VersionedRow]]:
    """Rule 4. Pages have about `most` bytes. in_thread: rule 5."""
    found = _paged(rows, most, float("inf") if in_thread else _SLICE)
    while (page := await asyncio.to_thread(next, found, _END) if in_thread else next(found, _END)) is not _END:
        if page is None:
            await asyncio.sleep(0)
        else:
            yield page


def _paged(rows: Iterator[VersionedRow], most: int, seconds: float) -> Iterator[Any]:
    """Pages; and None whenever they have taken so many seconds."""
    page: list[VersionedRow] = []
    size, until = 0, monotonic() + seconds
    for count, row in enumerate(rows, 1):
        more = len(row[0]) + len(row[1]) + 16
        if more > LARGEST:
            raise TooLarge(f"the row {row[0][:100]!r} has {more:,} bytes, and an answer at most {LARGEST:,}.")
        if page and size + more > most:
            yield page
            page, size = [], 0
        page.append(row)
        size += more
        if count % 64 == 0 and monotonic() > until:
            yield None
            until = monotonic() + seconds
    yield page


def columns(rows: Sequence[VersionedRow], keys_only: bool = False) -> dict[str, Any]:
    """The rows of a page, as replies have them."""
    values = [] if keys_only else [row[1] for row in rows]
    return {"keys": [row[0] for row in rows], "values": values, "versions": [row[2] for row in rows]}
