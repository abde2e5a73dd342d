"""Views: a table of users whose names change, and a count by name that is always right; against our own window job, a lean view, Pathway and SQL.

Job V: `--users` documents, Zipf names, updates of which 1 % are stale, `--per-file` an epoch, Parquet. The first files are the load, in which every
user comes once; what is measured are the epochs of updates behind it.

Rules
1. Every way reads the same files at the same pace, one an epoch. What a view shows at the end is compared with a count in plain Python.
2. Ratios come from one run. `views_vs_window` is updates/s of V over records/s of the window job of `throughput.py`; `views_vs_pathway` that of V over
   Pathway's upsert-and-count in memory on the same files, in a process of its own with two threads, if Pathway is installed.
3. `refresh_vs_sql`: seconds of Spark SQL that takes the latest version of every user and groups them (what a recomputed materialized view does), over
   seconds of an epoch of 1,000 updates on the same checkpoint.
4. Reads, writes and messages are entries of the view's step, without the table's own, per update.
5. `group_cpu_1m_vs_1k`: CPU of the step of a `min` group with a million contributions over that with a thousand, 100 random updates an epoch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms
from benchmarks import cpu, data, jobs
from benchmarks.measure import Epoch, Measured, measured

SCHEMA = "id long, name string, ts long"
STALE = 0.01
PARTS = ("volume", "refresh", "several", "rebuild", "group", "pathway")


def main() -> dict[str, float]:
    options = _options()
    parts = options.only.split(",")
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if "group" in parts:
            result.update(group(options.largest))
        if set(parts) - {"group"}:
            result.update(_on_spark(options, parts, root))
    print(json.dumps(result))
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--names", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=6, help="files of updates behind the load (6)")
    parser.add_argument("--per-file", type=int, default=200_000, help="updates in a file, and so in an epoch (200,000)")
    parser.add_argument("--window-files", type=int, default=6, help="files of the window job (6)")
    parser.add_argument("--largest", type=int, default=1_000_000, help="contributions of the largest group (1,000,000)")
    parser.add_argument("--pathway", default=sys.executable, help="a Python that has Pathway, for the part of that name (this one)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts ({','.join(PARTS)})")
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return options


# --- input


def make(folder: Path, users: int, names: int, files: int, per_file: int, seed: int = 3) -> tuple[int, dict[str, int]]:
    """Writes the load and the updates. Returns how many files the load has, and how many users have each name at the end."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, names + 1)
    weights /= weights.sum()
    name_of = np.zeros(users, np.int64)
    newest = np.zeros(users, np.int64)
    load = -(-users // per_file)
    order = dice.permutation(users)
    for index in range(load + files):
        if index < load:
            ids = order[index * per_file : (index + 1) * per_file]
        else:
            ids = dice.integers(0, users, per_file)
        drawn = dice.choice(names, size=len(ids), p=weights)
        ts = 1_000_000 * (index + 1) + np.arange(len(ids))
        if index >= load:
            stale = dice.random(len(ids)) < STALE
            ts[stale] -= 1_000_000 * dice.integers(index - load + 1, index + 1, int(stale.sum()))  # back into the load
        for at in range(len(ids)):  # in order, as a person would
            if ts[at] > newest[ids[at]]:
                newest[ids[at]], name_of[ids[at]] = ts[at], drawn[at]
        table = pa.table({"id": pa.array(ids), "name": pa.array([f"name-{n:05d}" for n in drawn.tolist()]), "ts": pa.array(ts)})
        pq.write_table(table, folder / f"part-{index:05d}.parquet")
    counts = Counter(name_of[newest > 0].tolist())
    return load, {f"name-{n:05d}": count for n, count in counts.items()}


# --- ways


def pipeline(folder: Path, origins: bool = True, views: int = 1, version: str = "1") -> ms.Pipeline:
    """Job V as a user writes it."""
    p = ms.Pipeline("people")
    source = ms.sources.files(folder, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    users = p.table("users", source, key="id", version="ts")
    users.by("name").reduce(ms.count(), name="names", origins=origins, version=version)
    for at in range(1, views):
        users.by("name").reduce(ms.count(), name=f"names{at}", origins=origins)
    return p


def shown(checkpoint: Path) -> dict[str, int]:
    """What the view shows, read from its rows."""
    import msgspec

    from millstream.core.keyspace import ROW, decode_row
    from millstream.state.manifest_log import ManifestLog
    from millstream.state.segment import merge
    from millstream.state.storage import open_storage

    log = ManifestLog(open_storage(str(checkpoint), None))
    latest = log.latest()
    assert latest is not None
    found: dict[str, int] = {}
    for shard in latest.computations["names"].shards:
        for entry, raw in merge(log.storage, shard.segments, drop_deleted=True):
            if entry.startswith(ROW) and raw is not None:
                told = msgspec.msgpack.decode(decode_row(raw).state)[4]
                if told:
                    found[entry[1:].decode()] = told[0]
    return found


def run(spark: Any, folder: Path, work: Path, **options: Any) -> tuple[list[Epoch], Any]:
    """A bounded run of job V."""
    handle = pipeline(folder, **options).run(spark, checkpoint=work / "checkpoint", available_now=True, drain=False, quiet=True)
    handle.await_termination()
    return jobs.epochs_of(handle), handle


def _on_spark(options: argparse.Namespace, parts: list[str], root: Path) -> dict[str, float]:
    result: dict[str, float] = {}
    print(f"making {options.users:,} users and {options.files * options.per_file:,} updates", flush=True)
    load, truth = make(root / "data", options.users, options.names, options.files, options.per_file)
    if parts == ["pathway"]:
        return _pathway(options.pathway, root / "data", load, truth, None)
    spark = jobs.session()
    with cpu.meter(spark) as meter:
        print("warming up", flush=True)
        few = _some(root, root / "data", "few", 1)
        run(spark, few, jobs.fresh(root / "warm"))
        whole: Measured | None = None
        if "volume" in parts or "pathway" in parts:
            whole, found = _volume(spark, meter, root, options, load, truth)
            result.update(found)
        if "refresh" in parts:
            result.update(_refresh(spark, root, truth))
        if "several" in parts:
            result.update(_several(spark, meter, root, options, load))
        if "rebuild" in parts:
            result.update(_rebuild(spark, root, options))
    spark.stop()
    if "pathway" in parts:
        result.update(_pathway(options.pathway, root / "data", load, truth, whole))
    return result


def _volume(
    spark: Any, meter: cpu.Meter, root: Path, options: argparse.Namespace, load: int, truth: dict[str, int]
) -> tuple[Measured, dict[str, float]]:
    epochs, handle = run(spark, root / "data", jobs.fresh(root / "v"))
    one = measured(meter, epochs, load)
    print(one.line("view"), flush=True)
    first = measured(meter, epochs[:load], 1)
    print(first.line("load"), flush=True)
    assert shown(root / "v" / "checkpoint") == truth, "the view is wrong"
    tallies = {c.name: c.tallies for c in handle.status().computations}
    updates = load * options.per_file + options.files * options.per_file
    print(f"tallies: {tallies}", flush=True)
    lean_epochs, _ = run(spark, root / "data", jobs.fresh(root / "lean"), origins=False)
    lean = measured(meter, lean_epochs, load)
    print(lean.line("view, lean"), flush=True)
    assert shown(root / "lean" / "checkpoint") == truth, "the lean view is wrong"
    shutil.rmtree(root / "lean")
    data.make(root / "queries", options.window_files, options.per_file, options.names)
    window = measured(meter, jobs.WAYS["millstream"](spark, root / "queries", jobs.fresh(root / "window")), 2)
    print(window.line("window job"), flush=True)
    return one, {
        "views_vs_window": round(one.rate / window.rate, 3),
        "views_cpu_per_million": round(one.cpu.total, 2),
        "views_lean_vs_origins": round(lean.rate / one.rate, 2),
        "views_lean_cpu_vs_origins": round(lean.cpu.total / one.cpu.total, 3),
        "views_messages_per_update": round(tallies["users"]["messages"] / updates, 3),
        "views_updates_per_second": round(one.rate),
    }


def _some(root: Path, source: Path, name: str, count: int) -> Path:
    folder = root / name
    folder.mkdir()
    for path in sorted(source.glob("*.parquet"))[:count]:
        (folder / path.name).symlink_to(path)
    return folder


def _updates(folder: Path, number: int, users: int, count: int) -> None:
    dice = np.random.default_rng(number)
    table = pa.table(
        {
            "id": pa.array(dice.integers(0, users, count)),
            "name": pa.array([f"name-{n:05d}" for n in dice.integers(0, 10_000, count).tolist()]),
            "ts": pa.array(10**12 + number * 10**6 + np.arange(count)),
        }
    )
    pq.write_table(table, folder / f"part-{10_000 + number:05d}.parquet")


def _refresh(spark: Any, root: Path, truth: dict[str, int]) -> dict[str, float]:
    """An epoch of 1,000 updates on what the volume part has left, against a recomputation from all versions."""
    checkpoint = root / "v"
    if not checkpoint.exists():
        run(spark, root / "data", jobs.fresh(checkpoint))
    for number in range(6):
        _updates(root / "data", number, 1_000_000, 1_000)
    epochs, _ = run(spark, root / "data", checkpoint)
    ours = sorted(epoch.seconds for epoch in epochs[1:])[len(epochs[1:]) // 2]
    spark.read.parquet(str(root / "data")).createOrReplaceTempView("versions")
    query = "select name, count(*) as n from (select id, max_by(name, ts) as name from versions group by id) group by name"
    theirs = min(_seconds(lambda: spark.sql(query).write.mode("overwrite").parquet(str(root / "sql"))) for _ in range(3))
    versions = spark.sql("select count(*) from versions").first()[0]
    print(f"refresh after 1,000 updates: {ours:.2f} s; SQL over {versions:,} versions: {theirs:.2f} s", flush=True)
    return {"refresh_vs_sql": round(theirs / ours, 2), "refresh_seconds": round(ours, 3)}


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _several(spark: Any, meter: cpu.Meter, root: Path, options: argparse.Namespace, load: int) -> dict[str, float]:
    """Five views on one table against one, in epochs of 1,000 updates."""
    found = {}
    for views in (1, 5):
        folder = _some(root, root / "data", f"several-{views}", 1)
        for number in range(8):
            _updates(folder, number, options.users, 1_000)
        epochs, _ = run(spark, folder, jobs.fresh(root / f"views-{views}"), views=views)
        small = sorted(epoch.seconds for epoch in epochs[3:])
        found[views] = small[len(small) // 2]
        print(f"{views} views: {found[views]:.2f} s per epoch of 1,000 updates", flush=True)
    return {"five_views_vs_one": round(found[5] / found[1], 2)}


def _rebuild(spark: Any, root: Path, options: argparse.Namespace) -> dict[str, float]:
    """A changed version: documents per second of the scan against those of the load."""
    folder = _some(root, root / "data", "rebuild-data", max(2, -(-options.users // options.per_file)))
    work = jobs.fresh(root / "rebuild")
    epochs, _ = run(spark, folder, work)
    loading = sum(epoch.rows for epoch in epochs[1:]) / sum(epoch.seconds for epoch in epochs[1:])
    began = time.perf_counter()
    _, handle = run(spark, folder, work, version="2")
    seconds = time.perf_counter() - began
    state = handle.status()
    rows = sum(epoch.rows for epoch in epochs)
    print(f"load {loading:,.0f} documents/s, scan {rows / seconds:,.0f}/s with start and end of the run; {state}", flush=True)
    return {"scan_vs_load": round(rows / seconds / loading, 2)}


# --- one group


def group(largest: int) -> dict[str, float]:
    """CPU of the step of one `min` group, 100 random updates an epoch."""
    found = {}
    for size in (1_000, largest):
        found[size] = _group_cpu(size)
        print(f"a min group of {size:,}: {found[size] * 1e6:.1f} us per update", flush=True)
    return {"group_cpu_1m_vs_1k": round(found[largest] / found[1_000], 2), "group_us_1k": round(found[1_000] * 1e6, 1)}


def _group_cpu(size: int, epochs: int = 60, each: int = 100) -> float:
    from millstream.core.arrivals import Arrivals
    from millstream.core.keys import key_text
    from millstream.core.outcome import Times
    from millstream.engine.program import Compiled
    from millstream.state.memory_storage import MemoryStore
    from millstream.views.change import INSERT, UPDATE, packed

    p = ms.Pipeline("one")
    p.table("t", ms.sources.files("in/", schema="id long, n long, ts long"), key="id", version="ts").by().reduce(ms.min("n"), name="least")
    compiled = Compiled(p.program())
    store, encode = MemoryStore(), ms.codecs.msgpack.encoder()
    dice = np.random.default_rng(1)

    def step(epoch: int, entries: list[list[Any]]) -> float:
        body = encode(packed(1, [encode(entry) for entry in entries]))
        arrivals = Arrivals.of([compiled.arrival("least~", "", 0, f"{epoch}", body)])
        times = {"least": Times(0, -(2**63), -(2**63), epoch)}
        (home,) = [one for level in compiled.topology.levels for one in level if "least" in one.computations]
        began = time.process_time()
        outcome = compiled.run_group(home, {"least": arrivals}, {"least": store}, times)["least"]
        spent = time.process_time() - began
        store.apply(outcome.delta)
        return spent

    for at in range(0, size, 100_000):
        step(-1, [[key_text(id), INSERT, [id * 7 % 1_000_003]] for id in range(at, min(size, at + 100_000))])
    spent = []
    for epoch in range(epochs):
        ids = dice.integers(0, size, each).tolist()
        spent.append(step(epoch, [[key_text(id), UPDATE, [int(dice.integers(0, 1_000_003))]] for id in ids]))
    return sorted(spent)[len(spent) // 2] / each


# --- Pathway

_PATHWAY = """
import sys, time, glob, json
import pathway as pw
import pyarrow.parquet as pq
folder, load = sys.argv[1], int(sys.argv[2])
class S(pw.Schema):
    id: int = pw.column_definition(primary_key=True)
    name: str
    ts: int
class Files(pw.io.python.ConnectorSubject):
    def run(self):
        for at, path in enumerate(sorted(glob.glob(folder + "/part-0*.parquet"))):
            if at == load:
                self.commit(); time.sleep(0.2); marks.append((time.time(), time.process_time()))
            t = pq.read_table(path)
            for id, name, ts in zip(t["id"].to_pylist(), t["name"].to_pylist(), t["ts"].to_pylist()):
                if ts <= newest.get(id, -1): continue
                newest[id] = ts
                self.next(id=id, name=name, ts=ts)
            self.commit()
marks, newest, state = [], {}, {}
t = pw.io.python.read(Files(session_type="upsert"), schema=S, autocommit_duration_ms=None)
counts = t.groupby(pw.this.name).reduce(pw.this.name, n=pw.reducers.count())
def on(key, row, time, is_addition):
    if is_addition: state[row["name"]] = row["n"]
    elif state.get(row["name"]) == row["n"]: del state[row["name"]]
pw.io.subscribe(counts, on_change=on)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(json.dumps([time.time() - marks[0][0], time.process_time() - marks[0][1], state]))
"""


def _pathway(python: str, folder: Path, load: int, truth: dict[str, int], ours: Measured | None) -> dict[str, float]:
    """Pathway's upsert and count, in a process of its own."""
    if subprocess.run([python, "-c", "import pathway"], capture_output=True).returncode:
        print(f"{python} has no Pathway: no comparison. Give one that has with --pathway", flush=True)
        return {}
    for path in folder.glob("part-1*.parquet"):
        path.unlink()
    updates = sum(pq.ParquetFile(path).metadata.num_rows for path in sorted(folder.glob("part-0*.parquet"))[load:])
    told = subprocess.run([python, "-c", _PATHWAY, str(folder), str(load)], capture_output=True, text=True, env=_two_threads())
    if told.returncode:
        print(told.stderr[-2000:], flush=True)
        return {}
    seconds, spent, state = json.loads(told.stdout.splitlines()[-1])
    assert state == truth, "Pathway's count is another one"
    print(f"Pathway          {updates / seconds:10,.0f} updates/s   CPU-s per million {1e6 * spent / updates:.2f}", flush=True)
    found = {"pathway_cpu_per_million": round(1e6 * spent / updates, 2)}
    if ours is not None:
        found["views_vs_pathway"] = round(ours.rate / (updates / seconds), 2)
        found["views_cpu_vs_pathway"] = round(ours.cpu.total / (1e6 * spent / updates), 2)
    return found


def _two_threads() -> dict[str, str]:
    import os

    return {**os.environ, "PATHWAY_THREADS": "2", "PATHWAY_DISABLE_TELEMETRY": "1"}


if __name__ == "__main__":
    main()
