"""The worker's side as a library: a connection to a sink, from any program, with plain blocking calls. docs/connector.md has an example.

Rules
1. Every call ends: in time, or in an error. `SinkError`: the sink is away or too slow; `SinkRefused`, which is one: it says why it does not go on.
   `RemoteProtocolError`: what answers is no sink. `LocalProtocolError`: the call was not allowed at this point, and changed nothing.
2. After a `SinkError` or `RemoteProtocolError` the connection is over. What was not prepared is gone; what was prepared waits for whoever connects
   next under this name.
3. Only one connection has a name: to connect closes the one before, which fails with a `SinkError`. With a `fence`, only who comes with the same
   number or a higher one gets the name: a driver with a higher one than its tasks shuts out those that come too late.
4. `resolve`, `settle` and `finish(confirm=True)` return when the sink has carried out phase two. A plain `finish` returns when it is sent: it may be
   lost, so who has decided must come back and look.
5. A client belongs to one thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence

import msgspec

from millstream.connector.sink.protocol.worker_session import WAITING, WorkerSession, WorkerState
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode, message_head
from millstream.connector.wire.decoder import Decoder
from millstream.core.time import Duration, duration
from millstream.errors import RemoteProtocolError, SinkError, SinkRefused
from millstream.network import Tls, client_context, dial

#: Bytes are sent in messages of about this size, and never more than twice of it.
MESSAGE_SIZE = 256 << 10
_ANSWER_LIMIT = 1 << 20
_PAUSE = 0.05


class WorkerStats(msgspec.Struct):
    """What a worker's client has done, over all of its connections. Bytes count if they are rolled back later, too; phase two counts when it is sent."""

    connections: int = 0
    messages: int = 0
    bytes: int = 0
    votes_yes: int = 0
    votes_no: int = 0
    commits: int = 0
    rollbacks: int = 0


class WorkerClient:
    """One worker's connection to a sink. Made by `connect`."""

    def __init__(self, address: str, name: str, *, cookie: str, program: str, tls: Tls | None, timeout: Duration) -> None:
        self.address, self.name = address, name
        self._cookie, self._program = cookie, program
        self._context = None if tls is None else client_context(tls)
        self._timeout = duration(timeout) / 1000
        self._socket: socket.socket | None = None
        self._session = WorkerSession(name)
        self._decoder = Decoder(_ANSWER_LIMIT)
        self._held: list[bytes] = []
        self._held_size = 0
        self._stats = WorkerStats()

    @classmethod
    def connect(
        cls,
        address: str,
        name: str,
        *,
        cookie: str = "",
        tls: Tls | None = None,
        program: str = "millstream",
        fence: int = 0,
        timeout: Duration = "30s",
        patience: Duration = 0,
    ) -> WorkerClient:
        """Greets the sink at HOST:PORT. `timeout` bounds every wait for it; `patience` is how long to go on trying while it is away. `fence` is a number
        that never goes back for a name (rule 3)."""
        client = cls(address, name, cookie=cookie, program=m.with_fence(program, fence), tls=tls, timeout=timeout)
        client.reconnect(patience=patience)
        return client

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what is known

    @property
    def offset(self) -> int:
        """Where the next byte goes: after `connect` this is how many bytes the sink holds."""
        return self._session.offset + self._held_size

    @property
    def committed(self) -> int:
        return self._session.committed

    @property
    def uncommitted(self) -> tuple[str, ...]:
        """The transaction that was found open when this client connected; it is to be resolved before anything is written."""
        return self._session.uncommitted

    @property
    def state(self) -> str:
        return self._session.state.value

    def stats(self) -> WorkerStats:
        return msgspec.structs.replace(self._stats)

    # ---- what can be done

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Adds bytes to the transaction under way. They are sent in large messages, at the latest by `prepare`."""
        if not self._held_size:
            self._live().check(m.Message)
        self._held.append(data if type(data) is bytes else bytes(data))
        self._held_size += len(data)
        if self._held_size >= MESSAGE_SIZE:
            self.flush()

    def flush(self) -> None:
        with memoryview(b"".join(self._held)) as data:
            self._held, self._held_size = [], 0
            for at in range(0, len(data), 2 * MESSAGE_SIZE):
                piece = data[at : at + 2 * MESSAGE_SIZE]
                self._send_all(message_head(m.DATA_STREAM, self._live().write(len(piece)), len(piece)) + piece)
                self._stats.messages += 1
                self._stats.bytes += len(piece)

    def prepare(self, txn: str) -> bool:
        """Phase one, of everything that was written since the last commit or rollback. True: the sink promises to commit if told so. After False this
        connection is of no more use: `reconnect`, and `resolve` what is found."""
        self.flush()
        self._send(self._live().prepare(txn))
        self._hear()
        is_promised = self._session.state is WorkerState.VOTED
        self._stats.votes_yes += is_promised
        self._stats.votes_no += not is_promised
        return is_promised

    def finish(self, txn: str, commit: bool, *, confirm: bool = False) -> None:
        """Phase two of the transaction that was just prepared. With `confirm`, waits until the sink has carried it out, over a new connection if need be."""
        try:
            self._finish(txn, commit)
            if confirm:
                self.confirm()
        except SinkError:
            if not confirm:
                raise
            self.settle(txn, commit)

    def _finish(self, txn: str, commit: bool) -> None:
        self._send(self._live().finish(txn, commit))
        self._stats.commits += commit
        self._stats.rollbacks += not commit

    def resolve(self, txn: str, commit: bool) -> None:
        """Phase two of a transaction that was found open, and a new connection, which knows where the output ends now."""
        self._finish(txn, commit)
        self.confirm()  # on this connection: the next one would cut it off with phase two unread
        self.reconnect()
        if txn in self.uncommitted:
            raise SinkError(f"the sink at {self.address} was told how transaction {txn!r} ends, and still has it open")

    def settle(self, txn: str, commit: bool) -> bool:
        """Makes sure that a transaction is over, over a new connection: how a driver ends what its tasks prepared. It may be repeated. False: it was not
        open any more (or never was). Another transaction that is found open is an error."""
        self.reconnect()
        if not self.uncommitted:
            return False
        if txn not in self.uncommitted:
            raise SinkError(f"worker {self.name!r} has transaction {self.uncommitted[0]!r} open at the sink, not {txn!r}")
        self.resolve(txn, commit)
        return True

    def confirm(self) -> None:
        """Returns when the sink has carried out the phase two that was sent last."""
        self._send(self._live().list_again())
        self._hear()

    def workers_left(self, names: Sequence[str]) -> None:
        """Tells the sink that these workers are gone for good, and returns when it has put their output aside: the names begin at 0. After a `SinkError`
        nobody knows whether it has; `reconnect`, and say it again, before anybody comes back under one of the names."""
        self._send(self._live().workers_left(tuple(names)))
        self.confirm()

    def reconnect(self, *, patience: Duration = 0) -> None:
        """A new connection under the same name. What was written and not prepared is gone."""
        self.close()
        until = time.monotonic() + duration(patience) / 1000
        while True:
            try:
                return self._connect()
            except SinkError as error:
                self.close()
                final = isinstance(error, SinkRefused) and error.reason in m.FINAL
                if final or time.monotonic() + _PAUSE >= until:
                    raise
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Leaves. A transaction that is prepared stays open at the sink."""
        self._held, self._held_size = [], 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # ---- the socket

    def _connect(self) -> None:
        at = self._session.offset
        self._session = WorkerSession(self.name, self._cookie, self._program)
        self._decoder = Decoder(_ANSWER_LIMIT)
        try:
            self._socket = dial(self.address, self._timeout, self._context)
        except (OSError, ssl.SSLError) as error:
            text = f"the sink at {self.address} cannot be reached: {error}"
            if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                raise SinkRefused(text, m.TLS) from error  # no TLS there, or a certificate that does not do: waiting does not help
            raise SinkError(text) from error
        self._send(self._session.greet(at))
        self._hear()
        self._stats.connections += 1

    def _live(self) -> WorkerSession:
        if self._socket is None:
            raise SinkError(f"the connection to the sink at {self.address} is closed")
        return self._session

    def _send(self, frames: list[m.Frame]) -> None:
        self._send_all(b"".join(map(encode, frames)))

    def _send_all(self, data: bytes | bytearray) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except (OSError, ssl.SSLError) as error:
            raise self._over(error) from error

    def _hear(self) -> None:
        """Takes in what the sink says, until we may go on."""
        until = time.monotonic() + self._timeout
        while self._session.state in WAITING and self._socket is not None:
            try:
                message = self._decoder.next()
                if message is not None:
                    self._session.receive(message)
                    continue
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                data = self._socket.recv(64 << 10)
                self._socket.settimeout(self._timeout)
            except (OSError, ssl.SSLError) as error:
                raise self._over(error) from error
            except RemoteProtocolError:
                self.close()
                raise
            if not data:
                raise self._over(None)
            self._decoder.receive(data)
        if self._session.last_words is not None:
            raise self._over(None)

    def _over(self, error: Exception | None) -> SinkError:
        """Closes, and tells why: in the sink's own last words, if there are any to be had."""
        if self._socket is not None and self._session.last_words is None:
            with contextlib.suppress(OSError, ssl.SSLError, RemoteProtocolError):
                self._socket.settimeout(0.2)
                while (message := self._decoder.next()) is not None or (data := self._socket.recv(64 << 10)):
                    if message is None:
                        self._decoder.receive(data)
                    elif isinstance(message, m.Error | m.Restart):
                        self._session.last_words = message
                        break
        self.close()
        said = self._session.last_words
        if isinstance(said, m.Error):
            return SinkRefused(f"the sink at {self.address} refuses: {said.text}", m.reason(said.text))
        if isinstance(said, m.Restart):
            return SinkError(f"the sink at {self.address} stops and asks to come back" + (f" at {said.address}" if said.address else ""))
        if isinstance(error, TimeoutError):
            return SinkError(f"the sink at {self.address} did not answer within {self._timeout:g} s")
        return SinkError(f"the sink at {self.address} closed the connection" + (f": {error}" if error else ""))
