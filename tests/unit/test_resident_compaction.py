"""Compactions of resident tasks: what comes late is not adopted."""

from __future__ import annotations

from millstream.engine.compaction_orders import CompactionOrder, TaskCompaction
from millstream.state.compaction import MAX_RUNS
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.segment import SegmentRef


def ref(name: str, epoch: int) -> SegmentRef:
    return SegmentRef(name=name, offset=0, length=10, entries=1, first=epoch, last=epoch)


def manifest(epoch: int) -> Manifest:
    chain = [ref(f"units/{at:012d}-1-a", at) for at in range(MAX_RUNS + 1)]
    return Manifest(epoch=epoch, token="1-a", now=0, runs=[(0, "1-a")], computations={"C": ComputationState(shards=[ShardState(chain)])})


def made(order: CompactionOrder) -> CompactionOrder:
    order.made = [ref(f"units/{order.epoch:012d}-1-compaction", order.epoch)]
    return order


def test_the_compaction_of_a_task_that_was_taken_for_lost_is_not_adopted_in_the_place_of_the_next_one() -> None:
    """Between the loss and its late word nobody kept what it made: it may be collected."""
    orders: list[CompactionOrder] = []
    compactions = TaskCompaction("1-a", lambda order: not orders.append(order))
    compactions.plan(manifest(20))
    compactions.lost(0)
    compactions.plan(manifest(40))
    assert [order.epoch for order in orders] == [20, 40] and compactions.since() == 40
    compactions.came(made(orders[0]))
    assert compactions.take_finished() == {} and compactions.since() == 40
    compactions.came(made(orders[1]))
    (found,) = compactions.take_finished().values()
    assert [one.first for one in found.made] == [40] and compactions.since() is None


def test_a_chain_that_fails_for_days_is_still_left_alone_between_two_tries() -> None:
    orders: list[CompactionOrder] = []
    compactions = TaskCompaction("1-a", lambda order: not orders.append(order))
    compactions.plan(manifest(20))
    for _ in range(1100):
        compactions._fail(orders[0], "OSError: the disk is full")
    compactions.lost(0)
    compactions.plan(manifest(40))
    assert len(orders) == 1 and compactions.stats().failed == 1100
