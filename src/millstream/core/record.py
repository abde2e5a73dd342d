"""Records and timers as user code sees them.

A record is a view: it knows its key and timestamp and points into the `Batch` it came in, which turns columns into Python
values only when somebody asks. A hook that counts never pays for values it does not read. Do not keep a record across
hooks: keep what you need of it in the state.

A value belongs to the hook that gets it. It is the same object however often the hook asks its record for it, and what the hook changes in
it is seen by nobody else: not by another computation, not by a second visit of the same key, not by a dead letter or an error message. Those
take their values from `anew`; nothing is copied for a hook that only reads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from millstream.core.time import LOW_WATERMARK

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)  # the type of a value; nobody has to say it
else:
    from typing import TypeVar

    V = TypeVar("V")

_UNREAD: Any = object()


class Batch:
    """The records of one input of one step, by position. Subclasses say where values and ids come from."""

    __slots__ = ("stream",)

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def value(self, index: int) -> Any:
        """The value of the record at a position. Whoever asks again may get an object that has been changed since, unless it asks `anew`."""
        raise NotImplementedError

    def id(self, index: int) -> str:
        raise NotImplementedError

    def column(self, name: str | None) -> Any:
        """A field of all values as a column (None: the values themselves), where they are columns; else None."""
        return None

    def fields(self) -> Sequence[str] | None:
        """The fields of all values in their order, where the values are dicts and `column` has each of them as a column; else None."""
        return None

    def id_column(self) -> Any:
        """The ids of all records as a column, where they are one; else None."""
        return None

    def only(self, places: Sequence[int]) -> tuple[Batch, Sequence[int]]:
        """Some records as a batch, and where they are in it: who reads a few of many has no values made for the others."""
        return self, places

    def anew(self) -> Batch:
        """A copy of these records. Each call of its `value` makes an object that nobody has seen."""
        return self


class ListBatch(Batch):
    """A batch of values that are Python objects already, and nobody else's."""

    __slots__ = ("ids", "values")

    def __init__(self, stream: str, values: Sequence[Any], ids: Sequence[str]) -> None:
        super().__init__(stream)
        self.values = values
        self.ids = ids

    def value(self, index: int) -> Any:
        return self.values[index]

    def id(self, index: int) -> str:
        return self.ids[index]


class CopyingBatch(ListBatch):
    """A batch of values that others hold too: whoever asks gets a copy. For engines in which rows are Python objects from the beginning."""

    __slots__ = ()

    def value(self, index: int) -> Any:
        return copy.deepcopy(self.values[index])


class Record(msgspec.Struct, Generic[V], gc=False, eq=False):
    """One record: key, value, timestamp, id, and the stream that brought it."""

    key: Any
    timestamp: int
    _batch: Batch
    _index: int
    _value: Any = _UNREAD

    @property
    def value(self) -> V:
        """The record's value: the row as a dict, one column of it, or what a computation produced."""
        value = self._value
        if value is _UNREAD:
            value = self._value = self._batch.value(self._index)
        return value  # type: ignore[no-any-return]

    def anew(self) -> Record[V]:
        """A copy of the record, with a value that no hook has changed."""
        return Record(self.key, self.timestamp, self._batch.anew(), self._index)

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(
            f"record[{name!r}]: a record has key, value, timestamp, id and stream. The fields of a row are in its value: record.value[{name!r}]."
        )

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


def with_value(record: Record, value: Any) -> Record:
    """A record with its value replaced."""
    return Record(record.key, record.timestamp, record._batch, record._index, value)


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
        time = cause.time if cause.kind == LOW_WATERMARK else None  # type: ignore[union-attr]
        return {"stream": None, "value": None, "timestamp": time, "id": None, "timer": [cause.kind, cause.tag, cause.time]}  # type: ignore[union-attr]
    try:
        value = cause.anew().value  # type: ignore[union-attr]
    except Exception as error:
        value = f"cannot be read: {error}"
    return {"stream": cause.stream, "value": value, "timestamp": cause.timestamp, "id": cause.id}  # type: ignore[union-attr]
