"""Functions that tables often need; a table has those that it names (`functions=`). Each reads and writes within one turn.

A function of your own has the same form: it gets the turn, the key and the argument, and returns the result as bytes. It may read and write any key of the
same partition. What it raises is told to the caller, and nothing that it wrote is kept.
"""

from __future__ import annotations

from millstream.errors import RefusedRequest
from millstream.service.state_machine import Turn


def number(raw: bytes) -> int:
    """A number as 8 bytes, signed and big-endian, or as decimal text.

    >>> number(b"-7"), number((5).to_bytes(8, "big", signed=True))
    (-7, 5)
    """
    if len(raw) == 8 and not raw.lstrip(b"+-").isdigit():
        return int.from_bytes(raw, "big", signed=True)
    try:
        return int(raw)
    except ValueError:
        raise RefusedRequest(f"{raw[:40]!r} is no number: give decimal text, or 8 bytes, signed and big-endian") from None


def add(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Adds a number to the one that is there (0 if there is none); the sum, as decimal text, is the result. It is kept as 8 bytes."""
    before = turn.get(key)
    if before is not None and len(before) != 8:
        raise RefusedRequest(f"key {key[:60]!r} holds {len(before)} bytes, and add keeps a number as 8 bytes, signed and big-endian")
    total = (0 if before is None else int.from_bytes(before, "big", signed=True)) + number(argument)
    try:
        turn.put(key, total.to_bytes(8, "big", signed=True))
    except OverflowError:
        raise RefusedRequest(f"key {key[:60]!r}: {total} does not fit into 8 bytes") from None
    return str(total).encode()


def append(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Puts bytes behind those that are there; the new length, as decimal text, is the result."""
    value = (turn.get(key) or b"") + argument
    turn.put(key, value)
    return str(len(value)).encode()


def swap(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Puts a value; the one that was there (nothing if there was none) is the result."""
    before = turn.get(key)
    turn.put(key, argument)
    return before or b""


def put_if_absent(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Puts a value where there is none; the one that is there then is the result."""
    before = turn.get(key)
    if before is None:
        turn.put(key, argument)
        return argument
    return before
