"""The keyspace of a shard: how a row is laid out as sorted byte strings.

Everything that one computation keeps for one shard lives in one ordered map from bytes to bytes. Five kinds of entries:

    R <row key>                                 → Row: state, low-watermark timers, wall-clock timers, holds, newest record
    M <len> <row key> <field> 0 <sub-key>       → one entry of a MapState
    T <kind> <time> <row key>                   → nothing: the *earliest* timer (or hold) of that kind of that key
    D <stream> 0 <span> <epoch> ...             → ids of injected records (core/dedup.py)
    S <name>                                    → how far a scan has come

Rules
1. A row is one entry, so state and timers change together. The index holds at most one entry per key and kind, so a key
   with a thousand timers costs two index writes when its earliest timer changes, and none otherwise.
2. A delta is a set of puts and deletes of such entries; log, snapshot and state cache know no more than that.
3. Times are biased and big-endian: the order of bytes is the order of time.
4. The bytes of sub-keys sort as the values do: numbers by value within their type (int before float), then str by code point, then bytes; tuples element by
   element, a prefix before what it is a prefix of. Integers must fit 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from millstream.core.time import BEGINNING

ROW = b"R"
SUB = b"M"
LOW_TIMER = b"TL"
WALL_TIMER = b"TW"
HOLD = b"TH"
SCAN = b"S"

_BIAS = 2**63
_TIMER = struct.Struct(">2sQ")
_INT, _FLOAT, _STR, _BYTES, _TUPLE, _STOP = b"\x10", b"\x18", b"\x20", b"\x30", b"\x40", b"\x01"  # what the parts of a sub-key begin with

TimerSet = set[tuple[int, str]]
Holds = dict[tuple[str, int, str], int]
STATE_HOLD = ("", 0, "")


class Store(Protocol):
    """The committed entries of a shard, as the step reads them. A scan gives those with start <= key < stop, in order."""

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...


class OpenStore(Store, Protocol):
    """A Store that is held open until it is closed. Deduplication reads its keys alone. stats: what whoever keeps the entries says of itself, or None."""

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]: ...
    def stats(self) -> Any: ...
    def close(self) -> None: ...


class NoEntries:
    """A store with nothing in it: what a computation without state reads."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return iter(())

    def stats(self) -> None: ...

    def close(self) -> None: ...


class Row(msgspec.Struct, array_like=True, gc=False):
    """What is kept under one row key. Empty timer sets and an empty state mean that the row need not exist."""

    state: bytes
    low: list[tuple[int, str]] = []
    wall: list[tuple[int, str]] = []
    holds: list[tuple[int, str, int, str]] = []  # timestamp, then the timer's kind, time and tag, or STATE_HOLD
    newest: int | None = None  # where rows expire: the time of its newest record, rounded up (core/expiry.py)


encode_fields = msgspec.msgpack.Encoder().encode  # those of a row, as a tuple
decode_row = msgspec.msgpack.Decoder(Row).decode


def encode_row(row: Row) -> bytes:
    """A row as the step writes it: without `newest` where there is none."""
    fields = (row.state, row.low, row.wall, row.holds)
    return encode_fields(fields if row.newest is None else (*fields, row.newest))


def timer_entry(kind: bytes, time: int, row_key: bytes) -> bytes:
    """The index entry of a key's earliest timer of a kind."""
    return _TIMER.pack(kind, time + _BIAS) + row_key


def timer_time(entry: bytes) -> int:
    return int.from_bytes(entry[2:10], "big") - _BIAS


def timer_row_key(entry: bytes) -> bytes:
    return entry[10:]


def timers_until(kind: bytes, time: int) -> tuple[bytes, bytes]:
    """The range of index entries with a time up to and including this one."""
    end = time + _BIAS + 1
    return kind, (kind + end.to_bytes(8, "big") if end < 2**64 else after(kind))


def due_timers(store: Store, kind: bytes, until: int, most: int) -> tuple[list[bytes], bytes]:
    """The row keys of timers of a kind up to a time, so many at most, and where the index goes on behind them."""
    if until <= BEGINNING:
        return [], kind
    start, stop = timers_until(kind, until)
    found = [entry for entry, _ in islice(store.scan(start, stop), most)]
    return list(map(timer_row_key, found)), stop if len(found) < most else found[-1]


def sub_prefix(row_key: bytes, field: str) -> bytes:
    """What the sub-rows of one MapState of one key begin with."""
    return SUB + len(row_key).to_bytes(4, "big") + row_key + field.encode() + b"\0"


def stored(store: Store, entries: Sequence[bytes]) -> list[bytes | None]:
    """What a store has under some keys."""
    get_all: Callable[[Sequence[bytes]], list[bytes | None]] | None = getattr(store, "get_all", None)
    return get_all(entries) if get_all is not None else list(map(store.get, entries))


def after(prefix: bytes) -> bytes:
    """The first byte string behind all that begin with a prefix."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\xff" * (len(prefix) + 1)


def encode_sub_key(sub_key: Any) -> bytes:
    """A sub-key as bytes (rule 4).

    >>> sorted([10, 9, -1], key=encode_sub_key), encode_sub_key((1, "a")) < encode_sub_key((1, "b"))
    ([-1, 9, 10], True)
    """
    kind: type = type(sub_key)
    if kind is int:
        if not -_BIAS <= sub_key < _BIAS:
            raise ValueError(f"the sub-key {sub_key} does not fit 64 bits")
        return _INT + int(sub_key + _BIAS).to_bytes(8, "big")
    if kind is str:
        return _STR + str(sub_key).encode().replace(b"\0", b"\0\xff") + b"\0"
    if kind is bytes:
        return _BYTES + bytes(sub_key).replace(b"\0", b"\0\xff") + b"\0"
    if kind is float:
        (bits,) = struct.unpack(">Q", struct.pack(">d", sub_key + 0.0))
        return _FLOAT + int(bits ^ (2**64 - 1 if bits >> 63 else _BIAS)).to_bytes(8, "big")
    if kind is tuple:
        return _TUPLE + b"".join(encode_sub_key(part) for part in sub_key) + _STOP
    raise TypeError(f"a {kind.__name__} cannot be a sub-key: use int, float, str, bytes, or a tuple of those")


def decode_sub_key(data: bytes) -> Any:
    value, end = _decode(data, 0)
    if end != len(data):
        raise ValueError(f"not a sub-key: {data!r}")
    return value


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    if kind == _INT:
        return int.from_bytes(data[at : at + 8], "big") - _BIAS, at + 8
    if kind == _FLOAT:
        bits = int.from_bytes(data[at : at + 8], "big")
        bits ^= _BIAS if bits >> 63 else 2**64 - 1
        return struct.unpack(">d", bits.to_bytes(8, "big"))[0], at + 8
    if kind in (_STR, _BYTES):
        end = at
        while True:
            end = data.index(b"\0", end)
            if data[end + 1 : end + 2] != b"\xff":
                break
            end += 2
        raw = data[at:end].replace(b"\0\xff", b"\0")
        return (raw.decode() if kind == _STR else raw), end + 1
    if kind == _TUPLE:
        parts = []
        while data[at : at + 1] != _STOP:
            part, at = _decode(data, at)
            parts.append(part)
        return tuple(parts), at + 1
    raise ValueError(f"not a sub-key: {data!r}")
