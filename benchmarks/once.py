"""The way `millstream`, in this process, with whatever Millstream is on the path: one side of compare.py. The last line is one JSON object.

Rules
1. The input is read several times, into new checkpoints. Only the last pass is measured: the JVM has compiled what matters by then.
2. Without --settings the session is the one that this Millstream makes for a user. With it, the session has exactly the settings in that file.
3. --write-settings makes the session of the benchmarks, writes its settings into that file, and ends. Settings that name a module of
   Millstream's own are left out: another version does not have it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

#: What Spark says of a session that is running, and what the machine decides: no settings that one would give.
_NOT_GIVEN = (
    "spark.app.",
    "spark.driver.port",
    "spark.executor.id",
    "spark.submit.",
    "spark.rdd.compress",
    "spark.serializer.objectStreamReset",
    "spark.sql.warehouse.dir",
)

#: What Spark writes something of its own in front of.
_ADDED_TO = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="where Millstream must come from")
    parser.add_argument("--data", type=Path, help="a folder with the input")
    parser.add_argument("--work", type=Path, help="a folder for the checkpoints, and the counts of the last pass")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--write-settings", type=Path)
    options = parser.parse_args()
    _check_source(options.source)
    if options.write_settings:
        print(json.dumps(write_settings(options.write_settings)))
        return
    from benchmarks import cpu, jobs
    from benchmarks.measure import measured

    spark = session(options.settings)
    with cpu.meter(spark) as meter:
        for turn in range(options.passes):
            epochs = jobs.millstream(spark, options.data, jobs.fresh(options.work / str(turn)))
        found = measured(meter, epochs, 2)
    print(json.dumps({"rate": found.rate, **asdict(found.cpu)}))


def _check_source(source: Path) -> None:
    import millstream

    if not Path(millstream.__file__).resolve().is_relative_to(source.resolve()):
        sys.exit(f"Millstream comes from {Path(millstream.__file__).parent}, and not from {source}: is PYTHONPATH set?")


def session(settings: Path | None) -> Any:
    """Rule 2."""
    if settings is None:
        from millstream.engine.spark.session import local_session

        return local_session("bench")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    wanted = json.loads(settings.read_text())
    for key, value in wanted.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if other := [key for key, value in wanted.items() if key not in _ADDED_TO and spark.conf.get(key, None) != value]:
        sys.exit(f"Spark did not take these settings as they were given: {', '.join(other)}")
    return spark


def write_settings(path: Path) -> dict[str, str]:
    """Rule 3."""
    from benchmarks import jobs

    spark = jobs.session()
    name = "spark.sql.shuffle.partitions"  # which the benchmarks set in the running session
    settings = {**given(spark.sparkContext.getConf().getAll()), name: spark.conf.get(name)}
    path.write_text(json.dumps(settings))
    spark.stop()
    return settings


def given(settings: list[tuple[str, str]]) -> dict[str, str]:
    """The settings of a running session that one of another version can be given."""
    return {key: value for key, value in settings if not key.startswith(_NOT_GIVEN) and not value.startswith("millstream.")}


if __name__ == "__main__":
    main()
