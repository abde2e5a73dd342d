"""What a join tells, as columns: pairs of records, and records without a partner.

Rule: a production's id follows from operator, stream, key and the ids and timestamps of the records, so a retry makes the same id. It is made only where
somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.core.keys import key_of
from millstream.core.record import Batch
from millstream.operators.expressions import NotInColumns
from millstream.operators.results import Results
from millstream.operators.rows import StreamRows, typed
from millstream.operators.waiting import WaitingRecords


class PairResults(Results):
    """Rows of {"left": value, "right": value}. keys: as bytes. left, right: the records, by row; None where all are without one. decode: of a value."""

    def __init__(
        self,
        computation: str,
        stream: str,
        keys: Any,
        times: Any,
        left: WaitingRecords | None,
        right: WaitingRecords | None,
        decode: Callable[[bytes], Any],
        with_ids: bool,
    ) -> None:
        super().__init__(computation, stream, with_ids)
        self.keys, self.times, self.left, self.right, self._decode = keys, times, left, right, decode

    def __len__(self) -> int:
        return len(self.keys)

    def python_keys(self) -> list[Any]:
        return [key_of(key.decode()) for key in self.keys]

    def value(self, at: int) -> dict[str, Any]:
        left, right, decode = self.left, self.right, self._decode
        return {"left": None if left is None else decode(left.bodies[at]), "right": None if right is None else decode(right.bodies[at])}

    def values(self) -> Iterator[dict[str, Any]]:
        return map(self.value, range(len(self)))

    def side_values(self, side: str) -> list[Any]:
        """The values of one side, None where there is no record."""
        records = self.left if side == "left" else self.right
        return [None] * len(self) if records is None else list(map(self._decode, records.bodies))

    def made_ids(self) -> list[str]:
        about = f"\0{self.computation}\0{self.stream}\0pair".encode()
        found = []
        for at, key in enumerate(self.keys):
            digest = blake2b(key, digest_size=16)
            digest.update(about)
            for side in (self.left, self.right):
                digest.update(b"/" if side is None else b"\0%d/%d/%s" % (side.times[at], len(side.ids[at]), side.ids[at]))
            found.append(digest.hexdigest())
        return found

    def content(self, encode: Callable[[Any], bytes]) -> bytes:
        pieces = [*self.keys, self.times.tobytes()]
        for side in (self.left, self.right):
            pieces += [b"-"] if side is None else [side.times.tobytes(), *side.ids, *side.bodies]
        return b"\0".join(pieces)

    def rows(self) -> StreamRows:
        return StreamRows(PairBatch(self), pa.array([key.decode() for key in self.keys], pa.string()), self.times)


class PairBatch(Batch):
    """Pairs, as records."""

    __slots__ = ("_columns", "_ids", "_pairs")

    def __init__(self, pairs: PairResults) -> None:
        super().__init__(pairs.stream)
        self._pairs = pairs
        self._ids: list[str] | None = None
        self._columns: dict[str, Any] = {}

    def value(self, index: int) -> Any:
        return self._pairs.value(index)

    def column(self, name: str | None) -> Any:
        """One side: a struct of those fields of its values that can be columns. Raises NotInColumns."""
        if name not in ("left", "right"):
            return None
        if name not in self._columns:
            self._columns[name] = sides_column(self._pairs.side_values(name), name)
        return self._columns[name]

    def id(self, index: int) -> str:
        if self._ids is None:
            self._ids = self._pairs.ids()
        return self._ids[index]


def sides_column(values: list[Any], name: str) -> Any:
    """Values as a column: plain ones, or dicts with the same fields. None is null. Raises NotInColumns."""
    first = next((value for value in values if value is not None), None)
    if first.__class__ is not dict:
        return typed(values, name)
    if not all(value is None or (value.__class__ is dict and value.keys() == first.keys()) for value in values):
        raise NotInColumns(f"not every value of {name} has the same fields")
    has = np.array([value is not None for value in values])
    some, columns = [value for value in values if value is not None], {}
    for field in first:
        if field.__class__ is not str:
            continue
        try:
            columns[field] = typed([value[field] for value in some], f"{name}.{field}")
        except NotInColumns:
            continue  # whoever reads it works record by record
    if not columns:
        raise NotInColumns(f"{name} has no field that is a column")
    found = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return found if has.all() else found.take(pa.array(np.cumsum(has) - 1, mask=~has))
