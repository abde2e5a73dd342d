"""Folds of resident tasks: what comes late is not adopted."""

from __future__ import annotations

from millstream.engine.resident.task_compaction import FoldOrder, ResidentFolds
from millstream.state.compaction import MAX_RUNS
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.segment import SegmentRef


def ref(name: str, epoch: int) -> SegmentRef:
    return SegmentRef(name=name, offset=0, length=10, entries=1, first=epoch, last=epoch)


def manifest(epoch: int) -> Manifest:
    chain = [ref(f"units/{at:012d}-1-a", at) for at in range(MAX_RUNS + 1)]
    return Manifest(epoch=epoch, token="1-a", now=0, runs=[(0, "1-a")], computations={"C": ComputationState(shards=[ShardState(chain)])})


def made(order: FoldOrder) -> FoldOrder:
    order.made = [ref(f"units/{order.epoch:012d}-1-fold", order.epoch)]
    return order


def test_the_fold_of_a_task_that_was_taken_for_lost_is_not_adopted_in_the_place_of_the_next_one() -> None:
    """Between the loss and its late word nobody kept what it made: it may be collected."""
    orders: list[FoldOrder] = []
    folds = ResidentFolds("1-a", lambda order: not orders.append(order))
    folds.plan(manifest(20), None)
    folds.lost(0)
    folds.plan(manifest(40), None)
    assert [order.epoch for order in orders] == [20, 40] and folds.since() == 40
    folds.came(made(orders[0]))
    assert folds.finished() == {} and folds.since() == 40
    folds.came(made(orders[1]))
    (found,) = folds.finished().values()
    assert [one.first for one in found.made] == [40] and folds.since() is None


def test_a_chain_that_fails_for_days_is_still_left_alone_between_two_tries() -> None:
    orders: list[FoldOrder] = []
    folds = ResidentFolds("1-a", lambda order: not orders.append(order))
    folds.plan(manifest(20), None)
    for _ in range(1100):
        folds._fail(orders[0], "OSError: the disk is full")
    folds.lost(0)
    folds.plan(manifest(40), None)
    assert len(orders) == 1 and folds.stats().failed == 1100
