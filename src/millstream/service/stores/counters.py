"""The store of counters: a dict of numbers, for counts and sums. An entry takes half of the memory that its bytes would.

Rules
1. The value of a user's entry is a number: 8 bytes, signed, big-endian, behind the 8 bytes of its version. Anything else is refused, with the key, before
   anything of it is applied.
2. Version and number are kept as one integer: small ones take 32 bytes.
3. Entries of other kinds (sessions and the like) are kept as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from millstream.errors import RefusedRequest
from millstream.service.messages import ENTRY, Change
from millstream.service.stores.memory import DictPin, DictStore, MemoryKind
from millstream.service.stores.store_contract import Pinned

_PAIR = struct.Struct(">Qq")
_SMALL = 20  # bits of a number that is kept in the short form
_LIMIT = 1 << _SMALL


def pack_number(key: bytes, value: bytes) -> int | bytes:
    """The form in which an entry is kept.

    >>> pack_number(b"Kclicks", _PAIR.pack(3, -1))
    6291458
    """
    if key[:1] != ENTRY:
        return value
    if len(value) != _PAIR.size:
        raise RefusedRequest(
            f"key {key[1:]!r} cannot have a value of {max(0, len(value) - 8)} bytes here: this table keeps counters, "
            f"which are numbers of 8 bytes, signed, big-endian. Use another store for other values."
        )
    version, number = _PAIR.unpack(value)
    folded = number << 1 if number >= 0 else ~(number << 1)  # 0, -1, 1, -2 become 0, 1, 2, 3
    if folded < _LIMIT:
        packed: int = (version << _SMALL | folded) << 1
    else:
        packed = (version << 64 | folded) << 1 | 1
    return packed


def unpack_number(key: bytes, kept: Any) -> bytes:
    """The bytes of an entry again.

    >>> unpack_number(b"Kclicks", pack_number(b"Kclicks", _PAIR.pack(3, -1))) == _PAIR.pack(3, -1)
    True
    """
    if isinstance(kept, bytes):
        return kept
    bits = 64 if kept & 1 else _SMALL
    kept >>= 1
    folded = kept & ((1 << bits) - 1)
    return _PAIR.pack(kept >> bits, folded >> 1 if not folded & 1 else ~(folded >> 1))


class CounterStore(DictStore):
    """The entries of one partition whose values are numbers."""

    def get(self, key: bytes) -> bytes | None:
        kept = self._map.entries.get(key)
        return None if kept is None else unpack_number(key, kept)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, kept in super().scan(start, stop):
            yield key, unpack_number(key, kept)

    def check(self, changes: Iterable[Change]) -> None:
        """Rule 1, asked before the log has anything: raises what `apply` would raise."""
        for key, value in changes:
            if value is not None:
                pack_number(key, value)

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        self._map.put([(key, None if value is None else pack_number(key, value)) for key, value in changes])
        self.applied = upto

    def pin(self) -> Pinned:
        return DictPin(self._map, self.applied, unpack_number)

    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        super().replace(((key, pack_number(key, value)) for key, value in entries), upto)  # type: ignore[misc]


#: A store for numbers that fit in memory: counts, sums. A restart reads the last snapshot and the log behind it.
counters = partial(MemoryKind, CounterStore, "counters in memory")
