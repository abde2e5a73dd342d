"""One job in several ways: count per key and event-time second, told when the second is complete.

millstream: per-record hooks, a timer per bucket. tws: Spark's transformWithState (Python, Row API, RocksDB). sql: Spark's own window count, in
the JVM alone. floor: Millstream's plan with an identity function in place of the step. A name that begins with `millstream-` is a variant of
Millstream's way: its output is checked like Millstream's, and it is compared with it.

Rules
1. Every way reads the same files at the same pace, one an epoch, and returns its epochs (measure.py): as Spark's own progress tells them, and where Millstream
   plans, as Millstream does.
2. A new way is a function with a line in `WAYS`. It runs with `make bench`, and its name can be given to `--only`.
3. What this module uses of Millstream when it is imported, and in the way `millstream`, exists in every version: `python -m benchmarks.compare`
   runs it with older ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

import millstream as ms
from benchmarks.measure import Epoch, progress

SCHEMA = "term string, at long, id string"


class BucketCounter(ms.Computation):
    """Records per key and second."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % 1000
        self.state[second] = self.state.get(second, 0) + 1
        self.set_timer("second", second + 1000)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time - 1000), timestamp=timer.time)


def session(shuffle: int = 2) -> Any:
    """One session for all ways. Says which Millstream is measured: an installed one may not be the one that is meant."""
    from millstream.engine.spark.session import local_session

    print(f"starting Spark; Millstream is that of {Path(ms.__file__).parent}", flush=True)
    spark = local_session("bench")
    spark.conf.set("spark.sql.shuffle.partitions", str(shuffle))
    return spark


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def pipeline(source: Any, output: Path, id: str | None = None, delay: str = "2s", dedup: str | None = None) -> ms.Pipeline:
    """The job as a Millstream user writes it. Without deduplication unless asked for, because the other ways have none."""
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id=id, watermark=ms.watermarks.bounded(delay), dedup=dedup)
    counts = p.compute(BucketCounter, queries, key="term", produces="counts")
    p.emit(counts, ms.sinks.files(output))
    return p


def epochs_of(handle: Any) -> list[Epoch]:
    """The epochs of a run that had input: as Millstream tells them, or, of an older version that let Spark plan, as Spark does."""
    query = handle.query if hasattr(handle, "query") else handle._query
    if query is not None:
        return progress(query)
    return [Epoch(one["records"], one["millis"] / 1000, (one["at"] - one["millis"]) / 1000) for one in handle.epochs() if one["records"]]


def millstream(spark: Any, data: Path, work: Path, dedup: str | None = None, **options: Any) -> list[Epoch]:
    """The job as it is."""
    source = ms.sources.files(data, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    job = pipeline(source, work / "counts", id="id", dedup=dedup)
    handle = job.run(spark, checkpoint=work / "checkpoint", available_now=True, **options)
    handle.await_termination()
    return epochs_of(handle)


def millstream_resident(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """On resident tasks."""
    return millstream(spark, data, work, resident=True)


def millstream_resident_dedup(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """The same, deduplicating."""
    return millstream(spark, data, work, "10m", resident=True)


def millstream_dedup(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """With deduplication, as Millstream has it when nothing is said."""
    return millstream(spark, data, work, "10m")


def operator_pipeline(source: Any, output: Path, dedup: str | None = None) -> ms.Pipeline:
    """The job in one line of operators."""
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=dedup)
    p.emit(queries.by("term").window(ms.windows.tumbling("1s")).reduce(ms.count(), name="counts"), ms.sinks.files(output))
    return p


def operator(spark: Any, data: Path, work: Path, dedup: str | None = None, **options: Any) -> list[Epoch]:
    """By the window operator, in micro-batches."""
    source = ms.sources.files(data, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    handle = operator_pipeline(source, work / "counts", dedup).run(spark, checkpoint=work / "checkpoint", available_now=True, **options)
    handle.await_termination()
    return epochs_of(handle)


def operator_resident(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """The same, on resident tasks."""
    return operator(spark, data, work, resident=True)


def operator_resident_dedup(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """The same, deduplicating."""
    return operator(spark, data, work, "10m", resident=True)


def _reader(spark: Any, data: Path) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))


def floor(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """The same plan (key, shard, shuffle, Arrow, receipts to the driver) with nothing done in the task."""
    from millstream.engine.spark.start import _frame

    source = ms.sources.files(data, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    program = pipeline(source, work / "counts", id="id").program()
    loaded = source.load(spark)
    from millstream.engine.spark import keyed_rows

    types = [keyed_rows.value_type(i, loaded, program.topology) for i in program.topology.injectors.values()]
    frame = _frame(spark, program, [loaded], types, 2)

    def identity(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        count = 0
        for batch in batches:
            count += batch.num_rows
        yield pa.record_batch([pa.array([str(count).encode()], pa.binary())], names=["body"])

    def each(batch: Any, epoch: int) -> None:
        batch.repartitionById(2, "part").mapInArrow(identity, "body binary").toArrow()

    spark.conf.set("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan", "true")  # as Millstream does for its query
    query = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    spark.conf.unset("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan")
    query.awaitTermination()
    return progress(query)


def sql(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """Spark's own window count."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    frame = (
        _reader(spark, data)
        .withColumn("ts", F.timestamp_millis("at"))
        .withWatermark("ts", "2 seconds")
        .groupBy("term", F.window("ts", "1 second"))
        .count()
        .select(F.col("term").alias("key"), F.unix_millis("window.end").alias("timestamp"), F.col("count").alias("value"))
    )
    return _to_the_end(frame, work)


def _to_the_end(frame: Any, work: Path) -> list[Epoch]:
    writer = frame.writeStream.outputMode("append").format("json").option("path", str(work / "counts"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return progress(query)


def tws(spark: Any, data: Path, work: Path) -> list[Epoch]:
    """transformWithState, Row API, RocksDB: a map state of buckets, an event-time timer per bucket."""
    frame = tws_frame(_reader(spark, data), spark)
    return _to_the_end(frame, work)


def tws_frame(source: Any, spark: Any, delay: str = "2 seconds") -> Any:
    """The job on transformWithState, over any streaming source with term and at."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )

    class Counter(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.buckets = handle.getMapState(
                "buckets", T.StructType([T.StructField("second", T.LongType())]), T.StructType([T.StructField("count", T.LongType())])
            )

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            counts: dict[int, int] = {}
            for row in rows:
                second = row.at - row.at % 1000
                counts[second] = counts.get(second, 0) + 1
            for second, count in counts.items():
                if self.buckets.containsKey((second,)):
                    count += self.buckets.getValue((second,))[0]
                else:
                    self.handle.registerTimer(second + 1000)
                self.buckets.updateValue((second,), (count,))
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            end = expiredTimerInfo.getExpiryTimeInMs()
            count = self.buckets.getValue((end - 1000,))[0]
            self.buckets.removeKey((end - 1000,))
            yield Row(key=key[0], timestamp=end, value=count)

        def close(self) -> None:
            pass

    return (
        source.withColumn("ts", F.timestamp_millis("at"))
        .withWatermark("ts", delay)
        .groupBy("term")
        .transformWithState(
            statefulProcessor=Counter(),
            outputStructType="key string, timestamp long, value long",
            outputMode="append",
            timeMode="eventTime",
        )
    )


WAYS: dict[str, Callable[[Any, Path, Path], list[Epoch]]] = {
    "sql": sql,
    "millstream": millstream,
    "millstream-dedup": millstream_dedup,
    "millstream-resident": millstream_resident,
    "millstream-resident-dedup": millstream_resident_dedup,
    "millstream-operator": operator,
    "millstream-operator-resident": operator_resident,
    "millstream-operator-resident-dedup": operator_resident_dedup,
    "floor": floor,
    "tws": tws,
}
