"""The first difference between two runs, in words for people: where it is, what is there, and what was expected. Long values are cut short.

Rules
1. One difference is told, the one closest to its cause: computations in the order of the graph, each with its streams first and its state then.
2. `first_row` keeps to the order of a key's rows, and to their ids; `first_of_bag` does neither (`epoch_cuts`, rule 3).
3. Values are equal as Python has it (`same`), and floats may differ in the tenth digit: a sum of floats depends on the order of its terms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.keys import key_of
from millstream.core.keyspace import ROW, SCAN, SUB, Row, decode_row, decode_sub_key, timer_row_key, timer_time
from millstream.core.mapstate import MapState
from millstream.core.statekind import StateKind

WIDTH = 100
_CLOSE = 1e-9


class OutRow(msgspec.Struct, frozen=True):
    """A row that a stream carried, and its encoded value."""

    timestamp: int
    value: Any
    body: bytes
    id: str = ""

    def __str__(self) -> str:
        return f"{short(self.value)} at {self.timestamp}"


def short(value: Any, width: int = WIDTH) -> str:
    """A value as text, cut in the middle if it is long.

    >>> short(list(range(1000)), 20)
    '[0, 1, 2, …998, 999]'
    """
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({error})"
    return cut_short(text, width)


def cut_short(text: str, width: int) -> str:
    """A text without its middle, if it is long."""
    return text if len(text) <= width else f"{text[: width // 2]}…{text[1 - width // 2 :]}"


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal for a test.

    >>> same({"a": 0.1 + 0.2, "b": [1]}, {"b": (1,), "a": 0.3}), same(1, True), same([1], [1, 2])
    (True, False, False)
    """
    if one is other:
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return type(one) is type(other) and one == other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, MapState) and isinstance(other, MapState):
        return same(dict(one.items()), dict(other.items()))
    return type(one) is type(other) and (_equal(one, other) or _same_fields(one, other))


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, for instance, has no truth
        return repr(one) == repr(other)


def _same_fields(one: Any, other: Any) -> bool:
    names = getattr(one, "__struct_fields__", None) or list(getattr(one, "__dict__", ()))
    return bool(names) and all(hasattr(other, name) and same(getattr(one, name), getattr(other, name)) for name in names)


def first_row(where: str, got: Sequence[OutRow], expected: Sequence[OutRow]) -> str | None:
    """The first row of a key that is not as expected: in order, with ids."""
    for number in range(max(len(got), len(expected))):
        one = got[number] if number < len(got) else None
        other = expected[number] if number < len(expected) else None
        if one is None or other is None or (one.timestamp, one.value, one.id) != (other.timestamp, other.value, other.id):
            ids = one is not None and other is not None and (one.timestamp, one.value) == (other.timestamp, other.value)
            texts = [("nothing" if row is None else f"{row}, id {row.id}" if ids else str(row)) for row in (one, other)]
            return f"{where}: row {number + 1} of {max(len(got), len(expected))} is {texts[0]} instead of {texts[1]}"
    return None


def first_of_bag(where: str, got: Sequence[OutRow], expected: Sequence[OutRow]) -> str | None:
    """The first row of a key, by time, that only one of two runs has."""
    ones, others = (Counter((row.timestamp, row.body) for row in rows) for rows in (got, expected))
    if ones == others:
        return None
    extra, missing = _left(got, ones - others), _left(expected, others - ones)
    for row in list(extra):
        match = next((other for other in missing if other.timestamp == row.timestamp and same(row.value, other.value)), None)
        if match is not None:
            extra.remove(row)
            missing.remove(match)
    if not extra and not missing:
        return None
    return f"{where}: {extra[0] if extra else 'nothing'} instead of {missing[0] if missing else 'nothing'}"


def _left(rows: Sequence[OutRow], counts: Counter[tuple[int, bytes]]) -> list[OutRow]:
    counts, found = counts.copy(), []
    for row in sorted(rows, key=lambda row: (row.timestamp, row.body)):
        if counts[row.timestamp, row.body] > 0:
            counts[row.timestamp, row.body] -= 1
            found.append(row)
    return found


def first_entry(name: str, kind: StateKind, got: Mapping[bytes, bytes], expected: Mapping[bytes, bytes], exact: bool) -> str | None:
    """The first entry of a computation that is not as expected. exact: in every byte, with holds and index; else as `same` has it."""
    odd = [entry for entry in got.keys() | expected.keys() if got.get(entry) != expected.get(entry)]
    for entry in sorted(odd, key=lambda entry: (not entry.startswith(ROW), entry)):
        one, other = got.get(entry), expected.get(entry)
        if entry.startswith(ROW):
            found = _row(f"{name!r}, key {key_of(entry[1:].decode())!r}", kind, one, other, exact)
        elif entry.startswith(SUB):
            found = _item(name, kind, entry, one, other, exact)
        elif entry.startswith(SCAN):
            found = f"the scan {entry[len(SCAN) :].decode()!r} through {name!r} is at {one!r} instead of {other!r}" if exact else None
        else:
            found = (
                f"timers of {name!r}, key {key_of(timer_row_key(entry).decode())!r}: the index has {timer_time(entry)} for the earliest"
                if exact
                else None
            )
            found = found and f"{found}, which {'was not expected' if other is None else 'is missing' if one is None else 'differs'}"
        if found is not None:
            return found
    return None


def _row(where: str, kind: StateKind, one: bytes | None, other: bytes | None, exact: bool) -> str | None:
    rows = [Row(kind.empty) if raw is None else decode_row(raw) for raw in (one, other)]
    states = [kind.fresh() if kind.is_map else kind.decode(row.state) for row in rows]
    if rows[0].state != rows[1].state and (exact or not same(*states)):
        texts = ["nothing" if raw is None else short(state) for raw, state in zip((one, other), states, strict=True)]
        return f"state of {where}: {texts[0]} instead of {texts[1]}"
    timers = [[(time, tag) for time, tag in [*row.low, *row.wall]] for row in rows]
    if timers[0] != timers[1]:
        return f"timers of {where}: {short(timers[0])} instead of {short(timers[1])}"
    if exact and rows[0].holds != rows[1].holds:
        return f"holds of {where}: {short(rows[0].holds)} instead of {short(rows[1].holds)}"
    return f"state of {where}: a row instead of none, or none instead of one" if exact else None


def _item(name: str, kind: StateKind, entry: bytes, one: bytes | None, other: bytes | None, exact: bool) -> str | None:
    values = [None if raw is None else kind.decode_sub(raw) for raw in (one, other)]
    if not exact and one is not None and other is not None and same(*values):
        return None
    end = 5 + int.from_bytes(entry[1:5], "big")
    field, _, sub = entry[end:].partition(b"\0")
    item = f"{field.decode()}[{decode_sub_key(sub)!r}]"
    texts = ["nothing" if raw is None else short(value) for raw, value in zip((one, other), values, strict=True)]
    return f"state of {name!r}, key {key_of(entry[5:end].decode())!r}, item {item}: {texts[0]} instead of {texts[1]}"
