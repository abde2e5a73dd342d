"""One order of all plain values, and one text for each: where Python has none, or leaves ties open.

Rules
1. `order_key` gives a total order. Within numbers, texts, bytes, dates and durations it is Python's own; kinds that Python cannot compare stand one
   behind the other. Two keys are equal only if the values cannot be told apart: 1 comes before 1.0, though they are equal.
2. `identity` gives the same text to values that are equal (1, 1.0, True and Decimal("1.00") are one), and to no others. NaN is one value.
3. Neither depends on the process, the order of a dict's or a set's items, or a hash.

Kinds: None; numbers; NaN; texts; bytes; dates with a zone; without; days; times; durations; UUIDs; lists; tuples; sets; dicts; objects with named fields.
"""

from __future__ import annotations

import enum
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from millstream.errors import HookError

_NONE, _NUMBER, _NAN, _TEXT, _BYTES, _AWARE, _NAIVE, _DAY, _TIME, _DURATION, _UUID, _LIST, _TUPLE, _SET, _DICT, _OBJECT = range(16)
_ZERO = datetime(1970, 1, 1)
_ZERO_UTC = datetime(1970, 1, 1, tzinfo=UTC)

#: Classes of which equal values are the same value: between two of one of them no tie has to be broken.
FIRM = frozenset((int, str, bytes, bool))


def order_key(value: Any) -> tuple[Any, ...]:
    """A key to sort by.

    >>> sorted([[1], "b", 2.5, None, "a", {"x": 1}, 1.0, 1, float("nan")], key=order_key)
    [None, 1, 1.0, 2.5, nan, 'a', 'b', [1], {'x': 1}]
    """
    kind = value.__class__
    if kind is str:
        return (_TEXT, value)
    if kind is int:
        return (_NUMBER, value, 1)
    if kind is float:
        return (_NUMBER, value, 2, math.copysign(1.0, value)) if value == value else (_NAN, 2)
    if kind is dict:
        return (_DICT, sorted([(order_key(key), order_key(one)) for key, one in value.items()]))
    if kind is list:
        return (_LIST, [order_key(one) for one in value])
    if value is None:
        return (_NONE,)
    if kind is bool:
        return (_NUMBER, int(value), 0)
    if kind is bytes:
        return (_BYTES, value)
    if kind is datetime:
        if value.utcoffset() is None:
            return (_NAIVE, value - _ZERO, value.fold)
        return (_AWARE, value - _ZERO_UTC, value.isoformat(), value.fold)
    if kind is Decimal:
        return (_NAN, 3, str(value)) if value.is_nan() else (_NUMBER, value, 3, str(value))
    if kind is date:
        return (_DAY, value.toordinal())
    if kind is time:
        return (_TIME, value.isoformat(), value.fold)
    if kind is timedelta:
        return (_DURATION, value)
    if kind is uuid.UUID:
        return (_UUID, value.bytes)
    if kind is tuple:
        return (_TUPLE, [order_key(one) for one in value])
    if kind is set or kind is frozenset:
        return (_SET, sorted(map(order_key, value)), kind is frozenset)
    base, named = _reduced(value)
    return (*order_key(base), kind.__qualname__) if named is None else (_OBJECT, kind.__qualname__, [(n, order_key(v)) for n, v in named])


def identity(value: Any) -> str:
    """The text of a value: that of another is the same if, and only if, the two are equal.

    >>> [identity(value) for value in ("Sue", 7, 7.0, 0.5, None, ["a", 1])]
    ['sSue', 'n7', 'n7', 'n0.5', '', 'l2:sa2:n1']
    """
    kind = value.__class__
    if kind is str:
        return "s" + str(value)
    if kind is int or kind is bool:
        return f"n{int(value)}" if -(2**63) <= value < 2**63 else f"n{int(value):#x}"
    if kind is float:
        if value == value and not math.isinf(value):
            return identity(int(value)) if value.is_integer() else f"n{value!r}"
        return f"n{value}" if value == value else "nan"
    if value is None:
        return ""
    if kind is dict:
        return "d" + "".join(sorted(_joined((identity(key), identity(one))) for key, one in value.items()))
    if kind is list or kind is tuple:
        return ("l" if kind is list else "t") + _joined(map(identity, value))
    if kind is bytes:
        return f"x{value.hex()}"
    if kind is datetime:
        if value.utcoffset() is None:
            return f"w{value.replace(fold=0).isoformat()}"
        return f"z{(value - _ZERO_UTC) // timedelta(microseconds=1)}"
    if kind is Decimal:
        return _decimal(value)
    if kind is date:
        return f"y{value.isoformat()}"
    if kind is time:
        if value.utcoffset() is None:
            return f"c{value.replace(fold=0).isoformat()}"
        return f"k{(datetime.combine(_ZERO, value.replace(tzinfo=None)) - _ZERO - value.utcoffset()) // timedelta(microseconds=1)}"
    if kind is timedelta:
        return f"p{value // timedelta(microseconds=1)}"
    if kind is uuid.UUID:
        return f"u{value.hex}"
    if kind is set or kind is frozenset:
        return "e" + _joined(sorted(map(identity, value)))
    base, named = _reduced(value)
    if named is None:
        return identity(base)
    return f"o{kind.__qualname__}(" + _joined(text for name, one in named for text in (name, identity(one)))


def _joined(texts: Any) -> str:
    return "".join(f"{len(text)}:{text}" for text in texts)


def _decimal(value: Decimal) -> str:
    if value.is_nan():
        return "nan"
    if value.is_infinite():
        return "ninf" if value > 0 else "n-inf"
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = list(digits)
    while len(kept) > 1 and kept[-1] == 0:
        kept.pop()
        exponent += 1
    if kept == [0]:
        return "n0"
    if exponent >= 0 and exponent + len(kept) <= 10_000:  # who has ints of more digits than that has other troubles
        return identity(int(value))
    near = float(value)
    if near == value:
        return identity(near)
    return f"n{'-' * sign}{''.join(map(str, kept))}e{exponent}"


def _reduced(value: Any) -> tuple[Any, list[tuple[str, Any]] | None]:
    """A value of another class: as a plain one, or as its named fields."""
    for base in (int, float, str, bytes, datetime, date, time, timedelta, Decimal):
        if isinstance(value, base):
            return _as_base(value, base), None
    if isinstance(value, enum.Enum):
        return None, [("value", value.value)]
    if isinstance(value, tuple) and not hasattr(value, "__struct_fields__"):
        return tuple(value), None
    if isinstance(value, dict):
        return dict(value), None
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names:
        return None, [(name, getattr(value, name)) for name in sorted(names)]
    raise HookError(
        f"a value of type {type(value).__name__} has no place in an order: {str(type(value))[8:-2]}. "
        "Let the reducer read a field or a function of it that gives plain data (numbers, texts, dates, lists, dicts)."
    )


def _as_base(value: Any, base: type) -> Any:
    if base is datetime:
        return datetime.combine(value.date(), value.timetz())
    if base is date:
        return date(value.year, value.month, value.day)
    if base is time:
        return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if base is timedelta:
        return timedelta(value.days, value.seconds, value.microseconds)
    if base is str:
        return str.__str__(value)
    return int.__int__(value) if base is int else float.__float__(value) if base is float else base(value)
