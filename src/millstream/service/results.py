"""What a client asks with and is answered: keys and values, owners, what was looked up, scanned and watched."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from millstream.errors import RefusedRequest
from millstream.service.messages import Descriptor
from millstream.service.proto import service_pb2 as pb
from millstream.service.wire import descriptor

Text = str | bytes


class Owner:
    """A partition as a client knows it, and where it is."""

    def __init__(self, found: pb.Partition) -> None:
        self.descriptor: Descriptor = descriptor(found)
        self.address = found.primary


class KeyResult(msgspec.Struct, frozen=True):
    """What a key has. version: 0 if it is not there. lsn: the position of the partition that answered; of live state, the epoch. age: how old that may be,
    and low_watermark: how far event time is complete (live state); both in milliseconds."""

    key: bytes
    value: bytes | None
    version: int
    partition: int = 0
    lsn: int = 0
    age: int = 0
    epoch: int = 0
    low_watermark: int = 0


class WatchEvent(msgspec.Struct, frozen=True):
    """What a watch tells. kind: "snapshot", "changes", "mark" or "reset". A value of None: the key is gone."""

    kind: str
    partition: int
    lsn: int
    rows: list[tuple[bytes, bytes | None, int]]
    epoch: int = 0
    low_watermark: int = 0
    first: int = 0


async def chained(streams: Sequence[AsyncIterator[KeyResult]]) -> AsyncIterator[KeyResult]:
    """One stream after the other."""
    for stream in streams:
        async for result in stream:
            yield result


async def merged(streams: Sequence[AsyncIterator[KeyResult]]) -> AsyncIterator[KeyResult]:
    """Sorted streams as one."""
    heads: list[tuple[bytes, int, KeyResult]] = []
    for number, stream in enumerate(streams):
        async for first in stream:
            heads.append((first.key, number, first))
            break
    heapq.heapify(heads)
    while heads:
        _, number, found = heads[0]
        yield found
        async for following in streams[number]:
            heapq.heapreplace(heads, (following.key, number, following))
            break
        else:
            heapq.heappop(heads)


def watch_event(reply: Any) -> WatchEvent:
    at = reply.at
    rows = [
        (key, value if version else None, version) for key, value, version in zip(reply.keys, reply.values, reply.versions, strict=True)
    ]
    kind = pb.WatchReply.Kind.Name(reply.kind).lower()
    return WatchEvent(kind, at.partition, at.lsn, rows, at.epoch, at.low_watermark, reply.first)


def to_bytes(text: Text) -> bytes:
    """Keys and values as they travel."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    hint = ": for a key of a pipeline's live state, use ms.service.live_key" if isinstance(text, (int, tuple)) else ""
    raise RefusedRequest(f"keys and values are bytes or text, and not {type(text).__name__}, as {text!r:.60} is{hint}")
