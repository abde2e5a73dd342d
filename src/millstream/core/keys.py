"""Keys: from a Python value to the one byte string that names a row, and back.

Rules
1. A key's *text* tells its type, so that the string "1" and the number 1 are two keys on every path.
2. The JVM can build the same text with plain column expressions (`engine/spark/keyed_rows.py` does), so that a key computed
   by Spark and one computed in Python meet in the same shard and the same row. Strings, the common case, are their
   own text; everything else begins with a NUL and a letter.
3. A shard is `crc32(text) % shards`: both sides have CRC-32, and it is fast in both.

A float is no key (NaN, -0.0 and rounding make poor names), and None is never one.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from millstream.errors import DefinitionError

MAX_SHARDS = 4096


class BadKey(ValueError):
    """The value cannot name a row. Callers add the stream and the record to the message."""


def key_text(key: Any) -> str:
    """The canonical text of a key.

    >>> key_text("a"), key_text(7), key_text(("a", 7))
    ('a', '\\x00i7', '\\x00t1:a3:\\x00i7')
    """
    kind = type(key)
    if kind is str:
        text: str = key
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise BadKey(f"the key {key!r} is not valid Unicode") from error
        return text if not text.startswith("\0") else "\0s" + text
    if kind is int:
        return f"\0i{key}"
    if kind is bool:
        return "\0b1" if key else "\0b0"
    if kind is bytes:
        return "\0x" + bytes(key).hex()
    if kind is tuple:
        parts = [key_text(part) for part in key]
        return "\0t" + "".join(f"{len(part)}:{part}" for part in parts)
    if key is None:
        raise BadKey("the key is None")
    if isinstance(key, str):
        return key_text(str.__str__(key))
    if isinstance(key, int):
        return key_text(int.__int__(key))
    raise BadKey(f"a {kind.__name__} cannot be a key: use str, int, bool, bytes, or a tuple of those")


def key_bytes(key: Any) -> bytes:
    """The byte string under which the row of a key is kept."""
    return key_text(key).encode()


def key_of(text: str) -> Any:
    """The key whose text this is.

    >>> key_of(key_text(("a", 7, b"x", True)))
    ('a', 7, b'x', True)
    """
    if not text.startswith("\0"):
        return text
    kind, body = text[1], text[2:]
    if kind == "s":
        return body
    if kind == "i":
        return int(body)
    if kind == "b":
        return body == "1"
    if kind == "x":
        return bytes.fromhex(body)
    if kind == "t":
        parts, at = [], 0
        while at < len(body):
            colon = body.index(":", at)
            end = colon + 1 + int(body[at:colon])
            parts.append(key_of(body[colon + 1 : end]))
            at = end
        return tuple(parts)
    raise ValueError(f"not a key's text: {text!r}")


def shard_of(row_key: bytes, shards: int) -> int:
    return crc32(row_key) % shards


def check_shards(shards: int) -> int:
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise DefinitionError(f"shards={shards!r}: give a whole number from 1 to {MAX_SHARDS}.")
    return shards
