"""Generations and attempts: the tables of core/membership.py row by row, and both machines beside dumb models under anything that may happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.core.membership import LOSS_WINDOW, MOST_LOSSES, Attempt, Inbox, Roster, Seated


def who(seat: int, id: int = 0) -> Seated:
    return Seated(seat, id, "host", 100 + id)


def full(seats: int = 2) -> Roster:
    roster = Roster(seats)
    for seat in range(seats):
        assert roster.hello(who(seat, seat)) is None
    return roster


# --- the driver's table, row by row


def test_a_hello_fills_an_empty_seat_and_the_last_one_begins_a_generation() -> None:
    roster = Roster(2)
    assert roster.hello(who(1, 1)) is None
    assert (roster.missing, roster.is_complete, roster.generation) == ([0], False, 0)
    assert roster.hello(who(0, 2)) is None
    assert (roster.missing, roster.is_complete, roster.generation) == ([], True, 1)
    assert roster.members == [who(0, 2), who(1, 1)]
    with pytest.raises(ValueError, match="there is no seat 2: there are 2"):
        roster.hello(who(2, 3))


def test_a_hello_for_a_taken_seat_sends_away_who_sat_there() -> None:
    roster = Roster(2)
    roster.hello(who(0, 1))
    assert roster.hello(who(0, 2)) == who(0, 1) and roster.generation == 0, "some seat is empty: no generation"
    roster.hello(who(1, 3))
    attempt = roster.begin()
    assert roster.hello(who(0, 4)) == who(0, 2)
    assert roster.generation == 2 and not roster.is_current(attempt)
    assert roster.losses == 0, "a seat that is taken over is no loss"


def test_a_loss_empties_the_seat_and_ends_the_attempt() -> None:
    roster = full()
    attempt = roster.begin()
    assert roster.answer(who(0, 0), attempt, "a") and roster.lost(who(1, 1), 0.0, "killed")
    assert (roster.missing, roster.losses, roster.answers) == ([1], 1, None)
    assert not roster.is_current(attempt) and not roster.answer(who(0, 0), attempt, "late")
    assert roster.last_losses == ["task 1 on host (process 101): killed"]
    assert roster.lost(who(0, 0), 0.0) and roster.missing == [0, 1] and roster.losses == 2, "while some seat is empty, too"


def test_somebody_who_was_told_to_go_is_no_loss() -> None:
    roster = full()
    roster.hello(who(0, 7))
    attempt = roster.begin()
    assert not roster.lost(who(0, 0), 0.0) and not roster.lost(who(1, 9), 0.0)
    assert roster.is_current(attempt) and roster.losses == 0


def test_who_goes_as_planned_is_no_loss() -> None:
    roster = full()
    attempt = roster.begin()
    roster.leave(who(0, 9))
    assert roster.is_current(attempt), "that was somebody else"
    roster.leave(who(0, 0))
    assert (roster.missing, roster.losses) == ([0], 0) and not roster.is_current(attempt)
    assert not roster.lost(who(0, 0), 0.0)


def test_somebody_cannot_reach_somebody() -> None:
    roster = full()
    attempt = roster.begin()
    roster.renew(0.0, "no way", [1])
    assert (roster.generation, roster.losses, roster.last_losses) == (2, 1, ["no way"]) and not roster.is_current(attempt)
    roster.lost(who(0, 0), 0.0)
    roster.renew(0.0, "no way")
    assert (roster.generation, roster.losses) == (2, 2), "with an empty seat nothing happens: it will be a new generation anyway"


def test_a_death_that_peers_notice_first_is_counted_once() -> None:
    roster = full()
    roster.begin()
    roster.renew(0.0, "no way", [1])
    assert roster.lost(who(1, 1), 0.0) and roster.losses == 1
    roster.hello(who(1, 5))
    roster.renew(0.0, "no way", [1])
    assert roster.answer(who(1, 5), roster.begin(), "here I am")
    assert roster.lost(who(1, 5), 0.0) and roster.losses == 3, "it had answered since: this is another loss"


def test_an_attempt_needs_all_seats_and_gets_the_next_number() -> None:
    roster = Roster(1)
    with pytest.raises(ValueError, match=r"seats \[0\] are empty"):
        roster.begin()
    roster.hello(who(0, 0))
    assert [roster.begin(), roster.begin()] == [Attempt(1, 1), Attempt(1, 2)]
    roster.hello(who(0, 1))
    assert roster.begin() == roster.attempt == Attempt(2, 3)


def test_an_answer_counts_once_per_seat_and_only_to_the_attempt_at_work() -> None:
    roster = full()
    old = roster.begin()
    assert roster.answer(who(0, 0), old, "old")
    attempt = roster.begin()
    assert not roster.answer(who(1, 1), old, "late") and roster.answers is None
    assert roster.answer(who(1, 1), attempt, "b") and not roster.answer(who(1, 1), attempt, "b again")
    assert not roster.answer(who(0, 9), attempt, "a stranger's") and roster.answers is None
    assert roster.answer(who(0, 0), attempt, "a") and roster.answers == ["a", "b"]


def test_too_many_losses_are_those_within_the_window() -> None:
    roster = Roster(1)
    for number in range(MOST_LOSSES + 1):
        assert roster.too_many(number) == []
        roster.hello(who(0, number))
        roster.lost(who(0, number), number, "gone")
    assert len(roster.too_many(MOST_LOSSES)) == MOST_LOSSES + 1
    assert roster.too_many(LOSS_WINDOW) == [], "the first of them is forgotten"


# --- a task's table, row by row

OLD, NOW, NEXT = Attempt(1, 4), Attempt(2, 5), Attempt(2, 6)


def at_work() -> Inbox:
    inbox = Inbox(2)
    inbox.begin(NOW)
    return inbox


def test_a_frame_of_an_older_attempt_is_dropped() -> None:
    inbox = Inbox(2)
    assert inbox.put(0, OLD, 1, "came before the order")
    inbox.begin(NOW)
    assert not inbox.put(1, OLD, 1, "came after it") and not inbox.put(1, Attempt(1, 99), 1, "another generation")
    assert inbox.missing(1) == [0, 1] and list(inbox.take(1)) == []


def test_a_level_is_complete_when_every_seat_has_sent() -> None:
    inbox = at_work()
    assert inbox.put(1, NOW, 1, "b") and not inbox.is_complete(1) and inbox.missing(1) == [0]
    assert inbox.put(0, NOW, 2, "of another level") and not inbox.is_complete(1)
    assert inbox.put(0, NOW, 1, "a") and inbox.is_complete(1)
    assert list(inbox.take(1)) == ["a", "b"]


def test_a_frame_of_a_newer_attempt_waits() -> None:
    inbox = at_work()
    assert inbox.put(0, NEXT, 0, "early") and inbox.missing(0) == [0, 1]
    inbox.begin(NEXT)
    assert inbox.missing(0) == [1] and inbox.attempt == NEXT
    with pytest.raises(ValueError, match="is older than"):
        inbox.begin(NOW)


def test_a_frame_counts_once_also_after_it_was_taken() -> None:
    inbox = Inbox(1)
    inbox.begin(NOW)
    assert inbox.put(0, NOW, 0, "first") and not inbox.put(0, NOW, 0, "again")
    assert list(inbox.take(0)) == ["first"]
    assert not inbox.put(0, NOW, 0, "and again") and list(inbox.take(0)) == []
    assert not inbox.put(1, NOW, 1, "from a seat that does not exist") and not inbox.is_complete(1)


def test_negative_twin_an_inbox_that_looks_at_no_attempt_mixes_two() -> None:
    for came_before in (True, False):
        inbox = Inbox(2, trusting=True)
        inbox.begin(OLD)
        if came_before:
            inbox.put(0, OLD, 1, "old")
        inbox.begin(NOW)
        inbox.put(0, OLD, 1, "old")
        inbox.put(0, NOW, 1, "new")
        inbox.put(1, NOW, 1, "new")
        assert list(inbox.take(1)) == ["old", "new"]


# --- beside dumb models


class RosterModel:
    """A flag that says whether the attempt is still on, in the place of generations that are compared."""

    def __init__(self, seats: int) -> None:
        self.seats: list[Seated | None] = [None] * seats
        self.generations = self.attempts = self.losses = 0
        self.on = False
        self.answers: dict[int, Any] = {}
        self.missed: list[int] = []

    def full(self) -> bool:
        return None not in self.seats

    def hello(self, one: Seated) -> Seated | None:
        before, self.seats[one.seat], self.on = self.seats[one.seat], one, False
        self.generations += self.full()
        return before

    def lost(self, one: Seated) -> bool:
        there = self.leave(one)
        self.losses += there and one.id not in self.missed
        return there

    def leave(self, one: Seated) -> bool:
        there = self.seats[one.seat] == one
        if there:
            self.seats[one.seat], self.on = None, False
        return there

    def renew(self, missed: list[int]) -> None:
        if self.full():
            self.missed += [one.id for seat in missed if (one := self.seats[seat]) is not None]
            self.on = False
            self.generations += 1
            self.losses += 1

    def begin(self) -> None:
        self.attempts, self.on, self.answers = self.attempts + 1, True, {}

    def answer(self, one: Seated, number: int, what: Any) -> bool:
        counts = self.on and number == self.attempts and self.seats[one.seat] == one and one.seat not in self.answers
        if counts:
            self.answers[one.seat] = what
            self.missed = [id for id in self.missed if id != one.id]
        return counts


seats_and_ids = st.tuples(st.integers(0, 2), st.integers(0, 4))
roster_events = st.lists(
    st.one_of(
        st.tuples(st.just("hello"), st.integers(0, 2)),
        st.tuples(st.just("lost"), seats_and_ids),
        st.tuples(st.just("leave"), seats_and_ids),
        st.tuples(st.just("renew"), st.lists(st.integers(0, 2), max_size=2)),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("answer"), st.tuples(seats_and_ids, st.integers(0, 2))),
    ),
    max_size=60,
)


@settings(max_examples=some(300), deadline=None)
@given(roster_events, st.integers(1, 3))
def test_a_roster_does_what_a_flag_would_do(events: list[tuple[str, Any]], seats: int) -> None:
    roster, model = Roster(seats), RosterModel(seats)
    sat: list[Seated] = []
    made: list[Attempt] = [Attempt()]
    for what, how in [*(("hello", seat) for seat in range(seats)), *events]:
        if what == "hello":
            sat.append(who(how % seats, len(sat)))
            assert roster.hello(sat[-1]) == model.hello(sat[-1])
        elif what in ("lost", "leave"):
            one = sat[-1 - how[1] % len(sat)] if how[1] else Seated(how[0] % seats, -1)  # who sat down lately, or a stranger
            if what == "lost":
                assert roster.lost(one, 0.0) == model.lost(one)
            else:
                roster.leave(one)
                model.leave(one)
        elif what == "renew":
            missed = [seat % seats for seat in how]
            roster.renew(0.0, "", missed)
            model.renew(missed)
        elif what == "begin" and model.full():
            made.append(roster.begin())
            model.begin()
            assert made[-1] > made[-2], "the younger is the greater"
        elif what == "answer":
            (seat, back), older = how
            one = sat[-1 - back % len(sat)] if back else Seated(seat % seats, -1)
            attempt = made[max(0, len(made) - 1 - older)]
            assert roster.answer(one, attempt, one.id) == model.answer(one, attempt.number, one.id)
        assert roster.members == [one for one in model.seats if one is not None]
        assert (roster.generation, roster.losses, roster.is_complete) == (model.generations, model.losses, model.full())
        assert roster.is_current(made[-1]) == (model.on and len(made) > 1)
        if model.on:
            assert roster.answers == ([model.answers[seat] for seat in range(seats)] if len(model.answers) == seats else None)
        else:
            assert roster.answers is None


frames = st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 2))  # sender, how many attempts from the one at work, level
inbox_events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), frames),
        st.tuples(st.just("put"), frames),
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 2)),
    ),
    max_size=80,
)


def compared(events: list[tuple[str, Any]], seats: int, inbox: Inbox) -> None:
    """The model keeps every frame that ever came, and looks all of them through."""
    attempts = [Attempt(1 + at // 3, at) for at in range(200)]
    at, came, taken = 2, list[tuple[int, int, int, int]](), set[tuple[int, int]]()

    def there(level: int) -> dict[int, int]:
        if (at, level) in taken:
            return {}
        return {frame[0]: frame[3] for frame in reversed(came) if frame[1:3] == (at, level) and frame[0] < seats}

    inbox.begin(attempts[at])
    for number, (what, how) in enumerate(events):
        if what == "put":
            sender, shift, level = how
            attempt = at + shift
            known = any(frame[:3] == (sender, attempt, level) for frame in came)
            kept = attempt >= at and sender < seats and not known and (attempt, level) not in taken
            came.append((sender, attempt, level, number))
            assert inbox.put(sender, attempts[attempt], level, number) == kept
        elif what == "begin":
            at += 1 + how
            inbox.begin(attempts[at])
        else:
            found = there(how)
            assert list(inbox.take(how)) == [found[sender] for sender in sorted(found)]
            taken.add((at, how))
        for level in range(3):
            found = there(level)
            assert inbox.missing(level) == [seat for seat in range(seats) if seat not in found]
            assert inbox.is_complete(level) == (len(found) == seats)


@settings(max_examples=some(300), deadline=None)
@given(inbox_events, st.integers(1, 3))
def test_an_inbox_does_what_looking_through_all_frames_would_do(events: list[tuple[str, Any]], seats: int) -> None:
    compared(events, seats, Inbox(seats))


def test_negative_twin_the_model_tells_a_trusting_inbox() -> None:
    with pytest.raises(AssertionError):
        compared([("put", (0, -1, 0))], 2, Inbox(2, trusting=True))


def test_a_host_that_takes_all_its_tasks_along_is_one_accident() -> None:
    seats = 3 * MOST_LOSSES
    roster = Roster(seats)
    for at in range(MOST_LOSSES + 1):
        assert roster.too_many(at * 8.0) == []
        for seat in range(seats):
            roster.hello(who(seat, at * seats + seat))
        for seat in range(seats):
            roster.lost(who(seat, at * seats + seat), at * 8.0 + seat / 10, "its host is gone")
    assert roster.losses == seats * (MOST_LOSSES + 1)
    told = roster.too_many(MOST_LOSSES * 8.0 + 2)
    assert (
        len(told) == MOST_LOSSES + 1
        and told[0] == f"task 0 on host (process 100): its host is gone and {seats - 1} more at about the same time"
    )


def test_different_tasks_that_die_one_after_the_other_are_no_accident() -> None:
    roster = Roster(100)
    for seat in range(60):
        roster.hello(who(seat, seat))
        roster.lost(who(seat, seat), float(seat), "killed")
        if roster.too_many(seat):
            break
    assert MOST_LOSSES < seat < 60
