"""Records of a key that wait for their time, in order, in one or two sides.

Rules
1. A record is kept as the pipeline's codec has encoded its value: what comes out of a buffer is what a production of it would have carried.
2. Few records stand in the row itself (`INLINE` bytes of them); more in entries of a MapState, by side and time bucket, in chunks of about `CHUNK` bytes. So
   a key with a hundred thousand records costs what an epoch touches, and one with three costs no entry at all. When the last one has gone, nothing is left.
3. Records are taken out of a side in order of (timestamp, id), up to a time. In entries that is a mark; a bucket goes whole when the mark has passed it. Who
   adds a record must see to it that none is older than what was taken: what is late is not added.
4. Every change is in the state when the call returns: a hook that raises is undone with it. What was decoded is remembered for as long as the state
   is the same object, and no longer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.mapstate import MapState
from millstream.core.record import Record, Timer
from millstream.core.time import END
from millstream.operators.waking import Waking

INLINE = 1024
CHUNK = 2048
_AFTER_ALL = 4 * END  # no timer can be set behind END - 1, and what would need one goes with the last


class Kept(msgspec.Struct, array_like=True, gc=False):
    """A record that waits."""

    timestamp: int
    id: str
    body: bytes
    side: int = 0


class Buffered(msgspec.Struct):
    """The state of a key whose records wait. inline: those in the row; taken: by side, what is older has gone."""

    inline: bytes = b""
    is_spilled: bool = False
    taken: dict[int, int] = {}
    entries: MapState = msgspec.field(default_factory=MapState)


encode_kept = msgspec.msgpack.Encoder().encode
decode_one = msgspec.msgpack.Decoder(Kept).decode
_decode = msgspec.msgpack.Decoder(list[Kept]).decode


def _place(one: Kept) -> tuple[int, str]:
    return one.timestamp, one.id


class _Bucket:
    """The records of a side in a span of time: in order, and as they stand in entries."""

    __slots__ = ("chunks", "ordered", "size")

    def __init__(self, chunks: list[list[Kept]], size: int) -> None:
        self.chunks = chunks
        self.ordered = sorted((one for chunk in chunks for one in chunk), key=_place)
        self.size = size  # of the last chunk

    def since(self, start: int | None, stop: int | None = None) -> list[Kept]:
        some = self.ordered
        return some[_at(some, start) if start is not None else 0 : _at(some, stop) if stop is not None else len(some)]


class Buffer:
    """The records of the key at hand."""

    def __init__(self, state: Any, width: int) -> None:
        """width: of a time bucket, in milliseconds."""
        self.state = state
        self.width = width
        self._sides: dict[int, list[Kept]] = {}  # those in the row, by side
        self._buckets: dict[tuple[int, int], _Bucket] = {}  # those in entries that have been read
        self._first: dict[int, int | None] = {}  # by side, the oldest bucket, where it is known
        if state.inline:
            for one in _decode(state.inline):
                self._sides.setdefault(one.side, []).append(one)

    def add(self, one: Kept) -> None:
        if self.state.is_spilled:
            self._add_entry(one)
            return
        insort(self._sides.setdefault(one.side, []), one, key=_place)
        self._write_inline()

    def take(self, side: int, before: int) -> list[Kept]:
        """Takes out those of a side that are older, in order."""
        found: list[Kept]
        if not self.state.is_spilled:
            some = self._sides.get(side, [])
            at = _at(some, before)
            found, some[:at] = some[:at], []
            if found:
                self._write_inline()
            return found
        found = []
        while (first := self._first_bucket(side)) is not None and first * self.width < before:
            found += self._load(side, first).since(self.state.taken.get(side), before)
            if (first + 1) * self.width > before:
                self.state.taken[side] = before
                break
            self._drop(side, first)
        return found

    def oldest(self, side: int) -> Sequence[Kept]:
        """The first of a side's records, in order: all, or those of its oldest bucket that are left. Empty only if there is none."""
        if not self.state.is_spilled:
            return self._sides.get(side, [])
        while (first := self._first_bucket(side)) is not None:
            left = self._load(side, first).since(self.state.taken.get(side))
            if left:
                return left
            self._drop(side, first)
        return []

    # --- in the row

    def _write_inline(self) -> None:
        every = [one for some in self._sides.values() for one in some]
        self.state.inline = encode_kept(every) if every else b""
        if len(self.state.inline) > INLINE:
            self.state.inline, self.state.is_spilled, self._sides = b"", True, {}
            for one in every:
                self._add_entry(one)

    # --- in entries

    def _add_entry(self, one: Kept) -> None:
        side, number = one.side, one.timestamp // self.width
        bucket = self._load(side, number)
        if not bucket.chunks or bucket.size > CHUNK:
            bucket.chunks.append([])
            bucket.size = 0
        bucket.chunks[-1].append(one)
        insort(bucket.ordered, one, key=_place)
        bucket.size = self._write_chunk(side, number, len(bucket.chunks) - 1)
        first = self._first.get(side)
        if side in self._first and (first is None or number < first):
            self._first[side] = number

    def _write_chunk(self, side: int, number: int, chunk: int) -> int:
        data = encode_kept(self._buckets[side, number].chunks[chunk])
        self.state.entries[side, number, chunk] = data
        return len(data)

    def _load(self, side: int, number: int) -> _Bucket:
        bucket = self._buckets.get((side, number))
        if bucket is None:
            chunks: list[list[Kept]] = []
            size = 0
            while (data := self.state.entries.get((side, number, len(chunks)))) is not None:
                chunks.append(_decode(data))
                size = len(data)
            bucket = self._buckets[side, number] = _Bucket(chunks, size)
        return bucket

    def _first_bucket(self, side: int) -> int | None:
        if side not in self._first:
            entry = next(self.state.entries.range((side,), (side + 1,)), None)
            self._first[side] = None if entry is None else entry[0][1]
        return self._first[side]

    def _drop(self, side: int, number: int) -> None:
        """A bucket goes whole; with the last of them, all that says that there were any."""
        for chunk in range(len(self._load(side, number).chunks)):
            self.state.entries.delete((side, number, chunk))
        del self._buckets[side, number], self._first[side]
        if self._first_bucket(side) is None:
            self.state.taken.pop(side, None)
            self.state.is_spilled = not self.state.entries.is_empty()


class Buffering(Waking):
    """A computation whose records wait. Subclasses say what becomes of a record, what is to be done at a time, and when there is something to do next."""

    State = Buffered
    judges_lateness = True
    width = 10_000  # of a time bucket

    _buffer: Buffer | None = None

    @property
    def buffer(self) -> Buffer:
        if self._buffer is None or self._buffer.state is not self.state:
            self._buffer = Buffer(self.state, self.width)
        return self._buffer

    def keep(self, record: Record, side: int = 0) -> None:
        self.buffer.add(Kept(record.timestamp, record.id, self._visit.encode(record.value), side))

    def value_of(self, one: Kept) -> Any:
        return self._visit.decode(one.body)

    def process_timer(self, timer: Timer) -> None:
        self.look(timer.time if timer.time < END - 1 else _AFTER_ALL)
        again = self.next_look()
        if again is not None:
            self.wake_at(again)

    def look(self, time: int) -> None:
        """Does what is to be done when all records older than this are there."""
        raise NotImplementedError

    def next_look(self) -> int | None:
        raise NotImplementedError

    def tell(self, value: Any, timestamp: int, id: str | None = None) -> None:
        """A production at a timestamp, or the oldest that is still allowed."""
        self.produce(value, timestamp=max(min(timestamp, END - 1), self.least), id=id or None)


def _at(some: Sequence[Kept], time: int) -> int:
    return bisect_left(some, (time, ""), key=_place)
