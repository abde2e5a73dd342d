"""`format("millstream")`: another Spark job reads what `ms.sinks.files` has published, as a stream and as a batch: each row once, whatever is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, run, write

import millstream as ms
from computations import Sum

pytestmark = pytest.mark.spark


def publish(spark: Any, work: Path, first: int, count: int = 4, **sink: Any) -> None:
    """A bounded run over a new file: one epoch with rows, at least."""
    rows = [{"k": f"k{n % 3}", "n": 1, "at": BASE + n} for n in range(first, first + count)]
    write(work / "in", f"{first:05}.json", rows)
    p = ms.Pipeline("made")
    source = ms.sources.files(work / "in", schema="k string, n long, at long", format="json")
    p.emit(p.compute(Sum, p.inject("in", source, timestamp="at"), key="k", produces="sums"), ms.sinks.files(work / "out", **sink))
    run(p, spark, work, shards=2, drain=False)


def rows_of(frame: Any) -> list[tuple[str, int, str]]:
    return sorted((row.key, row.timestamp - BASE, row.value) for row in frame.collect())


def batch(spark: Any, work: Path, **options: Any) -> list[tuple[str, int, str]]:
    return rows_of(spark.read.format("millstream").options(**options).load(str(work / "out")))


def follow(spark: Any, work: Path, **options: Any) -> list[tuple[str, int, str]]:
    """What a streaming query has written after a run to the end of what is complete."""
    stream = spark.readStream.format("millstream").options(**options).load(str(work / "out"))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(work / "follower"))
    query = writer.option("path", str(work / "copy")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return rows_of(spark.read.parquet(str(work / "copy")))


@pytest.mark.parametrize("roll", [0, "5s"])
def test_a_stream_has_each_row_once_over_restarts_of_both(spark: Any, tmp_path: Path, roll: Any) -> None:
    known = {"checkpoint": str(tmp_path / "checkpoint")}
    publish(spark, tmp_path, 0, roll=roll)
    first = follow(spark, tmp_path, **known)
    assert [at for _, at, _ in sorted(first, key=lambda row: row[1])] == [0, 1, 2, 3]
    assert batch(spark, tmp_path) == [], "without the checkpoint, the newest epoch may get another file"
    publish(spark, tmp_path, 4, roll=roll)
    assert batch(spark, tmp_path) == first
    whole = follow(spark, tmp_path, **known)
    assert [at for _, at, _ in sorted(whole, key=lambda row: row[1])] == list(range(8))
    assert whole == batch(spark, tmp_path, **known) == follow(spark, tmp_path, **known)
    assert {value for key, _, value in whole if key == "k0"} == {"1", "2", "3"}


def test_columns_have_the_types_that_are_asked_for(spark: Any, tmp_path: Path) -> None:
    publish(spark, tmp_path, 0, format="parquet")
    reader = spark.read.format("millstream").option("checkpoint", str(tmp_path / "checkpoint"))
    frame = reader.schema("value long, timestamp timestamp").load(str(tmp_path / "out"))
    assert frame.selectExpr("sum(value) s", "max(unix_millis(timestamp)) t").collect() == [(1 + 2 + 1 + 1, BASE + 3)]
    with pytest.raises(Exception, match="no column 'name'"):
        reader.schema("name string").load(str(tmp_path / "out")).collect()
    with pytest.raises(Exception, match="has no option 'form'"):
        reader.option("form", "x").load(str(tmp_path / "out")).collect()


def test_a_row_of_an_epoch_that_is_half_published_is_not_read(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def file(epoch: int, shard: int) -> None:
        line = json.dumps({"key": f"{epoch}.{shard}", "timestamp": BASE + epoch, "value": epoch})
        (out / f"made-sums-{shard:04d}-{epoch:010d}.jsonl").write_text(line + "\n")

    file(0, 0)
    file(1, 1)
    assert [key for key, *_ in follow(spark, tmp_path)] == ["0.0"]
    file(1, 0)  # behind the other one
    file(2, 0)
    assert [key for key, *_ in follow(spark, tmp_path)] == ["0.0", "1.0", "1.1"]
