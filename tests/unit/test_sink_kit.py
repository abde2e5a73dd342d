"""The kit for sinks of one's own: `EpochSink` with a marker in SQLite passes `check_sink`, and each mistake that such sinks are made with is found."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import Fenced, SinkError
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import SinkRow
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter

TABLES = (
    "create table if not exists rows (at integer primary key autoincrement, key text, n integer)",
    "create table if not exists epochs (writer text primary key, epoch integer, run integer)",
)


class SqliteSink(EpochSink):
    """Rows and the marker in one transaction. mistake: what it does wrong."""

    transient = (sqlite3.OperationalError,)

    def __init__(self, path: Path, mistake: str = "") -> None:
        super().__init__()
        self.path, self.mistake = str(path), mistake

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=20)) as db:  # which rolls back what is open
            for table in TABLES:
                db.execute(table)
            db.execute("begin immediate")
            yield db
            db.execute("commit")

    def _marker(self, db: sqlite3.Connection, writer: SinkWriter) -> tuple[int, int]:
        return db.execute("select epoch, run from epochs where writer = ?", [self._filed(writer)]).fetchone() or (-1, 0)

    def _filed(self, writer: SinkWriter) -> str:
        return "all" if self.mistake == "one marker for all writers" else writer.name

    def _mark(self, db: sqlite3.Connection, writer: SinkWriter, epoch: int) -> None:
        db.execute("insert or replace into epochs values (?, ?, ?)", [self._filed(writer), epoch, writer.run])

    def begin(self, writer: SinkWriter) -> int | None:
        with self._transaction() as db:
            epoch, run = self._marker(db, writer)
            if run > writer.run:
                raise Fenced(f"run {run} has been there")
            if self.mistake != "older runs are not shut out":
                self._mark(db, writer, epoch)
        return None if self.mistake == "no marker is read" else epoch

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        if self.mistake == "the marker is written before the rows":
            with self._transaction() as db:
                self._mark(db, writer, epoch)
        with self._transaction() as db:
            if self._marker(db, writer)[1] > writer.run and self.mistake != "older runs are not shut out":
                raise Fenced("a newer run has been there")
            db.executemany("insert into rows (key, n) values (?, ?)", [(row.key, row.value["n"]) for row in rows])
            if self.mistake == "the marker is written after the rows":
                db.execute("commit")
                db.execute("begin immediate")
            self._mark(db, writer, epoch)


class EagerSink(SqliteSink):
    """Writes in the tasks."""

    def encode(self, rows: Any) -> bytes:
        with self._transaction() as db:
            db.executemany("insert into rows (key, n) values (?, ?)", [(row.key, row.value["n"]) for row in rows])
        return super().encode(rows)


def read(path: Path) -> list[int]:
    if not path.exists():
        return []
    db = sqlite3.connect(path)
    return [n for (n,) in db.execute("select n from rows order by at")] if db.execute("select name from sqlite_master").fetchall() else []


@pytest.mark.crash
def test_a_sink_with_a_marker_in_its_transaction_passes(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    ms.testing.check_sink(SqliteSink(path), lambda: read(path))


@pytest.mark.parametrize("mistake", ["one marker for all writers", "older runs are not shut out", "no marker is read"])
def test_a_mistake_is_found_by_calls_alone(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "rows.db"
    with pytest.raises((AssertionError, Fenced)):
        ms.testing.check_sink(SqliteSink(path, mistake), lambda: read(path), kills=0)


def test_a_sink_that_writes_before_the_commit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with pytest.raises(AssertionError, match="staged, and not committed"):
        ms.testing.check_sink(EagerSink(path), lambda: read(path), kills=0)


def test_a_marker_before_the_rows_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with pytest.raises((AssertionError, Fenced)):
        ms.testing.check_sink(SqliteSink(path, "the marker is written before the rows"), lambda: read(path), kills=0)


@pytest.mark.crash
def test_a_marker_behind_the_rows_is_found_by_kills(tmp_path: Path) -> None:
    for seed in range(1, 6):  # ten kills may all miss the gap
        path = tmp_path / f"rows-{seed}.db"
        try:
            ms.testing.check_sink(
                SqliteSink(path, "the marker is written after the rows"), lambda path=path: read(path), kills=10, seed=seed
            )
        except AssertionError as error:
            assert "drivers were killed" in str(error)
            return
    raise AssertionError("fifty kills have not found it")


class Tired(SqliteSink):
    """Works in this process, and for nobody who was forked."""

    home = 0

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        if os.getpid() != self.home:
            raise ValueError("too tired to write")
        super().write(writer, epoch, rows)


@pytest.mark.crash
def test_a_driver_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    sink = Tired(path)
    sink.home = os.getpid()
    with pytest.raises(AssertionError, match=r"(?s)a driver that was started after 0 kills.*too tired to write"):
        ms.testing.check_sink(sink, lambda: read(path), kills=3, seed=1)


@pytest.mark.crash
def test_files_pass(tmp_path: Path) -> None:
    def found() -> list[int]:
        files = sorted(tmp_path.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(line)["value"]["n"] for path in files for line in path.read_text().splitlines()]

    ms.testing.check_sink(ms.sinks.files(tmp_path), found)


class Flaky(SqliteSink):
    """Its target is away for some calls."""

    away = 0

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        super().write(writer, epoch, rows)
        if self.away:
            self.away -= 1
            raise sqlite3.OperationalError("the answer was lost")


def test_a_lost_answer_is_asked_again_and_nothing_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    sink = Flaky(path)
    sink.away = 1
    run = Stage(tmp_path / "checkpoint", lambda n: SinkRow("k", n, {"n": n})).run(sink)
    run.publish(0, [1, 2, 3])
    assert sorted(read(path)) == [1, 2, 3] and run.sink.away == 0  # type: ignore[attr-defined]


class Full(SqliteSink):
    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        raise OSError("no space left")

    def describe(self) -> str:
        return "rows.db"


def test_an_error_that_does_not_pass_names_stream_sink_and_what_becomes_of_the_epoch(tmp_path: Path) -> None:
    run = Stage(tmp_path / "checkpoint", lambda n: SinkRow("k", n, {"n": n})).run(Full(tmp_path / "rows.db"))
    with pytest.raises(
        SinkError, match=r"stream 'rows' into rows.db: OSError: no space left. Epoch 0 is committed; its rows are written at the next"
    ):
        run.publish(0, [1])
