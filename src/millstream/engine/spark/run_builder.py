"""Runs whose epochs Millstream plans itself: their readers, what is taken over from Spark's log, and the two ways of running them.

Rule: what cannot work is refused before anything is written, with the way out.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from millstream.core.guards import ALL_GUARDS
from millstream.core.topology import Injector, Topology
from millstream.core.watermark import Declared
from millstream.engine.columns.keying import Keying
from millstream.engine.resident import tls
from millstream.engine.resident.coordinator import Cluster
from millstream.engine.resident.task_compaction import ResidentFolds
from millstream.engine.resident.worker import Setup
from millstream.engine.source_planner import Sources
from millstream.errors import CheckpointError, DefinitionError, MillstreamError
from millstream.network import is_loopback
from millstream.sources.splits import PlannedReader
from millstream.state.manifest import Manifest

from . import keyed_rows, pickling
from .batch_reader import TakeFrames, prototype
from .error_text import reason
from .job_runner import PlannedSparkEpochs
from .resident_job import ResidentJob, SparkResidentEpochs
from .run import PlannedRun, Run
from .session import ARROW, OWN_SESSION, UTC
from .start import Starting, resume

MOST = 128 << 20  # bytes of one epoch, where nobody says how much
ROLL = 5_000  # milliseconds: for how long sinks of files wait in a resident run, if nobody says it


def check_tasks(resident: bool, tasks: int | None) -> None:
    """tasks= is a number, and for resident runs."""
    if tasks is not None and not resident:
        raise DefinitionError("run(tasks=...) is for resident runs: say resident=True, too")
    if tasks is not None and (isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1):
        raise DefinitionError(f"run(tasks={tasks!r}): give a whole number, at least 1")


def check_planned(foreign: Mapping[str, str]) -> None:
    """A resident run reads without Spark."""
    for name, why in foreign.items():
        raise DefinitionError(
            f"injected stream {name!r}: {why}. A resident run reads its sources itself: run without resident=True, or give one of ms.sources "
            f"(a Python data source: ms.sources.data_source)."
        )


class _Planned(msgspec.Struct):
    """The reader of an injector, and its columns: without the one for unreadable rows, whose name is apart."""

    reader: PlannedReader
    schema: Any
    unreadable: str | None


def _readers(asked: Starting) -> dict[str, _Planned]:
    topology = asked.program.topology
    found: dict[str, _Planned] = {}
    try:
        for name, injector in topology.injectors.items():
            found[name] = _reader(injector, topology)
    except BaseException:
        for one in found.values():
            one.reader.close()
        raise
    return found


def _reader(injector: Injector, topology: Topology) -> _Planned:
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
        return _Planned(reader, schema.remove(schema.get_field_index(keyed_rows.UNREADABLE)), keyed_rows.UNREADABLE)
    return _Planned(reader, schema, None)


def arrow_schema(given: Any) -> pa.Schema:
    """The Arrow schema of DDL text, or of a StructType."""
    struct = T.StructType.fromDDL(given) if isinstance(given, str) else given
    return to_arrow_schema(struct, timezone="UTC")


def _begin(asked: Starting, sources: Sources, latest: Manifest | None) -> None:
    """Readers hear what was read so far."""
    if latest is not None and not latest.sources and any(state.records for state in latest.injectors.values()):
        raise CheckpointError(
            f"the epochs of {asked.storage.url} were planned by Spark, and now Millstream is to plan them. It does not know what Spark has read: "
            f"keep a source that only Spark reads, or start with a new checkpoint."
        )
    sources.begin(latest, asked.trigger is None)


def micro_batch_run(asked: Starting) -> Run:
    """A Spark job per epoch."""
    topology, spark = asked.program.topology, asked.spark
    planned = _readers(asked)
    try:
        frames = {name: prototype(spark, _struct(one)) for name, one in planned.items()}
        injectors = topology.injectors
        value_types = [keyed_rows.value_type(injectors[name], frame, topology) for name, frame in frames.items()]
        sources = {name: (one.reader, _struct(one), one.unreadable) for name, one in planned.items()}
        TakeFrames(spark, topology, sources, 1, value_types)  # finds unknown columns before anything is written
        identity, latest = asked.identified()
        place = asked.place(identity, [keyed_rows.value_layout(injectors[name], frame, topology) for name, frame in frames.items()])
        token = asked.log.runs.claim(latest.token if latest is not None else None)
        latest = asked.latest()  # a run that ends may have committed one more before it found the claim
        epochs = PlannedSparkEpochs(asked.program, place, asked.log, latest, token, value_types)
        own = _own_settings(spark)
        epochs.set_session(spark, own)
        epochs.frames = TakeFrames(own, topology, sources, identity.shards, value_types)
        epochs.sources = Sources({name: one.reader for name, one in planned.items()}, asked.storage, token, epochs.guards)
        _begin(asked, epochs.sources, latest)
        resume(epochs)
        every = 0.0 if asked.trigger is None else asked.trigger / 1000
        return PlannedRun(topology, epochs, bounded=asked.trigger is None, drain=asked.drain, every=every, eager=True)
    except BaseException:
        _close(planned, topology)
        raise


def _own_settings(spark: Any) -> Any:
    """A copy of the user's session, with all that was set in it, and with the settings that a query of ours would have (a query has a copy, too)."""
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in ARROW.items():
        if not spark.sparkContext.getConf().contains(name):
            own.conf.set(name, value)
    return own


def _close(planned: Mapping[str, _Planned], topology: Topology) -> None:
    for one in planned.values():
        one.reader.close()
    for injector in topology.injectors.values():
        injector.source.close()


def _struct(one: _Planned) -> T.StructType:
    struct = from_arrow_schema(one.schema)
    return struct if one.unreadable is None else struct.add(one.unreadable, "string")


# --- resident


def resident_run(asked: Starting, tasks: int | None) -> Run:
    """One long Spark job, and epochs over sockets."""
    topology, spark, program = asked.program.topology, asked.spark, asked.program
    seats = _seats(spark, topology, tasks)
    if "://" in asked.storage.url:
        asked.say(f"each epoch makes several requests in a row to {asked.storage.url}: a local disk commits ten times as fast")
    planned = _readers(asked)
    epochs: SparkResidentEpochs | None = None
    try:
        _check_settings(spark, topology, planned)
        for name, one in planned.items():  # what only Spark can do is refused before anything is written
            Keying(program, topology.injectors[name], one.schema, 1, one.unreadable)
        identity, latest = asked.identified()
        keyings = {
            name: Keying(program, topology.injectors[name], one.schema, identity.shards, one.unreadable) for name, one in planned.items()
        }
        place = asked.place(identity, [keying.layout for keying in keyings.values()])
        token = asked.log.runs.claim(latest.token if latest is not None else None)
        latest = asked.latest()
        blob = pickling.dumps(program)
        host, remote = _host(spark)
        certificate, key = tls.made() if remote else (b"", b"")
        cookie = secrets.token_bytes(32)
        job = ResidentJob(spark, token)
        cluster = Cluster(
            seats,
            identity.shards,
            host,
            cookie,
            begin=job.run,
            tls=tls.contexts(certificate, key)[0],
            fold=lambda order: folds.came(order),
            gone=lambda *shards: folds.lost(*shards),
            say=asked.say,
        )
        folds = ResidentFolds(token, cluster.send_fold)
        job.setup = msgspec.msgpack.encode(
            Setup(
                address=cluster.address,
                cookie=cookie,
                seats=seats,
                digest=hashlib.blake2b(blob, digest_size=16).hexdigest(),
                program=blob,
                place=place,
                sources=[(pickling.dumps(one.reader), pickling.dumps(keyings[name])) for name, one in planned.items()],
                certificate=certificate,
                private_key=key,
            )
        )
        _limit(planned, topology)
        epochs = SparkResidentEpochs(program, identity.shards, asked.log, latest, token, None, folds, ALL_GUARDS)
        epochs.spark, epochs.resident_job = spark, job
        epochs.cluster, epochs.keyings, epochs.seats = cluster, keyings, seats
        epochs.pickled = pickling.dumps
        epochs.sources = Sources({name: one.reader for name, one in planned.items()}, asked.storage, token, epochs.guards)
        _begin(asked, epochs.sources, latest)
        asked.say(f"starting {seats} resident task{'s' if seats > 1 else ''}")
        cluster.start()
        resume(epochs)
        every = 0.0 if asked.trigger is None else asked.trigger / 1000
        return PlannedRun(topology, epochs, bounded=asked.trigger is None, drain=asked.drain, every=every, eager=False)
    except BaseException:
        if epochs is not None:
            epochs.close()
        _close(planned, topology)
        raise


def _limit(planned: Mapping[str, _Planned], topology: Topology) -> None:
    """Tasks hold an epoch's input in memory, so it has a limit; but a source that declares its watermark to a callable is read to its end in every epoch:
    what it says speaks of all that it had delivered."""
    for name, one in planned.items():
        watermark = topology.injectors[name].watermark
        if not isinstance(watermark, Declared) or watermark.function is None:
            one.reader.most = MOST


def _seats(spark: Any, topology: Topology, tasks: int | None) -> int:
    """How many tasks there are. Each holds a slot for as long as the run lasts."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.speculation", "false").lower() == "true":
        raise DefinitionError(
            "this session has spark.speculation=true: Spark would start a second copy of a resident task that seems slow, and each copy would take the seat "
            "from the other. Set it to false, or run without resident=True."
        )
    slots = max(1, spark.sparkContext.defaultParallelism // int(conf.get("spark.task.cpus", "1")))
    greedy = [emission for emission in topology.emissions if emission.sink.needs_spark]
    spare = 1 if greedy or conf.get(OWN_SESSION, "") else 0
    if tasks is None:
        tasks = max(1, slots - spare)
    if not spark.sparkContext.master.startswith("local"):
        return tasks  # executors may still come
    if tasks > slots:
        raise DefinitionError(
            f"{tasks} resident tasks need {tasks} slots, and this session has {slots} ({spark.sparkContext.master}): say tasks={slots}, or give it more cores."
        )
    if greedy and tasks == slots:
        raise DefinitionError(
            f"stream {greedy[0].stream!r} goes to {greedy[0].sink.describe()}, which runs jobs of Spark's, and {tasks} resident tasks take all {slots} slots "
            f"of this session: say tasks={slots - 1}, or give the session another core."
            if slots > 1
            else f"stream {greedy[0].stream!r} goes to {greedy[0].sink.describe()}, which runs jobs of Spark's, and this session has one slot, which a "
            f"resident task takes: give the session another core."
        )
    return tasks


def _check_settings(spark: Any, topology: Topology, planned: Mapping[str, _Planned]) -> None:
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
