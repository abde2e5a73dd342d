"""The demo of views: its world, its judge, and once on Spark (with make soak) as a whole."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import millstream as ms
from demos.people import judge, picture, run
from demos.people.tree import TreeSight
from demos.people.world import RISING, USERS, PeopleWorld, pipeline, write

TINY = PeopleWorld(users=300, load=1, news=10, each=120)


@pytest.mark.slow
def test_the_local_engine_and_duckdb_agree_on_a_world(tmp_path: Path) -> None:
    write(TINY, tmp_path)
    runner = ms.testing.LocalRunner(pipeline(tmp_path))
    most = 0
    for path in sorted((tmp_path / USERS).glob("*.parquet")):
        runner.push("users", *pq.read_table(path).to_pylist())
        runner.epoch()
        runner.check()
        most = max(most, (runner.view("countries", RISING) or {"people": 0})["people"])
    assert {view: runner.view(view) for view in judge.SQL} == judge.judged(tmp_path)
    assert most > 50 and "stale" in runner._engine.tallies["users"]


def test_the_judge_finds_one_wrong_row(tmp_path: Path) -> None:
    write(TINY, tmp_path)
    for view, rows in judge.judged(tmp_path).items():
        folder = tmp_path / view
        folder.mkdir()
        import json

        lines = [json.dumps({"key": key, "timestamp": 0, "value": value}) for key, value in rows.items()]
        (folder / f"people-{view}-0000-0000000000.jsonl").write_text("\n".join(lines))
    assert judge.differences(tmp_path)[1] == []
    (tmp_path / "names" / "people-names-0000-0000000001.jsonl").write_text('{"key": "Sue", "timestamp": 0, "value": 1}\n')
    (wrong,) = judge.differences(tmp_path)[1]
    assert wrong.startswith("names, 'Sue': 1 is published, SQL says ")


@pytest.mark.slow
def test_the_picture_is_drawn_also_of_a_group_that_never_grew(tmp_path: Path) -> None:
    for name, sights in {
        "flat": [TreeSight(0), TreeSight(1, 3)],
        "deep": [TreeSight(0), TreeSight(1, 9_000, 1_200), TreeSight(2, 300, 40)],
    }.items():
        row = {"people": 3, "youngest": 5, "eldest": 70}
        for shown in ({}, {0: {"Peru": row}, 1: {"Peru": row, RISING: row}}):
            assert picture.draw(shown, sights, [1], tmp_path / f"{name}.png", "0 differences").stat().st_size > 10_000


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / USERS).mkdir()
    console = Console(file=io.StringIO(), record=True, width=200)
    assert run.run(tmp_path, console=console) == 1
    assert "which this demo has not made" in console.export_text()


@pytest.mark.soak
@pytest.mark.crash
def test_the_demo_ends_with_no_difference(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=200)
    assert run.run(tmp_path, small=True, console=console) == 0
    told = console.export_text()
    assert told.count("kill -9 of driver") == 2 and "0 differences in " in told.splitlines()[-1]
    assert (tmp_path / "views.png").exists()
