"""The source server: programs push messages over TCP, the intake makes them durable, Spark reads them, and commits are acknowledged.

Rules
1. One event loop in a thread of the driver's process reads all connections and decides. Another thread writes: while it forces one group of entries
   to disk, the next gathers.
2. What comes is bounded. Credits bound a session's frames; when more than `pending` bytes wait for the disk, or the log holds more than `backlog`
   bytes that are not committed, nobody is read until that has changed: the clients' TCP windows close.
3. Connections that have not greeted are few, and greet within `greeting`: when one more comes, the oldest goes. So a crowd cannot keep a client out.
   Sessions are limited too: one too many is told so.
4. A peer's mistake costs its own connection. A disk that fails costs the entries that were not durable: all sessions are told to come back (RESTART),
   and resume at what was acknowledged.
5. Whoever does not read what is sent to it is cut off when `_UNREAD` bytes wait. A peer whose machine is gone is found by TCP's keepalive, or fenced
   by its successor.
6. An acknowledgement is durable before any client is told of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from millstream import network
from millstream.connector.intake.format import IntakeEntry, Mark, advance
from millstream.connector.intake.writer import SEGMENT_SIZE, BatchRef, Intake
from millstream.connector.source.protocol.session import Fence, Keep, Needs, SourceEffect, SourceSession
from millstream.connector.source.protocol.streams import Streams
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import RunDecoder
from millstream.connector.wire.messages import Send
from millstream.core.time import Duration, duration
from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.network import Tls

log = logging.getLogger("millstream.connector")

FRAME_LIMIT = 1 << 20
_GREETING_LIMIT = 4 << 10
_UNREAD = 1 << 20
_BATCH_SIZE = 1 << 20
_BATCH_MESSAGES = 4096
_LINGER = 0.5
_ENTRY_OVERHEAD = 64
_AGAIN = 0.5
_BACKLOG = 128  # connections that are accepted at once, before any is counted

T = TypeVar("T")


class SourceStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the server of a source is doing; docs/pushing.md says what each field is. `received`, `refused` and `fsyncs` count from its start."""

    received: int
    refused: int
    fsyncs: int
    sessions: int
    unauthenticated: int
    streams: int
    end: int
    acknowledged: int
    waiting_bytes: int
    waiting_for: str | None


class SourceServer:
    """Listens, stores what is pushed, and acknowledges what is committed.

    `folder` is the intake's; `listen` is HOST:PORT, port 0 for a free one. `cookie` and `tls` say who may come (both off by default); without a cookie
    only the loopback may be listened on, unless `force`. `credits` is how many frames of a session may be in flight, `batch_messages` how many an epoch
    takes at least; `sessions`, `streams`, `frame_limit`, `unauthenticated`, `greeting`, `pending` and `backlog` are limits (see the rules).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        listen: str = "127.0.0.1:0",
        *,
        cookie: str = "",
        tls: Tls | None = None,
        force: bool = False,
        credits: int = 100_000,
        sessions: int = 256,
        unauthenticated: int = 64,
        streams: int = 10_000,
        frame_limit: int = FRAME_LIMIT,
        greeting: Duration = "10s",
        pending: int = 16 << 20,
        backlog: int = 4 << 30,
        batch_messages: int = _BATCH_MESSAGES,
        segment_size: int = SEGMENT_SIZE,
        needs: Needs | None = None,
    ) -> None:
        self._needs = needs or Needs()
        self._host, self._port = network.parse_address(listen)
        network.check_listening(self._host, cookie, force)
        self.context = None if tls is None else network.server_context(tls)
        self._cookie, self._credits = cookie, credits
        self._sessions_limit, self._unauthenticated_limit, self._streams_limit = sessions, unauthenticated, streams
        self._frame_limit, self._greeting = frame_limit, duration(greeting) / 1000
        self._pending_limit, self._backlog = pending, backlog
        self._batch_messages = max(1, min(batch_messages, _BATCH_MESSAGES))
        self._intake = Intake(folder, segment_size)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._disk = ThreadPoolExecutor(1, "millstream-intake")
        self._listener: asyncio.Server | None = None
        self._stopping = False
        self.address = ""
        # below: touched by the loop's thread alone
        self._streams = Streams({}, {}, 0.0)
        self._unauthenticated: dict[_Peer, None] = {}  # oldest first
        self._greeted: set[_Peer] = set()
        self._gathered: list[tuple[_Peer, list[IntakeEntry]]] = []
        self._gathered_size = 0
        self._writing_size = 0
        self._writer: asyncio.Task[None] | None = None  # while there is something to write
        self._is_paused = False
        self._on_the_way: deque[tuple[BatchRef, dict[_Peer, int]]] = deque()  # durable, not committed; in the order of the log
        self._end = self._acknowledged = 0
        self._on_durable: list[Callable[[], None]] = []
        self._received = self._refused = self._fsyncs = 0

    # ---- life: called from any other thread

    def start(self) -> SourceServer:
        self._intake.open()
        self._streams = Streams(self._intake.marks_acknowledged, self._intake.marks_received, time.monotonic(), self._streams_limit)
        self._on_the_way.extend((batch, {}) for batch in self._intake.unacknowledged)
        self._intake.unacknowledged = []
        self._end, self._acknowledged = self._intake.end, self._intake.acknowledged.position
        self._thread = threading.Thread(target=self._loop.run_forever, name="millstream-source", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except OSError as error:
            self.stop()
            raise network.cannot_listen(self._host, self._port, error) from error
        return self

    def __enter__(self) -> SourceServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, elsewhere: str = "") -> None:
        """Tells the clients to come back, here or elsewhere, and closes. What was received and not acknowledged is kept. May be called twice."""
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end_all(elsewhere), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._thread = None
            self._disk.shutdown()
            self._loop.close()
        self._intake.close()

    def acknowledge(self, position: int) -> None:
        """Everything before this position is committed. Clients are told soon after this returns."""
        if self._intake.acknowledge(position):
            self._loop.call_soon_threadsafe(self._tell_committed, position)

    def on_durable(self, call: Callable[[], None]) -> None:
        """Has a function called, in the server's thread, whenever more has become durable."""
        self._on_durable.append(call)

    def watermark(self, streams: tuple[str, ...] = (), idle: float | None = None) -> tuple[int | None, str]:
        """How far event time is complete, as far as the pushers have declared it and their messages are committed; and for people, what holds it there."""
        return self._ask(lambda: self._streams.watermark(streams, idle, time.monotonic()))

    def stats(self) -> SourceStats:
        return self._ask(
            lambda: SourceStats(
                received=self._received,
                refused=self._refused,
                fsyncs=self._fsyncs,
                sessions=len(self._greeted),
                unauthenticated=len(self._unauthenticated),
                streams=len(self._streams),
                end=self._end,
                acknowledged=self._acknowledged,
                waiting_bytes=self._gathered_size + self._writing_size,
                waiting_for=None if self._greeted else f"a program to push to {self.address}",
            )
        )

    def _ask(self, what: Callable[[], T]) -> T:
        async def asked() -> T:
            return what()

        return what() if self._thread is None else asyncio.run_coroutine_threadsafe(asked(), self._loop).result(30)

    # ---- below: the loop's thread

    async def _listen(self) -> None:
        self._listener = await self._loop.create_server(lambda: _Peer(self), self._host or None, self._port, backlog=_BACKLOG)
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.address = network.written(host, port)

    async def _end_all(self, elsewhere: str) -> None:
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        peers = [*self._unauthenticated, *self._greeted]
        for peer in peers:
            peer.carry_out(peer.session.restart(elsewhere))
        if self._writer is not None:
            await self._writer
        until = self._loop.time() + _LINGER
        while any(not peer.is_gone for peer in peers) and self._loop.time() < until:
            await asyncio.sleep(0.01)
        for peer in peers:
            peer.abort()

    def session(self, peer: _Peer) -> SourceSession:
        admit = partial(self._admit, peer)
        return SourceSession(self._streams, time.monotonic, admit, cookie=self._cookie, credits=self._credits, needs=self._needs)

    def arrived(self, peer: _Peer) -> None:
        if self._stopping:
            return peer.abort()
        if len(self._unauthenticated) >= self._unauthenticated_limit:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            self._refused += 1
            oldest.abort()
        self._unauthenticated[peer] = None
        self._loop.call_later(self._greeting, self._greeting_is_over, peer)

    def _greeting_is_over(self, peer: _Peer) -> None:
        if peer in self._unauthenticated:
            peer.carry_out(peer.session.failed("nothing was heard for too long"))
            peer.abort()

    def _admit(self, peer: _Peer) -> str | None:
        """HELLO is right: lets the peer in, or says why not."""
        self._unauthenticated.pop(peer, None)
        if len(self._greeted) >= self._sessions_limit:
            self._refused += 1
            return f"the source has {self._sessions_limit} sessions and takes no more"
        self._greeted.add(peer)
        peer.decoder.limit = self._frame_limit
        if self._is_paused:
            peer.pause()
        return None

    def left(self, peer: _Peer) -> None:
        self._unauthenticated.pop(peer, None)
        self._greeted.discard(peer)

    def fence(self, asked: Fence) -> None:
        for peer in [peer for peer in self._greeted if peer.session is asked.session]:
            peer.carry_out(asked.session.failed(asked.why))

    # ---- storing

    def store(self, peer: _Peer, entries: list[IntakeEntry]) -> None:
        self._gathered.append((peer, entries))
        self._gathered_size += sum([len(key) + len(payload) for _, _, _, _, key, payload in entries]) + _ENTRY_OVERHEAD * len(entries)
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        self._press()

    async def _write(self) -> None:
        while self._gathered and not self._stopping:
            gathered, self._gathered = self._gathered, []
            self._writing_size, self._gathered_size = self._gathered_size, 0
            groups, owners = _grouped(gathered, self._batch_messages)
            try:
                batches = await self._loop.run_in_executor(self._disk, self._intake.write, groups)
            except Exception as error:
                self._writing_size = 0
                self._disk_failed(error)
                await asyncio.sleep(_AGAIN)
                continue
            self._writing_size = 0
            self._on_the_way.extend(zip(batches, owners, strict=True))
            self._end = batches[-1].end
            for call in self._on_durable:
                call()
            self._received += sum(batch.entries for batch in batches)
            self._fsyncs += 1
            if batches[0].end <= self._acknowledged:
                self._tell_committed(self._acknowledged)  # an epoch has read it, and was committed, before we heard that it is durable
            self._press()
        self._writer = None

    def _disk_failed(self, error: BaseException) -> None:
        """Rule 4. What the streams had counted as received was not; so they are made anew from what was."""
        log.error("what was pushed cannot be stored: %s", error)
        self._gathered, self._gathered_size = [], 0
        for peer in [*self._greeted, *self._unauthenticated]:
            peer.carry_out(peer.session.restart())
        acknowledged = {s.name: Mark(s.name, s.acknowledged, s.watermark, s.ended) for s in self._streams.values()}
        self._streams = Streams(acknowledged, dict(self._intake.marks_received), time.monotonic(), self._streams_limit)
        self._press()

    def _press(self) -> None:
        coming = self._gathered_size + self._writing_size
        full = self._gathered_size > self._pending_limit or self._end - self._acknowledged + coming > self._backlog
        if full != self._is_paused:
            self._is_paused = full
            for peer in self._greeted:
                peer.pause() if full else peer.resume()

    # ---- acknowledging

    def _tell_committed(self, position: int) -> None:
        marks: dict[str, Mark] = {}
        credits: dict[_Peer, int] = {}
        while self._on_the_way and self._on_the_way[0][0].end <= position:
            batch, owners = self._on_the_way.popleft()
            advance(marks, batch.marks)
            for peer, count in owners.items():
                credits[peer] = credits.get(peer, 0) + count
        self._acknowledged = max(self._acknowledged, position)
        self._streams.committed(marks.values())
        moved: dict[Any, list[Mark]] = {}
        for mark in marks.values():
            stream = self._streams.get(mark.name)
            if stream is not None and stream.owner is not None:
                moved.setdefault(stream.owner, []).append(mark)
        for peer in list(self._greeted):
            mine, owed = moved.get(peer.session, []), credits.get(peer, 0)
            if mine or owed:
                peer.carry_out(peer.session.committed(mine, owed))
        self._press()


def _grouped(gathered: list[tuple[_Peer, list[IntakeEntry]]], most: int) -> tuple[list[list[IntakeEntry]], list[dict[_Peer, int]]]:
    """Entries in batches of a bounded size, and how many of each batch are whose."""
    groups: list[list[IntakeEntry]] = []
    owners: list[dict[_Peer, int]] = []
    size = _BATCH_SIZE
    for peer, entries in gathered:
        at = 0
        while at < len(entries):
            if size >= _BATCH_SIZE or len(groups[-1]) >= most:
                groups.append([])
                owners.append({})
                size = 0
            group, start = groups[-1], at
            room = most - len(group)
            while at < len(entries) and at - start < room and size < _BATCH_SIZE:
                _, _, _, _, key, payload = entries[at]
                size += len(key) + len(payload)
                at += 1
            group += entries[start:at]
            owners[-1][peer] = owners[-1].get(peer, 0) + at - start
    return groups, owners


class _Peer(asyncio.Protocol):
    def __init__(self, server: SourceServer) -> None:
        self._server = server
        self.session = server.session(self)
        self.decoder = RunDecoder(_GREETING_LIMIT)
        self._transport: Any = None
        self._is_closing = False
        self._is_paused = False
        self._securing: asyncio.Task[None] | None = None
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            network.keep_alive(sock)
        self._server.arrived(self)
        if self._server.context is not None:
            self._transport.pause_reading()
            self._securing = asyncio.get_running_loop().create_task(self._secure(self._server.context))

    async def _secure(self, context: ssl.SSLContext) -> None:
        """The handshake, after the connection has been counted: a crowd that does not shake hands is a crowd of unauthenticated."""
        try:
            self._transport = await asyncio.get_running_loop().start_tls(self._transport, self, context, server_side=True)
        except (OSError, ssl.SSLError) as error:
            log.info("a handshake failed: %s", error)
            self.connection_lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = self._is_closing = True
        self.session.ended()
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return  # read and dropped, so that our last words arrive
        try:
            self.decoder.receive(data)
            while not self._is_closing and (found := self.decoder.next()) is not None:
                self.carry_out(self.session.receive_messages(found) if isinstance(found, list) else self.session.receive(found))
        except RemoteProtocolError as error:
            self.carry_out(self.session.failed(str(error)))
        except MillstreamError as error:
            log.error("a session ended in an error of ours: %s", error)
            self.carry_out(self.session.failed("an error of the source's"))

    def carry_out(self, effects: list[SourceEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Keep):
                self._server.store(self, effect.entries)
            elif isinstance(effect, Send):
                self._send(encode(effect.frame))
            elif isinstance(effect, Fence):
                self._server.fence(effect)
            else:
                self._close()

    def _send(self, data: bytes) -> None:
        if self._transport is None or self.is_gone:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _UNREAD:
            self.abort()

    def _close(self) -> None:
        """Says the last words, reads and drops what still comes for a short time, and closes."""
        if self._is_closing:
            return
        self._is_closing = True
        self._server.left(self)
        if self._transport is not None:
            self.resume()
            if self._transport.can_write_eof():
                with contextlib.suppress(OSError):  # it is gone, and we have not noticed
                    self._transport.write_eof()
                asyncio.get_running_loop().call_later(_LINGER, self.abort)
            else:
                self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        self.session.ended()
        self._server.left(self)
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if not self._is_paused and not self._is_closing:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self.is_gone:
            self._is_paused = False
            self._transport.resume_reading()
