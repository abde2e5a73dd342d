"""What the path of hooks costs where there is much to do: CPU of resident tasks and their driver on the count job of `jobs.py`, without Spark.

    python -m benchmarks.hooks [OTHER_SRC] [--rounds 3] [--files 8] [--per-file 200000] [--keys 10000] [--dedup]

OTHER_SRC is the `src` folder of another version: both are then measured in turn, each time in fresh processes. The last line is one JSON object.

Rules
1. Parquet files are read by the tasks, one an epoch. The first two epochs are warm-up. What is told must be right, and all that was complete.
2. A figure is CPU-seconds per million records, which is microseconds per record. Of several rounds the median counts. What is compared is compared round by
   round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import data
from benchmarks.compare import ROOT, environment, source_folder

SLOTS, SHARDS = 2, 2
WARM_UP = 2  # epochs


def main() -> dict[str, float]:
    options = _options()
    if options.side:
        return _side(options)
    sides = {"this tree": ROOT / "src"} | ({"other": options.other} if options.other else {})
    found: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "data"
        truth = data.make(files, options.files, options.per_file, options.keys)
        complete = data.complete(options.files, options.per_file)
        for turn in range(options.rounds):
            for name, source in list(sides.items())[:: -1 if turn % 2 else 1]:
                with tempfile.TemporaryDirectory() as work:
                    found[name].append(_run(source, files, Path(work), options))
                    counts = data.read_counts(Path(work) / "out")
                wrong = [bucket for bucket, count in counts.items() if truth[bucket] != count]
                missing = [bucket for bucket in truth if bucket not in counts and bucket[1] + 1000 <= complete]
                assert counts and not wrong and not missing, (
                    f"{name}: {len(wrong)} wrong and {len(missing)} missing of {len(truth)} buckets"
                )
                print(f"round {turn + 1}: {name:9s} {found[name][-1]:.2f} CPU-s per million", flush=True)
    result = {"hooks_cpu": round(statistics.median(found["this tree"]), 2)}
    if options.other:
        ratios = [ours / other for ours, other in zip(found["this tree"], found["other"], strict=True)]
        result["hooks_cpu_vs_other"] = round(statistics.median(ratios), 2)
    print(json.dumps(result))
    return result


def _run(source: Path, files: Path, work: Path, options: argparse.Namespace) -> float:
    """One run of one version, in a process of its own."""
    given = ["--side", str(files), "--work", str(work), *(["--dedup"] if options.dedup else [])]
    sizes = ["--files", str(options.files), "--per-file", str(options.per_file)]
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.hooks", *given, *sizes],
        cwd=ROOT,
        env=environment(source, work, os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return float(json.loads(told.splitlines()[-1])["cpu"])


def _side(options: argparse.Namespace) -> dict[str, float]:
    """The run itself."""
    from pyspark.sql import types as T

    import millstream as ms
    from benchmarks import jobs, resident

    schema = T.StructType([T.StructField("term", T.StringType()), T.StructField("at", T.LongType()), T.StructField("id", T.StringType())])
    source = ms.sources.files(options.side, schema=schema, format="parquet", max_files_per_epoch=1)
    pipeline = jobs.pipeline(source, options.work / "out", id="id", dedup="10m" if options.dedup else None)
    each = [sum(one) for one in resident.epochs(pipeline, options.work, slots=SLOTS, shards=SHARDS, caches=options.work / "caches")]
    assert len(each) >= options.files, f"{len(each)} epochs"
    result = {"cpu": (each[options.files - 1] - each[WARM_UP - 1]) / (options.files - WARM_UP) / options.per_file * 1e6}
    print(json.dumps(result))
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER_SRC", help="the src folder of another version")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes for each figure (3)")
    parser.add_argument("--files", type=int, default=8, help="files, and so epochs (8)")
    parser.add_argument("--per-file", type=int, default=200_000, help="records in a file (200,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--dedup", action="store_true", help="with deduplication")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.other = options.other and source_folder(options.other)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
