"""Counts per key and minute in Flink's SQL, TUMBLE on heap state. Run by another Python, which has PyFlink: `benchmarks/operators.py --flink`.

Arguments: a folder of CSV files and where to write counts, as JSON lines. The last line is JSON: seconds and CPU-seconds of the JVM, of the second run of two
in one process, so that its code is compiled. Nothing is Python's here but the start: rows are read, counted and written by the JVM, with one task per core,
without checkpoints. Flink reads the files in no order, so the watermark waits for an hour: with two seconds, up to a quarter of the records came late.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

TICKS = os.sysconf("SC_CLK_TCK")
READ = """CREATE TABLE queries (term STRING, `at` BIGINT, id STRING, ts AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR)
WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'csv')"""
WRITE = (
    """CREATE TABLE counts (term STRING, start_at BIGINT, n BIGINT) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'json')"""
)
COUNT = """INSERT INTO counts SELECT term, CAST(UNIX_TIMESTAMP(CAST(window_start AS STRING)) AS BIGINT), COUNT(*)
FROM TABLE(TUMBLE(TABLE queries, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, term"""


def jvm_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run(folder: Path, output: Path) -> float:
    """Seconds from the submission of the job to its end."""
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for option, value in {
        "parallelism.default": str(os.cpu_count()),
        "state.backend.type": "hashmap",
        "table.local-time-zone": "UTC",
    }.items():
        environment.get_config().set(option, value)
    environment.execute_sql(READ.format(folder))
    environment.execute_sql(WRITE.format(output))
    began = time.perf_counter()
    environment.execute_sql(COUNT).wait()
    return time.perf_counter() - began


folder, output = map(Path, sys.argv[1:])
run(folder, output / "first")
pid = get_gateway().jvm.java.lang.ProcessHandle.current().pid()
before = jvm_seconds(pid)
seconds = run(folder, output / "second")
print(json.dumps([seconds, jvm_seconds(pid) - before]))
