"""A long answer in portions: each small enough for one message, none of which keeps the event loop.

Rules
1. A portion has at most `messages.LIMIT` bytes of keys and values, or one row (of `LARGEST` bytes at most).
2. What is read on the event loop gives way every few milliseconds. What may take long for one row is read in a thread.
3. A client that takes longer than `PATIENCE` for the whole is refused: what it reads is pinned meanwhile, and pages of LMDB with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

from millstream.errors import Stale, TooLarge
from millstream.service.messages import LIMIT

PATIENCE = 60.0  # seconds
LARGEST = 2 << 20  # bytes of keys and values in one answer, if it is one row
_SLICE = 0.003  # seconds on the event loop at once


class Page(NamedTuple):
    """Rows for one message."""

    keys: list[bytes]
    values: list[bytes]


class Pager:
    """Makes portions of rows. in_thread: rule 2. limit: at most so many rows; 0: all."""

    def __init__(
        self, rows: Iterator[tuple[bytes, bytes]], *, in_thread: bool = False, limit: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows = rows
        self._in_thread = in_thread
        self._left = limit or -1
        self._clock = clock
        self._next: tuple[bytes, bytes] | None = None
        self._is_over = False
        self._found = Page([], [])
        self._size = 0

    async def __aiter__(self) -> AsyncIterator[Page]:
        until = self._clock() + PATIENCE
        while not self._is_over:
            if self._in_thread:
                full = await asyncio.to_thread(self._fill, 1.0)
            else:
                full = self._fill(_SLICE)
                await asyncio.sleep(0)
            if self._clock() > until:
                raise Stale(
                    f"the answer has been read for more than {PATIENCE:.0f} s, and what it is of is not kept for longer. Ask for less at once."
                )
            if full or self._is_over:
                found, self._found, self._size = self._found, Page([], []), 0
                if found.keys:
                    yield found

    def _fill(self, seconds: float) -> bool:
        """Adds rows for a while; whether the portion is full."""
        until = self._clock() + seconds
        found, size = self._found, self._size
        while self._left:
            row = self._next or next(self._rows, None)
            if row is None:
                break
            more = len(row[0]) + len(row[1])
            if more > LARGEST:
                raise TooLarge(f"the row {row[0][:100]!r} has {more:,} bytes, and an answer at most {LARGEST:,}.")
            if found.keys and size + more > LIMIT:
                self._next, self._size = row, size
                return True
            self._next = None
            found.keys.append(row[0])
            found.values.append(row[1])
            size += more
            self._left -= 1
            if self._clock() > until:
                self._size = size
                return False
        self._is_over = True
        return True
