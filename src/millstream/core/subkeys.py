"""Sub-keys of a MapState: byte strings that sort as the values do.

Order: numbers by value within their type (int before float), then str by code point, then bytes; tuples element by element, a
prefix before what it is a prefix of. Integers must fit 64 bits.
"""

from __future__ import annotations

import struct
from typing import Any

_INT, _FLOAT, _STR, _BYTES, _TUPLE, _STOP = b"\x10", b"\x18", b"\x20", b"\x30", b"\x40", b"\x01"
_BIAS = 2**63


def encode(sub_key: Any) -> bytes:
    """
    >>> sorted([10, 9, -1], key=encode), encode((1, "a")) < encode((1, "b"))
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
        return _TUPLE + b"".join(encode(part) for part in sub_key) + _STOP
    raise TypeError(f"a {kind.__name__} cannot be a sub-key: use int, float, str, bytes, or a tuple of those")


def decode(data: bytes) -> Any:
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
