"""Extension types of msgpack: Python values that plain msgpack would turn into something else.

    1  datetime    isoformat           5  Decimal   text            9  frozenset  as a set
    2  date        isoformat           6  UUID      16 bytes       10  a dict with keys of any kind, as a list of pairs
    3  time        isoformat           7  tuple     as a list
    4  timedelta   microseconds        8  set       as a list, sorted by the elements' bytes   11  int of more than 64 bits, as text
   12  datetime    fold, name of its ZoneInfo or nothing, isoformat     13  time, in the same way     14  bytearray

The codes are part of the checkpoint's format: they may be added to, never changed.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID, TUPLE, SET, FROZENSET, PAIRS, LONG, ZONED, ZONED_TIME, BYTEARRAY = range(1, 15)

ADVICE = "Use plain types, a dataclass or a msgspec.Struct as State, or say codec=ms.codecs.pickle."

#: Types that `msgspec.to_builtins` and `convert` leave alone, because they have a code here (or are msgpack's own).
KEPT = (bytes, bytearray, datetime, date, time, timedelta, Decimal, uuid.UUID)

_MICROSECOND = timedelta(microseconds=1)
_KEYS = (str, float, bool, bytes, type(None))
_FIRM = frozenset((str, int, float, bool, bytes, type(None)))
Encode = Callable[[Any], bytes]


class Coded(NamedTuple):
    """What an extension type is made of."""

    code: int
    data: bytes


def _isoformat(value: Any) -> bytes:
    return value.isoformat().encode()  # type: ignore[no-any-return]


_EXTENDED: Mapping[type, tuple[int, Callable[[Any], bytes]]] = {
    datetime: (DATETIME, _isoformat),
    date: (DATE, _isoformat),
    time: (TIME, _isoformat),
    timedelta: (TIMEDELTA, lambda value: str(value // _MICROSECOND).encode()),
    Decimal: (DECIMAL, lambda value: str(value).encode()),
    uuid.UUID: (UUID, lambda value: value.bytes),
    int: (LONG, lambda value: str(value).encode()),
}

#: The value of an extension whose data are a text.
_FROM_TEXT: Mapping[int, Callable[[str], Any]] = {
    DATETIME: datetime.fromisoformat,
    DATE: date.fromisoformat,
    TIME: time.fromisoformat,
    TIMEDELTA: lambda text: timedelta(microseconds=int(text)),
    DECIMAL: Decimal,
    LONG: int,
    ZONED: lambda text: _from_zoned(text, datetime),
    ZONED_TIME: lambda text: _from_zoned(text, time),
}

_FROM_ELEMENTS: Mapping[int, Callable[[Any], Any]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset, PAIRS: dict}


def extended(value: Any) -> Coded | None:
    """A value that is no container, as an extension; None if it is something else."""
    found = _EXTENDED.get(value.__class__)
    return None if found is None else Coded(found[0], found[1](value))


def firm(value: Any, encode: Encode) -> Coded:
    """Anything that msgpack would turn into something else, as an extension that comes back as it was. Raises TypeError for what cannot be kept."""
    found = _zoned(value) or extended(value) or _container(value, encode)
    if found is None:
        raise TypeError(refusal(value))
    return found


def _zoned(value: Any) -> Coded | None:
    """A time that is more than its isoformat: of a named zone, or the second one of an hour that is repeated."""
    kind = value.__class__
    if kind is not datetime and kind is not time:
        return None
    zone = value.tzinfo
    if zone is not None and zone.__class__ is not timezone:
        name = getattr(zone, "key", None) if zone.__class__ is ZoneInfo else None
        if name is None:
            raise TypeError(
                f"{value!r} cannot be kept: its time zone has no name to find it by. Use zoneinfo.ZoneInfo, or keep it in UTC. {ADVICE}"
            )
        value = value.replace(tzinfo=None)
    elif value.fold:
        name = ""
    else:
        return None
    return Coded(ZONED if kind is datetime else ZONED_TIME, f"{value.fold} {name} {value.isoformat()}".encode())


def _from_zoned(text: str, kind: Any) -> Any:
    fold, name, iso = text.split(" ")
    found = kind.fromisoformat(iso).replace(fold=int(fold))
    return found.replace(tzinfo=ZoneInfo(name)) if name else found


def _container(value: Any, encode: Encode) -> Coded | None:
    kind = value.__class__
    if kind is bytearray:
        return Coded(BYTEARRAY, bytes(value))
    if kind is tuple:
        return Coded(TUPLE, encode(list(value)))
    if kind is set or kind is frozenset:
        elements = sorted(map(encode, value))
        return Coded(SET if kind is set else FROZENSET, msgspec.msgpack.encode([msgspec.Raw(one) for one in elements]))
    return None


def has_buffers(value: Any) -> bool:
    """Whether there is a bytearray or memoryview in a list or dict, which msgpack would take for bytes. (What is in a tuple or set goes its own way.)"""
    kind = value.__class__
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return kind is bytearray or kind is memoryview
    return not _FIRM.issuperset(map(type, value)) and any(map(has_buffers, value))


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
    if kind in _FIRM:
        return value
    return msgspec.msgpack.Ext(*firm(value, encode))


def restored(code: int, data: memoryview, decode: Callable[[Any], Any]) -> Any:
    if code in _FROM_ELEMENTS:
        return _FROM_ELEMENTS[code](decode(data))
    if code == UUID:
        return uuid.UUID(bytes=bytes(data))
    if code == BYTEARRAY:
        return bytearray(data)
    if code in _FROM_TEXT:
        return _FROM_TEXT[code](bytes(data).decode())
    raise ValueError(f"extension type {code} is of a newer version of Millstream")


def refusal(value: Any) -> str:
    """What to say of a value that would not come back."""
    kind = type(value)
    name = kind.__name__
    base = next((base for base in (dict, str, int, float, bytes) if isinstance(value, base)), None)
    if isinstance(value, enum.Enum):
        return f"{name} cannot be kept in an untyped state: {value!r} would come back as {value.value!r}. Keep its value, or annotate the State."
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__"):
        return (
            f"{name} cannot be kept in an untyped state: it would come back as a dict. Make State a dataclass or Struct whose annotation "
            f"names {name}. {ADVICE}"
        )
    if kind.__module__ == "numpy":
        return f"numpy.{name} cannot be kept as msgpack: keep value.item() or value.tolist(). {ADVICE}"
    if base is not None:
        return (
            f"{name} cannot be kept as it is: it would come back as a plain {base.__name__}, and behave differently in the next epoch. "
            f"Keep {base.__name__}(...) of it. {ADVICE}"
        )
    return f"{name} cannot be kept as msgpack. {ADVICE}"
