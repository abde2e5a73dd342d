"""Outputs in PostgreSQL: each line that a worker commits is a row.

    TABLE(worker, at, line)              the committed lines; `at` is the offset of the line's first byte, `line` the bytes without the newline
    TABLE_staged(worker, at, line)       lines of transactions that are not committed
    TABLE_workers(worker, ...)           one row per worker: how far it is, and which transaction is open

Rules
1. Bytes become rows of the staging table, in an SQL transaction that phase one commits together with the promise. Phase two is one SQL transaction
   too: it moves the rows, sets the committed offset and forgets the promise. So rows and commit mark cannot come apart.
2. Why no PREPARE TRANSACTION: most servers have it switched off, and one that is forgotten between the phases holds its locks. A staging table gives the
   same guarantee, for the price of writing the rows twice.
3. Rows of the next transaction may be staged while one is open. They begin where the rows of the open one end: at its end, less the line that it
   leaves unfinished. Phase two moves the rows before that place; recovery deletes those behind it, which nobody has promised.
4. What has no newline yet is kept in `rest`, with the worker's row, and becomes a row when its newline is committed.
5. An advisory lock keeps a second server, or the remains of a killed one, from writing to a worker's rows.
6. Synchronous commit is switched on for our connections: a vote that can be forgotten is no vote.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.errors import DefinitionError, SinkError
from millstream.extras import needed

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}(\.[a-z_][a-z0-9_]{0,47})?")
_ROW = "worker text, at bigint, line bytea NOT NULL"
_STATE = "committed bigint NOT NULL, rest bytea NOT NULL, last text, txn text, txn_end bigint, txn_rest bytea, veto text"
_TABLES = {
    "": f"{_ROW}, PRIMARY KEY (worker, at)",
    "_staged": f"{_ROW}, PRIMARY KEY (worker, at)",
    "_workers": f"worker text PRIMARY KEY, {_STATE}, fence bigint NOT NULL DEFAULT 0",
    "_left": f"{_ROW}, archived timestamptz",
}
_LOCK_WAIT = "10s"
_LINE_LIMIT = 32 << 20


class PostgresOutputs:
    """Outputs in a database. `dsn` is what psycopg connects with; `table` a name of lower-case letters, digits and `_`, with a schema or without."""

    def __init__(self, dsn: str, table: str = "lines") -> None:
        if not _NAME.fullmatch(table):
            raise DefinitionError(f"{table!r} cannot be the name of the table: lower-case letters, digits and _, at most 48")
        self.dsn, self.table = dsn, table
        with _connected(dsn) as connection:
            # two servers that start at the same time would both create, and one would fail
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(table.encode()),))
            for suffix, columns in _TABLES.items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}{suffix} ({columns})")

    def __call__(self, worker: str) -> PostgresOutput:
        return PostgresOutput(self.dsn, self.table, worker)


def _connected(dsn: str) -> Any:
    with needed("an output in PostgreSQL"):
        import psycopg
    try:
        return psycopg.connect(dsn, options="-c synchronous_commit=on", application_name="millstream sink", connect_timeout=10)
    except psycopg.OperationalError as error:
        raise SinkError(f"the database cannot be reached: {error}") from error


class PostgresOutput(Output):
    def __init__(self, dsn: str, table: str, worker: str) -> None:
        if "\0" in worker:
            raise SinkError("a worker's name with a zero byte cannot be stored in PostgreSQL")
        self._dsn, self._table, self._worker = dsn, table, worker
        self._connection: Any = None
        self._rest = b""  # of the last line, what came so far
        self._at = 0  # where it begins

    def _sql(self, text: str, **values: Any) -> Any:
        """Carries out a statement about this worker, in which LINES stands for the name of the table."""
        return self._connection.execute(text.replace("LINES", self._table), {"worker": self._worker, **values})

    def _set(self, columns: str, where: str = "true", **values: Any) -> Any:
        """Changes this worker's row, and gives its `rest`."""
        return self._sql(f"UPDATE LINES_workers SET {columns} WHERE worker = %(worker)s AND {where} RETURNING rest", **values)

    def recover(self) -> Recovered:
        self.close()
        self._connection = _connected(self._dsn)
        self._lock()
        self._sql("INSERT INTO LINES_workers (worker, committed, rest) VALUES (%(worker)s, 0, '') ON CONFLICT DO NOTHING")
        committed, rest, last, txn, end, txn_rest, veto, fence = self._sql(
            "SELECT committed, rest, last, txn, txn_end, txn_rest, veto, fence FROM LINES_workers WHERE worker = %(worker)s"
        ).fetchone()
        opened = None if txn is None else Open(txn, end, veto)
        promised = opened is not None and opened.veto is None
        self._rest = bytes(txn_rest if promised else rest)
        self._at = (end if promised else committed) - len(self._rest)
        self._sql("DELETE FROM LINES_staged WHERE worker = %(worker)s AND at >= %(at)s", at=self._at if promised else 0)
        self._connection.commit()
        return Recovered(committed, opened, last, fence)

    def _lock(self) -> None:
        import psycopg

        self._connection.execute(f"SET lock_timeout = '{_LOCK_WAIT}'")
        try:
            self._sql("SELECT pg_advisory_lock(%(table)s, hashtext(%(worker)s))", table=zlib.crc32(self._table.encode()) - (1 << 31))
        except psycopg.errors.LockNotAvailable:
            raise SinkError(f"another sink writes the lines of worker {self._worker!r} into {self._table}") from None
        self._connection.commit()

    def begin(self, offset: int) -> None:
        assert offset == self._at + len(self._rest)

    def begin_next(self, offset: int) -> bool:
        self.begin(offset)
        return True

    def append(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_LIMIT:
            raise SinkError(f"a line has more than {_LINE_LIMIT} bytes, which is too much for a row")
        if lines:
            with self._connection.cursor() as cursor, cursor.copy(f"COPY {self._table}_staged (worker, at, line) FROM STDIN") as copy:
                for line in lines:
                    copy.write_row((self._worker, self._at, line))
                    self._at += len(line) + 1

    def prepare(self, txn: str, start: int, end: int) -> None:
        self._set("txn = %(txn)s, txn_end = %(end)s, txn_rest = %(rest)s, veto = NULL", txn=txn, end=end, rest=self._rest)
        self._connection.commit()

    def veto(self, txn: str, why: str) -> None:
        self._connection.rollback()
        self._set("txn = %(txn)s, txn_end = committed, txn_rest = rest, veto = %(why)s", txn=txn, why=why)
        self._connection.commit()

    def commit(self, txn: str, end: int) -> None:
        self._sql(
            "WITH moved AS (DELETE FROM LINES_staged WHERE worker = %(worker)s "
            "AND at < (SELECT txn_end - length(txn_rest) FROM LINES_workers WHERE worker = %(worker)s) RETURNING worker, at, line) "
            "INSERT INTO LINES SELECT worker, at, line FROM moved"
        )
        after = "committed = txn_end, rest = txn_rest, last = txn, txn = NULL, txn_end = NULL, txn_rest = NULL"
        self._set(after, "txn = %(txn)s", txn=txn)
        self._connection.commit()

    def rollback(self, txn: str, committed: int) -> None:
        self._connection.rollback()
        self._sql("DELETE FROM LINES_staged WHERE worker = %(worker)s")
        (rest,) = self._set("txn = NULL, txn_end = NULL, txn_rest = NULL, veto = NULL").fetchone()
        self._connection.commit()
        self._rest = bytes(rest)
        self._at = committed - len(self._rest)

    def seal(self, fence: int) -> None:
        self._set("fence = %(fence)s", fence=fence)
        self._connection.commit()

    def archive(self) -> None:
        self.recover()
        self._sql(
            "INSERT INTO LINES_left (worker, archived, at, line) SELECT worker, now(), at, line FROM LINES WHERE worker = %(worker)s "
            "UNION ALL SELECT worker, now(), committed - length(rest), rest FROM LINES_workers WHERE worker = %(worker)s AND rest <> ''"
        )
        for table in ("LINES", "LINES_staged", "LINES_workers"):
            self._sql(f"DELETE FROM {table} WHERE worker = %(worker)s")
        self._connection.commit()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
