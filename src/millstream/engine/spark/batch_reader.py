"""What an epoch of planned sources reads, as one DataFrame: micro-batches without a streaming query.

Rules
1. Files are read by Spark's own readers. All other pieces are read in Python, as resident tasks read them.
2. The columns that make keyed rows of a source are worked out once, from its schema, and put on each epoch's frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millstream.core.topology import Topology
from millstream.sources.splits import PlannedReader, SplitPlan

from . import keyed_rows, pickling


class SplitFrames:
    """Makes the frames. sources: by injector its reader and the schema of what it reads, as Spark has it. unreadable: as in `Source.load`."""

    def __init__(
        self,
        spark: Any,
        topology: Topology,
        sources: Mapping[str, tuple[PlannedReader, T.StructType, str | None]],
        shards: int,
        value_types: list[T.DataType],
    ) -> None:
        self._spark = spark
        self._topology = topology
        self._sources = sources
        self._readers = {name: pickling.dumps(reader) for name, (reader, _, _) in sources.items()}
        self._keyed = {
            name: keyed_rows.KeyedColumns(injector, at, prototype(spark, sources[name][1]), topology, shards, value_types)
            for at, (name, injector) in enumerate(topology.injectors.items())
        }

    def frame(self, takes: Mapping[str, SplitPlan]) -> DataFrame:
        """The keyed rows of what an epoch reads."""
        frames = [self._keyed[name].of(self._read(name, take)) for name, take in takes.items()]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return whole

    def _read(self, name: str, take: SplitPlan) -> DataFrame:
        _, schema, unreadable = self._sources[name]
        source = self._topology.injectors[name].source
        if source.reads_files:
            return source.read_files(self._spark, list(take.names), unreadable)  # type: ignore[no-any-return]
        pieces = [pickling.dumps(piece) for piece in take.splits]
        return self._spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(_reading(self._readers[name], pieces), schema)  # type: ignore[no-any-return]


def prototype(spark: Any, schema: T.StructType) -> DataFrame:
    """A frame without rows, for what only depends on columns."""
    return spark.createDataFrame([], schema)  # type: ignore[no-any-return]


def _reading(reader: bytes, pieces: list[bytes]) -> Any:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle

        own: PlannedReader = pickle.loads(reader)
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from own.read(pickle.loads(pieces[at]))

    return run
