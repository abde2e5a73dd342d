"""A stream as its pusher keeps it: what a lost connection takes back, and against a model that keeps one list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.connector.source.protocol.outgoing import Outgoing
from millstream.connector.wire.codec import decode, message_head
from millstream.connector.wire.messages import Message


def frame(id: int) -> bytes:
    return message_head(1, id, 1) + b"x"


def told(acknowledged: bool) -> Outgoing:
    """A stream whose message 5 and whose end were sent."""
    stream = Outgoing("s", 1)
    stream.push(5, frame(5))
    stream.accepted(None)
    stream.take([], 9, 999)
    stream.has_ended = stream.is_told = True
    if acknowledged:
        stream.acknowledge(5)
    return stream


def test_a_lost_connection_takes_the_end_back_unless_all_is_acknowledged() -> None:
    stream = told(acknowledged=False)
    stream.lost()
    assert stream.waits and not stream.is_told and [item.id for item in stream.unsent] == [5]
    stream.take([], 9, 999)
    assert stream.is_ready_to_end
    stream = told(acknowledged=True)
    stream.lost()
    assert stream.is_told and not stream.waits, "it may be somebody else's by now"


def test_a_guard_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative twin: if a lost connection did not take EOS back, a stream would be over whose messages are not."""
    lost = Outgoing.lost

    def keeps_the_end(self: Outgoing) -> int:
        was_told, found = self.is_told, lost(self)
        self.is_told = was_told
        return found

    monkeypatch.setattr(Outgoing, "lost", keeps_the_end)
    stream = told(acknowledged=False)
    stream.lost()
    stream.take([], 9, 999)
    assert not stream.is_ready_to_end, "nobody would send the end again"


def test_how_long_it_is_refused_counts_from_the_first_time() -> None:
    stream = Outgoing("s", 1)
    assert stream.refused(10.0, 0.3) == 0 and stream.ask_at == 10.3
    stream.lost()
    assert stream.ask_at == 0 and stream.refused(14.0, 0.3) == 4
    stream.accepted(None)
    stream.lost()
    assert stream.refused(20.0, 0.3) == 0


def test_the_latest_watermark_is_said_again_behind_everything_and_once() -> None:
    stream = Outgoing("s", 1)
    stream.accepted(None)
    stream.push(1, frame(1))
    stream.declare(10)
    stream.push(2, frame(2))
    stream.take([], 9, 999)
    for _ in range(3):
        stream.lost()
    assert [(item.id, item.is_message) for item in stream.unsent] == [(1, True), (2, True), (2, False)]
    assert stream.declare(10) == 0 and stream.declare(9) == 0


# ---- against a model


class Model:
    """Everything that was ever queued, in one list; and a server that remembers what it has seen."""

    def __init__(self) -> None:
        self.queued: list[int] = []
        self.declared: int | None = None
        self.seen: list[int] = []  # by the server, each id once
        self.heard: int | None = None  # the watermark that this connection has brought
        self.sent = self.acknowledged = -1  # on this connection; committed
        self.eos = False


STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 3)),
    st.tuples(st.just("declare"), st.integers(0, 50)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("acknowledge"), st.integers(0, 100)),
    st.tuples(st.sampled_from(["lost", "end"]), st.just(0)),
)


@settings(max_examples=some(400), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_each_message_arrives_once_in_order_and_the_end_behind_it(steps: list[tuple[str, int]]) -> None:
    stream, model, kept = Outgoing("s", 1), Model(), 0

    def take(most: int) -> None:
        nonlocal kept
        if stream.is_told:
            return
        parts: list[bytes] = []
        count, size, _, forgotten = stream.take(parts, most, 999)
        kept -= forgotten
        assert count == len(parts) and size == sum(map(len, parts))
        for part in parts:
            message = decode(part[4:], two_phase=False)
            assert isinstance(message, Message)
            if not message.payload:
                assert message.event_time <= (model.declared or 0)
                model.heard = max(model.heard or 0, message.event_time)
                continue
            assert message.id > model.sent and message.id > model.acknowledged, (
                "ids increase on a connection, and nothing committed is sent"
            )
            model.sent = message.id
            if message.id not in model.seen:
                model.seen.append(message.id)
        if stream.is_ready_to_end:
            stream.is_told = model.eos = True

    def lost() -> None:
        nonlocal kept
        was_over = stream.is_told and not stream.unacknowledged
        kept += stream.lost()
        if not was_over:
            model.eos, model.sent, model.heard = False, -1, None
            kept -= stream.accepted(model.acknowledged if model.acknowledged >= 0 else None)

    kept -= stream.accepted(None)
    for step, number in steps:
        if step == "push" and not stream.has_ended:
            model.queued.append(stream.last + number)
            kept += stream.push(stream.last + number, frame(stream.last + number))
        elif step == "declare" and not stream.has_ended:
            kept += stream.declare(number)
            model.declared = stream.declared
        elif step == "take":
            take(number)
        elif step == "acknowledge" and model.seen:
            model.acknowledged = max(model.acknowledged, model.seen[number % len(model.seen)])
            kept -= stream.acknowledge(model.acknowledged)
        elif step == "lost":
            lost()
        elif step == "end" and not stream.has_ended:
            stream.has_ended = True
        waiting = [item.id for item in (*stream.unacknowledged, *stream.unsent) if item.is_message]
        assert waiting == [id for id in model.queued if id > model.acknowledged]
        assert kept == sum(len(item.frame) for item in (*stream.unacknowledged, *stream.unsent))
        assert stream.waits == (bool(waiting) or (stream.has_ended and not model.eos))
    while stream.unsent or stream.is_ready_to_end:
        take(3)
    assert model.seen == model.queued and model.eos == stream.has_ended
    assert model.heard == model.declared or stream.is_told
    kept -= stream.acknowledge(model.queued[-1]) if model.queued else 0
    assert kept == 0 and not stream.waits
