"""The sink's end of a connection: messages in, effects out. No sockets, no files, no clock.

Rules
1. `TABLE` says what may come in which state and where it leads. Anything else, and what cannot be decoded, is answered with ERROR, and the connection
   is closed: a worker comes back only after that. ERROR is the peer's last word and gets no answer. A bad peer costs its own connection only.
2. Recovery is complete before OK is sent. NOTIFY_ACK, which a worker may ask for again at any time, and the ACK of EOS tell how many bytes the sink
   holds, those of an open transaction included; they need not be committed.
3. A transaction that was open when the worker was last here makes the stream begin in PREPARED. LIST_UNCOMMITTED tells it; phase two leads to READY.
4. Phase one leads to PREPARED whichever the vote is. After a no the worker closes, comes back, and rolls back what it finds listed.
5. PHASE2, MESSAGE and WORKERS_LEFT are never answered: an answer would end the worker. Phase two of an unknown transaction is noted and ignored.
6. Everything about offsets is decided in `ledger`.
7. Bytes between the phases are put behind those of the open transaction. They survive its commit and go with its rollback. If the output cannot take
   them, they are dropped, and the next transaction is vetoed.
8. A worker may say a fence in its HELLO, else it is at 0: a number that never goes back for a name. A HELLO with a lower one is refused, also after a
   restart, and cuts nobody off. So a coordinator that has counted its votes can lock out attempts that come too late.

The caller's duties
1. Carry out the effects in order. If one cannot be carried out: drop the rest, call `failed`, and carry out what that returns.
2. `Do` is a call of the worker's `Output` (its contract: `outputs/base.py`), and durable before the next effect is looked at; `append` need not be,
   until `prepare`. What the methods in `ANSWERED` return is given to `answer` before the next message; they are always the last of their list.
3. Before `recover`: close an older session with that worker's name, drop its unread input, and wait for its last effect; unless its fence is higher,
   then `failed`.
4. What `Archive` says is durable before anything that comes behind it is looked at.
5. After `Close`, read nothing more. If the connection ends in any other way, just forget the session: what is open stays open.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.connector.sink.protocol.ledger import Ledger, Recovered
from millstream.connector.wire import messages as m
from millstream.connector.wire.messages import Close, Send
from millstream.errors import LocalProtocolError, RemoteProtocolError

#: What OK grants. A worker needs two before it may announce its stream; a sink returns none, so this is for good.
CREDITS = 1 << 30

#: How many workers one message may say to have left.
LEAVING = 1000

#: Methods of an `Output` whose result is given to `answer`.
ANSWERED = frozenset({"recover", "same", "begin_next"})


class Do(msgspec.Struct, frozen=True):
    method: str  # to be called, of the worker's output
    args: tuple[Any, ...] = ()


class Ignored(msgspec.Struct, frozen=True):
    """Phase two of a transaction that is not open: the one that was committed last, again, or one that is not known. To be noted."""

    txn: str
    commit: bool
    known: bool


class Archive(msgspec.Struct, frozen=True):
    workers: tuple[str, ...]  # that have left: put their output aside, so that the names begin at 0


SinkEffect = Send | Close | Do | Ignored | Archive


def do(method: str, *args: Any) -> Do:
    return Do(method, args)


class SinkState(enum.Enum):
    INITIAL = "Initial"  # nothing was said yet
    AWAIT_APPROVAL = "AwaitApproval"  # the worker is known and its output recovered; it has to announce its stream
    READY = "Ready"  # bytes may come, and phase one
    PREPARED = "Prepared"  # phase one was answered, on this connection or an earlier one; bytes that come belong to the next transaction
    CLOSED = "Closed"


INITIAL, AWAIT_APPROVAL, READY, PREPARED, CLOSED = SinkState
_OVER: dict[type[m.Frame], dict[str, SinkState]] = {m.Error: {"over": CLOSED}}


def _talking(here: SinkState, **decided: SinkState) -> dict[type[m.Frame], dict[str, SinkState]]:
    """What may come while bytes may. decided: what phase two comes to if a transaction is open."""
    return {
        m.Notify: {"told again": here},
        m.Message: {"taken": here},
        m.ListUncommitted: {"told": here},
        m.Phase1: {"voted": PREPARED},
        m.Phase2: {**decided, "known already": here, "unknown": here},
        m.WorkersLeft: {"archived": here},
        m.Eos: {"acknowledged": here},
        **_OVER,
    }


#: state -> message -> what it came to -> the next state. What is missing leads to ERROR and CLOSED (rule 1).
TABLE: dict[SinkState, dict[type[m.Frame], dict[str, SinkState]]] = {
    INITIAL: {m.Hello: {"recovered": AWAIT_APPROVAL}, **_OVER},
    AWAIT_APPROVAL: {m.Notify: {"nothing open": READY, "one open": PREPARED}, **_OVER},
    READY: _talking(READY),
    PREPARED: _talking(PREPARED, **{"committed": READY, "rolled back": READY}),
    CLOSED: {},
}


def too_low(said: int, known: int) -> str:
    return m.fenced(f"this worker is at fence {known}, and {said} is over")


class SinkSession:
    def __init__(self, cookie: str = "") -> None:
        self.state = INITIAL
        self.worker: str | None = None
        self.fence = 0
        self._cookie = cookie
        self._ledger: Ledger | None = None
        self._asked: Do | None = None
        self._beyond = b""  # what is appended if the answer is yes: of bytes that are being compared, those that are not held yet
        self._begun = False  # whether the output knows of the transaction that bytes are appended to
        self._handlers: dict[type[m.Frame], Callable[..., list[SinkEffect]]] = {
            m.Hello: self._hello,
            m.Notify: self._notify,
            m.Message: self._message,
            m.ListUncommitted: self._list_uncommitted,
            m.Phase1: self._phase1,
            m.Phase2: self._phase2,
            m.WorkersLeft: self._workers_left,
            m.Eos: self._eos,
        }

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None, "nothing is recovered yet"
        return self._ledger

    def receive(self, message: m.Frame) -> list[SinkEffect]:
        if self._asked is not None:
            raise LocalProtocolError(f"{self._asked.method} waits for its answer")
        if self.state is CLOSED:
            return []
        if type(message) is m.Error:
            self._to(m.Error, "over")
            return [Close()]
        if type(message) not in TABLE[self.state]:
            return self.failed(f"{type(message).__name__} is not expected in state {self.state.value}")
        try:
            return self._handlers[type(message)](message)
        except RemoteProtocolError as error:
            return self.failed(str(error))

    def answer(self, found: Recovered | bool) -> list[SinkEffect]:
        asked, self._asked = self._asked, None
        if asked is None or isinstance(found, Recovered) != (asked.method == "recover"):
            raise LocalProtocolError(f"{found!r} does not answer {'anything' if asked is None else asked.method}")
        if isinstance(found, Recovered):
            if self.fence < found.fence:
                return self.failed(too_low(self.fence, found.fence))
            self._ledger = Ledger(found)
            self._to(m.Hello, "recovered")
            return [*([do("seal", self.fence)] if self.fence > found.fence else []), Send(m.Ok(CREDITS))]
        if asked.method == "same":
            self.ledger.compared(found, asked.args[0])
        elif found:
            self._begun = True
        else:
            self.ledger.refused()
        return self._append(self._beyond) if found else []

    def failed(self, text: str) -> list[SinkEffect]:
        self._asked = None
        if self.state is CLOSED:
            return []
        self.state = CLOSED
        return [Send(m.Error(text[:1000])), Close()]

    def _to(self, kind: type[m.Frame], outcome: str) -> None:
        self.state = TABLE[self.state][kind][outcome]

    def _hello(self, hello: m.Hello) -> list[SinkEffect]:
        if hello.version != m.SINK_VERSION:
            raise RemoteProtocolError(m.wrong_version(hello.version, m.SINK_VERSION))
        if not hmac.compare_digest(hello.cookie.encode(), self._cookie.encode()):
            raise RemoteProtocolError(m.WRONG_COOKIE)
        objection = m.name_objection("worker", hello.instance)
        if objection is not None:
            raise RemoteProtocolError(objection)
        self.worker, self.fence = hello.instance, m.fence_of(hello.program)
        self._asked = do("recover")
        return [self._asked]

    def _notify(self, notify: m.Notify) -> list[SinkEffect]:
        if notify.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {notify.stream} cannot be announced: a sink takes stream {m.DATA_STREAM}")
        first = "nothing open" if self.ledger.open is None else "one open"
        self._to(m.Notify, first if self.state is AWAIT_APPROVAL else "told again")
        return [Send(m.NotifyAck(True, notify.stream, self.ledger.received))]

    def _message(self, message: m.Message) -> list[SinkEffect]:
        if message.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {message.stream} was never announced")
        self._to(m.Message, "taken")
        known = self.ledger.held(message.id)
        if known is None:
            return []
        if not known:
            return self._append(message.payload)
        self._beyond = message.payload[known:]
        self._asked = do("same", message.id, message.payload[:known])
        return [self._asked]

    def _append(self, data: bytes) -> list[SinkEffect]:
        if not data:
            return []
        if not self._begun and self.ledger.open is not None:
            self._beyond, self._asked = data, do("begin_next", self.ledger.received)
            return [self._asked]
        effects: list[SinkEffect] = [] if self._begun else [do("begin", self.ledger.received)]
        self._begun = True
        self.ledger.appended(len(data))
        return [*effects, do("append", data)]

    def _list_uncommitted(self, asked: m.ListUncommitted) -> list[SinkEffect]:
        self._to(m.ListUncommitted, "told")
        found = self.ledger.open
        return [Send(m.ReplyUncommitted(asked.rtag, () if found is None else (found.txn,)))]

    def _phase1(self, asked: m.Phase1) -> list[SinkEffect]:
        before = self.ledger.open
        found = self.ledger.vote(asked)
        self._to(m.Phase1, "voted")
        vote = Send(m.Vote(asked.txn, found.veto is None))
        if before is not None:
            return [vote]
        if found.veto is not None:
            return [do("veto", found.txn, found.veto), vote]
        self._begun = False
        return [do("prepare", found.txn, self.ledger.committed, found.end), vote]

    def _phase2(self, told: m.Phase2) -> list[SinkEffect]:
        outcome = self.ledger.resolve(told)
        self._to(m.Phase2, outcome)
        if outcome == "committed":
            return [do("commit", told.txn, self.ledger.committed)]
        if outcome != "rolled back":
            return [Ignored(told.txn, told.commit, outcome == "known already")]
        self._begun = False
        return [do("rollback", told.txn, self.ledger.committed)]

    def _workers_left(self, left: m.WorkersLeft) -> list[SinkEffect]:
        if self.worker in left.workers:
            raise RemoteProtocolError(f"worker {self.worker!r} says that it has left, and is still here")
        if len(left.workers) > LEAVING:
            raise RemoteProtocolError(f"{len(left.workers)} workers are said to have left at once; one message tells of at most {LEAVING}")
        self._to(m.WorkersLeft, "archived")
        gone = tuple(name for name in dict.fromkeys(left.workers) if m.name_objection("worker", name) is None)
        return [Archive(gone)] if gone else []

    def _eos(self, eos: m.Eos) -> list[SinkEffect]:
        if eos.stream != m.DATA_STREAM:
            raise RemoteProtocolError(f"stream {eos.stream} was never announced")
        self._to(m.Eos, "acknowledged")
        return [Send(m.Ack(0, ((eos.stream, self.ledger.received),)))]
