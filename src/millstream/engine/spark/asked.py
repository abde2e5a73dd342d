"""What a run is asked for, checked as far as it can be without its sources; and what all ways of running make of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from millstream import faults
from millstream.core.topology import Topology
from millstream.engine.columns.arrow_rows import ValueColumn
from millstream.engine.contracts import Planner, TaskRunner
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.engine.upkeep import BackgroundUpkeep
from millstream.engine.worker_process import RunPlace
from millstream.faults import CrashPoints
from millstream.state.manifest import Identity, Manifest, ManifestLog
from millstream.state.storage import Storage

from .compaction_job import SparkCompaction
from .session import OWN_SESSION

_In = TypeVar("_In")


class Starting(msgspec.Struct):
    """What a run is asked for, checked as far as it can be without its sources. trigger: milliseconds between epochs; None: a bounded run."""

    program: Program
    spark: Any
    storage: Storage
    log: ManifestLog
    spark_folder: str
    storage_options: dict[str, Any] | None
    trigger: int | None
    drain: bool
    shards: int | None
    drop: Sequence[str]
    say: Callable[[str], None]

    def identified(self) -> tuple[Identity, Manifest | None]:
        """The checkpoint's identity, written now if it is new, and the manifest to go on from."""
        ready_sinks(self.program.topology)
        cores = self.spark.sparkContext.defaultParallelism
        if self.spark.sparkContext.getConf().get(OWN_SESSION, ""):
            cores = max(1, cores - 1)  # the slot to spare is nobody's shard
        identity = self.log.identify(self.program.name, self.shards, cores, list(self.program.topology.injectors))
        return identity, self.latest()

    def latest(self) -> Manifest | None:
        """The manifest to go on from, as this program has it."""
        found = self.log.latest()
        return None if found is None else reconciled(found, self.program, self.drop)

    def place(self, identity: Identity, values: list[list[ValueColumn]]) -> RunPlace:
        """Where the run keeps its things. values: per injector, how its value travels."""
        return RunPlace(
            checkpoint=self.storage.url,
            checkpoint_id=identity.id,
            storage_options=self.storage_options,
            state_caches=os.environ.get("MILLSTREAM_STATE_CACHE"),
            shards=identity.shards,
            values=values,
        )

    def epochs(
        self,
        identity: Identity,
        latest: Manifest | None,
        token: str,
        *,
        runner: TaskRunner[_In],
        planner: Planner,
        compaction: SparkCompaction,
    ) -> Epochs[_In]:
        """The epochs of a run whose tasks are Spark jobs."""
        return Epochs(
            self.program,
            identity.shards,
            self.log,
            latest,
            token,
            runner=runner,
            planner=planner,
            compaction=compaction,
            upkeep=BackgroundUpkeep(),
            points=CrashPoints(faults.armed()),
            session=lambda: self.spark,
        )


def ready_sinks(topology: Topology) -> None:
    """Makes sinks ready for use, or finds out that one cannot work. There must be a session."""
    for emission in topology.emissions:
        emission.sink.check()
        emission.sink.resolve(lambda ddl: to_arrow_schema(T.StructType.fromDDL(ddl), timezone="UTC"))
