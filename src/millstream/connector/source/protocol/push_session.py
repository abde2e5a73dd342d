"""The client's end of a connection that pushes into a pipeline: what may be said, and what was heard. No sockets, no clock.

Rules
1. `CLIENT_SENT` and `CLIENT_STREAM_SENT` say what we may send: anything else is our own mistake (`LocalProtocolError`) and nothing is sent.
   `CLIENT_RECEIVED` and `CLIENT_STREAM_RECEIVED` say what may come: anything else is the server's (`RemoteProtocolError`), and the session is over. ERROR
   and RESTART (come back, here or elsewhere) are its last words.
2. Each frame after HELLO costs one credit. Without one nothing may be sent.
3. NOTIFY_ACK tells the point to resume from: what is not above it was committed, and everything above it is to be sent, again if need be.
4. What an ACK names is committed: it may be forgotten. A point never goes back. It may be above all that this connection has sent, if an earlier one
   had sent it. For a stream that has just ended, or is announced again, it says nothing new.
"""

from __future__ import annotations

import enum

import msgspec

from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError


class PushState(enum.Enum):
    INITIAL = "Initial"  # of a connection
    AWAIT_OK = "AwaitOk"  # HELLO is sent
    READY = "Ready"  # the server is willing
    CLOSED = "Closed"


class ClientStream(enum.Enum):
    ABSENT = "Absent"  # of a stream on a connection: not announced, refused, or ended
    ASKED = "Asked"  # NOTIFY is sent
    OPEN = "Open"  # messages may be sent
    ENDING = "Ending"  # EOS is sent; not all is acknowledged


CLIENT_SENT: dict[PushState, dict[type[m.Frame], dict[str, PushState]]] = {
    PushState.INITIAL: {m.Hello: {"greeted": PushState.AWAIT_OK}},
    PushState.AWAIT_OK: {},
    PushState.READY: {m.Notify: {"asked": PushState.READY}, m.Message: {"pushed": PushState.READY}, m.Eos: {"ended": PushState.READY}},
    PushState.CLOSED: {},
}
_LAST_WORDS: dict[type[m.Frame], dict[str, PushState]] = {m.Error: {"over": PushState.CLOSED}, m.Restart: {"over": PushState.CLOSED}}
CLIENT_RECEIVED: dict[PushState, dict[type[m.Frame], dict[str, PushState]]] = {
    PushState.INITIAL: {},
    PushState.AWAIT_OK: {m.Ok: {"welcome": PushState.READY}, **_LAST_WORDS},
    PushState.READY: {m.NotifyAck: {"answered": PushState.READY}, m.Ack: {"acknowledged": PushState.READY}, **_LAST_WORDS},
    PushState.CLOSED: {},
}

CLIENT_STREAM_SENT: dict[ClientStream, dict[type[m.Frame], dict[str, ClientStream]]] = {
    ClientStream.ABSENT: {m.Notify: {"asked": ClientStream.ASKED}},
    ClientStream.ASKED: {},
    ClientStream.OPEN: {
        m.Message: {"pushed": ClientStream.OPEN},
        m.Eos: {"some are on the way": ClientStream.ENDING, "all is acknowledged": ClientStream.ABSENT},
    },
    ClientStream.ENDING: {},
}

CLIENT_STREAM_RECEIVED: dict[ClientStream, dict[type[m.Frame], dict[str, ClientStream]]] = {
    ClientStream.ABSENT: {m.Ack: {"known already": ClientStream.ABSENT}},
    ClientStream.ASKED: {
        m.NotifyAck: {"accepted": ClientStream.OPEN, "active elsewhere": ClientStream.ABSENT},
        m.Ack: {"known already": ClientStream.ASKED},
    },
    ClientStream.OPEN: {m.Ack: {"acknowledged": ClientStream.OPEN}},
    ClientStream.ENDING: {m.Ack: {"some": ClientStream.ENDING, "all": ClientStream.ABSENT}},
}


class Pushing(msgspec.Struct, eq=False):
    """A stream on this connection. Invariant: acknowledged <= sent, None being before everything."""

    name: str
    number: int
    state: ClientStream = ClientStream.ABSENT
    sent: int | None = None  # the last id sent, or resumed from
    acknowledged: int | None = None

    @property
    def is_settled(self) -> bool:
        return self.sent == self.acknowledged


class PushSession:
    """One connection, from HELLO to its end. What the methods return is to be sent."""

    def __init__(self, program: str = "millstream", instance: str = "", cookie: str = "") -> None:
        self.state = PushState.INITIAL
        self.program, self.instance, self.cookie = program, instance, cookie
        self.credits = 0
        self.streams: dict[int, Pushing] = {}
        self.last_words: m.Error | m.Restart | None = None

    # ---- what we say

    def greet(self) -> m.Hello:
        self._sent(m.Hello, "greeted")
        return m.Hello(m.SOURCE_VERSION, self.cookie, self.program, self.instance)

    def notify(self, number: int, name: str, point: int | None = None) -> m.Notify:
        """Announces a stream. The point is what we believe; the answer is what counts."""
        stream = self.streams.get(number) or Pushing(name, number)
        if m.Notify not in CLIENT_STREAM_SENT[stream.state]:
            raise LocalProtocolError(f"stream {number} is announced already")
        self._sent(m.Notify, "asked")
        stream.name = name
        stream.state = CLIENT_STREAM_SENT[stream.state][m.Notify]["asked"]
        self.streams[number] = stream
        return m.Notify(number, name, point or 0)

    def push(self, number: int, count: int, last: int | None) -> None:
        """So many MESSAGEs are about to be sent, in the order of their ids, of which this is the last. None: they only declare watermarks."""
        stream = self._streaming(number)
        if last is not None and stream.sent is not None and last <= stream.sent:
            raise LocalProtocolError(f"ids on stream {stream.name!r} increase; {stream.sent} was sent, and now comes {last}")
        self._sent(m.Message, "pushed", count)
        stream.sent = stream.sent if last is None else last

    def end(self, number: int) -> m.Eos:
        stream = self._streaming(number)
        self._sent(m.Eos, "ended")
        stream.state = CLIENT_STREAM_SENT[stream.state][m.Eos]["all is acknowledged" if stream.is_settled else "some are on the way"]
        return m.Eos(number)

    def _streaming(self, number: int) -> Pushing:
        stream = self.streams.get(number)
        if stream is None or m.Message not in CLIENT_STREAM_SENT[stream.state]:
            raise LocalProtocolError(f"stream {number} is not open")
        return stream

    def _sent(self, kind: type[m.Frame], outcome: str, cost: int = 1) -> None:
        if kind not in CLIENT_SENT[self.state]:
            raise LocalProtocolError(f"{kind.__name__} cannot be sent in state {self.state.value}")
        if kind is not m.Hello:
            if cost > self.credits:
                raise LocalProtocolError(f"there are {self.credits} credits for {cost} frames")
            self.credits -= cost
        self.state = CLIENT_SENT[self.state][kind][outcome]

    # ---- what we hear

    def receive(self, message: m.Frame) -> None:
        cell = CLIENT_RECEIVED[self.state].get(type(message))
        try:
            if cell is None:
                raise RemoteProtocolError(f"the server sent {type(message).__name__} to a client in state {self.state.value}")
            self.state = cell[self._heard(message)]
        except RemoteProtocolError:
            self.state = PushState.CLOSED
            raise

    def _heard(self, message: m.Frame) -> str:
        if isinstance(message, m.Ok):
            if not message.credits:
                raise RemoteProtocolError("the server grants no credits")
            self.credits = message.credits
            return "welcome"
        if isinstance(message, m.NotifyAck):
            self._answered(message)
            return "answered"
        if isinstance(message, m.Ack):
            self.credits += message.credits
            for number, point in message.points:
                self._acknowledged(number, point)
            return "acknowledged"
        assert isinstance(message, m.Error | m.Restart)
        self.last_words = message
        return "over"

    def _answered(self, answer: m.NotifyAck) -> None:
        stream = self.streams.get(answer.stream)
        if stream is None or m.NotifyAck not in CLIENT_STREAM_RECEIVED[stream.state]:
            raise RemoteProtocolError(f"the server answers for stream {answer.stream}, which was not asked for")
        stream.state = CLIENT_STREAM_RECEIVED[stream.state][m.NotifyAck]["accepted" if answer.success else "active elsewhere"]
        if answer.success:
            stream.sent = stream.acknowledged = answer.point

    def _acknowledged(self, number: int, point: int) -> None:
        stream = self.streams.get(number)
        if stream is None:
            raise RemoteProtocolError(f"the server acknowledges stream {number}, which was never announced")
        outcomes = CLIENT_STREAM_RECEIVED[stream.state][m.Ack]
        if "known already" in outcomes:
            return
        stream.acknowledged = point if stream.acknowledged is None else max(point, stream.acknowledged)
        if stream.sent is None or stream.sent < stream.acknowledged:
            stream.sent = stream.acknowledged  # what an earlier connection sent
        outcome = next(iter(outcomes)) if len(outcomes) == 1 else "all" if stream.is_settled else "some"
        stream.state = outcomes[outcome]
