"""Generations and attempts: the tables of core/membership.py row by row, and both machines beside dumb models under anything that may happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.core.membership import LOSS_WINDOW, MOST_LOSSES, Attempt, ExchangeBuffer, Member, Membership


def who(slot: int, id: int = 0) -> Member:
    return Member(slot, id, "host", 100 + id)


def full(slots: int = 2) -> Membership:
    membership = Membership(slots)
    for slot in range(slots):
        assert membership.hello(who(slot, slot)) is None
    return membership


# --- the driver's table, row by row


def test_a_hello_fills_an_empty_slot_and_the_last_one_begins_a_generation() -> None:
    membership = Membership(2)
    assert membership.hello(who(1, 1)) is None
    assert (membership.missing, membership.is_complete, membership.generation) == ([0], False, 0)
    assert membership.hello(who(0, 2)) is None
    assert (membership.missing, membership.is_complete, membership.generation) == ([], True, 1)
    assert membership.members == [who(0, 2), who(1, 1)]
    with pytest.raises(ValueError, match="there is no slot 2: there are 2"):
        membership.hello(who(2, 3))


def test_a_hello_for_a_taken_slot_sends_away_who_sat_there() -> None:
    membership = Membership(2)
    membership.hello(who(0, 1))
    assert membership.hello(who(0, 2)) == who(0, 1) and membership.generation == 0, "some slot is empty: no generation"
    membership.hello(who(1, 3))
    attempt = membership.begin()
    assert membership.hello(who(0, 4)) == who(0, 2)
    assert membership.generation == 2 and not membership.is_current(attempt)
    assert membership.losses == 0, "a slot that is taken over is no loss"


def test_a_loss_empties_the_slot_and_ends_the_attempt() -> None:
    membership = full()
    attempt = membership.begin()
    assert membership.answer(who(0, 0), attempt, "a") and membership.lost(who(1, 1), 0.0, "killed")
    assert (membership.missing, membership.losses, membership.answers) == ([1], 1, None)
    assert not membership.is_current(attempt) and not membership.answer(who(0, 0), attempt, "late")
    assert membership.last_losses == ["task 1 on host (process 101): killed"]
    assert membership.lost(who(0, 0), 0.0) and membership.missing == [0, 1] and membership.losses == 2, "while some slot is empty, too"


def test_somebody_who_was_told_to_go_is_no_loss() -> None:
    membership = full()
    membership.hello(who(0, 7))
    attempt = membership.begin()
    assert not membership.lost(who(0, 0), 0.0) and not membership.lost(who(1, 9), 0.0)
    assert membership.is_current(attempt) and membership.losses == 0


def test_who_goes_as_planned_is_no_loss() -> None:
    membership = full()
    attempt = membership.begin()
    membership.leave(who(0, 9))
    assert membership.is_current(attempt), "that was somebody else"
    membership.leave(who(0, 0))
    assert (membership.missing, membership.losses) == ([0], 0) and not membership.is_current(attempt)
    assert not membership.lost(who(0, 0), 0.0)


def test_somebody_cannot_reach_somebody() -> None:
    membership = full()
    attempt = membership.begin()
    membership.renew(0.0, "no way", [1])
    assert (membership.generation, membership.losses, membership.last_losses) == (2, 1, ["no way"]) and not membership.is_current(attempt)
    membership.lost(who(0, 0), 0.0)
    membership.renew(0.0, "no way")
    assert (membership.generation, membership.losses) == (2, 2), "with an empty slot nothing happens: it will be a new generation anyway"


def test_a_death_that_peers_notice_first_is_counted_once() -> None:
    membership = full()
    membership.begin()
    membership.renew(0.0, "no way", [1])
    assert membership.lost(who(1, 1), 0.0) and membership.losses == 1
    membership.hello(who(1, 5))
    membership.renew(0.0, "no way", [1])
    assert membership.answer(who(1, 5), membership.begin(), "here I am")
    assert membership.lost(who(1, 5), 0.0) and membership.losses == 3, "it had answered since: this is another loss"


def test_an_attempt_needs_all_slots_and_gets_the_next_number() -> None:
    membership = Membership(1)
    with pytest.raises(ValueError, match=r"slots \[0\] are empty"):
        membership.begin()
    membership.hello(who(0, 0))
    assert [membership.begin(), membership.begin()] == [Attempt(1, 1), Attempt(1, 2)]
    membership.hello(who(0, 1))
    assert membership.begin() == membership.attempt == Attempt(2, 3)


def test_an_answer_counts_once_per_slot_and_only_to_the_attempt_at_work() -> None:
    membership = full()
    old = membership.begin()
    assert membership.answer(who(0, 0), old, "old")
    attempt = membership.begin()
    assert not membership.answer(who(1, 1), old, "late") and membership.answers is None
    assert membership.answer(who(1, 1), attempt, "b") and not membership.answer(who(1, 1), attempt, "b again")
    assert not membership.answer(who(0, 9), attempt, "a stranger's") and membership.answers is None
    assert membership.answer(who(0, 0), attempt, "a") and membership.answers == ["a", "b"]


def test_too_many_losses_are_those_within_the_window() -> None:
    membership = Membership(1)
    for number in range(MOST_LOSSES + 1):
        assert membership.too_many(number) == []
        membership.hello(who(0, number))
        membership.lost(who(0, number), number, "gone")
    assert len(membership.too_many(MOST_LOSSES)) == MOST_LOSSES + 1
    assert membership.too_many(LOSS_WINDOW) == [], "the first of them is forgotten"


# --- a task's table, row by row

OLD, NOW, NEXT = Attempt(1, 4), Attempt(2, 5), Attempt(2, 6)


def at_work() -> ExchangeBuffer:
    buffer = ExchangeBuffer(2)
    buffer.begin(NOW)
    return buffer


def test_a_frame_of_an_older_attempt_is_dropped() -> None:
    buffer = ExchangeBuffer(2)
    assert buffer.put(0, OLD, 1, "came before the order")
    buffer.begin(NOW)
    assert not buffer.put(1, OLD, 1, "came after it") and not buffer.put(1, Attempt(1, 99), 1, "another generation")
    assert buffer.missing(1) == [0, 1] and list(buffer.take(1)) == []


def test_a_level_is_complete_when_every_slot_has_sent() -> None:
    buffer = at_work()
    assert buffer.put(1, NOW, 1, "b") and not buffer.is_complete(1) and buffer.missing(1) == [0]
    assert buffer.put(0, NOW, 2, "of another level") and not buffer.is_complete(1)
    assert buffer.put(0, NOW, 1, "a") and buffer.is_complete(1)
    assert list(buffer.take(1)) == ["a", "b"]


def test_a_frame_of_a_newer_attempt_waits() -> None:
    buffer = at_work()
    assert buffer.put(0, NEXT, 0, "early") and buffer.missing(0) == [0, 1]
    buffer.begin(NEXT)
    assert buffer.missing(0) == [1] and buffer.attempt == NEXT
    with pytest.raises(ValueError, match="is older than"):
        buffer.begin(NOW)


def test_a_frame_counts_once_also_after_it_was_taken() -> None:
    buffer = ExchangeBuffer(1)
    buffer.begin(NOW)
    assert buffer.put(0, NOW, 0, "first") and not buffer.put(0, NOW, 0, "again")
    assert list(buffer.take(0)) == ["first"]
    assert not buffer.put(0, NOW, 0, "and again") and list(buffer.take(0)) == []
    assert not buffer.put(1, NOW, 1, "from a slot that does not exist") and not buffer.is_complete(1)


def test_negative_twin_an_inbox_that_looks_at_no_attempt_mixes_two() -> None:
    for came_before in (True, False):
        buffer = ExchangeBuffer(2, trusting=True)
        buffer.begin(OLD)
        if came_before:
            buffer.put(0, OLD, 1, "old")
        buffer.begin(NOW)
        buffer.put(0, OLD, 1, "old")
        buffer.put(0, NOW, 1, "new")
        buffer.put(1, NOW, 1, "new")
        assert list(buffer.take(1)) == ["old", "new"]


# --- beside dumb models


class MembershipModel:
    """A flag that says whether the attempt is still on, in the place of generations that are compared."""

    def __init__(self, slots: int) -> None:
        self.slots: list[Member | None] = [None] * slots
        self.generations = self.attempts = self.losses = 0
        self.on = False
        self.answers: dict[int, Any] = {}
        self.missed: list[int] = []

    def full(self) -> bool:
        return None not in self.slots

    def hello(self, one: Member) -> Member | None:
        before, self.slots[one.slot], self.on = self.slots[one.slot], one, False
        self.generations += self.full()
        return before

    def lost(self, one: Member) -> bool:
        there = self.leave(one)
        self.losses += there and one.id not in self.missed
        return there

    def leave(self, one: Member) -> bool:
        there = self.slots[one.slot] == one
        if there:
            self.slots[one.slot], self.on = None, False
        return there

    def renew(self, missed: list[int]) -> None:
        if self.full():
            self.missed += [one.id for slot in missed if (one := self.slots[slot]) is not None]
            self.on = False
            self.generations += 1
            self.losses += 1

    def begin(self) -> None:
        self.attempts, self.on, self.answers = self.attempts + 1, True, {}

    def answer(self, one: Member, number: int, what: Any) -> bool:
        counts = self.on and number == self.attempts and self.slots[one.slot] == one and one.slot not in self.answers
        if counts:
            self.answers[one.slot] = what
            self.missed = [id for id in self.missed if id != one.id]
        return counts


slots_and_ids = st.tuples(st.integers(0, 2), st.integers(0, 4))
membership_events = st.lists(
    st.one_of(
        st.tuples(st.just("hello"), st.integers(0, 2)),
        st.tuples(st.just("lost"), slots_and_ids),
        st.tuples(st.just("leave"), slots_and_ids),
        st.tuples(st.just("renew"), st.lists(st.integers(0, 2), max_size=2)),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("answer"), st.tuples(slots_and_ids, st.integers(0, 2))),
    ),
    max_size=60,
)


@settings(max_examples=some(300), deadline=None)
@given(membership_events, st.integers(1, 3))
def test_a_roster_does_what_a_flag_would_do(events: list[tuple[str, Any]], slots: int) -> None:
    membership, model = Membership(slots), MembershipModel(slots)
    sat: list[Member] = []
    made: list[Attempt] = [Attempt()]
    for what, how in [*(("hello", slot) for slot in range(slots)), *events]:
        if what == "hello":
            sat.append(who(how % slots, len(sat)))
            assert membership.hello(sat[-1]) == model.hello(sat[-1])
        elif what in ("lost", "leave"):
            one = sat[-1 - how[1] % len(sat)] if how[1] else Member(how[0] % slots, -1)  # who sat down lately, or a stranger
            if what == "lost":
                assert membership.lost(one, 0.0) == model.lost(one)
            else:
                membership.leave(one)
                model.leave(one)
        elif what == "renew":
            missed = [slot % slots for slot in how]
            membership.renew(0.0, "", missed)
            model.renew(missed)
        elif what == "begin" and model.full():
            made.append(membership.begin())
            model.begin()
            assert made[-1] > made[-2], "the younger is the greater"
        elif what == "answer":
            (slot, back), older = how
            one = sat[-1 - back % len(sat)] if back else Member(slot % slots, -1)
            attempt = made[max(0, len(made) - 1 - older)]
            assert membership.answer(one, attempt, one.id) == model.answer(one, attempt.number, one.id)
        assert membership.members == [one for one in model.slots if one is not None]
        assert (membership.generation, membership.losses, membership.is_complete) == (model.generations, model.losses, model.full())
        assert membership.is_current(made[-1]) == (model.on and len(made) > 1)
        if model.on:
            assert membership.answers == ([model.answers[slot] for slot in range(slots)] if len(model.answers) == slots else None)
        else:
            assert membership.answers is None


frames = st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 2))  # sender, how many attempts from the one at work, level
buffer_events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), frames),
        st.tuples(st.just("put"), frames),
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 2)),
    ),
    max_size=80,
)


def compared(events: list[tuple[str, Any]], slots: int, buffer: ExchangeBuffer) -> None:
    """The model keeps every frame that ever came, and looks all of them through."""
    attempts = [Attempt(1 + at // 3, at) for at in range(200)]
    at, came, taken = 2, list[tuple[int, int, int, int]](), set[tuple[int, int]]()

    def there(level: int) -> dict[int, int]:
        if (at, level) in taken:
            return {}
        return {frame[0]: frame[3] for frame in reversed(came) if frame[1:3] == (at, level) and frame[0] < slots}

    buffer.begin(attempts[at])
    for number, (what, how) in enumerate(events):
        if what == "put":
            sender, shift, level = how
            attempt = at + shift
            known = any(frame[:3] == (sender, attempt, level) for frame in came)
            kept = attempt >= at and sender < slots and not known and (attempt, level) not in taken
            came.append((sender, attempt, level, number))
            assert buffer.put(sender, attempts[attempt], level, number) == kept
        elif what == "begin":
            at += 1 + how
            buffer.begin(attempts[at])
        else:
            found = there(how)
            assert list(buffer.take(how)) == [found[sender] for sender in sorted(found)]
            taken.add((at, how))
        for level in range(3):
            found = there(level)
            assert buffer.missing(level) == [slot for slot in range(slots) if slot not in found]
            assert buffer.is_complete(level) == (len(found) == slots)


@settings(max_examples=some(300), deadline=None)
@given(buffer_events, st.integers(1, 3))
def test_an_inbox_does_what_looking_through_all_frames_would_do(events: list[tuple[str, Any]], slots: int) -> None:
    compared(events, slots, ExchangeBuffer(slots))


def test_negative_twin_the_model_tells_a_trusting_inbox() -> None:
    with pytest.raises(AssertionError):
        compared([("put", (0, -1, 0))], 2, ExchangeBuffer(2, trusting=True))


def test_a_host_that_takes_all_its_tasks_along_is_one_accident() -> None:
    slots = 3 * MOST_LOSSES
    membership = Membership(slots)
    for at in range(MOST_LOSSES + 1):
        assert membership.too_many(at * 8.0) == []
        for slot in range(slots):
            membership.hello(who(slot, at * slots + slot))
        for slot in range(slots):
            membership.lost(who(slot, at * slots + slot), at * 8.0 + slot / 10, "its host is gone")
    assert membership.losses == slots * (MOST_LOSSES + 1)
    told = membership.too_many(MOST_LOSSES * 8.0 + 2)
    assert (
        len(told) == MOST_LOSSES + 1
        and told[0] == f"task 0 on host (process 100): its host is gone and {slots - 1} more at about the same time"
    )


def test_different_tasks_that_die_one_after_the_other_are_no_accident() -> None:
    membership = Membership(100)
    for slot in range(60):
        membership.hello(who(slot, slot))
        membership.lost(who(slot, slot), float(slot), "killed")
        if membership.too_many(slot):
            break
    assert MOST_LOSSES < slot < 60
