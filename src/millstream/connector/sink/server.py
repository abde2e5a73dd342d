"""The sink server: many workers at once, each with its own connection, output and thread.

Rules
1. A connection has a thread, which reads, decides and calls the output (`SessionRunner`). So whatever blocks, blocks one worker; and between the
   arrival of phase one and the vote there is no hand-over, only the disk.
2. A name has one holder, and WORKERS_LEFT is about one life of a name (`name_registry`).
3. Connections that have not greeted are few: when one more comes, the oldest goes. So a crowd cannot keep a worker out. Sessions are limited too: one
   too many is told so. Threads are limited by both.
4. A peer's mistake, or an output's failure, costs that worker's connection and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from millstream import network
from millstream.connector.sink.connection import Connection
from millstream.connector.sink.console import SinkConsole
from millstream.connector.sink.name_registry import NameRegistry
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.protocol.session import ANSWERED, PREPARED, READY, Archive, Do, Ignored, SinkEffect, SinkSession
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import FRAME_LIMIT, Decoder
from millstream.connector.wire.messages import DATA_STREAM, Ack, Close, Error, Message, Notify, Restart, Send, Vote
from millstream.core.time import Duration, duration
from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.network import Tls

log = logging.getLogger("millstream.connector")

_GREETING_LIMIT = 4 << 10  # bytes; who sends more before being known is cut off


class SinkStats(msgspec.Struct):
    """How a sink server is doing, since it was started; docs/connector.md says what each field is. Each runner counts for itself; the server adds up."""

    connections: int = 0
    sessions: int = 0
    errors: int = 0
    messages: int = 0
    bytes: int = 0
    messages_between_phases: int = 0
    votes_yes: int = 0
    votes_no: int = 0
    commits: int = 0
    bytes_committed: int = 0
    rollbacks: int = 0
    repeated_notifies: int = 0
    repeated_commits: int = 0
    unknown_phase_twos: int = 0
    ends: int = 0
    archived: int = 0
    repeated_leavings: int = 0

    def add(self, other: SinkStats) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SessionRunner:
    """A session, the decoder of its bytes, and the output of its worker. leave: puts aside the outputs of workers that have left, and returns then."""

    def __init__(
        self,
        session: SinkSession,
        decoder: Decoder,
        output: Output,
        connection: Connection,
        leave: Callable[[tuple[str, ...]], None],
        console: SinkConsole | None = None,
        stats: SinkStats | None = None,
    ) -> None:
        self.session, self.decoder, self.output, self.connection = session, decoder, output, connection
        self._leave, self._console = leave, console or SinkConsole()
        self._end = 0  # of what is committed
        self._out = bytearray()
        self.is_over = False
        self.stats = stats or SinkStats()

    def begin(self, effects: list[SinkEffect]) -> bytearray:
        """Carries out what HELLO came to, and goes on with what came behind it. Returns what is to be sent."""
        self._carry_out(effects)
        return self.feed(b"")

    def feed(self, data: bytes | memoryview) -> bytearray:
        self.decoder.receive(data)
        while not (self.is_over or self.connection.is_cut):
            try:
                message = self.decoder.next()
            except RemoteProtocolError as error:
                self._carry_out(self.session.failed(str(error)))
                break
            if message is None:
                break
            state = self.session.state
            if isinstance(message, Message):
                self.stats.messages += self.decoder.frames
                self.stats.messages_between_phases += self.decoder.frames if state is PREPARED else 0
            elif isinstance(message, Notify) and state in (READY, PREPARED):
                self.stats.repeated_notifies += 1
            self._carry_out(self.session.receive(message))
        out, self._out = self._out, bytearray()
        return out

    def _carry_out(self, effects: list[SinkEffect]) -> None:
        for effect in effects:
            try:
                more = self._one(effect)
            except Exception as error:
                what, is_ours = effect.method if isinstance(effect, Do) else type(effect).__name__, not isinstance(error, MillstreamError)
                log.error("the output of worker %r failed at %s: %s", self.session.worker, what, error, exc_info=is_ours)
                self._carry_out(self.session.failed(f"the sink failed at {what}: {error}"))
                return
            self._carry_out(more)

    def _one(self, effect: SinkEffect) -> list[SinkEffect]:
        match effect:
            case Do(method, args):
                found = getattr(self.output, method)(*args)
                self._note(method, args, found)
                return self.session.answer(found) if method in ANSWERED else []
            case Send(Error() as words):
                self.connection.part(words)
            case Send(frame):
                if isinstance(frame, Vote):
                    self.stats.votes_yes += frame.commit
                    self.stats.votes_no += not frame.commit
                self.stats.ends += isinstance(frame, Ack)
                self._out += encode(frame)
            case Close():
                self.is_over = True
            case Ignored(txn, commit, known):
                self.stats.repeated_commits += known
                self.stats.unknown_phase_twos += not known
                if not known:
                    text = "worker %r says %s to transaction %r, which is not known here: ignored"
                    level = logging.WARNING if commit else logging.INFO  # to roll back twice is common, and harmless
                    log.log(level, text, self.session.worker, "commit" if commit else "rollback", txn)
            case Archive(workers):
                self._leave(workers)
        return []

    def _note(self, method: str, args: tuple[Any, ...], found: Any) -> None:
        if method == "append":
            self.stats.bytes += len(args[0])
        elif method == "commit":
            size, self._end = args[1] - self._end, args[1]
            self.stats.commits += 1
            self.stats.bytes_committed += size
            self._console.committed(str(self.session.worker), size)
        elif method == "rollback":
            self.stats.rollbacks += 1
        elif method == "veto":
            log.warning("transaction %r is voted down: %s", *args)
        elif method == "recover":
            self._end = found.committed


class SinkServer:
    """Listens, and puts what workers commit into outputs.

    `outputs` makes an `Output` from a worker's name: `FileOutputs(folder)`, `MemoryOutputs()`, `PostgresOutputs(...)` or your own. `listen` is HOST:PORT,
    port 0 for a free one; `address` is where it listens. `cookie` and `tls` say who may come (both off by default). `sessions` is how many workers may be
    there at once, `unauthenticated` how many may be about to greet, for `greeting`; `frame_limit` bounds one message; `patience` is for peers that do not
    read. `console` is told what happens.
    """

    def __init__(
        self,
        outputs: Callable[[str], Output],
        listen: str = "127.0.0.1:0",
        *,
        cookie: str = "",
        tls: Tls | None = None,
        force: bool = False,
        sessions: int = 256,
        unauthenticated: int = 64,
        frame_limit: int = FRAME_LIMIT,
        greeting: Duration = "10s",
        patience: Duration = "1m",
        console: SinkConsole | None = None,
    ) -> None:
        self._host, self._port = network.parse_address(listen)
        network.check_listening(self._host, cookie, force)
        self._outputs = outputs
        self._cookie = cookie
        self._context = None if tls is None else network.server_context(tls)
        self._sessions, self._unauthenticated_limit = sessions, unauthenticated
        self._frame_limit = frame_limit
        self._greeting, self._patience = duration(greeting) / 1000, duration(patience) / 1000
        self._console = console or SinkConsole()
        self._names = NameRegistry()
        self._lock = threading.Lock()  # of everything below
        self._unauthenticated: dict[Connection, None] = {}  # oldest first
        self._greeted: dict[Connection, SinkStats] = {}
        self._threads: set[threading.Thread] = set()
        self._counted = SinkStats()  # by the server, and over connections that have ended
        self._room = threading.BoundedSemaphore(sessions + 2 * unauthenticated)
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()

    # ---- life

    def __enter__(self) -> SinkServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        assert self._listener is not None, "the server is not started"
        return network.written(*self._listener.getsockname()[:2])

    def start(self) -> SinkServer:
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            self._listener = socket.create_server((self._host, self._port), family=family, backlog=512)
        except OSError as error:
            raise network.cannot_listen(self._host, self._port, error) from error
        self._thread(self._accept)
        return self

    def stop(self) -> None:
        """Tells the workers to come back later, and returns when all outputs are at rest."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in [*self._unauthenticated, *self._greeted]:
                connection.cut(Restart())
        while self._threads:
            with self._lock:
                thread = next(iter(self._threads), None)
            if thread is not None:
                thread.join(0.1)
        if self._listener is not None:
            self._listener.close()

    def stats(self) -> SinkStats:
        found = SinkStats()
        with self._lock:
            for counted in (self._counted, *self._greeted.values()):
                found.add(counted)
            found.sessions = len(self._greeted)
        found.repeated_leavings = self._names.repeated
        return found

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until `stop` is called from another thread. False if time runs out."""
        return self._stopping.wait(None if timeout is None else duration(timeout) / 1000)

    def _thread(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("a thread of the sink ended in an error of its own")
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="millstream-sink", daemon=True)
        with self._lock:
            thread.start()
            self._threads.add(thread)

    # ---- connections

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            self._room.acquire()
            try:
                sock, address = self._listener.accept()
                self._admit(Connection(sock, self._patience, f"{address[0]}:{address[1]}"))
            except (OSError, RuntimeError) as error:
                self._room.release()
                if self._stopping.is_set():
                    return
                log.warning("a connection could not be accepted: %s", error)
                time.sleep(0.05)

    def _admit(self, connection: Connection) -> None:
        with self._lock:
            self._counted.connections += 1
            if len(self._unauthenticated) >= self._unauthenticated_limit:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                oldest.cut(Error("too many connections that do not greet"))
            self._unauthenticated[connection] = None
            if self._stopping.is_set():
                connection.cut(Restart())
        try:
            self._thread(lambda: self._serve(connection))
        except RuntimeError:
            with self._lock:
                self._unauthenticated.pop(connection, None)
            connection.close()
            raise

    def _serve(self, connection: Connection) -> None:
        session = SinkSession(self._cookie)
        decoder = Decoder(_GREETING_LIMIT, join=DATA_STREAM)
        is_let_in = False
        try:
            deadline = time.monotonic() + self._greeting
            connection.open(self._context, deadline)
            effects = self._greet(connection, session, decoder, deadline)
            is_let_in = self._is_let_in(connection, session)
            if is_let_in:
                connection.enlarge()
                decoder.limit = self._frame_limit
                self._sit(connection, session, decoder, effects)
            elif effects and isinstance(effects[0], Send):
                connection.part(effects[0].frame)
        except TimeoutError:
            connection.part(Error("nothing was heard for too long"))
        except RemoteProtocolError as error:
            connection.part(Error(str(error)))
        except (OSError, ssl.SSLError) as error:
            log.info("a connection was lost: %s", error)
        finally:
            why = connection.last_words.text if isinstance(connection.last_words, Error) else None
            with self._lock:
                self._unauthenticated.pop(connection, None)
                self._counted.add(self._greeted.pop(connection, SinkStats()))
                self._counted.errors += why is not None
            if is_let_in:
                self._console.say(f"{session.worker!r} has disconnected" if why is None else f"{session.worker!r} was sent away: {why!r}")
            elif why is not None:
                self._console.say(f"{connection.peer} was refused: {why!r}")
            connection.close()
            self._room.release()

    def _greet(self, connection: Connection, session: SinkSession, decoder: Decoder, deadline: float) -> list[SinkEffect]:
        """Waits for HELLO, and returns what it comes to: to recover, if it is right. Nothing, if the peer is gone."""
        while (data := connection.read(deadline)) is not None:
            decoder.receive(data)
            if (message := decoder.next()) is not None:
                return session.receive(message)
        return []

    def _is_let_in(self, connection: Connection, session: SinkSession) -> bool:
        with self._lock:
            self._unauthenticated.pop(connection, None)
            if connection.is_cut or session.worker is None or self._stopping.is_set():
                return False
            if len(self._greeted) >= self._sessions and session.worker not in self._names:
                connection.part(Error(f"the sink has {self._sessions} sessions and takes no more"))
                return False
            self._greeted[connection] = SinkStats()
        self._console.say(f"{session.worker!r} has connected from {connection.peer}")
        return True

    def _sit(self, connection: Connection, session: SinkSession, decoder: Decoder, effects: list[SinkEffect]) -> None:
        assert session.worker is not None
        with self._names.hold(session.worker, connection, session.fence) as place:
            if connection.is_cut:
                return
            try:
                output = self._outputs(session.worker)
            except Exception as error:
                log.error("no output for worker %r: %s", session.worker, error)
                connection.part(Error(f"the sink has no output for this worker: {error}"))
                return
            leave = partial(self._names.leave, place, archive=self._archive)
            runner = SessionRunner(session, decoder, output, connection, leave, self._console, self._greeted[connection])
            with contextlib.closing(output):
                out = runner.begin(effects)
                while not connection.is_cut:  # else whoever took over decides now; a vote would only mislead
                    connection.send(out)
                    if runner.is_over or (data := connection.read()) is None:
                        return
                    out = runner.feed(data)

    def _archive(self, worker: str) -> None:
        with contextlib.closing(self._outputs(worker)) as output:
            output.archive()
        with self._lock:
            self._counted.archived += 1
        self._console.say(f"{worker!r} has left for good; its output is put aside")
