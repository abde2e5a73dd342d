"""Values of any kind as a column of Arrow.

Rules
1. A column has the type that its values have: whole numbers, numbers, texts, bytes, times, lists of those, dicts (a struct, with a null for every field
   that a dict lacks).
2. Values that have no type in common (texts beside numbers, texts beside bytes, integers beyond 64 bits, dicts whose keys are no texts, empty dicts)
   become JSON text, all of the column alike. Nothing is rounded or guessed.
3. Tuples are lists. Where there is nothing to go by, the type is null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.readable.listing import plain

_NONE = type(None)


def column(values: Sequence[Any]) -> Any:
    """Values as an Arrow array.

    >>> column([1, None, 3]).type, column([{"a": 1}, {"b": "x"}]).type, column([1, "x"]).to_pylist()
    (DataType(int64), StructType(struct<a: int64, b: string>), ['1', '"x"'])
    """
    if is_mixed(values):
        return as_json(values)
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return as_json(values)


def as_json(values: Sequence[Any]) -> Any:
    """Values as JSON text; a null stays a null.

    >>> as_json([None, ("a", 7, 2**70)]).to_pylist()
    [None, '["a", 7, 1180591620717411303424]']
    """
    return pa.array([None if value is None else json.dumps(plain(value), ensure_ascii=False) for value in values], pa.string())


def is_mixed(values: Sequence[Any]) -> bool:
    """Whether values have no type in common (rule 2).

    >>> is_mixed([1, 2.5, None]), is_mixed([[1], ["x"]]), is_mixed([{"a": 1}, {"a": b"x"}])
    (False, True, True)
    """
    kinds = set(map(type, values)) - {_NONE}
    if kinds == {dict}:
        return _mixed_dicts([value for value in values if value is not None])
    if kinds and kinds <= {list, tuple}:
        return is_mixed([one for value in values if value is not None for one in value])
    if kinds == {int, float}:
        return any(type(value) is int and abs(value) > 2**53 for value in values)
    return len(kinds) > 1


def _mixed_dicts(dicts: Sequence[dict[Any, Any]]) -> bool:
    fields: dict[Any, list[Any]] = {}
    for one in dicts:
        for name, value in one.items():
            fields.setdefault(name, []).append(value)
    return not fields or any(type(name) is not str for name in fields) or any(map(is_mixed, fields.values()))
