"""Epochs on Spark: one job, one action per epoch, whose only result is a receipt per task. The protocol itself is engine/epochs.py."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from millstream import faults
from millstream.core.guards import ALL_GUARDS
from millstream.engine.contracts import Stopped
from millstream.engine.epochs import Epochs
from millstream.engine.planned import PlannedEpochs
from millstream.engine.program import Program
from millstream.engine.receipts import EpochOrder, Receipt, decode_receipt
from millstream.engine.worker_process import RunPlace
from millstream.errors import CheckpointError, EpochAbandoned
from millstream.sources.splits import SplitPlan
from millstream.state.manifest import Manifest, ManifestLog

from . import keyed_rows, pickling
from .batch_reader import TakeFrames
from .compaction_job import Folds
from .offsets import SourceFiles, SparkOffsets
from .task_function import task_function


class SparkEpochs(Epochs):
    """Runs epochs as Spark jobs."""

    def __init__(
        self,
        program: Program,
        place: RunPlace,
        log: ManifestLog,
        latest: Manifest | None,
        token: str,
        value_types: list[T.DataType],
        offsets: SparkOffsets | None = None,
        files: dict[str, SourceFiles] | None = None,
    ) -> None:
        self.spark_folds = Folds(place, token)
        super().__init__(program, place.shards, log, latest, token, offsets, self.spark_folds, ALL_GUARDS)
        self.place = place
        self.offsets = offsets
        self.value_types = value_types
        self.files = files or {}
        self.crash = faults.armed()
        self.blob = pickling.dumps(program)
        self.digest = hashlib.blake2b(self.blob, digest_size=16).hexdigest()
        self.place_bytes = msgspec.msgpack.encode(place)
        self._schemas = self._level_schemas()
        self._session: Any = None
        self._job_session: Any = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Spark's foreachBatch calls this; an error is kept for the handle, because Spark would only pass on its text."""
        with self.lock:
            if self.stopping:
                raise Stopped("the pipeline is being stopped; this epoch runs at the next start")
            self._session = batch.sparkSession
            try:
                self.run(batch, number)
            except BaseException as error:
                self.error = error
                raise

    def set_session(self, spark: Any, jobs: Any) -> None:
        """For epochs that come from no query: the user's session, and the one in which jobs run."""
        self._session = spark
        self._job_session = jobs

    def session(self) -> Any:
        return self._session or _spark()

    def point(self, name: str, epoch: int) -> None:
        faults.point(name, epoch, self.crash)

    def read_files(self, injector: str) -> tuple[dict[str, int], set[str]]:
        return self.files[injector].now()

    def acknowledge(self, number: int) -> None:
        told = [injector for injector in self.topology.injectors.values() if injector.source.is_acknowledged]
        ranges = self.offsets.reading(number).ranges if told and self.offsets is not None else None
        for injector in told:
            if ranges is None:
                raise CheckpointError(
                    f"injected stream {injector.name!r}: {injector.source.describe()} must be told what is committed, and Spark's offset log cannot be "
                    f"read. Keep Spark's checkpoint in a local folder, with run(..., spark_checkpoint=...)."
                )
            injector.source.acknowledge(ranges[injector.name].end)

    def close(self) -> None:
        """Ends what runs on the driver for sources, and folds that nobody will adopt."""
        self.spark_folds.end()
        for injector in self.topology.injectors.values():
            injector.source.close()

    def _level_schemas(self) -> list[tuple[T.StructType, bytes]]:
        """What the tasks of each level put out: for Spark, and the same for Arrow."""
        last = len(self.topology.levels) - 1
        injectors = list(self.topology.injectors)
        found: list[tuple[T.StructType, bytes]] = []
        for level in range(last + 1):
            if level == last:
                schema = T._parse_datatype_string("body binary")
            else:
                schema = T._parse_datatype_string(f"{keyed_rows.keyed_columns(self.topology)}, {keyed_rows.PRODUCED}")
                later = {r.stream for r in self.topology.routes if r.level > level}
                assert isinstance(schema, T.StructType)
                for at, name in enumerate(injectors):
                    if name in later:
                        schema = schema.add(f"v{at}", self.value_types[at])
            assert isinstance(schema, T.StructType)
            arrow = to_arrow_schema(schema, timezone="UTC")
            found.append((schema, arrow.serialize().to_pybytes()))
        return found

    def job(self, batch: DataFrame | None, order: EpochOrder) -> list[Receipt]:
        encoded = msgspec.msgpack.encode(order)
        flow = batch
        for level, groups in enumerate(self.topology.levels):
            partitions = len(groups) * self.shards
            if flow is None:
                flow = keyed_rows.tick_frame(self._job_session or self.session(), partitions, self.topology, self.value_types)
            else:
                flow = flow.repartitionById(partitions, "part")
            schema, arrow = self._schemas[level]
            flow = flow.mapInArrow(task_function(self.digest, self.blob, self.place_bytes, encoded, level, arrow), schema)
        assert flow is not None
        try:
            bodies = flow.toArrow().column("body").to_pylist()
        except Exception as error:
            if "indeterminate output" in str(error):  # a stage was lost in mid-epoch, and Spark will not mix its attempts either
                raise EpochAbandoned("a stage had to be computed again after its output had been used.") from error
            raise
        return [decode_receipt(body) for body in bodies]


class PlannedSparkEpochs(PlannedEpochs, SparkEpochs):
    """Spark jobs for epochs that Millstream plans. `frames` is set before the first of them."""

    frames: TakeFrames

    def job(self, takes: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:  # type: ignore[override]
        return SparkEpochs.job(self, self.frames.frame(takes) if takes else None, order)

    def close(self) -> None:
        self.spark_folds.end()
        super().close()


def _spark() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
