"""Operators against hooks, against Spark's own SQL and against bare pyarrow: all ways in one run, CPU and wall.

    windows    count per key and second, told when the second is complete: by the operator, by hooks, by Spark SQL
    sessions   count per key and session, by the operator and by hooks
    joins      an interval join of two streams, by the operator and by Spark's stream-stream join
    peers      windows and sessions against programs written for Bytewax, where it is installed
    flink      counts per key and minute against Flink's SQL, on heap state without checkpoints, where PyFlink is installed
    hot        the top three of all records per second, one key: with spread=16 and without
    arrow      what pyarrow's group_by alone costs on the same files, with nothing kept, nothing told

Rules
1. Every way reads the same files, one an epoch (a join: one of each side), and the first two epochs are warm-up (measure.py).
2. What Millstream's ways of a part have told is compared with each other, row by row; windows also with the truth.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import millstream as ms
from benchmarks import cpu, data, jobs
from benchmarks.measure import Epoch, Measured, measured

GAP = 3_000
AFTER = 1_000
WARM_UP = 2


class SessionCounter(ms.Computation):
    """Sessions by hooks, as a user would write them: one timer per key, which looks again when the session has grown."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        at = record.timestamp
        first, last, n = at, at, 1
        kept = []
        for session in self.state:
            if first - session[1] < GAP and session[0] - last < GAP:
                first, last, n = min(first, session[0]), max(last, session[1]), n + session[2]
            else:
                kept.append(session)
        kept.append([first, last, n])
        self.state = kept
        if len(kept) == 1 and n == 1:
            self.set_timer("end", last + GAP)

    def process_timer(self, timer: ms.Timer) -> None:
        for session in sorted(self.state):
            if session[1] + GAP <= timer.time:
                self.produce({"term": self.key, "start": session[0], "count": session[2]}, timestamp=timer.time)
        self.state = [session for session in self.state if session[1] + GAP > timer.time]
        if self.state:
            self.set_timer("end", min(session[1] for session in self.state) + GAP)


def session_hooks(source: Any, output: Path) -> ms.Pipeline:
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    p.emit(p.compute(SessionCounter, queries, key="term", produces="sessions"), ms.sinks.files(output))
    return p


def session_operator(source: Any, output: Path) -> ms.Pipeline:
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    sessions = queries.by("term").window(ms.windows.session(f"{GAP}ms")).reduce(ms.count(), name="sessions")
    p.emit(sessions, ms.sinks.files(output))
    return p


def session_rows(output: Path) -> list[tuple[str, int, int]]:
    return sorted((row["term"], row["start"], row["count"]) for row in _lines(output, "*.jsonl", "value"))


def minute_operator(source: Any, output: Path) -> ms.Pipeline:
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    p.emit(queries.by("term").window(ms.windows.tumbling("1m")).reduce(ms.count(), name="minutes"), ms.sinks.files(output))
    return p


def hot_operator(spread: int | None, source: Any, output: Path) -> ms.Pipeline:
    p = ms.Pipeline("bench")
    queries = p.inject("queries", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    best = queries.by().window(ms.windows.tumbling("1s")).reduce(best=ms.top(3, "term", by="id"), name="best", spread=spread)
    p.emit(best, ms.sinks.files(output))
    return p


def run(
    spark: Any, make: Callable[[Any, Path], ms.Pipeline], folder: Path, work: Path, resident: bool, form: str = "parquet"
) -> list[Epoch]:
    source = ms.sources.files(folder, schema=jobs.SCHEMA, format=form, max_files_per_epoch=1)  # type: ignore[arg-type]
    handle = make(source, work / "out").run(spark, checkpoint=work / "checkpoint", available_now=True, resident=resident)
    handle.await_termination()
    return jobs.epochs_of(handle)


def join_operator(spark: Any, folder: Path, work: Path, resident: bool) -> list[Epoch]:
    """Every query with the one of the same id within a second of it, as orders and payments are joined: one partner each."""
    p = ms.Pipeline("bench")
    sides = []
    for name in ("left", "right"):
        source = ms.sources.files(folder / name, schema=jobs.SCHEMA, format="parquet", max_files_per_epoch=1)
        sides.append(p.inject(name, source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None))
    joined = sides[0].by("id").join(sides[1].by("id"), after=f"{AFTER}ms", name="joined")
    p.emit(joined.map({"id": "left.id", "other": "right.id"}), ms.sinks.files(work / "out"))
    handle = p.run(spark, checkpoint=work / "checkpoint", available_now=True, resident=resident)
    handle.await_termination()
    return jobs.epochs_of(handle)


def join_sql(spark: Any, folder: Path, work: Path) -> list[Epoch]:
    """Spark's own stream-stream join."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    left, right = (
        spark.readStream.schema(jobs.SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / name))
        .select(F.col("term").alias(f"{name}_term"), F.col("id").alias(f"{name}_id"), F.timestamp_millis("at").alias(f"{name}_ts"))
        .withWatermark(f"{name}_ts", "2 seconds")
        for name in ("left", "right")
    )
    near = F.expr(f"left_id = right_id and right_ts >= left_ts and right_ts <= left_ts + interval {AFTER} milliseconds")
    return jobs._to_the_end(left.join(right, near).select("left_id", "right_id"), work)


def bare_arrow(folder: Path) -> float:
    """CPU-seconds per million records of pyarrow's group_by by key and second, read from the same files."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    rows = 0
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path, columns=["term", "at"])
        second = pa.array(table.column("at").to_numpy() // 1000)
        table.append_column("second", second).group_by(["term", "second"], use_threads=False).aggregate([([], "count_all")])
        rows += len(table)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return (ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime) * 1e6 / rows


def main() -> dict[str, float]:
    options = _options()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        spark = jobs.session()
        with cpu.meter(spark) as meter:
            for part in options.only.split(","):
                result.update(PARTS[part](spark, meter, root, options))
    print(json.dumps(result))
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8, help="files, and so epochs (8)")
    parser.add_argument("--per-file", type=int, default=200_000, help="records in a file (200,000)")
    parser.add_argument("--keys", default="10000,1000000", help="how many keys, each a run of windows (10000,1000000)")
    parser.add_argument("--bytewax", default=sys.executable, help="a Python that has Bytewax and pyarrow, for the part of peers (this one)")
    parser.add_argument("--flink", default=sys.executable, help="a Python that has PyFlink, for the part of Flink (this one)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts ({','.join(PARTS)})")
    return parser.parse_args()


def _measure(meter: Any, name: str, way: Callable[[], list[Epoch]]) -> Measured:
    began = time.perf_counter()
    one = measured(meter, way(), WARM_UP)
    print(f"{one.line(name)} ({time.perf_counter() - began:.0f} s in all)", flush=True)
    return one


def _windows(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    for keys in map(int, options.keys.split(",")):
        folder = jobs.fresh(root / f"data-{keys}")
        truth = data.make(folder, options.files, options.per_file, keys)
        ways: dict[str, Any] = {
            "hooks": jobs.millstream_resident,
            "operator": jobs.operator_resident,
            "hooks-dedup": jobs.millstream_resident_dedup,
            "operator-dedup": jobs.operator_resident_dedup,
            "operator-micro-batch": jobs.operator,
            "sql": jobs.sql,
        }
        told: dict[str, Measured] = {}
        for name, way in ways.items():
            work = jobs.fresh(root / "work")
            told[name] = _measure(meter, f"{name} {keys}", partial(way, spark, folder, work))
            if name != "sql":
                assert data.read_counts(work / "counts") == truth, name
            shutil.rmtree(work)
        bare = bare_arrow(folder)
        print(f"{'pyarrow alone':16s} {'':21s} CPU-s per million {bare:6.2f}", flush=True)
        cost = {name: one.cpu.total for name, one in told.items()}
        found |= {
            f"window_cpu_vs_hooks_{keys}": round(cost["operator"] / cost["hooks"], 3),
            f"window_dedup_cpu_vs_hooks_{keys}": round(cost["operator-dedup"] / cost["hooks-dedup"], 3),
            f"window_cpu_vs_sql_{keys}": round(cost["operator"] / cost["sql"], 3),
            f"window_micro_batch_cpu_vs_sql_{keys}": round(cost["operator-micro-batch"] / cost["sql"], 3),
            f"window_throughput_vs_sql_{keys}": round(told["operator"].rate / told["sql"].rate, 1),
            f"window_cpu_vs_arrow_{keys}": round(cost["operator"] / bare, 1),
        }
    return found


def _sessions(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    folder = jobs.fresh(root / "data-sessions")
    data.make(folder, options.files, options.per_file, 10_000)
    told, rows = {}, {}
    for name, make in (("hooks", session_hooks), ("operator", session_operator)):
        work = jobs.fresh(root / "work")
        told[name] = _measure(meter, f"session {name}", partial(run, spark, make, folder, work, resident=True))
        rows[name] = session_rows(work / "out")
    assert rows["hooks"] == rows["operator"], (len(rows["hooks"]), len(rows["operator"]))
    return {"session_cpu_vs_hooks": round(told["operator"].cpu.total / told["hooks"].cpu.total, 3)}


def _joins(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    folder = jobs.fresh(root / "data-joins")
    for name in ("left", "right"):
        data.make(folder / name, options.files, options.per_file // 2, 10_000)
    told = {}
    for name, way in (
        ("operator", lambda work: join_operator(spark, folder, work, True)),
        ("sql", lambda work: join_sql(spark, folder, work)),
    ):
        work = jobs.fresh(root / "work")
        told[name] = _measure(meter, f"join {name}", partial(way, work))
    return {"join_cpu_vs_sql": round(told["operator"].cpu.total / told["sql"].cpu.total, 3)}


def _peers(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    """Windows and sessions written for Bytewax by hand, over the same files."""
    if subprocess.run([options.bytewax, "-c", "import bytewax, pyarrow"], capture_output=True).returncode:
        print(f"{options.bytewax} has no Bytewax: no comparison. Give one that has, and pyarrow, with --bytewax", flush=True)
        return {}
    folder = jobs.fresh(root / "data-peers")
    truth = data.make(folder, options.files, options.per_file, 10_000)
    found = {}
    for what, gap, make in (("window", 0, None), ("session", GAP, session_operator)):
        work = jobs.fresh(root / "work")
        way = partial(run, spark, make, folder, work, resident=True) if make else partial(jobs.operator_resident, spark, folder, work)
        ours = _measure(meter, f"{what} operator", way)
        program = [options.bytewax, str(Path(__file__).with_name("bytewax_windows.py")), str(folder), str(gap), str(root / "bytewax")]
        told = subprocess.run(program, capture_output=True, text=True, check=True).stdout
        seconds, spent = json.loads(told.splitlines()[-1])
        lines = [json.loads(line) for line in (root / "bytewax").read_text().splitlines()]
        (root / "bytewax").unlink()
        counts = sorted(count for *_, count in lines)
        right = sorted(count for *_, count in session_rows(work / "out")) if gap else sorted(truth.values())
        records = options.files * options.per_file
        said = "the same counts" if counts == right else f"{len(counts)} counts instead of {len(right)}"
        print(f"Bytewax {what}  {records / seconds:10,.0f} records/s   CPU-s per million {1e6 * spent / records:6.2f}   {said}", flush=True)
        found[f"{what}_throughput_vs_bytewax"] = round(ours.rate * seconds / records, 1)
        found[f"{what}_cpu_vs_bytewax"] = round(ours.cpu.total * records / (1e6 * spent), 3)
    return found


def _hot(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    folder = jobs.fresh(root / "data-hot")
    data.make(folder, options.files, options.per_file, 10_000)
    told, rows = {}, {}
    for spread in (None, 16):
        work = jobs.fresh(root / "work")
        told[spread] = _measure(meter, f"spread {spread}", partial(run, spark, partial(hot_operator, spread), folder, work, resident=True))
        rows[spread] = sorted(map(repr, _lines(work / "out", "*.jsonl", "value")))
    assert rows[None] == rows[16]
    return {
        "spread_throughput_vs_one_task": round(told[16].rate / told[None].rate, 2),
        "spread_cpu_vs_one_task": round(told[16].cpu.total / told[None].cpu.total, 2),
    }


def _flink(spark: Any, meter: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    """Windows in Flink's SQL, over the same files of CSV, which both can read with what they bring."""
    if subprocess.run([options.flink, "-c", "import pyflink.table"], capture_output=True).returncode:
        print(f"{options.flink} has no PyFlink: no comparison. Give one that has (pip install apache-flink) with --flink", flush=True)
        return {}
    folder, work = jobs.fresh(root / "data-flink"), jobs.fresh(root / "work")
    truth: dict[tuple[str, int], int] = {}
    for (term, second), count in data.make(root / "data-parquet", options.files, options.per_file, 10_000).items():
        truth[term, second // 60_000] = truth.get((term, second // 60_000), 0) + count
    for path in sorted((root / "data-parquet").glob("*.parquet")):
        plain = csv.WriteOptions(include_header=False, quoting_style="none")
        csv.write_csv(pq.read_table(path), folder / f"{path.stem}.csv", plain)
    ours = _measure(meter, "minute operator", partial(run, spark, minute_operator, folder, work, resident=True, form="csv"))
    found = {(row["term"], row["start"] // 60_000): row["count"] for row in _lines(work / "out", "*.jsonl", "value")}
    assert found == truth
    program = [options.flink, str(Path(__file__).with_name("flink_windows.py")), str(folder), str(root / "flink")]
    seconds, spent = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    theirs = {(row["term"], row["start_at"] // 60): row["n"] for row in _lines(root / "flink" / "second", "part-*")}
    records = options.files * options.per_file
    said = "the same counts" if theirs == truth else f"{len(theirs)} counts instead of {len(truth)}, of {sum(theirs.values()):,} records"
    print(f"Flink minutes  {records / seconds:10,.0f} records/s   CPU-s per million {1e6 * spent / records:6.2f}   {said}", flush=True)
    return {
        "window_throughput_vs_flink": round(ours.rate * seconds / records, 2),
        "window_cpu_vs_flink": round(ours.cpu.total * records / (1e6 * spent), 3),
    }


def _lines(folder: Path, pattern: str, field: str | None = None) -> list[Any]:
    rows = [json.loads(line) for path in folder.glob(pattern) for line in path.read_text().splitlines()]
    return rows if field is None else [row[field] for row in rows]


PARTS: dict[str, Any] = {"windows": _windows, "sessions": _sessions, "joins": _joins, "peers": _peers, "hot": _hot, "flink": _flink}

if __name__ == "__main__":
    main()
