"""The worker's end of a connection to a sink: what is sent and received, in which order. No sockets, no clock.

Rules
1. `SENT` says what we may send: anything else is our own mistake (`LocalProtocolError`) and nothing is sent. `RECEIVED` says what may come: anything
   else is the sink's (`RemoteProtocolError`), and the session is over. ERROR and RESTART may come at any time and are the sink's last words.
2. `offset` is where the next byte goes, `committed` where the open transaction began: phase one always asks for the range (1, committed, offset).
   After a rollback the two are equal again, and what is sent then may differ from before.
3. Two transactions on the list, a vote on another transaction, a false NOTIFY_ACK: the sink is broken, and going on could lose data.
4. Phase two is never answered. The list is answered after phase two was carried out, because the sink takes messages in order. That a transaction is
   no longer listed says that it is over, not how it ended.
"""

from __future__ import annotations

import enum

from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError


class WorkerState(enum.Enum):
    INITIAL = "Initial"  # not greeted yet
    AWAIT_OK = "AwaitOk"  # HELLO, NOTIFY and LIST_UNCOMMITTED are sent, all at once; OK comes first
    AWAIT_ACK = "AwaitNotifyAck"  # then NOTIFY_ACK
    AWAIT_LIST = "AwaitUncommitted"  # then REPLY_UNCOMMITTED
    READY = "Ready"  # bytes may be sent, and phase one
    UNDECIDED = "Undecided"  # a transaction was left open by an earlier connection: phase two, before anything else
    RESOLVED = "Resolved"  # phase two was sent for it; where the output now ends is told to the next connection only
    AWAIT_VOTE = "AwaitVote"  # phase one is sent
    VOTED = "Voted"  # the sink promised; phase two decides
    REFUSED = "Refused"  # the sink voted no: come back, and roll back what is listed
    LISTING = "Listing"  # LIST_UNCOMMITTED is sent again, to see that phase two arrived
    RESOLVING = "Resolving"  # likewise, of an earlier connection's transaction
    ENDING = "Ending"  # EOS is sent
    CLOSED = "Closed"


_S = WorkerState

#: state -> what we send -> the next state. HELLO stands for all three opening messages.
SENT: dict[WorkerState, dict[type[m.Frame], WorkerState]] = {state: {} for state in _S} | {
    _S.INITIAL: {m.Hello: _S.AWAIT_OK},
    _S.READY: {
        m.Message: _S.READY,
        m.Phase1: _S.AWAIT_VOTE,
        m.ListUncommitted: _S.LISTING,
        m.WorkersLeft: _S.READY,
        m.Eos: _S.ENDING,
    },
    _S.UNDECIDED: {m.Phase2: _S.RESOLVED},
    _S.RESOLVED: {m.ListUncommitted: _S.RESOLVING},
    _S.VOTED: {m.Phase2: _S.READY},
}
_ANSWERS: dict[WorkerState, dict[type[m.Frame], dict[str, WorkerState]]] = {
    _S.AWAIT_OK: {m.Ok: {"accepted": _S.AWAIT_ACK}},
    _S.AWAIT_ACK: {m.NotifyAck: {"accepted": _S.AWAIT_LIST}},
    _S.AWAIT_LIST: {m.ReplyUncommitted: {"none": _S.READY, "one": _S.UNDECIDED}},
    _S.AWAIT_VOTE: {m.Vote: {"yes": _S.VOTED, "no": _S.REFUSED}},
    _S.LISTING: {m.ReplyUncommitted: {"none": _S.READY}},
    _S.RESOLVING: {m.ReplyUncommitted: {"none": _S.RESOLVED}},
    _S.ENDING: {m.Ack: {"acknowledged": _S.READY}},
}
#: state -> what comes -> what it came to -> the next state. What is missing leads to CLOSED (rule 1).
RECEIVED: dict[WorkerState, dict[type[m.Frame], dict[str, WorkerState]]] = {
    **{state: {**_ANSWERS.get(state, {}), m.Error: {"over": _S.CLOSED}, m.Restart: {"over": _S.CLOSED}} for state in _S},
    _S.INITIAL: {},
    _S.CLOSED: {},
}

#: States in which the sink is to say something before we may go on.
WAITING = frozenset(_ANSWERS)


class WorkerSession:
    """One connection, from HELLO to its end. What the methods return is to be sent, in that order."""

    def __init__(self, name: str, cookie: str = "", program: str = "millstream") -> None:
        self.state = WorkerState.INITIAL
        self.name, self.cookie, self.program = name, cookie, program
        #: committed <= offset
        self.committed = 0
        self.offset = 0
        self.uncommitted: tuple[str, ...] = ()
        self.txn: str | None = None  # the transaction between the phases
        self.last_words: m.Error | m.Restart | None = None
        self._rtag = 0

    # ---- what we say

    def greet(self, at: int = 0) -> list[m.Frame]:
        """The three opening messages. `at` is the offset that we believe to be at; the sink's answer is what counts."""
        self._sent(m.Hello)
        return [m.Hello(m.SINK_VERSION, self.cookie, self.program, self.name), m.Notify(m.DATA_STREAM, self.name, at), self._list()]

    def write(self, size: int) -> int:
        self._sent(m.Message)
        at = self.offset
        self.offset += size
        return at

    def prepare(self, txn: str) -> list[m.Frame]:
        self._sent(m.Phase1)
        self.txn = txn
        return [m.Phase1(txn, ((m.DATA_STREAM, self.committed, self.offset),))]

    def finish(self, txn: str, commit: bool) -> list[m.Frame]:
        """Phase two, of the transaction that was just prepared or of the one that was found open."""
        expected = self.txn if self.state is WorkerState.VOTED else self.uncommitted[0] if self.state is WorkerState.UNDECIDED else txn
        if txn != expected:
            raise LocalProtocolError(f"transaction {txn!r} is not the one that waits for phase two: that is {expected!r}")
        self._sent(m.Phase2)
        self.uncommitted, self.txn = (), None
        if commit:
            self.committed = self.offset
        else:
            self.offset = self.committed
        return [m.Phase2(txn, commit)]

    def list_again(self) -> list[m.Frame]:
        self._sent(m.ListUncommitted)
        return [self._list()]

    def workers_left(self, names: tuple[str, ...]) -> list[m.Frame]:
        self._sent(m.WorkersLeft)
        self._rtag += 1
        return [m.WorkersLeft(self._rtag, names)]

    def end(self) -> list[m.Frame]:
        self._sent(m.Eos)
        return [m.Eos(m.DATA_STREAM)]

    def _list(self) -> m.ListUncommitted:
        self._rtag += 1
        return m.ListUncommitted(self._rtag)

    def check(self, kind: type[m.Frame]) -> None:
        if kind not in SENT[self.state]:
            raise LocalProtocolError(f"{kind.__name__} cannot be sent in state {self.state.value}")

    def _sent(self, kind: type[m.Frame]) -> None:
        self.check(kind)
        self.state = SENT[self.state][kind]

    # ---- what we hear

    def receive(self, message: m.Frame) -> None:
        cell = RECEIVED[self.state].get(type(message))
        try:
            if cell is None:
                raise RemoteProtocolError(f"the sink sent {type(message).__name__} to a worker in state {self.state.value}")
            self.state = cell[self._heard(message)]
        except RemoteProtocolError:
            self.state = WorkerState.CLOSED
            raise

    def _heard(self, message: m.Frame) -> str:
        if isinstance(message, m.Ok):
            if message.credits < 2:
                raise RemoteProtocolError(f"the sink grants {message.credits} credits; two are needed")
            return "accepted"
        if isinstance(message, m.NotifyAck):
            if not message.success or message.stream != m.DATA_STREAM:
                raise RemoteProtocolError("the sink does not accept the stream")
            self.committed = self.offset = message.point or 0
            return "accepted"
        if isinstance(message, m.ReplyUncommitted):
            return self._listed(message)
        if isinstance(message, m.Vote):
            if message.txn != self.txn:
                raise RemoteProtocolError(f"the sink votes on {message.txn!r}; asked was {self.txn!r}")
            return "yes" if message.commit else "no"
        if isinstance(message, m.Ack):
            return "acknowledged"
        assert isinstance(message, m.Error | m.Restart)
        self.last_words = message
        return "over"

    def _listed(self, reply: m.ReplyUncommitted) -> str:
        if reply.rtag != self._rtag:
            raise RemoteProtocolError(f"the sink answers list {reply.rtag}; asked was {self._rtag}")
        if len(reply.txns) > 1:
            raise RemoteProtocolError(
                f"the sink has {len(reply.txns)} open transactions of one worker: {', '.join(map(repr, reply.txns[:5]))}"
            )
        if reply.txns and self.state is not WorkerState.AWAIT_LIST:
            raise RemoteProtocolError(f"the sink was told how transaction {reply.txns[0]!r} ends, and still lists it")
        self.uncommitted = reply.txns
        return "one" if reply.txns else "none"
