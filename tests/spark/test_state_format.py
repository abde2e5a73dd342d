"""`spark.read.format("millstream-state")`: what SQL finds in a checkpoint is what the pipeline has in its state, and Spark finds the format by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from sparkkit import BASE, run, write

import millstream as ms

pytestmark = pytest.mark.spark

KEYS = ["tea", "é", "7", "0", "x y"]


@dataclass
class Seen:
    count: int = 0
    at: ms.MapState = field(default_factory=ms.MapState)


class Keep(ms.Computation):
    State = Seen

    def process_record(self, record: ms.Record) -> None:
        self.state.count += 1
        self.state.at[record.timestamp - BASE] = {"n": record.value["n"]}
        self.set_timer("end", BASE + 10**6, hold=record.timestamp)
        self.produce(self.state.count)


@pytest.fixture(scope="module")
def checkpoint(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    work = tmp_path_factory.mktemp("state")
    for at in range(2):
        write(work / "in", f"{at}.json", [{"k": key, "n": n, "at": BASE + 10 * at + n} for key in KEYS for n in range(3)])
    pipeline = ms.Pipeline("kept")
    source = ms.sources.files(work / "in", schema="k string, n long, at long", format="json", max_files_per_epoch=1)
    rows = pipeline.inject("in", source, timestamp="at")
    kept = pipeline.compute(Keep, rows, key="k", produces="counts")
    pipeline.compute(Keep, rows, key="n", name="numbers", produces="others")
    counts = pipeline.table(
        "users", ms.sources.files(work / "in", schema="k string, n long, at long", format="json"), key="k", version="at"
    )
    pipeline.publish(counts.by("n").reduce(ms.count(), name="by_n"), ms.sinks.memory())
    pipeline.emit(kept, ms.sinks.memory())
    run(pipeline, spark, work, shards=4, drain=False)
    return str(work / "checkpoint")


@pytest.fixture
def pushes(spark: Any) -> Iterator[None]:
    if not hasattr(DataSourceReader, "pushFilters"):
        pytest.skip("Spark 4.0 asks no Python data source to filter")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def read(spark: Any, checkpoint: str, **options: Any) -> Any:
    return spark.read.format("millstream-state").options(**options).load(checkpoint)


def test_sql_over_state_finds_every_key_once_with_its_value(spark: Any, checkpoint: str) -> None:
    frame = read(spark, checkpoint, computation="Keep")
    assert frame.rdd.getNumPartitions() == 4
    found = {row.key: row for row in frame.collect()}
    assert sorted(found) == sorted(KEYS) and frame.count() == len(KEYS)
    assert {json.loads(row.value)["count"] for row in found.values()} == {6}
    assert {(row.timers, row.hold) for row in found.values()} == {(1, None)}
    frame.createOrReplaceTempView("kept")
    assert spark.sql("select sum(get_json_object(value, '$.count')) s from kept").collect()[0].s == 6 * len(KEYS)


def test_timers_and_entries_of_maps_are_rows_of_their_own(spark: Any, checkpoint: str) -> None:
    timers = read(spark, checkpoint, computation="Keep", what="timers").collect()
    assert sorted((row.key, row.tag, row.time - BASE) for row in timers) == sorted((key, "end", 10**6) for key in KEYS)
    assert {row.kind for row in timers} == {ms.LOW_WATERMARK} and all(row.hold is not None for row in timers)
    maps = read(spark, checkpoint, computation="Keep", what="maps").filter("key = 'tea'").collect()
    assert {row.entry: json.loads(row.value)["n"] for row in maps} == {str(10 * at + n): n for at in range(2) for n in range(3)}
    assert {row.field for row in maps} == {"at"}


def test_views_and_tables_show_what_they_show(spark: Any, checkpoint: str) -> None:
    view = read(spark, checkpoint, computation="by_n")
    assert [(row.key, row.value, row.version) for row in view.collect()] == [("2", str(len(KEYS)), None)]
    table = {row.key: row for row in read(spark, checkpoint, computation="users").collect()}
    assert sorted(table) == sorted(KEYS) and json.loads(table["tea"].value)["n"] == 2 and table["tea"].version == str(BASE + 12)


def test_a_filter_on_the_key_reads_one_shard(spark: Any, checkpoint: str, pushes: None) -> None:
    frame = read(spark, checkpoint, computation="Keep")
    assert frame.filter("key = 'tea'").rdd.getNumPartitions() == 1
    for key in KEYS:
        assert [row.key for row in frame.filter(frame.key == key).collect()] == [key]
    assert sorted(row.key for row in frame.filter("key in ('tea', 'é', 'nobody')").collect()) == ["tea", "é"]
    assert frame.filter("key = 'nobody'").count() == 0 == frame.filter("key = 'tea' and key = 'é'").count()
    assert [row.key for row in read(spark, checkpoint, computation="numbers").filter("key = '1'").collect()] == ["1"]
    assert frame.filter("key > 'x'").rdd.getNumPartitions() == 4, "another filter is Spark's own business"


def test_without_push_down_a_filter_gives_the_same_rows(spark: Any, checkpoint: str) -> None:
    frame = read(spark, checkpoint, computation="Keep").filter("key = 'tea'")
    assert [row.key for row in frame.collect()] == ["tea"]
    one = read(spark, checkpoint, computation="Keep", key="tea")
    assert one.rdd.getNumPartitions() == 1 and [row.key for row in one.collect()] == ["tea"]


def test_an_older_epoch_shows_what_it_showed(spark: Any, checkpoint: str) -> None:
    counts = {json.loads(row.value)["count"] for row in read(spark, checkpoint, computation="Keep", epoch=0).collect()}
    assert counts == {3}


@pytest.mark.parametrize(
    "options, where, message",
    [
        ({"computation": "Keap"}, "", r"no computation called 'Keap'. It has: Keep, numbers, users"),
        ({}, "", r"say which computation. It has: Keep, numbers"),
        ({"computation": "Keep", "epoch": 999}, "", r"has no epoch 999. There are the epochs 0 to"),
        ({"computation": "Keep", "epoch": "last"}, "", r"give a number"),
        ({"computation": "Keep", "what": "windows"}, "", r"use 'state', 'timers', 'maps', 'view'"),
        ({"computation": "Keep", "what": "view"}, "", r"'Keep' is no table, view or join"),
        ({"computation": "Keep", "compuation": "x"}, "", r"has no option 'compuation'"),
        ({"computation": "Keep"}, "-gone", r"is not a checkpoint of Millstream: it has no identity.json"),
    ],
)
def test_what_cannot_be_read_is_said_when_it_is_loaded(spark: Any, checkpoint: str, options: Any, where: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, checkpoint + where, **options)
