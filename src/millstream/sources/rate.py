"""Numbered rows at a steady pace, for trying things. Row n is due at `start + n * 1000 / rows_per_second`, in whole milliseconds, rounded as Spark's rate
source rounds, and is there from then on. An offset is {"start": ms, "rows": n}: when the first row was due, and how many there were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import DefinitionError
from millstream.sources.base import Source
from millstream.sources.splits import Offset, PlannedReader, SplitPlan

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS, _MOST = 50_000, 1_000_000  # in a split, in an epoch: the rest comes with the next
_BYTES = 16


@dataclass(frozen=True)
class Rate(Source):
    """Numbered rows (`timestamp`, `value`) at a steady pace, for trying things.

    >>> rate(10).describe()
    '10 rows a second'
    """

    rows_per_second: int = 100
    schema = "timestamp timestamp, value long"

    def __post_init__(self) -> None:
        if self.rows_per_second < 1:
            raise DefinitionError("sources.rate(rows_per_second=...): at least 1")

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        return spark.readStream.format("rate").option("rowsPerSecond", self.rows_per_second).load()

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Callable[[Any], Any], unreadable: str | None = None) -> PlannedReader:
        return RateReader(self.rows_per_second)

    def describe(self) -> str:
        return f"{self.rows_per_second} rows a second"


class RateSplit(msgspec.Struct, frozen=True):
    start: int  # when row 0 was due
    first: int
    end: int  # not among them


class RateOffset(Offset, frozen=True):
    """a rate source"""

    start: int
    rows: int


class RateReader(PlannedReader):
    def __init__(self, rows_per_second: int, clock: Callable[[], int] | None = None) -> None:
        import pyarrow as pa

        self.schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
        self._rows_per_second = rows_per_second
        self._clock = clock or _now
        self._until: int | None = None

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        self._until = self._clock() if bounded else None

    def first(self) -> str:
        return RateOffset(self._clock(), 0).text()

    def plan(self, start: str) -> SplitPlan:
        begun, rows = msgspec.structs.astuple(RateOffset.read(start))
        now = self._clock() if self._until is None else self._until
        end = min(max(rows, (now - begun) * self._rows_per_second // 1000), rows + _MOST)
        splits = [RateSplit(begun, at, min(at + _ROWS, end)) for at in range(rows, end, _ROWS)]
        return SplitPlan(RateOffset(begun, end).text(), splits, (end - rows) * _BYTES)

    def read(self, split: RateSplit) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        values = np.arange(split.first, split.end, dtype=np.int64)
        pace = self._rows_per_second
        due = split.start + (values // pace) * 1000 + ((values % pace) * 2000 + pace) // (2 * pace)
        yield pa.RecordBatch.from_arrays([pa.array(due * 1000).cast(self.schema.field(0).type), pa.array(values)], schema=self.schema)


def _now() -> int:
    return time.time_ns() // 1_000_000


rate = Rate
