"""What an epoch with next to nothing in it costs: CPU of epochs with one record each, over a pipeline that is warm and holds state.

Rules
1. The pipeline first reads a few files of the usual kind, then files of one record, one an epoch, without a pause. The first of those are warm-up.
   Event time all but stands still then: no timer falls due, and thousands stay in the state.
2. An epoch's CPU is what is spent from the end of the epoch before to its own end: what a worker does after it has answered is in it.
3. The median of the epochs counts, for JVM, Python workers and driver each: what happens now and then (a collection, a compaction) is not in it.
4. floor is the same plan with an identity function in place of the step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import cpu, data, jobs
from benchmarks.cpu import Cpu, Meter
from benchmarks.measure import Epoch

FILES = 3  # of the usual kind
WAYS = ("millstream", "floor")


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40, help="epochs of one record that count (40)")
    parser.add_argument("--warm-up", type=int, default=80, help="epochs of one record before those (80)")
    parser.add_argument("--per-file", type=int, default=20_000, help=f"records in each of the {FILES} files before (20,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--only", default=",".join(WAYS), help=f"ways ({','.join(WAYS)})")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in WAYS]:
        parser.error(f"no way is called {', '.join(unknown)}; there are: {', '.join(WAYS)}")
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        _make(root / "data", options.per_file, options.keys, options.warm_up + options.epochs)
        spark = jobs.session()
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
        with cpu.meter(spark, 0.01) as meter:
            for name in names:
                print(f"{name}: {FILES} epochs of {options.per_file:,} records, then {options.warm_up + options.epochs} of one", flush=True)
                found = small(meter, jobs.WAYS[name](spark, root / "data", jobs.fresh(root / name)), options.epochs)
                print(
                    f"{name:11s} ms of CPU an epoch of one record: JVM {found.jvm:.0f}, of it JIT {found.jit:.0f}; Python "
                    f"{found.python:.0f}; driver {found.driver:.0f}",
                    flush=True,
                )
                suffix = "" if name == "millstream" else f"_{name}"
                result.update(
                    {f"{part}_ms_per_small_epoch{suffix}": round(getattr(found, part), 1) for part in ("python", "jvm", "driver", "jit")}
                )
    print(json.dumps(result))
    return result


def small(meter: Meter, epochs: Sequence[Epoch], count: int) -> Cpu:
    """Milliseconds of CPU of the last so many epochs, each from the end of the one before: the median of every part."""
    if len(epochs) <= count:
        raise ValueError(f"{len(epochs)} epochs had input, and {count} are to be measured after the first")
    ends = [epoch.ended for epoch in epochs[-count - 1 :]]
    spent = [meter.between(start, end) * 1000 for start, end in itertools.pairwise(ends)]
    return Cpu(**{part: statistics.median(getattr(one, part) for one in spent) for part in ("jvm", "python", "driver", "jit")})


def _make(folder: Path, per_file: int, keys: int, count: int) -> None:
    """The files, each a second younger than the one before: Spark reads the oldest first."""
    data.make(folder, FILES, per_file, keys)
    at = data.START + FILES * per_file * 1000 // data.RATE
    for index in range(FILES, FILES + count):
        at += 1
        table: Any = pa.table({"term": pa.array([f"term-{index % keys:05d}"]), "at": pa.array([at]), "id": pa.array([f"small-{index}"])})
        pq.write_table(table, folder / f"part-{index:05d}.parquet")
    for age, path in enumerate(sorted(folder.glob("*.parquet"), reverse=True)):
        moment = path.stat().st_mtime - age
        os.utime(path, (moment, moment))


if __name__ == "__main__":
    main()
