"""Nexmark 5, 7, 8 and 11 of `examples/nexmark.py`, judged by DuckDB over the same rows."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms

duckdb = pytest.importorskip("duckdb")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "nexmark.py"
BIDS = 4_000

#: A bid is in five windows: those that begin at most eight seconds before its two.
HOT = """
with placed as (select auction, ("at" // 2000 - n) * 2000 as start from bids, range(5) as numbers(n)),
     counted as (select auction, start, count(*) as num from placed group by all),
     ranked as (select *, rank() over (partition by start order by num desc) as place from counted)
select start, start + 10000, auction, num from ranked where place = 1
"""
HIGHEST = """
with ranked as (select *, "at" // 10000 * 10000 as start, rank() over (partition by "at" // 10000 order by price desc) as place from bids)
select start, start + 10000, id, auction, bidder, price, "at" from ranked where place = 1
"""
NEW = """
with came as (select id, "at" // 10000 * 10000 as start, arg_min(name, "at") as name from persons group by all),
     opened as (select seller, "at" // 10000 * 10000 as start, count(*) as auctions from auctions group by all)
select came.id, came.start, came.start + 10000, name, auctions from came join opened on came.id = seller and came.start = opened.start
"""
SESSIONS = """
with after_pause as (select *, "at" - lag("at") over (partition by bidder order by "at", id) >= 10000 as begins from bids),
     numbered as (select *, sum(coalesce(begins, false)::int) over (partition by bidder order by "at", id) as session from after_pause)
select bidder, min("at"), max("at") + 10000, count(*) from numbered group by bidder, session
"""


@pytest.fixture
def nexmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("nexmark", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def judged(rows: dict[str, list[dict[str, Any]]], query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, some in rows.items():
            connection.register(name, pa.Table.from_pylist(some))
        return sorted(connection.execute(query).fetchall())


def answered(runner: ms.testing.LocalRunner) -> dict[str, list[tuple[Any, ...]]]:
    """What the pipeline has to say, as rows in the form of the queries."""
    told = {name: [value for _, value, _ in runner.output(name)] for name in ("hot", "highest", "new~1", "sessions")}
    return {
        HOT: sorted((v["start"], v["end"], one["auction"], one["num"]) for v in told["hot"] for one in v["hot"]),
        HIGHEST: sorted(
            (v["start"], v["end"], *(one[name] for name in ("id", "auction", "bidder", "price", "at")))
            for v in told["highest"]
            for one in v["bids"]
        ),
        NEW: sorted((v["id"], v["start"], v["end"], v["person"], v["auctions"]) for v in told["new~1"]),
        SESSIONS: sorted((v["bidder"], v["start"], v["end"], v["bids"]) for v in told["sessions"]),
    }


def run(nexmark: ModuleType, rows: dict[str, list[dict[str, Any]]], seed: int, shards: int) -> ms.testing.LocalRunner:
    """All streams in step, in random portions: none of them is ahead of another by more than the bound."""
    dice = random.Random(seed)
    runner = ms.testing.LocalRunner(nexmark.pipeline, shards=shards)
    left = {name: list(reversed(some)) for name, some in rows.items()}
    until = min(row["at"] for some in rows.values() for row in some)
    while any(left.values()):
        until += dice.choice([1_000, 3_000, 30_000])
        for name, some in left.items():
            while some and some[-1]["at"] <= until:
                runner.push(name, some.pop())
        runner.epoch()
    runner.drain()
    return runner


@pytest.mark.parametrize(("seed", "shards"), [(1, 1), (2, 3), (3, 2)])
def test_the_answers_are_those_of_duckdb_row_by_row(nexmark: ModuleType, seed: int, shards: int) -> None:
    rows = nexmark.make_rows(BIDS, seed)
    runner = run(nexmark, rows, seed, shards)
    found = answered(runner)
    for query, made in found.items():
        wanted = judged(rows, query)
        assert len(wanted) > 30 and made == wanted, query
    assert any(len(value["hot"]) > 1 for _, value, _ in runner.output("hot")), "there are ties"
    assert any(len(value["bids"]) > 1 for _, value, _ in runner.output("highest"))
    assert all(runner.late(name) == 0 for name in ("counts", "hot", "highest", "new", "sessions"))
    assert all(not list(store.scan(b"", b"\xff")) for store in runner._engine.stores.values()), "nothing is left behind the last window"


def test_a_row_more_or_less_is_noticed(nexmark: ModuleType) -> None:
    rows = nexmark.make_rows(400, 5)
    found = answered(run(nexmark, {**rows, "bids": rows["bids"][:-1]}, 5, 2))
    assert found[SESSIONS] != judged(rows, SESSIONS) and found[NEW] == judged(rows, NEW)
