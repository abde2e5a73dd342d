"""From a key to its partition: points, ranges, and what a client remembers of them.

Rules
1. A key has a point: itself (`KEY`), so that neighbours lie together and can be scanned; or the first 8 bytes of its BLAKE2b hash (`HASH`), so that load
   is even. Every client can compute both.
2. Ranges are closed-open and do not overlap. A point may belong to no range.
3. What is newer wins: a descriptor with a higher term, or another partition for the same points that a node has just named.
4. Whatever is done to a map looks at the partitions that it is about, however many others there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

from millstream.core.keyspace import after
from millstream.service.messages import Descriptor

KEY, HASH = "key", "hash"
LIVE = "live"  # the live state of a pipeline: one partition, on any server


def point_of(kind: str, key: bytes) -> bytes:
    """Rule 1.

    >>> point_of(KEY, b"tea"), point_of(HASH, b"tea").hex()
    (b'tea', 'ba6587c1bb84c490')
    """
    return blake2b(key, digest_size=8).digest() if kind == HASH else key


def even_ranges(count: int) -> list[tuple[bytes, bytes]]:
    """All points of `HASH`, cut into equal ranges.

    >>> even_ranges(2)
    [(b'', b'\\x80\\x00\\x00\\x00\\x00\\x00\\x00\\x00'), (b'\\x80\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'')]
    """
    cuts = [b""] + [(at * 2**64 // count).to_bytes(8, "big") for at in range(1, count)]
    return list(zip(cuts, [*cuts[1:], b""], strict=True))


def prefix_end(prefix: bytes) -> bytes:
    """Where the keys with a prefix end; empty if all that follow have it.

    >>> prefix_end(b"tea"), prefix_end(b"a\\xff"), prefix_end(b"\\xff\\xff")
    (b'teb', b'b', b'')
    """
    return after(prefix) if prefix.rstrip(b"\xff") else b""


def scan_range(asked: Any) -> tuple[bytes, bytes]:
    low, high = asked.start, asked.end
    if asked.prefix:
        low, end = max(low, asked.prefix), prefix_end(asked.prefix)
        high = min(high, end) if high and end else high or end
    return low, high


class HasRange(Protocol):
    @property
    def descriptor(self) -> Descriptor: ...


_P = TypeVar("_P", bound=HasRange)


class RangeMap(Generic[_P]):
    """The partitions of one table, by point."""

    def __init__(self, point: str = KEY) -> None:
        self.point = point
        self._starts: list[bytes] = []
        self._ones: list[_P] = []  # in the order of their starts
        self._by_id: dict[int, _P] = {}
        self._only: _P | None = None  # the one that has all points: none need be computed

    def add(self, one: _P) -> None:
        for other in self.overlapping(one.descriptor):
            self.remove(other)
        start = one.descriptor.start
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ones.insert(at, one)
        self._by_id[one.descriptor.id] = one
        self._only = one if not start and not one.descriptor.end else None

    def remove(self, one: _P) -> None:
        at = bisect_left(self._starts, one.descriptor.start)
        if at < len(self._ones) and self._ones[at] is one:
            del self._starts[at], self._ones[at]
            if self._by_id.get(one.descriptor.id) is one:
                del self._by_id[one.descriptor.id]
            self._only = None

    def overlapping(self, descriptor: Descriptor) -> list[_P]:
        """Those that have points in common with a range, in the order of their points."""
        first = max(0, bisect_right(self._starts, descriptor.start) - 1)
        last = bisect_left(self._starts, descriptor.end) if descriptor.end else None
        return [one for one in self._ones[first:last] if one.descriptor.overlaps(descriptor)]

    def behind(self, point: bytes, limit: int) -> list[_P]:
        """The first that have this point or later ones, in the order of their points."""
        at = bisect_right(self._starts, point)
        if at and (not (end := self._ones[at - 1].descriptor.end) or point < end):
            at -= 1
        return self._ones[at : at + limit]

    def by_id(self, id: int) -> _P | None:
        return self._by_id.get(id)

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, key: bytes) -> _P | None:
        if self._only is not None:
            return self._only
        point = blake2b(key, digest_size=8).digest() if self.point == HASH else key
        at = bisect_right(self._starts, point)
        if not at:
            return None
        found = self._ones[at - 1]
        end = found.descriptor.end
        return found if not end or point < end else None

    def split(self, keys: Sequence[bytes]) -> Mapping[int, Sequence[int]] | None:
        """Which keys (by their places) belong to which partition; None if the owner of one is not known."""
        if self._only is not None:
            return {self._only.descriptor.id: range(len(keys))} if keys else {}
        found: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            one = self.find(key)
            if one is None:
                return None
            found.setdefault(one.descriptor.id, []).append(place)
        return dict(found)

    def all(self) -> list[_P]:
        return list(self._ones)


class RangeMaps(Generic[_P]):
    def __init__(self) -> None:
        self._of: dict[str, RangeMap[_P]] = {}
        self._all: dict[int, _P] = {}

    def of(self, table: str) -> RangeMap[_P]:
        return self._of.get(table) or RangeMap()

    def add(self, one: _P) -> None:
        descriptor = one.descriptor
        if descriptor.table not in self._of:
            self._of[descriptor.table] = RangeMap(descriptor.point)
        self._of[descriptor.table].add(one)
        self._all[descriptor.id] = one

    def remove(self, id: int) -> None:
        one = self._all.pop(id, None)
        if one is not None:
            self._of[one.descriptor.table].remove(one)

    def become(self, now: Mapping[int, _P]) -> None:
        """Takes off what is not there any more, and puts on what is new."""
        for id in [id for id, one in self._all.items() if now.get(id) is not one]:
            self.remove(id)
        for id, one in now.items():
            if id not in self._all:
                self.add(one)
