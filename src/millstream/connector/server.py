"""The sink server: many workers at once, each with its own connection, output and thread.

Rules
1. The event loop only moves bytes. Whatever may block runs in a worker's lane (`lane`).
2. A name has one seat. A new HELLO with that name closes the connection that sits there, drops its unread input, and waits until its lane has
   come to rest; then it recovers. To refuse the new one instead would let a half-open socket keep a worker out for ever.
3. Connections that have not greeted are few: when one more comes, the oldest goes. So a crowd cannot keep a worker out, and those who
   have greeted do not notice it. Sessions are limited too: one too many is told so.
4. A peer's mistake costs its own connection. An output's failure costs that worker's connection. Neither ends the server.
5. WORKERS_LEFT closes what those workers still have open and archives their output when it is at rest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from millstream.connector import credentials
from millstream.connector import sink_session as fx
from millstream.connector.codec import FRAME_LIMIT, Decoder, encode
from millstream.connector.credentials import Tls
from millstream.connector.lane import Lane
from millstream.connector.messages import DATA_STREAM, Error, Restart
from millstream.connector.output import Output
from millstream.connector.sink_session import SinkSession
from millstream.connector.wire import Wire
from millstream.errors import RemoteProtocolError, SinkError

T = TypeVar("T")

log = logging.getLogger("millstream.connector")

#: A HELLO is short; who sends more than this before being known is cut off.
_GREETING_LIMIT = 4 << 10


class _Seat:
    """The place of one worker's name: who sits there, and who may touch its output."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wire: Wire | None = None
        self.lane: Lane | None = None
        self.users = 0

    def fence(self, why: str) -> None:
        if self.lane is not None:
            self.lane.stopped = True
        if self.wire is not None:
            self.wire.close(encode(Error(why)))
            self.wire = None


class SinkServer:
    """Listens, and puts what workers commit into outputs.

    `outputs` makes an `Output` from a worker's name: `Files(folder)`, `Memory()`, `Postgres(...)` or your own. `listen` is HOST:PORT, port 0 for a
    free one. Use it as a context manager, or `start` and `stop`; `address` is where it listens.
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
        strangers: int = 64,
        frame_limit: int = FRAME_LIMIT,
        greeting: float = 10.0,
        patience: float = 60.0,
    ) -> None:
        self._host, self._port = credentials.parse_address(listen)
        credentials.check_listening(self._host, cookie, force)
        self._outputs = outputs
        self._cookie = cookie
        self._context = None if tls is None else credentials.server_context(tls)
        self._sessions, self._strangers_limit = sessions, strangers
        self._frame_limit = frame_limit
        self._greeting, self._patience = greeting, patience
        self._strangers: dict[Wire, None] = {}  # connections that have not greeted, oldest first
        self._greeted: set[Wire] = set()
        self._seats: dict[str, _Seat] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lanes = concurrent.futures.ThreadPoolExecutor(sessions + 8, thread_name_prefix="millstream-sink")
        self._thread: threading.Thread | None = None
        self._listening: concurrent.futures.Future[tuple[str, int]] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    # ---- life

    def __enter__(self) -> SinkServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT, once it listens."""
        host, port = self._listening.result(timeout=0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> SinkServer:
        """Listens, in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="millstream-sink-loop", daemon=True)
        self._thread.start()
        self._listening.result()
        return self

    def stop(self) -> None:
        """Tells the workers to come back later, and returns when all outputs are at rest."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped already
                loop.call_soon_threadsafe(stopping.set)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self, listening: Callable[[str], None] | None = None) -> None:
        """Listens in this thread, until `stop` is called from another or from a signal handler. Says its address to `listening`."""
        try:
            asyncio.run(self._run(listening))
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
                if self._thread is not None:
                    return
            raise
        finally:
            self._lanes.shutdown()

    async def _run(self, listening: Callable[[str], None] | None) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await self._loop.create_server(
                lambda: Wire(self._accepted), self._host or None, self._port, ssl=self._context, backlog=512,
                ssl_handshake_timeout=None if self._context is None else self._greeting,
            )  # fmt: skip
        except OSError as error:
            raise SinkError(f"cannot listen on {self._host}:{self._port}: {error}") from error
        found = server.sockets[0].getsockname()
        self._listening.set_result((found[0], found[1]))
        if listening is not None:
            listening(self.address)
        await self._stopping.wait()
        server.close()
        for wire in [*self._strangers, *self._greeted]:
            wire.close(encode(Restart()))
        for seat in self._seats.values():
            seat.fence("the sink stops")
        while self._tasks:
            await asyncio.wait(self._tasks)

    # ---- connections

    def _accepted(self, wire: Wire) -> None:
        sock = wire.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if len(self._strangers) >= self._strangers_limit:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close(encode(Error("too many connections that do not greet")))
        self._strangers[wire] = None
        self._spawn(self._serve(wire))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a session ended in an error of the server's own", exc_info=task.exception())

    async def _serve(self, wire: Wire) -> None:
        session = SinkSession(self._cookie)
        decoder = Decoder(_GREETING_LIMIT, join=DATA_STREAM)
        try:
            refused = await asyncio.wait_for(self._greet(wire, session, decoder), self._greeting)
            self._strangers.pop(wire, None)
            if refused or session.worker is None:
                wire.close(refused)
            elif len(self._greeted) >= self._sessions and session.worker not in self._seats:
                wire.close(encode(Error(f"the sink has {self._sessions} sessions and takes no more")))
            else:
                self._greeted.add(wire)
                wire.enlarge()
                decoder.limit = self._frame_limit
                await self._sit(wire, session, decoder)
        except (asyncio.TimeoutError, TimeoutError):
            wire.close(encode(Error("nothing was heard for too long")))
        finally:
            self._strangers.pop(wire, None)
            self._greeted.discard(wire)
            wire.close()

    async def _greet(self, wire: Wire, session: SinkSession, decoder: Decoder) -> bytes:
        """Waits for HELLO. Returns what to refuse the peer with: nothing if it is welcome."""
        while (data := await wire.read()) is not None:
            try:
                decoder.receive(data)
                message = decoder.next()
            except RemoteProtocolError as error:
                effects = session.failed(str(error))
            else:
                if message is None:
                    continue
                effects = session.receive(message)
            refused = b"".join(encode(effect.frame) for effect in effects if isinstance(effect, fx.Send))
            if refused:
                log.info("%s is refused: %s", wire.peer, effects[0])
            return refused
        return b""

    @contextlib.contextmanager
    def _seat(self, worker: str, why: str) -> Iterator[_Seat]:
        """Rule 2: the seat of a name, with whoever sat there on the way out."""
        seat = self._seats.setdefault(worker, _Seat())
        seat.users += 1
        seat.fence(why)
        try:
            yield seat
        finally:
            seat.users -= 1
            if not seat.users:
                del self._seats[worker]

    async def _sit(self, wire: Wire, session: SinkSession, decoder: Decoder) -> None:
        assert session.worker is not None
        with self._seat(session.worker, "fenced: another connection has this worker's name now") as seat:
            seat.wire = wire
            async with seat.lock:
                if wire.closed:
                    return
                try:
                    output = await self._in_lane(self._outputs, session.worker)
                except Exception as error:
                    log.error("no output for worker %r: %s", session.worker, error)
                    wire.close(encode(Error(f"the sink has no output for this worker: {error}")))
                    return
                seat.lane = lane = Lane(session, decoder, output)
                try:
                    await self._talk(wire, lane)
                finally:
                    seat.lane = None
                    if seat.wire is wire:
                        seat.wire = None
                    await self._in_lane(output.close)

    async def _talk(self, wire: Wire, lane: Lane) -> None:
        done = await self._in_lane(lane.recover)
        while True:
            for worker in done.archive:
                self._spawn(self._archive(worker))
            if done.close:
                wire.close(done.send)
                return
            if done.send:
                wire.write(done.send)
                await asyncio.wait_for(wire.drain(), self._patience)
            data = await wire.read()
            if data is None:
                return
            done = await self._in_lane(lane.feed, data)

    async def _archive(self, worker: str) -> None:
        with self._seat(worker, "fenced: this worker is said to have left") as seat:
            async with seat.lock:
                try:
                    output = await self._in_lane(self._outputs, worker)
                    await self._in_lane(output.archive)
                    await self._in_lane(output.close)
                except Exception as error:
                    log.error("the output of worker %r, which has left, cannot be archived: %s", worker, error)

    async def _in_lane(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._lanes, call, *args)
