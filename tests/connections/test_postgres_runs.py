"""From a table to a view in a table, both in PostgreSQL: drivers are killed while others write, and the view is what SQL says in the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgresjob
import pytest

import taskkit as kit
from effort import first_seed

psycopg = pytest.importorskip("psycopg")

MODES = pytest.mark.parametrize("resident", [True, False], ids=["resident", "micro-batch"])
SAYS = "select name, count(*), sum(n) from items group by name order by name"


@pytest.fixture
def work(postgres: str, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "dsn").write_text(postgres)
    (tmp_path / "rows.jsonl").write_text("")
    with psycopg.connect(postgres, autocommit=True) as session:
        session.execute("create table items (id bigint primary key, name text, n bigint)")
        session.execute("insert into items select at, 'name ' || at % 7, at from generate_series(1, 300) at")
        session.execute("create table totals (name text primary key, count bigint, total bigint)")
        yield tmp_path
        session.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where active_pid is not null")
        session.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        session.execute("drop publication if exists millstream_items; drop table items, totals; drop table if exists millstream_epochs")


def execute(work: Path, text: str) -> list[Any]:
    with psycopg.connect((work / "dsn").read_text(), autocommit=True) as session:
        return session.execute(text).fetchall()


def write(work: Path, stop: threading.Event, dice: random.Random) -> None:
    with psycopg.connect((work / "dsn").read_text(), autocommit=True) as session:
        while not stop.is_set():
            id, name = dice.randrange(1, 400), f"name {dice.randrange(9)}"
            match dice.randrange(3):
                case 0:
                    session.execute("delete from items where id = %s", [id])
                case _:
                    text = "insert into items values (%s, %s, %s) on conflict (id) do update set name = excluded.name, n = excluded.n"
                    session.execute(text, [id, name, dice.randrange(1000)])
            time.sleep(0.001)


@pytest.mark.crash
@MODES
def test_the_view_is_what_sql_says_whoever_is_killed(work: Path, resident: bool) -> None:
    dice, stop = random.Random(first_seed()), threading.Event()
    writing = threading.Thread(target=write, args=(work, stop, random.Random(first_seed())))
    writing.start()
    for _ in range(4):
        driver = kit.Driver(work, build=postgresjob.build, resident=resident, settles=True)
        time.sleep(0.5 + dice.random())
        driver.end()
    stop.set()
    writing.join()
    assert kit.Driver(work, build=postgresjob.build, resident=resident, settles=True).wait() == 0
    assert execute(work, "select name, count, total from totals order by name") == execute(work, SAYS)


@pytest.mark.spark
@MODES
def test_on_spark(work: Path, spark: Any, resident: bool) -> None:
    pipeline, _ = postgresjob.build(work)
    pipeline.run(spark, checkpoint=work / "checkpoint", resident=resident, available_now=True, drain=False).await_termination()
    assert execute(work, "select name, count, total from totals order by name") == execute(work, SAYS)
    with psycopg.connect((work / "dsn").read_text(), autocommit=True) as session:
        session.execute("update items set name = 'name 1' where id % 2 = 0")
    pipeline.run(spark, checkpoint=work / "checkpoint", resident=not resident, available_now=True, drain=False).await_termination()
    assert execute(work, "select name, count, total from totals order by name") == execute(work, SAYS)
