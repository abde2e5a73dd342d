"""Partial results before the exchange: rows that are folded where they are read come to the same, bit by bit, as rows that travel one by one."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.outcome import Outcome, Times
from millstream.core.time import BEGINNING, END
from millstream.core.watermark import Seen
from millstream.engine.columns import arrow_rows
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.folding import Folding
from millstream.engine.columns.keying import Keying
from millstream.engine.program import Compiled
from millstream.engine.resident.partitioning import joined
from millstream.operators import panes, vectors
from millstream.state.memory_storage import MemoryStore

SHARDS = 3
ARROW = pa.schema(
    [("user", pa.string()), ("at", pa.int64()), ("price", pa.int64()), ("page", pa.string()), ("weight", pa.float64()), ("id", pa.string())]
)


class Shards:
    """A window operator on some shards, without engine: rows in, what it does out, epoch by epoch."""

    def __init__(self, kind: Any, folds: bool, lateness: int = 0) -> None:
        p = ms.Pipeline("folding")
        source = ms.sources.files("in/", schema="user string, at long, price long, page string, weight double, id string")
        rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1s"), dedup=None)
        reducers = {
            "n": ms.count(),
            "p": ms.count("price"),
            "sum": ms.sum("price"),
            "mean": ms.mean("price"),
            "min": ms.min("page"),
            "max": ms.max("weight"),
            "first": ms.first("page"),
            "last": ms.last("price"),
            "by": ms.last("page", by="price"),
        }
        window = rows.by("user").window(kind, late="late", lateness=f"{lateness}ms")
        windows = window.reduce(reducers, name="windows", on_error=ms.DEAD_LETTER)
        p.emit(windows.changes if lateness else windows, ms.sinks.memory(), ids=True)
        program = p.program()
        self.compiled = Compiled(program)
        self.keying = Keying(program, program.topology.injectors["rows"], ARROW, SHARDS)
        self.stores = [MemoryStore() for _ in range(SHARDS)]
        self.folds = folds

    def epoch(self, number: int, tables: list[pa.Table], late_before: int, low: int, newest: int | None) -> tuple[list[Outcome], Seen, int]:
        """One epoch, whose rows come in several tables. Also: what was seen, and how many rows travelled."""
        times = {"windows": Times(0, late_before, low, number, least=late_before)}
        folding = Folding(self.compiled, times, {"rows": newest})
        made = [
            one for table in tables for one in (self.keying.folded(table, 0, "", folding) if self.folds else [self.keying.keyed(table, 0)])
        ]
        whole = joined(made)
        outcomes, seen = [], Seen()
        group = msgspec.structs.replace(self.compiled.topology.levels[0][0], computations=("windows",))
        for shard in range(SHARDS):
            part = None if whole is None else whole.filter(pa.array(whole.column("part").to_numpy() == shard))
            inputs = ArrowInputs(self.compiled, [self.keying.layout], part if part is not None and len(part) else None)
            inputs.take(())
            for one in inputs.seen({"rows": newest}).values():
                seen.add(one)
            outcome = self.compiled.run_group(group, {"windows": inputs.arrivals("windows", {})}, {"windows": self.stores[shard]}, times)[
                "windows"
            ]
            self.stores[shard].apply(outcome.delta)
            outcomes.append(outcome)
        return outcomes, seen, 0 if whole is None else len(whole)


def rows(dice: random.Random, base: int, count: int) -> list[dict[str, Any]]:
    """Some of them have values that columns cannot take."""
    found = []
    is_wild = dice.random() < 0.3
    for number in range(count):
        at = base + dice.randint(-9_000, 3_000)
        price = dice.choice([None, dice.randint(-5, 5), 2**62, -(2**62)]) if is_wild else dice.choice([None, dice.randint(-5, 5)])
        odd = dice.random()
        found.append(
            {
                "user": None if odd < 0.03 else dice.choice(["sue", "tod", "\0x", "ä"]),
                "at": None if odd > 0.97 else END if odd > 0.95 else BEGINNING if odd > 0.94 else at,
                "price": price,
                "id": None if 0.03 < odd < 0.06 else f"r{base}-{number}-{dice.random()}",
                "page": dice.choice(["a", "b", None]),
                "weight": dice.choice([0.0, -0.0, float("nan"), 1.5, None]) if is_wild else dice.choice([None, 2.5, -1.5]),
            }
        )
    return found


KINDS = [
    ms.windows.tumbling("1s"),
    ms.windows.hopping("3s", every="1s"),
    ms.windows.calendar("day", zone="Asia/Kolkata"),
    ms.windows.session("400ms"),
]


@settings(max_examples=some(120), deadline=None)
@given(seed=st.integers(0, 10**9), kind=st.sampled_from(KINDS))
def test_folded_rows_come_to_the_same_state_results_late_rows_and_counts(seed: int, kind: Any) -> None:
    check(seed, kind)


@settings(max_examples=some(120), deadline=None)
@given(seed=st.integers(0, 10**9), kind=st.sampled_from(KINDS[:3]), lateness=st.sampled_from([500, 2_000, 5_000]))
def test_folded_rows_of_windows_that_change_come_to_the_same(seed: int, kind: Any, lateness: int) -> None:
    check(seed, kind, lateness)


def test_rows_of_windows_that_change_are_folded() -> None:
    assert sum(check(seed, KINDS[0], 2_000) for seed in range(3)) > 100, "rows that need not travel"


def check(seed: int, kind: Any, lateness: int = 0) -> int:
    """How many rows did not have to travel."""
    dice, saved = random.Random(seed), 0
    one, other = Shards(kind, True, lateness), Shards(kind, False, lateness)
    late_before, newest = BEGINNING, None
    for number in range(5):
        base = 1_000_000 + number * 2_000
        tables = [pa.Table.from_pylist(rows(dice, base, dice.randint(0, 40)), schema=ARROW) for _ in range(dice.randint(1, 3))]
        low = max(late_before, base - 1_500) if number < 4 else END
        a, seen_a, few = one.epoch(number, tables, late_before, low, newest)
        b, seen_b, all_rows = other.epoch(number, dice.sample(tables, len(tables)), late_before, low, newest)
        saved += all_rows - few
        for x, y in zip(a, b, strict=True):
            encode = one.compiled.encode_value
            assert x.delta == y.delta
            assert [r.content(encode) for r in x.results] == [r.content(encode) for r in y.results]
            assert [p.id for r in x.results for p in r.productions(encode)] == [p.id for r in y.results for p in r.productions(encode)]
            assert sorted(map(repr, x.productions)) == sorted(map(repr, y.productions))
            x.counts.last_late, y.counts.last_late = [], []
            assert x.counts == y.counts
        assert seen_a == seen_b
        late_before, newest = low, seen_b.newest if seen_b.newest is not None else newest
    assert all(not store.entries for store in one.stores), "nothing is left behind the last window"
    return saved


def test_few_rows_travel_where_they_are_folded() -> None:
    table = pa.Table.from_pylist(
        [{"user": f"u{n % 7}", "at": 1_000_000 + n, "price": n, "page": "a", "weight": 1.0, "id": str(n)} for n in range(5_000)],
        schema=ARROW,
    )
    assert Shards(KINDS[0], True).epoch(0, [table], BEGINNING, BEGINNING, None)[2] <= SHARDS
    assert Shards(KINDS[0], False).epoch(0, [table], BEGINNING, BEGINNING, None)[2] == 5_000


def test_folded_rows_of_a_stream_that_a_reducer_does_not_read_are_not_counted() -> None:
    p = ms.Pipeline("folding")
    streams = [
        p.inject(name, ms.sources.files(f"{name}/", schema="user string, at long"), timestamp="at", dedup=None) for name in ("a", "b")
    ]
    both = streams[0].by("user").merge(streams[1].by("user")).window(KINDS[0])
    p.emit(both.reduce(a=ms.count(of=streams[0]), b=ms.count(of=streams[1]), name="windows"), ms.sinks.memory())
    program = p.program()
    compiled, times = Compiled(program), {"windows": Times(0, BEGINNING, END)}
    schema = pa.schema([("user", pa.string()), ("at", pa.int64())])
    table = pa.table({"user": ["sue"] * 3, "at": [1, 2, 3]}, schema=schema)
    keying = Keying(program, program.topology.injectors["b"], schema, 1)
    (folded,) = keying.folded(table, 0, "", Folding(compiled, times, {"a": None, "b": None}))
    inputs = ArrowInputs(compiled, [[], keying.layout], folded)
    inputs.take(())
    outcome = compiled.run_group(
        compiled.topology.levels[0][0], {"windows": inputs.arrivals("windows", {})}, {"windows": MemoryStore()}, times
    )["windows"]
    assert [(value["a"], value["b"]) for result in outcome.results for value in result.values()] == [(0, 3)]


def fails(times: int = 40, lateness: int = 0) -> None:
    for seed in range(times):
        check(seed, KINDS[seed % 2], lateness)


def large_sum() -> int:
    """Two numbers that fit 64 bits, and whose sum does not."""
    table = pa.Table.from_pylist(
        [{"user": "sue", "at": 1_000_000, "price": 2**62, "page": None, "weight": None, "id": "one"}] * 2, schema=ARROW
    )
    outcomes, _, _ = Shards(KINDS[0], True).epoch(0, [table], BEGINNING, END, None)
    return next(value["sum"] for outcome in outcomes for result in outcome.results for value in result.values())  # type: ignore[no-any-return]


def test_sums_do_not_wrap() -> None:
    assert large_sum() == 2**63


def test_twin_sums_that_wrap_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_LIMIT", 2**200)
    assert large_sum() != 2**63


@pytest.mark.parametrize("lateness", [0, 2_000])
def test_twin_late_rows_that_are_folded_are_noticed(monkeypatch: pytest.MonkeyPatch, lateness: int) -> None:
    monkeypatch.setattr(panes.PaneWindow, "late_times", lambda self, times, before: None)
    with pytest.raises(AssertionError):
        fails(lateness=lateness)


def test_twin_chunks_that_are_not_in_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = panes.labels
    monkeypatch.setattr(panes, "labels", lambda *given, **options: real(*given, **{**options, "ordered": False}))
    with pytest.raises(AssertionError):
        fails()


def test_twin_what_was_seen_before_the_exchange_must_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = arrow_rows.decode_folded

    def forgets(data: bytes) -> Any:
        found = real(data)
        found.seen = None
        return found

    monkeypatch.setattr(arrow_rows, "decode_folded", forgets)
    with pytest.raises(AssertionError):
        fails(5)
