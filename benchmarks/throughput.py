"""Throughput and CPU: the job in several ways (jobs.py), one after the other, in one session. Outputs are checked against the truth.

Rules
1. Before anything is measured, every way but tws has run over the first files, so that none pays for the JVM's first steps on behalf of the
   others. tws is too slow for that; its first epoch is its warm-up.
2. A way's first two epochs (tws: one) are warm-up once more: measure.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import cpu, data, jobs
from benchmarks.measure import Measured, measured, ratios

WARM_UP, TWS_WARM_UP = 2, 1  # epochs


def main() -> dict[str, float]:
    options = _options()
    names = options.only.split(",")
    found: dict[str, list[Measured]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        print(f"making {options.files * options.per_file:,} records in {options.files} files", flush=True)
        truth = data.make(root / "data", options.files, options.per_file, options.keys)
        few = {name: _first(root, name, count) for name, count in (("tws", options.tws_files), ("warm", options.warm_up))}
        spark = jobs.session()
        with cpu.meter(spark) as meter:
            if options.warm_up:
                _warm_up(spark, root, [name for name in names if name != "tws"], few["warm"])
            for turn in range(options.rounds):
                for name in names:
                    source = few["tws"] if name == "tws" else root / "data"
                    work = jobs.fresh(root / f"{name}-{turn}")
                    began = time.perf_counter()
                    epochs = jobs.WAYS[name](spark, source, work)
                    one = measured(meter, epochs, TWS_WARM_UP if name == "tws" else WARM_UP)
                    found[name].append(one)
                    print(f"{one.line(name)} ({time.perf_counter() - began:.0f} s in all)", flush=True)
                    _check(name, work, truth, data.complete(options.tws_files if name == "tws" else options.files, options.per_file))
                    shutil.rmtree(work)
    result = ratios(found)
    print(json.dumps(result))
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10, help="files, and so epochs (10)")
    parser.add_argument("--tws-files", type=int, default=3, help="files that tws reads (3)")
    parser.add_argument("--per-file", type=int, default=200_000, help="records in a file (200,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--only", default=",".join(jobs.WAYS), help=f"ways, in this order ({','.join(jobs.WAYS)})")
    parser.add_argument("--rounds", type=int, default=1, help="how often all of them run, taking turns (1)")
    parser.add_argument("--warm-up", type=int, default=2, help="files that every way but tws reads before anything is measured (2)")
    parser.add_argument("--quick", action="store_true", help="two files for tws: under three minutes")
    options = parser.parse_args()
    options.tws_files = min(2 if options.quick else options.tws_files, options.files)
    unknown = [name for name in options.only.split(",") if name not in jobs.WAYS]
    if unknown:
        parser.error(f"no way is called {', '.join(unknown)}; there are: {', '.join(jobs.WAYS)}")
    if options.files <= WARM_UP or options.tws_files <= TWS_WARM_UP:
        parser.error(
            f"--files {options.files} --tws-files {options.tws_files}: the first epochs are warm-up; give at least {WARM_UP + 1} and {TWS_WARM_UP + 1}"
        )
    return options


def _first(root: Path, name: str, count: int) -> Path:
    """A folder with the first files of the input."""
    folder = root / f"first-{name}"
    folder.mkdir()
    for path in sorted((root / "data").glob("*.parquet"))[:count]:
        (folder / path.name).symlink_to(path)
    return folder


def _warm_up(spark: Any, root: Path, names: list[str], source: Path) -> None:
    for name in names:
        print(f"warming up: {name}", flush=True)
        work = jobs.fresh(root / f"warm-{name}")
        jobs.WAYS[name](spark, source, work)
        shutil.rmtree(work)


def _check(name: str, work: Path, truth: dict[tuple[str, int], int], complete: int) -> None:
    """Millstream's output is the truth. Spark's own ways have no drain: what they have told must be right, and all of the seconds up to
    `complete`. floor tells nothing."""
    if name.startswith("millstream"):
        found = data.read_counts(work / "counts")
        assert found == truth, f"{name}: {len(found)} buckets, {len(truth)} expected"
    if name in ("sql", "tws"):
        found = data.read_counts(work / "counts", "*.json")
        wrong = [bucket for bucket, count in found.items() if truth.get(bucket) != count]
        missing = [bucket for bucket in truth if bucket not in found and bucket[1] + 1000 <= complete]
        assert not wrong and not missing, f"{name}: {len(wrong)} wrong and {len(missing)} missing of {len(truth)} buckets"


if __name__ == "__main__":
    main()
