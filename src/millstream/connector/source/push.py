"""The pushing side as a library: messages into a pipeline, from any program, with plain blocking calls. docs/pushing.md has an example.

Rules
1. `send` returns when the message is queued. A thread sends it, keeps it until it is acknowledged, and sends it again after every reconnect. At most
   `most` bytes are kept: then `send` waits. What is not acknowledged when the process dies is the caller's to send again, from what `notify` tells.
2. Ids of a stream increase, whichever threads call. An id that is not above the acknowledged point is not sent, and `send` says so.
3. A server that is away, or says RESTART, is tried again for `patience` (None: for ever); so is a stream that is active elsewhere. ERROR is final.
   RESTART is followed to the host of the address that was given, to those in `hosts`, and with TLS, which checks who answers, to any; not elsewhere:
   the cookie and the messages would go to whoever says so. If the new address fails, the given one is tried, and so on in turn.
4. A final error is raised by the call that waits, and by every later one. `InputError`: the server is away too long, or says why it does not go on.
   `RemoteProtocolError`: what answers is no source server. `LocalProtocolError`: the call was not allowed, and changed nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from millstream.connector.source.protocol.outgoing import Outgoing
from millstream.connector.source.protocol.push_session import ClientStream, PushSession, PushState
from millstream.connector.source.protocol.session import LAST_ID, WATERMARK_KEY
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode, message_head
from millstream.connector.wire.decoder import Decoder
from millstream.core.time import Duration, duration
from millstream.errors import DefinitionError, InputError, LocalProtocolError, MillstreamError, NetworkError, RemoteProtocolError
from millstream.network import Tls, client_context, dial, parse_address

_log = logging.getLogger("millstream.connector")
_ANSWER_LIMIT = 1 << 20
_CHUNK = 256 << 10
_READ = 64 << 10
_AT_ONCE = 4096  # messages of one stream, before another stream has its turn
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_ASK_AGAIN = 0.3
_FAREWELL = 2.0
_PARTING = 0.5


class Waiting(msgspec.Struct, frozen=True):
    """What a client waits for, in words, and for how long. `is_away`: nobody answers at the address."""

    what: str
    seconds: float
    address: str
    is_away: bool = False


class PushClient:
    """A connection to a source server that is made again when it breaks."""

    def __init__(
        self,
        address: str,
        *,
        cookie: str = "",
        tls: Tls | None = None,
        program: str = "millstream",
        instance: str | None = None,
        timeout: Duration = "30s",
        patience: Duration | None = "2m",
        most: int = 64 << 20,
        hosts: Sequence[str] = (),
    ) -> None:
        """`instance` tells this client from others, so that the server can tell its new connection from its old one; by default it is drawn by lot.
        `timeout` is how long the server may take to answer a greeting; `hosts` are further hosts to which it may send us; the rest is in the rules."""
        self._hosts = {parse_address(address)[0], *hosts}
        self.address = self._given = self._other = address
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}" if instance is None else instance
        self._program, self._cookie = program, cookie
        self._context = None if tls is None else client_context(tls)
        self._timeout, self._most = duration(timeout) / 1000, most
        self._patience = math.inf if patience is None else duration(patience) / 1000
        self._changed = threading.Condition()  # guards everything below
        self._streams: dict[str, Outgoing] = {}
        self._numbers: dict[int, Outgoing] = {}
        self._kept = 0  # bytes in all queues
        #: What the server is to do, and since when; None: it has welcomed us.
        self._away: tuple[str, float] | None = ("to listen", time.monotonic())
        self._moved = time.monotonic()  # when something was acknowledged last, or began to wait for it
        self._error: MillstreamError | None = None
        self._closing: float | None = None
        self._is_awake = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="millstream-push", daemon=True)
        self._thread.start()

    def __enter__(self) -> PushClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what can be done

    def notify(self, stream: str) -> int | None:
        """Announces a stream, and returns the last id that is committed: go on behind it. None: begin at the beginning."""
        complaint = m.name_objection("stream", stream)
        if complaint is not None:
            raise LocalProtocolError(complaint)
        with self._changed:
            self._check()
            before = found = self._streams.get(stream)
            if found is None or found.has_ended:
                number = len(self._numbers) + 1
                self._wait_for(lambda: before is None or not before.waits)
                found = self._streams[stream] = self._numbers[number] = Outgoing(stream, number)
                self._wake()
            self._wait_for(lambda: found.is_known)
            return found.acknowledged

    def send(self, stream: str, id: int, payload: bytes, *, event_time: int = 0, key: str | bytes = b"") -> bool:
        """Queues a message. False if it is acknowledged already. Waits while too much is unacknowledged."""
        named = key.encode() if isinstance(key, str) else key
        if named == WATERMARK_KEY:
            raise LocalProtocolError(f"the key {WATERMARK_KEY.decode()} is reserved; use declare")
        if not 0 <= id <= LAST_ID:
            raise LocalProtocolError(f"the id {id} is not between 0 and {LAST_ID}")
        with self._changed:
            found = self._announced(stream)
            if found.acknowledged is not None and id <= found.acknowledged:
                return False
            if id <= found.last:
                raise LocalProtocolError(f"ids of stream {stream!r} increase; {found.last} was sent, and now comes {id}")
            data = message_head(found.number, id, len(payload), event_time, named) + payload
            if self._kept and self._kept + len(data) > self._most:
                self._wait_for(lambda: not self._kept or self._kept + len(data) <= self._most)
            self._keep(found.push(id, data))
            return True

    def declare(self, stream: str, watermark: int) -> None:
        """Promises that no message sent later on this stream has an event time below this (milliseconds)."""
        with self._changed:
            self._keep(self._announced(stream).declare(watermark))

    def end(self, stream: str) -> None:
        with self._changed:
            self._announced(stream).has_ended = True
            self._wake()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until everything sent is acknowledged, which is when the pipeline has committed it. False if time runs out."""
        with self._changed:
            seconds = None if timeout is None else duration(timeout) / 1000
            return self._wait_for(lambda: not any(found.waits for found in self._streams.values()), seconds)

    def acknowledged(self, stream: str) -> int | None:
        with self._changed:
            return self._streams[stream].acknowledged

    @property
    def unacknowledged(self) -> int:
        return self._kept

    def waiting(self) -> Waiting | None:
        with self._changed:
            now = time.monotonic()
            if self._away is not None:
                return Waiting(f"{self.address} {self._away[0]}", now - self._away[1], self.address, is_away=True)
            for found in self._streams.values():
                if found.refused_since is not None:
                    text = f"stream {found.name!r} at {self.address}: another program pushes it"
                    return Waiting(text, now - found.refused_since, self.address)
            if any(found.waits for found in self._streams.values()):
                records = sum(found.waiting for found in self._streams.values())
                text = f"the pipeline at {self.address} to commit {records:,} record{'' if records == 1 else 's'}"
                return Waiting(text, now - self._moved, self.address)
            return None

    def close(self) -> None:
        """Ends the connection. What is queued is sent if it can be at once; what is not acknowledged is forgotten, so `wait` first."""
        with self._changed:
            if self._closing is None:
                self._closing = time.monotonic() + _FAREWELL
            self._wake()
        self._thread.join(_FAREWELL + 1)

    # ---- helpers that hold the lock

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing is not None:
            raise LocalProtocolError("this client is closed")

    def _announced(self, stream: str) -> Outgoing:
        self._check()
        found = self._streams.get(stream)
        if found is None or found.has_ended:
            raise LocalProtocolError(f"stream {stream!r} {'was not announced' if found is None else 'has ended'}: call notify first")
        return found

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        def is_over() -> bool:
            if condition():
                return True
            self._check()
            return False

        return self._changed.wait_for(is_over, timeout)

    def _keep(self, size: int) -> None:
        if not self._kept:
            self._moved = time.monotonic()
        self._kept += size
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(OSError):
                self._wake_write.send(b"!")

    # ---- the thread

    def _run(self) -> None:
        pause, since = _FIRST_PAUSE, time.monotonic()
        try:
            while self._closing is None:
                session = PushSession(self._program, self.instance, self._cookie)
                try:
                    with dial(self.address, self._timeout, self._context) as sock, selectors.DefaultSelector() as selector:
                        sock.setblocking(False)
                        selector.register(sock, selectors.EVENT_READ)
                        selector.register(self._wake_read, selectors.EVENT_READ)
                        self._talk(sock, selector, session)
                except (OSError, ssl.SSLError) as error:
                    why: object = error
                else:
                    why = "it says RESTART, and is not back" if session.last_words else "the connection was closed"
                self._expect("to listen")
                if isinstance(session.last_words, m.Error):
                    raise _failed(f"the source at {self.address} says: {session.last_words.text}", DefinitionError.exit_code)
                if isinstance(session.last_words, m.Restart) and session.last_words.address:
                    self._move(session.last_words.address)
                elif session.last_words is None:
                    self.address, self._other = self._other, self.address
                if session.state is PushState.READY or session.last_words is not None:
                    pause, since = _FIRST_PAUSE, time.monotonic()
                if time.monotonic() - since > self._patience:
                    raise _failed(f"the source at {self.address} cannot be reached: {why}", NetworkError.exit_code)
                with self._changed:
                    if self._closing is None:
                        self._changed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except MillstreamError as error:
            self._error = error
        except Exception as error:
            self._error = LocalProtocolError(f"the client failed: {type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._wake_read.close()
                self._wake_write.close()
                self._changed.notify_all()

    def _expect(self, what: str | None) -> None:
        """What the server is to do next before messages can flow; None: nothing."""
        with self._changed:
            now = time.monotonic()
            if what is None:
                self._away, self._moved = None, now
            else:
                self._away = (what, now if self._away is None else self._away[1])

    def _move(self, address: str) -> None:
        try:
            host, _ = parse_address(address)
        except MillstreamError as error:
            raise RemoteProtocolError(f"the source at {self.address} sends us to {address!r}, which is no address") from error
        if self._context is None and host not in self._hosts:
            text = "the source at %s sends us to %r, whose host nobody has named: it is not followed (say hosts=[%r], or use TLS)"
            _log.warning(text, self.address, address, host)
            address = self._given
        self.address, self._other = address, self._given

    def _talk(self, sock: socket.socket, selector: selectors.BaseSelector, session: PushSession) -> None:
        self._expect("to answer")
        decoder = Decoder(_ANSWER_LIMIT, two_phase=False)
        deadline = time.monotonic() + self._timeout
        with self._changed:
            for found in self._streams.values():
                self._kept += found.lost()
        out = memoryview(encode(session.greet()))
        while session.state is not PushState.CLOSED:
            if not out:
                out = self._collect(session)
            if not out and self._closing is not None:
                return self._part(sock)
            if session.state is PushState.AWAIT_OK and time.monotonic() > deadline:
                raise TimeoutError("the server does not answer a greeting")
            while out:
                try:
                    out = out[sock.send(out) :]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    break
            out = out or self._collect(session)  # what there is to send is not waited with
            more = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
            selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0))
            ready = {key.fileobj: events for key, events in selector.select(0 if more else 0.1)}
            if self._wake_read in ready:
                with self._changed, contextlib.suppress(BlockingIOError):
                    self._is_awake = False
                    self._wake_read.recv(4096)
            if (more or ready.get(sock, 0) & selectors.EVENT_READ) and not self._hear(sock, session, decoder):
                return

    def _part(self, sock: socket.socket) -> None:
        """Closes so that what was sent arrives: closing with unread answers would make TCP throw it away."""
        with contextlib.suppress(OSError, ssl.SSLError):
            sock.settimeout(_PARTING)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(_READ):
                pass

    def _hear(self, sock: socket.socket, session: PushSession, decoder: Decoder) -> bool:
        """Takes in what has come. False when the server has closed."""
        try:
            data = sock.recv(_READ)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        if not data:
            return False
        decoder.receive(data)
        while (frame := decoder.next()) is not None:
            session.receive(frame)
            self._heard(frame)
        return True

    def _heard(self, frame: m.Frame) -> None:
        with self._changed:
            if isinstance(frame, m.Ok):
                self._expect(None)
            elif isinstance(frame, m.NotifyAck):
                found = self._numbers[frame.stream]
                if frame.success:
                    self._kept -= found.accepted(frame.point)
                elif found.refused(time.monotonic(), _ASK_AGAIN) > self._patience:
                    raise InputError(f"stream {found.name!r} is active elsewhere: another client pushes it to {self.address}")
            elif isinstance(frame, m.Ack):
                self._moved = time.monotonic()
                for number, point in frame.points:
                    self._kept -= self._numbers[number].acknowledge(point)
            self._changed.notify_all()

    def _collect(self, session: PushSession) -> memoryview:
        parts: list[bytes] = []
        size = 0
        with self._changed:
            if session.state is not PushState.READY or (self._closing is not None and time.monotonic() > self._closing):
                return memoryview(b"")
            for found in self._streams.values():
                if not session.credits or size >= _CHUNK:
                    break
                if found.is_told:
                    continue
                known = session.streams.get(found.number)
                if known is None or known.state is ClientStream.ABSENT:
                    if time.monotonic() >= found.ask_at:
                        parts.append(encode(session.notify(found.number, found.name, found.acknowledged)))
                elif known.state is ClientStream.OPEN:
                    count, taken, last, forgotten = found.take(parts, min(session.credits, _AT_ONCE), _CHUNK)
                    size += taken
                    self._kept -= forgotten
                    if count:
                        session.push(found.number, count, last)
                    if found.is_ready_to_end and session.credits:
                        parts.append(encode(session.end(found.number)))
                        found.is_told = True
                        self._changed.notify_all()
            return memoryview(b"".join(parts))


def _failed(text: str, exit_code: int) -> InputError:
    """What a pusher is told, and what its command ends with: whether it helps to come back."""
    found = InputError(text)
    found.exit_code = exit_code
    return found
