"""Records and timers as user code sees them.

A record is a view: it knows its key and timestamp and points into the `Batch` it came in, which turns columns into Python
values only when somebody asks. A hook that counts never pays for values it does not read. Do not keep a record across
hooks: keep what you need of it in the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.time import LOW_WATERMARK


class Batch:
    """The records of one input of one step, by position. Subclasses say where values and ids come from."""

    __slots__ = ("stream",)

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def value(self, index: int) -> Any:
        """The value of the record at a position."""
        raise NotImplementedError

    def id(self, index: int) -> str:
        """The id of the record at a position."""
        raise NotImplementedError


class ListBatch(Batch):
    """A batch of values that are Python objects already."""

    __slots__ = ("ids", "values")

    def __init__(self, stream: str, values: Sequence[Any], ids: Sequence[str]) -> None:
        super().__init__(stream)
        self.values = values
        self.ids = ids

    def value(self, index: int) -> Any:
        return self.values[index]

    def id(self, index: int) -> str:
        return self.ids[index]


class Record(msgspec.Struct, gc=False, eq=False):
    """One record: key, value, timestamp, id, and the stream that brought it."""

    key: Any
    timestamp: int
    _batch: Batch
    _index: int

    @property
    def value(self) -> Any:
        """The record's value: the row as a dict, one column of it, or what a computation produced."""
        return self._batch.value(self._index)

    @property
    def id(self) -> str:
        """The record's id: unique in its stream, and the same on every retry."""
        return self._batch.id(self._index)

    @property
    def stream(self) -> str:
        """The name of the stream this record came in on."""
        return self._batch.stream

    def __repr__(self) -> str:
        return f"Record(stream={self.stream!r}, key={self.key!r}, timestamp={self.timestamp}, value={self.value!r}, id={self.id!r})"


class Timer(msgspec.Struct, frozen=True, order=True, gc=False):
    """A timer that fires: when it was set for, its tag, its kind, and the timestamp at which it held the output watermark, if it did."""

    time: int
    tag: str
    kind: str
    hold: int | None = None


class Production(msgspec.Struct, gc=False, array_like=True):
    """A record that a computation emitted, its value encoded at once: what user code does to the object later changes nothing."""

    stream: str
    key: Any
    timestamp: int
    id: str
    body: bytes


def single(stream: str, key: Any, timestamp: int, value: Any, id: str) -> Record:
    """A record on its own, for key callables and tests.

    >>> single("queries", "tea", 5, {"term": "tea"}, "q1").value["term"]
    'tea'
    """
    return Record(key, timestamp, ListBatch(stream, (value,), (id,)), 0)


def shown(record: Record) -> str:
    """A record's value for people, cut short."""
    try:
        return repr(record.value)[:200]
    except Exception as error:
        return f"cannot be read: {error}"


def described(cause: Record | Timer) -> dict[str, Any]:
    """What a late record or a dead letter says about itself."""
    if cause.__class__ is Timer:
        return {"stream": None, "value": None, "timestamp": cause.time if cause.kind == LOW_WATERMARK else None, "id": None, "timer": [cause.kind, cause.tag, cause.time]}  # type: ignore[union-attr]
    try:
        value = cause.value  # type: ignore[union-attr]
    except Exception as error:
        value = f"cannot be read: {error}"
    return {"stream": cause.stream, "value": value, "timestamp": cause.timestamp, "id": cause.id}  # type: ignore[union-attr]
