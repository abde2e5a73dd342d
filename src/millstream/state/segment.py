"""A segment: a sorted run of entries, the one format of deltas and snapshots.

    "MSEG1\\n", then blocks: u32 length, u32 CRC-32, payload; the payload is msgpack [keys, values], a value of nil deletes.
    The last block is empty: length 0 and the CRC of nothing. Behind it, if there is more than one block, stands an index:
    msgpack [first key of each block, offset of each block and of the closing one, last key], u32 length, u32 CRC-32, "MIDX1\\n".

Rules
1. Keys are strictly ascending within a segment. Large runs are split into several segments, so no reader or writer needs more memory than one piece.
2. Every byte is covered by a checksum, and the closing block tells a whole segment from a torn one: damage is an error that names the object, never a
   silently shorter state.
3. A segment may be a slice of a larger object: one task stages the deltas of all its computations in one object.
4. Who reads a segment whole needs no index. Who wants one key reads the end of the segment, then one block. A small segment has no index and is read whole.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from zlib import crc32

import msgspec

from millstream.errors import DamageError
from millstream.state.storage import Storage

MAGIC = b"MSEG1\n"
INDEX_MAGIC = b"MIDX1\n"
BLOCK = 4096
PIECE = 16 << 20
_HEAD = struct.Struct(">II")
_TRAILER = _HEAD.size + len(INDEX_MAGIC)
_TAIL = 8 << 10  # how much of a segment's end is read in the hope that the index is in it
_SPAN = 1 << 20  # how much of a long scan is read at once

Entry = tuple[bytes, bytes | None]
Block = tuple[list[bytes], list[bytes | None]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]]).decode
_decode_index = msgspec.msgpack.Decoder(tuple[list[bytes], list[int], bytes]).decode


class SegmentRef(msgspec.Struct, array_like=True, frozen=True):
    """Where a segment lies and which epochs it covers. `base` says that nothing older is needed below it."""

    name: str
    offset: int
    length: int
    entries: int
    first: int
    last: int
    base: bool = False


def encode_segment(entries: Sequence[Entry]) -> bytes:
    """The bytes of a segment with these entries, which are sorted by key."""
    parts = [MAGIC]
    firsts, offsets, size = [], [], len(MAGIC)
    for at in range(0, len(entries), BLOCK):
        keys, values = zip(*entries[at : at + BLOCK], strict=True)
        payload = _encode((keys, values))
        parts += [_HEAD.pack(len(payload), crc32(payload)), payload]
        firsts.append(keys[0])
        offsets.append(size)
        size += _HEAD.size + len(payload)
    parts.append(_HEAD.pack(0, crc32(b"")))
    if len(firsts) > 1:
        index = _encode((firsts, [*offsets, size], entries[-1][0]))
        parts += [index, _HEAD.pack(len(index), crc32(index)), INDEX_MAGIC]
    return b"".join(parts)


def write_segment(storage: Storage, name: str, entries: Sequence[Entry], first: int, last: int, base: bool = False) -> SegmentRef:
    """Writes a segment as an object of its own."""
    data = encode_segment(entries)
    storage.put(name, data)
    return SegmentRef(name, 0, len(data), len(entries), first, last, base)


def read_blocks(storage: Storage, ref: SegmentRef) -> Iterator[Block]:
    """The blocks of a segment, which is read whole and checked to its last byte."""
    data = _read(storage, ref, 0, ref.length)
    if len(data) != ref.length or not data.startswith(MAGIC):
        raise _damaged(storage, ref, "it is cut short, or no segment of a format that this version of Millstream reads")
    at, seen = len(MAGIC), 0
    while True:
        if at + _HEAD.size > len(data):
            raise _damaged(storage, ref, "it ends in the middle")
        length, checksum = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + length]
        if len(payload) != length or crc32(payload) != checksum:
            raise _damaged(storage, ref, f"the block at byte {at} does not match its checksum")
        if not length:
            break
        keys, values = _decode(payload)
        seen += len(keys)
        yield keys, values
        at += length
    if seen != ref.entries:
        raise _damaged(storage, ref, f"it holds {seen} entries instead of {ref.entries}")
    if at < len(data) and _index_in(storage, ref, data[at:]) is None:
        raise _damaged(storage, ref, "what stands behind its closing block is no index that this version of Millstream knows")


class Index(msgspec.Struct, frozen=True):
    """Where the blocks of a segment begin: their first keys, their offsets and that of the closing block, and the last key of all."""

    firsts: list[bytes]
    offsets: list[int]
    last: bytes


def read_index(storage: Storage, ref: SegmentRef) -> Index | None:
    """The index at the end of a segment; None if there is none that can be told from here: then the segment must be read whole."""
    if ref.entries <= BLOCK:
        return None
    tail = _read(storage, ref, max(0, ref.length - _TAIL), min(ref.length, _TAIL))
    if not tail.endswith(INDEX_MAGIC) or len(tail) < _TRAILER:
        return None
    (length, _), end = _HEAD.unpack_from(tail, len(tail) - _TRAILER), ref.length - _TRAILER
    if length > end:
        raise _damaged(storage, ref, "its index does not match its checksum")
    if length + _TRAILER > len(tail):
        tail = _read(storage, ref, end - length, length) + tail[-_TRAILER:]
    return _index_in(storage, ref, tail[len(tail) - _TRAILER - length :])


def read_some(storage: Storage, ref: SegmentRef, index: Index, low: int, high: int) -> Iterator[Block]:
    """The blocks from `low` up to and not including `high`, checked: first one, then more at a time."""
    many = 1
    while low < high:
        upto = low + 1
        while upto < min(high, low + many) and index.offsets[upto + 1] - index.offsets[low] <= _SPAN:
            upto += 1
        start, stop = index.offsets[low], index.offsets[upto]
        data = _read(storage, ref, start, stop - start)
        for number in range(low, upto):
            at, end = index.offsets[number] - start, index.offsets[number + 1] - start
            if end > len(data):
                raise _damaged(storage, ref, "it is cut short")
            length, checksum = _HEAD.unpack_from(data, at)
            payload = data[at + _HEAD.size : end]
            if len(payload) != length or crc32(payload) != checksum:
                raise _damaged(storage, ref, f"the block at byte {start + at} does not match its checksum")
            keys, values = _decode(payload)
            if keys[0] != index.firsts[number]:
                raise _damaged(storage, ref, f"the block at byte {start + at} is not the one that its index names")
            yield keys, values
        low, many = upto, many * 2


def _index_in(storage: Storage, ref: SegmentRef, data: bytes) -> Index | None:
    """The index whose bytes these are, checked; None if they do not end as an index does."""
    if len(data) < _TRAILER or not data.endswith(INDEX_MAGIC):
        return None
    body = data[:-_TRAILER]
    if _HEAD.unpack_from(data, len(body)) != (len(body), crc32(body)):
        raise _damaged(storage, ref, "its index does not match its checksum")
    return Index(*_decode_index(body))


def _read(storage: Storage, ref: SegmentRef, offset: int, length: int) -> bytes:
    try:
        return storage.read(ref.name, ref.offset + offset, length)
    except DamageError as error:
        error.object = ref.name
        raise


def _damaged(storage: Storage, ref: SegmentRef, what: str) -> DamageError:
    found = DamageError(
        f"segment {ref.name} in {storage.url} is damaged: {what}. State of the epochs {ref.first} to {ref.last} cannot be read; "
        f"restore that object from a copy, or start with a new checkpoint."
    )
    found.object = ref.name
    return found


def runs(chain: Sequence[SegmentRef]) -> list[list[SegmentRef]]:
    """A chain of segments, grouped into runs that cover the same epochs, oldest first."""
    return [list(group) for _, group in groupby(chain, key=lambda ref: (ref.first, ref.last))]


def read_run(storage: Storage, refs: Iterable[SegmentRef]) -> Iterator[Entry]:
    for ref in refs:
        for keys, values in read_blocks(storage, ref):
            yield from zip(keys, values, strict=True)


def merge(storage: Storage, chain: Sequence[SegmentRef], drop_deleted: bool) -> Iterator[Entry]:
    """The entries of a chain, sorted, the newest of each key; memory does not depend on their number."""
    found = newest([read_run(storage, run) for run in runs(chain)])
    return (entry for entry in found if entry[1] is not None) if drop_deleted else found


def newest(sources: Sequence[Iterable[Entry]]) -> Iterator[Entry]:
    """Sorted sources, the oldest first, as one: of each key the entry of the newest source that has it."""

    def tagged(age: int, source: Iterable[Entry]) -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((key, age, value) for key, value in source)

    previous: bytes | None = None
    ages = [tagged(-age, source) for age, source in enumerate(sources)]
    for key, _, value in heapq.merge(*ages, key=itemgetter(0, 1)):
        if key != previous:
            previous = key
            yield key, value
