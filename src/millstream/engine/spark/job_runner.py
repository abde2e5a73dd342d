"""The tasks of an epoch as one Spark job, with one action, whose only result is a receipt per task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt, decode_receipt
from millstream.engine.worker_process import RunPlace
from millstream.errors import EpochAbandoned
from millstream.sources.splits import SplitPlan
from millstream.state.heartbeat import RunMode

from . import keyed_rows, pickling
from .batch_reader import SplitFrames
from .task_function import task_function


class SparkJobRunner:
    """Runs the tasks of a batch that is a DataFrame of keyed rows. spark: the session in which jobs run."""

    def __init__(self, spark: Any, program: Program, place: RunPlace, value_types: list[T.DataType]) -> None:
        self._spark = spark
        self._topology = program.topology
        self._shards = place.shards
        self._value_types = value_types
        self._program = pickling.dumps(program)
        self._digest = hashlib.blake2b(self._program, digest_size=16).hexdigest()
        self._place = msgspec.msgpack.encode(place)
        self._schemas = self._level_schemas()

    def status(self) -> RunMode:
        """Micro-batches."""
        return RunMode()

    def close(self) -> None:
        """A job ends with its epoch."""

    def _level_schemas(self) -> list[tuple[T.StructType, bytes]]:
        """What the tasks of each level put out: for Spark, and the same for Arrow."""
        last = len(self._topology.levels) - 1
        injectors = list(self._topology.injectors)
        found: list[tuple[T.StructType, bytes]] = []
        for level in range(last + 1):
            if level == last:
                schema = T._parse_datatype_string("body binary")
            else:
                schema = T._parse_datatype_string(f"{keyed_rows.keyed_columns(self._topology)}, {keyed_rows.PRODUCED}")
                later = {r.stream for r in self._topology.routes if r.level > level}
                assert isinstance(schema, T.StructType)
                for at, name in enumerate(injectors):
                    if name in later:
                        schema = schema.add(f"v{at}", self._value_types[at])
            assert isinstance(schema, T.StructType)
            arrow = to_arrow_schema(schema, timezone="UTC")
            found.append((schema, arrow.serialize().to_pybytes()))
        return found

    def run(self, input: DataFrame | None, order: EpochOrder) -> list[Receipt]:
        encoded = msgspec.msgpack.encode(order)
        flow = input
        for level, groups in enumerate(self._topology.levels):
            partitions = len(groups) * self._shards
            if flow is None:
                flow = keyed_rows.tick_frame(self._spark, partitions, self._topology, self._value_types)
            else:
                flow = flow.repartitionById(partitions, "part")
            schema, arrow = self._schemas[level]
            flow = flow.mapInArrow(task_function(self._digest, self._program, self._place, encoded, level, arrow), schema)
        assert flow is not None
        try:
            bodies = flow.toArrow().column("body").to_pylist()
        except Exception as error:
            if "indeterminate output" in str(error):  # a stage was lost in mid-epoch, and Spark will not mix its attempts either
                raise EpochAbandoned("a stage had to be computed again after its output had been used.") from error
            raise
        return [decode_receipt(body) for body in bodies]


class SplitJobRunner:
    """Runs the tasks of an epoch that Millstream has planned: its splits are read as a DataFrame of keyed rows."""

    def __init__(self, jobs: SparkJobRunner, frames: SplitFrames) -> None:
        self._jobs = jobs
        self._frames = frames
        self.status, self.close = jobs.status, jobs.close

    def run(self, input: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        """All tasks of the epoch."""
        return self._jobs.run(self._frames.frame(input) if input else None, order)
