"""The tasks of an epoch as one Spark job, with one action, whose only result is a receipt per task. Its rows are those of a batch of Spark's, or of what
Millstream has planned.

Rules for what Millstream has planned
1. Files are read by Spark's own readers. All other pieces are read in Python, as resident tasks read them.
2. The columns that make keyed rows of a source are worked out once, from its schema, and put on each epoch's frame.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from functools import lru_cache, reduce
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from millstream.core.topology import Topology
from millstream.engine.columns.keying import marks
from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt, decode_receipt
from millstream.engine.worker_process import RunPlace
from millstream.errors import EpochAbandoned
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.heartbeat import RunMode

from . import keyed_rows, pickling
from .task_function import task_function
from .versions import arrow_schema, to_partitions


class SparkJobRunner:
    """Runs the tasks of a batch that is a DataFrame of keyed rows. spark: the session in which jobs run."""

    def __init__(self, spark: Any, program: Program, place: RunPlace, value_types: list[T.DataType]) -> None:
        self._spark, self._topology, self._shards, self._value_types = spark, program.topology, place.shards, value_types
        self._name = program.name.replace(",", " ")  # which a tag must not have
        self._program = pickling.dumps(program)
        self._digest = hashlib.blake2b(self._program, digest_size=16).hexdigest()
        self._place = msgspec.msgpack.encode(place)
        self._schemas = self._level_schemas()

    def _name_jobs(self, epoch: int) -> None:
        """What Spark's page shows of the jobs of this thread."""
        jobs, name = self._spark.sparkContext, self._name
        jobs.setJobDescription(f"{name}: epoch {epoch}")
        jobs.addJobTag(f"millstream-{name}")

    def status(self) -> RunMode:
        return RunMode()

    def close(self) -> None:
        """A job ends with its epoch."""

    def _level_schemas(self) -> list[tuple[T.StructType, bytes]]:
        """What the tasks of each level put out: for Spark, and the same for Arrow."""
        found: list[tuple[T.StructType, bytes]] = []
        for level in range(len(self._topology.levels)):
            schema = T.StructType.fromDDL("body binary")
            if level < len(self._topology.levels) - 1:
                extra = [f"{name} {kind}" for name, kind in marks(self._topology).items()]
                schema = T.StructType.fromDDL(", ".join([keyed_rows.KEYED, *extra, keyed_rows.PRODUCED]))
                later = {r.stream for r in self._topology.routes if r.level > level}
                for at, name in enumerate(self._topology.injectors):
                    if name in later:
                        schema = schema.add(f"v{at}", self._value_types[at])
            found.append((schema, arrow_schema(schema).serialize().to_pybytes()))
        return found

    def run(self, input: DataFrame | None, order: EpochOrder) -> list[Receipt]:
        encoded = msgspec.msgpack.encode(order)
        flow = input
        for level, groups in enumerate(self._topology.levels):
            partitions = len(groups) * self._shards
            if flow is None:
                flow = keyed_rows.tick_frame(self._spark, partitions, self._topology, self._value_types)
            else:
                flow = to_partitions(flow, partitions, "part")
            schema, arrow = self._schemas[level]
            flow = flow.mapInArrow(task_function(self._digest, self._program, self._place, encoded, level, arrow), schema)
        assert flow is not None
        try:
            self._name_jobs(order.epoch)
            bodies = flow.toArrow().column("body").to_pylist()
        except Exception as error:
            if "indeterminate output" in str(error):  # a stage was lost in mid-epoch, and Spark will not mix its attempts either
                raise EpochAbandoned("a stage had to be computed again after its output had been used.") from error
            raise
        return [decode_receipt(body) for body in bodies]


class PlannedSource(msgspec.Struct):
    """The reader of an injector, and its columns: without the one for unreadable rows (as in `Source.load`), whose name is apart."""

    reader: PlannedReader
    schema: Any
    unreadable: str | None

    def prototype(self, spark: Any) -> DataFrame:
        """An empty frame with all its columns."""
        struct = from_arrow_schema(self.schema)
        return spark.createDataFrame([], struct if self.unreadable is None else struct.add(self.unreadable, "string"))  # type: ignore[no-any-return]


class SplitFrames:
    """Makes the frames of what was planned, by injector."""

    def __init__(
        self, spark: Any, topology: Topology, sources: Mapping[str, PlannedSource], shards: int, value_types: list[T.DataType]
    ) -> None:
        self._spark, self._topology, self._sources = spark, topology, sources
        self._readers = {name: pickling.dumps(one.reader) for name, one in sources.items()}
        self._frames = {name: one.prototype(spark) for name, one in sources.items()}
        self._keyed = {
            name: keyed_rows.KeyedColumns(injector, at, self._frames[name], topology, shards, value_types)
            for at, (name, injector) in enumerate(topology.injectors.items())
        }

    def frame(self, takes: Mapping[str, SplitPlan]) -> DataFrame:
        return reduce(DataFrame.union, [self._keyed[name].of(self._read(name, take)) for name, take in takes.items()])

    def _read(self, name: str, take: SplitPlan) -> DataFrame:
        source = self._topology.injectors[name].source
        if source.reads_files:
            return source.read_files(self._spark, list(take.names), self._sources[name].unreadable)  # type: ignore[no-any-return]
        pieces = [pickling.dumps(piece) for piece in take.splits if self._sources[name].reader.has_rows(piece)]
        read = _reading(self._readers[name], pieces)
        return self._spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(read, self._frames[name].schema)  # type: ignore[no-any-return]


@lru_cache(4)
def _unpickled(reader: bytes) -> PlannedReader:
    """One for all tasks of a process: it may have connections, and schemas that it has asked for."""
    found: PlannedReader = pickle.loads(reader)
    return found


def _reading(reader: bytes, pieces: list[bytes]) -> Any:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        own = _unpickled(reader)
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from own.read(pickle.loads(pieces[at]))

    return run


class SplitJobRunner:
    """Runs the tasks of an epoch that Millstream has planned: its splits are read as a DataFrame of keyed rows."""

    def __init__(self, jobs: SparkJobRunner, frames: SplitFrames) -> None:
        self._jobs, self._frames = jobs, frames
        self.status, self.close = jobs.status, jobs.close

    def run(self, input: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        return self._jobs.run(self._frames.frame(input) if input else None, order)
