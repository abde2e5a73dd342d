"""The server's end of a connection that pushes into a pipeline: messages in, effects out. No sockets, no files, no clock.

Rules
1. A cell of the tables is state, message, what it came to, next state; the state of the connection is looked up first, then that of the stream.
   What has no cell is a mistake: it is answered with ERROR, and costs its own connection only. ERROR is never answered. `COMMITTED` says where a commit
   leads. HELLO comes first: its version is `0.0.1`, its cookie ours (compared in constant time), and there must be room. OK answers it and grants credits.
2. Every further frame costs one credit, and a frame without one is a mistake: credits bound what may be in flight. They come back in an ACK: those of an
   entry that is stored when it is committed, those of anything else (NOTIFY, a message that was seen before) with the next answer.
3. NOTIFY of a stream that is active elsewhere is answered with NOTIFY_ACK(false), otherwise with NOTIFY_ACK(true) and the last acknowledged point,
   None for a stream that has none. What the peer believes to be the point does not matter.
4. Ids on a stream increase. One that is not above the last received was seen before, and is skipped.
5. A MESSAGE with the key `millstream.watermark` and no payload declares a watermark: no later message of this stream has an event time below
   this one's. It has no id of its own (what is there is not looked at), and is neither deduplicated nor delivered.
6. ACK is sent when an epoch is committed, never before. It names the last committed id of each stream that moved.
7. EOS is stored like a message. When it and all before it are committed, the stream is free for others; until then, who announces it here is told to
   try again, as if it were active elsewhere. A session that ends frees its streams at once: what was received stays received, and whoever announces
   the stream next resumes at the acknowledged point.

The caller's duties
1. Carry out effects in order. `Keep`: in this order, and durable before an epoch may read it. `Fence`: end that session with `failed`, and carry out
   what that returns, before anything else is given to any session.
2. When an epoch is committed, tell the `Streams` first, then every session that owns one of its streams or is owed credits, through `committed`.
3. Whenever the connection ends, for whatever reason, call `ended`. Read nothing after `Close`.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.connector.intake.format import END, MESSAGE, WATERMARK, IntakeEntry, Mark
from millstream.connector.source.protocol.streams import PushedStream, Streams
from millstream.connector.wire import messages as m
from millstream.connector.wire.decoder import Pushed
from millstream.connector.wire.messages import Close, Send
from millstream.errors import RemoteProtocolError

#: The key of a message that declares a watermark.
WATERMARK_KEY = b"millstream.watermark"

#: Ids are a signed column in Spark.
LAST_ID = (1 << 63) - 1


class Server(enum.Enum):
    INITIAL = "Initial"  # of a connection
    READY = "Ready"  # the peer is known
    CLOSED = "Closed"


class ServerStream(enum.Enum):
    """Of a stream on a connection, on which the client numbers it. (What a stream is, is said in `streams`.)"""

    ABSENT = "Absent"  # not announced, or released
    OPEN = "Open"  # messages may come
    ENDING = "Ending"  # EOS has come; not all is committed


SERVER: dict[Server, dict[type[m.Frame], dict[str, Server]]] = {
    Server.INITIAL: {m.Hello: {"welcome": Server.READY}, m.Error: {"over": Server.CLOSED}},
    Server.READY: {
        m.Notify: {"answered": Server.READY},
        m.Message: {"taken": Server.READY},
        m.Eos: {"taken": Server.READY},
        m.Error: {"over": Server.CLOSED},
    },
    Server.CLOSED: {},
}

SERVER_STREAM: dict[ServerStream, dict[type[m.Frame], dict[str, ServerStream]]] = {
    ServerStream.ABSENT: {m.Notify: {"accepted": ServerStream.OPEN, "active elsewhere": ServerStream.ABSENT}},
    ServerStream.OPEN: {
        m.Message: {"new": ServerStream.OPEN, "seen before": ServerStream.OPEN, "declared": ServerStream.OPEN},
        m.Eos: {"nothing follows": ServerStream.ENDING},
    },
    ServerStream.ENDING: {m.Notify: {"still ending": ServerStream.ENDING}},
}

COMMITTED: dict[ServerStream, dict[str, ServerStream]] = {
    ServerStream.ABSENT: {},
    ServerStream.OPEN: {"some": ServerStream.OPEN},
    ServerStream.ENDING: {"some": ServerStream.ENDING, "all": ServerStream.ABSENT},
}


class Keep(msgspec.Struct, frozen=True):
    entries: list[IntakeEntry]  # behind those that came before


class Fence(msgspec.Struct, frozen=True):
    session: SourceSession  # a half-open connection of the peer that speaks now
    why: str


SourceEffect = Send | Close | Keep | Fence


class _Open(msgspec.Struct, eq=False):
    number: int
    stream: PushedStream
    state: ServerStream = SERVER_STREAM[ServerStream.ABSENT][m.Notify]["accepted"]


_FIRST_TIME, _LAST_TIME = -(2**63) + 1, 2**63 - 2


class Needs(msgspec.Struct, frozen=True):
    """What the pipeline behind a source cannot do without in a message: whoever pushes one without it is told at once, and it is not taken."""

    key: bool = False
    time: bool = False


class SourceSession:
    """admit: asked when HELLO is right. None, or why there is no room for one more session."""

    def __init__(
        self,
        streams: Streams,
        clock: Callable[[], float],
        admit: Callable[[], str | None] = lambda: None,
        *,
        cookie: str = "",
        credits: int = 100_000,
        streams_limit: int = 1000,
        needs: Needs | None = None,
    ) -> None:
        self.state = Server.INITIAL
        self.identity = ("", "")
        self.credits = 0  # what the peer may still send
        self._streams, self._clock, self._admit = streams, clock, admit
        self._cookie, self._granted, self._limit = cookie, credits, streams_limit
        self._needs = needs or Needs()
        self._owed = 0  # credits that no commit has to be waited for
        self._open: dict[int, _Open] = {}
        self._numbers: dict[str, _Open] = {}
        self._handlers: dict[type[m.Frame], Callable[..., list[SourceEffect]]] = {
            m.Hello: self._hello,
            m.Notify: self._notify,
            m.Message: lambda one: self.receive_messages([(one.stream, one.id, one.event_time, one.key, one.payload)]),
            m.Eos: self._eos,
        }

    def stream_state(self, number: int) -> ServerStream:
        found = self._open.get(number)
        return ServerStream.ABSENT if found is None else found.state

    # ---- what comes

    def receive(self, message: m.Frame) -> list[SourceEffect]:
        if self.state is Server.CLOSED:
            return []
        kind = type(message)
        if kind is m.Error:
            return self._part()
        if kind not in SERVER[self.state]:
            return self._unexpected(kind)
        try:
            if self.state is Server.READY and kind is not m.Message:
                self._spend(1)
            return self._handlers[kind](message)
        except RemoteProtocolError as error:
            return self.failed(str(error))

    def _unexpected(self, kind: type[m.Frame]) -> list[SourceEffect]:
        return self.failed(f"{kind.__name__} is not expected in state {self.state.value}")

    def receive_messages(self, pushed: Sequence[Pushed]) -> list[SourceEffect]:
        """What a run of MESSAGEs comes to: the same as one after the other."""
        if self.state is not Server.READY:
            return self._unexpected(m.Message) if pushed else []
        entries: list[IntakeEntry] = []
        effects: list[SourceEffect] = [Keep(entries)]
        try:
            allowed = pushed if len(pushed) <= self.credits else pushed[: self.credits]
            self._take(allowed, entries)
            self.credits -= len(allowed)
            if allowed is not pushed:
                self._spend(1)
        except RemoteProtocolError as error:
            return [*effects, *self.failed(str(error))] if entries else self.failed(str(error))
        return [*(effects if entries else ()), *self._settle()]

    def _take(self, pushed: Sequence[Pushed], entries: list[IntakeEntry]) -> None:
        seen, now, needs = 0, self._clock(), self._needs
        number, found, stream, last, name = -1, None, None, -1, ""
        for sid, id, event_time, key, payload in pushed:
            if sid != number or found is None:
                found = self._open.get(sid)
                if found is None or m.Message not in SERVER_STREAM[found.state]:
                    raise RemoteProtocolError(f"MESSAGE is not expected on stream {sid} in state {self.stream_state(sid).value}")
                number, stream, name = sid, found.stream, found.stream.name
                last = -1 if stream.received is None else stream.received
                stream.heard, stream.is_stored = now, True
            if key == WATERMARK_KEY:
                if payload:
                    raise RemoteProtocolError(f"the key {WATERMARK_KEY.decode()} declares a watermark, and has no payload")
                entries.append((name, WATERMARK, 0, event_time, b"", b""))
                continue
            if id <= last:
                seen += 1
                continue
            if id > LAST_ID:
                raise RemoteProtocolError(f"the id {id} is too large; ids end at {LAST_ID}")
            if key and not key.isascii():
                try:
                    key.decode()
                except UnicodeDecodeError:
                    raise RemoteProtocolError("a key is not UTF-8") from None
            if needs.key and not key:
                raise RemoteProtocolError(
                    f"message {id} of stream {name!r} has no key, and the pipeline that reads it goes by keys: push it with a key"
                )
            if needs.time and not _FIRST_TIME <= event_time <= _LAST_TIME:
                raise RemoteProtocolError(f"message {id} of stream {name!r} has the event time {event_time}, which no record can have")
            entries.append((name, MESSAGE, id, event_time, key, payload))
            assert stream is not None
            stream.received = last = id
        self._owed += seen

    def _hello(self, hello: m.Hello) -> list[SourceEffect]:
        if hello.version != m.SOURCE_VERSION:
            raise RemoteProtocolError(m.wrong_version(hello.version, m.SOURCE_VERSION))
        if not hmac.compare_digest(hello.cookie.encode(), self._cookie.encode()):
            raise RemoteProtocolError(m.WRONG_COOKIE)
        objection = self._admit()
        if objection is not None:
            raise RemoteProtocolError(objection)
        self.identity = (hello.program, hello.instance)
        self.state = SERVER[self.state][m.Hello]["welcome"]
        self.credits = self._granted
        return [Send(m.Ok(self._granted))]

    def _notify(self, notify: m.Notify) -> list[SourceEffect]:
        self._owed += 1
        known = self._open.get(notify.stream)
        if known is not None:
            if m.Notify not in SERVER_STREAM[known.state]:
                raise RemoteProtocolError(f"stream {notify.stream} is announced twice")
            return [Send(m.NotifyAck(False, notify.stream, known.stream.acknowledged)), *self._settle()]
        complaint = m.name_objection("stream", notify.name)
        if complaint is not None:
            raise RemoteProtocolError(complaint)
        if len(self._open) >= self._limit:
            raise RemoteProtocolError(f"a connection has at most {self._limit} streams")
        effects: list[SourceEffect] = []
        found = self._streams.get(notify.name)
        other: Any = None if found is None else found.owner
        is_same_instance = isinstance(other, SourceSession) and bool(self.identity[1]) and other.identity == self.identity
        if found is not None and is_same_instance and other is not self:
            self._streams.release(found, other)
            effects.append(Fence(other, m.fenced(f"another connection of this instance has stream {notify.name!r} now")))
        stream = self._streams.claim(notify.name, self, self._clock())
        if stream is None:
            point = found.acknowledged if found is not None else None
            return [Send(m.NotifyAck(False, notify.stream, point)), *self._settle()]
        self._open[notify.stream] = self._numbers[notify.name] = _Open(notify.stream, stream)
        return [*effects, Send(m.NotifyAck(True, notify.stream, stream.acknowledged)), *self._settle()]

    def _eos(self, eos: m.Eos) -> list[SourceEffect]:
        found = self._open.get(eos.stream)
        if found is None or m.Eos not in SERVER_STREAM[found.state]:
            raise RemoteProtocolError(f"Eos is not expected on stream {eos.stream} in state {self.stream_state(eos.stream).value}")
        found.state = SERVER_STREAM[found.state][m.Eos]["nothing follows"]
        found.stream.heard, found.stream.is_stored = self._clock(), True
        return [Keep([(found.stream.name, END, 0, 0, b"", b"")])]

    # ---- credits

    def _spend(self, count: int) -> None:
        if self.credits < count:
            raise RemoteProtocolError("a frame was sent without a credit for it")
        self.credits -= count

    def _settle(self) -> list[SourceEffect]:
        """Rule 2: gives back what no commit has to be waited for."""
        owed, self._owed = self._owed, 0
        if not owed or self.state is not Server.READY:
            return []
        self.credits += owed
        return [Send(m.Ack(owed))]

    # ---- commits, and the end

    def committed(self, marks: Iterable[Mark], credits: int) -> list[SourceEffect]:
        """An epoch is committed: these marks are of streams that it moved, and this connection gets so many credits back."""
        if self.state is not Server.READY:
            return []
        points = []
        for mark in marks:
            found = self._numbers.get(mark.name)
            if found is None:
                continue
            if found.stream.acknowledged is not None:
                points.append((found.number, found.stream.acknowledged))
            outcome = "all" if mark.ended and found.stream.is_committed and "all" in COMMITTED[found.state] else "some"
            found.state = COMMITTED[found.state][outcome]
            if found.state is ServerStream.ABSENT:
                self._release(found)
        owed, self._owed = self._owed + credits, 0
        self.credits += owed
        return [Send(m.Ack(owed, tuple(points)))] if owed or points else []

    def restart(self, address: str = "") -> list[SourceEffect]:
        return self._part(m.Restart(address))

    def failed(self, text: str) -> list[SourceEffect]:
        return self._part(m.Error(text[:1000]))

    def _part(self, *last_words: m.Frame) -> list[SourceEffect]:
        if self.state is Server.CLOSED:
            return []
        self.ended()
        return [*map(Send, last_words), Close()]

    def ended(self) -> None:
        """The connection is over: its streams are free. May be called twice."""
        self.state = Server.CLOSED
        for found in list(self._numbers.values()):
            self._release(found)

    def _release(self, found: _Open) -> None:
        del self._open[found.number]
        del self._numbers[found.stream.name]
        self._streams.release(found.stream, self)
