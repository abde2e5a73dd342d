"""A table of PostgreSQL and its changes: what comes, in which order, what a crash leaves, and what is said of what cannot be."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from effort import first_seed
from millstream.errors import DefinitionError, InputError
from millstream.sinks.epoch_sink import SinkWriter
from millstream.sources.postgres import PostgresReader, PostgresSource

psycopg = pytest.importorskip("psycopg")

TYPES = {
    "string": pa.string(), "long": pa.int64(), "int": pa.int32(), "short": pa.int16(), "double": pa.float64(), "float": pa.float32(),
    "boolean": pa.bool_(), "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "decimal(10,2)": pa.decimal128(10, 2),
}  # fmt: skip


def arrow(ddl: str) -> pa.Schema:
    pairs = [part.strip().split(" ") for part in ddl.replace("(10,2)", "(10;2)").split(",")]
    return pa.schema([(name, TYPES[kind.replace(";", ",")]) for name, kind in pairs])


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """The server's database, without tables, publications and slots."""
    yield postgres
    with psycopg.connect(postgres, autocommit=True) as session:
        for (name,) in session.execute("select pubname from pg_publication").fetchall():
            session.execute(f'drop publication "{name}"')
        session.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where active_pid is not null")
        session.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        for (name,) in session.execute("select tablename from pg_tables where schemaname = 'public'").fetchall():
            session.execute(f'drop table if exists "{name}"')


def execute(dsn: str, text: str, *given: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as session:
        found = session.execute(text, given)
        return found.fetchall() if found.description else []


ITEMS = "create table items (id integer primary key, name text, price numeric(10,2))"


class Follower:
    """What a pipeline's table would keep: the newest row of every key. It commits every plan."""

    def __init__(self, source: PostgresSource, at: str | None = None) -> None:
        self.source, self.rows, self.at = source, dict[Any, dict[str, Any]](), at
        self.start()

    def start(self, bounded: bool = False) -> None:
        """A run of its own."""
        if getattr(self, "reader", None) is not None and self.reader._stream is not None:
            self.reader._stream.end()  # two that live would end each other
        self.reader: PostgresReader = self.source.reader(arrow)  # type: ignore[assignment]
        self.reader.begin({}, bounded)
        self.at = self.reader.first() if self.at is None else self.at

    def turn(self, commits: bool = True) -> list[dict[str, Any]]:
        """One epoch. commits: False leaves no trace of it."""
        assert self.at is not None
        take = self.reader.plan(self.at)
        found = [row for split in take.splits for batch in self.reader.read(split) for row in batch.to_pylist()]
        if commits:
            self.at = take.end
            self.take(found)
            self.reader.committed(take.end)
        return found

    def take(self, found: list[dict[str, Any]]) -> None:
        for row in found:
            known = self.rows.get(row["id"])
            if known is None or known["postgres_lsn"] <= row["postgres_lsn"]:
                self.rows[row["id"]] = row

    def until(self, what: Any, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not what(self.table()):
            assert time.monotonic() < deadline, self.table()
            self.turn()

    def finish(self) -> list[dict[Any, Any]]:
        """A bounded run; the table after each of its epochs."""
        self.start(bounded=True)
        at, found = "", []
        while self.at != at:
            at = str(self.at)
            self.turn()
            found.append(self.table())
        return found

    def copied(self) -> None:
        """Until the rows that were there are read."""
        while not json.loads(str(self.at))["lsn"] or json.loads(str(self.at)).get("copying") is not None:
            self.turn()

    def table(self) -> dict[Any, Any]:
        return {id: row["name"] for id, row in self.rows.items() if not row["postgres_deleted"]}


def table_of(dsn: str) -> dict[Any, Any]:
    return dict(execute(dsn, "select id, name from items"))


def test_first_the_rows_then_the_changes(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items values (1, 'tea', 2.50), (2, 'rum', null)")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    assert follower.turn() == [], "the name of the slot is noted first"
    first = follower.turn()
    assert [(row["id"], row["name"], row["price"]) for row in first] == [(1, "tea", decimal.Decimal("2.50")), (2, "rum", None)]
    execute(dsn, "update items set name = 'ale' where id = 2")
    execute(dsn, "insert into items values (3, 'gin', 1)")
    execute(dsn, "delete from items where id = 1")
    execute(dsn, "update items set id = 4 where id = 3")
    follower.until(lambda table: table == {2: "ale", 4: "gin"})
    assert all(row["postgres_time"] > datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) for row in follower.rows.values())
    follower.reader.close()


def test_a_transaction_is_one_change_of_each_row_and_what_was_rolled_back_is_none(dsn: str) -> None:
    execute(dsn, ITEMS)
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    with psycopg.connect(dsn) as session:
        session.execute("insert into items values (1, 'a'), (2, 'b')")
        session.execute("update items set name = 'c' where id = 1")
        session.execute("delete from items where id = 2")
        session.rollback()
        session.execute("insert into items values (1, 'd'), (2, 'e')")
        session.execute("update items set name = 'f' where id = 1")
        session.execute("delete from items where id = 2")
        session.commit()
    found: list[dict[str, Any]] = []
    while not found:
        found = follower.turn()
    assert [(row["id"], row["name"], row["postgres_deleted"]) for row in found] == [(1, "f", False), (2, None, True)]
    follower.reader.close()


def test_an_epoch_that_is_not_committed_is_planned_again_with_the_same_rows(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items select n, 'x' from generate_series(1, 12) n")
    follower = Follower(ms.sources.postgres(dsn, "items", max_per_epoch=4))
    follower.turn()
    assert follower.turn(commits=False) == follower.turn(commits=False)
    follower.copied()
    assert follower.table() == dict.fromkeys(range(1, 13), "x"), "in the order of numbers, not of their texts"
    execute(dsn, "update items set name = 'y' where id = 3")
    found: list[dict[str, Any]] = []
    while not found:
        found = follower.turn(commits=False)
    follower.start()
    again: list[dict[str, Any]] = []
    while not again:
        again = follower.turn(commits=False)
    assert found == again
    follower.until(lambda table: table[3] == "y")
    follower.reader.close()


def scramble(dsn: str, stop: threading.Event, seed: int) -> None:
    """Changes all the time; rows change places, too."""
    dice = random.Random(seed)
    with psycopg.connect(dsn) as session:
        while not stop.is_set():
            for _ in range(dice.randint(1, 4)):
                session.execute("lock table items in share row exclusive mode")
                id, name = dice.randrange(60), str(dice.random())
                match dice.randrange(4):
                    case 0:
                        session.execute("delete from items where id = %s", [id])
                    case 1:
                        session.execute(
                            "update items set id = %s where id = %s and not exists (select 1 from items where id = %s)",
                            [id + 1, id, id + 1],
                        )
                    case _:
                        session.execute("insert into items values (%s, %s) on conflict (id) do update set name = excluded.name", [id, name])
            session.commit() if dice.random() < 0.8 else session.rollback()


@pytest.mark.parametrize("seed", [first_seed() + at for at in range(3)])
def test_it_follows_the_table_whatever_run_reads_it_and_wherever_one_is_lost(dsn: str, seed: int) -> None:
    """While others write: runs that are lost in the middle of the first copy, in the middle of the changes, before and behind a commit."""
    execute(dsn, ITEMS)
    execute(dsn, "insert into items select n, 'x' from generate_series(1, 50) n")
    dice, stop = random.Random(seed), threading.Event()
    writing = [threading.Thread(target=scramble, args=(dsn, stop, seed + at)) for at in range(2)]
    for one in writing:
        one.start()
    follower = Follower(ms.sources.postgres(dsn, "items", max_per_epoch=7))
    for _ in range(12):
        for _ in range(dice.randrange(6)):
            follower.turn()
            time.sleep(0.01)
        if dice.random() < 0.5:
            follower.turn(commits=False)
        if dice.random() < 0.5:
            follower.reader.close()
        follower.start()  # else as if it had been killed
    stop.set()
    for one in writing:
        one.join()
    follower.until(lambda table: table == table_of(dsn))
    for _ in range(5):
        follower.turn()
    assert follower.table() == table_of(dsn)
    follower.reader.close()


class OldPositions(PostgresReader):
    """A twin: the rows of a later snapshot carry the position of the first."""

    def _open_snapshot(self, at: Any) -> int:
        found = super()._open_snapshot(at)
        return at.lsn or found


def test_twin_rows_of_a_later_snapshot_with_the_position_of_the_first_are_undone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (PostgresReader, OldPositions):
        execute(dsn, "drop table if exists items")
        execute(dsn, ITEMS)
        execute(dsn, "insert into items values (1, 'a'), (2, 'b'), (3, 'c')")
        monkeypatch.setattr(sys.modules["millstream.sources.postgres"], "PostgresReader", kind)
        follower = Follower(ms.sources.postgres(dsn, "items", max_per_epoch=2, slot=f"s_{kind.__name__.lower()}"))
        follower.turn()
        follower.turn()
        execute(dsn, "update items set name = 'older' where id = 3")
        execute(dsn, "update items set name = 'old' where id = 3")
        execute(dsn, "update items set name = 'new' where id = 3")
        follower.start()
        follower.copied()
        seen = [follower.table()[3], *(table[3] for table in follower.finish())]
        assert follower.table() == {1: "a", 2: "b", 3: "new"}
        assert ("old" in seen) == (kind is OldPositions)
        follower.reader.close()
        execute(dsn, "drop publication millstream_items")


VALUES = """create table kinds (id bigint primary key, small smallint, big bigint, real real, double double precision, exact numeric(10,2), any_number numeric,
flag boolean, raw bytea, day date, at timestamptz, at_plain timestamp, doc jsonb, names text[], "Odd Name" varchar(10))"""


@pytest.mark.parametrize("copied", [True, False])
def test_values_of_all_kinds(dsn: str, copied: bool) -> None:
    execute(dsn, VALUES)
    source = ms.sources.postgres(dsn, "kinds", columns=[
        "small", "big", "real", "double", "exact", "any_number", "flag", "raw", "day", "at", "at_plain", "doc", "names",
    ])  # fmt: skip
    follower = Follower(source)
    insert = """insert into kinds values (1, -3, 9007199254740993, 1.5, 0.1, 12.34, 1e30, true, '\\x00ff', '2024-02-29', '2024-02-29 12:00:00.5+02',
    '2024-02-29 12:00:00', '{"a": [1]}', '{x,y}', 'odd'), (2)"""
    if copied:
        execute(dsn, insert.replace("(2)", "(2, null, null, null, null, null, null, null, null, null, null, null, null, null, null)"))
    follower.copied()
    if not copied:
        execute(dsn, insert.replace("(2)", "(2, null, null, null, null, null, null, null, null, null, null, null, null, null, null)"))
    while len(follower.rows) < 2:
        follower.turn()
    one, two = follower.rows[1], follower.rows[2]
    expected = {
        "id": 1, "small": -3, "big": 9007199254740993, "real": 1.5, "double": 0.1, "exact": decimal.Decimal("12.34"), "flag": True, "raw": b"\0\xff",
        "any_number": "1000000000000000000000000000000", "day": datetime.date(2024, 2, 29), "doc": '{"a": [1]}', "names": "{x,y}",
        "at": datetime.datetime(2024, 2, 29, 10, 0, 0, 500_000, tzinfo=datetime.UTC), "at_plain": datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert {name for name, value in two.items() if value is not None} == {"id", "postgres_lsn", "postgres_deleted", "postgres_time"}
    follower.reader.close()


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_large_value_that_an_update_left_alone_is_there(dsn: str, identity: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, f"alter table items alter column name set storage external, replica identity {identity}")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "insert into items values (1, repeat('x', 100000), 1)")
    follower.until(lambda table: 1 in table)
    execute(dsn, "update items set price = 2")
    while follower.rows[1]["price"] != 2:
        follower.turn()
    assert follower.rows[1]["name"] == "x" * 100_000
    follower.reader.close()


def test_a_large_value_stays_when_the_key_of_its_row_changes(dsn: str) -> None:
    """Of the old row the server sends the key, and nulls for the rest."""
    execute(dsn, ITEMS)
    execute(dsn, "alter table items alter column name set storage external")
    execute(dsn, "insert into items values (1, repeat('x', 100000), 1), (5, repeat('y', 100000), 1)")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "update items set id = id + 1")
    asked: list[Any] = []
    sql = follower.reader._sql
    follower.reader._sql = lambda *given: asked.append(given[0]) or sql(*given)  # type: ignore[method-assign, func-returns-value]
    follower.until(lambda table: 2 in table)
    assert follower.table() == {2: "x" * 100_000, 6: "y" * 100_000}
    assert len([text for text in asked if "unnest" in text]) == 1, "what was not sent is asked for at once"
    follower.reader.close()


def test_a_row_that_a_transaction_moves_after_it_has_changed_it_keeps_a_large_value(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "alter table items alter column name set storage external")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "begin; insert into items values (1, repeat('x', 100000), 1); update items set id = 2; commit")
    follower.reader._complete = lambda found: None  # type: ignore[method-assign]
    follower.until(lambda table: 2 in table)
    assert follower.table() == {2: "x" * 100_000}
    follower.reader.close()


@pytest.mark.parametrize("copied", [True, False])
def test_what_values_look_like_does_not_depend_on_the_server(dsn: str, copied: bool) -> None:
    execute(dsn, "create table kinds (id integer primary key, at timestamptz, raw bytea, day date, took interval)")
    for setting in ("timezone to 'Asia/Tokyo'", "datestyle to 'German'", "bytea_output to 'escape'", "intervalstyle to 'iso_8601'"):
        execute(dsn, f"alter database postgres set {setting}")
    try:
        insert = "insert into kinds values (1, '2024-02-29 12:00+00', '\\x00ff', '2024-02-29', '1 day')"
        if copied:
            execute(dsn, insert)
        follower = Follower(ms.sources.postgres(dsn, "kinds"))
        follower.copied()
        if not copied:
            execute(dsn, insert)
        while not follower.rows:
            follower.turn()
        row = follower.rows[1]
        assert row["at"] == datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC) and row["raw"] == b"\0\xff"
        assert row["day"] == datetime.date(2024, 2, 29) and row["took"] == "1 day"
        follower.reader.close()
    finally:
        execute(dsn, "alter database postgres reset all")


def test_generated_columns_are_left_out(dsn: str) -> None:
    execute(dsn, "create table items (id integer primary key, name text, size integer generated always as (length(name)) stored)")
    source = ms.sources.postgres(dsn, "items")
    assert source.schema.startswith("id int, name string, postgres_lsn")
    with pytest.raises(InputError, match="has no column 'size', which is generated: its changes are not sent"):
        Follower(ms.sources.postgres(dsn, "items", columns=["size"])).turn()


def test_a_column_that_has_gone_is_named_and_one_that_was_added_has_its_values(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items values (1, 'tea', 1)")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "update items set price = 2")
    execute(dsn, "alter table items add column colour text default 'red'")
    again = Follower(ms.sources.postgres(dsn, "items"), follower.at)  # the change is older than the column
    while 1 not in again.rows:
        again.turn()
    assert (again.rows[1]["price"], again.rows[1]["colour"]) == (2, "red")
    execute(dsn, "alter table items rename name to title")
    execute(dsn, "update items set price = 3")
    with pytest.raises(InputError, match=r"table items of PostgreSQL: column t\.name does not exist: it was dropped, or has another name"):
        again.until(lambda table: False)
    again.reader.close()
    third = Follower(ms.sources.postgres(dsn, "items", columns=["price"]), again.at)
    while 1 not in third.rows:
        third.turn()
    execute(dsn, "alter table items rename id to number")
    execute(dsn, "update items set price = 4")
    with pytest.raises(InputError, match=r"table public\.items has no column 'id' any longer, which is of its primary key"):
        while True:
            third.turn()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("for table items with (publish = 'insert, update, truncate')", 'leaves out deletes: alter publication "mine" set \\(publish = '),
        ("for table items where (id > 5)", "leaves out rows .*: name another with publication="),
        (
            "for table items (id, price)",
            "leaves out column 'name': alter publication \"mine\" set table items, or leave it out with columns=",
        ),
    ],
)
def test_a_publication_that_does_not_tell_all_is_refused(dsn: str, what: str, says: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, f"create publication mine {what}")
    with pytest.raises(InputError, match=says):
        Follower(ms.sources.postgres(dsn, "items", publication="mine")).turn()


def test_a_publication_that_is_altered_later_is_refused_at_the_next_start(dsn: str) -> None:
    execute(dsn, ITEMS)
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "alter publication millstream_items set (publish = 'insert')")
    follower.start()
    with pytest.raises(InputError, match="publication 'millstream_items' leaves out updates"):
        follower.turn()


def test_a_replica_identity_without_the_primary_key_is_refused(dsn: str) -> None:
    execute(dsn, "create table items (id integer primary key, name text not null unique)")
    execute(dsn, "create unique index both_columns on items (name, id)")
    for index in ("items_name_key", "both_columns"):
        execute(dsn, f"alter table items replica identity using index {index}")
        if index == "items_name_key":
            with pytest.raises(
                InputError, match=r"is an index without the primary key, by which .*alter table items replica identity default"
            ):
                Follower(ms.sources.postgres(dsn, "items")).turn()
    follower = Follower(ms.sources.postgres(dsn, "items"))
    execute(dsn, "insert into items values (1, 'tea'), (2, 'rum')")
    follower.copied()
    execute(dsn, "delete from items where id = 1")
    follower.until(lambda table: table == {2: "rum"})
    follower.reader.close()


def test_a_table_with_partitions(dsn: str) -> None:
    execute(dsn, "create table items (id integer primary key, name text) partition by range (id)")
    for at in (0, 10):
        execute(dsn, f"create table items_{at} partition of items for values from ({at}) to ({at + 10})")
    execute(dsn, "create publication mine for table items")
    with pytest.raises(
        InputError, match=r'is not in publication .mine.: alter publication "mine" set \(publish_via_partition_root = true\)'
    ):
        Follower(ms.sources.postgres(dsn, "items", publication="mine")).turn()
    execute(dsn, "insert into items values (1, 'a'), (11, 'b')")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "update items set id = 12, name = 'c' where id = 1")
    execute(dsn, "delete from items where id = 11")
    follower.until(lambda table: table == {12: "c"})
    follower.reader.close()
    execute(dsn, "alter table items_10 replica identity nothing")
    with pytest.raises(InputError, match="the replica identity of items_10 is nothing"):
        Follower(ms.sources.postgres(dsn, "items")).turn()


def test_sessions_that_the_server_ends_in_the_first_copy_are_opened_again(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items select n, 'x' from generate_series(1, 20) n")
    follower = Follower(ms.sources.postgres(dsn, "items", max_per_epoch=5))
    while json.loads(str(follower.at)).get("copying") is not None or not json.loads(str(follower.at))["lsn"]:
        execute(
            dsn, "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        follower.turn()
    assert follower.table() == dict.fromkeys(range(1, 21), "x")
    follower.reader.close()


def test_credentials_that_are_refused_are_not_tried_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    connect = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *given, **named: calls.append(given) or connect(*given, **named))
    monkeypatch.setattr("millstream.network.TRIED_FOR", 1.0)
    nobody = psycopg.conninfo.make_conninfo(dsn, user="nobody")
    with pytest.raises(InputError, match='role "nobody" does not exist'):
        ms.sources.postgres(nobody, "items").connected()
    assert len(calls) == 1
    with pytest.raises(InputError, match="No such file"):
        ms.sources.postgres("host=/nowhere", "items").connected()
    assert len(calls) > 2


def test_connections_find_out_that_a_server_is_gone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    connect = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda text, **named: made.append(text) or connect(text, **named))
    execute(dsn, ITEMS)
    made.clear()
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    ms.sources.postgres(dsn, "items").connected().close()
    sink = ms.sinks.postgres(psycopg.conninfo.make_conninfo(dsn, keepalives_idle=3), "items")
    sink.check()
    sink.begin(SinkWriter("w", 1))
    sink.close()
    found = [psycopg.conninfo.conninfo_to_dict(text) for text in made]
    assert len(found) == 3 and all(one["tcp_user_timeout"] == "60000" and one["keepalives_count"] == "4" for one in found)
    assert [one["keepalives_idle"] for one in found] == ["20", "3", "3"]
    assert not any("connect_timeout" in one for one in found), "the environment says it"


class Held:
    """A connection that is lost for us, and that the server goes on holding: `cut` says so."""

    cut = False

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_copy_data(self, asynchronous: int) -> Any:
        if self.cut:
            raise psycopg.OperationalError("the network is gone")
        return self._real.get_copy_data(asynchronous)

    def finish(self) -> None:
        if not self.cut:
            self._real.finish()


def test_a_connection_that_is_lost_for_us_alone_is_opened_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["millstream.sources.postgres_stream"]
    made: list[Held] = []
    opened = module.replication

    def held(dsn: str) -> Held:
        made.append(Held(opened(dsn)))
        return made[-1]

    monkeypatch.setattr(module, "replication", held)
    monkeypatch.setattr("millstream.network.TRIED_FOR", 2.0)
    execute(dsn, ITEMS)
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "insert into items values (1, 'a')")
    follower.until(lambda table: table == {1: "a"})
    made[-1].cut = True
    execute(dsn, "insert into items values (2, 'b')")
    follower.until(lambda table: table == {1: "a", 2: "b"})
    follower.reader.close()
    for one in made:
        one._real.finish()


def test_the_slot_is_moved_behind_what_is_committed_and_while_nothing_changes(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "create table others (n integer)")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()

    def confirmed() -> int:
        return int(execute(dsn, "select confirmed_flush_lsn - '0/0' from pg_replication_slots")[0][0])

    before = confirmed()
    execute(dsn, "insert into items values (1, 'a')")
    found: list[Any] = []
    while not found:
        found = follower.turn(commits=False)
    time.sleep(0.3)
    assert confirmed() == before
    follower.until(lambda table: table == {1: "a"})
    kept = json.loads(str(follower.at))["lsn"]
    deadline = time.monotonic() + 20
    while confirmed() < kept and time.monotonic() < deadline:
        time.sleep(0.02)
    assert before < confirmed() == kept
    monkeypatch.setattr(sys.modules["millstream.sources.postgres"], "_MOVES", 0.0)
    execute(dsn, "insert into others select generate_series(1, 1000)")
    while json.loads(str(follower.at))["lsn"] == kept:
        assert time.monotonic() < deadline
        follower.turn()
    follower.reader.close()


def test_a_bounded_run_reads_what_is_there_when_it_begins(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items values (1, 'a')")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "insert into items values (2, 'b')")
    follower.finish()
    assert follower.table() == {1: "a", 2: "b"}
    follower.reader.close()


def test_a_newer_run_ends_an_older_one(dsn: str) -> None:
    execute(dsn, ITEMS)
    old = Follower(ms.sources.postgres(dsn, "items"))
    old.copied()
    old.turn()
    new = Follower(ms.sources.postgres(dsn, "items"), old.at)
    execute(dsn, "insert into items values (1, 'a')")
    new.until(lambda table: table == {1: "a"})
    with pytest.raises(InputError, match="another run reads from it now"):
        old.until(lambda table: False)
    new.reader.close()


def test_what_makes_it_impossible_to_go_on(dsn: str) -> None:
    execute(dsn, ITEMS)
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    at = follower.at
    execute(dsn, "insert into items values (1, 'a')")
    follower.until(lambda table: table == {1: "a"})
    follower.reader.close()
    kept = json.loads(str(follower.at))["lsn"]
    deadline = time.monotonic() + 20
    while (
        execute(dsn, "select confirmed_flush_lsn - '0/0' < %s or active from pg_replication_slots", kept)[0][0]
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    with pytest.raises(InputError, match=r"its replication slot 'millstream_.*' has moved to .*, past what this checkpoint has read"):
        Follower(ms.sources.postgres(dsn, "items"), at).turn()
    execute(dsn, "select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    with pytest.raises(InputError, match=r"its replication slot 'millstream_.*' is not there any longer. What changed since is unknown"):
        Follower(ms.sources.postgres(dsn, "items"), follower.at).turn()


def test_a_table_that_is_truncated(dsn: str) -> None:
    execute(dsn, ITEMS)
    execute(dsn, "insert into items values (1, 'a')")
    follower = Follower(ms.sources.postgres(dsn, "items"))
    follower.copied()
    execute(dsn, "truncate items")
    execute(dsn, "insert into items values (2, 'b')")
    with pytest.raises(InputError, match=r"table public\.items was truncated"):
        follower.until(lambda table: 2 in table)


def test_what_is_wrong_is_said_before_anything_is_read(dsn: str) -> None:
    def turn(**given: Any) -> None:
        Follower(ms.sources.postgres(**{"dsn": dsn, "table": "items", **given})).turn()

    with pytest.raises(InputError, match="table items of PostgreSQL is not there, or may not be seen"):
        turn()
    execute(dsn, "create table items (id integer, name text)")
    with pytest.raises(InputError, match=r"has no primary key, by which its changes name a row: alter table items add primary key"):
        turn()
    execute(dsn, "alter table items add primary key (id)")
    with pytest.raises(InputError, match="has no column 'colour'; it has id, name"):
        turn(columns=["colour"])
    execute(dsn, "select pg_create_logical_replication_slot('mine', 'pgoutput')")
    with pytest.raises(InputError, match="there is a replication slot 'mine', perhaps of another pipeline"):
        turn(slot="mine")
    execute(dsn, "create publication other")
    with pytest.raises(InputError, match="is not in publication 'other': alter publication \"other\" add table items"):
        turn(publication="other")
    with pytest.raises(InputError, match="has no column 'prize'; it has id, name"):
        turn(schema="id int, prize string")
    with pytest.raises(DefinitionError, match="a slot has a name of small letters"):
        turn(slot="a b")
    execute(dsn, "insert into items values (1, 'tea')")
    with pytest.raises(
        InputError, match=r"table items of PostgreSQL: column 'name': 'tea' does not fit int64.*Name a type that fits with schema="
    ):
        Follower(ms.sources.postgres(dsn, "items", schema="id long, name long")).copied()
