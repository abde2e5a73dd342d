"""Bad input, bad code, bad checkpoints: a clear error that names the culprit, early, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, Echo, good, run, write

import millstream as ms
import support
from computations import Sum
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark

SCHEMA = "k string, n long, at long"


def counting(work: Path, computation: Callable[[], ms.Computation], sink: ms.sinks.Memory | None = None, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("bad")
    source = ms.sources.files(
        work / "in", schema=options.pop("schema", SCHEMA), format=options.pop("format", "json"), max_files_per_epoch=1
    )
    stream = p.inject(
        "in",
        source.load if options.pop("foreign", False) else source,
        timestamp=options.pop("timestamp", "at"),
        **{k: options.pop(k) for k in ("id", "value") if k in options},
    )
    out = p.compute(computation, stream, key=options.pop("key", "k"), produces="out", **options)
    p.emit(out, sink or ms.sinks.memory())
    return p


@pytest.mark.parametrize(
    ("row", "named"),
    [({"k": None, "n": 1, "at": BASE}, "its key"), ({"k": "a", "n": 1, "at": None}, "its timestamp")],
)
def test_a_null_key_or_timestamp_names_stream_and_row_and_loses_nothing(
    spark: Any, tmp_path: Path, row: dict[str, Any], named: str
) -> None:
    sink = ms.sinks.memory()
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, Sum, sink), spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", [*good(100), row])
    with pytest.raises(ms.errors.InputError, match=f"'in' into computation 'Sum'.*{named}"):
        run(counting(tmp_path, Sum, sink), spark, tmp_path, drain=False)
    assert [r.value for r in sink.collected] == [1, 2, 3, 4, 5]
    write(tmp_path / "in", "b.json", good(100))  # fixed in place: the epoch runs again
    run(counting(tmp_path, Sum, sink), spark, tmp_path, drain=False)
    assert [r.value for r in sink.collected] == list(range(1, 11))


def test_a_value_that_does_not_fit_the_schema_and_a_corrupt_file_are_input_errors(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "n": "many", "at": BASE}])
    with pytest.raises(ms.errors.InputError):
        run(counting(tmp_path, Sum), spark, tmp_path)
    (tmp_path / "pq" / "in").mkdir(parents=True)
    (tmp_path / "pq" / "in" / "bad.parquet").write_bytes(b"PAR1 this is no parquet PAR1")
    with pytest.raises(ms.errors.InputError, match=r"bad\.parquet"):
        run(counting(tmp_path / "pq", Sum, format="parquet"), spark, tmp_path / "pq")


class Bad(Sum):
    """Does what BAD says when it meets n = 3."""

    State = dict
    fault = "raise"

    def process_record(self, record: ms.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + record.value["n"]
        if record.value["n"] == 3:
            if self.fault == "raise":
                raise RuntimeError("three is too many")
            if self.fault == "state":
                self.state["thread"] = threading.Lock()
            if self.fault == "value":
                self.produce(threading.Lock())
            if self.fault == "older":
                self.produce(1, timestamp=record.timestamp - 1)
            if self.fault == "stream":
                self.produce(1, stream="nowhere")
        self.produce(self.state["n"])


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "three is too many"),
        ("state", "lock"),
        ("value", "stream 'out'"),
        ("older", "older than what caused it"),
        ("stream", "nowhere"),
    ],
)
def test_a_hook_that_fails_names_computation_key_and_record_and_loses_nothing(spark: Any, tmp_path: Path, fault: str, says: str) -> None:
    sink = ms.sinks.memory()
    write(tmp_path / "in", "a.json", good())
    write(tmp_path / "in", "b.json", [{"k": "b", "n": 3, "at": BASE + 50}])
    faulty = type("Bad", (Bad,), {"fault": fault})
    with pytest.raises(ms.errors.HookError, match="computation 'Bad', key 'b'") as caught:
        run(counting(tmp_path, faulty, sink), spark, tmp_path, drain=False)
    assert says in str(caught.value)
    fine = type("Bad", (Bad,), {"fault": ""})
    run(counting(tmp_path, fine, sink), spark, tmp_path, drain=False)
    assert sorted((r.key, r.value) for r in sink.collected) == [("a", i) for i in range(1, 6)] + [("b", 3)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": "nokey"}, "no column 'nokey'; the source has: k, n, at"),
        ({"timestamp": "when"}, "no column 'when'"),
        ({"timestamp": "k"}, "milliseconds as a long"),
        ({"value": "v"}, "no column 'v'"),
        ({"id": "identity"}, "no column 'identity'"),
        ({"key": "d", "schema": "k string, n long, at long, d double"}, "cannot be a key"),
    ],
)
def test_unknown_columns_and_unusable_types_are_found_before_anything_runs(
    spark: Any, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    write(tmp_path / "in", "a.json", good())
    with pytest.raises(ms.errors.DefinitionError, match=says):
        run(counting(tmp_path, Sum, **change), spark, tmp_path)
    assert not (tmp_path / "checkpoint").exists()


def test_what_cannot_be_pickled_is_named(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", good())
    lock = threading.Lock()
    p = counting(tmp_path, Sum)
    p.compute(Echo, "out", key=lambda record: str(lock), produces="echo")
    with pytest.raises(ms.errors.DefinitionError, match="'Echo', key of stream 'out' cannot be sent to the workers"):
        run(p, spark, tmp_path)


class Filling(Sum):
    """Makes the disk refuse large writes while a flag is there."""

    flag = ""

    def process_record(self, record: ms.Record) -> None:
        super().process_record(record)
        if os.path.exists(self.flag):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))


def lift_limits() -> None:
    """Spark reuses its Python workers: a limit that one of them set on itself must not reach the next test."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if b"pyspark" in (entry / "cmdline").read_bytes():
                    _, hard = resource.prlimit(int(entry.name), resource.RLIMIT_FSIZE)
                    resource.prlimit(int(entry.name), resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_during_staging_stops_the_run_and_loses_nothing(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lift_limits)
    sink = ms.sinks.memory()
    write(tmp_path / "in", "a.json", good())
    computation = type("Filling", (Filling,), {"flag": str(tmp_path / "full")})
    (tmp_path / "full").touch()
    with pytest.raises(ms.errors.StorageError, match=r"cannot write .*units"):
        run(counting(tmp_path, computation, sink), spark, tmp_path, drain=False)
    (tmp_path / "full").unlink()
    lift_limits()
    run(counting(tmp_path, computation, sink), spark, tmp_path, drain=False)
    assert [r.value for r in sink.collected] == [1, 2, 3, 4, 5]


def test_damaged_deltas_and_manifests_are_named(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_CACHE", str(tmp_path / "state caches-1"))
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", good(100))
    latest = ManifestLog(open_storage(str(tmp_path / "checkpoint"))).latest()
    assert latest is not None
    (delta,) = [segment for shard in latest.computations["Sum"].shards for segment in shard.segments]
    unit = tmp_path / "checkpoint" / delta.name
    whole, middle = unit.read_bytes(), delta.offset + delta.length // 2
    unit.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    monkeypatch.setenv("MILLSTREAM_STATE_CACHE", str(tmp_path / "state caches-2"))  # a new host: it has to read the log
    with pytest.raises(ms.errors.DamageError, match=unit.name):
        run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    unit.unlink()
    with pytest.raises(ms.errors.DamageError, match="missing"):
        run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    unit.write_bytes(whole)
    sink = ms.sinks.memory()
    run(counting(tmp_path, Sum, sink), spark, tmp_path, drain=False)
    assert [r.value for r in sink.collected] == list(range(6, 11))
    manifest = max((tmp_path / "checkpoint" / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes().replace(b'"epoch":', b'"epoxh":', 1))
    with pytest.raises(ms.errors.DamageError, match=manifest.name):
        run(counting(tmp_path, Sum), spark, tmp_path, drain=False)


def test_a_checkpoint_of_another_pipeline_shard_count_or_set_of_injectors_is_refused(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, Sum), spark, tmp_path, drain=False, shards=2)
    with pytest.raises(ms.errors.CheckpointError, match="has 2 shards"):
        run(counting(tmp_path, Sum), spark, tmp_path, drain=False, shards=3)
    other = counting(tmp_path, Sum)
    other.name = "other"
    with pytest.raises(ms.errors.CheckpointError, match="pipeline 'bad', not of 'other'"):
        run(other, spark, tmp_path)
    more = counting(tmp_path, Sum)
    more.inject("more", ms.sources.rate(1), timestamp="timestamp")
    with pytest.raises(ms.errors.CheckpointError, match="injectors"):
        run(more, spark, tmp_path)


@dataclass
class Grown:
    """State of Sum's successor: what was an int is one no longer, so it starts from another computation's."""

    total: int = 0
    seen: int = 0


class First(ms.Computation):
    """State with one field, then two."""

    State = Grown

    def process_record(self, record: ms.Record) -> None:
        self.state.total += record.value["n"]
        self.state.seen += 1
        self.produce(self.state.total)


def test_renaming_must_be_said_adding_and_removing_need_not(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, First), spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", good(100))
    with pytest.raises(ms.errors.CheckpointError, match=r"'First'.*no longer.*'Second'.*renamed_from"):
        run(counting(tmp_path, First, name="Second"), spark, tmp_path, drain=False)
    sink = ms.sinks.memory()
    run(counting(tmp_path, First, sink, name="Second", renamed_from="First"), spark, tmp_path, drain=False)
    assert [r.value for r in sink.collected] == list(range(6, 11))
    write(tmp_path / "in", "c.json", good(200))
    added = counting(tmp_path, First, sink, name="Second")
    added.compute(Sum, "in", key="k", name="Fresh", produces="fresh")
    fresh = ms.sinks.memory()
    added.emit("fresh", fresh)
    run(added, spark, tmp_path, drain=False)
    assert [r.value for r in fresh.collected] == [1, 2, 3, 4, 5]
    write(tmp_path / "in", "d.json", good(300))
    run(counting(tmp_path, First, sink, name="Second"), spark, tmp_path, drain=False)  # Fresh removed
    assert [r.value for r in sink.collected] == list(range(6, 21))
    write(tmp_path / "in", "e.json", good(400))
    dropped = ms.sinks.memory()
    run(counting(tmp_path, Sum, dropped, name="Third"), spark, tmp_path, drain=False, drop=["Second"])
    assert [r.value for r in dropped.collected] == [1, 2, 3, 4, 5]


def test_output_of_another_run_is_not_overwritten(spark: Any, tmp_path: Path) -> None:
    for checkpoint in ("one", "two"):
        (tmp_path / checkpoint).mkdir()
    write(tmp_path / "in", "a.json", good())
    p = counting(tmp_path, Sum)
    p.emit("out", ms.sinks.files(tmp_path / "out"))
    run(p, spark, tmp_path / "one", drain=False)
    before = support.json_rows(tmp_path / "out")
    with pytest.raises(ms.errors.SinkError, match="another run's output"):
        run(p, spark, tmp_path / "two", drain=False)
    assert support.json_rows(tmp_path / "out") == before


def test_spark_offsets_that_do_not_belong_to_the_manifests_are_refused(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", good())
    write(tmp_path / "in", "b.json", good(100))
    run(counting(tmp_path, Sum, foreign=True), spark, tmp_path, drain=False)
    folder = tmp_path / "checkpoint" / "spark"
    shutil.rmtree(folder)
    with pytest.raises(ms.errors.CheckpointError, match="do not belong together"):
        run(counting(tmp_path, Sum, foreign=True), spark, tmp_path, drain=False)


def test_who_plans_cannot_be_changed(spark: Any, tmp_path: Path) -> None:
    """Millstream does not know what Spark's log says; Spark does not know what stands in a manifest."""
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, Sum, foreign=True), spark, tmp_path, drain=False)
    with pytest.raises(ms.errors.CheckpointError, match="was read by Spark's own planner so far, and now Millstream is to read"):
        run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    shutil.rmtree(tmp_path / "checkpoint")
    run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    with pytest.raises(ms.errors.CheckpointError, match="now Spark is to read injected stream 'in'"):
        run(counting(tmp_path, Sum, foreign=True), spark, tmp_path, drain=False)


def test_a_computation_that_takes_over_a_name_starts_with_nothing(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", good())
    run(counting(tmp_path, Sum), spark, tmp_path, drain=False)
    write(tmp_path / "in", "b.json", good(100))
    run(counting(tmp_path, Sum, name="Between"), spark, tmp_path, drain=False, drop=["Sum"])
    write(tmp_path / "in", "c.json", good(200))
    sink = ms.sinks.memory()
    run(counting(tmp_path, Sum, sink), spark, tmp_path, drain=False, drop=["Between"])
    assert [r.value for r in sink.collected] == [1, 2, 3, 4, 5]


def test_a_null_where_an_id_was_promised_names_stream_and_row(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "a", "n": 1, "at": BASE, "i": None}])
    with pytest.raises(ms.errors.InputError, match="'in' into computation 'Sum': its id"):
        run(counting(tmp_path, Sum, id="i", schema="k string, n long, at long, i string"), spark, tmp_path)
