"""The server's session: who is let in, credits, deduplication, acknowledgements, ends of streams, fencing, declared watermarks."""

from __future__ import annotations

import pytest
from sourcekit import Desk, session_pair

from millstream.connector.intake.format import MESSAGE, WATERMARK, Mark
from millstream.connector.source.protocol.session import LAST_ID, WATERMARK_KEY, Close, Send, Server, ServerStream, SourceSession
from millstream.connector.source.protocol.streams import Streams
from millstream.connector.wire import messages as m


def errors(frames: list[m.Frame]) -> list[str]:
    return [frame.text for frame in frames if isinstance(frame, m.Error)]


# ---- who is let in


def test_a_session_is_ready_only_when_there_is_room() -> None:
    desk = Desk(credits=42)
    session = desk.session(greeted=False)
    assert session.state is Server.INITIAL and not session.credits
    assert session.receive(m.Hello(m.SOURCE_VERSION, "", "p", "")) == [Send(m.Ok(42))]
    assert session.state is Server.READY and session.credits == 42


def test_whoever_finds_no_room_is_told_so_and_never_was_ready() -> None:
    desk = Desk()
    desk.objection = "the source has 3 sessions and takes no more"
    session = desk.session(greeted=False)
    desk.tell(session, m.Hello(m.SOURCE_VERSION, "", "p", ""))
    assert desk.heard(session) == [m.Error(desk.objection)] and session in desk.closed and session.state is Server.CLOSED


@pytest.mark.parametrize("hello", [m.Hello("9", "", "p", ""), m.Hello(m.SOURCE_VERSION, "wrong", "p", "")])
def test_room_is_asked_for_only_when_the_greeting_is_right(hello: m.Hello) -> None:
    asked: list[None] = []
    session = SourceSession(Streams({}, {}, 0.0), lambda: 0.0, lambda: asked.append(None))
    assert [type(effect) for effect in session.receive(hello)] == [Send, Close] and not asked


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (m.Hello("v0.0.1", "secret", "p", "i"), "version"),
        (m.Hello("", "secret", "p", "i"), "version"),
        (m.Hello("0.0.1", "wrong", "p", "i"), "cookie"),
        (m.Hello("0.0.1", "", "p", "i"), "cookie"),
        (m.Hello("0.0.1", "secret ", "p", "i"), "cookie"),
    ],
)
def test_a_wrong_version_or_cookie_is_refused_and_closed(hello: m.Hello, why: str) -> None:
    desk = Desk()
    session = desk.session(cookie="secret", greeted=False)
    desk.tell(session, hello)
    assert why in errors(desk.heard(session))[0] and session in desk.closed


def test_the_cookie_is_never_told() -> None:
    desk = Desk()
    session = desk.session(cookie="secret", greeted=False)
    desk.tell(session, m.Hello("0.0.1", "wrong", "p", "i"))
    assert "secret" not in str(desk.heard(session))


def test_hello_is_answered_with_the_credits() -> None:
    desk = Desk(credits=42)
    session = desk.session(greeted=False)
    desk.tell(session, m.Hello("0.0.1", "", "p", "i"))
    assert desk.heard(session) == [m.Ok(42)] and session.credits == 42


# ---- streams


def test_a_new_stream_has_no_point_and_a_known_one_its_acknowledged_point() -> None:
    desk = Desk()
    first = desk.session()
    desk.tell(first, m.Notify(1, "s", 99), m.Message(1, 5, b"a"), m.Message(1, 9, b"b"))
    assert desk.heard(first)[0] == m.NotifyAck(True, 1, None)
    desk.commit(1)
    first.ended()
    second = desk.session()
    desk.tell(second, m.Notify(7, "s", 0))
    assert desk.heard(second)[0] == m.NotifyAck(True, 7, 5)


def test_a_stream_that_is_active_elsewhere_is_refused_and_takes_no_messages() -> None:
    desk = Desk()
    first, second = desk.session(instance="a"), desk.session(instance="b")
    desk.tell(first, m.Notify(1, "s", 0))
    desk.tell(second, m.Notify(1, "s", 0))
    assert desk.heard(second)[0] == m.NotifyAck(False, 1, None)
    desk.tell(second, m.Message(1, 5, b"x"))
    assert errors(desk.heard(second)) and not desk.stored and first.state is Server.READY


def test_the_same_name_twice_on_one_connection_is_refused_like_elsewhere() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Notify(2, "s", 0))
    assert [f.success for f in desk.heard(session) if isinstance(f, m.NotifyAck)] == [True, False]


def test_the_same_instance_fences_its_half_open_connection() -> None:
    desk = Desk()
    old, bystander = desk.session(instance="i"), desk.session(instance="other")
    desk.tell(old, m.Notify(1, "s", 0), m.Notify(2, "t", 0))
    new = desk.session(instance="i")
    desk.tell(new, m.Notify(1, "s", 0))
    assert desk.heard(new)[0] == m.NotifyAck(True, 1, None)
    assert "fenced" in errors(desk.heard(old))[0] and old in desk.closed
    assert bystander.state is Server.READY
    desk.tell(new, m.Notify(2, "t", 0))
    assert m.NotifyAck(True, 2, None) in desk.heard(new)
    desk.tell(old, m.Message(1, 5, b"late"))
    assert not desk.stored


def test_a_connection_without_an_instance_name_fences_nobody() -> None:
    desk = Desk()
    old, new = desk.session(instance=""), desk.session(instance="")
    desk.tell(old, m.Notify(1, "s", 0))
    desk.tell(new, m.Notify(1, "s", 0))
    assert not desk.heard(new)[0].success and old.state is Server.READY  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 101])
def test_a_name_that_is_empty_or_long_is_refused(name: str) -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, name, 0))
    assert errors(desk.heard(session))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\nb", "\x00", "${HOME}", "x" * 200, "a/b"])
def test_an_odd_name_is_just_a_name(name: str) -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, name, 0), m.Message(1, 1, b"x"))
    assert desk.stored[0][1][0] == name


def test_streams_are_limited_per_connection_and_in_all() -> None:
    desk = Desk(streams=3, streams_limit=2)
    first = desk.session()
    desk.tell(first, m.Notify(1, "a", 0), m.Notify(2, "b", 0), m.Notify(3, "c", 0))
    assert "at most 2" in errors(desk.heard(first))[0]
    crowd = [desk.session() for _ in range(4)]
    for at, session in enumerate(crowd):
        desk.tell(session, m.Notify(1, f"x{at}", 0))
    assert ["3 streams" in str(errors(desk.heard(session))) for session in crowd] == [False, False, False, True]


def test_a_stream_that_was_never_used_is_forgotten_with_its_session() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "a", 0), m.Notify(2, "b", 0), m.Message(2, 1, b"x"))
    session.ended()
    assert list(desk.streams) == ["b"]


# ---- messages


def test_ids_that_are_not_above_the_last_are_skipped() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), *(m.Message(1, id, b"x") for id in (3, 3, 1, 4, 2, 9)))
    assert [entry[2] for _, entry in desk.stored] == [3, 4, 9]


def test_after_a_reconnect_what_was_received_is_skipped_though_it_is_sent_again() -> None:
    desk = Desk()
    first = desk.session()
    desk.tell(first, m.Notify(1, "s", 0), m.Message(1, 1, b"a"), m.Message(1, 2, b"b"))
    first.ended()
    second = desk.session()
    desk.tell(second, m.Notify(1, "s", 0), m.Message(1, 1, b"a"), m.Message(1, 2, b"b"), m.Message(1, 3, b"c"))
    assert [entry[2] for _, entry in desk.stored] == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [
        m.Message(1, LAST_ID + 1, b""),
        m.Message(1, 5, b"", 0, b"\xff"),
        m.Message(1, 5, b"not empty", 0, WATERMARK_KEY),
        m.Message(2, 5, b""),
    ],
)
def test_a_message_that_cannot_be_taken_ends_the_session(bad: m.Message) -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Message(1, 1, b"fine"), bad)
    assert errors(desk.heard(session)) and [entry[2] for _, entry in desk.stored] == [1]


def test_a_run_is_the_same_as_one_message_after_the_other() -> None:
    pushed = [
        (1, 1, 10, b"k", b"a"),
        (1, 1, 10, b"k", b"a"),
        (2, 4, 11, b"", b"b"),
        (1, 2, 12, WATERMARK_KEY, b""),
        (1, 3, 12, b"", b"c"),
        (9, 1, 1, b"", b""),
    ]
    one, other = Desk(), Desk()
    for desk, together in ((one, True), (other, False)):
        session = desk.session()
        desk.tell(session, m.Notify(1, "s", 0), m.Notify(2, "t", 0))
        desk.heard(session)
        for run in [pushed] if together else [[item] for item in pushed]:
            desk.carry_out(session, session.receive_messages(run))
    assert [e for _, e in one.stored] == [e for _, e in other.stored] != []
    assert len(one.closed) == len(other.closed) == 1


# ---- credits and acknowledgements


def test_a_frame_without_a_credit_ends_the_session_and_what_had_one_is_taken() -> None:
    desk = Desk(credits=3)
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0))
    assert session.credits == 3  # what NOTIFY cost came back at once
    desk.carry_out(session, session.receive_messages([(1, id, 0, b"", b"x") for id in range(1, 10)]))
    assert len(desk.stored) == 3 and "credit" in errors(desk.heard(session))[0]


def test_credits_of_what_is_stored_come_back_with_the_commit_and_not_before() -> None:
    desk = Desk(credits=3)
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0))
    desk.heard(session)
    desk.tell(session, m.Message(1, 1, b"x"), m.Message(1, 2, b"x"), m.Message(1, 3, b"x"))
    assert desk.heard(session) == [] and session.credits == 0
    desk.commit(2)
    assert desk.heard(session) == [m.Ack(2, ((1, 2),))] and session.credits == 2


def test_credits_of_what_was_seen_before_come_back_at_once() -> None:
    desk = Desk(credits=5)
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Message(1, 8, b"x"))
    desk.heard(session)
    desk.tell(session, m.Message(1, 8, b"x"))
    assert desk.heard(session) == [m.Ack(1)]


def test_nothing_is_acknowledged_before_its_commit() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Message(1, 1, b"x"), m.Message(1, 2, b"x"))
    assert not [p for f in desk.heard(session) if isinstance(f, m.Ack) for p in f.points]
    desk.commit(1)
    assert desk.heard(session) == [m.Ack(1, ((1, 1),))]


def test_a_commit_is_told_to_whoever_has_the_stream_now() -> None:
    desk = Desk()
    first = desk.session()
    desk.tell(first, m.Notify(1, "s", 0), m.Message(1, 5, b"x"))
    first.ended()
    second = desk.session()
    desk.tell(second, m.Notify(3, "s", 0))
    desk.heard(second)
    desk.commit()
    assert desk.heard(second) == [m.Ack(0, ((3, 5),))]


# ---- ends


def test_eos_frees_the_stream_when_all_is_committed_and_not_before() -> None:
    desk = Desk()
    first, second = desk.session(instance="a"), desk.session(instance="b")
    desk.tell(first, m.Notify(1, "s", 0), m.Message(1, 1, b"x"), m.Eos(1))
    desk.commit(1)
    desk.tell(second, m.Notify(1, "s", 0))
    assert m.NotifyAck(False, 1, 1) in desk.heard(second)
    desk.commit()
    assert first.stream_state(1) is ServerStream.ABSENT
    desk.tell(second, m.Notify(2, "s", 0))
    assert m.NotifyAck(True, 2, 1) in desk.heard(second)


def test_a_session_that_ends_frees_its_streams_at_once() -> None:
    desk = Desk()
    first, second = desk.session(), desk.session()
    desk.tell(first, m.Notify(1, "s", 0), m.Message(1, 1, b"x"))
    first.ended()
    desk.tell(second, m.Notify(1, "s", 0))
    assert m.NotifyAck(True, 1, None) in desk.heard(second)


def test_restart_is_a_last_word_with_an_address() -> None:
    desk = Desk()
    session = desk.session()
    desk.carry_out(session, session.restart("127.0.0.1:9"))
    assert desk.heard(session) == [m.Restart("127.0.0.1:9")] and session in desk.closed
    assert session.restart() == []


def test_both_ends_agree_on_credits_through_a_whole_conversation() -> None:
    desk = Desk(credits=50)
    client, server = session_pair(desk)

    def hear() -> None:
        for frame in desk.heard(server):
            client.receive(frame)

    desk.tell(server, client.notify(1, "s"))
    hear()
    for id in range(1, 40):
        client.push(1, 1, id)
        desk.tell(server, m.Message(1, id, b"x"))
        if id % 7 == 0:
            desk.commit()
        hear()
        assert client.credits == server.credits
    client.push(1, 1, None)
    desk.tell(server, m.Message(1, 0, b"", 5, WATERMARK_KEY), client.end(1))
    desk.commit()
    hear()
    assert client.credits == server.credits == 50 and client.streams[1].acknowledged == 39


# ---- declared watermarks


def test_a_watermark_is_stored_in_order_and_is_not_a_message() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Message(1, 1, b"x", 100), m.Message(1, 1, b"", 90, WATERMARK_KEY), m.Message(1, 2, b"y", 101))
    assert [(entry[1], entry[3]) for _, entry in desk.stored] == [(MESSAGE, 100), (WATERMARK, 90), (MESSAGE, 101)]


def test_a_watermark_counts_when_it_is_committed_and_never_goes_back() -> None:
    desk = Desk()
    session = desk.session()
    desk.tell(session, m.Notify(1, "s", 0), m.Message(1, 0, b"", 90, WATERMARK_KEY), m.Message(1, 0, b"", 70, WATERMARK_KEY))
    assert desk.streams.watermark((), None, 0)[0] is None
    desk.commit(1)
    assert desk.streams.watermark((), None, 0)[0] == 90
    desk.commit()
    assert desk.streams.watermark((), None, 0)[0] == 90


def streams(now: float = 0, **marks: Mark) -> Streams:
    return Streams(marks, marks, now)


def test_the_source_is_as_far_as_its_slowest_stream() -> None:
    found = streams(a=Mark("a", 1, 50), b=Mark("b", 1, 40))
    assert found.watermark((), None, 0) == (40, "stream 'b'")


def test_a_stream_of_which_nothing_is_declared_holds_the_watermark() -> None:
    found = streams(a=Mark("a", 1, 50), b=Mark("b", 1))
    assert found.watermark((), None, 0)[0] is None


def test_a_missing_stream_holds_the_watermark_and_one_that_is_not_declared_does_not() -> None:
    found = streams(a=Mark("a", 1, 50), b=Mark("b", 1, 10))
    assert found.watermark(("a", "c"), None, 0)[0] is None
    assert found.watermark(("a",), None, 0)[0] == 50


def test_a_stream_that_is_silent_for_long_holds_nothing_back() -> None:
    found = streams(a=Mark("a", 1, 50), b=Mark("b", 1, 10))
    stream = found.get("a")
    assert stream is not None
    stream.heard = 100.0
    assert found.watermark(("a", "b", "missing"), 30, 101)[0] == 50
    assert found.watermark(("a", "b", "missing"), None, 101)[0] is None
    assert found.watermark((), 30, 500)[0] == 50  # all are silent: the furthest


def test_a_stream_that_has_ended_holds_nothing_back_until_it_is_announced_again() -> None:
    found = streams(a=Mark("a", 1, 50), b=Mark("b", 1, 10, True))
    assert found.watermark((), None, 0)[0] == 50
    found.claim("b", object(), 0)
    assert found.watermark((), None, 0)[0] == 10
