"""Points of reference: the ledger, rule by rule, and against a twin that keeps all bytes and every vote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connector.sink.protocol.ledger import Ledger, Open, Recovered
from millstream.connector.wire.messages import Phase1, Phase2
from millstream.errors import RemoteProtocolError


def ledger(committed: int = 10, received: int = 25) -> Ledger:
    made = Ledger(Recovered(committed, None, "before"))
    made.appended(received - committed)
    return made


def whole(book: Ledger, txn: str = "t") -> Phase1:
    return Phase1(txn, ((1, book.committed, book.received),))


def test_bytes_at_the_received_offset_are_appended() -> None:
    assert ledger().held(25) == 0


def test_bytes_below_it_are_compared_and_equal_ones_do_no_harm() -> None:
    book = ledger()
    assert book.held(12) == 13
    book.compared(True, 12)
    assert book.vote(whole(book)).veto is None


def test_other_bytes_in_the_same_place_veto() -> None:
    book = ledger()
    book.compared(False, 12)
    assert "not the same" in (book.vote(whole(book)).veto or "")


def test_a_gap_vetoes_and_everything_after_it_is_dropped() -> None:
    book = ledger()
    assert book.held(26) is None
    assert [book.held(offset) for offset in (25, 12, 30)] == [None] * 3
    assert book.received == 25 and "25 to 26 never came" in (book.vote(whole(book)).veto or "")


def test_a_rollback_cuts_to_the_committed_offset_and_lifts_the_veto() -> None:
    book = ledger()
    book.held(99)
    book.vote(Phase1("t", ((1, 0, 25),)))
    assert book.resolve(Phase2("t", False)) == "rolled back"
    assert (book.committed, book.received, book.veto, book.held(10)) == (10, 10, None, 0)


@pytest.mark.parametrize(
    "ranges",
    [
        (),
        ((1, 10, 25), (1, 10, 25)),
        ((2, 10, 25),),
        ((0, 10, 25),),
        ((1, 0, 25),),
        ((1, 11, 25),),
        ((1, 10, 24),),
        ((1, 10, 26),),
        ((1, 25, 10),),
    ],
)
def test_the_vote_on_any_other_range_is_no(ranges: tuple[tuple[int, int, int], ...]) -> None:
    assert ledger().vote(Phase1("t", ranges)).veto is not None


def test_the_vote_on_the_whole_range_is_yes_also_if_it_is_empty() -> None:
    assert ledger().vote(Phase1("t", ((1, 10, 25),))).veto is None
    assert ledger(10, 10).vote(Phase1("t", ((1, 10, 10),))).veto is None


def test_the_vote_on_a_second_transaction_is_no_and_leaves_the_first_open() -> None:
    book = ledger()
    book.vote(whole(book, "first"))
    assert "still open" in (book.vote(whole(book, "second")).veto or "")
    assert book.open == Open("first", 25)
    assert book.resolve(Phase2("first", True)) == "committed"


def test_to_be_asked_again_does_not_change_the_promise() -> None:
    book = ledger()
    assert book.vote(whole(book)) == book.vote(whole(book)) == Open("t", 25)
    assert book.vote(Phase1("t", ())).veto is not None and book.open == Open("t", 25)


def test_a_vetoed_transaction_stays_open_across_restarts_and_can_only_be_rolled_back() -> None:
    book = Ledger(Recovered(10, Open("t", 10, "a gap"), "before"))
    assert book.vote(whole(book)).veto == "a gap"
    with pytest.raises(RemoteProtocolError, match="voted down"):
        book.resolve(Phase2("t", True))
    assert book.resolve(Phase2("t", False)) == "rolled back"


def test_a_promise_survives_a_restart_with_its_bytes() -> None:
    book = Ledger(Recovered(10, Open("t", 25), "before"))
    assert book.received == 25 and book.resolve(Phase2("t", True)) == "committed"
    assert (book.committed, book.last) == (25, "t")


def test_phase_two_may_be_repeated() -> None:
    book = ledger()
    assert book.resolve(Phase2("before", True)) == "known already"
    assert (book.committed, book.received) == (10, 25)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_phase_two_of_what_is_not_known_does_nothing(commit: bool, opened: bool) -> None:
    book = ledger()
    if opened:
        book.vote(whole(book))
    assert book.resolve(Phase2("never heard of", commit)) == "unknown"
    assert (book.committed, book.received, book.last, book.open) == (10, 25, "before", Open("t", 25) if opened else None)


def test_what_is_committed_cannot_be_rolled_back() -> None:
    with pytest.raises(RemoteProtocolError, match="is committed"):
        ledger().resolve(Phase2("before", False))


def between(size: int = 5) -> Ledger:
    """Bytes 10 to 25 are promised to `t`, and so many have come behind them."""
    book = ledger()
    book.vote(whole(book))
    assert book.held(25) == 0
    book.appended(size)
    return book


def test_what_comes_between_the_phases_is_of_the_next_transaction() -> None:
    book = between()
    assert book.resolve(Phase2("t", True)) == "committed"
    assert (book.committed, book.received) == (25, 30)
    assert book.vote(Phase1("u", ((1, 25, 30),))) == Open("u", 30)


def test_what_came_between_the_phases_goes_with_a_rollback() -> None:
    book = between()
    assert book.resolve(Phase2("t", False)) == "rolled back"
    assert (book.committed, book.received, book.held(10), book.held(30)) == (10, 10, 0, None)


@pytest.mark.parametrize("spoil", [lambda book: book.held(31), lambda book: book.compared(False, 12), lambda book: book.refused()])
def test_what_is_wrong_between_the_phases_vetoes_the_next_transaction_and_not_the_promise(spoil: Callable[[Ledger], object]) -> None:
    book = between()
    spoil(book)
    assert book.vote(Phase1("t", ((1, 10, 25),))).veto is None
    assert book.resolve(Phase2("t", True)) == "committed"
    assert book.held(30) is None
    assert book.vote(Phase1("u", ((1, 25, 30),))).veto is not None
    assert book.resolve(Phase2("u", False)) == "rolled back"
    assert (book.committed, book.received, book.held(25)) == (25, 25, 0)


def test_behind_a_transaction_that_was_voted_down_everything_is_dropped() -> None:
    book = ledger()
    book.vote(Phase1("t", ()))
    assert [book.held(offset) for offset in (10, 25, 99)] == [None] * 3 and book.received == 25
    book.resolve(Phase2("t", False))
    assert book.held(10) == 0


def test_to_be_asked_again_with_bytes_behind_it_does_not_change_the_promise() -> None:
    book = between()
    assert book.vote(Phase1("t", ((1, 10, 25),))) == Open("t", 25)
    assert book.vote(Phase1("t", ((1, 10, 30),))).veto is not None and book.open == Open("t", 25)


def test_a_name_is_committed_once() -> None:
    book = ledger()
    assert "already committed" in (book.vote(whole(book, "before")).veto or "")


steps = st.one_of(
    st.tuples(st.just("bytes"), st.integers(0, 12), st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("phase1"), st.sampled_from("ab"), st.tuples(st.integers(0, 8), st.integers(0, 12))),
    st.tuples(st.just("honest"), st.sampled_from("ab"), st.none()),
    st.tuples(st.just("phase2"), st.sampled_from("ab"), st.booleans()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@given(st.lists(steps, max_size=30))
def test_twin_that_keeps_everything_agrees(script: list[tuple[str, object, object]]) -> None:
    """The twin holds the bytes themselves, and votes by looking at what the worker would have to have sent."""
    book = Ledger(Recovered())
    done, promised, tail, spoilt = (
        b"",
        b"",
        b"",
        False,
    )  # committed; of the open transaction; behind both; does the tail miss or contradict something?
    waits: tuple[str, bool] | None = None
    last = None
    for kind, first, second in script:
        held = done + promised + tail
        if kind == "bytes":
            assert isinstance(first, int) and isinstance(second, bytes)
            place = book.held(first)
            if place:
                equal = held[first : first + len(second)] == second[: len(held) - first]
                book.compared(equal, first)
                if equal:
                    book.appended(max(0, first + len(second) - len(held)))
            elif place == 0:
                book.appended(len(second))
            if not spoilt and (waits is None or waits[1]):
                if first > len(held) or held[first : first + len(second)] != second[: max(0, len(held) - first)]:
                    spoilt = True
                else:
                    tail += second[len(held) - first :]
        elif kind in ("phase1", "honest"):
            start, end = (len(done), len(held)) if second is None else second  # type: ignore[misc]
            vote = book.vote(Phase1(str(first), ((1, start, end),))).veto is None
            if waits is None:
                assert vote == (not spoilt and (start, end) == (len(done), len(held)) and first != last)
                waits = (str(first), vote)
                if vote:
                    promised, tail = tail, b""
            else:
                assert vote == (waits == (first, True) and (start, end) == (len(done), len(done + promised)))
        elif kind == "phase2":
            told = Phase2(str(first), bool(second))
            if waits is not None and waits[0] == first and (waits[1] or not second):
                assert book.resolve(told) == ("committed" if second else "rolled back")
                if second:
                    done, last = done + promised, first
                else:
                    tail, spoilt = b"", False
                promised, waits = b"", None
            elif (waits is not None and waits[0] == first) or (first == last and not second):
                with pytest.raises(RemoteProtocolError):
                    book.resolve(told)
            else:
                assert book.resolve(told) == ("known already" if first == last else "unknown")
        elif kind == "restart":
            tail, spoilt = b"", False
            book = Ledger(Recovered(len(done), book.open, book.last))
        assert (book.committed, book.received) == (len(done), len(done + promised + tail))
