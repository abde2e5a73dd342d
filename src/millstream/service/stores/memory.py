"""The stores in memory: a dict, and a dict of numbers for counts and sums. What they have is gone with the process; log and snapshot bring it back.

Rules
1. The entries are one dict. Keys are sorted only where a scan needs them: by first byte, so that a scan of staged rows does not sort the users' entries.
   From then on only the keys that came or went since the last scan are put in place.
2. A pin copies nothing. While a pin is open, `apply` notes the old value of whatever it changes in the *newest* pin; a reader of a pin asks its notes,
   those of the pins made after it, and then the dict. A pin that is closed hands its notes to the pin before it.
3. `replace` begins a new dict. Pins keep the old one.
4. Counters: the value of a user's entry is a number (8 bytes, signed, big-endian, behind the 8 bytes of its version). Anything else is refused, with the key,
   before anything of it is applied. Version and number are kept as one integer: small ones take 32 bytes, half of what their bytes would. Entries of other
   kinds (sessions and the like) are kept as bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from millstream.core.keyspace import after
from millstream.errors import RefusedRequest
from millstream.service.messages import ENTRY, Change
from millstream.service.stores.store_contract import KeyStore, Pinned

_FEW = 64  # keys that are put in place one by one, however few there are
_SOME = 4096  # and however many there are: each moves half of the list
_CHUNK = 4096
_LITTLE = 512  # entries that `entries` gives between two turns
_PAIR = struct.Struct(">Qq")
_SMALL = 20  # bits of a number that is kept in the short form
_LIMIT = 1 << _SMALL

#: Makes the bytes of a value again that is kept in another form.
Unpack = Callable[[bytes, Any], bytes]


class _Map:
    """One dict, its orders and its pins."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Any] = {}
        self.orders: dict[bytes, list[bytes]] = {}  # by first byte, once it was scanned: sorted keys, but for those in `moved`
        self.moved: dict[bytes, set[bytes]] = {}  # by first byte: keys that came or went
        self.pins: list[DictPin] = []

    def put(self, changes: Sequence[tuple[bytes, Any]]) -> None:
        entries, moved = self.entries, self.moved
        if self.pins:
            self.pins[-1].note(changes)
        for key, value in changes:
            if (value is None) == (key in entries) and key[:1] in moved:
                moved[key[:1]].add(key)
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value

    def _order(self, first: bytes) -> list[bytes]:
        order = self.orders.get(first)
        if order is None:
            order = self.orders[first] = sorted(key for key in self.entries if key[:1] == first)
            self.moved[first] = set()
            return order
        moved = self.moved[first]
        if moved:
            entries = self.entries
            if len(moved) <= max(_FEW, min(len(order) // 8, _SOME)):
                for key in moved:
                    at = bisect_left(order, key)
                    there = at < len(order) and order[at] == key
                    if key in entries and not there:
                        order.insert(at, key)
                    elif there and key not in entries:
                        del order[at]
            else:
                order = self.orders[first] = [key for key in order if key not in moved]
                order.extend(sorted(key for key in moved if key in entries))
                order.sort()  # two runs: merged, not sorted
            moved.clear()
        return order

    def pieces(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        """A range in pieces: where each begins and ends, and its keys, which have one first byte. The dict may be changed between two of them."""
        cuts = []
        if stop[:1] != start[:1] and (not start or stop != after(start[:1])):
            cuts = sorted({key[:1] for key in self.entries if start < key[:1] < stop})
        size = 64
        for begin, end in pairwise([start, *cuts, stop]):
            while begin < end:
                order = self._order(begin[:1])
                low = bisect_left(order, begin)
                keys = order[low : min(bisect_left(order, end), low + size)]
                piece_end = end if len(keys) < size else keys[-1] + b"\0"
                yield begin, piece_end, keys
                begin, size = piece_end, min(size * 4, _CHUNK)


class DictPin:
    """The entries as of one position. Rule 2."""

    def __init__(self, data: _Map, applied: int, unpack: Unpack | None) -> None:
        self.applied = applied
        self._map = data
        self._unpack = unpack
        self._old: dict[bytes, Any] = {}
        self._is_closed = False
        data.pins.append(self)

    def note(self, changes: Iterable[tuple[bytes, Any]]) -> None:
        old, entries = self._old, self._map.entries
        for key, _ in changes:
            if key not in old:
                old[key] = entries.get(key)

    def _notes(self) -> list[dict[bytes, Any]]:
        if self._is_closed:
            raise ValueError("this pin is closed: pin the store again")
        pins = self._map.pins
        return [pin._old for pin in pins[pins.index(self) :]]

    def get(self, key: bytes) -> bytes | None:
        found = self._found([key])
        return found[0][1] if found else None

    def _found(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        notes, entries, unpack = self._notes(), self._map.entries, self._unpack
        found = []
        for key in keys:
            for old in notes:
                if key in old:
                    value = old[key]
                    break
            else:
                value = entries.get(key)
            if value is not None:
                found.append((key, value if unpack is None else unpack(key, value)))
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for begin, end, keys in self._map.pieces(start, stop):
            gone = {key for old in self._notes() for key in old if begin <= key < end}
            yield from self._found(sorted(gone.union(keys)) if gone else keys)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        entries = self._map.entries
        keys = list(entries)
        keys.extend({key for old in self._notes() for key in old if key not in entries})
        for at in range(0, len(keys), _LITTLE):
            yield from self._found(keys[at : at + _LITTLE])

    def close(self) -> None:
        if self._is_closed:
            return
        pins = self._map.pins
        at = pins.index(self)
        del pins[at]
        if at:
            before = pins[at - 1]
            before._old = {**self._old, **before._old}
        self._is_closed = True
        self._old = {}


class DictStore:
    """The entries of one partition, in a dict.

    >>> store = DictStore()
    >>> store.apply([(b"Ka", b"1"), (b"Kb", b"2")], upto=1)
    >>> pin = store.pin()
    >>> store.apply([(b"Ka", None)], upto=2)
    >>> list(store.scan(b"K", b"L")), list(pin.scan(b"K", b"L"))
    ([(b'Kb', b'2')], [(b'Ka', b'1'), (b'Kb', b'2')])
    """

    durable = False

    def __init__(self) -> None:
        self.applied = 0
        self._map = _Map()

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._map.entries.get(key)
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._map.entries
        for _, _, keys in self._map.pieces(start, stop):
            for key in keys:
                yield key, entries[key]

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        self._map.put(changes)
        self.applied = upto

    def pin(self) -> Pinned:
        return DictPin(self._map, self.applied, None)

    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        fresh = _Map()
        fresh.entries.update(entries)
        self._map, self.applied = fresh, upto

    def close(self) -> None:
        """Nothing to do: it is gone with the process."""


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
    def get(self, key: bytes) -> bytes | None:
        kept = self._map.entries.get(key)
        return None if kept is None else unpack_number(key, kept)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, kept in super().scan(start, stop):
            yield key, unpack_number(key, kept)

    def check(self, changes: Iterable[Change]) -> None:
        """Rule 4, asked before the log has anything: raises what `apply` would raise."""
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


class SharedMemory:
    """Partitions that have nothing in common but a process."""

    def __init__(self, make: Callable[[], KeyStore]) -> None:
        self._make = make
        self._stores: dict[int, KeyStore] = {}

    def of(self, partition: int) -> KeyStore:
        return self._stores.setdefault(partition, self._make())

    def forget(self, partition: int) -> None:
        self._stores.pop(partition, None)

    def close(self) -> None:
        self._stores.clear()


@dataclass(frozen=True)
class MemoryKind:
    """A store for what fits in memory. A restart reads the last snapshot and the log behind it."""

    store: Callable[[], KeyStore] = DictStore
    text: str = "memory"
    durable = False

    def open(self, folder: Path) -> SharedMemory:
        return SharedMemory(self.store)

    def describe(self) -> str:
        return self.text


memory = MemoryKind

#: A store for numbers that fit in memory.
counters = partial(MemoryKind, CounterStore, "counters in memory")
