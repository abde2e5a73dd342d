"""The sink's end of a connection: messages in, effects out. No sockets, no files, no clock.

The states

    INITIAL          nothing was said yet
    AWAIT_APPROVAL   the worker is known and its output recovered; it has to announce its stream before anything else
    READY            bytes may come, and phase one
    PREPARED         a transaction is open: phase one was answered, on this connection or an earlier one. Phase two decides; bytes that come
                     before it belong to the next transaction
    CLOSED           over

Rules
1. `TABLE` says what may come in which state and where it leads. What is not in the table, and what cannot be decoded, is answered with
   ERROR, and the connection is closed: a worker comes back only after the socket is closed. ERROR is the peer's last word and gets no
   answer. One bad peer costs its own connection and nothing else.
2. Recovery is complete before OK is sent. NOTIFY_ACK carries how many bytes the sink holds for this worker, those of an open transaction included;
   the first one, those that were recovered. A worker may announce its stream again, at any time, and is told again. The ACK of EOS says the same
   number: what was received, which need not be committed.
3. A transaction that was open when the worker was last here makes the stream begin in PREPARED. It is told on LIST_UNCOMMITTED, and only
   phase two leads back to READY.
4. Phase one leads to PREPARED whichever the vote is. After a no the worker closes, comes back, and rolls back what it finds listed.
5. PHASE2, MESSAGE and WORKERS_LEFT are never answered: an answer would end the worker. So phase two of a transaction that is not known is no reason to
   end the session either: it is noted and ignored.
6. Everything about offsets is decided in `ledger`.
7. Bytes between the phases are put behind those of the open transaction. They survive its commit and go with its rollback. An output that cannot take
   them says so; then they are dropped, and the next transaction is vetoed.
8. A worker may say a fence in its HELLO: a number that never goes back for a name. Once it was seen, a HELLO with a lower one is refused, also after a
   restart, and does not cut anybody off. So a coordinator that has counted its votes can lock out attempts that come too late and would roll
   back what they find. Workers that say none are all at 0, and the last to come has the name.

The caller's duties
1. Carry out the effects in order. An effect that cannot be carried out ends the session: drop the rest, call `failed`, and carry out what
   that returns.
2. `Recover`, `Compare` and `BeginNext` ask for an answer, and are always the last of their list. Give it to `answer` before the next message.
3. Before `Recover`: close an older session with that worker's name, drop its unread input, and wait for its last effect; unless its fence is higher,
   then `failed`.
4. What `Prepare`, `Seal`, `Veto`, `Commit` and `Rollback` say is durable before the next effect is looked at. What `Append` says need not be,
   until `Prepare`. What `Archive` says is durable before anything that comes behind it is looked at.
5. After `Close`, read nothing more. When the connection ends in any other way, just forget the session: what is open stays open, and the
   rest is dropped by the next recovery.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable

from millstream.connector.sink.protocol import effects as fx
from millstream.connector.sink.protocol.ledger import Ledger, Recovered
from millstream.connector.wire import messages as m
from millstream.connector.wire import refusals
from millstream.errors import LocalProtocolError, RemoteProtocolError

#: What OK grants. A worker needs two before it may announce its stream; a sink returns none, so this is for good.
CREDITS = 1 << 30

#: How many workers one message may say to have left.
LEAVING = 1000


class SinkState(enum.Enum):
    INITIAL = "Initial"
    AWAIT_APPROVAL = "AwaitApproval"
    READY = "Ready"
    PREPARED = "Prepared"
    CLOSED = "Closed"


#: state -> message -> what it came to -> the next state. What is missing leads to ERROR and CLOSED (rule 1).
TABLE: dict[SinkState, dict[type[m.Frame], dict[str, SinkState]]] = {
    SinkState.INITIAL: {
        m.Hello: {"recovered": SinkState.AWAIT_APPROVAL},
        m.Error: {"over": SinkState.CLOSED},
    },
    SinkState.AWAIT_APPROVAL: {
        m.Notify: {"nothing open": SinkState.READY, "one open": SinkState.PREPARED},
        m.Error: {"over": SinkState.CLOSED},
    },
    SinkState.READY: {
        m.Notify: {"told again": SinkState.READY},
        m.Message: {"taken": SinkState.READY},
        m.ListUncommitted: {"told": SinkState.READY},
        m.Phase1: {"voted": SinkState.PREPARED},
        m.Phase2: {"known already": SinkState.READY, "unknown": SinkState.READY},
        m.WorkersLeft: {"archived": SinkState.READY},
        m.Eos: {"acknowledged": SinkState.READY},
        m.Error: {"over": SinkState.CLOSED},
    },
    SinkState.PREPARED: {
        m.Notify: {"told again": SinkState.PREPARED},
        m.Message: {"taken": SinkState.PREPARED},
        m.ListUncommitted: {"told": SinkState.PREPARED},
        m.Phase1: {"voted": SinkState.PREPARED},
        m.Phase2: {
            "committed": SinkState.READY,
            "rolled back": SinkState.READY,
            "known already": SinkState.PREPARED,
            "unknown": SinkState.PREPARED,
        },
        m.WorkersLeft: {"archived": SinkState.PREPARED},
        m.Eos: {"acknowledged": SinkState.PREPARED},
        m.Error: {"over": SinkState.CLOSED},
    },
    SinkState.CLOSED: {},
}


def too_low(said: int, known: int) -> str:
    """Rule 8, for the one who is refused."""
    return refusals.fenced(f"this worker is at fence {known}, and {said} is over")


class SinkSession:
    """One connection, from HELLO to its end."""

    def __init__(self, cookie: str = "") -> None:
        self.state = SinkState.INITIAL
        self.worker: str | None = None
        self.fence = 0
        self._cookie = cookie
        self._ledger: Ledger | None = None
        self._asked: fx.Recover | fx.Compare | fx.BeginNext | None = None
        self._beyond = b""  # what is appended if the answer is yes: of bytes that are being compared, those that are not held yet
        self._begun = False  # whether the output knows of the transaction that bytes are appended to
        self._handlers: dict[type[m.Frame], Callable[..., list[fx.SinkEffect]]] = {
            m.Hello: self._hello,
            m.Notify: self._notify,
            m.Message: self._message,
            m.ListUncommitted: self._list_uncommitted,
            m.Phase1: self._phase1,
            m.Phase2: self._phase2,
            m.WorkersLeft: self._workers_left,
            m.Eos: self._eos,
            m.Error: self._error,
        }

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None, "nothing is recovered yet"
        return self._ledger

    def receive(self, message: m.Frame) -> list[fx.SinkEffect]:
        """What a message comes to."""
        if self._asked is not None:
            raise LocalProtocolError(f"{type(self._asked).__name__} waits for its answer")
        if self.state is SinkState.CLOSED:
            return []
        if type(message) not in TABLE[self.state]:
            return self.failed(f"{type(message).__name__} is not expected in state {self.state.value}")
        try:
            return self._handlers[type(message)](message)
        except RemoteProtocolError as error:
            return self.failed(str(error))

    def answer(self, found: Recovered | bool) -> list[fx.SinkEffect]:
        """What comes after the answer to `Recover`, `Compare` or `BeginNext`."""
        asked, self._asked = self._asked, None
        if isinstance(asked, fx.Recover) and isinstance(found, Recovered):
            if self.fence < found.fence:
                return self.failed(too_low(self.fence, found.fence))
            self._ledger = Ledger(found)
            self._to(m.Hello, "recovered")
            return [*([fx.Seal(self.fence)] if self.fence > found.fence else []), fx.Send(m.Ok(CREDITS))]
        if isinstance(asked, fx.Compare) and isinstance(found, bool):
            self.ledger.compared(found, asked.offset)
            return self._append(self._beyond) if found else []
        if isinstance(asked, fx.BeginNext) and isinstance(found, bool):
            if not found:
                self.ledger.refused()
                return []
            self._begun = True
            return self._append(self._beyond)
        raise LocalProtocolError(f"{found!r} does not answer {type(asked).__name__}")

    def failed(self, text: str) -> list[fx.SinkEffect]:
        """Ends the session because of the peer or of an effect; the peer is told."""
        self._asked = None
        if self.state is SinkState.CLOSED:
            return []
        self.state = SinkState.CLOSED
        return [fx.Send(m.Error(text[:1000])), fx.Close()]

    def _to(self, kind: type[m.Frame], outcome: str) -> None:
        self.state = TABLE[self.state][kind][outcome]

    def _hello(self, hello: m.Hello) -> list[fx.SinkEffect]:
        if hello.version != m.SINK_VERSION:
            raise RemoteProtocolError(refusals.wrong_version(hello.version, m.SINK_VERSION))
        if not hmac.compare_digest(hello.cookie.encode(), self._cookie.encode()):
            raise RemoteProtocolError(refusals.WRONG_COOKIE)
        objection = m.name_objection("worker", hello.instance)
        if objection is not None:
            raise RemoteProtocolError(objection)
        self.worker, self.fence = hello.instance, m.fence_of(hello.program)
        self._asked = fx.Recover(hello.instance)
        return [self._asked]

    def _notify(self, notify: m.Notify) -> list[fx.SinkEffect]:
        if notify.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {notify.stream} cannot be announced: a sink takes stream {m.DATA_STREAM}")
        first = "nothing open" if self.ledger.open is None else "one open"
        self._to(m.Notify, first if self.state is SinkState.AWAIT_APPROVAL else "told again")
        return [fx.Send(m.NotifyAck(True, notify.stream, self.ledger.received))]

    def _message(self, message: m.Message) -> list[fx.SinkEffect]:
        if message.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {message.stream} was never announced")
        self._to(m.Message, "taken")
        known = self.ledger.held(message.id)
        if known is None:
            return []
        if not known:
            return self._append(message.payload)
        self._beyond = message.payload[known:]
        self._asked = fx.Compare(message.id, message.payload[:known])
        return [self._asked]

    def _append(self, data: bytes) -> list[fx.SinkEffect]:
        if not data:
            return []
        if not self._begun and self.ledger.open is not None:
            self._beyond, self._asked = data, fx.BeginNext(self.ledger.received)
            return [self._asked]
        effects: list[fx.SinkEffect] = [] if self._begun else [fx.Begin(self.ledger.received)]
        self._begun = True
        self.ledger.appended(len(data))
        return [*effects, fx.Append(data)]

    def _list_uncommitted(self, asked: m.ListUncommitted) -> list[fx.SinkEffect]:
        self._to(m.ListUncommitted, "told")
        found = self.ledger.open
        return [fx.Send(m.ReplyUncommitted(asked.rtag, () if found is None else (found.txn,)))]

    def _phase1(self, asked: m.Phase1) -> list[fx.SinkEffect]:
        before = self.ledger.open
        found = self.ledger.vote(asked)
        self._to(m.Phase1, "voted")
        vote = fx.Send(m.Vote(asked.txn, found.veto is None))
        if before is not None:
            return [vote]
        if found.veto is not None:
            return [fx.Veto(found.txn, found.veto), vote]
        self._begun = False
        return [fx.Prepare(found.txn, self.ledger.committed, found.end), vote]

    def _phase2(self, told: m.Phase2) -> list[fx.SinkEffect]:
        outcome = self.ledger.resolve(told)
        self._to(m.Phase2, outcome)
        if outcome == "committed":
            return [fx.Commit(told.txn, self.ledger.committed)]
        if outcome != "rolled back":
            return [fx.Ignored(told.txn, told.commit, outcome == "known already")]
        self._begun = False
        return [fx.Rollback(told.txn, self.ledger.committed)]

    def _workers_left(self, left: m.WorkersLeft) -> list[fx.SinkEffect]:
        if self.worker in left.workers:
            raise RemoteProtocolError(f"worker {self.worker!r} says that it has left, and is still here")
        if len(left.workers) > LEAVING:
            raise RemoteProtocolError(
                f"{len(left.workers)} workers are said to have left at once; at most {LEAVING} can be told in one message"
            )
        self._to(m.WorkersLeft, "archived")
        gone = tuple(name for name in dict.fromkeys(left.workers) if m.name_objection("worker", name) is None)
        return [fx.Archive(gone)] if gone else []

    def _eos(self, eos: m.Eos) -> list[fx.SinkEffect]:
        if eos.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {eos.stream} was never announced")
        self._to(m.Eos, "acknowledged")
        return [fx.Send(m.Ack(0, ((eos.stream, self.ledger.received),)))]

    def _error(self, error: m.Error) -> list[fx.SinkEffect]:
        self._to(m.Error, "over")
        return [fx.Close()]
