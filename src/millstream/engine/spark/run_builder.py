"""What a run is asked for, and what all ways of running make of it; and the two kinds of runs whose epochs Millstream plans itself, with their readers.

Rule: what cannot work is refused before anything is written, with the way out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from millstream import faults
from millstream.core.topology import Injector, Topology
from millstream.core.watermark import Declared
from millstream.engine.columns.batches import ValueColumn
from millstream.engine.columns.keying import Keying
from millstream.engine.epochs import Epochs, Planner, TaskRunner
from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.engine.publishing import BackgroundUpkeep
from millstream.engine.resident.runner import ResidentParts, assemble
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.worker_process import RunPlace
from millstream.errors import DefinitionError, MillstreamError
from millstream.faults import CrashPoints
from millstream.network import is_loopback
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage

from . import keyed_rows, pickling, versions
from .background_jobs import ResidentJob, SparkCompaction
from .error_text import reason
from .job_runner import PlannedSource, SparkJobRunner, SplitFrames, SplitJobRunner
from .run import PlannedRun, Run
from .session import ARROW, OWN_SESSION, UTC

MOST = 128 << 20  # bytes of one epoch, where nobody says how much
_In = TypeVar("_In")
ROLL = 5_000  # milliseconds: for how long sinks of files wait in a resident run, if nobody says it


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

    def identify(self, values: list[list[ValueColumn]]) -> tuple[RunPlace, Manifest | None]:
        """Where the run keeps its things, by the checkpoint's identity, which is written now if it is new; and the manifest to go on from. values: per
        injector, how its value travels."""
        ready_sinks(self.program.topology)
        cores = self.spark.sparkContext.defaultParallelism
        if self.spark.sparkContext.getConf().get(OWN_SESSION, ""):
            cores = max(1, cores - 1)  # the slot to spare is nobody's shard
        identity = self.log.identify(self.program.name, self.shards, cores, list(self.program.topology.injectors))
        place = RunPlace(
            checkpoint=self.storage.url,
            checkpoint_id=identity.id,
            storage_options=self.storage_options,
            state_caches=os.environ.get("MILLSTREAM_STATE_CACHE"),
            shards=identity.shards,
            values=values,
        )
        return place, self._latest()

    def claim(self, latest: Manifest | None) -> tuple[str, Manifest | None]:
        """The token of the run, which owns the checkpoint now; and the manifest to go on from: a run that ends may have committed one more."""
        return self.log.runs.claim(latest.token if latest is not None else None), self._latest()

    def _latest(self) -> Manifest | None:
        found = self.log.latest()
        return None if found is None else reconciled(found, self.program, self.drop)

    def epochs(self, place: RunPlace, latest: Manifest | None, token: str, runner: TaskRunner[_In], planner: Planner) -> Epochs[_In]:
        """The epochs of a run whose tasks are Spark jobs."""
        return Epochs(
            self.program,
            place.shards,
            self.log,
            latest,
            token,
            runner=runner,
            planner=planner,
            compaction=SparkCompaction(self.spark, place, token),
            upkeep=BackgroundUpkeep(),
            points=CrashPoints(faults.armed()),
            session=lambda: self.spark,
        )

    def planned_run(self, epochs: Epochs[Any], planner: SourcePlanner, *, eager: bool) -> Run:
        """A run whose epochs Millstream plans."""
        bounded, every = self.trigger is None, (self.trigger or 0) / 1000
        return PlannedRun(self.program.topology, epochs, planner, bounded=bounded, drain=self.drain, every=every, eager=eager)


def ready_sinks(topology: Topology) -> None:
    """Makes sinks ready for use, or finds out that one cannot work. There must be a session."""
    for emission in topology.emissions:
        emission.sink.check()
        emission.sink.resolve(arrow_schema)


def _readers(topology: Topology) -> dict[str, PlannedSource]:
    found: dict[str, PlannedSource] = {}
    try:
        for name, injector in topology.injectors.items():
            found[name] = _reader(injector, topology)
    except BaseException:
        for one in found.values():
            one.reader.close()
        raise
    return found


def _reader(injector: Injector, topology: Topology) -> PlannedSource:
    forgiving = any(topology.takes_rejected(r.computation) for r in topology.routes if r.stream == injector.name)
    if injector.watermark.wants_files and not injector.source.reads_files:
        raise DefinitionError(f"injected stream {injector.name!r}: watermarks.files needs ms.sources.files with a local directory")
    try:
        reader = injector.source.reader(arrow_schema, keyed_rows.UNREADABLE if forgiving else None)
        schema = reader.schema
    except MillstreamError as error:
        raise type(error)(f"injected stream {injector.name!r}: {error}") from error
    except Exception as error:
        raise DefinitionError(f"injected stream {injector.name!r}: its source cannot be opened: {reason(error)}") from error
    if keyed_rows.UNREADABLE in schema.names:
        return PlannedSource(reader, schema.remove(schema.get_field_index(keyed_rows.UNREADABLE)), keyed_rows.UNREADABLE)
    return PlannedSource(reader, schema, None)


def arrow_schema(given: Any) -> pa.Schema:
    struct = T.StructType.fromDDL(given) if isinstance(given, str) else given
    return versions.arrow_schema(struct)


def micro_batch_run(asked: Starting) -> Run:
    """A Spark job per epoch."""
    topology, spark = asked.program.topology, asked.spark
    planned = _readers(topology)
    try:
        frames = {name: one.prototype(spark) for name, one in planned.items()}
        injectors = topology.injectors
        value_types = [keyed_rows.value_type(injectors[name], frame, topology) for name, frame in frames.items()]
        SplitFrames(spark, topology, planned, 1, value_types)  # finds unknown columns before anything is written
        place, latest = asked.identify([keyed_rows.value_layout(injectors[name], frame, topology) for name, frame in frames.items()])
        token, latest = asked.claim(latest)
        own = own_session(spark)
        jobs = SparkJobRunner(own, asked.program, place, value_types)
        runner = SplitJobRunner(jobs, SplitFrames(own, topology, planned, place.shards, value_types))
        planner = SourcePlanner({name: one.reader for name, one in planned.items()}, asked.storage, token, latest, asked.trigger is None)
        epochs = asked.epochs(place, latest, token, runner, planner)
        epochs.resume()
        return asked.planned_run(epochs, planner, eager=True)
    except BaseException:
        _close(planned, topology)
        raise


def own_session(spark: Any) -> Any:
    """A copy of the user's session, with all that was set in it, and with the settings that a query of ours would have (a query has a copy, too)."""
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in ARROW.items():
        if not spark.sparkContext.getConf().contains(name):
            own.conf.set(name, value)
    return own


def _close(planned: Mapping[str, PlannedSource], topology: Topology) -> None:
    for one in planned.values():
        one.reader.close()
    for injector in topology.injectors.values():
        injector.source.close()


# --- resident


def resident_run(asked: Starting, tasks: int | None) -> Run:
    """One long Spark job, and epochs over sockets."""
    topology, spark, program = asked.program.topology, asked.spark, asked.program
    slots = count_slots(spark, topology, tasks)
    if "://" in asked.storage.url:
        asked.say(f"each epoch makes several requests in a row to {asked.storage.url}: a local disk commits ten times as fast")
    planned = _readers(topology)
    parts: ResidentParts | None = None
    try:
        _check_settings(spark, topology, planned)

        def keyings(shards: int) -> dict[str, Keying]:
            return {name: Keying(program, topology.injectors[name], one.schema, shards, one.unreadable) for name, one in planned.items()}

        place, latest = asked.identify(
            [one.layout for one in keyings(1).values()]
        )  # what only Spark can do is refused before anything is written
        token, latest = asked.claim(latest)
        _limit(planned, topology)
        host, remote = _host(spark)
        job = ResidentJob(spark, token)
        parts = assemble(
            program,
            log=asked.log,
            latest=latest,
            token=token,
            place=place,
            slots=slots,
            readers={name: one.reader for name, one in planned.items()},
            keyings=keyings(place.shards),
            host=host,
            remote=remote,
            bounded=asked.trigger is None,
            pickled=pickling.dumps,
            ended=job.end,
            session=lambda: spark,
            points=CrashPoints(faults.armed()),
            say=asked.say,
        )
        asked.say(f"starting {slots} resident task{'s' if slots > 1 else ''}")
        parts.start(partial(job.run, msgspec.msgpack.encode(parts.setup)))
        parts.epochs.resume()
        return asked.planned_run(parts.epochs, parts.planner, eager=False)
    except BaseException:
        if parts is not None:
            parts.epochs.close()
        _close(planned, topology)
        raise


def _limit(planned: Mapping[str, PlannedSource], topology: Topology) -> None:
    """Tasks hold an epoch's input in memory, so it has a limit; but a source that declares its watermark to a callable is read to its end in every epoch:
    what it says speaks of all that it had delivered."""
    for name, one in planned.items():
        watermark = topology.injectors[name].watermark
        if not isinstance(watermark, Declared) or watermark.function is None:
            one.reader.most = MOST


def count_slots(spark: Any, topology: Topology, tasks: int | None) -> int:
    """How many tasks there are. Each holds a slot for as long as the run lasts."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.speculation", "false").lower() == "true":
        raise DefinitionError(
            "this session has spark.speculation=true: Spark would start a second copy of a resident task that seems slow, and each copy would take the slot "
            "from the other. Set it to false, or run without resident=True."
        )
    cores = max(1, spark.sparkContext.defaultParallelism // int(conf.get("spark.task.cpus", "1")))
    greedy = [emission for emission in topology.emissions if emission.sink.needs_spark]
    spare = 1 if greedy or conf.get(OWN_SESSION, "") else 0
    if tasks is None:
        tasks = max(1, cores - spare)
    if not spark.sparkContext.master.startswith("local"):
        return tasks  # executors may still come
    if tasks > cores:
        raise DefinitionError(
            f"{tasks} resident tasks need {tasks} slots, and this session has {cores} ({spark.sparkContext.master}): say tasks={cores}, or give it more cores."
        )
    if greedy and tasks == cores:
        less = f"say tasks={cores - 1}, or " if cores > 1 else ""
        raise DefinitionError(
            f"stream {greedy[0].stream!r} goes to {greedy[0].sink.describe()}, which runs jobs of Spark's, and {tasks} resident task{'s' * (tasks > 1)} would "
            f"take all {cores} slot{'s' * (cores > 1)} of this session: {less}give the session another core."
        )
    return tasks


def _check_settings(spark: Any, topology: Topology, planned: Mapping[str, PlannedSource]) -> None:
    """Rows must be the same in both modes, so settings that only Spark's readers follow are refused where they matter."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    for name, one in planned.items():
        source = topology.injectors[name].source
        for column in one.schema:
            if pa.types.is_timestamp(column.type) and (source.has_session_times or column.type.tz is None) and zone not in UTC:
                raise DefinitionError(
                    f"injected stream {name!r}, column {column.name!r}: this session has spark.sql.session.timeZone={zone}, and a resident run reads times in "
                    f"UTC. Set it to UTC, or run without resident=True."
                )
        for setting, values in source.session_settings().items():
            said = spark.conf.get(setting, values[0])
            if said.lower() not in values:
                raise DefinitionError(
                    f"injected stream {name!r}: this session has {setting}={said}, which a resident run does not follow when it reads files. Set it to "
                    f"{values[0]}, or run without resident=True."
                )


def _host(spark: Any) -> tuple[str, bool]:
    """The address where tasks reach the driver, and whether there is more than this host."""
    if spark.sparkContext.master.startswith("local"):
        return "127.0.0.1", False
    host = spark.sparkContext.getConf().get("spark.driver.host", "127.0.0.1")
    address = str(socket.getaddrinfo(host, None)[0][4][0])
    return address, not is_loopback(address)
