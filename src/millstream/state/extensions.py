"""Extension types of msgpack: Python values that plain msgpack would turn into something else.

    1  datetime    isoformat           5  Decimal   text            9  frozenset  as a set
    2  date        isoformat           6  UUID      16 bytes       10  a dict with keys of any kind, as a list of pairs
    3  time        isoformat           7  tuple     as a list
    4  timedelta   microseconds        8  set       as a list, sorted by the elements' bytes   11  int of more than 64 bits, as text

The codes are part of the checkpoint's format: they may be added to, never changed.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID, TUPLE, SET, FROZENSET, PAIRS, LONG = range(1, 12)

ADVICE = "Use plain types, a dataclass or a msgspec.Struct as State, or say codec=ms.codecs.pickle."

#: Types that `msgspec.to_builtins` and `convert` leave alone, because they have a code here (or are msgpack's own).
KEPT = (bytes, bytearray, datetime, date, time, timedelta, Decimal, uuid.UUID)

_MICROSECOND = timedelta(microseconds=1)
_KEYS = (str, float, bool, bytes, type(None))
_BASES = (str, int, float, bytes)
Encode = Callable[[Any], bytes]


class Coded(NamedTuple):
    """What an extension type is made of."""

    code: int
    data: bytes


def extended(value: Any) -> Any:
    """A value that is no container, as an extension; None if it is something else."""
    kind = value.__class__
    if kind is datetime:
        return Coded(DATETIME, value.isoformat().encode())
    if kind is date:
        return Coded(DATE, value.isoformat().encode())
    if kind is Decimal:
        return Coded(DECIMAL, str(value).encode())
    if kind is time:
        return Coded(TIME, value.isoformat().encode())
    if kind is timedelta:
        return Coded(TIMEDELTA, str(value // _MICROSECOND).encode())
    if kind is uuid.UUID:
        return Coded(UUID, value.bytes)
    if kind is int:
        return Coded(LONG, str(value).encode())
    return None


def container(value: Any, encode: Encode) -> Any:
    """A container that msgpack does not know, as an extension; a subclass of a plain scalar as that scalar; None if it is something else."""
    kind = value.__class__
    if kind is tuple:
        return Coded(TUPLE, encode(list(value)))
    if kind is set or kind is frozenset:
        elements = sorted(map(encode, value))
        return Coded(SET if kind is set else FROZENSET, msgspec.msgpack.encode([msgspec.Raw(one) for one in elements]))
    if isinstance(value, _BASES) and not isinstance(value, enum.Enum):
        base: Any = next(base for base in _BASES if isinstance(value, base))
        return base(value) if base is not str else str.__str__(value)
    return None


def prepared(value: Any, encode: Encode) -> Any:
    """A value as msgspec can encode it: for what is nested in dicts whose keys are not text. Raises TypeError for what cannot be kept."""
    kind = value.__class__
    if kind is dict:
        if all(key.__class__ in _KEYS or (key.__class__ is int and -(2**63) <= key < 2**64) for key in value):
            return {key: prepared(one, encode) for key, one in value.items()}
        pairs = [[prepared(key, encode), prepared(one, encode)] for key, one in value.items()]
        return msgspec.msgpack.Ext(PAIRS, msgspec.msgpack.encode(pairs))
    if kind is list:
        return [prepared(one, encode) for one in value]
    if kind is int and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(LONG, str(value).encode())
    if kind in (str, int, float, bool, bytes, type(None), bytearray, memoryview):
        return value
    found = extended(value)
    if found is None:
        found = container(value, encode)
    if found is None:
        raise TypeError(refusal(value))
    return msgspec.msgpack.Ext(found.code, found.data) if found.__class__ is Coded else found


def restored(code: int, data: memoryview, decode: Callable[[Any], Any]) -> Any:
    """The value of an extension."""
    if code == TUPLE:
        return tuple(decode(data))
    if code == SET:
        return set(decode(data))
    if code == FROZENSET:
        return frozenset(decode(data))
    if code == PAIRS:
        return {key: value for key, value in decode(data)}
    if code == UUID:
        return uuid.UUID(bytes=bytes(data))
    text = bytes(data).decode()
    if code == DATETIME:
        return datetime.fromisoformat(text)
    if code == DATE:
        return date.fromisoformat(text)
    if code == TIME:
        return time.fromisoformat(text)
    if code == TIMEDELTA:
        return timedelta(microseconds=int(text))
    if code == DECIMAL:
        return Decimal(text)
    if code == LONG:
        return int(text)
    raise ValueError(f"extension type {code} is of a newer version of Millstream")


def refusal(value: Any) -> str:
    """What to say of a value that would not come back."""
    kind = type(value)
    name = kind.__name__
    if isinstance(value, dict):
        return (
            f"{name} cannot be kept as it is: it would come back as a dict, and behave differently in the next epoch. Keep dict(...) of it."
        )
    if isinstance(value, enum.Enum):
        return f"{name} cannot be kept in an untyped state: {value!r} would come back as {value.value!r}. Keep its value, or annotate the State."
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__"):
        return (
            f"{name} cannot be kept in an untyped state: it would come back as a dict. Make State a dataclass or Struct whose annotation "
            f"names {name}. {ADVICE}"
        )
    if type(value).__module__ == "numpy":
        return f"numpy.{name} cannot be kept as msgpack: keep value.item() or value.tolist(). {ADVICE}"
    return f"{name} cannot be kept as msgpack. {ADVICE}"
