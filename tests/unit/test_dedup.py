"""Deduplication: the filter, the spans, and the whole against a dumb twin."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core import dedup as dedup_module
from millstream.core.dedup import Dedup, Filter, SpanFilters, check, dedup
from millstream.simulation.list_inputs import ListIds
from millstream.state.memory_storage import MemoryStore
from millstream.testing import LocalRunner


def rows(names: list[bytes], bits: int = 64) -> ListIds:
    """Records of these names, of whose hashes only some bits differ."""
    found = ListIds(names, [0] * len(names))
    found.hashes = found.hashes >> np.uint64(64 - bits) << np.uint64(64 - bits)
    return found


def run(rule: Dedup, store: Any, filters: SpanFilters, names: list[bytes], now: int, epoch: int, bits: int = 64) -> tuple[list[bool], Any]:
    keep, delta, counts = check(rule, "s", store, filters, rows(names, bits), now, epoch)
    store.apply(delta)
    return keep.tolist(), counts


def test_the_filter_never_forgets_and_seldom_errs() -> None:
    dice = np.random.default_rng(1)
    added, others = dice.integers(0, 2**64, 50_000, np.uint64), dice.integers(0, 2**64, 50_000, np.uint64)
    filter = Filter(50_000)
    filter.add(added)
    assert filter.may_have(added).all()
    assert filter.may_have(others).mean() < 0.005


@settings(max_examples=some(60), deadline=None)
@given(st.data())
def test_oracle_a_record_is_dropped_exactly_while_its_id_is_held(data: Any) -> None:
    """Against a dictionary. With few bits of hash, equal hashes of different ids are the rule: nothing may be dropped for that."""
    rule = Dedup(horizon=data.draw(st.integers(1, 50)), slack=data.draw(st.integers(0, 20)), span=data.draw(st.integers(1, 20)))
    bits = data.draw(st.sampled_from([2, 6, 64]))
    store, filters, held, now = MemoryStore(), SpanFilters(), dict[bytes, int](), 0
    total = 0
    merged = data.draw(st.sampled_from([2, 3, dedup_module.MERGED]))  # entries that become one
    pace = data.draw(st.sampled_from([2, 30]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dedup_module, "MERGED", merged)
        _compare(data, rule, bits, store, filters, held, now, total, pace)


def _compare(
    data: Any, rule: Dedup, bits: int, store: Any, filters: SpanFilters, held: dict[bytes, int], now: int, total: int, pace: int
) -> None:
    for epoch in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.integers(0, pace))
        names = [b"%d" % n for n in data.draw(st.lists(st.integers(0, 25), max_size=12))]
        held = {name: span for name, span in held.items() if not rule.is_over(span, now)}
        expected = []
        for name in names:
            expected.append(name not in held)
            held.setdefault(name, rule.span_of(now))
        if data.draw(st.booleans()):
            filters = SpanFilters()  # another worker
        keep, counts = run(rule, store, filters, names, now, epoch, bits)
        assert keep == expected
        total += counts.held
        assert (counts.checked, counts.dropped, total) == (len(names), expected.count(False), len(held))
        assert counts.filtered <= counts.checked


@pytest.mark.slow
def test_a_span_has_few_entries_however_many_epochs_it_lasts() -> None:
    """And nothing is forgotten: all that came is still known, also to a worker that comes anew."""
    rule, store, filters = dedup("10m"), MemoryStore(), SpanFilters()
    names = [[b"%d-%d" % (epoch, i) for i in range(1 + epoch % 40)] for epoch in range(3_000)]
    most = 0
    for epoch, came in enumerate(names):
        keep, _ = run(rule, store, filters, came, 20 * epoch, epoch)
        assert all(keep)
        most = max(most, len(store.entries))
    assert most < 2 * 5 * dedup_module.MERGED, "one entry for the hashes and one for the ids; without merging there would be 6,000"
    for known in (filters, SpanFilters()):
        for epoch in (0, 1, 777, 2_999):
            keep, _ = run(rule, MemoryStore(dict(store.entries)), known, names[epoch], 60_001, 3_000)
            assert not any(keep)


@settings(max_examples=some(30), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3)), min_size=1, max_size=60))
def test_what_is_stored_does_not_depend_on_who_has_worked_before(epochs: list[tuple[int, int]]) -> None:
    """Attempts at one epoch in several workers, of which some have not been there for a while, must make the same delta."""
    rule, store = dedup("10m"), MemoryStore()
    workers = [SpanFilters() for _ in range(4)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dedup_module, "MERGED", 3)
        patched.setattr(dedup_module, "_SMALL", 64)
        for epoch, (count, which) in enumerate(epochs):
            names = [b"%d-%d" % (epoch, i) for i in range(count)]
            made = [
                check(rule, "s", store, filters, rows(names), 1000 + epoch, epoch, "run")[1]
                for filters in (workers[0], workers[which], SpanFilters())
            ]
            assert made[0] == made[1] == made[2]
            store.apply(made[0])


def test_spans_are_dropped_whole_and_ids_never_pile_up() -> None:
    rule, store, filters = dedup("10m"), MemoryStore(), SpanFilters()
    sizes = []
    for epoch in range(200):
        run(rule, store, filters, [b"%d-%d" % (epoch, i) for i in range(10)], 30_000 * epoch, epoch)
        sizes.append(len(store.entries))
    assert max(sizes) == sizes[-1] <= 2 * 24
    assert len(filters._filters) <= 12


def test_almost_every_new_record_is_answered_by_the_filter_alone() -> None:
    rule, store, filters = dedup("10m"), MemoryStore(), SpanFilters()
    checked = filtered = dropped = 0
    dice = random.Random(2)
    for epoch in range(20):
        names = [b"%d-%d" % (epoch, i) for i in range(2_000)]
        if epoch:
            names += [b"%d-%d" % (dice.randrange(epoch), dice.randrange(2_000)) for _ in range(20)]
        _, counts = run(rule, store, filters, names, 30_000 * epoch, epoch)
        checked, filtered, dropped = checked + counts.checked, filtered + counts.filtered, dropped + counts.dropped
    assert filtered > 0.97 * checked
    assert 0 < dropped <= 20 * 19


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1


@pytest.mark.parametrize(
    ("options", "expected", "dropped"),
    [({}, 2, 1), ({"dedup": None}, 3, 0), ({"dedup": "1s"}, 3, 0), ({"dedup": ms.dedup("1s", slack="1h")}, 2, 1)],
)
def test_a_repeated_record_counts_once_unless_the_horizon_has_passed_or_dedup_is_off(
    options: dict[str, Any], expected: int, dropped: int
) -> None:
    p = ms.Pipeline("dedup")
    source = ms.sources.files("nowhere", schema="k string, at long, id string", format="json")
    p.compute(Count, p.inject("in", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1h"), **options), key="k")
    runner = LocalRunner(p, now=1_000_000)
    runner.push("in", {"k": "a", "at": 1, "id": "x"}, {"k": "b", "at": 1, "id": "x"})  # the same id under two keys: two records
    runner.epoch()
    runner.advance_clock(1_000_000 + 60_000)
    runner.push("in", {"k": "a", "at": 1, "id": "x"})
    runner.epoch()
    assert (sum(runner.state("Count").values()), runner.duplicates) == (expected, dropped)


def test_a_horizon_that_is_changed_between_runs_holds_from_then_on() -> None:
    for before, after, gap, kept in (
        ("1h", "10m", 1_000, False),
        ("1h", "10m", 17 * 60_000, True),
        ("10m", "1h", 30 * 60_000, False),
        ("10m", "1h", 24 * 3_600_000, True),
    ):
        store = MemoryStore()
        run(dedup(before), store, SpanFilters(), [b"x"], 10**12, 0)
        keep, _ = run(dedup(after), store, SpanFilters(), [b"x"], 10**12 + gap, 1)
        assert keep == [kept], (before, after, gap)
