"""The map of one consumer in columns: from documents as bytes to the text of each one's group, and to its part as bytes.

Rules
1. What works in columns is told from the definition alone (`reason`): groups by fields, and reducers of fields whose parts are the fields as they lie. So is
   what `--explain` says. Everything else is done by the mapper's own functions, for documents that have changed.
2. A document for which columns do not give what the mapper would (a group that is no text and no whole number, a part that is none of those and null) is
   not `ok`: the mapper's functions are asked, or say what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnviews.packing import BINARY, joined
from millstream.columnviews.unpacking import Field, PackedRows, is_int, is_text, text_column
from millstream.reducers import extremes, sums
from millstream.reducers.base import Reducer
from millstream.reducers.composite import Several
from millstream.views.operator import Downstream

_NUL = b"\0"


class MappedColumns(NamedTuple):
    """What documents give: groups' texts, parts as bytes, and for which documents that holds."""

    texts: Any
    parts: Any
    ok: Any


def reason(downstream: Downstream) -> str:
    """Why a consumer's map does not work in columns; "" if it does."""
    if downstream.right:
        return "it is the right side of a join"
    if downstream.dead_letters is not None:
        return "its map may fail (on_error=ms.DEAD_LETTER)"
    if downstream.links:
        return "there is a function in its map"
    if callable(downstream.by):
        return "its group is a function"
    if not isinstance(getattr(downstream.lift, "__self__", None), Reducer):
        return "it takes whole documents"
    return reason_of(downstream.lift.__self__)  # type: ignore[union-attr]


def reason_of(reducer: Reducer) -> str:
    """Why a reducer's parts are not made in columns; "" if they are."""
    for member in members_of(reducer):
        if member.functions:
            return f"{member.describe()} has a function"
        if type(member) not in _PARTS or (type(member) is not sums.count and not isinstance(member.field, str)):
            return f"{member.describe()} is made value by value"
    return ""


def members_of(reducer: Reducer) -> list[Any]:
    return list(reducer.members.values()) if isinstance(reducer, Several) else [reducer]


class MapInColumns:
    """The map of one consumer, for which there is no `reason`."""

    def __init__(self, downstream: Downstream) -> None:
        self._by: Sequence[str] = downstream.by
        self._reducer: Reducer = downstream.lift.__self__  # type: ignore[union-attr]
        self._members = members_of(self._reducer)
        self._wanted = list(dict.fromkeys([*self._by, *(member.field for member in self._members if member.field is not None)]))

    def mapped(self, rows: PackedRows) -> MappedColumns:
        """What documents give."""
        rows = rows.take(slice(None))  # a view of its own: what is `ok` is this map's
        fields = rows.fields(self._wanted)
        if not fields and self._wanted:
            nothing = pa.repeat(pa.scalar(b"", BINARY), len(rows))
            return MappedColumns(text_column(nothing), nothing, np.zeros(len(rows), bool))
        texts = self._texts(rows, fields)
        parts = self._parts(rows, fields)
        return MappedColumns(text_column(texts), parts, rows.ok)

    def _texts(self, rows: PackedRows, fields: dict[str, Field]) -> Any:
        keys = [_key(rows, fields[name]) for name in self._by]
        if not keys:
            return pa.repeat(pa.scalar(b"", BINARY), len(rows))
        if len(keys) == 1:
            return keys[0]
        pieces: list[Any] = [_NUL + b"t"]
        for key in keys:
            length = pc.utf8_length(text_column(key)).cast(pa.string()).cast(BINARY)
            pieces += [length, b":", key]
        return joined(*pieces)

    def _parts(self, rows: PackedRows, fields: dict[str, Field]) -> Any:
        made = []
        for member in self._members:
            field = None if member.field is None else fields[member.field]
            made.append(_PARTS[type(member)](rows, field))
        if not isinstance(self._reducer, Several):
            return made[0]
        for name in {member.field for member in self._members if member.field is not None}:
            rows.ok &= fields[name].head != 0xC0  # what has no part changes how the others are written
        count = len(made) + (self._reducer.remove is not None)
        if count >= 16:
            rows.ok[:] = False
            return made[0]
        return joined(bytes([0x90 | count]), *made, *([b"\x01"] if self._reducer.remove is not None else []))


def _key(rows: PackedRows, field: Field) -> Any:
    """The key text of a field."""
    texts, whole = is_text(field), is_int(rows, field)
    if whole.all():
        numbers, _ = rows.ints(field.slices.begin)
        return joined(_NUL + b"i", pa.array(numbers).cast(pa.string()).cast(BINARY))
    rows.ok &= texts
    found = rows.column(rows.payload(field))
    is_marked = pc.starts_with(text_column(found), "\0")
    if pc.any(is_marked).as_py():  # a text that begins as other keys do
        rows.ok &= ~is_marked.to_numpy(zero_copy_only=False)
    return found


def _counted(rows: PackedRows, field: Field | None) -> Any:
    one = pa.scalar(b"\x01", BINARY)
    if field is None:
        return pa.repeat(one, len(rows))
    return pc.if_else(pa.array(field.head == 0xC0), pa.scalar(b"\xc0", BINARY), one)


def _summed(rows: PackedRows, field: Field | None) -> Any:
    assert field is not None
    rows.ok &= is_int(rows, field) | (field.head == 0xC0)
    return rows.column(field.slices)


def _meant(rows: PackedRows, field: Field | None) -> Any:
    assert field is not None
    rows.ok &= is_int(rows, field) | (field.head == 0xC0)
    part = rows.column(field.slices)
    empty = field.head == 0xC0
    found = joined(b"\x92\x01", part)
    return pc.if_else(pa.array(empty), pa.scalar(b"\xc0", BINARY), found) if empty.any() else found


def _compared(rows: PackedRows, field: Field | None) -> Any:
    assert field is not None
    rows.ok &= is_int(rows, field) | is_text(field) | (field.head == 0xC0)
    return rows.column(field.slices)


_PARTS: dict[type[Reducer], Any] = {
    sums.count: _counted,
    sums.sum: _summed,
    sums.mean: _meant,
    extremes.min: _compared,
    extremes.max: _compared,
}
