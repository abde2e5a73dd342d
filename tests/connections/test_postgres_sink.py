"""Rows into PostgreSQL: each epoch once; values that do not fit are found before they are committed; a run that was stopped holds nobody up."""

from __future__ import annotations

import contextlib
import datetime
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import IdentifiedRow, SinkRow
from millstream.sinks.copy_text import copy_text
from millstream.sinks.postgres import PostgresSink
from millstream.sinks.row_columns import TableColumn, to_columns

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """The server's database, with no tables in it."""
    yield postgres
    with psycopg.connect(postgres, autocommit=True) as session:
        for (name,) in session.execute("select tablename from pg_tables where schemaname = 'public'").fetchall():
            session.execute(f'drop table "{name}"')


def execute(dsn: str, text: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as session:
        found = session.execute(text)
        return found.fetchall() if found.description else []


def run_of(tmp_path: Path, sink: PostgresSink, row: Any = None) -> Any:
    return Stage(tmp_path / "checkpoint", row or (lambda n: SinkRow(f"k{n}", n, {"n": n}))).run(sink)


def numbers(dsn: str) -> list[int]:
    return [n for (n,) in execute(dsn, "select n from rows order by at")]


APPENDED = "create table rows (at bigserial primary key, key text not null, timestamp timestamptz, n integer not null)"


@pytest.mark.crash
def test_appends_pass_the_kit(dsn: str) -> None:
    execute(dsn, APPENDED)
    ms.testing.check_sink(ms.sinks.postgres(dsn, "rows"), partial(numbers, dsn), kills=4)


@pytest.mark.crash
def test_upserts_pass_the_kit(dsn: str) -> None:
    execute(dsn, "create table rows (key text primary key, n integer)")
    sink = ms.sinks.postgres(dsn, "rows", mode="upsert")
    ms.testing.check_sink(sink, lambda: [n for (n,) in execute(dsn, "select n from rows")], latest=True, kills=3)


class MarkedElsewhere(PostgresSink):
    """A twin: the marker is not in the transaction."""

    def write(self, writer: Any, epoch: int, rows: Any) -> None:
        super().write(writer, epoch, rows)
        with psycopg.connect(self.dsn, autocommit=True) as session:
            session.execute("update millstream_epochs set epoch = epoch - 1 where writer = %s", [writer.name])
            time.sleep(0.02)
            session.execute("update millstream_epochs set epoch = epoch + 1 where writer = %s", [writer.name])


@pytest.mark.crash
def test_the_kit_finds_a_marker_that_is_not_in_the_transaction(dsn: str) -> None:
    execute(dsn, APPENDED)
    with pytest.raises(AssertionError, match="drivers were killed"):
        ms.testing.check_sink(MarkedElsewhere(dsn, "rows"), partial(numbers, dsn), kills=6, seed=3)


def test_every_type_arrives_as_it_was(dsn: str, tmp_path: Path) -> None:
    execute(
        dsn,
        """create table rows (key text, timestamp timestamptz, id text, small smallint, whole integer, big bigint, part double precision, yes boolean,
        raw bytea, day date, at timestamp, money numeric(12, 2), any_money numeric, doc jsonb, list integer[], texts text[], name varchar(5), uid uuid,
        "Odd, name" text)""",
    )
    value = {
        "small": -3,
        "whole": 2**31 - 1,
        "big": -(2**63),
        "part": 0.1,
        "yes": False,
        "raw": b"\0\xff,",
        "day": datetime.date(2020, 2, 29),
        "at": 1_500,
        "money": "12.50",
        "any_money": 3,
        "doc": {"a": [1, None, "x\\y"], "b": {"c": 'q"'}},
        "list": [1, None, 3],
        "texts": ['a,"b"', "", None, "c\\d"],
        "name": "héé",
        "uid": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
        "Odd, name": 'line\nbreak, "quoted"; \\N',
    }
    rows = {0: IdentifiedRow("tea", 1_000, value, "id-1"), 1: IdentifiedRow("", 2_000, {"whole": None, "Odd, name": ""}, "id-2")}
    run_of(tmp_path, ms.sinks.postgres(dsn, "rows"), rows.__getitem__).publish(0, [0, 1])
    full, empty = execute(dsn, "select to_jsonb(rows) from rows order by id")
    assert full[0] == value | {
        "key": "tea",
        "id": "id-1",
        "timestamp": full[0]["timestamp"],
        "raw": "\\x00ff2c",
        "day": "2020-02-29",
        "at": "1970-01-01T00:00:01.5",
        "money": 12.5,
    }
    assert execute(dsn, "select extract(epoch from timestamp)::int from rows order by id") == [(1,), (2,)]
    assert empty[0]["key"] == "" and empty[0]["Odd, name"] == "" and empty[0]["whole"] is None and empty[0]["doc"] is None


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("n integer", 2**31, "2147483648 does not fit"),
        ("n integer", 1.5, "a fraction does not fit a column of integers"),
        ("n integer", "x", "'x' does not fit"),
        ("n integer not null", None, "it must not be null"),
        ("n timestamptz", 1.7, "a fraction does not fit a column of integers, as times are"),
        ("n text", 5, "5 does not fit"),
        ("n text", "a\0b", "NUL"),
        ("n varchar(3)", "four", "it has 4 characters, and the column 3"),
        ("n numeric(4, 2)", 123.45, "123.45 does not fit"),
        ("n date", "tomorrow", "'tomorrow' does not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_found_in_the_task_and_named(dsn: str, tmp_path: Path, column: str, value: Any, says: str) -> None:
    execute(dsn, f"create table rows (key text, {column})")
    run = run_of(tmp_path, ms.sinks.postgres(dsn, "rows"), lambda n: SinkRow(f"k{n}", n, {"n": value}))
    with pytest.raises(SinkError, match=r"stream 'rows' into table 'rows' of PostgreSQL: .*'n'") as raised:
        run.staged(0, [7])
    assert says in str(raised.value)


def test_what_the_table_refuses_is_told_and_waits_until_it_fits(dsn: str, tmp_path: Path) -> None:
    execute(dsn, "create table rows (key text, n integer check (n < 5))")
    run = run_of(tmp_path, ms.sinks.postgres(dsn, "rows"))
    with pytest.raises(
        SinkError,
        match=r"the table refuses a row: .*rows_n_check.*Alter the table so that it fits\. Epoch 0 is committed; its rows are written at the next",
    ):
        run.publish(0, [7])
    execute(dsn, "alter table rows drop constraint rows_n_check")
    parts = run.staged(0, [7])
    run.commit(0, parts, redo=True)
    run.commit(0, parts, redo=True)
    assert execute(dsn, "select n from rows") == [(7,)]


def test_upserts_keep_the_last_of_a_key_and_remove_what_has_no_value(dsn: str, tmp_path: Path) -> None:
    execute(dsn, "create table totals (shop text, day integer, total integer not null, primary key (shop, day))")
    rows = [
        SinkRow(("tea", 1), 1, {"total": 1}),
        SinkRow(("tea", 1), 2, {"total": 2}),
        SinkRow(("rum", 2), 3, {"total": 3}),
        SinkRow(("rum", 2), 4, None),
        SinkRow(("gin", 3), 5, {"prev": None, "next": {"total": 5}}),
        SinkRow(("tea", 1), 6, {"prev": {"total": 2}, "next": None}),
        SinkRow(("gin", 3), 7, {"prev": {"total": 5}, "next": {"total": 6}}),
    ]
    run = run_of(tmp_path, ms.sinks.postgres(dsn, "totals", mode="upsert"), rows.__getitem__)
    run.publish(0, [0, 1, 2])
    assert sorted(execute(dsn, "select * from totals")) == [("rum", 2, 3), ("tea", 1, 2)]
    run.publish(1, [3, 4])
    assert sorted(execute(dsn, "select * from totals")) == [("gin", 3, 5), ("tea", 1, 2)]
    run.publish(2, [5, 6])
    assert execute(dsn, "select * from totals") == [("gin", 3, 6)]


@pytest.mark.parametrize(
    ("made", "options", "says"),
    [
        ("", {}, r"table 'rows' of PostgreSQL is not there.*create table rows"),
        ("create table rows (key text)", {"mode": "upsert"}, "no primary key, which upserts need: alter table rows add primary key"),
        ("create table rows (key text)", {"columns": {"term": "key"}}, "has no column 'term'; it has key"),
    ],
)
def test_a_table_that_will_not_do_is_told_at_the_start(dsn: str, made: str, options: dict[str, Any], says: str) -> None:
    if made:
        execute(dsn, made)
    with pytest.raises(SinkError, match=says):
        ms.sinks.postgres(dsn, "rows", **options).check()


def test_a_server_that_is_away_and_bad_options_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.network.TRIED_FOR", 0.5)
    with pytest.raises(SinkError, match="table 'rows' of PostgreSQL: connection"):
        ms.sinks.postgres("host=127.0.0.1 port=1 connect_timeout=2", "rows").check()
    with pytest.raises(DefinitionError, match="append"):
        ms.sinks.postgres("", "rows", mode="insert")
    with pytest.raises(DefinitionError, match="a path begins with key"):
        ms.sinks.postgres("", "rows", columns={"n": "n"})


STOPPED = """
import sys, time
import psycopg
from millstream.sinks.postgres import PostgresSink
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import SinkRow
from pathlib import Path

class Stuck(PostgresSink):
    def _merge(self, session, names):
        super()._merge(session, names)
        print("inside", flush=True)
        time.sleep(600)

run = Stage(Path(sys.argv[2]), lambda n: SinkRow("k", n, {"n": n})).run(Stuck(sys.argv[1], "rows", mode="upsert"))
run.publish(0, [1])
"""


@pytest.mark.crash
def test_a_driver_that_is_stopped_inside_its_transaction_holds_nobody_up(dsn: str, tmp_path: Path) -> None:
    execute(dsn, "create table rows (key text primary key, n integer)")
    driver = subprocess.Popen([sys.executable, "-c", STOPPED, dsn, str(tmp_path / "checkpoint")], stdout=subprocess.PIPE, env=environment())
    try:
        assert driver.stdout is not None and driver.stdout.readline() == b"inside\n"
        driver.send_signal(signal.SIGSTOP)
        assert execute(dsn, "select count(*) from pg_stat_activity where state = 'idle in transaction'") == [(1,)]
        began = time.monotonic()
        run_of(tmp_path, ms.sinks.postgres(dsn, "rows", mode="upsert"), lambda n: SinkRow("k", n, {"n": n})).publish(0, [2])
        assert time.monotonic() - began < 120  # the promise, not a measurement
        assert execute(dsn, "select * from rows") == [("k", 2)]
    finally:
        driver.kill()
        driver.wait()


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_without_ending_older_sessions_a_stopped_one_holds_its_successor_up(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(dsn, "create table rows (key text primary key, n integer)")
    old = run_of(tmp_path, ms.sinks.postgres(dsn, "rows", mode="upsert"), lambda n: SinkRow("k", n, {"n": n}))
    old.publish(0, [1])
    (session,) = old.sink._sessions.values()
    session.execute("begin")
    session.execute("update rows set n = 9")
    monkeypatch.setattr(sys.modules["millstream.sinks.postgres"], "_END_OLDER", "select %(name)s, %(run)s")
    monkeypatch.setattr("millstream.network.TRIED_FOR", 0.5)
    new = run_of(
        tmp_path, ms.sinks.postgres(dsn + "&options=-clock_timeout%3D500", "rows", mode="upsert"), lambda n: SinkRow("k", n, {"n": n})
    )
    with pytest.raises(SinkError, match="lock timeout"):
        new.publish(1, [2])
    session.close()


def test_a_run_that_was_replaced_is_refused_by_the_marker_alone(dsn: str, tmp_path: Path) -> None:
    execute(dsn, APPENDED)
    old = run_of(tmp_path, ms.sinks.postgres(dsn, "rows"))
    old.publish(0, [1])
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("update millstream_epochs set run = run + 1")
    with pytest.raises(Fenced, match="a newer run has written here"):
        old.publish(1, [2])
    assert numbers(dsn) == [1]


def test_the_marker_refuses_an_epoch_that_is_there(dsn: str, tmp_path: Path) -> None:
    execute(dsn, APPENDED)
    run = run_of(tmp_path, ms.sinks.postgres(dsn, "rows"))
    run.publish(0, [0])
    parts = run.publish(1, [1])
    (writer,) = run.sink._written
    run.sink._written[writer] = 0  # as if it had not seen that the epoch is written
    with pytest.raises(Fenced):
        run.commit(1, parts)
    assert numbers(dsn) == [0, 1]


@pytest.mark.parametrize("user", [None, "worker"])
def test_sessions_of_older_runs_are_ended_whenever_they_came_and_whoever_has_them(dsn: str, tmp_path: Path, user: str | None) -> None:
    """The old run comes while the new one begins; its role is another one, of which ours is a member."""
    execute(dsn, APPENDED)
    mine = psycopg.conninfo.make_conninfo(dsn, **({"user": user} if user else {}))
    execute(
        dsn, "do $$ begin if not exists (select 1 from pg_roles where rolname = 'worker') then create role worker login; end if; end $$"
    )
    run_of(tmp_path, ms.sinks.postgres(dsn, "rows")).publish(0, [0])
    execute(dsn, "grant all on all tables in schema public to worker; grant all on all sequences in schema public to worker")
    old = run_of(tmp_path, ms.sinks.postgres(mine, "rows"))
    writer = old.sink._writer(old._context(False))
    new = run_of(tmp_path, ms.sinks.postgres(dsn, "rows"))
    ends = new.sink._end_older
    inside: list[Any] = []

    def then_it_comes(*given: Any) -> None:
        ends(*given)
        if not inside:
            old.sink.begin(writer)
            inside.append(old.sink._sessions[writer])
            inside[0].execute("begin; lock table rows in share row exclusive mode")
            copies = inside[0].cursor().copy("copy rows (key, n) from stdin")
            copies.__enter__().write(b"x\t1\n")  # there the server's own time-out does not hold
            inside.append(copies)

    new.sink._end_older = then_it_comes
    new.publish(1, [1])
    assert execute(dsn, f"select pid from pg_stat_activity where pid = {inside[0].info.backend_pid}") == []
    assert numbers(dsn) == [0, 1]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_wait_are_written_when_the_table_has_got_a_column(dsn: str, tmp_path: Path, mode: str) -> None:
    execute(dsn, 'create table rows (key text primary key, "an, odd ""name""" integer, n integer)')
    old = run_of(tmp_path, ms.sinks.postgres(dsn, "rows", mode=mode))
    waiting = old.staged(0, [1, 2])
    execute(dsn, "alter table rows add column note text default 'none'; alter table rows add column m integer")
    new = run_of(tmp_path, ms.sinks.postgres(dsn, "rows", mode=mode), lambda n: SinkRow(f"k{n}", n, {"n": n, "m": 7}))
    execute(dsn, "insert into rows (key, n, m) values ('k1', 0, 5)") if mode == "upsert" else None
    new.commit(1, [*waiting, *new.staged(1, [3])])
    before = 5 if mode == "upsert" else None
    assert sorted(execute(dsn, "select key, n, m, note from rows")) == [
        ("k1", 1, before, "none"),
        ("k2", 2, None, "none"),
        ("k3", 3, 7, "none"),
    ]
    execute(dsn, "alter table rows drop column n")
    with pytest.raises(SinkError, match=r"rows of epoch 2 are committed in the form of another sink \(postgres \w+ .*\"n\""):
        run_of(tmp_path, ms.sinks.postgres(dsn, "rows", mode=mode)).commit(2, waiting)


def test_a_server_that_is_away_at_the_start_is_asked_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(dsn, APPENDED)
    connect, away = psycopg.connect, [psycopg.OperationalError("the database system is starting up")]

    def connected(*given: Any, **named: Any) -> Any:
        if away:
            raise away.pop()
        return connect(*given, **named)

    monkeypatch.setattr(psycopg, "connect", connected)
    ms.sinks.postgres(dsn, "rows").check()
    assert not away


def test_copied_text_keeps_nulls_and_empty_texts_apart() -> None:
    import pyarrow as pa

    rows = [SinkRow("a", 1, {"t": ""}), SinkRow("b", 2, {"t": None}), SinkRow("c", 3, {})]
    table = to_columns(rows, [TableColumn("key", "key"), TableColumn("t", "value.t", pa.string())])
    assert copy_text(table) == b'"a",""\n"b",\n"c",\n'


def test_paths_reach_into_keys_and_values(dsn: str, tmp_path: Path) -> None:
    execute(dsn, "create table rows (term text, host text, n integer)")
    sink = ms.sinks.postgres(dsn, "rows", columns={"term": "key.0", "host": "key.1", "n": "value.count.all"})
    run_of(tmp_path, sink, lambda n: SinkRow(("tea", "eu"), n, {"count": {"all": 4}})).publish(0, [1])
    with contextlib.closing(psycopg.connect(dsn)) as session:
        assert session.execute("select * from rows").fetchall() == [("tea", "eu", 4)]
