"""The rows that an operator reads: of one stream, in any order, as columns for whoever can use them, and as records for everybody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keys import key_of
from millstream.core.record import Batch, Record
from millstream.operators.expressions import NotInColumns

_KINDS = {frozenset((int,)): pa.int64(), frozenset((float,)): pa.float64(), frozenset((str,)): pa.string()}
_NONE = type(None)


class StreamRows:
    """Some records of a batch. keys: their texts, as an Arrow array; times: numpy; index: their places in the batch, None for all of it in its order."""

    __slots__ = ("_records", "_values", "batch", "index", "keys", "times")

    def __init__(self, batch: Batch, keys: Any, times: Any, index: Any = None) -> None:
        self.batch, self.keys, self.times, self.index = batch, keys, times, index
        self._values: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.times)

    @property
    def stream(self) -> str:
        return self.batch.stream

    def places(self) -> Any:
        return np.arange(len(self.times)) if self.index is None else self.index

    def where(self, mask: Any) -> StreamRows:
        """Those for which a mask is true."""
        chosen = np.flatnonzero(mask)
        return StreamRows(self.batch, self.keys.take(pa.array(chosen)), self.times[chosen], self.places()[chosen])

    def column(self, name: str | None) -> Any:
        """A field of the values as an Arrow array; None: the values themselves. Raises NotInColumns if its values are not all of one plain type."""
        found = self.batch.column(name)
        if found is not None:
            return found if self.index is None else found.take(pa.array(self.index))
        values = self.values()
        if name is not None:
            if not all(value.__class__ is dict and name in value for value in values):
                raise NotInColumns(f"not every value has a field {name!r}")
            values = [value[name] for value in values]
        return typed(values, name)

    def values(self) -> list[Any]:
        """The values as Python objects."""
        if self._values is None:
            value = self.batch.value
            self._values = [value(at) for at in self.places().tolist()]
        return self._values

    def ids(self) -> list[str]:
        return [self.batch.id(at) for at in self.places().tolist()]

    def id_column(self) -> Any:
        """The ids as an Arrow array."""
        found = self.batch.id_column()
        if found is None:
            return pa.array(self.ids(), pa.string())
        return found if self.index is None else found.take(pa.array(self.index))

    def records(self) -> Iterator[Record]:
        batch = self.batch
        for text, time, at in zip(self.keys.to_pylist(), self.times.tolist(), self.places().tolist(), strict=True):
            yield Record(key_of(text), time, batch, at)


class JoinedBatch(Batch):
    """Records of one stream from several batches."""

    __slots__ = ("_places",)

    def __init__(self, stream: str, places: Sequence[tuple[Batch, int]]) -> None:
        super().__init__(stream)
        self._places = places

    def value(self, index: int) -> Any:
        batch, at = self._places[index]
        return batch.value(at)

    def id(self, index: int) -> str:
        batch, at = self._places[index]
        return batch.id(at)

    def anew(self) -> Batch:
        return JoinedBatch(self.stream, [(batch.anew(), at) for batch, at in self._places])


def rows_of(arrivals: Arrivals) -> OperatorInput:
    """Records that are grouped by key, as the rows of each stream."""
    counts: Any = np.diff(np.array(arrivals.bounds, np.int64))
    keys = pa.array(arrivals.keys, pa.string()).take(pa.array(np.repeat(np.arange(len(arrivals.keys)), counts)))
    times = np.array(arrivals.timestamps, np.int64)
    source = arrivals.source or [0] * len(times)
    by_stream: dict[str, list[int]] = {}
    for at, of in enumerate(source):
        by_stream.setdefault(arrivals.batches[of].stream, []).append(at)
    found = []
    for stream, mine in by_stream.items():
        batch = JoinedBatch(stream, [(arrivals.batches[source[at]], arrivals.index[at]) for at in mine])
        found.append(StreamRows(batch, keys.take(pa.array(mine)), times[mine]))
    return OperatorInput(found, arrivals.rejected)


def arrivals_of(given: OperatorInput, ordered: bool = True) -> Arrivals:
    """The rows of all streams, grouped by key in canonical order; without `ordered`, a key's rows stay as they come."""
    if given.ordered is not None:
        return given.ordered()
    found = Arrivals.of(
        [
            (text, time, rows.batch.id(at), rows.batch, at)
            for rows in given.rows
            for text, time, at in zip(rows.keys.to_pylist(), rows.times.tolist(), rows.places().tolist(), strict=True)
        ],
        ordered,
    )
    return msgspec.structs.replace(found, rejected=given.rejected)


def typed(values: list[Any], name: str | None) -> Any:
    """Python values of one plain type as an Arrow array."""
    kinds = frozenset(map(type, values)) - {_NONE}
    kind = _KINDS.get(kinds) if kinds else pa.int64()
    if kind is None:
        raise NotInColumns(f"the values of {name or 'the stream'} are of the types {', '.join(sorted(one.__name__ for one in kinds))}")
    try:
        return pa.array(values, kind)
    except (OverflowError, UnicodeError):
        raise NotInColumns(f"the values of {name or 'the stream'} do not fit a column") from None
