"""What the guarantees cost: the job of throughput.py with deduplication on and off, with a weak and a strong hop behind it; and the latency of
the hop with everything on and off. All in one run, the ways taking turns. Outputs are checked against the truth.

`*_costs` is the part of the throughput that a guarantee takes (median of the rounds), `*_cpu_costs` the CPU that it adds (least of the rounds).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import millstream as ms
from benchmarks import cpu, data, jobs
from benchmarks.latency import TRIGGER, Feeder, latencies, quantiles
from benchmarks.measure import Measured, best, measured


class Relay(ms.Computation):
    """The hop: hands on what it gets, and counts it."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value)


class Tee(ms.Computation):
    """Hands on every record: a hop as wide as the input."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(1)


def key(record: ms.Record) -> Any:
    """The same key, but through a way of its own."""
    return record.key


def hop(source: Any, output: Path, production: str, dedup: str | None, delay: str = "2s", wide: bool = False) -> ms.Pipeline:
    """The job with one hop behind it, or before it."""
    p = ms.Pipeline("bench")
    stream = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded(delay), dedup=dedup)
    if wide:
        stream = p.compute(Tee, stream, key="term", produces="all", production=production)
        p.emit(p.compute(jobs.BucketCounter, stream, key=key, produces="counts"), ms.sinks.files(output))
    else:
        counts = p.compute(jobs.BucketCounter, stream, key="term", produces="counts", production=production)
        p.emit(p.compute(Relay, counts, key=key, produces="relayed"), ms.sinks.files(output))
    return p


def run(spark: Any, meter: cpu.Meter, pipeline: ms.Pipeline, work: Path, truth: Any) -> Measured:
    """What it gives and costs, without the first two epochs."""
    handle = pipeline.run(spark, checkpoint=work / "checkpoint", available_now=True)
    handle.await_termination()
    if truth is not None:
        found = data.read_counts(work / "counts")
        assert found == truth, f"{len(found)} buckets, {len(truth)} expected"
    return measured(meter, jobs.epochs_of(handle), 2)


def latency(spark: Any, root: Path, name: str, production: str, dedup: str | None, seconds: float) -> float:
    """p50 from the end of a window to its row in the sink, behind one hop, at 1,000 records/s."""
    folder = root / name / "in"
    feeder = Feeder(folder, 1_000, 10_000, seconds)
    feeder.start()
    began = time.time()
    source = ms.sources.files(folder, schema=jobs.SCHEMA, format="json")
    handle = hop(source, root / name / "counts", production, dedup, "0s").run(spark, checkpoint=root / name / "checkpoint", trigger=TRIGGER)
    feeder.join()
    time.sleep(3)
    handle.stop()
    return quantiles(latencies(root / name / "counts", "*.jsonl", seconds / 3, began))[0]


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--per-file", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--only", default="dedup,strong,wide,latency")
    options = parser.parse_args()
    wanted = options.only.split(",")
    spark = jobs.session()
    runs: dict[str, list[Measured]] = {}
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        print(f"making {options.files * options.per_file:,} records in {options.files} files", flush=True)
        truth = data.make(root / "data", options.files, options.per_file, options.keys, repeated=0.01)
        with cpu.meter(spark) as meter:
            for turn in range(options.rounds):
                for name, (make, expected) in _ways(root / "data", wanted, truth).items():
                    work = jobs.fresh(root / f"{name}-{turn}")
                    runs.setdefault(name, []).append(run(spark, meter, make(work / "counts"), work, expected))
                    print(runs[name][-1].line(name), flush=True)
        result.update(costs(runs))
        if "latency" in wanted:
            print(f"latency behind one hop, everything off and everything on: {2 * options.seconds:.0f} s", flush=True)
            p50 = {
                name: latency(spark, root, name, *setting, options.seconds)
                for name, setting in (("off", (ms.WEAK, None)), ("on", (ms.STRONG, "10m")))
            }
            print(f"p50 behind one hop: {p50['off']:.0f} ms with everything off, {p50['on']:.0f} ms with everything on", flush=True)
            result["latency_all_on_vs_off"] = round(p50["on"] / p50["off"], 2)
    print(json.dumps(result))
    return result


def _ways(folder: Path, wanted: list[str], truth: Any) -> dict[str, Any]:
    """By name: what makes the pipeline, and what must come out (None: repeats count twice)."""
    source = ms.sources.files(folder, schema=jobs.SCHEMA, format="parquet", max_files_per_epoch=1)
    ways: dict[str, Any] = {}
    if "dedup" in wanted:
        ways["dedup off"] = (lambda out: jobs.pipeline(source, out, id="id"), None)
        ways["dedup on"] = (lambda out: jobs.pipeline(source, out, id="id", dedup="10m"), truth)
    if "strong" in wanted:
        ways["weak hop"] = (lambda out: hop(source, out, ms.WEAK, None), None)
        ways["strong hop"] = (lambda out: hop(source, out, ms.STRONG, None), None)
    if "wide" in wanted:
        ways["weak wide hop"] = (lambda out: hop(source, out, ms.WEAK, None, wide=True), None)
        ways["strong wide hop"] = (lambda out: hop(source, out, ms.STRONG, None, wide=True), None)
    return ways


def costs(runs: dict[str, list[Measured]]) -> dict[str, float]:
    """What a guarantee takes of the throughput, and adds to the CPU."""
    result = {}
    for on, off, label in (
        ("dedup on", "dedup off", "dedup"),
        ("strong hop", "weak hop", "strong"),
        ("strong wide hop", "weak wide hop", "strong_wide"),
    ):
        if on in runs:
            with_it, without = (statistics.median(run.rate for run in runs[name]) for name in (on, off))
            result[f"{label}_costs"] = round(1 - with_it / without, 3)
            result[f"{label}_cpu_costs"] = round(best(runs[on])[1].total / best(runs[off])[1].total - 1, 3)
    return result


if __name__ == "__main__":
    main()
