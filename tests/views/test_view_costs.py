"""What an update costs: one visit and one message per group and epoch, one read and one write in a small group, and few nodes in a large one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from faultkit import SOURCE, Counted, people, user

import millstream as ms
from millstream.views.agg_tree import depth
from millstream.views.operator import ViewOperator


def test_a_document_and_a_group_are_visited_once_per_epoch_and_a_group_gets_one_message() -> None:
    counted = Counted(people())
    assert counted.epoch(user("Sue", 1), user("Joe", 2), user("Tod", 3)) == {"users": (1, 1, 1), "names": (1, 1, 0)}
    # ten users, half of them Sue now: three groups hear of it, one of them only that user 7 has gone
    posts = [user("Sue" if id % 2 else "Joe", 5, id) for id in range(10)]
    assert counted.epoch(*posts) == {"users": (10, 10, 3), "names": (3, 3, 0)}
    assert counted.epoch() == {"users": (0, 0, 0), "names": (0, 0, 0)}
    assert counted.runner.view("names") == {"Sue": 5, "Joe": 5}


def test_without_packing_every_change_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = ViewOperator.finish_epoch

    def one_by_one(self: ViewOperator, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        for one in gathered:
            packing(self, [one])

    monkeypatch.setattr(ViewOperator, "finish_epoch", one_by_one)
    counted = Counted(people())
    assert counted.epoch(*[user("Sue" if id % 2 else "Joe", 5, id) for id in range(10)])["users"] == (10, 10, 10)
    assert counted.runner.view("names") == {"Sue": 5, "Joe": 5}


@pytest.mark.slow
def test_the_depth_of_a_group_is_remembered_grows_to_four_and_shrinks_back() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone", tombstones="1ms")
    users.by("name").reduce(ms.min("ts"), name="names", inline=0)
    counted = Counted(pipeline)
    runner, depths, ts = counted.runner, [], 0
    there: set[int] = set()
    for size in (0, 3, 6, 60, 400, 8_300, 8_400, 500, 40, 6, 3, 0):
        ts += 1
        posts = [user("Sue", ts, id) for id in range(size) if id not in there]
        posts += [user("Sue", ts, id, gone=True) for id in there if id >= size]
        there = set(range(size))
        counted.epoch(*posts)
        row = runner.state("names", "Sue")
        assert (row.count if row else 0) == size
        levels = 0 if row is None or not row.leaves else 1 + depth(row.leaves)
        depths.append(levels)
        if size:
            ts += 1
            gets, writes, _ = counted.epoch(user("Sue", ts, size // 2))["names"]
            assert gets <= 1 + levels and writes <= 1 + levels, "the row, a leaf, and a node per level; nothing is probed"
        runner.check()  # every node is the fold of its children
        runner.advance_clock(runner._engine.now + 10)
    assert depths == [0, 0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize("reducer", [ms.count(), ms.min("id")], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 8, 31])
def test_a_small_group_costs_one_read_and_one_write(size: int, reducer: Any) -> None:
    def cost(inline: int) -> tuple[int, int]:
        pipeline = ms.Pipeline("people")
        users = pipeline.table("users", SOURCE, key="id", version="ts")
        users.by("name").reduce(reducer, name="names", inline=inline)
        counted = Counted(pipeline)
        counted.epoch(*[user("Sue", 1, id) for id in range(size)])
        return counted.epoch(user("Sue", 1, size))["names"][:2]

    assert cost(1024) == (1, 1)
    if size == 31:
        assert cost(0) == ((2, 2) if reducer.remove else (3, 2))  # the twin: a leaf beside the row, and a node
