"""The Spark engine against the local one, and everything that a pipeline may consist of."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from sparkkit import BASE, Echo, run, write

import job
import millstream as ms
import support

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("seed", "shards"), [(1, 1), (2, 3)])
def test_oracle_outputs_state_and_timers_equal_those_of_the_local_engine(spark: Any, tmp_path: Path, seed: int, shards: int) -> None:
    files = support.queries(4, 80, terms=6, seed=seed)
    support.write_queries(tmp_path / "queries", files)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False, shards=shards)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False)  # one more epoch: timers that the last records made due
    support.assert_same(tmp_path, support.oracle(tmp_path, files, shards=shards))


def test_a_bounded_run_drains_and_may_be_run_again_without_new_input(spark: Any, tmp_path: Path) -> None:
    files = support.queries(2, 60)
    support.write_queries(tmp_path / "queries", files)
    run(job.pipeline(tmp_path), spark, tmp_path)
    expected = support.oracle(tmp_path, files, drain=True)
    support.assert_same(tmp_path, expected)
    assert sum(value["count"] for _, value, _ in support.json_rows(tmp_path / "counts")) == 120
    again = run(job.pipeline(tmp_path), spark, tmp_path)
    assert again.status().drained
    support.assert_same(tmp_path, expected)
    support.write_queries(tmp_path / "queries", support.queries(3, 60))
    with pytest.raises(ms.errors.CheckpointError, match="drained"):
        run(job.pipeline(tmp_path), spark, tmp_path)


class Join(ms.Computation):
    """Counts what came on which stream; two output streams."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        self.state[record.stream] = self.state.get(record.stream, 0) + 1
        self.produce({"from": record.stream, "n": self.state[record.stream], "value": record.value}, stream="all")
        if record.stream == "clicks":
            self.produce(record.value, stream="clicked")


class Last(ms.Computation):
    """Reads an injected stream and an internal one."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state = [*self.state, record.stream][-3:]
        self.produce(self.state)


def test_several_injectors_consumers_inputs_outputs_and_kinds_of_keys(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "views", "a.json", [{"user": i % 3, "page": f"p{i % 2}", "at": BASE + i} for i in range(12)])
    write(tmp_path / "clicks", "a.json", [{"who": i % 3, "what": f"x{i}", "when": (BASE + 100 + i) / 1000} for i in range(6)])
    p = ms.Pipeline("many")
    views = p.inject("views", ms.sources.files(tmp_path / "views", schema="user long, page string, at long"), timestamp="at")
    clicks = p.inject(
        "clicks",
        ms.sources.files(tmp_path / "clicks", schema="who long, what string, when double", format="json"),
        timestamp=F.timestamp_seconds("when"),
        value="what",
    )
    everything, clicked = p.compute(Join, views, clicks, key={"views": "user", "clicks": "who"}, produces=["all", "clicked"])
    pages = p.compute(Last, views, key=["page", "user"], name="Pages", produces="all2")
    upper = p.compute(Last, clicked, views, key={"clicked": lambda record: record.value.upper(), "views": F.upper("page")}, produces="last")
    sinks = {name: ms.sinks.memory() for name in ("all", "clicked", "last", "all2", "raw")}
    p.emit(everything, sinks["all"])
    p.emit(everything, ms.sinks.files(tmp_path / "all"))
    p.emit(clicked, sinks["clicked"])
    p.emit(pages, sinks["all2"])
    p.emit(upper, sinks["last"])
    p.emit(views, sinks["raw"])
    run(p, spark, tmp_path)
    rows = sinks["all"].collected
    assert len(rows) == 18 and {row.key for row in rows} == {0, 1, 2}
    assert max(row.value["n"] for row in rows if row.value["from"] == "views") == 4
    assert sorted(row.value for row in sinks["clicked"].collected) == [f"x{i}" for i in range(6)]
    assert all(row.timestamp == BASE + 100 + int(row.value[1:]) for row in sinks["clicked"].collected)
    assert {row.key for row in sinks["all2"].collected} == {(f"p{i % 2}", i % 3) for i in range(12)}
    keys = {row.key for row in sinks["last"].collected}
    assert keys == {"P0", "P1"} | {f"X{i}" for i in range(6)}
    assert len(support.json_rows(tmp_path / "all")) == 18
    assert sorted(row.value["at"] for row in sinks["raw"].collected) == [BASE + i for i in range(12)]


def test_an_idle_pipeline_fires_what_is_due_and_runs_no_job_when_nothing_is(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "at": BASE}, {"k": "b", "at": BASE + 50}])
    p = ms.Pipeline("idle")
    stream = p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, at long"), timestamp="at", value="k")
    sink = ms.sinks.memory()
    p.emit(p.compute(Echo, stream, key="k", produces="out"), sink)
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", trigger="100ms", shards=2)
    expected = {("a", "a"), ("b", "b"), ("a", "wall_clock later"), ("b", "wall_clock later"), ("a", "low_watermark window")}
    deadline = time.monotonic() + 30
    while {(row.key, row.value) for row in sink.collected} != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {(row.key, row.value) for row in sink.collected} == expected
    assert len(sink.collected) == len(expected)
    here = handle.status().epoch
    while handle.status().epoch < here + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [e["job"] for e in handle.epochs()[-2:]] == [False, False]
    handle.stop()
    assert not handle.running and handle.error is None
    # the same again, across a restart: the last window closes by the drain
    p.run(spark, checkpoint=tmp_path / "checkpoint", available_now=True).await_termination()
    assert ("b", "low_watermark window") in {(row.key, row.value) for row in sink.collected}
    assert len(sink.collected) == len(expected) + 1


def test_starting_before_there_is_any_input(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    p = ms.Pipeline("empty")
    stream = p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, at long", format="json"), timestamp="at")
    sink = ms.sinks.memory()
    p.emit(p.compute(Echo, stream, key="k", produces="out"), sink)
    run(p, spark, tmp_path, drain=False)
    write(tmp_path / "in", "a.json", [{"k": "a", "at": BASE}])
    run(p, spark, tmp_path, drain=False)
    assert [row.value for row in sink.collected if row.value != "wall_clock later"] == [{"k": "a", "at": BASE}]


def test_sinks_each_epoch_gets_a_dataframe_and_a_plain_reader_sees_committed_parquet_only(spark: Any, tmp_path: Path) -> None:
    files = support.queries(3, 40)
    support.write_queries(tmp_path / "queries", files)
    seen: list[tuple[int, list[Any]]] = []
    p = job.pipeline(tmp_path)
    p.emit("counts", ms.sinks.each_epoch(lambda frame, epoch: seen.append((epoch, frame.collect()))))
    p.emit(
        "totals",
        ms.sinks.files(tmp_path / "plain", format="parquet", schema="key long, timestamp long, value struct<second:long,total:long>"),
    )
    run(p, spark, tmp_path)
    assert sum(row.value["count"] for _, rows in seen for row in rows) == 120
    epochs = [epoch for epoch, _ in seen]
    assert epochs == sorted(set(epochs)), "each once, in their order"
    assert all(rows[0].timestamp for _, rows in seen)
    plain = spark.read.parquet(str(tmp_path / "plain"))
    assert plain.selectExpr("sum(value.total)").first()[0] == 120
    assert plain.schema.simpleString() == "struct<key:bigint,timestamp:bigint,value:struct<second:bigint,total:bigint>>"
    assert not list((tmp_path / "plain" / "_staging").glob("*"))


def test_any_streaming_dataframe_is_a_source_and_rate_is_there_for_trying_things(spark: Any, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load().withColumn("k", F.col("value") % 4)
    p = ms.Pipeline("frames")
    numbers = p.inject("numbers", frame, timestamp="timestamp", value="value")
    ticks = p.inject("ticks", ms.sources.rate(50), timestamp="timestamp")
    sink = ms.sinks.memory()
    p.emit(p.compute(Last, numbers, ticks, key={"numbers": "k", "ticks": F.lit(9)}, produces="out"), sink)
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", trigger="200ms", shards=2)
    deadline = time.monotonic() + 30
    while not {0, 1, 2, 3, 9} <= {row.key for row in sink.collected} and time.monotonic() < deadline:
        time.sleep(0.1)
    handle.stop()
    assert {0, 1, 2, 3, 9} == {row.key for row in sink.collected}


class Remember(ms.Computation):
    """A map per key."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        at = record.value["n"]
        self.state[at] = self.state.get(at, 0) + 1
        if at % 100 == 0:
            self.produce([key for key, _ in self.state.range(at - 3, at + 1)])


def test_map_state_writes_only_what_an_epoch_touches(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "n": n, "at": BASE + n} for n in range(3000)])
    p = ms.Pipeline("maps")
    stream = p.inject("in", ms.sources.files(tmp_path / "in", schema="k string, n long, at long", max_files_per_epoch=1), timestamp="at")
    sink = ms.sinks.memory()
    p.emit(p.compute(Remember, stream, key="k", produces="out"), sink)
    run(p, spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", [{"k": "a", "n": 700, "at": BASE + 5000}])
    run(p, spark, tmp_path, drain=False)
    assert sink.collected[-1].value == [697, 698, 699, 700]
    found = support.entries(tmp_path / "checkpoint")["Remember"]
    assert sum(key.startswith(b"M") for key in found) == 3000
    from millstream.state.manifest_log import ManifestLog
    from millstream.state.storage import open_storage

    manifest = ManifestLog(open_storage(tmp_path / "checkpoint")).latest()
    assert manifest is not None
    last = max((ref for shard in manifest.computations["Remember"].shards for ref in shard.segments), key=lambda ref: ref.last)
    assert last.entries <= 2  # the sub-row, and at most the row


def test_many_epochs_are_compacted_and_the_state_cache_may_be_deleted(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = job.pipeline(tmp_path)
    files = support.queries(20, 12, seed=9)
    support.write_queries(tmp_path / "queries", files)
    monkeypatch.setenv("MILLSTREAM_STATE_CACHE", str(tmp_path / "state_caches"))
    handle = run(p, spark, tmp_path, drain=False)
    import shutil

    shutil.rmtree(tmp_path / "state_caches")
    more = support.queries(22, 12, seed=9)
    support.write_queries(tmp_path / "queries", more)
    handle = run(job.pipeline(tmp_path), spark, tmp_path, drain=False)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False)
    support.assert_same(tmp_path, support.oracle(tmp_path, more))
    chains = [computation.segments for computation in handle.status().computations]
    assert max(chains) < 2 * 20
