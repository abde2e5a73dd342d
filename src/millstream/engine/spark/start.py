"""From `pipeline.run` to a run that can be started: checks, sources, the streaming query."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.core.keys import check_shards
from millstream.core.time import Duration, duration
from millstream.core.topology import Injector, Topology
from millstream.engine.epochs import Epochs, Stopped
from millstream.engine.evolution import reconciled
from millstream.engine.program import Compiled, Program, check
from millstream.errors import CheckpointError, DefinitionError, MillstreamError
from millstream.state.cache_cleanup import remove_idle
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.state_cache import state_caches_folder
from millstream.state.storage import LocalStorage, open_storage

from . import keyed_rows, pickling, run_builder
from .error_text import reason
from .job_runner import SparkJobRunner
from .jvm import warm_up
from .run import QueryRun, Run
from .run_builder import Starting
from .session import ARROW, hush, local_session, unsuitable
from .spark_folder import spark_folder
from .spark_planner import SourceFiles, SparkOffsets, SparkPlanner

LITTLE = 32 << 20  # bytes of files
_TRIGGER = 500  # milliseconds
DISTURBANCE = 60.0  # seconds: for so long a run that has just been replaced may still be at Spark's log


def start(
    program: Program,
    *,
    spark: Any,
    checkpoint: str,
    trigger: Duration | None,
    available_now: bool,
    drain: bool,
    shards: int | None,
    spark_checkpoint: str | None,
    storage_options: dict[str, Any] | None,
    drop: Sequence[str],
    resident: bool,
    tasks: int | None,
    say: Callable[[str], None],
) -> Run:
    """Checks all that can be checked, and makes a run that can be started. spark: a session, or what makes one, or None for one of our own. say: tells
    somebody who waits what is going on."""
    topology = program.topology
    if shards is not None:
        check_shards(shards)
    if tasks is not None and not resident:
        raise DefinitionError("run(tasks=...) is for resident runs: say resident=True, too")
    if tasks is not None and (isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1):
        raise DefinitionError(f"run(tasks={tasks!r}): give a whole number, at least 1")
    millis = None if available_now else duration(trigger) if trigger is not None else 0 if resident else _TRIGGER
    storage = open_storage(checkpoint, storage_options)
    if isinstance(storage, LocalStorage):
        storage.check()
    _check_pickles(program)
    check(Compiled(program))
    foreign = {name: why for name, injector in topology.injectors.items() if (why := injector.source.unplanned()) is not None}
    for name, why in foreign.items() if resident else ():
        raise DefinitionError(
            f"injected stream {name!r}: {why}. A resident run reads its sources itself: run without resident=True, or give one of ms.sources "
            f"(a Python data source: ms.sources.data_source)."
        )
    for emission in topology.emissions:
        emission.sink.by_default(run_builder.ROLL if resident else 0)  # the same pipeline may have been run in the other mode before
    log = ManifestLog(storage)
    if log.check_identity(program.name, shards, list(topology.injectors)) is not None and (found := log.latest()) is not None:
        reconciled(found, program, drop)  # what the checkpoint refuses is refused before Spark is started
    warm, is_default, is_ours = None, spark is None, spark is None or (callable(spark) and not isinstance(spark, type))
    if is_ours:
        say("starting Spark, which takes some seconds")
        if spark is not None:
            spark = spark()
        else:
            spark = local_session(program.name, short=millis is None and _is_little(topology), resident=resident)
            warm = None if resident else warm_up(spark)
    try:
        if not hasattr(spark, "_jsparkSession"):
            raise DefinitionError("Millstream needs a classic Spark session (not Spark Connect): it runs foreachBatch on the driver")
        hush(spark, at_length=not is_ours and not resident)
        if not is_default:
            for said in unsuitable(spark):
                say(f"this Spark session has {said}")
        say(f"reading {', '.join(injector.source.describe() for injector in topology.injectors.values())}; checkpoint {storage.url}")
        folder = str(spark_checkpoint or (storage.root / "spark" if isinstance(storage, LocalStorage) else ""))
        if not folder and foreign:  # nobody else asks for it
            folder = spark_folder(storage.url, storage_options)
        asked = Starting(
            program=program,
            spark=spark,
            storage=storage,
            log=log,
            spark_folder=folder,
            storage_options=storage_options,
            trigger=millis,
            drain=drain,
            shards=shards,
            drop=drop,
            say=say,
        )
        remove_idle(state_caches_folder())
        for injector in topology.injectors.values():
            _check_source(injector, topology, offsets=not foreign or "://" not in asked.spark_folder)
        if resident:
            return run_builder.resident_run(asked, tasks)
        run = run_builder.micro_batch_run(asked) if not foreign else _query_run(asked)
    except BaseException:
        if warm is not None:
            warm()
        raise
    if warm is not None:
        run.beside.append(warm)
    return run


def _query_run(asked: Starting) -> Run:
    """A run whose epochs Spark plans: some source can only be read by Spark."""
    topology, spark = asked.program.topology, asked.spark
    sources = [_load(injector, spark, topology) for injector in topology.injectors.values()]
    pairs = list(zip(topology.injectors.values(), sources, strict=True))
    value_types = [keyed_rows.value_type(injector, source, topology) for injector, source in pairs]
    _frame(spark, asked.program, sources, value_types, 1)  # finds unknown columns before anything is written
    place, latest = asked.identify([keyed_rows.value_layout(injector, source, topology) for injector, source in pairs])
    _check_never_planned(latest, asked)
    offsets = SparkOffsets(None if "://" in asked.spark_folder else os.path.join(asked.spark_folder, "offsets"), list(topology.injectors))
    _check_offsets(offsets, latest, asked.spark_folder, asked.storage.url)
    files = _source_files(topology.injectors.values(), asked.spark_folder)
    recent = asked.log.runs.last_claim()
    token, latest = asked.claim(latest)
    planner = SparkPlanner(offsets, topology.injectors, files)
    runner = SparkJobRunner(run_builder.own_session(spark), asked.program, place, value_types)
    epochs = asked.epochs(place, latest, token, runner, planner)
    frame = _frame(spark, asked.program, sources, value_types, place.shards)
    epochs.resume()
    writer = frame.writeStream.foreachBatch(_function(epochs, planner)).option("checkpointLocation", asked.spark_folder)
    writer = writer.trigger(availableNow=True) if asked.trigger is None else writer.trigger(processingTime=f"{asked.trigger} milliseconds")
    return QueryRun(
        topology,
        epochs,
        lambda: _start_query(spark, writer),
        bounded=asked.trigger is None,
        drain=asked.drain,
        disturbed_until=time.monotonic() + (DISTURBANCE if recent is not None and time.time() - recent.began < DISTURBANCE else 0.0),
    )


def _check_never_planned(latest: Manifest | None, asked: Starting) -> None:
    """Where Millstream has planned the sources, Spark's log does not know how far they are read."""
    if latest is not None and latest.sources:
        names = [name for name, injector in asked.program.topology.injectors.items() if injector.source.unplanned() is not None]
        raise CheckpointError(
            f"{asked.storage.url} was read by Millstream's own planner so far, and now Spark is to read injected stream {names[0]!r}: Spark does not know how "
            f"far the streams were read. Leave the source as it was, or start with a new checkpoint."
        )


def _is_little(topology: Topology) -> bool:
    """Whether all there is to read is so little that starting Spark takes longer."""
    sizes = [injector.source.size() for injector in topology.injectors.values()]
    return all(size is not None and size < LITTLE for size in sizes)


def _source_files(injectors: Iterable[Injector], spark_folder: str) -> dict[str, SourceFiles]:
    """For injectors whose watermark is that of the oldest file not yet read."""
    found = {}
    for at, injector in enumerate(injectors):
        if injector.watermark.wants_files:
            path = getattr(injector.source, "path", None)
            if not injector.source.reads_files or path is None or "://" in path or "://" in spark_folder or not os.path.isdir(path):
                raise DefinitionError(
                    f"injected stream {injector.name!r}: watermarks.files needs ms.sources.files with a local directory, and a local checkpoint"
                )
            found[injector.name] = SourceFiles(path, os.path.join(spark_folder, "sources", str(at)))
    return found


def _check_offsets(offsets: SparkOffsets, latest: Manifest | None, folder: str, url: str) -> None:
    """Spark's offsets and the manifests must have the same past."""
    lost = latest is not None and offsets.behind(max(0, latest.last_batch))
    alone = latest is None and (offsets.newest() or 0) > 0
    if lost or alone:
        which = f"{url} has manifests up to epoch {latest.epoch}" if latest else f"{url} has no manifest"
        raise CheckpointError(
            f"{which}, but Spark's own checkpoint in {folder} ends at {offsets.newest()}. They do not belong together: "
            f"restore both from the same copy, or start with a new checkpoint."
        )


def _check_pickles(program: Program) -> None:
    """Finds the part of a pipeline that cannot travel to the workers."""
    try:
        pickling.dumps(program)
        return
    except Exception as error:
        whole = error
    suspects: list[tuple[str, Any]] = []
    for spec in program.topology.computations:
        suspects.append((f"computation {spec.name!r}", spec.factory))
        suspects += [(f"computation {spec.name!r}, key of stream {i.stream!r}", i.key) for i in spec.inputs]
        suspects.append((f"computation {spec.name!r}, codec", spec.codec))
    suspects += [(f"sink of stream {e.stream!r}", e.sink) for e in program.topology.emissions]
    for what, value in suspects:
        if hasattr(value, "_jc"):
            continue
        try:
            pickling.dumps(value)
        except Exception as error:
            raise DefinitionError(
                f"{what} cannot be sent to the workers: {type(error).__name__}: {error}. Open files, locks and sessions inside a hook, not outside."
            ) from error
    raise DefinitionError(f"the pipeline cannot be sent to the workers: {whole}") from whole


def _check_source(injector: Injector, topology: Topology, offsets: bool) -> None:
    """What a source can say no to before anything is written; and what would stop the pipeline, so that the source can refuse it where it comes in.
    Consumers with dead letters take everything."""
    try:
        injector.source.check(offsets=offsets)
    except DefinitionError as error:
        raise DefinitionError(f"injected stream {injector.name!r}: {error}") from error
    strict = [route for route in topology.routes if route.stream == injector.name and not topology.takes_rejected(route.computation)]
    injector.source.require(
        key="key"
        in [one for route in strict for one in (route.key if isinstance(route.key, tuple) else (route.key,)) if isinstance(one, str)],
        time=bool(strict) and isinstance(injector.timestamp, str) and injector.timestamp == "event_time",
    )


def _load(injector: Injector, spark: Any, topology: Topology) -> DataFrame:
    name, source = injector.name, injector.source
    forgiving = any(topology.takes_rejected(r.computation) for r in topology.routes if r.stream == name)
    try:
        frame = source.load(spark, keyed_rows.UNREADABLE if forgiving else None)
    except MillstreamError:
        raise
    except Exception as error:
        missing = "PATH_NOT_FOUND" in str(error) or "Path does not exist" in str(error)
        nothing = f"there is nothing at {getattr(source, 'path', 'its place')}. Make the directory, or correct the path"
        raise DefinitionError(f"injected stream {name!r}: Spark cannot open its source: {nothing if missing else reason(error)}") from error
    if not getattr(frame, "isStreaming", False):
        raise DefinitionError(
            f"injected stream {name!r}: its source gave a {type(frame).__name__} that is not a streaming one. Use spark.readStream."
        )
    return frame


def _frame(spark: Any, program: Program, sources: list[DataFrame], value_types: list[T.DataType], shards: int) -> DataFrame:
    """All injectors in one DataFrame, and a source that has something new at every trigger, so that time passes when input does not."""
    frames = [
        keyed_rows.KeyedColumns(injector, at, sources[at], program.topology, shards, value_types).of(sources[at])
        for at, injector in enumerate(program.topology.injectors.values())
    ]
    tick = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    empty = tick.filter(F.lit(False)).select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in frames[0].schema.fields])
    return reduce(DataFrame.union, [*frames, empty])


def _start_query(spark: Any, writer: Any) -> Any:
    """Starts the query with settings of its own, also in a user's session; a query copies the settings at its start. One lets Spark leave the ticking
    source's empty branch out of its plans; the others are those of `session.ARROW`, unless the session says otherwise."""
    wanted = {"spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true"}
    wanted |= {name: value for name, value in ARROW.items() if not spark.sparkContext.getConf().contains(name)}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        return writer.start()
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _function(epochs: Epochs[DataFrame], planner: SparkPlanner) -> Callable[[DataFrame, int], None]:
    """What Spark's foreachBatch calls. An error is kept for the handle, because Spark would only pass on its text."""

    def each(batch: DataFrame, number: int) -> None:
        with epochs.lock:
            if epochs.stopping.is_set():
                raise Stopped("the pipeline is being stopped; this epoch runs at the next start")
            try:
                epochs.run(batch, planner.reading(number))
            except BaseException as error:
                epochs.error = error
                raise

    return each
