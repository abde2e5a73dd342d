"""The end of a visit and of a step: what it may do, what dead letters undo, and how scans pass by every row once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import run_step

import millstream as ms
from effort import some
from millstream.core import step as step_module
from millstream.core.keys import key_bytes
from millstream.core.visit import AHEAD, BEHIND, NOW, Saved
from millstream.errors import HookError
from millstream.state.memory_storage import MemoryStore


class Gathers(ms.Computation):
    """Gathers what it is told to, and fails where it is told to."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        for one in record.value:
            if one == "fail":
                raise ValueError("told to")
            self.later("all", one)
            self.tally("gathered")
            self.state.append(one)

    def finish_epoch(self, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        self.produce([value for _, value, _ in gathered], key="all")


def step(computation: Any, rows: list[tuple[str, int, Any]], store: MemoryStore, **options: Any) -> Any:
    """One step on (key, timestamp, value); the store takes its delta."""
    records = [(key, time, f"{time:03}", value) for key, time, value in rows]
    return run_step(computation(), records, store=store, **options)


def rows_of(store: MemoryStore) -> dict[str, list[Any]]:
    return {entry[1:].decode(): state_of(raw) for entry, raw in store.entries.items() if entry.startswith(b"R")}


def gathered_by(rows: list[tuple[str, int, list[Any]]]) -> tuple[list[Any], dict[str, int], list[Any]]:
    store = MemoryStore()
    outcome = step(Gathers, rows, store, dead_letters="dead")
    sent = [ms.codecs.msgpack.decoder(object)(p.body) for p in outcome.productions if p.stream != "dead"]
    kept = [one for entry, raw in store.entries.items() if entry.startswith(b"R") for one in state_of(raw)]
    return (sent[0] if sent else []), outcome.counts.tallies, kept


def state_of(raw: bytes) -> list[Any]:
    from millstream.core.keyspace import decode_row

    return ms.codecs.msgpack.decoder(list)(decode_row(raw).state)  # type: ignore[no-any-return]


RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from([1, 2, "fail"]), max_size=3)), max_size=8)


@given(RECORDS)
@settings(max_examples=some(60), deadline=None)
def test_what_is_gathered_is_what_hooks_that_ended_well_have_left(records: list[tuple[str, list[Any]]]) -> None:
    rows = [(key, at, value) for at, (key, value) in enumerate(records)]
    expected = [one for key, _, value in sorted(rows) if "fail" not in value for one in value]
    sent, tallies, kept = gathered_by(rows)
    assert sent == expected
    assert tallies.get("gathered", 0) == len(expected)
    assert sorted(kept) == sorted(expected)


def test_twin_a_visit_that_leaves_what_it_gathered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def put_back(self: Saved, visit: Any) -> None:
        kept = list(visit.gathered)
        whole(self, visit)
        visit.gathered[:] = kept

    whole = Saved.put_back
    rows = [("a", 1, [1]), ("a", 2, [2, "fail"])]
    assert gathered_by(rows)[0] == [1]
    monkeypatch.setattr(Saved, "put_back", put_back)
    assert gathered_by(rows)[0] == [1, 2]


class Finishes(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value

    def finish_key(self) -> None:
        if self.state < 0:
            self.later("never", 1)
            raise ValueError("negative")
        self.produce([self.state, self.cause.kind])  # type: ignore[union-attr]


def test_a_finish_that_raises_undoes_itself_and_not_the_records() -> None:
    store = MemoryStore()
    outcome = step(Finishes, [("a", 1, -5), ("b", 2, 3)], store, dead_letters="dead")
    letters = [p for p in outcome.productions if p.stream == "dead"]
    (letter,) = [ms.codecs.msgpack.decoder(object)(p.body) for p in letters]
    assert letter["error"] == "ValueError: negative"
    assert letter["timer"] == ["finish", "", 1]
    assert [(p.key, p.timestamp) for p in outcome.productions if p.stream != "dead"] == [("b", 2)]
    assert outcome.counts.dead == 1
    assert [ms.codecs.msgpack.decoder(int)(row_state(store, "a"))] == [-5]


def row_state(store: MemoryStore, key: str) -> bytes:
    from millstream.core.keyspace import decode_row

    return decode_row(store.entries[b"R" + key_bytes(key)]).state


def test_without_dead_letters_it_fails_the_epoch_and_names_the_key() -> None:
    with pytest.raises(HookError, match=r"key 'a': ValueError: negative"):
        step(Finishes, [("a", 1, -5)], MemoryStore())


class Careless(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.later("x", record.value)

    def finish_epoch(self, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        what = gathered[0][1]
        if what == "timer":
            self.set_timer("t", 5)
        elif what == "old":
            self.produce(1, key="k", timestamp=0)
        elif what == "value":
            return 5  # type: ignore[return-value]
        else:
            raise KeyError(what)


@pytest.mark.parametrize(
    ("what", "why"),
    [("timer", "cannot set timers"), ("old", "older than what caused it"), ("value", "hooks return nothing"), ("other", "KeyError")],
)
def test_what_the_end_of_a_step_may_not_do_fails_the_epoch_also_with_dead_letters(what: str, why: str) -> None:
    with pytest.raises(HookError, match=why):
        step(Careless, [("a", 7, what)], MemoryStore(), dead_letters="dead")


class Scanned(ms.Computation):
    """Notes where the scan was when a key was visited."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state = [*self.state, record.value]

    def finish_key(self) -> None:
        if self._visit.scans:
            self.later("seen", (self.key, self._visit.scanned("s")))

    def finish_epoch(self, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        self.produce([list(value) for _, value, _ in gathered], key="all")


KEYS = [f"k{at:02}" for at in range(12)]


@given(
    st.sets(st.sampled_from(KEYS)),
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.sampled_from(KEYS), max_size=4)), min_size=1, max_size=8),
)
@settings(max_examples=some(100), deadline=None)
def test_a_scan_is_at_every_row_once_and_hooks_can_tell(before: set[str], epochs: list[tuple[int, list[str]]]) -> None:
    """A copy that takes what is new at rows the scan is at, follows those behind it and leaves those ahead, ends equal to the rows."""
    store = MemoryStore()
    step(Scanned, [(key, 0, 0) for key in sorted(before)], store)
    copy: dict[str, list[Any]] = {}
    ended, after = False, {}
    plan = [*epochs, *[(3, []) for _ in range(8)]]
    for at, (limit, live) in enumerate(plan, 1):
        states = rows_of(store)
        outcome = step(Scanned, [(key, at, at) for key in sorted(set(live))], store, scans={"s": limit}, epoch=at)
        after = rows_of(store)
        for key, where in [pair for p in outcome.productions for pair in ms.codecs.msgpack.decoder(object)(p.body)]:
            if where == BEHIND:
                assert copy.get(key, []) == states.get(key, [])
            if where == NOW:
                assert key not in copy
            if where != AHEAD:
                copy[key] = after[key]
        rows, ended = outcome.counts.scanned["s"]
        assert rows <= limit
    assert ended
    assert copy == after


def test_twin_a_cursor_that_is_settled_after_the_visits_misses_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cursor of the epoch before, a row that is new between the two cursors is neither followed nor scanned."""

    def late(self: Any) -> dict[bytes, None]:
        rows = settled(self)
        was, _ = self.visit.scans["s"]
        if was is not None:
            self.visit.scans["s"] = (was, was)
        return rows

    settled = step_module.Step._backfill_scans
    store = MemoryStore()
    step(Scanned, [("a", 0, 0), ("c", 0, 0), ("d", 0, 0)], store)
    monkeypatch.setattr(step_module.Step, "_backfill_scans", late)
    outcome = step(Scanned, [("b", 1, 1)], store, scans={"s": 2}, epoch=1)
    seen = dict(ms.codecs.msgpack.decoder(object)(outcome.productions[0].body))
    assert seen["b"] == AHEAD
    assert outcome.delta[b"Ss"] == b"\x01c"  # and so the scan will not come to it
