"""Latency, in two parts.

push      from a client's push to the published row, at 1,000 and at 50 records/s: resident, with one and with two levels, micro-batches, and Python's
          transformWithState over the same intake; at 50 records/s Spark's real-time mode in the JVM, too (push_ways.py)
windows   at 1,000 records/s in small files: from the end of a window to its row in the sink, against transformWithState; and the time of an epoch against the
          bare minimum, a foreachBatch with one shuffle and an identity function. Every way reads the same kind of feed for the same time, with the same trigger
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import millstream as ms
from benchmarks import cpu, jobs, push_ways

TRIGGER, SPARK_TRIGGER = "100ms", "100 milliseconds"


class Feeder(threading.Thread):
    """Writes `rate` records a second, stamped with the time of writing."""

    def __init__(self, folder: Path, rate: int, keys: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.rate, self.keys, self.seconds = folder, rate, keys, seconds
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        random = np.random.default_rng(3)
        weights = 1.0 / np.arange(1, self.keys + 1)
        weights /= weights.sum()
        began, number, index = time.time(), 0, 0
        while time.time() - began < self.seconds:
            due = int((time.time() - began) * self.rate)
            count = due - number
            terms = random.choice(self.keys, size=count, p=weights).tolist()
            now = int(time.time() * 1000)
            lines = [json.dumps({"term": f"term-{t:05d}", "at": now, "id": str(number + i)}) for i, t in enumerate(terms)]
            number += count
            hidden = self.folder / f".{index:06d}"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self.folder / f"{index:06d}.json")
            index += 1
            time.sleep(max(0.0, 0.1 - (time.time() * 1000 - now) / 1000))


def latencies(folder: Path, pattern: str, skip: float, began: float) -> list[float]:
    """Milliseconds from the end of a window to the file that holds its row, without the warm-up."""
    found = []
    for path in folder.glob(pattern):
        written = path.stat().st_mtime
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row["timestamp"] / 1000 > began + skip:
                found.append(written * 1000 - row["timestamp"])
    return sorted(found)


def _times(query: Any, skip: float, began: float) -> list[float]:
    import datetime

    found = []
    for progress in query.recentProgress:
        p = json.loads(progress.json)
        at = datetime.datetime.fromisoformat(p["timestamp"].replace("Z", "+00:00")).timestamp()
        if p["numInputRows"] > 1 and at > began + skip:
            found.append(p["durationMs"]["triggerExecution"])
    return found


def quantiles(values: list[float]) -> tuple[float, float]:
    """p50 and p95."""
    return statistics.median(values), values[int(len(values) * 0.95)]


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the part windows (60)")
    parser.add_argument("--push-seconds", type=float, default=15, help="of each way of the part push, behind its warm-up (15)")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds before those (15)")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--only", default="push,windows", help="parts (push,windows)")
    parser.add_argument("--ways", default=",".join(push_ways.WAYS), help=f"ways of the part push ({','.join(push_ways.WAYS)})")
    options = parser.parse_args()
    spark = jobs.session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "2000")
    result: dict[str, float] = {}
    if "push" in options.only.split(","):
        result.update(pushed(spark, options))
    if "windows" in options.only.split(","):
        result.update(windows(spark, options))
    print(json.dumps(result))
    return result


def pushed(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """From push to publication."""
    found: dict[str, push_ways.Pushed] = {}
    with tempfile.TemporaryDirectory() as temporary, cpu.meter(spark) as meter:
        plan = [(name, options.rate) for name in options.ways.split(",")] + ([("resident", 50)] if "resident" in options.ways else [])
        for name, rate in plan:
            label = name if rate == options.rate else f"{name} at {rate}/s"
            print(f"{label}: {rate:,} messages/s for {options.warm_up + options.push_seconds:.0f} s", flush=True)
            work = jobs.fresh(Path(temporary) / label.replace(" ", "-").replace("/", "-"))
            found[label] = push_ways.measure(spark, meter, name, work, rate, options.warm_up, options.push_seconds)
            print(found[label].line(label), flush=True)
        jvm = None
        if "resident" in options.ways:
            print("real-time mode: 50 messages/s", flush=True)
            jvm = push_ways.real_time(jobs.fresh(Path(temporary) / "real-time"), 50, options.warm_up, options.push_seconds)
            print(f"real-time mode at 50/s, in the JVM, memory to memory: {jvm or 'not measured: there is no javac'}", flush=True)
    result: dict[str, float] = {}
    base = found.get("resident")
    for name in ("micro", "tws"):
        if base is not None and name in found:
            result[f"push_resident_vs_{name}_p50"] = round(base.p50 / found[name].p50, 4)
            result[f"push_resident_vs_{name}_p99"] = round(base.p99 / found[name].p99, 4)
            result[f"push_cpu_resident_vs_{name}"] = round(base.cpu.total / found[name].cpu.total, 3)
    if base is not None and "two-weak" in found:
        result["push_two_levels_vs_one_p50"] = round(found["two-weak"].p50 / base.p50, 2)
    slow = found.get("resident at 50/s")
    if jvm is not None and slow is not None:
        result["push_resident_vs_real_time_p50"] = round(slow.p50 / jvm["p50"], 3)
        result["push_resident_vs_real_time_p99"] = round(slow.p99 / jvm["p99"], 3)
    for name, one in found.items():
        result[f"push_{name.replace(' ', '_').replace('/', '_')}_p50_ms"] = round(one.p50, 1)
        result[f"push_{name.replace(' ', '_').replace('/', '_')}_p99_ms"] = round(one.p99, 1)
    return result


def windows(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """From the end of a window to its row."""
    skip = options.seconds / 3
    results: dict[str, tuple[float, float]] = {}
    epochs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)

        def feed(name: str) -> tuple[Path, Feeder, float]:
            print(f"{name}: {options.rate:,} records/s for {options.seconds:.0f} s", flush=True)
            feeder = Feeder(root / name / "in", options.rate, options.keys, options.seconds)
            feeder.start()
            return root / name / "in", feeder, time.time()

        folder, feeder, began = feed("millstream")
        source = ms.sources.files(folder, schema=jobs.SCHEMA, format="json")
        p = jobs.pipeline(source, root / "millstream" / "counts", delay="0s")
        handle = p.run(spark, checkpoint=root / "millstream" / "checkpoint", trigger=TRIGGER)
        feeder.join()
        time.sleep(3)
        handle.stop()
        results["millstream"] = quantiles(latencies(root / "millstream" / "counts", "*.jsonl", skip, began))
        epochs["millstream"] = statistics.median(epoch.seconds * 1000 for epoch in jobs.epochs_of(handle) if epoch.began > began + skip)

        folder, feeder, began = feed("bare")
        query = bare(spark, folder, root / "bare")
        feeder.join()
        query.stop()
        epochs["bare"] = statistics.median(_times(query, skip, began))

        folder, feeder, began = feed("tws")
        stream = spark.readStream.schema(jobs.SCHEMA).json(str(folder))
        query = (
            jobs.tws_frame(stream, spark, "0 seconds")
            .writeStream.outputMode("append")
            .format("json")
            .option("path", str(root / "tws" / "counts"))
            .option("checkpointLocation", str(root / "tws" / "checkpoint"))
            .trigger(processingTime=SPARK_TRIGGER)
            .start()
        )
        feeder.join()
        time.sleep(10)
        query.stop()
        results["tws"] = quantiles(latencies(root / "tws" / "counts", "*.json", skip, began))
    for name, (p50, p95) in results.items():
        print(f"{name:11s} window end to sink: p50 {p50:8.0f} ms   p95 {p95:8.0f} ms")
    for name, millis in epochs.items():
        print(f"{name:11s} epoch, median: {millis:6.0f} ms")
    return {
        "latency_p50_vs_tws": round(results["millstream"][0] / results["tws"][0], 2),
        "epoch_vs_bare": round(epochs["millstream"] / epochs["bare"], 2),
    }


def bare(spark: Any, folder: Path, work: Path, ahead: bool = False) -> Any:
    """The least that a foreachBatch with one shuffle through Python costs. ahead: with a pass over the input before it, for the newest timestamp."""

    def identity(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    def each(batch: Any, epoch: int) -> None:
        if ahead:
            batch.agg({"at": "max"}).collect()
        batch.repartition(2, "term").mapInArrow(identity, jobs.SCHEMA).write.format("noop").mode("overwrite").save()

    stream = spark.readStream.schema(jobs.SCHEMA).json(str(folder))
    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(processingTime=SPARK_TRIGGER).start()


if __name__ == "__main__":
    main()
