"""What it would cost to know an epoch's watermark before its records are processed: a pass over the input for the newest timestamp, ahead of the job.

The bare epoch of latency.py, with and without that pass, at 1,000 records/s. Millstream does without: an epoch uses the watermark that
follows from the epochs before it, and a window waits one trigger longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.latency import Feeder, _times, bare


def epochs(spark: Any, root: Path, ahead: bool, seconds: float) -> float:
    """The median of an epoch in milliseconds."""
    print(f"{'with' if ahead else 'without'} a pass ahead: 1,000 records/s for {seconds:.0f} s", flush=True)
    feeder = Feeder(root / "in", 1_000, 10_000, seconds)
    feeder.start()
    began = time.time()

    query = bare(spark, root / "in", root, ahead)
    feeder.join()
    query.stop()
    return statistics.median(_times(query, seconds / 3, began))


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    spark = jobs.session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "2000")
    with tempfile.TemporaryDirectory() as temporary:
        found = {ahead: epochs(spark, Path(temporary) / str(ahead), ahead, options.seconds) for ahead in (False, True)}
    print(f"epoch without a pass ahead {found[False]:.0f} ms, with it {found[True]:.0f} ms", flush=True)
    result: dict[str, float] = {"lookahead_costs_ms": round(found[True] - found[False])}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
