"""A shard that nothing came to, and of which nothing is due, is not looked at; and nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from effort import seeds
from millstream.core.dedup import Dedup, SpanFilters, check, pack
from millstream.core.guards import Guards
from millstream.core.keys import key_text, shard_of
from millstream.core.record import ListBatch
from millstream.engine.columns import arrow_rows
from millstream.engine.columns.arrow_rows import to_arrivals
from millstream.engine.columns.batches import EncodedBatch
from millstream.engine.resident.partitioning import from_bytes, to_bytes
from millstream.simulation.fakes import Host
from millstream.simulation.simulated_run import InputPlan
from millstream.state.memory_storage import MemoryStore
from millstream.state.segment import SegmentRef
from sparklog import SparkLogSimulation

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")


class Ringing(ms.Computation):
    """Counts, and says its count when event time has gone on, and when the wall clock has."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.set_timer("low", record.timestamp + 40, hold=record.timestamp)
        self.set_timer("wall", self.now + 300, ms.WALL_CLOCK)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce([timer.tag, self.state])


def pipeline() -> ms.Pipeline:
    p = ms.Pipeline("idle")
    rows = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("10ms"))
    rung = p.compute(Ringing, rows, key="k", produces="rung")
    p.compute(Ringing, rung, key=lambda record: record.key, name="Again", produces="again")
    return p


ROWS = [{"k": f"k{n % 5}", "n": n, "at": 10 * n, "id": str(n)} for n in range(25)]


def test_timers_of_shards_without_records_fire_as_if_each_shard_were_looked_at_in_every_epoch() -> None:
    ms.testing.assert_exactly_once(pipeline(), ROWS, seeds=seeds(40), epochs="same")


def test_without_the_look_at_what_is_due_they_do_not() -> None:
    with pytest.raises(AssertionError, match="is not exactly once"):
        ms.testing.assert_exactly_once(pipeline(), ROWS, seeds=range(40), guards=Guards.without("due"), epochs="same")


def test_the_state_of_an_idle_shard_is_read_once_more_after_it_has_changed_and_then_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, int]] = []
    view = Host.view

    def noting(self: Host, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Any) -> MemoryStore:
        looked.append((before.epoch + 1, shard))
        return view(self, lineage, shard, chain, before)

    monkeypatch.setattr(Host, "view", noting)
    p = ms.Pipeline("quiet")
    p.compute(Keeping, p.inject("in", SOURCE, timestamp="at", id="id", dedup=None), key="k")
    busy, first = shard_of(key_text("k0").encode(), 4), [("in", {"k": f"k{n}", "n": n, "at": 1, "id": str(n)}) for n in range(20)]
    later = [[("in", {"k": "k0", "n": 0, "at": 1, "id": f"later {n}"})] for n in range(8)]
    SparkLogSimulation(p.program(), InputPlan([first, *later], [1_000] * 9), [], 1, shards=4).run()
    looks = {epoch: {shard for at, shard in looked if at == epoch} for epoch in range(1, 9)}
    assert looks == {1: {0, 1, 2, 3}} | {epoch: {busy} for epoch in range(2, 9)}


class Keeping(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1


def test_ids_whose_span_may_be_over_are_looked_for_also_where_nothing_came() -> None:
    rule, filters, store = Dedup(horizon=1_000, slack=50, span=100), SpanFilters(), MemoryStore()
    assert filters.may_be_over("1-a", 0), "nobody has looked"
    store.apply(check(rule, "in", store, filters, _Ids(7), 1_010, 1, "1-a")[1])
    check(rule, "in", store, filters, None, 1_900, 2, "1-a")
    assert not filters.may_be_over("1-a", 2_149) and filters.may_be_over("1-a", 2_150), "the span up to 1,100 is over then"
    assert filters.may_be_over("2-b", 2_000), "another run may have another horizon"
    assert check(rule, "in", store, filters, None, 2_149, 3, "1-a")[2].held == 0
    assert check(rule, "in", store, filters, None, 2_150, 3, "1-a")[2].held == -1


class _Ids:
    def __init__(self, number: int) -> None:
        self.hashes = np.array([number], np.uint64)

    def packed(self, positions: Any) -> bytes:
        return pack([b"x"])


# --- few rows take a way of their own


@pytest.mark.parametrize("seed", range(30))
def test_few_rows_are_put_in_the_order_that_columns_have(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    count = dice.randint(1, 14)
    table = pa.table(
        {
            "route": pa.array([dice.choice([0, 3]) for _ in range(count)], pa.int32()),
            "key": [dice.choice(["a", "b", "ä", "\U0001f600", "\uffff"]) for _ in range(count)],
            "ts": [dice.choice([1, 2, 3]) for _ in range(count)],
            "id": pa.array([dice.choice(["1", "2", None]) for _ in range(count)], pa.string()),
            "ord": [dice.choice([5, -6]) for _ in range(count)],
            "body": [b"" for _ in range(count)],
        }
    )
    batches: dict[int, Any] = {0: EncodedBatch("two", table, bytes.decode), 3: EncodedBatch("one", table, bytes.decode)}
    if dice.random() < 0.3:
        batches = {route: ListBatch("same", [], []) for route in batches}
    which: Any = arrow_rows.ALL if dice.random() < 0.5 else pa.array(sorted(dice.sample(range(count), dice.randint(1, count)))).to_numpy()
    few = to_arrivals(table, batches, which)
    monkeypatch.setattr(arrow_rows, "_FEW", -1)
    many = to_arrivals(table, batches, which)
    assert few == many


@pytest.mark.parametrize("rows", [1, 3, 1024, 1025])
def test_rows_come_back_from_bytes_as_they_were(rows: int) -> None:
    words = pa.array(["a", None, "b"] * rows).slice(0, rows)
    for column in (words, words.dictionary_encode(), pa.array([{"x": None, "y": [1]}] * rows)):
        table = pa.table({"n": list(range(rows)), "c": column})
        assert from_bytes(to_bytes(table)).equals(table)
        assert from_bytes(to_bytes(table.slice(rows - 1))).equals(table.slice(rows - 1))
    assert from_bytes(to_bytes(pa.concat_tables([table, table]))).equals(pa.concat_tables([table, table]))
    assert from_bytes(to_bytes(table.slice(0, 0))) is None
