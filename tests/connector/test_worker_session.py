"""The worker's session without sockets: what may be sent and received in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.connector.sink.protocol.worker_session import RECEIVED, SENT, WorkerSession, WorkerState
from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError

S = WorkerState
OK, ACK, NONE = m.Ok(2), m.NotifyAck(True, 1, 40), m.ReplyUncommitted(1)

#: How to get into each state.
PATHS: dict[WorkerState, Callable[[WorkerSession], object]] = {
    S.INITIAL: lambda w: None,
    S.AWAIT_OK: lambda w: w.greet(),
    S.AWAIT_ACK: lambda w: (w.greet(), w.receive(OK)),
    S.AWAIT_LIST: lambda w: (w.greet(), w.receive(OK), w.receive(ACK)),
    S.READY: lambda w: (w.greet(), w.receive(OK), w.receive(ACK), w.receive(NONE)),
    S.UNDECIDED: lambda w: (w.greet(), w.receive(OK), w.receive(ACK), w.receive(m.ReplyUncommitted(1, ("t",)))),
    S.RESOLVED: lambda w: (PATHS[S.UNDECIDED](w), w.finish("t", True)),
    S.RESOLVING: lambda w: (PATHS[S.RESOLVED](w), w.list_again()),
    S.AWAIT_VOTE: lambda w: (PATHS[S.READY](w), w.write(2), w.prepare("t")),
    S.VOTED: lambda w: (PATHS[S.AWAIT_VOTE](w), w.receive(m.Vote("t", True))),
    S.REFUSED: lambda w: (PATHS[S.AWAIT_VOTE](w), w.receive(m.Vote("t", False))),
    S.LISTING: lambda w: (PATHS[S.READY](w), w.list_again()),
    S.ENDING: lambda w: (PATHS[S.READY](w), w.end()),
    S.CLOSED: lambda w: (w.greet(), w.receive(m.Error("no"))),
}

#: How to send each kind that a worker sends.
CALLS: dict[type[m.Frame], Callable[[WorkerSession], object]] = {
    m.Hello: lambda w: w.greet(),
    m.Message: lambda w: w.write(3),
    m.Phase1: lambda w: w.prepare("t"),
    m.Phase2: lambda w: w.finish("t", True),
    m.ListUncommitted: lambda w: w.list_again(),
    m.WorkersLeft: lambda w: w.workers_left(("x",)),
    m.Eos: lambda w: w.end(),
}


def in_state(state: WorkerState) -> WorkerSession:
    worker = WorkerSession("w")
    PATHS[state](worker)
    assert worker.state is state
    return worker


def sample(kind: type[m.Frame], worker: WorkerSession) -> m.Frame:
    """A message of that kind, as right as it can be."""
    return {
        m.Ok: OK,
        m.NotifyAck: ACK,
        m.ReplyUncommitted: m.ReplyUncommitted(worker._rtag),
        m.Vote: m.Vote("t", True),
        m.Ack: m.Ack(0, ((1, 40),)),
        m.Error: m.Error("no"),
        m.Restart: m.Restart("127.0.0.1:1"),
        m.Hello: m.Hello(m.SINK_VERSION, "", "p", "w"),
        m.Notify: m.Notify(1, "w", 0),
        m.Message: m.Message(1, 0, b"x"),
        m.Eos: m.Eos(1),
        m.ListUncommitted: m.ListUncommitted(1),
        m.Phase1: m.Phase1("t", ()),
        m.Phase2: m.Phase2("t", True),
        m.WorkersLeft: m.WorkersLeft(1, ()),
    }[kind]


#: What may come where, written down once more. Last words may come wherever something was said.
MAY_COME = {
    S.AWAIT_OK: (m.Ok, S.AWAIT_ACK),
    S.AWAIT_ACK: (m.NotifyAck, S.AWAIT_LIST),
    S.AWAIT_LIST: (m.ReplyUncommitted, S.READY),
    S.AWAIT_VOTE: (m.Vote, S.VOTED),
    S.LISTING: (m.ReplyUncommitted, S.READY),
    S.RESOLVING: (m.ReplyUncommitted, S.RESOLVED),
    S.ENDING: (m.Ack, S.READY),
}


@pytest.mark.parametrize("kind", m.KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", WorkerState, ids=lambda state: state.value)
def test_every_message_in_every_state_has_a_defined_outcome(state: WorkerState, kind: type[m.Frame]) -> None:
    worker = in_state(state)
    message = sample(kind, worker)
    if state not in (S.INITIAL, S.CLOSED) and kind in (m.Error, m.Restart):
        worker.receive(message)
        assert worker.state is S.CLOSED and worker.last_words == message
    elif state in MAY_COME and MAY_COME[state][0] is kind:
        worker.receive(message)
        assert worker.state is MAY_COME[state][1]
    else:
        with pytest.raises(RemoteProtocolError):
            worker.receive(message)
        assert worker.state is S.CLOSED


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", WorkerState, ids=lambda state: state.value)
def test_every_call_in_every_state_is_allowed_or_our_own_mistake(state: WorkerState, kind: type[m.Frame]) -> None:
    worker = in_state(state)
    if kind in SENT[state]:
        CALLS[kind](worker)
        assert worker.state is SENT[state][kind]
    else:
        before = (worker.offset, worker.committed, worker.txn)
        with pytest.raises(LocalProtocolError):
            CALLS[kind](worker)
        assert worker.state is state and (worker.offset, worker.committed, worker.txn) == before


def test_both_tables_know_every_state() -> None:
    assert set(SENT) == set(RECEIVED) == set(WorkerState) == set(PATHS)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (S.AWAIT_OK, m.Ok(1)),
        (S.AWAIT_ACK, m.NotifyAck(False, 1, 0)),
        (S.AWAIT_ACK, m.NotifyAck(True, 2, 0)),
        (S.AWAIT_LIST, m.ReplyUncommitted(99)),
        (S.AWAIT_LIST, m.ReplyUncommitted(1, ("a", "b"))),
        (S.AWAIT_VOTE, m.Vote("another", True)),
        (S.RESOLVING, m.ReplyUncommitted(2, ("t",))),
        (S.LISTING, m.ReplyUncommitted(2, ("t",))),
    ],
)
def test_what_the_content_makes_wrong_ends_the_session(state: WorkerState, message: m.Frame) -> None:
    worker = in_state(state)
    with pytest.raises(RemoteProtocolError):
        worker.receive(message)
    assert worker.state is S.CLOSED


def test_the_three_opening_messages_are_sent_without_waiting() -> None:
    hello, notify, listed = WorkerSession("w", "secret", "app").greet(17)
    assert hello == m.Hello(m.SINK_VERSION, "secret", "app", "w")
    assert notify == m.Notify(1, "w", 17) and isinstance(listed, m.ListUncommitted)


def test_phase_one_asks_for_what_was_written_since_the_last_commit() -> None:
    worker = in_state(S.READY)
    assert worker.write(3) == 40 and worker.write(2) == 43
    assert worker.prepare("t") == [m.Phase1("t", ((1, 40, 45),))]
    worker.receive(m.Vote("t", True))
    assert worker.finish("t", True) == [m.Phase2("t", True)]
    assert worker.prepare("u") == [m.Phase1("u", ((1, 45, 45),))]


def test_after_a_rollback_the_offset_is_back_at_the_last_commit() -> None:
    worker = in_state(S.VOTED)
    worker.finish("t", False)
    assert worker.offset == worker.committed == 40


def test_phase_two_is_for_the_transaction_that_waits() -> None:
    for state in (S.VOTED, S.UNDECIDED):
        worker = in_state(state)
        with pytest.raises(LocalProtocolError, match="'u' is not the one"):
            worker.finish("u", True)
        assert worker.state is state


def test_nothing_yet_is_offset_0() -> None:
    worker = in_state(S.AWAIT_ACK)
    worker.receive(m.NotifyAck(True, 1, None))
    assert worker.offset == 0
