"""A connection that receives what changes in a table, as transactions, in a thread of the driver.

Rules
1. The server is told that it may forget a transaction when its epoch is committed (`confirm`), never before: it keeps the rest, whoever is killed.
2. At most `_MOST` rows wait; then nothing more is received. A transaction is never divided.
3. Who opens the stream for the first time ends whoever reads from the slot: an older run, which may be stopped. One that is ended so does not come
   back.
4. A connection that is lost is opened again, behind the last transaction that came. The server may not know yet that it is lost (wal_sender_timeout, a minute
   by default): what it still holds of ours is ended, and nobody else's. What lasts is raised by `raise_error`.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.errors import InputError, MillstreamError
from millstream.network import retried
from millstream.postgres_client import TEXTS, conninfo, passes, quoted, said
from millstream.sources.pgoutput import ChangeDecoder, Transaction

if TYPE_CHECKING:
    import psycopg

_MOST = 200_000
_BEAT = 5.0  # seconds
_END = (
    "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots "
    "where slot_name = %s and active_pid = any(coalesce(%s::int[], array[active_pid]))"
)
_REPLACED = "57P01"  # ended by an administrator


def replication(dsn: str) -> Any:
    """A connection that takes commands of replication."""
    import psycopg

    connection = psycopg.pq.PGconn.connect(conninfo(dsn, *TEXTS, replication="database").encode())
    if connection.status != psycopg.pq.ConnStatus.OK:
        raise psycopg.OperationalError(connection.error_message.decode("utf-8", "replace").strip())
    return connection


def command(connection: Any, text: str) -> Any:
    import psycopg

    result = connection.exec_(text.encode())
    if result.status not in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.COPY_BOTH):
        raise _error(result)
    return result


def _error(result: Any) -> psycopg.Error:
    import psycopg

    state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
    kind = psycopg.errors.lookup(state.decode()) if state and _known(state.decode()) else psycopg.OperationalError
    return kind(result.error_message.decode("utf-8", "replace").strip())


def _known(state: str) -> bool:
    import psycopg

    try:
        psycopg.errors.lookup(state)
    except KeyError:
        return False
    return True


class ChangeStream:
    def __init__(self, dsn: str, slot: str, publication: str, decoder: Callable[[], ChangeDecoder], start: int) -> None:
        self._dsn, self._slot, self._publication, self._decoder = dsn, slot, publication, decoder
        self._waiting: deque[Transaction] = deque()
        self._count = 0
        self._received = self._confirmed = start  # received: everything before it has come
        self._told = 0.0
        self._asks = False
        self._processes: list[int] = []  # the server's, of our connections
        self._error: BaseException | None = None
        self._lock = threading.Condition()
        self._ended = False
        self.call: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="millstream-postgres", daemon=True)
        self._thread.start()

    # --- the planner

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def waiting(self, most: int) -> tuple[list[Transaction], int]:
        """Transactions that are not confirmed, of so many rows or one; and the position behind them."""
        with self._lock:
            found: list[Transaction] = []
            count = 0
            for one in self._waiting:
                count += len(one.rows)
                if found and count > most:
                    return found, found[-1].lsn
                found.append(one)
            return found, self._received

    @property
    def rows(self) -> int:
        """How many rows have come and are not confirmed."""
        return self._count

    def await_position(self, lsn: int) -> None:
        """Until everything before it has come."""
        with self._lock:
            self._asks = True
            self._lock.wait_for(lambda: self._received >= lsn or self._error is not None or self._count > _MOST)
        self.raise_error()

    def confirm(self, lsn: int) -> None:
        with self._lock:
            while self._waiting and self._waiting[0].lsn <= lsn:
                self._count -= len(self._waiting.popleft().rows)
            self._confirmed = max(self._confirmed, lsn)
            self._told = 0.0

    def end(self) -> None:
        self._ended = True
        self._thread.join(10)

    # --- the thread

    def _run(self) -> None:
        import psycopg

        try:
            while not self._ended:
                connection = self._opened()
                try:
                    self._receive(connection)
                except psycopg.OperationalError as error:
                    if error.sqlstate == _REPLACED:
                        raise InputError(
                            f"slot {self._slot!r}: another run reads from it now, or the server stops: {said(error)}"
                        ) from error
                finally:
                    if self._ended:
                        self._tell(connection)
                    connection.finish()
        except BaseException as error:
            with self._lock:
                self._error = error if isinstance(error, MillstreamError) else InputError(f"slot {self._slot!r}: {said(error)}")
                self._lock.notify_all()
            self.call()

    def _opened(self) -> Any:
        import psycopg

        is_first = not self._processes
        for attempt in retried(passes):
            with attempt:
                connection = replication(self._dsn)
                if not self._ended:  # rules 3 and 4
                    with psycopg.connect(conninfo(self._dsn), autocommit=True) as session:
                        session.execute(_END, [self._slot, None if is_first else self._processes])
                self._processes.append(connection.backend_pid)
                at = f"{self._received >> 32:X}/{self._received & 0xFFFFFFFF:X}"
                options = f"proto_version '1', publication_names '{quoted(self._publication)}'"
                command(connection, f'START_REPLICATION SLOT "{self._slot}" LOGICAL {at} ({options})')
        return connection

    def _receive(self, connection: Any) -> None:
        import psycopg

        decoder = self._decoder()
        while not self._ended:
            self._tell(connection)
            if self._count > _MOST:
                time.sleep(0.05)
                continue
            size, message = connection.get_copy_data(1)
            if size == 0:
                select.select([connection.socket], [], [], 0.02 if self._asks or not self._told else 0.2)
                connection.consume_input()
            elif size == -1:
                result = connection.get_result()
                raise psycopg.OperationalError("the server has closed the stream") if result is None else _error(result)
            else:
                self._take(decoder, bytes(message))

    def _take(self, decoder: ChangeDecoder, message: bytes) -> None:
        if message[:1] == b"k":
            end, _, wants = struct.unpack_from(">QQB", message, 1)
            with self._lock:
                self._received = max(self._received, end)
                self._asks = False
                self._told = 0.0 if wants else self._told
                self._lock.notify_all()
        elif (done := decoder.take(message[25:])) is not None and done.lsn > self._received:
            with self._lock:
                if done.rows:
                    self._waiting.append(done)
                    self._count += len(done.rows)
                self._received = done.lsn
                self._lock.notify_all()
            if done.rows:
                self.call()

    def _tell(self, connection: Any) -> None:
        """How far what came is safe; and that we are there."""
        now = time.monotonic()
        if now - self._told < _BEAT and not self._asks:
            return
        with self._lock:
            micros = int(time.time() * 1_000_000) - 946_684_800_000_000
            status = b"r" + struct.pack(">QQQqB", self._received, self._confirmed, self._confirmed, micros, self._asks)
            self._told = now
        connection.put_copy_data(status)
        connection.flush()
