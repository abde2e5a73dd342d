"""Fingerprints of what users write: so that changed code is noticed although its version is not.

Rules
1. A fingerprint looks at a function's code, its constants, defaults, and the plain values that it closes over or reads from its module. Names of
   variables, comments and line numbers do not matter.
2. It does not look into functions that are called by it. What they do is the user's to say, with `version=`.
3. Compiled code differs between versions of Python. So a fingerprint says in front which one it was made with; others prove nothing.
"""

from __future__ import annotations

import dis
import sys
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType
from typing import Any

from millstream.reducers.base import Reducer

_PLAIN = (str, int, float, bytes, bool, type(None))


def fingerprint(*parts: Any) -> str:
    """The fingerprint of definitions.

    >>> fingerprint(lambda row: row.value) == fingerprint(lambda other: other.value)
    True
    >>> fingerprint(lambda row: row.value + 1) == fingerprint(lambda row: row.value + 2)
    False
    """
    text = repr([told(part) for part in parts])
    return f"{sys.implementation.name}{sys.version_info[0]}.{sys.version_info[1]}:{blake2b(text.encode(), digest_size=12).hexdigest()}"


def told(part: Any) -> Any:
    """A definition as plain data."""
    if isinstance(part, _PLAIN):
        return (type(part).__name__, repr(part))
    if isinstance(part, (list, tuple)):
        return [told(one) for one in part]
    if isinstance(part, (set, frozenset)):
        return ["set", sorted(repr(told(one)) for one in part)]
    if isinstance(part, dict):
        return [(told(name), told(one)) for name, one in sorted(part.items(), key=repr)]
    if isinstance(part, Reducer):
        return ["reducer", part.describe(), [told(one) for one in part.functions], [_method(part, name) for name in _METHODS]]
    if isinstance(part, partial):
        return ["partial", told(part.func), told(part.args), told(part.keywords)]
    if isinstance(part, MethodType):
        return ["method", told(part.__func__), told(vars(part.__self__) if hasattr(part.__self__, "__dict__") else None)]
    if isinstance(part, FunctionType):
        return _function(part)
    name = getattr(part, "__qualname__", None)
    if name is None:  # an object that can be called: what it is made of counts
        text = repr(part)
        inside = [(key, _value(value)) for key, value in sorted(getattr(part, "__dict__", {}).items())]
        called = vars(type(part)).get("__call__")
        code = _function(called) if isinstance(called, FunctionType) else None
        return ["object", type(part).__qualname__, "" if " at 0x" in text else text, inside, code]
    return ["named", getattr(part, "__module__", ""), name]


_METHODS = ("lift", "lift_at", "combine", "remove", "fold", "finish")


def _method(reducer: Reducer, name: str) -> Any:
    """The code of a method that is the user's own."""
    found = getattr(type(reducer), name, None)
    if not isinstance(found, FunctionType) or found.__module__.startswith("millstream.reducers"):
        return None
    return _function(found)


def _function(f: FunctionType) -> list[Any]:
    inside = [_value(cell.cell_contents) for cell in f.__closure__ or () if _is_filled(cell)]
    outside = [(name, _value(f.__globals__[name])) for name in sorted(_names(f.__code__)) if name in f.__globals__]
    return ["function", _code(f.__code__), told(f.__defaults__), told(f.__kwdefaults__), inside, outside]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _value(value: Any) -> Any:
    """What a function closes over: itself where it is plain, its name where it is not (rule 2)."""
    if _is_plain(value):
        return told(value)
    return ["named", type(value).__qualname__, getattr(value, "__qualname__", "")]


def _is_plain(value: Any, depth: int = 8) -> bool:
    """Whether a value holds plain values alone, not too deep down."""
    if isinstance(value, _PLAIN):
        return True
    if not depth or not isinstance(value, (list, tuple, dict, set, frozenset)):
        return False
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(one, depth - 1) for one in parts)


def _names(code: CodeType) -> set[str]:
    """The names that code reads from its module."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= _names(one)
    return found


def _code(code: CodeType) -> list[Any]:
    consts = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return [code.co_code.hex(), code.co_names, consts, code.co_argcount, code.co_flags & 0x0C]


def _constant(one: Any) -> str:
    return f"{type(one).__name__} {sorted(map(repr, one)) if isinstance(one, frozenset) else one!r}"
