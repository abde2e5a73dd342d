"""What a resident epoch with next to nothing in it costs: CPU of the driver and of its tasks, without Spark.

    python -m benchmarks.small_epochs [OTHER_SRC] [--rounds 3] [--records 1] [--places disk,memory] [--only hooks,window]

OTHER_SRC is the `src` folder of another version: both are then measured in turn, each time in fresh processes. A version without the operator of windows is
measured with hooks alone. The last line is one JSON object.

Rules
1. An epoch of 20,000 records puts thousands of keys and timers into the state. Epochs of one record follow without a pause; the first of those are
   warm-up. Event time stands still then: no timer falls due.
2. An epoch's CPU is what is spent from the end of the epoch before to its own end. The median of the epochs counts, so what happens now and then (a collection,
   a compaction) is not in it; the mean, in which it is, is told beside it.
3. The checkpoint is on a disk, where it costs what durable writes cost, or in memory (`/dev/shm`), where what is left is the code's. State caches always
   are in memory.
4. Of several rounds the median counts. What is compared is compared round by round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.compare import ROOT, environment, source_folder

PLACES = {"disk": None, "memory": "/dev/shm"}
WAYS = ("hooks", "window")
FIRST = 20_000  # records
KEYS = 10_000
SLOTS, SHARDS = 2, 4


def main() -> dict[str, float]:
    options = _options()
    if options.side:
        return _side(options)
    sides = {"": ROOT / "src"} | ({"other": options.other} if options.other else {})
    result: dict[str, float] = {}
    for way, place in itertools.product(options.only, options.places):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(options.rounds):
            for name, source in list(sides.items())[:: -1 if turn % 2 else 1]:
                if (source / "millstream" / "operators").is_dir() or way == "hooks":
                    found[name].append(_run(source, way, place, options))
        for name, rounds in found.items():
            if not rounds:
                continue
            middle = {part: round(statistics.median(one[part] for one in rounds), 2) for part in rounds[0]}
            print(
                f"{name or 'this tree':9s} {way:6s} {place:6s} ms of CPU an epoch, median (mean): driver {middle['driver']:.2f} "
                f"({middle['driver_mean']:.2f}), tasks {middle['tasks']:.2f} ({middle['tasks_mean']:.2f})",
                flush=True,
            )
            if not name:
                result.update({f"small_epoch_{part}_ms_{way}_{place}": middle[part] for part in ("driver", "tasks")})
        for part in ("driver", "tasks") if found.get("other") else ():
            ratios = [ours[part] / other[part] for ours, other in zip(found[""], found["other"], strict=True)]
            result[f"small_epoch_{part}_vs_other_{way}_{place}"] = round(statistics.median(ratios), 2)
    print(json.dumps(result))
    return result


def _run(source: Path, way: str, place: str, options: argparse.Namespace) -> dict[str, float]:
    """One run of one version, in a process of its own."""
    sizes = ["--epochs", str(options.epochs), "--warm-up", str(options.warm_up), "--records", str(options.records)]
    with tempfile.TemporaryDirectory(dir=PLACES[place]) as work, tempfile.TemporaryDirectory(dir=PLACES["memory"]) as caches:
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.small_epochs", "--side", way, "--work", work, "--caches", caches, *sizes],
            cwd=ROOT,
            env=environment(source, Path(caches), os.environ),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _side(options: argparse.Namespace) -> dict[str, float]:
    """The run itself."""
    from benchmarks import resident

    source = resident.Batches(_batches(1 + options.warm_up + options.epochs, options.records))
    pipeline = _pipeline(options.side, source, options.work / "out")
    each = [*resident.epochs(pipeline, options.work, slots=SLOTS, shards=SHARDS, caches=options.caches)]
    assert len(each) == 1 + options.warm_up + options.epochs, f"{len(each)} epochs"
    counted = each[-options.epochs - 1 :]
    result = {}
    for part, values in zip(("driver", "tasks"), zip(*counted, strict=True), strict=True):
        spent = [(after - before) * 1000 for before, after in itertools.pairwise(values)]
        result[part], result[f"{part}_mean"] = statistics.median(spent), statistics.mean(spent)
    print(json.dumps(result))
    return result


def _batches(count: int, records: int) -> list[pa.RecordBatch]:
    random = np.random.default_rng(7)
    found = []
    for index in range(count):
        size = records if index else FIRST
        at = 1_000_000_000_000 + (random.integers(0, 2000, size) if not index else np.full(size, 2000))
        keys = [f"term-{key:05d}" for key in random.integers(0, KEYS, size).tolist()]
        ids = [f"{index}-{number}" for number in range(size)]
        found.append(pa.record_batch({"term": pa.array(keys), "at": pa.array(at), "id": pa.array(ids)}))
    return found


def _pipeline(way: str, source: Any, output: Path) -> Any:
    import millstream as ms
    from benchmarks import jobs

    if way == "hooks":
        return jobs.pipeline(source, output, id="id")
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    p.emit(queries.by("term").window(ms.windows.tumbling("1s")).reduce(ms.count(), name="counts"), ms.sinks.files(output))
    return p


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER_SRC", help="the src folder of another version")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes for each figure (3)")
    parser.add_argument("--epochs", type=int, default=300, help="small epochs that count (300)")
    parser.add_argument("--warm-up", type=int, default=150, help="small epochs before those (150)")
    parser.add_argument("--records", type=int, default=1, help="records in a small epoch (1)")
    parser.add_argument("--places", type=_names(PLACES), default=[*PLACES], help="where the checkpoint is (disk,memory)")
    parser.add_argument("--only", type=_names(WAYS), default=[*WAYS], help="ways (hooks,window)")
    parser.add_argument("--side", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--caches", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.other = options.other and source_folder(options.other)
    except ValueError as error:
        parser.error(str(error))
    return options


def _names(known: Any) -> Any:
    def chosen(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"nothing is called {', '.join(unknown)}; there are: {', '.join(known)}")
        return found

    return chosen


if __name__ == "__main__":
    main()
