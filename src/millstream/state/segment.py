"""A segment: a sorted run of entries, the one format of deltas and snapshots.

    "MSEG1\\n", then blocks: u32 length, u32 CRC-32, payload; the payload is msgpack [keys, values], a value of nil deletes.
    The last block is empty: length 0 and the CRC of nothing.

Rules
1. Keys are strictly ascending within a segment. Large runs are split into several segments, so no reader or writer needs more
   memory than one piece.
2. Every byte is covered by a checksum, and the closing block tells a whole segment from a torn one: damage is an error that
   names the object, never a silently shorter state.
3. A segment may be a slice of a larger object: one task stages the deltas of all its computations in one object.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from zlib import crc32

import msgspec

from millstream.errors import DamageError
from millstream.state.storage import Storage

MAGIC = b"MSEG1\n"
BLOCK = 4096
PIECE = 16 << 20
_HEAD = struct.Struct(">II")

Entry = tuple[bytes, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]]).decode


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
    for at in range(0, len(entries), BLOCK):
        keys, values = zip(*entries[at : at + BLOCK], strict=True)
        payload = _encode((keys, values))
        parts.append(_HEAD.pack(len(payload), crc32(payload)))
        parts.append(payload)
    parts.append(_HEAD.pack(0, crc32(b"")))
    return b"".join(parts)


def read_blocks(storage: Storage, ref: SegmentRef) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """The blocks of a segment, checked."""
    data = storage.read(ref.name, ref.offset, ref.length)
    if len(data) != ref.length or not data.startswith(MAGIC):
        raise _damaged(storage, ref, "it is cut short or not a segment")
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


def _damaged(storage: Storage, ref: SegmentRef, what: str) -> DamageError:
    return DamageError(
        f"segment {ref.name} in {storage.url} is damaged: {what}. State of the epochs {ref.first} to {ref.last} cannot be read; "
        f"restore that object from a copy, or start with a new checkpoint."
    )


def runs(chain: Sequence[SegmentRef]) -> list[list[SegmentRef]]:
    """A chain of segments, grouped into runs that cover the same epochs, oldest first."""
    return [list(group) for _, group in groupby(chain, key=lambda ref: (ref.first, ref.last))]


def read_run(storage: Storage, refs: Iterable[SegmentRef]) -> Iterator[Entry]:
    """The entries of one run, in order."""
    for ref in refs:
        for keys, values in read_blocks(storage, ref):
            yield from zip(keys, values, strict=True)


def merge(storage: Storage, chain: Sequence[SegmentRef], drop_deleted: bool) -> Iterator[Entry]:
    """The entries of a chain, sorted, the newest of each key; memory does not depend on their number."""

    def tagged(age: int, run: list[SegmentRef]) -> Iterator[tuple[bytes, int, bytes | None]]:
        for key, value in read_run(storage, run):
            yield key, age, value

    previous: bytes | None = None
    newest_first = reversed(runs(chain))
    for key, _, value in heapq.merge(*(tagged(age, run) for age, run in enumerate(newest_first)), key=lambda e: (e[0], e[1])):
        if key == previous:
            continue
        previous = key
        if value is not None or not drop_deleted:
            yield key, value


def lookup(storage: Storage, chain: Sequence[SegmentRef], key: bytes) -> bytes | None:
    """The value of one entry as of the end of a chain. Reads segments newest first; for people, not for the hot path."""
    for run in reversed(runs(chain)):
        for ref in run:
            for keys, values in read_blocks(storage, ref):
                if keys[0] <= key <= keys[-1] and key in keys:
                    return values[keys.index(key)]
    return None
