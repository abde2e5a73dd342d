"""From a client's push to the published row, in several ways: a count per key, told with every record, over the connector's intake.

    resident     resident tasks, one computation; published as soon as it is committed (roll=0)
    two-weak     the same with a second computation behind a weak edge
    micro        micro-batches without a pause between them
    tws          Python's transformWithState over the same intake, into Spark's file sink
    real-time    Spark's real-time mode with transformWithState in the JVM (realtime/RealTime.java), from memory to memory: nothing is durable, and nothing is
                 committed per record. Needs javac

Rules
1. The client is a process of its own and stamps each message when it is sent. A row is published when its file has its name: the time of the last change of
   the file's inode.
2. Every way has the same client, the same rate and the same warm-up; what was sent in the warm-up does not count. All rows must be there, once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream as ms
from benchmarks.cpu import Cpu, Meter

KEYS = 500


@dataclass(frozen=True)
class Pushed:
    """What one way gave: milliseconds from push to publication, and CPU-seconds per million records."""

    p50: float
    p99: float
    longest: float
    rows: int
    cpu: Cpu
    epochs: float  # that published rows, a second

    def line(self, name: str) -> str:
        """For a person who waits."""
        return (
            f"{name:14s} push to published: p50 {self.p50:8.1f} ms   p99 {self.p99:8.1f} ms   longest {self.longest:8.1f} ms   "
            f"({self.rows:,} rows; {self.epochs:.1f} epochs/s; CPU-s per million {self.cpu})"
        )


class Count(ms.Computation):
    """Counts, and says it with every record."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce([self.state, record.value["payload"].decode()])


class Again(ms.Computation):
    """The same once more, behind an edge."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce([self.state, record.value[1]])


def turned(record: ms.Record) -> str:
    """A key of its own, so that the row goes to another shard."""
    return str(record.key)[::-1]


def pipeline(work: Path, levels: int) -> tuple[ms.Pipeline, Any]:
    """The job, and its source."""
    p = ms.Pipeline("pushed")
    source = ms.sources.connector(dir=work / "intake", listen="127.0.0.1:0")
    stream = p.inject("in", source, timestamp="event_time", id="record_id", watermark=ms.watermarks.bounded("1s"))
    counts = p.compute(Count, stream, name="count", produces="counts", key="key")
    if levels == 2:
        counts = p.compute(Again, counts, name="again", produces="more", key=turned)
    p.emit(counts, ms.sinks.files(work / "out", roll=0))
    return p, source


def _millstream(spark: Any, work: Path, load: Callable[[str], None], levels: int = 1, **options: Any) -> None:
    p, source = pipeline(work, levels)
    handle = p.run(spark, checkpoint=work / "checkpoint", shards=2, quiet=True, **options)
    try:
        load(source.address)
    finally:
        handle.stop()


def resident(spark: Any, work: Path, load: Callable[[str], None]) -> None:
    _millstream(spark, work, load, resident=True)


def two_weak(spark: Any, work: Path, load: Callable[[str], None]) -> None:
    _millstream(spark, work, load, levels=2, resident=True)


def micro(spark: Any, work: Path, load: Callable[[str], None]) -> None:
    _millstream(spark, work, load, trigger="1ms")


def tws(spark: Any, work: Path, load: Callable[[str], None]) -> None:
    """transformWithState: a value state per key, a row per record."""
    from pyspark.sql import Row
    from pyspark.sql import types as T
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    from millstream.engine.spark import intake_source

    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )

    class Counter(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", T.StructType([T.StructField("n", T.LongType())]))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            n = self.count.get()[0] if self.count.exists() else 0
            for row in rows:
                n += 1
                yield Row(key=key[0], n=n, sent=bytes(row.payload).decode())
            self.count.update((n,))

        def close(self) -> None:
            pass

    source = ms.sources.connector(dir=work / "intake", listen="127.0.0.1:0")
    source.start()
    stream = intake_source.load(spark, source.folder, partitions=2, messages=None, size=None)
    query = (
        stream.groupBy("key")
        .transformWithState(
            statefulProcessor=Counter(), outputStructType="key string, n long, sent string", outputMode="append", timeMode="none"
        )
        .writeStream.outputMode("append")
        .format("json")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        load(source.address)
        query.processAllAvailable()
    finally:
        query.stop()
        source.close()


WAYS: dict[str, Callable[[Any, Path, Callable[[str], None]], None]] = {
    "resident": resident,
    "two-weak": two_weak,
    "micro": micro,
    "tws": tws,
}


def real_time(work: Path, rate: int, warm_up: float, seconds: float) -> dict[str, float] | None:
    """Milliseconds of Spark's real-time mode; None where there is no compiler for Java."""
    import pyspark

    compiler, archiver, home = shutil.which("javac"), shutil.which("jar"), Path(pyspark.__file__).parent
    if compiler is None or archiver is None:
        return None
    source = Path(__file__).parent / "realtime" / "RealTime.java"
    subprocess.run([compiler, "-nowarn", "-cp", f"{home}/jars/*", "-d", str(work / "classes"), str(source)], check=True)
    subprocess.run([archiver, "cf", str(work / "realtime.jar"), "-C", str(work / "classes"), "."], check=True)
    command = [str(home / "bin" / "spark-submit"), "--master", "local[6]", "--class", "RealTime", "--conf", "spark.ui.enabled=false"]
    arguments = [str(rate), str(int(warm_up)), str(int(seconds)), str(KEYS), str(work / "checkpoint")]
    environment = {**os.environ, "SPARK_HOME": str(home)}
    done = subprocess.run([*command, str(work / "realtime.jar"), *arguments], env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    found: dict[str, float] = json.loads(lines[-1])
    return found


def push(address: str, rate: int, seconds: float) -> None:
    """The client: so many messages a second, each stamped when it is sent."""
    from millstream.connector.source.push import PushClient

    with PushClient(address, patience=None) as client:
        client.notify("s")
        began, sent = time.time(), 0
        while time.time() - began < seconds:
            due = int((time.time() - began) * rate)
            while sent < due:
                sent += 1
                now = time.time()
                client.send("s", sent, repr(now).encode(), event_time=int(now * 1000), key=f"key-{sent % KEYS}")
            time.sleep(min(0.002, 0.5 / rate))
        time.sleep(1.0)  # what is on the way arrives; a way without acknowledgements is not waited for


def measure(spark: Any, meter: Meter, name: str, work: Path, rate: int, warm_up: float, seconds: float) -> Pushed:
    """Runs a way, and looks at what it has published."""
    spans: list[float] = []

    def load(address: str) -> None:
        client = multiprocessing.get_context("spawn").Process(target=push, args=(address, rate, warm_up + seconds), daemon=True)
        client.start()
        spans.append(time.time() + warm_up)
        client.join()
        deadline = time.time() + 60
        while time.time() < deadline and _rows(work) < int((warm_up + seconds) * rate * 0.98):
            time.sleep(0.2)
        spans.append(time.time())

    WAYS[name](spark, work, load)
    found, seen, published_at = [], Counter[str](), set[int]()
    for path in (work / "out").glob("*.json*"):
        published = path.stat().st_ctime
        if spans[0] < published < spans[0] + seconds:
            published_at.add(round(published * 100))  # the shards of an epoch are published together
        for line in path.read_text().splitlines():
            row = json.loads(line)
            sent = row["sent"] if "sent" in row else row["value"][1]
            seen[sent] += 1
            if float(sent) > spans[0]:
                found.append((published - float(sent)) * 1000)
    assert found and max(seen.values()) == 1, f"{name}: {len(found)} rows, {sum(seen.values()) - len(seen)} doubled"
    found.sort()
    cpu = meter.between(spans[0], spans[0] + seconds) * (1e6 / (rate * seconds))
    return Pushed(statistics.median(found), found[int(len(found) * 0.99)], found[-1], sum(seen.values()), cpu, len(published_at) / seconds)


def _rows(work: Path) -> int:
    return sum(path.read_text().count("\n") for path in (work / "out").glob("*.json*"))
