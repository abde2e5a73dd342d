"""Resident runs: what they refuse and how they read, that they equal the local engine, how they are left and gone on with in the other mode."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from sparkkit import BASE, Echo, run, write

import job
import millstream as ms
import support
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark


class Tally(ms.Computation):
    """Counts, and says it."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(self.state)


class Wrong(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        raise ValueError(f"no {record.value['k']} today")


def simple(work: Path, computation: Any = Tally, key: Any = "k", **options: Any) -> ms.Pipeline:
    (work / "in").mkdir(exist_ok=True)
    p = ms.Pipeline("simple")
    rows = p.inject("rows", ms.sources.files(work / "in", schema="k string, n long, at long", format="json"), timestamp="at", **options)
    p.emit(p.compute(computation, rows, name="counts", produces="out", key=key), ms.sinks.files(work / "out"))
    return p


@pytest.mark.parametrize(("seed", "shards", "tasks"), [(1, 1, 1), (2, 3, 2)])
def test_outputs_state_and_timers_equal_those_of_the_local_engine(spark: Any, tmp_path: Path, seed: int, shards: int, tasks: int) -> None:
    files = support.queries(4, 80, terms=6, seed=seed)
    support.write_queries(tmp_path / "queries", files)
    run(job.pipeline(tmp_path), spark, tmp_path, drain=False, shards=shards, resident=True, tasks=tasks)
    support.assert_same(tmp_path, support.oracle(tmp_path, files, shards=shards))


@pytest.mark.parametrize("first", [True, False])
def test_a_run_goes_on_in_the_other_mode(spark: Any, tmp_path: Path, first: bool) -> None:
    """There and back, with windows open, productions that wait on a strong edge, and ids that must still be known."""
    files = support.queries(6, 60, terms=6, seed=5)
    for count, resident in ((2, first), (4, not first), (6, first)):
        support.write_queries(tmp_path / "queries", files[:count])
        run(job.pipeline(tmp_path), spark, tmp_path, drain=count == 6, resident=resident, shards=2)
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True, shards=2))
    assert not (tmp_path / "checkpoint" / "spark").exists(), "Spark has planned nothing"


def test_much_input_is_read_by_the_tasks(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.engine.resident import runner

    monkeypatch.setattr(runner, "LITTLE", 100)
    for at in range(5):
        write(tmp_path / "in", f"{at}.json", [{"k": f"k{i % 7}", "n": i, "at": BASE + i} for i in range(300)])
    handle = run(simple(tmp_path), spark, tmp_path, resident=True, shards=4)
    assert {k: max(v for key, v, _ in handle.output() if key == k) for k in {k for k, _, _ in handle.output()}} == {
        f"k{i}": sum(1 for n in range(300) if n % 7 == i) * 5 for i in range(7)
    }
    # what the driver reads for tasks of one level needs no exchange
    assert "exchange" in {phase for epoch in handle.epochs() for phase in epoch["phases"]}


# --- what is refused, and before anything is written


def refused(p: ms.Pipeline, spark: Any, work: Path, match: str, **options: Any) -> None:
    with pytest.raises(ms.errors.DefinitionError, match=match):
        p.run(spark, checkpoint=work / "checkpoint", resident=True, quiet=True, **options)
    assert not (work / "checkpoint").exists()


def test_a_streaming_frame_is_refused(spark: Any, tmp_path: Path) -> None:
    p = ms.Pipeline("frame")
    rows = p.inject("rows", spark.readStream.format("rate").load(), timestamp="timestamp")
    p.emit(p.compute(Tally, rows, key="value", produces="out"), ms.sinks.memory())
    refused(p, spark, tmp_path, "injected stream 'rows': .*can only be read by Spark.* run without resident=True")


def test_what_only_spark_can_work_out_is_refused(spark: Any, tmp_path: Path) -> None:
    refused(simple(tmp_path, key=F.upper("k")), spark, tmp_path, "'rows'.*(?s:.)*without resident=True")
    refused(simple(tmp_path, key="md5(k)"), spark, tmp_path, "'rows'.*(?s:.)*without resident=True")
    with pytest.raises(ms.errors.DefinitionError, match="there is no column 'q'; the source has: k, n, at"):
        simple(tmp_path, key="q")


def test_too_few_slots_are_refused(spark: Any, tmp_path: Path) -> None:
    refused(simple(tmp_path), spark, tmp_path, r"99 resident tasks need 99 slots, and this session has \d+ .*say tasks=", tasks=99)
    refused(simple(tmp_path), spark, tmp_path, "at least 1", tasks=0)
    with pytest.raises(ms.errors.DefinitionError, match="resident=True"):
        simple(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", tasks=2)


def test_speculation_is_refused(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.sparkContext._conf.set("spark.speculation", "true")
    try:
        refused(simple(tmp_path), spark, tmp_path, "spark.speculation")
    finally:
        spark.sparkContext._conf.set("spark.speculation", "false")


def test_a_sink_that_runs_jobs_of_sparks_gets_a_slot_or_is_refused(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "n": 1, "at": BASE}])
    got: list[tuple[str, int]] = []
    p = simple(tmp_path)
    p.emit("out", ms.sinks.each_epoch(lambda frame, epoch: got.extend((r.key, r.value) for r in frame.collect())))
    refused(p, spark, tmp_path, "each_epoch.*takes? all|takes:", tasks=spark.sparkContext.defaultParallelism)
    run(p, spark, tmp_path, resident=True)
    assert got == [("a", 1)]


@pytest.mark.parametrize(
    ("setting", "value", "schema"),
    [
        ("session.timeZone", "Asia/Tokyo", "k string, at timestamp"),
        ("caseSensitive", "true", "k string, at long"),
        ("files.ignoreCorruptFiles", "true", "k string, at long"),
    ],
)
def test_settings_that_only_spark_follows_are_refused(spark: Any, tmp_path: Path, setting: str, value: str, schema: str) -> None:
    (tmp_path / "in").mkdir()
    p = ms.Pipeline("set")
    rows = p.inject("rows", ms.sources.files(tmp_path / "in", schema=schema, format="json"), timestamp="at")
    p.emit(p.compute(Tally, rows, key="k", produces="out"), ms.sinks.memory())
    before = spark.conf.get(f"spark.sql.{setting}")
    spark.conf.set(f"spark.sql.{setting}", value)
    try:
        refused(p, spark, tmp_path, f"'rows'.*spark.sql.{setting}={value}.*without resident=True")
    finally:
        spark.conf.set(f"spark.sql.{setting}", before)


def test_a_task_is_replaced_by_plan_which_is_no_loss_and_no_failure_to_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.engine.resident import coordinator

    handle = simple(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", resident=True, shards=2, quiet=True)
    try:
        write(tmp_path / "in", "0.json", [{"k": "a", "n": 1, "at": BASE}])
        until(lambda: handle.status().records == 1)
        before = {task.pid for task in handle.status().mode.tasks}
        monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 0.0)
        for at in range(1, 4):
            write(tmp_path / "in", f"{at}.json", [{"k": "a", "n": 1, "at": BASE + at}])
            until(lambda at=at: handle.status().records == at + 1)  # type: ignore[misc]
        monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 3600.0)
        until(lambda: len(handle.status().mode.tasks) == 2)
        mode = handle.status().mode
        assert mode.losses == 0 and mode.generation > 2
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before))  # a process that Spark keeps would keep what it has leaked
    finally:
        handle.stop()
    assert [value for _, value, _ in handle.output()] == [1, 2, 3, 4]
    tracker = spark.sparkContext.statusTracker()
    jobs = tracker.getJobIdsForGroup(f"millstream resident {handle._epochs.token}")
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in tracker.getJobInfo(job).stageIds]
    assert len(stages) == mode.jobs > 3 and [stage.numFailedTasks for stage in stages] == [0] * len(stages)


def test_live_state_is_served_beside_a_resident_run(spark: Any, tmp_path: Path) -> None:
    handle = simple(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", resident=True, shards=2, quiet=True, serve="127.0.0.1:0")
    try:
        write(tmp_path / "in", "0.json", [{"k": "a", "n": 1, "at": BASE}, {"k": "a", "n": 1, "at": BASE + 1}])
        until(lambda: handle.status().records == 2)
        with ms.service.Client(handle.serving, "counts") as client:
            until(lambda: [json.loads(row.value)["state"] for row in client.get_many(["a"], as_json=True) if row.value] == [2])
    finally:
        handle.stop()


# --- errors read as in micro-batches


@pytest.mark.parametrize("resident", [False, True])
def test_a_hook_that_raises_reads_the_same(spark: Any, tmp_path: Path, resident: bool) -> None:
    write(tmp_path / "in", "a.json", [{"k": "tea", "n": 1, "at": BASE}])
    with pytest.raises(ms.errors.HookError, match=r"'counts'.*(?s:.)*'tea'(?s:.)*no tea today"):
        run(simple(tmp_path, Wrong), spark, tmp_path, resident=resident)


@pytest.mark.parametrize("resident", [False, True])
def test_a_broken_row_reads_the_same(spark: Any, tmp_path: Path, resident: bool) -> None:
    write(tmp_path / "in", "a.json", [{"k": "tea", "n": 1, "at": BASE}])
    with (tmp_path / "in" / "a.json").open("a") as file:
        file.write('{"k": "tea", "n": "many", "at": 1}\n')
    with pytest.raises(
        ms.errors.InputError, match=r"(?s)cannot be read; nothing of this epoch was committed.*Fix or remove the file.*a\.json"
    ):
        run(simple(tmp_path), spark, tmp_path, resident=resident)


@pytest.mark.parametrize("resident", [False, True])
def test_a_null_key_reads_the_same(spark: Any, tmp_path: Path, resident: bool) -> None:
    write(tmp_path / "in", "a.json", [{"k": None, "n": 1, "at": BASE}])
    with pytest.raises(ms.errors.InputError, match=r"'rows'.*(?s:.)*its key \('k'\) is null \(file .*in/a\.json\)"):
        run(simple(tmp_path), spark, tmp_path, resident=resident)


class Exits(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        sys.exit(f"no {record.value['k']} today")


def test_a_hook_that_exits_is_told_and_is_no_lost_task(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "tea", "n": 1, "at": BASE}])
    with pytest.raises(ms.errors.MillstreamError, match=r"(?s)SystemExit.*in process_record.*no tea today") as caught:
        run(simple(tmp_path, Exits), spark, tmp_path, resident=True)
    assert not isinstance(caught.value, ms.errors.ClusterError)


def test_the_same_pipeline_object_in_the_other_mode_has_the_defaults_of_that_mode(spark: Any, tmp_path: Path) -> None:
    p = simple(tmp_path)
    sink = p.program().topology.emissions[0].sink
    for at, resident in enumerate([True, False, True]):
        write(tmp_path / "in", f"{at}.json", [{"k": "a", "n": 1, "at": BASE + at}])
        run(p, spark, tmp_path, resident=resident, drain=False)
        assert (sink.in_units, sink.roll_millis) == ((True, 5_000) if resident else (False, 0))
    assert sorted(row.value for row in sink.read("simple", "out")) == [1, 2, 3]


# --- a run that goes on


def until(what: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_timers_fire_and_idle_epochs_are_not_run(spark: Any, tmp_path: Path) -> None:
    p = simple(tmp_path, Echo)
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", resident=True, shards=2, quiet=True)
    try:
        write(tmp_path / "in", "a.json", [{"k": "a", "n": 1, "at": BASE}])
        until(lambda: [one.fired for one in handle.status().computations] == [1])
        settled = handle.status().epoch
        until(lambda: handle.status().mode.tasks)
        assert settled < 12, "an epoch for the row, some for what it made due, one for the timer; and then no more"
        assert handle.status().mode.name == "resident" and handle.status().mode.generation == 1
        assert [task.shards for task in handle.status().mode.tasks] == [[0], [1]]
    finally:
        handle.stop()
    assert "wall_clock later" in [value for _, value, _ in handle.output()], "what waited to be published is published by stop"


def test_files_are_rolled_by_default_and_not_on_request(spark: Any, tmp_path: Path) -> None:
    p = simple(tmp_path)
    p.emit("out", ms.sinks.files(tmp_path / "each", roll=0))
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", resident=True, shards=2, quiet=True)
    try:
        for at in range(3):
            write(tmp_path / "in", f"{at}.json", [{"k": "a", "n": 1, "at": BASE + at}])
            until(lambda at=at: len(list((tmp_path / "each").glob("*.jsonl"))) == at + 1)
        assert not list((tmp_path / "out").glob("*.jsonl"))
        assert len(ManifestLog(open_storage(tmp_path / "checkpoint")).latest().waiting["out"].parts) == 3
    finally:
        handle.stop()
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 1
    assert [json.loads(line)["value"] for line in next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()] == [1, 2, 3]
    assert [value for _, value, _ in handle.output("out")] == [1, 2, 3]


class Sleepy(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        if record.key == "slow":
            gate = Path(record.value["gate"])
            while not gate.exists():
                time.sleep(0.05)
        self.produce(1)


def test_a_hook_that_hangs_is_named(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    p = ms.Pipeline("sleepy")
    rows = p.inject("rows", ms.sources.files(tmp_path / "in", schema="k string, gate string, at long", format="json"), timestamp="at")
    p.emit(p.compute(Sleepy, rows, name="sleepy", produces="out", key="k"), ms.sinks.memory())
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", resident=True, shards=2, quiet=True)
    try:
        write(tmp_path / "in", "a.json", [{"k": "slow", "gate": str(tmp_path / "gate"), "at": BASE}])
        until(lambda: any(task.at for task in handle.status().mode.tasks))
        (stuck,) = [task for task in handle.status().mode.tasks if task.at]
        assert "computation 'sleepy', shard" in stuck.at and "key 'slow'" in stuck.at and stuck.millis > 1000
        assert "has been at computation 'sleepy'" in str(handle.status())
    finally:
        (tmp_path / "gate").touch()
        handle.stop()
