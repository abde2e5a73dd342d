"""The sink's session without sockets: every state with every message, and what the effects are, in which order."""

from __future__ import annotations

import pytest
from sinkkit import Pair, pair

from millstream.connector.sink.outputs.memory import MemoryOutputs
from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.connector.sink.protocol.session import TABLE, Do, Ignored, SinkSession, SinkState, do
from millstream.connector.wire import messages as m
from millstream.connector.wire.messages import Close, Send
from millstream.errors import LocalProtocolError

HELLO = m.Hello(m.SINK_VERSION, "", "p", "w")


def in_state(state: SinkState, recovered: Recovered | None = None) -> SinkSession:
    """A session that got there by messages alone. In PREPARED, transaction `t` is open from 10 to 13."""
    session = SinkSession()
    recovered = recovered or Recovered(10, Open("t", 13) if state is SinkState.PREPARED else None, "s")
    if state is SinkState.CLOSED:
        session.failed("over")
    elif state is not SinkState.INITIAL:
        assert session.receive(HELLO) == [do("recover")]
        session.answer(recovered)
        if state is not SinkState.AWAIT_APPROVAL:
            session.receive(m.Notify(1, "w", 0))
    assert session.state is state
    return session


#: One message of each kind, such as an honest worker in READY would send it.
SAMPLES: dict[type[m.Frame], m.Frame] = {
    m.Hello: HELLO,
    m.Ok: m.Ok(5),
    m.Error: m.Error("oops"),
    m.Notify: m.Notify(1, "w", 0),
    m.NotifyAck: m.NotifyAck(True, 1, 0),
    m.Message: m.Message(1, 10, b"abc"),
    m.Ack: m.Ack(1),
    m.Restart: m.Restart(),
    m.Eos: m.Eos(1),
    m.ListUncommitted: m.ListUncommitted(3),
    m.ReplyUncommitted: m.ReplyUncommitted(3),
    m.Phase1: m.Phase1("t", ((1, 10, 10),)),
    m.Vote: m.Vote("t", True),
    m.Phase2: m.Phase2("t", True),
    m.WorkersLeft: m.WorkersLeft(3, ("x",)),
}

REFUSED = "refused"

#: What is to happen, written down once more and independently of the table: the next state, or REFUSED (ERROR and closed).
EXPECTED: dict[SinkState, dict[type[m.Frame], SinkState]] = {
    SinkState.INITIAL: {m.Hello: SinkState.INITIAL, m.Error: SinkState.CLOSED},  # HELLO waits for the answer to recover
    SinkState.AWAIT_APPROVAL: {m.Notify: SinkState.READY, m.Error: SinkState.CLOSED},
    SinkState.READY: {
        m.Notify: SinkState.READY,
        m.Message: SinkState.READY,
        m.Eos: SinkState.READY,
        m.ListUncommitted: SinkState.READY,
        m.Phase1: SinkState.PREPARED,
        m.Phase2: SinkState.READY,  # of a transaction that is not known
        m.WorkersLeft: SinkState.READY,
        m.Error: SinkState.CLOSED,
    },
    SinkState.PREPARED: {
        m.Notify: SinkState.PREPARED,
        m.Message: SinkState.PREPARED,
        m.Eos: SinkState.PREPARED,
        m.ListUncommitted: SinkState.PREPARED,
        m.Phase1: SinkState.PREPARED,
        m.Phase2: SinkState.READY,
        m.WorkersLeft: SinkState.PREPARED,
        m.Error: SinkState.CLOSED,
    },
    SinkState.CLOSED: dict.fromkeys(m.KINDS, SinkState.CLOSED),
}


@pytest.mark.parametrize("kind", m.KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", SinkState, ids=lambda state: state.value)
def test_every_message_in_every_state_has_a_defined_outcome(state: SinkState, kind: type[m.Frame]) -> None:
    session = in_state(state)
    effects = session.receive(SAMPLES[kind])
    expected = EXPECTED[state].get(kind, REFUSED)
    if expected == REFUSED:
        assert session.state is SinkState.CLOSED
        assert isinstance(effects[0], Send) and isinstance(effects[0].frame, m.Error) and effects[1:] == [Close()]
    else:
        assert session.state is expected
        assert not any(isinstance(effect, Send) and isinstance(effect.frame, m.Error) for effect in effects)
        assert (Close() in effects) == (expected is SinkState.CLOSED and state is not SinkState.CLOSED)


def test_every_cell_of_the_table_can_be_reached() -> None:
    reached = set()
    scripts: list[tuple[SinkState, m.Frame]] = [(state, SAMPLES[kind]) for state in SinkState for kind in m.KINDS]
    scripts += [(state, m.Phase2(txn, True)) for state in (SinkState.READY, SinkState.PREPARED) for txn in ("s", "never heard of")]
    scripts += [(SinkState.PREPARED, m.Phase2("t", False))]
    for state, message in scripts:
        session = in_state(state)
        steps: list[tuple[SinkState, type[m.Frame], str]] = []
        original = SinkSession._to

        def noted(self: SinkSession, kind: type[m.Frame], outcome: str) -> None:
            steps.append((self.state, kind, outcome))  # noqa: B023
            original(self, kind, outcome)  # noqa: B023

        SinkSession._to = noted  # type: ignore[method-assign]
        try:
            effects = session.receive(message)
            if effects and effects[-1] == do("recover"):
                session.answer(Recovered())
                for recovered in (Recovered(), Recovered(0, Open("t", 3))):
                    other = SinkSession()
                    other.receive(HELLO)
                    other.answer(recovered)
                    other.receive(m.Notify(1, "w", 0))
        finally:
            SinkSession._to = original  # type: ignore[method-assign]
        reached.update(steps)
    assert reached == {(state, kind, outcome) for state, row in TABLE.items() for kind, cell in row.items() for outcome in cell}


@pytest.mark.parametrize(
    ("state", "message", "says"),
    [
        (SinkState.INITIAL, m.Hello("0.0.1", "", "p", "w"), "version '0.0.1'"),
        (SinkState.INITIAL, m.Hello(m.SINK_VERSION, "guess", "p", "w"), "cookie is wrong"),
        (SinkState.INITIAL, m.Hello(m.SINK_VERSION, "", "p", ""), "needs a name"),
        (SinkState.INITIAL, m.Hello(m.SINK_VERSION, "", "p", "w" * 201), "too long"),
        (SinkState.AWAIT_APPROVAL, m.Notify(0, "w", 0), "stream 0"),
        (SinkState.AWAIT_APPROVAL, m.Notify(2, "w", 0), "stream 2"),
        (SinkState.AWAIT_APPROVAL, m.Message(1, 0, b"x"), "not expected"),
        (SinkState.READY, m.Message(2, 10, b"x"), "never announced"),
        (SinkState.READY, m.Eos(2), "never announced"),
        (SinkState.READY, HELLO, "not expected"),
        (SinkState.READY, m.Notify(2, "w", 0), "stream 2"),
        (SinkState.READY, m.Phase2("s", False), "is committed"),
        (SinkState.PREPARED, m.Phase2("s", False), "is committed"),
        (SinkState.PREPARED, m.Notify(0, "w", 0), "stream 0"),
        (SinkState.PREPARED, m.Message(2, 13, b"x"), "never announced"),
        (SinkState.PREPARED, m.Eos(2), "never announced"),
        (SinkState.READY, m.WorkersLeft(1, ("w",)), "still here"),
    ],
)
def test_what_the_content_makes_wrong_is_refused_with_the_reason(state: SinkState, message: m.Frame, says: str) -> None:
    session = in_state(state)
    send, close = session.receive(message)
    assert isinstance(send, Send) and isinstance(send.frame, m.Error) and says in send.frame.text
    assert close == Close() and session.state is SinkState.CLOSED


def test_nothing_is_sent_before_recovery_is_complete() -> None:
    session = SinkSession()
    assert session.receive(HELLO) == [do("recover")]
    with pytest.raises(LocalProtocolError):
        session.receive(m.Notify(1, "w", 0))
    (ok,) = session.answer(Recovered(10))
    assert isinstance(ok, Send) and isinstance(ok.frame, m.Ok) and ok.frame.credits >= 2
    assert session.receive(m.Notify(1, "w", 99)) == [Send(m.NotifyAck(True, 1, 10))]


def test_what_is_open_is_listed_and_its_bytes_count_as_held() -> None:
    session = SinkSession()
    session.receive(HELLO)
    session.answer(Recovered(10, Open("t", 13), "s"))
    assert session.receive(m.Notify(1, "w", 0)) == [Send(m.NotifyAck(True, 1, 13))]
    assert session.receive(m.ListUncommitted(9)) == [Send(m.ReplyUncommitted(9, ("t",)))]
    assert session.receive(m.Phase2("t", True)) == [do("commit", "t", 13)]
    assert session.receive(m.ListUncommitted(10)) == [Send(m.ReplyUncommitted(10, ()))]


def test_the_promise_is_durable_before_the_vote_and_phase_two_is_not_answered() -> None:
    session = in_state(SinkState.READY)
    assert session.receive(m.Message(1, 10, b"abc")) == [do("begin", 10), do("append", b"abc")]
    assert session.receive(m.Message(1, 13, b"de")) == [do("append", b"de")]
    assert session.receive(m.Phase1("u", ((1, 10, 15),))) == [do("prepare", "u", 10, 15), Send(m.Vote("u", True))]
    assert session.receive(m.Phase2("u", True)) == [do("commit", "u", 15)]
    assert session.receive(m.Message(1, 15, b"f")) == [do("begin", 15), do("append", b"f")]


def test_abort_cuts_to_the_last_commit_never_to_a_start_that_the_peer_sent() -> None:
    session = in_state(SinkState.READY)
    session.receive(m.Message(1, 10, b"abc"))
    veto, vote = session.receive(m.Phase1("u", ((1, 0, 13),)))
    assert isinstance(veto, Do) and veto.method == "veto" and vote == Send(m.Vote("u", False))
    assert session.receive(m.Phase2("u", False)) == [do("rollback", "u", 10)]


def test_a_repetition_is_compared_and_what_is_new_in_it_appended() -> None:
    session = in_state(SinkState.READY)
    session.receive(m.Message(1, 10, b"abc"))
    assert session.receive(m.Message(1, 9, b"9abcde")) == [do("same", 9, b"9abc")]
    with pytest.raises(LocalProtocolError):
        session.receive(m.ListUncommitted(1))
    assert session.answer(True) == [do("append", b"de")]
    assert session.receive(m.Message(1, 11, b"XX")) == [do("same", 11, b"XX")]
    assert session.answer(False) == []
    assert session.receive(m.Message(1, 15, b"f")) == []
    assert session.receive(m.Phase1("u", ((1, 10, 15),)))[-1] == Send(m.Vote("u", False))


def test_a_higher_fence_is_remembered_before_ok_and_a_lower_one_is_refused() -> None:
    session = SinkSession()
    session.receive(m.Hello(m.SINK_VERSION, "", "app fence=7", "w"))
    seal, ok = session.answer(Recovered(0, None, None, 6))
    assert seal == do("seal", 7) and isinstance(ok, Send) and isinstance(ok.frame, m.Ok)
    for program in ("app fence=5", "app"):
        late = SinkSession()
        late.receive(m.Hello(m.SINK_VERSION, "", program, "w"))
        refused, close = late.answer(Recovered(0, Open("t", 3), None, 6))
        assert isinstance(refused, Send) and isinstance(refused.frame, m.Error) and "fenced" in refused.frame.text and close == Close()


def test_an_answer_nobody_asked_for_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        in_state(SinkState.READY).answer(True)


def test_eos_is_acknowledged_with_what_was_received() -> None:
    session = in_state(SinkState.READY)
    session.receive(m.Message(1, 10, b"abc"))
    assert session.receive(m.Eos(1)) == [Send(m.Ack(0, ((1, 13),)))]
    session = in_state(SinkState.PREPARED)
    session.receive(m.Message(1, 13, b"de"))
    session.answer(True)
    assert session.receive(m.Eos(1)) == [Send(m.Ack(0, ((1, 15),)))]


def test_a_stream_that_is_announced_again_is_told_what_was_received() -> None:
    session = in_state(SinkState.READY)
    session.receive(m.Message(1, 10, b"abc"))
    assert session.receive(m.Notify(1, "w", 0)) == [Send(m.NotifyAck(True, 1, 13))]
    session.receive(m.Phase1("u", ((1, 10, 13),)))
    session.receive(m.Message(1, 13, b"de"))
    session.answer(True)
    assert session.receive(m.Notify(1, "w", 99)) == [Send(m.NotifyAck(True, 1, 15))]
    assert session.receive(m.Phase2("u", False)) == [do("rollback", "u", 10)]
    assert session.receive(m.Notify(1, "w", 0)) == [Send(m.NotifyAck(True, 1, 10))]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", [SinkState.READY, SinkState.PREPARED])
def test_phase_two_of_what_is_not_known_is_noted_and_ignored(state: SinkState, commit: bool) -> None:
    session = in_state(state)
    assert session.receive(m.Phase2("never heard of", commit)) == [Ignored("never heard of", commit, False)]
    assert session.receive(m.Phase2("s", True)) == [Ignored("s", True, True)]
    assert session.state is state
    assert session.receive(m.ListUncommitted(1)) == [Send(m.ReplyUncommitted(1, ("t",) if state is SinkState.PREPARED else ()))]


def test_bytes_between_the_phases_are_begun_behind_what_is_promised_and_stay_after_its_commit() -> None:
    session = in_state(SinkState.PREPARED)
    assert session.receive(m.Message(1, 13, b"de")) == [do("begin_next", 13)]
    assert session.answer(True) == [do("append", b"de")]
    assert session.receive(m.Message(1, 15, b"f")) == [do("append", b"f")]
    assert session.receive(m.Phase2("t", True)) == [do("commit", "t", 13)]
    assert session.receive(m.Message(1, 16, b"g")) == [do("append", b"g")]
    assert session.receive(m.Phase1("u", ((1, 13, 17),))) == [do("prepare", "u", 13, 17), Send(m.Vote("u", True))]
    assert session.receive(m.Message(1, 17, b"h")) == [do("begin_next", 17)]


def test_bytes_between_the_phases_go_with_a_rollback() -> None:
    session = in_state(SinkState.PREPARED)
    session.receive(m.Message(1, 13, b"de"))
    session.answer(True)
    assert session.receive(m.Phase2("t", False)) == [do("rollback", "t", 10)]
    assert session.receive(m.Message(1, 10, b"xyz")) == [do("begin", 10), do("append", b"xyz")]


def test_an_output_that_takes_nothing_between_the_phases_costs_the_next_transaction_and_no_byte() -> None:
    session = in_state(SinkState.PREPARED)
    assert session.receive(m.Message(1, 13, b"de")) == [do("begin_next", 13)]
    assert session.answer(False) == []
    assert session.receive(m.Message(1, 15, b"f")) == []
    assert session.receive(m.Phase2("t", True)) == [do("commit", "t", 13)]
    veto, vote = session.receive(m.Phase1("u", ((1, 13, 16),)))
    assert isinstance(veto, Do) and veto.method == "veto" and "between the phases" in veto.args[1] and vote == Send(m.Vote("u", False))
    session.receive(m.Phase2("u", False))
    assert session.receive(m.Message(1, 13, b"def")) == [do("begin", 13), do("append", b"def")]


def test_a_repetition_between_the_phases_is_compared_and_what_is_new_in_it_begins_the_next_transaction() -> None:
    session = in_state(SinkState.PREPARED)
    assert session.receive(m.Message(1, 11, b"bcde")) == [do("same", 11, b"bc")]
    assert session.answer(True) == [do("begin_next", 13)]
    assert session.answer(True) == [do("append", b"de")]


def test_the_pair_commits_what_was_written_and_nothing_else() -> None:
    outputs = MemoryOutputs()
    both = pair(outputs)
    both.write(b"one\n")
    assert outputs.committed("w") == b""
    assert both.prepare("t1") and outputs.committed("w") == b""
    both.finish("t1", True)
    assert outputs.committed("w") == b"one\n"
    both.write(b"gone\n")
    assert both.prepare("t2")
    both.finish("t2", False)
    both.write(b"two\n")
    assert both.prepare("t2")
    both.finish("t2", True)
    assert outputs.committed("w") == b"one\ntwo\n" and not both.closed


def test_the_pair_resolves_in_a_second_connection_what_the_first_one_prepared() -> None:
    outputs = MemoryOutputs()
    first = pair(outputs)
    first.write(b"one\n")
    assert first.prepare("t1")
    second = pair(outputs)
    assert second.worker.uncommitted == ("t1",) and second.worker.offset == 4
    second.finish("t1", True)
    assert outputs.committed("w") == b"one\n"
    third = pair(outputs)
    assert third.worker.uncommitted == () and third.worker.offset == 4


def test_the_pair_drops_what_was_not_prepared() -> None:
    outputs = MemoryOutputs()
    pair(outputs).write(b"lost\n")
    assert pair(outputs).worker.offset == 0


def test_the_pair_sees_a_gap_votes_no_and_lists_the_transaction_until_it_is_rolled_back() -> None:
    outputs = MemoryOutputs()
    first = pair(outputs)
    first.worker.write(5)  # produced while nobody listened
    first.write(b"after the gap\n")
    assert not first.prepare("t1")
    second = pair(outputs)
    assert second.worker.uncommitted == ("t1",)
    second.say(m.Phase2("t1", True))
    assert second.closed and isinstance(second.heard[-1], m.Error)
    third = pair(outputs)
    third.finish("t1", False)
    fourth = pair(outputs)
    assert fourth.worker.uncommitted == () and fourth.worker.offset == 0
    fourth.write(b"again\n")
    assert fourth.prepare("t1")


def test_a_failing_output_ends_the_session_and_no_vote_is_sent() -> None:
    outputs = MemoryOutputs()
    both = Pair(outputs("w"), "w").connect()
    both.write(b"x")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    both.runner.output.prepare = full  # type: ignore[method-assign]
    both.say(*both.worker.prepare("t"))
    assert both.closed and not any(isinstance(frame, m.Vote) for frame in both.heard)
    assert isinstance(both.heard[-1], m.Error) and "no space left" in both.heard[-1].text


@pytest.mark.parametrize("commit", [True, False])
def test_the_pair_keeps_what_came_between_the_phases_if_and_only_if_it_commits(commit: bool) -> None:
    outputs = MemoryOutputs()
    both = pair(outputs)
    both.write(b"one\n")
    assert both.prepare("t1")
    both.tell(m.Message(1, 4, b"two\n"))
    if commit:
        heard = both.tell(m.Phase2("t1", True), m.Message(1, 8, b"three\n"), m.Phase1("t2", ((1, 4, 14),)), m.Phase2("t2", True))
    else:
        heard = both.tell(m.Phase2("t1", False), m.Message(1, 0, b"ONE\nTWO\n"), m.Phase1("t2", ((1, 0, 8),)), m.Phase2("t2", True))
    assert heard == [m.Vote("t2", True)]
    assert outputs.committed("w") == (b"one\ntwo\nthree\n" if commit else b"ONE\nTWO\n")


def test_the_pair_drops_what_came_between_the_phases_with_the_connection() -> None:
    outputs = MemoryOutputs()
    first = pair(outputs)
    first.write(b"one\n")
    assert first.prepare("t1")
    first.tell(m.Message(1, 4, b"two\n"))
    second = pair(outputs)
    assert (second.worker.uncommitted, second.worker.offset) == (("t1",), 4)
    second.finish("t1", True)
    assert outputs.committed("w") == b"one\n" and pair(outputs).worker.offset == 4


def test_what_the_lane_counts() -> None:
    both = pair(MemoryOutputs())
    both.write(b"abc")
    both.tell(m.Notify(1, "w", 0), m.Eos(1), m.Phase2("never heard of", True), m.Phase2("never heard of", False))
    both.tell(m.Phase1("t", ((1, 0, 3),)), m.Message(1, 3, b"d"), m.Message(1, 4, b"ef"), m.Notify(1, "w", 0), m.Eos(1))
    both.tell(m.Phase2("t", True), m.Phase2("t", True), m.Phase1("u", ((1, 0, 6),)), m.Phase2("u", False))
    found = both.runner.stats
    assert (found.messages, found.messages_between_phases, found.bytes) == (3, 2, 6)
    assert (found.votes_yes, found.votes_no, found.commits, found.rollbacks) == (1, 1, 1, 1)
    assert (found.repeated_notifies, found.ends, found.repeated_commits, found.unknown_phase_twos) == (2, 2, 1, 2)
