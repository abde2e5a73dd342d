"""Whether a value that was stored and read again is the same: where it differs, and which types leave anything open. Pure.

The same is: equal, and of the same classes down to numbers, texts, keys and time zones. Only an int may come back as the float that an annotation asks for.
"""

from __future__ import annotations

from datetime import datetime, time, timezone
from typing import Any

import msgspec

from millstream.core.mapstate import MapState


def difference(one: Any, other: Any, path: str = "state") -> str | None:
    """The first place where two values differ, for people; None if they are the same. NaN is NaN; a list is not a tuple; a MapState is passed over.

    >>> difference({"a": [1, (2,)]}, {"a": [1, [2]]})
    "state['a'][1] is (2,), and would come back as [2]"
    """
    if isinstance(one, MapState):
        return None
    if one.__class__ is other.__class__:
        fields = _fields(one)
        parts = None
        if isinstance(one, (list, tuple)) and len(one) == len(other):
            parts = [(one[at], other[at], f"[{at}]") for at in range(len(one))]
        elif isinstance(one, dict) and one.keys() == other.keys() and _alike_all(one, other):
            parts = [(one[key], other[key], f"[{key!r}]") for key in one]
        elif fields:
            parts = [(getattr(one, name), getattr(other, name), f".{name}") for name in fields]
        if parts is not None:
            return next((found for a, b, where in parts if (found := difference(a, b, path + where))), None)
        if (one == other or one != one or repr(one) == repr(other)) and alike(one, other):  # NaN, also in a set
            return None
    elif one == other and _is_asked_for(one, other):
        return None
    return f"{path} is {repr(one)[:200]}, and would come back as {repr(other)[:200]}"


def alike(one: Any, other: Any) -> bool:
    """Whether two values that are equal are of the same classes too, down to numbers and texts: a defaultdict equals a dict, and is none."""
    if one.__class__ is not other.__class__:
        return isinstance(one, MapState) or _is_asked_for(one, other)
    if isinstance(one, dict):
        return _alike_all(one, other) and (
            _PLAIN.issuperset(map(type, one.values())) or all(alike(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, (list, tuple)):
        return _alike_all(one, other)
    if isinstance(one, (set, frozenset)):
        found = {element: element for element in other}
        return _alike_all(one, [found.get(element, element) for element in one])
    if isinstance(one, (datetime, time)):
        return one.fold == other.fold and (one.tzinfo is other.tzinfo or one.tzinfo.__class__ is other.tzinfo.__class__ is timezone)
    return all(alike(getattr(one, name), getattr(other, name)) for name in _fields(one))


_PLAIN = frozenset((int, float, str, bool, bytes, type(None)))


def _alike_all(one: Any, other: Any) -> bool:
    """Whether all elements, or keys, are alike in their order."""
    return _PLAIN.issuperset(map(type, one)) or all(map(alike, one, other))


def _is_asked_for(one: Any, other: Any) -> bool:
    return one.__class__ is int and other.__class__ is float


def _fields(value: Any) -> Any:
    return getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None) or ()


def has_open_parts(type: Any) -> bool:
    """Whether a type's annotations leave some part untyped (`Any`, a bare dict or list).

    >>> has_open_parts(dict[str, int]), has_open_parts(dict[str, list])
    (False, True)
    """
    return _is_open(msgspec.inspect.type_info(type), set())


def _is_open(info: Any, seen: set[Any]) -> bool:
    if isinstance(info, msgspec.inspect.AnyType):
        return True
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return False
        seen.add(cls)
    parts = [getattr(info, name, None) for name in ("key_type", "value_type", "item_type", "type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ()), *(field.type for field in getattr(info, "fields", ()))]
    return any(_is_open(part, seen) for part in parts if isinstance(part, msgspec.inspect.Type))
