"""The step: order, time, rows, index, counts, ids, blame."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import arrivals, dumb_counts, dumb_index, run_step

import millstream as ms
from effort import some
from millstream.core import step as step_module
from millstream.core.arrivals import Arrivals
from millstream.core.keys import key_bytes, key_text
from millstream.core.keyspace import LOW_TIMER, ROW, SUB, WALL_TIMER, decode_row
from millstream.core.record import Batch, ListBatch
from millstream.core.time import BEGINNING, END
from millstream.errors import HookError
from millstream.state.codec import msgpack, pickle
from millstream.state.memory_storage import MemoryStore

LOW, WALL = ms.LOW_WATERMARK, ms.WALL_CLOCK


class Scripted(ms.Computation):
    """Does what the record's value says, and writes down what happens. A timer's tag says what it does when it fires."""

    State = list

    def do(self, op: Any) -> None:
        what, *args = op
        if what == "set":
            self.set_timer(*args)
        elif what == "cancel":
            self.cancel_timer(*args)
        elif what == "produce":
            self.produce(*args)
        elif what == "reset":
            self.state = []
        else:
            raise AssertionError(what)

    def process_record(self, record):
        self.state.append(["record", record.timestamp, record.id])
        for op in record.value:
            self.do(op)

    def process_late_record(self, record):
        self.state.append(["late", record.timestamp, record.id])
        for op in record.value:
            self.do(op)

    def process_timer(self, timer):
        self.state.append([timer.kind, timer.time, timer.tag])
        for op in reaction(timer.tag, timer.time):
            self.do(op)


def reaction(tag: str, time: int) -> list[tuple[Any, ...]]:
    """What a timer does when it fires. No tag sets its own, so every chain ends."""
    return {
        "sets": [("set", "later", time + 3, LOW), ("set", "later", time + 7, WALL)],
        "past": [("set", "plain", time - 5, LOW), ("set", "plain", time - 5, WALL)],
        "stops": [("cancel", "plain", None, LOW), ("cancel", "plain", None, WALL)],
        "tells": [("produce", time)],
        "clears": [("reset",)],
    }.get(tag, [])


def events(store: MemoryStore, key: Any) -> list[Any]:
    raw = store.get(ROW + key_bytes(key))
    return [] if raw is None else [tuple(e) for e in msgpack.decoder(list)(decode_row(raw).state)]


def timers(store: MemoryStore, key: Any) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    raw = store.get(ROW + key_bytes(key))
    return ([], []) if raw is None else (decode_row(raw).low, decode_row(raw).wall)


# --- the order within a key


def test_records_are_processed_in_order_of_time_then_id():
    store = MemoryStore()
    run_step(Scripted(), [("k", 5, "b", []), ("k", 5, "a", []), ("k", 1, "z", []), ("k", 9, "c", [])], store=store)
    assert events(store, "k") == [("record", 1, "z"), ("record", 5, "a"), ("record", 5, "b"), ("record", 9, "c")]


def test_a_timer_fires_after_every_older_record_and_before_the_rest():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    run_step(Scripted(), [("k", t, f"r{t}", []) for t in (6, 4, 5)], store=store, low=10)
    assert events(store, "k") == [("record", 0, "r"), ("record", 4, "r4"), (LOW, 5, "t"), ("record", 5, "r5"), ("record", 6, "r6")]


def test_a_timer_beyond_the_low_watermark_waits_although_records_are_newer():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    run_step(Scripted(), [("k", 9, "r9", [])], store=store, low=4)
    assert events(store, "k") == [("record", 0, "r"), ("record", 9, "r9")]
    outcome = run_step(Scripted(), store=store, late_before=4, low=5)
    assert events(store, "k")[-1] == (LOW, 5, "t")
    assert outcome.counts.fired == 1


def test_timers_fire_in_order_of_time_then_tag():
    store = MemoryStore()
    ops = [("set", "b", 5, LOW), ("set", "a", 5, LOW), ("set", "z", 1, LOW)]
    run_step(Scripted(), [("k", 0, "r", ops)], store=store)
    run_step(Scripted(), store=store, low=5)
    assert events(store, "k")[1:] == [(LOW, 1, "z"), (LOW, 5, "a"), (LOW, 5, "b")]


def test_keys_with_records_come_first_then_those_with_timers_each_in_the_order_of_their_rows():
    store = MemoryStore()
    run_step(Scripted(), [(k, 0, f"s{k}", [("set", "tells", 5, LOW)]) for k in ("c", "a")], store=store)
    records = [(k, 1, f"r{k}", [("produce", k)]) for k in ("d", "b")]
    outcome = run_step(Scripted(), records, store=store, low=5)
    assert [p.key for p in outcome.productions] == ["b", "d", "a", "c"]


tiny = st.integers(0, 4)
some_ops = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), tiny),
        st.tuples(st.just("set"), st.sampled_from(["tells", "past"]), st.integers(0, 8), st.sampled_from([LOW, WALL])),
    ),
    max_size=2,
)
one_record = st.tuples(st.sampled_from(["a", "b", 1, (1, "a")]), tiny, some_ops)


@settings(max_examples=some(100))
@given(st.lists(one_record, max_size=8), st.data())
def test_any_order_of_arrival_gives_the_same_outcome(rows, data):
    records = [(key, time, f"{at % 3}-{at}", ops) for at, (key, time, ops) in enumerate(rows)]
    shuffled = data.draw(st.permutations(records))
    times = {"now": 4, "late_before": 1, "low": 3}
    assert run_step(Scripted(), records, **times) == run_step(Scripted(), shuffled, **times)


@settings(max_examples=some(50))
@given(st.lists(st.tuples(st.sampled_from("ab"), tiny), max_size=6, unique=True), st.data())
def test_any_order_of_arrival_from_several_streams_gives_the_same_outcome(rows, data):
    each = [
        arrivals([(key, time, f"{stream}{at}", [("produce", at)])], stream) for stream in ("x", "y") for at, (key, time) in enumerate(rows)
    ]
    found = [row for some in each for row in some]
    shuffled = data.draw(st.permutations(found))
    assert run_step(Scripted(), rows=found) == run_step(Scripted(), rows=shuffled)


def test_records_of_two_streams_with_the_same_time_and_id_have_an_order_too():
    """Ids are unique in a stream, not across streams: two sources that number their records both have a record 1."""
    one, other = arrivals([("k", 5, "1", [("produce", "x")])], "x"), arrivals([("k", 5, "1", [("produce", "y")])], "y")
    forth, back = run_step(Scripted(), rows=one + other), run_step(Scripted(), rows=other + one)
    assert [p.body for p in forth.productions] == [p.body for p in back.productions]


def test_another_order_of_processing_would_be_noticed():
    records = [("k", 5, "a", []), ("k", 5, "b", [])]
    swapped = [("k", 5, "b", []), ("k", 5, "a", [])]
    assert run_step(Scripted(), records) == run_step(Scripted(), swapped)
    renamed = [("k", 5, "b", []), ("k", 6, "a", [])]
    assert run_step(Scripted(), records) != run_step(Scripted(), renamed)


# --- late


def test_a_record_is_late_if_it_is_older_than_the_low_watermark_before_the_epoch():
    store = MemoryStore()
    records = [("k", 9, "late", []), ("k", 10, "edge", []), ("k", 15, "between", []), ("k", 25, "new", [])]
    outcome = run_step(Scripted(), records, store=store, late_before=10, low=20)
    assert events(store, "k") == [("late", 9, "late"), ("record", 10, "edge"), ("record", 15, "between"), ("record", 25, "new")]
    assert (outcome.counts.late, outcome.counts.records) == (1, 4)


def test_late_records_are_dropped_unless_the_computation_says_otherwise():
    class Default(ms.Computation):
        State = int

        def process_record(self, record):
            self.state += 1

    store = MemoryStore()
    outcome = run_step(Default(), [("k", 1, "r", None)], store=store, late_before=2, low=2)
    assert (outcome.delta, outcome.counts.late) == ({}, 1)
    outcome = run_step(Default(), [("k", 2, "r", None)], store=store, late_before=2, low=2)
    assert (len(outcome.delta), outcome.counts.late) == (1, 0)


def test_no_timer_fires_before_the_records_that_came_with_the_time():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    run_step(Scripted(), [("k", 3, "r3", [])], store=store, late_before=1, low=100)
    assert events(store, "k")[1:] == [("record", 3, "r3"), (LOW, 5, "t")]


# --- timers


def test_a_timer_in_the_past_fires_in_the_same_visit():
    store = MemoryStore()
    outcome = run_step(Scripted(), [("k", 20, "r", [("set", "t", 5, LOW), ("set", "w", 5, WALL)])], store=store, now=6, low=10)
    assert events(store, "k") == [("record", 20, "r"), (LOW, 5, "t"), (WALL, 5, "w")]
    assert timers(store, "k") == ([], [])
    assert outcome.counts.timers == 0


def test_a_timer_in_the_past_fires_before_the_next_record():
    store = MemoryStore()
    records = [("k", 5, "r1", [("set", "t", 4, LOW)]), ("k", 6, "r2", [])]
    run_step(Scripted(), records, store=store, low=10)
    assert events(store, "k") == [("record", 5, "r1"), (LOW, 4, "t"), ("record", 6, "r2")]


def test_a_timer_at_the_very_low_watermark_is_due_and_one_behind_it_is_not():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 10, LOW), ("set", "t", 11, LOW)])], store=store, low=10)
    assert events(store, "k") == [("record", 0, "r"), (LOW, 10, "t")]
    assert timers(store, "k")[0] == [(11, "t")]


def test_what_a_timer_sets_in_the_past_fires_in_the_same_visit():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "past", 20, LOW)])], store=store)
    run_step(Scripted(), store=store, now=100, low=20)
    assert events(store, "k")[1:] == [(LOW, 20, "past"), (LOW, 15, "plain"), (WALL, 15, "plain")]


def test_a_timer_set_twice_fires_once():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW), ("set", "t", 5, LOW)]), ("k", 1, "s", [("set", "t", 5, LOW)])], store=store)
    assert timers(store, "k") == ([(5, "t")], [])
    assert run_step(Scripted(), store=store, low=9).counts.fired == 1


def test_a_timer_that_is_due_can_be_cancelled_by_an_older_record():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW), ("set", "u", 5, LOW)])], store=store)
    outcome = run_step(Scripted(), [("k", 4, "r4", [("cancel", "t", 5, LOW)]), ("k", 7, "r7", [])], store=store, low=10)
    assert events(store, "k")[1:] == [("record", 4, "r4"), (LOW, 5, "u"), ("record", 7, "r7")]
    assert outcome.counts.fired == 1


def test_a_timer_that_has_fired_cannot_be_cancelled_any_more():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    run_step(Scripted(), [("k", 5, "r5", [("cancel", "t", 5, LOW)])], store=store, low=10)
    assert events(store, "k")[1:] == [(LOW, 5, "t"), ("record", 5, "r5")]


def test_cancelling_and_setting_again_fires_once():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    ops = [("cancel", "t", 5, LOW), ("set", "t", 5, LOW), ("cancel", "t", None, LOW), ("set", "t", 5, LOW)]
    assert run_step(Scripted(), [("k", 4, "r4", ops)], store=store, low=10).counts.fired == 1


def test_a_timer_that_has_fired_can_be_set_again_by_the_next_record():
    ops = [("set", "t", 5, LOW)]
    assert run_step(Scripted(), [("k", 0, "r0", ops), ("k", 7, "r7", ops), ("k", 8, "r8", [])], low=10).counts.fired == 2


def test_a_timer_that_was_undone_with_a_dead_letter_can_be_set_again():
    store = MemoryStore()
    rows = [("k", 0, "r0", [("set", "t", 5, LOW), ("fail",)]), ("k", 1, "r1", [("set", "t", 5, LOW)])]
    assert run_step(Scripted(), rows, store=store, streams=["out", "dead"], dead_letters="dead").counts.dead == 1
    assert timers(store, "k") == ([(5, "t")], [])


def test_a_timer_that_has_expired_can_be_set_again():
    store = MemoryStore()
    ops = [("set", "t", 900, LOW)]
    run_step(Scripted(), [("k", 100, "r0", ops), ("k", 500, "r5", ops)], store=store, low=50, expire=(80, LOW))
    assert (900, "t") in timers(store, "k")[0]


def test_cancelling_without_a_time_takes_back_all_of_the_tag_and_no_other():
    store = MemoryStore()
    ops = [("set", "t", 5, LOW), ("set", "t", 6, LOW), ("set", "u", 5, LOW), ("set", "t", 5, WALL)]
    run_step(Scripted(), [("k", 0, "r", [*ops, ("cancel", "t", None, LOW)])], store=store)
    assert timers(store, "k") == ([(5, "u")], [(5, "t")])
    run_step(Scripted(), [("k", 1, "s", [("cancel", "t", 4, WALL), ("cancel", "nobody", None, WALL)])], store=store)
    assert timers(store, "k") == ([(5, "u")], [(5, "t")])
    run_step(Scripted(), [("k", 1, "s", [("cancel", "t", 5, WALL)])], store=store)
    assert timers(store, "k") == ([(5, "u")], [])


def test_wall_clock_timers_fire_after_event_time_has_moved():
    store = MemoryStore()
    ops = [("set", "w", 1, WALL), ("set", "x", 3, WALL), ("set", "t", 50, LOW), ("set", "far", 90, LOW)]
    run_step(Scripted(), [("k", 0, "r", ops)], store=store)
    outcome = run_step(Scripted(), [("k", 60, "s", [])], store=store, now=2, low=80)
    assert events(store, "k")[1:] == [(LOW, 50, "t"), ("record", 60, "s"), (WALL, 1, "w")]
    assert (outcome.counts.next_low, outcome.counts.next_wall) == (90, 3)


def test_each_kind_of_time_moves_only_its_own_timers():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 50, LOW), ("set", "w", 50, WALL)])], store=store)
    run_step(Scripted(), store=store, now=1000)
    assert events(store, "k")[1:] == [(WALL, 50, "w")]
    run_step(Scripted(), store=store, now=1000, low=50)
    assert events(store, "k")[2:] == [(LOW, 50, "t")]


def test_what_a_wall_clock_timer_produces_is_as_old_as_the_low_watermark():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "tells", 7, WALL)])], store=store)
    (production,) = run_step(Scripted(), store=store, now=9, low=3).productions
    assert production.timestamp == 3
    run_step(Scripted(), [("k", 0, "r", [("set", "tells", 7, WALL)])], store=store)
    (production,) = run_step(Scripted(), store=store, now=9).productions
    assert production.timestamp == 7


def test_at_the_end_of_time_every_low_watermark_timer_fires_and_no_wall_clock_timer():
    store = MemoryStore()
    ops = [("set", "t", END - 1, LOW), ("set", "t", BEGINNING + 1, LOW), ("set", "w", 5, WALL)]
    run_step(Scripted(), [("k", 0, "r", ops)], store=store)
    outcome = run_step(Scripted(), store=store, low=END)
    assert outcome.counts.fired == 2
    assert timers(store, "k") == ([], [(5, "w")])


@pytest.mark.parametrize(
    "op",
    [
        ("set", "t", 1.5, LOW),
        ("set", "t", END, LOW),
        ("set", "t", BEGINNING, WALL),
        ("set", "t", True, LOW),
        ("set", 5, 5, LOW),
        ("set", "t", 5, "noon"),
        ("cancel", "t", 5, "noon"),
    ],
    ids=repr,
)
def test_a_timer_that_makes_no_sense_is_a_hook_error(op):
    with pytest.raises(HookError, match="computation 'C', key 'k'"):
        run_step(Scripted(), [("k", 0, "r", [op])])


class Loop(ms.Computation):
    """A timer that sets itself again, at once, for ever."""

    State = int
    kind = LOW
    rounds = 1000  # a guard: a step that does not notice ends here and not never

    def process_record(self, record):
        self.set_timer("again", 5, self.kind)

    def process_timer(self, timer):
        self.state += 1
        if self.state > self.rounds:
            raise AssertionError("nobody noticed the loop")
        self.set_timer("again", 5, self.kind)


@pytest.mark.parametrize("kind", [LOW, WALL])
def test_a_timer_that_keeps_setting_itself_is_an_error(monkeypatch, kind):
    monkeypatch.setattr(step_module, "MAX_FIRINGS", 50)
    loop = Loop()
    loop.kind = kind
    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*more than 50 timers"):
        run_step(loop, [("k", 0, "r", None)], now=10, low=10)


def test_a_timer_that_keeps_setting_itself_before_a_record_is_an_error(monkeypatch):
    monkeypatch.setattr(step_module, "MAX_FIRINGS", 50)
    with pytest.raises(HookError, match="more than 50 timers"):
        run_step(Loop(), [("k", 0, "r", None), ("k", 7, "s", None)], now=10, low=10)


def test_many_timers_that_end_are_no_loop(monkeypatch):
    monkeypatch.setattr(step_module, "MAX_FIRINGS", 50)
    outcome = run_step(Scripted(), [("k", 0, "r", [("set", f"t{i}", i, LOW) for i in range(1, 51)])], low=100)
    assert outcome.counts.fired == 50


# --- everything at once, against a dumb twin

tags = st.sampled_from(["plain", "sets", "past", "stops", "tells", "clears"])
kinds = st.sampled_from([LOW, WALL])
ops = st.one_of(
    st.tuples(st.just("set"), tags, st.integers(-3, 25), kinds),
    st.tuples(st.just("cancel"), tags, st.one_of(st.none(), st.integers(-3, 25)), kinds),
    st.tuples(st.just("produce"), st.integers(0, 9)),
    st.tuples(st.just("reset")),
)
epochs = st.lists(
    st.tuples(
        st.integers(0, 8),  # the clock moves
        st.integers(0, 8),  # the low watermark moves
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 25), st.lists(ops, max_size=4)), max_size=5),
    ),
    max_size=6,
)


class Twin:
    """One key, by the rules of the docstring and nothing else: look at everything again after every hook."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.timers: dict[str, set[tuple[int, str]]] = {LOW: set(), WALL: set()}
        self.produced: list[tuple[int, Any]] = []
        self.fired = self.late = 0

    def do(self, ops: list[Any], cause: int) -> None:
        for what, *args in ops:
            if what == "set":
                self.timers[args[2]].add((args[1], args[0]))
            elif what == "cancel":
                tag, time, kind = args
                self.timers[kind] = {t for t in self.timers[kind] if not (t[1] == tag and time in (None, t[0]))}
            elif what == "produce":
                self.produced.append((cause, args[0]))
            else:
                self.log.clear()

    def fire(self, kind: str, entry: tuple[int, str], cause: int) -> None:
        self.timers[kind].remove(entry)
        self.fired += 1
        self.log.append((kind, *entry))
        self.do(reaction(entry[1], entry[0]), cause)

    def visit(self, records: list[tuple[int, str, list[Any]]], now: int, late_before: int, low: int) -> None:
        records = sorted(records, key=lambda r: (r[0], r[1]))
        while records and records[0][0] < late_before:
            time, id, what = records.pop(0)
            self.late += 1
            self.log.append(("late", time, id))
            self.do(what, time)
        while True:
            due = sorted(t for t in self.timers[LOW] if t[0] <= low)
            wall = sorted(t for t in self.timers[WALL] if t[0] <= now)
            if records and not (due and due[0][0] <= records[0][0]):
                time, id, what = records.pop(0)
                self.log.append(("record", time, id))
                self.do(what, time)
            elif due:
                self.fire(LOW, due[0], due[0][0])
            elif wall:
                self.fire(WALL, wall[0], low if low > BEGINNING else wall[0][0])
            else:
                return


@settings(max_examples=some(400))
@given(epochs)
def test_many_epochs_go_as_the_dumb_twin_says(history):
    store, twins = MemoryStore(), {"a": Twin(), "b": Twin()}
    now = late_before = low = 0
    keys = timer_count = number = 0
    for clock, water, rows in history:
        now, late_before, low = now + clock, low, low + water
        records = []
        for key, time, what in rows:
            number += 1
            records.append((key, time, f"{number:03d}", what))
        before = {key: (twin.fired, twin.late, len(twin.produced)) for key, twin in twins.items()}
        outcome = run_step(Scripted(), records, store=store, now=now, late_before=late_before, low=low)
        for key, twin in twins.items():
            twin.visit([(time, id, what) for k, time, id, what in records if k == key], now, late_before, low)
            assert events(store, key) == twin.log
            assert timers(store, key) == (sorted(twin.timers[LOW]), sorted(twin.timers[WALL]))
            mine = [(p.timestamp, msgspec.msgpack.decode(p.body)) for p in outcome.productions if p.key == key]
            assert mine == twin.produced[before[key][2] :]
        counts = outcome.counts
        assert counts.fired == sum(t.fired - before[k][0] for k, t in twins.items())
        assert counts.late == sum(t.late - before[k][1] for k, t in twins.items())
        assert counts.records == len(records)
        keys, timer_count = keys + counts.keys, timer_count + counts.timers
        assert (keys, timer_count, counts.next_low, counts.next_wall) == dumb_counts(store.entries)
        assert {e for e in store.entries if e.startswith((LOW_TIMER, WALL_TIMER))} == dumb_index(store.entries)
        assert {e for e in store.entries if e.startswith(ROW)} == {
            ROW + k.encode() for k, t in twins.items() if t.log or any(t.timers.values())
        }


@settings(max_examples=some(100))
@given(epochs)
def test_a_step_repeated_on_the_same_entries_gives_the_same_outcome(history):
    store = MemoryStore()
    now = late_before = low = 0
    for at, (clock, water, rows) in enumerate(history):
        now, late_before, low = now + clock, low, low + water
        records = [(key, time, f"{at}-{i}", what) for i, (key, time, what) in enumerate(rows)]
        frozen = MemoryStore()
        frozen.apply(store.entries)
        first = run_step(Scripted(), records, store=frozen, now=now, late_before=late_before, low=low)
        assert run_step(Scripted(), records, store=store, now=now, late_before=late_before, low=low) == first


# --- rows


class Count(ms.Computation):
    State = int

    def process_record(self, record):
        self.state += record.value
        if record.value == 100:
            self.set_timer("t", 50)

    def process_timer(self, timer):
        self.state = 0


def test_a_row_that_equals_a_fresh_one_is_deleted():
    store = MemoryStore()
    assert run_step(Count(), [("k", 0, "r", 3)], store=store).counts.keys == 1
    outcome = run_step(Count(), [("k", 1, "s", -3)], store=store)
    assert (outcome.delta, outcome.counts.keys) == ({ROW + b"k": None}, -1)
    assert store.entries == {}


def test_a_row_with_a_timer_stays_although_its_state_is_fresh():
    store = MemoryStore()
    run_step(Count(), [("k", 0, "r", 100), ("k", 0, "s", -100)], store=store)
    assert len(store.entries) == 2
    outcome = run_step(Count(), store=store, low=50)
    assert (store.entries, outcome.counts.keys, outcome.counts.timers) == ({}, -1, -1)


def test_a_row_that_was_never_written_needs_no_delete():
    outcome = run_step(Count(), [("k", 0, "r", 3), ("k", 1, "s", -3)])
    assert (outcome.delta, outcome.counts.keys, outcome.counts.touched) == ({}, 0, 1)


def test_a_visit_that_changes_nothing_writes_nothing():
    store = MemoryStore()
    run_step(Count(), [("k", 0, "r", 3)], store=store)
    assert run_step(Count(), [("k", 0, "r", 0)], store=store).delta == {}


def test_only_keys_with_records_or_due_timers_are_visited():
    store = MemoryStore()
    run_step(Count(), [(k, 0, k, 100) for k in "abc"], store=store)
    assert run_step(Count(), store=store, low=49).counts.touched == 0
    assert run_step(Count(), [("a", 49, "r", 1)], store=store, low=49).counts.touched == 1
    assert run_step(Count(), [("z", 50, "r", 1)], store=store, low=50).counts.touched == 4


def test_the_index_is_left_alone_when_the_earliest_timer_stays():
    store = MemoryStore()
    run_step(Scripted(), [("k", 0, "r", [("set", "t", 5, LOW)])], store=store)
    outcome = run_step(Scripted(), [("k", 0, "s", [("set", f"t{i}", 6 + i, LOW) for i in range(100)])], store=store)
    assert set(outcome.delta) == {ROW + b"k"}


class Pages(ms.Computation):
    @dataclass
    class State:
        seen: int = 0
        pages: ms.MapState = field(default_factory=ms.MapState)

    def process_record(self, record):
        if record.value == "clear":
            self.state.pages.clear()
        elif record.value == "renew":
            self.state = Pages.State()
        else:
            self.state.pages[record.value] = True


class Map(ms.Computation):
    State = ms.MapState

    def process_record(self, record):
        if record.value == "clear":
            self.state.clear()
        elif record.value == "renew":
            self.state = ms.MapState()
        else:
            self.state[record.value] = True


@pytest.mark.parametrize("computation", [Pages, Map])
@pytest.mark.parametrize("codec", [msgpack, pickle], ids=["msgpack", "pickle"])
def test_a_row_lives_as_long_as_its_map_has_entries(computation, codec):
    store = MemoryStore()
    assert run_step(computation(), [("k", 0, "r", "a"), ("k", 1, "s", "b")], store=store, codec=codec).counts.keys == 1
    assert sum(e.startswith(SUB) for e in store.entries) == 2
    assert run_step(computation(), [("k", 2, "t", "clear")], store=store, codec=codec).counts.keys == -1
    assert store.entries == {}


@pytest.mark.parametrize("computation", [Pages, Map])
def test_assigning_a_new_state_lets_the_entries_of_the_old_map_go(computation):
    """`state: change it in place or assign a new one`."""
    store = MemoryStore()
    run_step(computation(), [("k", 0, "r", "a"), ("k", 1, "s", "b")], store=store)
    run_step(computation(), [("k", 2, "t", "renew")], store=store)
    assert store.entries == {}


@pytest.mark.parametrize("computation", [Pages, Map])
def test_a_state_assigned_anew_can_be_written_to(computation):
    store = MemoryStore()
    run_step(computation(), [("k", 0, "r", "a")], store=store)
    run_step(computation(), [("k", 1, "s", "renew"), ("k", 2, "t", "b")], store=store)
    seen = [e for e in store.entries if e.startswith(SUB)]
    assert len(seen) == 1 and b"b" in seen[0]


def test_maps_that_change_places_take_their_entries_along_or_are_refused():
    class Swap(ms.Computation):
        @dataclass
        class State:
            one: ms.MapState = field(default_factory=ms.MapState)
            other: ms.MapState = field(default_factory=ms.MapState)

        def process_record(self, record):
            if record.value == "fill":
                self.state.one["x"] = 1
            elif record.value == "swap":
                self.state.one, self.state.other = self.state.other, self.state.one
            else:
                self.produce([list(self.state.one), list(self.state.other)])

    store = MemoryStore()
    run_step(Swap(), [("k", 0, "r", "fill")], store=store)
    try:
        run_step(Swap(), [("k", 1, "s", "swap")], store=store)
    except HookError as error:
        assert "MapState" in str(error)
        return
    (production,) = run_step(Swap(), [("k", 2, "t", "tell")], store=store).productions
    assert msgspec.msgpack.decode(production.body) == [[], ["x"]]


def test_a_map_hidden_in_a_plain_value_is_refused_and_not_silently_lost():
    class Hidden(ms.Computation):
        def process_record(self, record):
            self.state["map"] = ms.MapState()
            self.state["map"]["a"] = 1

    with pytest.raises(HookError, match="MapState"):
        run_step(Hidden(), [("k", 0, "r", None)])


# --- productions


class Shout(ms.Computation):
    State = int

    def process_record(self, record):
        for value in record.value:
            self.produce(value, stream=self.stream)

    stream = "out"


def ids(outcome: Any) -> list[str]:
    return [p.id for p in outcome.productions]


def test_production_ids_are_stable_and_unique():
    records = [(key, 0, f"r{n}", ["v", "v"]) for key in ("a", "b", 1, "1") for n in range(3)]
    seen: dict[str, Any] = {}
    for name, stream in itertools.product(("C", "D"), ("out", "other")):
        shout = Shout()
        shout.stream = stream
        outcome = run_step(shout, records, name=name, streams=("out", "other"))
        again = run_step(shout, list(reversed(records)), name=name, streams=("out", "other"))
        assert ids(outcome) == ids(again)
        for production in outcome.productions:
            assert production.id not in seen
            seen[production.id] = production
    assert len(seen) == 2 * 2 * len(records) * 2


def test_ids_of_what_a_record_causes_do_not_depend_on_the_epoch_or_on_other_keys():
    alone = run_step(Shout(), [("a", 0, "r", ["v"])], now=1, low=-5, epoch=1)
    together = run_step(Shout(), [("a", 0, "r", ["v"]), ("b", 0, "q", ["v"])], now=99, epoch=2)
    assert ids(alone)[0] == ids(together)[0]


def test_ids_of_what_a_timer_causes_do_not_depend_on_other_keys():
    """Nor on how many of their timers fire first."""
    found = []
    for others in ([], ["a"], ["a", "b", "z"]):
        store = MemoryStore()
        run_step(Scripted(), [(key, 0, f"r{key}", [("set", "tells", 5, LOW)]) for key in [*others, "k"]], store=store)
        outcome = run_step(Scripted(), store=store, low=5, epoch=1)
        found.append([p.id for p in outcome.productions if p.key == "k"])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


def test_timers_of_one_visit_give_different_ids():
    store = MemoryStore()
    ops = [("set", "tells", 5, LOW), ("set", "tells", 6, LOW), ("set", "tells", 5, WALL)]
    outcome = run_step(Scripted(), [("k", 0, "r", [*ops, ("produce", 1)])], store=store, now=9, low=9)
    assert len(set(ids(outcome))) == 4


def test_records_of_two_streams_with_the_same_id_give_different_production_ids():
    rows = arrivals([("k", 5, "1", ["x"])], "x") + arrivals([("k", 6, "1", ["y"])], "y")
    first, second = ids(run_step(Shout(), rows=rows))
    assert first != second


def test_a_timer_that_fires_twice_gives_different_production_ids():
    """A late record that opens a closed window again sets the very timer that has fired before."""
    store = MemoryStore()
    first = run_step(Scripted(), [("k", 0, "r", [("set", "tells", 5, LOW)])], store=store, low=9)
    second = run_step(Scripted(), [("k", 1, "s", [("set", "tells", 5, LOW)])], store=store, late_before=9, low=9, epoch=1)
    assert len(ids(first)) == len(ids(second)) == 1
    assert ids(first) != ids(second)


def test_a_record_id_cannot_be_taken_for_a_timer():
    store = MemoryStore()
    ops = [("set", "tells", 5, LOW), ("produce", 1)]
    outcome = run_step(Scripted(), [("k", 0, f"{LOW}/5/tells", ops)], store=store, low=9)
    assert len(set(ids(outcome))) == 2


class Back(ms.Computation):
    State = int

    def process_record(self, record):
        self.produce("v", timestamp=record.timestamp + record.value)

    back = 1

    def process_timer(self, timer):
        self.produce("v", timestamp=timer.time - self.back)


def test_a_production_older_than_its_record_is_a_hook_error():
    with pytest.raises(HookError, match=r"computation 'Backward', key \('k', 1\).*may not go back"):
        run_step(Back(), [(("k", 1), 7, "r", -1)], name="Backward")
    (production,) = run_step(Back(), [(("k", 1), 7, "r", 0)], name="Backward").productions
    assert production.timestamp == 7


class SetsFive(Back):
    kind = LOW

    def process_record(self, record):
        self.set_timer("t", 5, self.kind)


def test_a_low_watermark_timer_may_produce_just_before_its_time():
    (production,) = run_step(SetsFive(), [("k", 0, "r", None)], low=5).productions
    assert production.timestamp == 4


def test_a_production_older_than_that_is_a_hook_error():
    timer = SetsFive()
    timer.back = 2
    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*may not go back"):
        run_step(timer, [("k", 0, "r", None)], low=5)
    timer.back, timer.kind = 1, WALL
    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*may not go back"):
        run_step(timer, [("k", 0, "r", None)], now=5)


# --- who judges lateness


class Judge(ms.Computation):
    """Takes what is at most 10 older than the low watermark."""

    State = list
    judges_lateness = True

    def process_record(self, record):
        if record.timestamp < self.late_before - 10:
            self.late(record)
            if record.value == "raise":
                raise ValueError("behind it")
            return
        self.state.append(record.timestamp)


class Kept(Judge):
    def process_late_record(self, record):
        self.produce(record.timestamp)


LATE_ROWS = [("k", 9, "a", 1), ("k", 19, "b", 1), ("k", 20, "c", 1), ("k", 35, "d", 1)]


@pytest.mark.parametrize(
    ("computation", "way", "said"), [(Judge, "drop", []), (Judge, "aside", [9, 19]), (Kept, "hook", [30, 30]), (Kept, "drop", [])]
)
def test_what_a_hook_calls_late_is_counted_and_goes_where_the_input_says(computation, way, said):
    store = MemoryStore()
    times = {"late_before": 30, "low": 40, "least": 30}
    outcome = run_step(computation(), LATE_ROWS, store=store, late={"in": way}, **times)
    assert (outcome.counts.late, outcome.counts.late_by, [one.timestamp for one in outcome.counts.last_late]) == (2, {"in": 2}, [9, 19])
    assert events_of(store, "k") == [20, 35]
    told = [msgpack.decoder(object)(p.body) for p in outcome.productions]
    assert [one["timestamp"] for one in told] == said if way == "aside" else [p.timestamp for p in outcome.productions] == said
    alone = run_step(computation(), LATE_ROWS[:2], late={"in": way}, **times)
    assert alone.delta == {}, "a key with late records only has no row"


def events_of(store: MemoryStore, key: Any) -> Any:
    return msgpack.decoder(list)(decode_row(store.get(ROW + key_bytes(key))).state)


def test_a_hook_that_raises_behind_a_late_record_makes_it_a_dead_letter_and_no_late_record():
    rows = [("k", 9, "a", "raise"), ("k", 10, "b", 1), ("k", 35, "d", 1)]
    outcome = run_step(Judge(), rows, late_before=30, low=40, late={"in": "aside"}, dead_letters="dead")
    assert [(p.stream, msgpack.decoder(object)(p.body)["timestamp"]) for p in outcome.productions] == [("dead", 9), ("aside", 10)]


@pytest.mark.parametrize("judges", [True, False])
def test_only_the_record_at_hand_can_be_late_and_only_where_the_hook_judges(judges):
    class Wrong(ms.Computation):
        judges_lateness = judges

        def process_record(self, record):
            self.late(record.anew() if judges else record)

    with pytest.raises(HookError, match=r"self.late\(record\) is for the record at hand"):
        run_step(Wrong(), [("k", 1, "a", 1)])


def test_a_production_without_key_and_timestamp_has_those_of_its_cause():
    store = MemoryStore()
    outcome = run_step(Scripted(), [("k", 3, "r", [("produce", 1), ("set", "tells", 8, LOW)])], store=store, low=9)
    assert [(p.key, p.timestamp, p.stream) for p in outcome.productions] == [("k", 3, "out"), ("k", 8, "out")]


def test_a_production_is_what_it_was_when_it_was_made():
    class Reuse(ms.Computation):
        def process_record(self, record):
            value = [1]
            self.produce(value)
            value.append(2)

    (production,) = run_step(Reuse(), [("k", 0, "r", None)]).productions
    assert msgspec.msgpack.decode(production.body) == [1]


@pytest.mark.parametrize("timestamp", [1.5, "7", True])
def test_a_production_needs_a_whole_timestamp(timestamp):
    class Odd(ms.Computation):
        def process_record(self, record):
            self.produce(1, timestamp=timestamp)

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*milliseconds as an int"):
        run_step(Odd(), [("k", 0, "r", None)])


def test_a_stream_that_is_not_produced_is_a_hook_error_that_names_those_that_are():
    shout = Shout()
    shout.stream = "nowhere"
    with pytest.raises(HookError, match=r"'nowhere'.*first, second"):
        run_step(shout, [("k", 0, "r", ["v"])], streams=("first", "second"))
    shout.stream = None
    with pytest.raises(HookError, match="say which"):
        run_step(shout, [("k", 0, "r", ["v"])], streams=("first", "second"))


def test_another_key_on_a_same_key_stream_is_a_hook_error():
    class Other(ms.Computation):
        def process_record(self, record):
            self.produce(1, key=record.value)

    with pytest.raises(HookError, match=r"computation 'C', key 1.*produce\(key=2\) on stream 'out'"):
        run_step(Other(), [(1, 0, "r", 2)], same_key=["out"])
    with pytest.raises(HookError):
        run_step(Other(), [(1, 0, "r", True)], same_key=["out"])
    assert run_step(Other(), [(1, 0, "r", 1)], same_key=["out"]).productions[0].key == 1
    assert run_step(Other(), [(1, 0, "r", 2)]).productions[0].key == 2


# --- blame


class Opaque:
    def __repr__(self) -> str:
        return "Opaque()"


def test_a_state_that_cannot_be_encoded_names_computation_key_and_type():
    class Bad(ms.Computation):
        def process_record(self, record):
            self.state["x"] = Opaque()

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*Opaque"):
        run_step(Bad(), [("k", 0, "r", None)])


def test_a_value_that_cannot_be_encoded_names_computation_key_stream_and_type():
    class Bad(ms.Computation):
        def process_record(self, record):
            self.produce(Opaque())

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*stream 'out'.*Opaque"):
        run_step(Bad(), [("k", 0, "r", None)])


def test_a_map_entry_that_cannot_be_encoded_names_computation_key_and_type():
    class Bad(ms.Computation):
        State = ms.MapState

        def process_record(self, record):
            self.state["x"] = Opaque()

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*Opaque"):
        run_step(Bad(), [("k", 0, "r", None)])


def test_a_hook_that_raises_is_named_with_key_and_record_and_its_trace():
    class Bad(ms.Computation):
        def process_record(self, record):
            raise KeyError("lost")

    with pytest.raises(HookError, match=r"computation 'C', key 'k': KeyError: 'lost'") as caught:
        run_step(Bad(), [("k", 7, "r", None)])
    assert "timestamp=7" in str(caught.value) and "id='r'" in str(caught.value) and "raise KeyError" in str(caught.value)


def test_missing_hooks_say_so():
    class Deaf(ms.Computation):
        pass

    with pytest.raises(HookError, match="no process_record"):
        run_step(Deaf(), [("k", 0, "r", None)])

    class Timeless(ms.Computation):
        def process_record(self, record):
            self.set_timer("t", 0)

    with pytest.raises(HookError, match="no process_timer"):
        run_step(Timeless(), [("k", 0, "r", None)], low=0)


def test_a_tag_that_cannot_be_kept_is_a_hook_error():
    with pytest.raises(HookError, match="computation 'C', key 'k'"):
        run_step(Scripted(), [("k", 0, "r", [("set", "\ud800", 5, LOW)])])


def test_a_record_whose_value_cannot_be_read_is_a_hook_error():
    class Broken(Batch):
        def value(self, index):
            raise ValueError("unreadable")

        def id(self, index):
            return "r"

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*unreadable"):
        run_step(Scripted(), rows=[("k", 0, "r", Broken("in"), 0)])


def test_a_state_that_cannot_be_read_is_not_blamed_on_another_key():
    store = MemoryStore()
    run_step(Count(), [("b", 0, "r", 1)], store=store)

    class Changed(ms.Computation):
        State = dict

        def process_record(self, record):
            pass

    with pytest.raises(HookError, match="computation 'C', key 'b'") as caught:
        run_step(Changed(), [("a", 0, "innocent", None), ("b", 0, "s", None)], store=store)
    assert "innocent" not in str(caught.value)


def test_a_failed_step_leaves_the_entries_alone():
    store = MemoryStore()
    run_step(Count(), [("k", 0, "r", 1)], store=store)
    before = dict(store.entries)
    with pytest.raises(HookError):
        run_step(Count(), [("a", 0, "r", 1), ("k", 0, "r", "x")], store=store)
    assert store.entries == before


# --- state that grows fields


def test_a_dataclass_may_gain_fields_with_defaults():
    @dataclass
    class Old:
        seen: int = 0

    @dataclass
    class New:
        seen: int = 0
        best: str = "none"
        pages: ms.MapState = field(default_factory=ms.MapState)

    assert grown(Old, New) == (5, "none")


def test_a_struct_may_gain_fields_with_defaults():
    class Old(msgspec.Struct):
        seen: int = 0

    class New(msgspec.Struct):
        seen: int = 0
        best: str = "none"

    assert grown(Old, New) == (5, "none")


def test_a_field_without_a_value_in_old_rows_is_a_hook_error_that_names_it():
    class Old(msgspec.Struct):
        seen: int = 0

    class New(msgspec.Struct):
        seen: str = ""

    with pytest.raises(HookError, match=r"computation 'C', key 'k'.*seen"):
        grown(Old, New)


def grown(old: Any, new: Any) -> tuple[Any, Any]:
    class Before(ms.Computation):
        State = old

        def process_record(self, record):
            self.state.seen += 5

    read = []

    class After(ms.Computation):
        State = new

        def process_record(self, record):
            read.append((self.state.seen, self.state.best))

    store = MemoryStore()
    run_step(Before(), [("k", 0, "r", None)], store=store)
    run_step(After(), [("k", 0, "r", None)], store=store)
    return read[0]


def test_arrivals_stand_grouped_by_key():
    batch = ListBatch("in", [1, 2, 3], ["x", "y", "z"])
    found = Arrivals.of([(key_text("b"), 5, "x", batch, 0), (key_text("a"), 9, "y", batch, 1), (key_text("b"), 4, "z", batch, 2)])
    assert (list(found.keys), list(found.bounds), list(found.timestamps), list(found.index)) == (
        ["a", "b"],
        [0, 1, 3],
        [9, 4, 5],
        [1, 2, 0],
    )
