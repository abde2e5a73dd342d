"""Long keys in LMDB, whose own keys end at 511 bytes.

Rules
1. A key of 500 bytes and more is kept under its first 484 bytes and a digest; its value begins with the key. So the key is there again, and a get is one look.
2. LMDB has those that share a beginning in the order of their digests. A scan sorts them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import lmdb

#: Keys of so many bytes are kept otherwise.
LONG = 500
_BEGINNING = LONG - 16
_LEN = struct.Struct(">I")


def stored_key(key: bytes) -> bytes:
    """The key under which LMDB keeps an entry."""
    return key if len(key) < LONG else key[:_BEGINNING] + blake2b(key, digest_size=16).digest()


def stored_entry(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """Key and value as LMDB keeps them. None: it is to be deleted."""
    return stored_key(key), value if value is None or len(key) < LONG else _LEN.pack(len(key)) + key + value


def value_of(key: bytes, kept: bytes | None) -> bytes | None:
    """The value of a long key."""
    return None if kept is None else kept[_LEN.size + len(key) :]


def scan_entries(
    transaction: lmdb.Transaction, start: bytes, stop: bytes, reverse: bool = False, but: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Entries with start <= key < stop, in order; one key may be left out."""
    low, high = start[:_BEGINNING], stop if len(stop) <= _BEGINNING else stop[:_BEGINNING] + b"\xff" * 17
    with transaction.cursor() as cursor:
        if reverse:
            found = cursor.prev() if cursor.set_range(high) else cursor.last()
            moves: Any = cursor.iterprev()
        else:
            found = cursor.set_range(low)
            moves = cursor.iternext()
        if not found:
            return
        alike: list[tuple[bytes, bytes]] = []  # entries with one beginning, which LMDB keeps in the order of their digests
        beginning = b""
        for key, value in moves:
            if key < low or key >= high:
                break
            if alike and not key.startswith(beginning):
                yield from sorted(alike, reverse=reverse)
                alike = []
            if len(key) == LONG:
                (length,) = _LEN.unpack_from(value)
                key, value = value[_LEN.size : _LEN.size + length], value[_LEN.size + length :]
            if not start <= key < stop or key == but:
                continue
            if len(key) >= _BEGINNING:
                beginning = key[:_BEGINNING]
                alike.append((key, value))
            else:
                yield key, value
        yield from sorted(alike, reverse=reverse)
