"""Long answers in pages: each small enough for one message, none of which keeps the event loop.

Rules
1. A page has at most `messages.LIMIT` bytes, or one row (of `LARGEST` bytes at most). There is always one; it is empty if there are no rows.
2. What is read on the event loop gives way every few milliseconds. What may take long for one row is read in a thread.
3. A client that takes longer than `patience` for the whole is refused: what it reads is pinned meanwhile, and pages of LMDB with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from time import monotonic
from typing import Any

from millstream.errors import Stale, TooLarge
from millstream.service.messages import LIMIT

LARGEST = 2 << 20  # bytes of keys and values in one answer, if it is one row
_SLICE = 0.003  # seconds on the event loop at once
_END = object()

#: A key, its value, and its version; 0: the key is gone.
VersionedRow = tuple[bytes, bytes, int]


async def pages(
    rows: Iterator[VersionedRow], *, most: int = LIMIT, in_thread: bool = False, patience: float = float("inf")
) -> AsyncIterator[list[VersionedRow]]:
    """Makes pages of rows, of about `most` bytes each. in_thread: rule 2. patience: seconds, rule 3."""
    found, until = _paged(rows, most, float("inf") if in_thread else _SLICE), monotonic() + patience
    while True:
        page: Any = await asyncio.to_thread(next, found, _END) if in_thread else next(found, _END)
        if page is _END:
            return
        if monotonic() > until:
            raise Stale(
                f"the answer has been read for more than {patience:.0f} s, and what it is of is not kept for longer. Ask for less at once."
            )
        if page is None:
            await asyncio.sleep(0)
        else:
            yield page


def _paged(rows: Iterator[VersionedRow], most: int, seconds: float) -> Iterator[list[VersionedRow] | None]:
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


def columns(rows: Sequence[VersionedRow]) -> tuple[list[bytes], list[bytes], list[int]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
