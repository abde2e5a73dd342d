"""Operators against plain recomputation, on random rows in random epochs and shards; and what is late is in one place."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opkit import Pushed, joined, late_ids, left_over, many_rows, pair_ids, pipelines, rows, run, runs, single, small

import millstream as ms
from effort import some
from millstream.operators.asof import AsOfJoin
from millstream.operators.first import Deduplicate
from millstream.operators.in_order import InOrder
from millstream.operators.interval_join import HOWS, IntervalJoin
from millstream.testing import assert_exactly_once, assert_same_in_any_epochs

INLINE = [1024, 60]
hows = st.sampled_from(HOWS)
spans = st.integers(0, 60)


def interval_join(given: list[Pushed], after: int, before: int, how: str, lateness: int = 0) -> list[Any]:
    lefts, rights = ([row for stream, row in given if stream == side] for side in ("left", "right"))
    pairs = [(a, b) for a in lefts for b in rights if a["k"] == b["k"] and -before <= b["at"] - a["at"] <= after]
    found: list[Any] = [(a["id"], b["id"], max(a["at"], b["at"])) for a, b in pairs]
    if how in ("left", "outer"):
        found += [(a["id"], None, a["at"] + after + lateness) for a in lefts if all(a is not one for one, _ in pairs)]
    if how in ("right", "outer"):
        found += [(None, b["id"], b["at"] + before + lateness) for b in rights if all(b is not one for _, one in pairs)]
    return sorted(found, key=repr)


def as_of(given: list[Pushed], back: int | None, how: str) -> list[Any]:
    found: list[Any] = []
    for left in (row for stream, row in given if stream == "left"):
        since = -math.inf if back is None else left["at"] - back
        near = [r for stream, r in given if stream == "right" and r["k"] == left["k"] and since <= r["at"] <= left["at"]]
        best = max(near, key=lambda r: (r["at"], r["id"]), default=None)
        if best is not None or how == "left":
            found.append((left["id"], None if best is None else best["id"], left["at"]))
    return sorted(found, key=repr)


@pytest.mark.parametrize("inline", INLINE)
@settings(max_examples=some(400), deadline=None)
@given(rows(), runs(), spans, spans, hows, st.sampled_from([0, 0, 25]))
def test_oracle_interval_join(inline: int, given: Any, how_run: Any, after: int, before: int, how: str, lateness: int) -> None:
    with small(inline):
        runner = run(joined(IntervalJoin, after, before, how, lateness), given, how_run)
    assert pair_ids(runner) == interval_join(given, after, before, how, lateness)
    assert runner.late("op") == 0 and left_over(runner) == []


@pytest.mark.parametrize("inline", INLINE)
@settings(max_examples=some(400), deadline=None)
@given(rows(), runs(), st.one_of(st.none(), spans), st.sampled_from(["left", "inner"]))
def test_oracle_as_of(inline: int, given: Any, how_run: Any, back: int | None, how: str) -> None:
    with small(inline):
        runner = run(joined(AsOfJoin, back, how), given, how_run)
    assert pair_ids(runner) == as_of(given, back, how)
    assert runner.late("op") == 0
    if back is not None:
        assert left_over(runner) == []
    else:
        rights = {row["k"] for stream, row in given if stream == "right"}
        assert set(runner.state("op")) == rights, "one right record per key stays"
        assert not any(state.inline or list(state.entries) for state in runner.state("op").values())


@pytest.mark.parametrize("inline", INLINE)
@settings(max_examples=some(300), deadline=None)
@given(rows(streams=["left"]), runs())
def test_oracle_in_order(inline: int, given: Any, how_run: Any) -> None:
    with small(inline):
        runner = run(single(InOrder), given, how_run)
    for key in "ab":
        mine = sorted(((row["at"], row["id"]) for _, row in given if row["k"] == key))
        assert [(one.timestamp, one.id) for one in runner.records("out") if one.key == key] == mine
        assert [(one.value["at"], one.value["id"]) for one in runner.records("out") if one.key == key] == mine
    assert left_over(runner) == []


@settings(max_examples=some(300), deadline=None)
@given(rows(streams=["left"], disorder=0), runs(), st.integers(1, 60))
def test_oracle_first(given: Any, how_run: Any, within: int) -> None:
    """In order of time: what is told is at least `within` behind what was told before."""
    runner = run(single(Deduplicate, within), given, how_run)
    for key in "ab":
        told: list[tuple[int, str]] = []
        for at, id in sorted((row["at"], row["id"]) for _, row in given if row["k"] == key):
            if not told or at >= told[-1][0] + within:
                told.append((at, id))
        assert [one.timestamp for one in runner.records("out") if one.key == key] == [at for at, _ in told]
    assert left_over(runner) == []
    assert runner._engine.tallies.get("op", {}).get("repeated", 0) == len(given) - len(runner.output("out"))


@settings(max_examples=some(200), deadline=None)
@given(rows(disorder=100, streams=["left"]), runs(), st.integers(1, 60))
def test_late_oracle_first(given: Any, how_run: Any, within: int) -> None:
    """Whatever the order: what is told is at least `within` apart, and what is not told is near something that was, or late."""
    runner = run(single(Deduplicate, within), given, how_run)
    late = late_ids(runner)
    for key in "ab":
        told = sorted(one.timestamp for one in runner.records("out") if one.key == key)
        assert all(b - a >= within for a, b in itertools.pairwise(told))
        others = [row for _, row in given if row["k"] == key and row["id"] not in late]
        assert all(any(abs(row["at"] - at) < within for at in told) for row in others)
    assert left_over(runner) == [] and not late & {one.id for one in runner.records("out")}


@pytest.mark.parametrize("inline", INLINE)
@settings(max_examples=some(300), deadline=None)
@given(rows(disorder=100), runs(), spans, spans, st.sampled_from([0, 30]))
def test_late_oracle_interval_join(inline: int, given: Any, how_run: Any, after: int, before: int, lateness: int) -> None:
    with small(inline):
        runner = run(joined(IntervalJoin, after, before, "outer", lateness), given, how_run)
    late, found = late_ids(runner), pair_ids(runner)
    on_time = [(stream, row) for stream, row in given if row["id"] not in late]
    expected = interval_join(on_time, after, before, "outer", lateness)
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected]
    assert all(got[2] >= pair[2] for got, pair in zip(found, expected, strict=True)), "raised to what is still allowed, at most"
    assert not late & {one for pair in found for one in pair[:2] if one is not None}
    assert runner.late("op") == len(late) and left_over(runner) == []


@settings(max_examples=some(200), deadline=None)
@given(rows(disorder=100), runs(), st.one_of(st.none(), spans))
def test_late_oracle_as_of(given: Any, how_run: Any, back: int | None) -> None:
    runner = run(joined(AsOfJoin, back), given, how_run)
    late = late_ids(runner)
    assert pair_ids(runner) == as_of([(stream, row) for stream, row in given if row["id"] not in late], back, "left")


@settings(max_examples=some(200), deadline=None)
@given(rows(disorder=100, streams=["left"]), runs())
def test_late_oracle_in_order(given: Any, how_run: Any) -> None:
    runner = run(single(InOrder), given, how_run)
    for key in "ab":
        told = [(one.timestamp, one.id) for one in runner.records("out") if one.key == key]
        assert told == sorted((row["at"], row["id"]) for _, row in given if row["k"] == key and row["id"] not in late_ids(runner))


@settings(max_examples=some(80), deadline=None)
@given(rows(), runs(), st.one_of(st.none(), spans))
def test_pandas_agrees_about_as_of(given: Any, how_run: Any, back: int | None) -> None:
    lefts, rights = (
        pd.DataFrame([row for stream, row in given if stream == side], columns=["k", "at", "id"]).astype({"at": "int64"})
        for side in ("left", "right")
    )
    merged = pd.merge_asof(
        lefts.sort_values(["at", "id"]),
        rights.sort_values(["at", "id"]),
        on="at",
        by="k",
        tolerance=back,
        suffixes=("", "_right"),
    )
    judged = [(r.id, None if pd.isna(r.id_right) else r.id_right, r.at) for r in merged.itertuples()]
    assert pair_ids(run(joined(AsOfJoin, back), given, how_run)) == sorted(judged, key=repr)


# --- the public kits, over every operator


def case(name: str) -> tuple[ms.Pipeline, list[Pushed]]:
    p = pipelines()[name]
    given = many_rows(60) if "right" in p.topology().injectors else many_rows(60, ("left",))
    return p, given if name != "first" else sorted(given, key=lambda pushed: pushed[1]["at"])


@pytest.mark.parametrize("name", ["inner", "outer", "asof", "asof back", "in order", "first"])
@pytest.mark.parametrize("inline", INLINE)
def test_every_operator_gives_the_same_in_any_epochs(name: str, inline: int) -> None:
    with small(inline):
        assert_same_in_any_epochs(*case(name), seeds=range(some(20)))


@pytest.mark.parametrize("name", ["inner", "outer", "asof", "asof back", "in order", "first"])
def test_every_operator_is_exactly_once_under_faults(name: str) -> None:
    with small(60):
        assert_exactly_once(*case(name), seeds=range(some(12, 3)))
