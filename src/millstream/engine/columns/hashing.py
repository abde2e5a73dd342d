"""Hashes of whole columns, in numpy: Spark's `xxhash64` of texts, `crc32` for shards, and a hash of whole rows.

Rules
1. The hash of texts is, bit by bit, what Spark says. That of key and id stands in stored ids: a pipeline that changes its way of running must still know a
   record again. Of several columns it is chained: that of one is the seed of the next. A null leaves the seed as it is.
2. The hash of a row (`hash_rows`) is for records without an id: it orders them, and spreads them where they have no key. It is the same for the same row in
   every process and batch. It is not Spark's.
3. Few rows, and the ends of very long texts, are hashed one by one: that is faster than a call of numpy for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

SEED = 42  # what Spark begins with

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_N1, _N2, _N3, _N4, _N5 = (np.uint64(prime) for prime in (_P1, _P2, _P3, _P4, _P5))
_MASK = 0xFFFFFFFFFFFFFFFF
_LOW = np.uint64(0xFFFFFFFF)
_WORDS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_FEW = 20  # rows: below, one by one
_BLOCK = 8192  # rows at once: five times as fast as all at once
_FEW_LONG = 6  # rows that are still not at their end


def hash_rows(columns: Sequence[Any], seed: int = SEED) -> Any:
    """A hash of each row of some columns, as signed numbers (rule 2).

    >>> one, other = hash_rows([pa.array(["a", "b"]), pa.array([1, 1])]).tolist()
    >>> one == hash_rows([pa.array(["a"]), pa.array([1])]).item() != other
    True
    """
    hashes = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        hashes = _hash_column(column, hashes)
    return hashes.view(np.int64)


def _hash_column(array: Any, seeds: Any) -> Any:
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return seeds
    if types.is_struct(kind):
        for field in array.flatten():  # where the struct is null, all are
            seeds = _hash_column(field, seeds)
        return seeds
    if types.is_list(kind) or types.is_map(kind):
        return _hash_lists(array, seeds)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return hash_texts(array, seeds)
    if types.is_boolean(kind):
        array = array.cast(pa.int8())
    width = array.type.bit_width // 8
    words = numbers(array, _WORDS[min(width, 8)], max(width // 8, 1)).astype(np.uint64, copy=False)
    hashes = seeds
    for word in (words,) if width <= 8 else words.reshape(len(array), -1).T:  # a decimal has two
        hashes = _mixed(_rotated(hashes ^ (_rotated(word * _N2, 31) * _N1), 27) * _N1 + _N4)
    return _where_valid(array, hashes, seeds)


def _hash_lists(array: Any, seeds: Any) -> Any:
    offsets = numbers(array.offsets, np.int32).astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths = np.where(valid(array), lengths, 0)
    hashes = seeds.copy()
    left = np.flatnonzero(lengths)
    at = 0
    while len(left):  # the first elements of all rows, then the second ones, ...
        for values in (array.keys, array.items) if pa.types.is_map(array.type) else (array.values,):
            hashes[left] = _hash_column(values.take(pa.array(offsets[left] + at)), hashes[left])
        at += 1
        left = left[lengths[left] > at]
    return hashes


def _rotated(values: Any, by: int) -> Any:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _mixed(hashes: Any) -> Any:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _N2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _N3
    return hashes ^ (hashes >> np.uint64(32))


def _where_valid(array: Any, hashes: Any, seeds: Any) -> Any:
    return hashes if array.null_count == 0 else np.where(valid(array), hashes, seeds)


def valid(array: Any) -> Any:
    """Which rows are not null, as a numpy array."""
    return array.is_valid().to_numpy(zero_copy_only=False)


def numbers(array: Any, dtype: Any, each: int = 1) -> Any:
    """The numbers of a column as they lie in memory, so many for each row. Those of nulls are any."""
    return np.frombuffer(array.buffers()[1], dtype, each * len(array), each * array.offset * np.dtype(dtype).itemsize)


class ByteRows(NamedTuple):
    """Rows of bytes: where each begins in `data`, and how long it is. Behind the last one there are eight bytes more, so that words can be read."""

    data: Any
    starts: Any
    lengths: Any

    @classmethod
    def of(cls, array: Any) -> ByteRows:
        """Those of a column of texts or bytes. A null has no bytes."""
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        _, where, given = array.buffers()
        width = 8 if large else 4
        offsets = np.frombuffer(where, f"<i{width}", len(array) + 1, array.offset * width).astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        data = np.zeros(last - first + 8, np.uint8)
        if last > first:
            data[:-8] = np.frombuffer(given, np.uint8, last - first, first)
        lengths = np.diff(offsets)
        if array.null_count:
            lengths = np.where(valid(array), lengths, 0)
        return cls(data, offsets[:-1] - first, lengths)

    def words(self) -> Any:
        return np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))


def hash_texts(array: Any, seeds: Any) -> Any:
    """The hash of each text (or row of bytes) of a column, with its own seed."""
    if len(array) <= _FEW:
        given = array.cast(pa.binary()).to_pylist()
        found = [seed if one is None else hash_one(one, seed) for one, seed in zip(given, seeds.tolist(), strict=True)]
        return np.array(found, np.uint64)
    return _where_valid(array, hash_bytes(ByteRows.of(array), seeds), seeds)


def hash_bytes(rows: ByteRows, seeds: Any) -> Any:
    """The hash of each row, with its own seed. As many rows at once as the processor's cache holds."""
    parts = [slice(at, at + _BLOCK) for at in range(0, len(seeds), _BLOCK)]
    return np.concatenate([_hash_block(ByteRows(rows.data, rows.starts[part], rows.lengths[part]), seeds[part]) for part in parts])


def _hash_block(rows: ByteRows, seeds: Any) -> Any:
    words, lengths, places = rows.words(), rows.lengths, rows.starts
    hashes = seeds + _N5
    if lengths.size and int(lengths.max()) >= 32:
        long = np.flatnonzero(lengths >= 32)
        hashes[long] = _hash_stripes(rows, words, long, seeds[long])
        places = places + (lengths & ~31)
    hashes += lengths.view(np.uint64)
    tail = lengths & 31
    for at in range(3):
        which = _those(tail >= 8 * (at + 1))
        if which is None:
            break
        read = words[places[which] + 8 * at]
        hashes[which] = _rotated(hashes[which] ^ (_rotated(read * _N2, 31) * _N1), 27) * _N1 + _N4
    places = places + (tail & 24)
    last = None
    which = _those((tail & 4) != 0)
    if which is not None:
        last = words[places]
        hashes[which] = _rotated(hashes[which] ^ ((last[which] & _LOW) * _N1), 23) * _N2 + _N3
    odd = tail & 3
    if odd.any():
        last = (words[places] if last is None else last) >> ((tail & 4) << 3).view(np.uint64)
        for at in range(3):
            which = _those(odd > at)
            if which is None:
                break
            one = (last[which] >> np.uint64(8 * at)) & np.uint64(0xFF)
            hashes[which] = _rotated(hashes[which] ^ (one * _N5), 11) * _N1
    return _mixed(hashes)


def _those(mask: Any) -> Any:
    """The places where a mask is true: None for none, a slice for all."""
    found = mask.nonzero()[0]
    return None if not len(found) else slice(None) if len(found) == len(mask) else found


def _hash_stripes(rows: ByteRows, words: Any, long: Any, seeds: Any) -> Any:
    """What the 32-byte stripes of long rows (all but what is left at the end) make of their seeds."""
    stripes = rows.lengths[long] >> 5
    order = np.argsort(-stripes, kind="stable")
    stripes, places = stripes[order], rows.starts[long][order]
    begun = seeds[order]
    lanes = np.stack([begun + np.uint64((_P1 + _P2) & _MASK), begun + _N2, begun, begun - _N1])
    steps = np.arange(0, 32, 8)[:, None]
    at, active = 0, len(stripes)
    while active > _FEW_LONG:
        read = words[places[:active] + 32 * at + steps]
        lanes[:, :active] = _rotated(lanes[:, :active] + read * _N2, 31) * _N1
        at += 1
        active = int(np.searchsorted(-stripes, -at, side="left"))
    for one in range(active):  # the longest, to their ends
        first = int(places[one]) + 32 * at
        read = np.frombuffer(rows.data, "<u8", 4 * (int(stripes[one]) - at), first) * _N2
        lanes[:, one] = [_lane(int(lanes[lane, one]), read[lane::4].tolist()) for lane in range(4)]
    merged = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    for lane in lanes:
        merged = (merged ^ (_rotated(lane * _N2, 31) * _N1)) * _N1 + _N4
    found = np.empty_like(merged)
    found[order] = merged
    return found


def _lane(value: int, read: list[int]) -> int:
    for one in read:
        value = (value + one) & _MASK
        value = ((value << 31 | value >> 33) & _MASK) * _P1 & _MASK
    return value


def hash_one(data: bytes, seed: int) -> int:
    """The hash of one row of bytes.

    >>> hash_one(b"millstream", 42)
    4613902463384673219
    """
    size, at = len(data), 0
    if size >= 32:
        at = size & ~31
        read = (np.frombuffer(data, "<u8", at >> 3) * _N2).tolist()
        begun = (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)
        lanes = [_lane(one & _MASK, read[lane::4]) for lane, one in enumerate(begun)]
        value = sum((lane << by | lane >> (64 - by)) & _MASK for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            lane = lane * _P2 & _MASK
            value = ((value ^ ((lane << 31 | lane >> 33) & _MASK) * _P1) * _P1 + _P4) & _MASK
    else:
        value = seed + _P5
    value = (value + size) & _MASK
    while at + 8 <= size:
        word = int.from_bytes(data[at : at + 8], "little") * _P2 & _MASK
        value ^= ((word << 31 | word >> 33) & _MASK) * _P1 & _MASK
        value = (((value << 27 | value >> 37) & _MASK) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        value ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        value = (((value << 23 | value >> 41) & _MASK) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        value ^= byte * _P5 & _MASK
        value = ((value << 11 | value >> 53) & _MASK) * _P1 & _MASK
    value = (value ^ (value >> 33)) * _P2 & _MASK
    value = (value ^ (value >> 29)) * _P3 & _MASK
    return value ^ (value >> 32)


def shards_of(array: Any, shards: int) -> Any:
    """The shard of each key text in a column, as int32: `crc32(text) % shards`, and 0 for a null.

    >>> shards_of(pa.array(["a", "b", None]), 16).tolist()
    [3, 9, 0]
    """
    given = array.fill_null("") if array.null_count else array  # of nothing it is 0
    sums = np.fromiter(map(crc32, given.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()), np.uint32, len(array))
    return (sums % np.uint32(shards)).astype(np.int32)
