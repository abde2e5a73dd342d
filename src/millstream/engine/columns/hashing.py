"""Hashes of whole columns: Spark's `xxhash64` of texts, `crc32` for shards, and a hash of whole rows.

Rules
1. The hash of texts is, bit by bit, what Spark says. That of key and id stands in stored ids: a pipeline that changes its way of running must still know a
   record again. Of several columns it is chained: that of one is the seed of the next. A null leaves the seed as it is.
2. The hash of a row (`hash_rows`) is for records without an id: it orders them, and spreads them where they have no key. It is the same for the same row in
   every process and batch. It is not Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

SEED = 42  # what Spark begins with

_P1, _P2, _P3 = (np.uint64(prime) for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_WORDS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_FEW = 16  # texts that are objects sooner than Arrow has cast them
_BLOCK = 8192  # texts at once: as objects, more of them do not fit into the processor's cache


def hash_rows(columns: Sequence[Any], seed: int = SEED) -> Any:
    """A hash of each row of some columns, as signed numbers (rule 2)."""
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
        hashes = (hashes ^ (word * _P2)) * _P1
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
        hashes = hashes ^ (hashes >> np.uint64(32))
    return hashes if array.null_count == 0 else np.where(valid(array), hashes, seeds)


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


def valid(array: Any) -> Any:
    """Which rows are not null, as a numpy array."""
    return array.is_valid().to_numpy(zero_copy_only=False)


def numbers(array: Any, dtype: Any, each: int = 1) -> Any:
    """The numbers of a column as they lie in memory, so many for each row. Those of nulls are any."""
    return np.frombuffer(array.buffers()[1], dtype, each * len(array), each * array.offset * np.dtype(dtype).itemsize)


def hash_texts(array: Any, seeds: Any) -> Any:
    """The hash of each text (or row of bytes) of a column, each with its own seed."""
    hashes = np.empty(len(array), np.uint64)
    for at in range(0, len(array), _BLOCK):
        texts, block = _bytes(array.slice(at, _BLOCK)), seeds[at : at + _BLOCK].tolist()
        if array.null_count:
            found = [seed if text is None else xxh64_intdigest(text, seed) for text, seed in zip(texts, block, strict=True)]
        else:
            found = list(map(xxh64_intdigest, texts, block))
        hashes[at : at + _BLOCK] = found
    return hashes


def shards_of(array: Any, shards: int) -> Any:
    """The shard of each key text in a column, as int32: `crc32(text) % shards`, and 0 for a null."""
    texts = _bytes(array)
    given = [text or b"" for text in texts] if array.null_count else texts  # of nothing it is 0
    return (np.fromiter(map(crc32, given), np.uint32, len(array)) % np.uint32(shards)).astype(np.int32)


def _bytes(array: Any) -> Any:
    """The texts of a column as a list of bytes."""
    if len(array) <= _FEW:
        return [text.encode() if isinstance(text, str) else text for text in array.to_pylist()]
    return array.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
