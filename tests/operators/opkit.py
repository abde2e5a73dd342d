"""What the tests of operators share: pipelines, rows in disorder, runs in random epochs, and what is left of a computation."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

import millstream as ms
from millstream.core.topology import INTERVAL_JOIN
from millstream.operators import buffer, waiting
from millstream.operators.asof import AsOfJoin
from millstream.operators.first import Deduplicate
from millstream.operators.in_order import InOrder
from millstream.operators.interval_join import IntervalJoin
from millstream.testing import LocalRunner

DELAY = 20
SOURCE = ms.sources.files("in/", schema="k string, at long, id string")
Pushed = tuple[str, dict[str, Any]]  # stream, row


def joined(operator: Any = IntervalJoin, *args: Any, late: Any = "late", delay: int = DELAY, **options: Any) -> ms.Pipeline:
    """left and right into an operator of two inputs."""
    p = ms.Pipeline("joined")
    streams = [inject(p, name, delay) for name in ("left", "right")]
    p.compute(functools.partial(operator, "left", *args, **options), *streams, key="k", name="op", produces="out", late=late)
    if operator is IntervalJoin:
        p._computations[-1] = msgspec.structs.replace(p._computations[-1], in_columns=True, kind=INTERVAL_JOIN, about={"join": repr(args)})
    return p


def single(operator: Any, *args: Any, late: Any = "late", delay: int = DELAY) -> ms.Pipeline:
    p = ms.Pipeline("single")
    p.compute(functools.partial(operator, *args), inject(p, "left", delay), key="k", name="op", produces="out", late=late)
    return p


def inject(p: ms.Pipeline, name: str, delay: int = DELAY) -> ms.Stream:
    return p.inject(name, SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded(f"{delay}ms"))


def pipelines() -> dict[str, ms.Pipeline]:
    return {
        "inner": joined(IntervalJoin, 30, 10),
        "outer": joined(IntervalJoin, 30, 10, how="outer", lateness=15),
        "asof": joined(AsOfJoin),
        "asof back": joined(AsOfJoin, 25, "inner"),
        "in order": single(InOrder),
        "first": single(Deduplicate, 30),
    }


def many_rows(count: int, streams: tuple[str, ...] = ("left", "right")) -> list[Pushed]:
    """Rows of three keys, always the same, none of them late."""
    arrival = sorted(range(count), key=lambda n: n * 7 + n * 13 % DELAY)
    return [(streams[n * n % len(streams)], {"k": "abc"[n % 3], "at": n * 7, "id": str(n)}) for n in arrival]


@st.composite
def rows(draw: st.DrawFn, disorder: int = DELAY, streams: Sequence[str] = ("left", "right"), most: int = 25) -> list[Pushed]:
    """Rows in the order of their arrival, none of which comes behind one that is more than the disorder newer."""
    found = draw(
        st.lists(
            st.tuples(st.sampled_from(streams), st.sampled_from("ab"), st.integers(0, 150), st.integers(0, disorder)),
            max_size=most,
        )
    )
    found.sort(key=lambda row: row[2] + row[3])
    return [(stream, {"k": k, "at": at, "id": f"{stream[0]}{n}"}) for n, (stream, k, at, _) in enumerate(found)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[bool]]:
    """How many shards, and behind which records an epoch ends."""
    return draw(st.integers(1, 3)), draw(st.lists(st.booleans(), min_size=25, max_size=25))


def run(p: ms.Pipeline, given: Sequence[Pushed], how: tuple[int, list[bool]]) -> LocalRunner:
    runner = LocalRunner(p, shards=how[0])
    for at, (stream, row) in enumerate(given):
        runner.push(stream, row)
        if how[1][at]:
            runner.epoch()
    runner.drain()
    return runner


@contextlib.contextmanager
def small(inline: int) -> Iterator[None]:
    """Fewer bytes in the row and in a chunk; in a join, chunks of two records, and runs that are merged at once or are too large for it."""
    before = buffer.INLINE, buffer.CHUNK, waiting.ROWS, waiting.MERGED, waiting.LARGEST
    buffer.INLINE, buffer.CHUNK = inline, inline * 2
    if inline < before[0]:
        waiting.ROWS, waiting.MERGED, waiting.LARGEST = 2, 2, 6
    try:
        yield
    finally:
        buffer.INLINE, buffer.CHUNK, waiting.ROWS, waiting.MERGED, waiting.LARGEST = before


def left_over(runner: LocalRunner, operator: str = "op") -> list[bytes]:
    """All that the operator keeps: rows, entries, timers."""
    return [entry for (name, _), store in runner._engine.stores.items() if name == operator for entry in store.entries]


def late_ids(runner: LocalRunner) -> set[str]:
    return {value["id"] for _, value, _ in runner.output("late")}


def id_of(value: Any) -> str | None:
    return None if value is None else value["id"]


def pair_ids(runner: LocalRunner) -> list[tuple[str | None, str | None, int]]:
    return sorted(((id_of(v["left"]), id_of(v["right"]), at) for _, v, at in runner.output("out")), key=repr)
