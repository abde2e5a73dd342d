"""The log as a store: a key or a range of a chain of segments, without reading more of them than is needed.

Rules
1. A segment with an index costs its end, once, and then the blocks that are asked for. One without is read whole.
2. What was read last is kept, up to a number of bytes: ends, blocks of lookups, and the first block of each scan, so that a long scan does not drive
   everything else out. Objects never change under their names, so what is kept is never old.
3. Safe for threads. Two that miss the same block may both read it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from millstream.state.segment import Block, Entry, Index, SegmentRef, newest, read_blocks, read_index, read_some, runs
from millstream.state.storage import Storage

LIMIT = 64 << 20
_PER_ENTRY = 96  # what Python adds to a key and a value, about

_ABSENT: Any = object()
_T = TypeVar("_T")


class _Kept:
    """The things used last, up to a size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.items: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self.size = 0  # bytes

    def get(self, key: Any, load: Callable[[], tuple[_T, int]]) -> _T:
        """What is kept under a key, or what `load` gives: the thing and its size."""
        with self._lock:
            if key in self.items:
                self.items.move_to_end(key)
                kept: _T = self.items[key][0]
                return kept
        thing, size = load()
        if size <= self._limit:
            with self._lock:
                if key not in self.items:
                    self.items[key] = thing, size
                    self.size += size
                while self.size > self._limit:
                    self.size -= self.items.popitem(last=False)[1][1]
        return thing


class Segments:
    """The segments of a storage, with the parts that were used last in memory."""

    def __init__(self, storage: Storage, limit: int = LIMIT) -> None:
        self._storage = storage
        self.kept = _Kept(limit)

    def first(self, ref: SegmentRef) -> bytes:
        """The first key of a segment that is not empty."""

        def load() -> tuple[bytes, int]:
            shape = self._shape(ref)
            found = shape.firsts[0] if isinstance(shape, Index) else shape[0][0][0]
            return found, len(found) + _PER_ENTRY

        return self.kept.get((ref.name, ref.offset, "first"), load)

    def get(self, ref: SegmentRef, key: bytes) -> Any:
        """The value of an entry; None if it is a deletion, `_ABSENT` if the segment says nothing of it."""
        shape = self._shape(ref)
        if isinstance(shape, Index):
            at = bisect_right(shape.firsts, key) - 1
            if at < 0 or key > shape.last:
                return _ABSENT
            keys, values = self._block(ref, shape, at)
        else:
            at = bisect_right(shape, key, key=lambda block: block[0][0]) - 1
            if at < 0:
                return _ABSENT
            keys, values = shape[at]
        at = bisect_left(keys, key)
        return values[at] if at < len(keys) and keys[at] == key else _ABSENT

    def scan(self, ref: SegmentRef, start: bytes, stop: bytes) -> Iterator[Entry]:
        """The entries of a segment with start <= key < stop, in order, deletions too."""
        for keys, values in self._blocks(ref, start, stop):
            low, high = bisect_left(keys, start), bisect_left(keys, stop)
            yield from zip(keys[low:high], values[low:high], strict=True)

    def _shape(self, ref: SegmentRef) -> Index | list[Block]:
        """A segment's index; all its blocks if it has none."""

        def load() -> tuple[Index | list[Block], int]:
            index = read_index(self._storage, ref)
            if index is None:
                return list(read_blocks(self._storage, ref)), ref.length + ref.entries * _PER_ENTRY
            return index, sum(map(len, index.firsts)) + len(index.firsts) * _PER_ENTRY

        return self.kept.get((ref.name, ref.offset), load)

    def _block(self, ref: SegmentRef, index: Index, number: int) -> Block:
        def load() -> tuple[Block, int]:
            block = next(read_some(self._storage, ref, index, number, number + 1))
            return block, index.offsets[number + 1] - index.offsets[number] + len(block[0]) * _PER_ENTRY

        return self.kept.get((ref.name, ref.offset, number), load)

    def _blocks(self, ref: SegmentRef, start: bytes, stop: bytes) -> Iterator[Block]:
        shape = self._shape(ref)
        if not isinstance(shape, Index):
            yield from shape
            return
        low, high = max(0, bisect_right(shape.firsts, start) - 1), bisect_left(shape.firsts, stop)
        if low >= high or start > shape.last:
            return
        yield self._block(ref, shape, low)
        yield from read_some(self._storage, ref, shape, low + 1, high)


class Chain:
    """The entries of a chain of segments."""

    def __init__(self, segments: Segments, chain: Sequence[SegmentRef]) -> None:
        self._segments = segments
        self._runs = runs([ref for ref in chain if ref.entries])

    def get(self, key: bytes) -> bytes | None:
        for run in reversed(self._runs):
            at = self._last_before(run, key)
            value: bytes | None = self._segments.get(run[at], key) if at >= 0 else _ABSENT
            if value is not _ABSENT:
                return value
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in newest([self._scan_run(run, start, stop) for run in self._runs]):
            if value is not None:
                yield key, value

    def _scan_run(self, run: Sequence[SegmentRef], start: bytes, stop: bytes) -> Iterator[Entry]:
        if start >= stop:
            return
        low = max(0, self._last_before(run, start))
        high = bisect_left(run, stop, low, key=self._segments.first)
        for ref in run[low:high]:
            yield from self._segments.scan(ref, start, stop)

    def _last_before(self, run: Sequence[SegmentRef], key: bytes) -> int:
        """The last piece of a run that does not begin behind a key; -1 if there is none."""
        return bisect_right(run, key, key=self._segments.first) - 1
