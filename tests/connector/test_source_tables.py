"""Every state and every message of the source protocol, at both ends, has a defined outcome."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sourcekit import Desk

from millstream.connector.source.protocol import push_session as c
from millstream.connector.source.protocol import session as t
from millstream.connector.source.protocol.push_session import ClientStream, PushSession, PushState
from millstream.connector.source.protocol.session import Server, ServerStream, SourceSession
from millstream.connector.wire import messages as m
from millstream.errors import LocalProtocolError, RemoteProtocolError

SAMPLES: dict[type[m.Frame], m.Frame] = {
    m.Hello: m.Hello(m.SOURCE_VERSION, "", "p", ""),
    m.Ok: m.Ok(5),
    m.Error: m.Error("no"),
    m.Notify: m.Notify(1, "s", 0),
    m.NotifyAck: m.NotifyAck(True, 1, None),
    m.Message: m.Message(1, 7, b"x"),
    m.Ack: m.Ack(1, ((1, 3),)),
    m.Restart: m.Restart(""),
    m.Eos: m.Eos(1),
    m.ListUncommitted: m.ListUncommitted(1),
    m.ReplyUncommitted: m.ReplyUncommitted(1),
    m.Phase1: m.Phase1("t", ()),
    m.Vote: m.Vote("t", True),
    m.Phase2: m.Phase2("t", True),
    m.WorkersLeft: m.WorkersLeft(1, ()),
}


# ---- the server


def server_in(state: Server, stream: ServerStream) -> tuple[Desk, SourceSession]:
    desk = Desk()
    session = desk.session(greeted=state is not Server.INITIAL)
    if stream is not ServerStream.ABSENT:
        desk.tell(session, m.Notify(1, "s", 0))
    if stream is ServerStream.ENDING:
        desk.tell(session, m.Message(1, 3, b"x"), m.Eos(1))
    if state is Server.CLOSED:
        desk.tell(session, m.Error("over"))
    desk.heard(session)
    assert (session.state, session.stream_state(1)) == (state, stream)
    return desk, session


SITUATIONS = [
    (Server.INITIAL, ServerStream.ABSENT),
    *((Server.READY, stream) for stream in ServerStream),
    (Server.CLOSED, ServerStream.ABSENT),
]


@pytest.mark.parametrize(("state", "stream", "kind"), [(*s, kind) for s, kind in itertools.product(SITUATIONS, m.KINDS)])
def test_every_message_to_the_server_does_what_its_cell_says(state: Server, stream: ServerStream, kind: type[m.Frame]) -> None:
    desk, session = server_in(state, stream)
    before = list(desk.stored)
    desk.tell(session, SAMPLES[kind])
    said = desk.heard(session)
    streamwise = kind in (m.Notify, m.Message, m.Eos) and state is Server.READY
    allowed = kind in t.SERVER[state] and (not streamwise or kind in t.SERVER_STREAM[stream])
    if allowed:
        assert session.state in t.SERVER[state][kind].values()
        if streamwise:
            assert session.stream_state(1) in t.SERVER_STREAM[stream][kind].values()
        assert not any(isinstance(frame, m.Error) for frame in said)
    else:
        assert session.state is Server.CLOSED and desk.stored == before
        assert [type(frame) for frame in said] == ([] if state is Server.CLOSED else [m.Error])
        assert state is Server.CLOSED or session in desk.closed


@pytest.mark.parametrize("stream", list(ServerStream))
def test_every_commit_does_what_its_cell_says(stream: ServerStream) -> None:
    desk, session = server_in(Server.READY, stream)
    desk.commit()
    outcomes = t.COMMITTED[stream]
    assert session.stream_state(1) in (outcomes.values() or {stream})


def test_the_tables_have_a_row_for_every_state() -> None:
    assert set(t.SERVER) == set(Server) and set(t.SERVER_STREAM) == set(t.COMMITTED) == set(ServerStream)
    assert set(c.CLIENT_SENT) == set(c.CLIENT_RECEIVED) == set(PushState)
    assert set(c.CLIENT_STREAM_SENT) == set(c.CLIENT_STREAM_RECEIVED) == set(ClientStream)


def test_a_guard_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative twin: with one more cell, the test above would see a session that goes on."""
    monkeypatch.setitem(t.SERVER[Server.READY], m.Hello, {"welcome": Server.READY})
    desk, session = server_in(Server.READY, ServerStream.ABSENT)
    desk.tell(session, SAMPLES[m.Hello])
    assert session.state is not Server.CLOSED


# ---- the client


def client_in(state: PushState, stream: ClientStream) -> PushSession:
    session = PushSession()
    if state is PushState.INITIAL:
        return session
    session.greet()
    if state is not PushState.AWAIT_OK:
        session.receive(m.Ok(100))
    if stream is not ClientStream.ABSENT:
        session.notify(1, "s")
    if stream in (ClientStream.OPEN, ClientStream.ENDING):
        session.receive(m.NotifyAck(True, 1, None))
    if stream is ClientStream.ENDING:
        session.push(1, 1, 9)
        session.end(1)
    if state is PushState.CLOSED:
        session.receive(m.Error("over"))
    assert session.state is state and (1 not in session.streams or session.streams[1].state is stream)
    return session


CLIENT_SITUATIONS = [
    (PushState.INITIAL, ClientStream.ABSENT),
    (PushState.AWAIT_OK, ClientStream.ABSENT),
    *((PushState.READY, stream) for stream in ClientStream),
    (PushState.CLOSED, ClientStream.ABSENT),
]


@pytest.mark.parametrize(("state", "stream", "kind"), [(*s, kind) for s, kind in itertools.product(CLIENT_SITUATIONS, m.KINDS)])
def test_every_message_to_the_client_does_what_its_cell_says(state: PushState, stream: ClientStream, kind: type[m.Frame]) -> None:
    session = client_in(state, stream)
    known = 1 in session.streams
    streamwise = kind in (m.NotifyAck, m.Ack) and state is PushState.READY
    allowed = kind in c.CLIENT_RECEIVED[state] and (not streamwise or (known and kind in c.CLIENT_STREAM_RECEIVED[stream]))
    if not allowed:
        with pytest.raises(RemoteProtocolError):
            session.receive(SAMPLES[kind])
        assert session.state is PushState.CLOSED
        return
    session.receive(SAMPLES[kind])
    assert session.state in c.CLIENT_RECEIVED[state][kind].values()
    if streamwise:
        assert session.streams[1].state in c.CLIENT_STREAM_RECEIVED[stream][kind].values()


ACTIONS: dict[type[m.Frame], Any] = {
    m.Hello: lambda s: s.greet(),
    m.Notify: lambda s: s.notify(1, "s"),
    m.Message: lambda s: s.push(1, 1, 50),
    m.Eos: lambda s: s.end(1),
}


@pytest.mark.parametrize(("state", "stream", "kind"), [(*s, kind) for s, kind in itertools.product(CLIENT_SITUATIONS, ACTIONS)])
def test_the_client_says_only_what_its_tables_allow(state: PushState, stream: ClientStream, kind: type[m.Frame]) -> None:
    session = client_in(state, stream)
    streamwise = kind in (m.Notify, m.Message, m.Eos)
    allowed = kind in c.CLIENT_SENT[state] and (not streamwise or kind in c.CLIENT_STREAM_SENT[stream])
    if allowed:
        ACTIONS[kind](session)
        assert session.state in c.CLIENT_SENT[state][kind].values()
        assert not streamwise or session.streams[1].state in c.CLIENT_STREAM_SENT[stream][kind].values()
    else:
        with pytest.raises(LocalProtocolError):
            ACTIONS[kind](session)
        assert session.state is state
