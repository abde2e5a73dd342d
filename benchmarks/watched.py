"""What it costs to be watched: a resident run without Spark, with the page open and its metrics scraped, against the same run without.

    python -m benchmarks.watched [--rounds 5] [--epochs 600] [--records 2000]

Rules
1. Epochs of hooks follow each other without a pause; the first third is warm-up. The page's news and the metrics are fetched by another process, once a
   second, as a browser and Prometheus would.
2. Both ways take turns, each time in a fresh process. What is compared is compared round by round, and the median counts.
3. CPU is that of driver and tasks; the time of an epoch is from the end of the one before to its own end.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.compare import ROOT, environment
from benchmarks.small_epochs import SHARDS, SLOTS, _batches, _pipeline

WAYS = ("alone", "watched")
_VISITOR = """
import sys, threading, time, urllib.request
def read():
    with urllib.request.urlopen(sys.argv[1] + 'api/pipelines/0/events') as news:
        for _ in news: pass
threading.Thread(target=read, daemon=True).start()
while True:
    urllib.request.urlopen(sys.argv[2]).read()
    time.sleep(1)
"""


def main() -> dict[str, float]:
    options = _options()
    if options.side:
        return _side(options)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(options.rounds):
        for way in WAYS[:: -1 if turn % 2 else 1]:
            found[way].append(_run(way, options))
            told = found[way][-1]
            print(
                f"round {turn + 1}: {way:7s} {told['cpu']:.2f} ms of CPU an epoch, median {told['median']:.1f} ms, p99 {told['p99']:.1f} ms",
                flush=True,
            )
    result = {}
    for part in ("cpu", "median", "p99"):
        ratios = [watched[part] / alone[part] for watched, alone in zip(found["watched"], found["alone"], strict=True)]
        result[f"watched_{part}_vs_alone"] = round(statistics.median(ratios), 3)
    print(json.dumps(result))
    return result


def _run(way: str, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory(dir="/dev/shm") as caches:
        given = ["--side", way, "--work", work, "--caches", caches, "--epochs", str(options.epochs), "--records", str(options.records)]
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.watched", *given],
            cwd=ROOT,
            env=environment(ROOT / "src", Path(caches), os.environ),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _side(options: argparse.Namespace) -> dict[str, float]:
    from benchmarks import resident

    batches = _batches(1 + options.epochs, options.records)
    pipeline = _pipeline("hooks", resident.Batches(batches), options.work / "out")
    beside = _visited if options.side == "watched" else contextlib.nullcontext
    ends, cpu = [], []
    for spent in resident.epochs(pipeline, options.work, slots=SLOTS, shards=SHARDS, caches=options.caches, beside=beside):
        ends.append(time.perf_counter())
        cpu.append(sum(spent))
    counted = options.epochs * 2 // 3
    millis = sorted((after - before) * 1000 for before, after in itertools.pairwise(ends[-counted - 1 :]))
    result = {
        "cpu": (cpu[-1] - cpu[-counted - 1]) / counted * 1000,
        "median": statistics.median(millis),
        "p99": millis[int(0.99 * counted)],
    }
    print(json.dumps(result))
    return result


@contextlib.contextmanager
def _visited(epochs: Any) -> Iterator[None]:
    """The page and the metrics of a run, and somebody who looks at them."""
    from millstream.monitoring.epoch_feed import EpochFeed
    from millstream.monitoring.observer import Look, Observer
    from millstream.monitoring.prometheus import EpochSeconds, MetricsServer, PipelineCollector
    from millstream.monitoring.web_server import PageServer
    from millstream.state.heartbeat import Alive
    from millstream.status.report import Overview, status_of

    def look() -> Look:
        status = status_of("bench", epochs.latest, epochs.metrics.recent(10))
        status.state, status.mode = "running", epochs.mode()
        feed.pump()
        sign = Alive(epochs.token, 0, "here", os.getpid(), "running", mode=status.mode, figures=epochs.figures())
        return Look(Overview("", "", SHARDS, epochs.token, status, True, sign), epochs.latest, list(epochs.metrics), status)

    observer = Observer(epochs.log, look)
    metrics = MetricsServer([PipelineCollector([observer])], "127.0.0.1:0")
    feed = EpochFeed(epochs.metrics, [EpochSeconds(metrics.registry, "bench")])
    page = PageServer([observer], "127.0.0.1:0")
    visitor = subprocess.Popen([sys.executable, "-c", _VISITOR, page.url, metrics.url])
    try:
        yield
    finally:
        visitor.kill()
        page.stop()
        metrics.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes for each way (5)")
    parser.add_argument("--epochs", type=int, default=600, help="epochs (600)")
    parser.add_argument("--records", type=int, default=2000, help="records in an epoch (2,000)")
    parser.add_argument("--side", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--caches", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
