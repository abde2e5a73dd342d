"""Operators on Spark: the local engine, micro-batches and resident tasks agree, record by record, also where rows are folded before the exchange."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms

pytestmark = pytest.mark.spark

EPOCHS, ROWS = 3, 12_000
SCHEMA = "user string, page string, price long, at long, id string"
ARROW = pa.schema([("user", pa.string()), ("page", pa.string()), ("price", pa.int64()), ("at", pa.int64()), ("id", pa.string())])


def epochs() -> list[list[dict[str, Any]]]:
    """Large enough for tasks to read them. Some rows are late."""
    dice = random.Random(3)
    found = []
    for epoch in range(EPOCHS):
        base = 1_000_000 + 20_000 * epoch
        found.append(
            [
                {
                    "user": f"user-{dice.randint(0, 40):04d}-{'x' * 60}",
                    "page": dice.choice(["home", "cart", None]),
                    "price": dice.choice([None, dice.randint(-9, 9)]),
                    "at": base + dice.randint(-1_500, 20_000) if dice.random() > 0.001 else base - 60_000,
                    "id": f"{epoch}-{number}-{dice.getrandbits(240):060x}",
                }
                for number in range(ROWS)
            ]
        )
    return found


def pipeline(folder: Path) -> ms.Pipeline:
    p = ms.Pipeline("operators")
    source = ms.sources.files(folder, schema=SCHEMA, format="parquet", max_files_per_epoch=1)
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("2s"), dedup=None)
    checked = p.inject("checked", ms.sources.files(folder, schema=SCHEMA, format="parquet", max_files_per_epoch=1), timestamp="at", id="id",
                       watermark=ms.watermarks.bounded("2s"))  # fmt: skip
    reducers = {
        "n": ms.count(),
        "total": ms.sum("price"),
        "mean": ms.mean("price"),
        "landing": ms.first("page"),
        "best": ms.top(1, by="price"),
    }
    folded = (
        rows.by("user")
        .window(ms.windows.tumbling("5s"), late="late")
        .reduce({"n": ms.count(), "total": ms.sum("price"), "landing": ms.first("page")}, name="folded")
    )
    every = folded.by().window(ms.windows.tumbling("20s")).reduce(n=ms.sum("n"), users=ms.count_distinct("user"), name="every")
    hopping = checked.by("user").filter("price is not null").window(ms.windows.hopping("6s", every="2s")).reduce(reducers, name="hopping")
    sessions = rows.by("user").window(ms.windows.session("40ms")).reduce(n=ms.count(), name="sessions")
    mapped = (
        rows.map({"page": "coalesce(page, '?')", "double": "price * 2"})
        .by("page")
        .window(ms.windows.tumbling("20s"))
        .reduce(total=ms.sum("double"), name="mapped")
    )
    joined = rows.filter("page = 'cart'").by("user").join(checked.filter("price > 8").by("user"), after="30ms", how="left", name="joined")
    hot = rows.by("coalesce(page, '?')").window(ms.windows.tumbling("5s")).reduce(reducers, name="hot", spread=5)
    best = folded.by().window(ms.windows.same()).reduce(best=ms.top(2, "user", by="n"), name="best", spread=3)
    for stream in (folded, every, hopping, sessions, mapped, joined, hot, best):
        p.emit(stream, ms.sinks.memory())
    p.emit(p.late_records("late"), ms.sinks.memory())
    changing = rows.by("user").window(ms.windows.hopping("6s", every="2s"), lateness="70s").reduce(n=ms.count(), name="changing")
    ends = rows.by("user").window(ms.windows.session("40ms"), lateness="70s").reduce(n=ms.count(), name="ends")
    latest = p.table("latest", folded, key="user", version="end")
    p.emit(rows.filter("page = 'cart'").by("user").join(latest, how="left", name="looked-up"), ms.sinks.memory())
    totals = checked.by("coalesce(page, '?')").reduce(n=ms.count(), total=ms.sum("price"), name="totals")
    for relation in (changing, ends, changing.by("user").reduce(ms.sum("n"), name="all"), totals):
        p.publish(relation, ms.sinks.memory())
    return p


def sorted_rows(rows: list[tuple[Any, Any, int]]) -> list[str]:
    return sorted(map(repr, rows))


def on_spark(spark: Any, folder: Path, work: Path, **options: Any) -> dict[str, list[str]]:
    p = pipeline(folder)
    p.run(spark, checkpoint=work, available_now=True, shards=3, quiet=True, **options).await_termination()
    return {one.name: sorted_rows([(row.key, row.value, row.timestamp) for row in one.sink.collected]) for one in p._emissions}


def locally(folder: Path) -> dict[str, list[str]]:
    p = pipeline(folder)
    runner = ms.testing.LocalRunner(p, shards=3)
    for rows in epochs():
        runner.push("rows", *rows)
        runner.push("checked", *rows)
        runner.epoch()
    runner.drain()
    return {one.name: sorted_rows(runner.output(one.stream)) for one in p._emissions}


def test_the_three_agree_on_every_operator(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for at, rows in enumerate(epochs()):
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), folder / f"{at}.parquet")
        os.utime(folder / f"{at}.parquet", (1_700_000_000 + at, 1_700_000_000 + at))
    assert 2 * (folder / "0.parquet").stat().st_size > 1 << 20, "so that tasks read it"
    wanted = locally(folder)
    assert all(wanted.values()), {name: len(rows) for name, rows in wanted.items()}
    for mode, options in (("micro-batch", {}), ("resident", {"resident": True})):
        found = on_spark(spark, folder, tmp_path / mode, **options)
        for name, rows in wanted.items():
            assert found[name] == rows, (mode, name, len(found[name]), len(rows), sorted(set(found[name]) ^ set(rows))[:4])
