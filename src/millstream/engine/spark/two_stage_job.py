"""A batch job of two steps, for whoever has to look at a whole checkpoint: pieces of work give rows; rows are sorted, and each part of them is worked on.

Rules
1. Both steps are streams: no task holds more than a batch of rows. What is sorted between them is Spark's business, on disk where it must be.
2. Rows are (part, key, sub-key, body). A part is one task of the second step, and gets its rows ascending by key, then sub-key, as unsigned bytes.
3. Every part is worked on, also one without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

_BATCH = 5_000  # rows

PartRow = tuple[int, bytes, bytes, bytes]


def two_steps(
    spark: Any,
    pieces: Sequence[Any],
    first: Callable[[Any], Iterator[PartRow]],
    parts: int,
    second: Callable[[int, Iterable[tuple[bytes, bytes, bytes]]], Iterator[bytes]],
) -> list[bytes]:
    """Runs `first` on every piece and `second` on every part, and gives what the parts gave. Both functions travel to the workers."""

    def stated(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for at in batch.column(0).to_pylist():
                rows = first(pieces[at])
                while some := list(islice(rows, _BATCH)):
                    columns = zip(*some, strict=True)
                    types = (pa.int32(), pa.binary(), pa.binary(), pa.binary())
                    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
                    yield pa.record_batch(arrays, names=["part", "key", "sub", "body"])

    def judged(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext as SparkTask

        context = SparkTask.get()
        assert context is not None
        rows = (row for batch in batches for row in zip(*[batch.column(name).to_pylist() for name in ("key", "sub", "body")], strict=True))
        for body in second(context.partitionId(), rows):
            yield pa.record_batch([pa.array([body], pa.binary())], names=["body"])

    works = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    flow = works.mapInArrow(stated, "part int, key binary, sub binary, body binary")
    flow = flow.repartitionById(parts, "part").sortWithinPartitions("key", "sub")
    found: list[bytes] = flow.mapInArrow(judged, "body binary").toArrow().column("body").to_pylist()
    return found
