"""What parts come to: by message, or by group before a message is made, how many there are and what they fold to.

Rule: the parts of counts and of sums of whole numbers are added up in columns, where no sum can be too large for 64 bits. All others are folded by the
reducer, message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from millstream.columnviews.packing import SingleRows, parts_of
from millstream.columnviews.unpacking import PackedRows
from millstream.reducers import sums
from millstream.reducers.base import Reducer


class Folded(NamedTuple):
    """By message or group: how many parts say something, and what these fold to."""

    known: list[int]
    totals: list[Any]


def folded(reducer: Reducer, decode: Callable[[bytes], Any], lists: Any, message: Any, messages: int) -> Folded:
    """lists: a column of lists of parts, encoded. message: whose each is."""
    if type(reducer) in (sums.count, sums.sum):
        found = _added_up(PackedRows.of(lists), message, messages)
        if found is not None:
            return found
    parts: list[list[Any]] = [[] for _ in range(messages)]
    for at, some in zip(message.tolist(), values_of(lists, decode), strict=True):
        parts[at] += some
    known = [[part for part in some if part is not None] for some in parts]
    try:
        totals = [reducer.fold(some) if some else None for some in known]
    except Exception as error:
        raise SingleRows("its reducer raises") from error
    return Folded(list(map(len, known)), totals)


def _added_up(rows: PackedRows, message: Any, messages: int) -> Folded | None:
    """None where columns cannot do it."""
    at = rows.expect(rows.begin, b"\x91")
    is_known = rows.head(at) != 0xC0
    numbers, behind = rows.ints(at)
    bare = ~is_known & (rows.end == rows.begin + 2)
    if not ((rows.ok & (behind == rows.end)) | bare).all():
        return None
    numbers = np.where(is_known, numbers, 0)
    if len(numbers) and max(abs(int(numbers.min())), abs(int(numbers.max()))) * len(numbers) >= 2**62:
        return None
    totals = np.zeros(messages, np.int64)
    np.add.at(totals, message, numbers)
    known = np.bincount(message[is_known], minlength=messages).tolist()
    return Folded(known, [total if count else None for total, count in zip(totals.tolist(), known, strict=True)])


def values_of(column: Any, decode: Callable[[bytes], Any]) -> list[Any]:
    """Values that are encoded, one in each row of a column, decoded."""
    data, where = parts_of(column)
    found: list[Any] = decode(b"\xdd" + len(column).to_bytes(4, "big") + data[where[0] : where[-1]].tobytes())
    return found
