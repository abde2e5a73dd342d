"""Folds beside the epochs, whoever runs them: which chains are due, how one is folded, and those that have ended and wait for the next manifest."""

from __future__ import annotations

import threading

import msgspec

from millstream.engine.contracts import Folded, FoldStats
from millstream.state.folding import fold, to_fold
from millstream.state.manifest import Manifest
from millstream.state.runs import refuse, superseded
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage


class FoldOrder(msgspec.Struct):
    """One chain to fold, and what came of it."""

    computation: str
    shard: int
    epoch: int
    chosen: list[SegmentRef]
    is_base: bool
    token: str
    made: list[SegmentRef] = []


def due(manifest: Manifest, token: str) -> list[FoldOrder]:
    """The chains that have grown too long."""
    return [
        FoldOrder(
            computation=name, shard=shard, epoch=manifest.epoch, chosen=list(chosen), is_base=chosen[0] == one.segments[0], token=token
        )
        for name, state in manifest.computations.items()
        for shard, one in enumerate(state.shards)
        if (chosen := to_fold(one.segments))
    ]


def carried_out(storage: Storage, order: FoldOrder) -> FoldOrder:
    """In a task: the order with what was made of it; with nothing, if the run has been replaced, of which a mark is left."""
    if superseded(storage, order.token):
        refuse(storage, order.token)
    else:
        order.made = fold(storage, order.chosen, order.is_base, order.epoch, order.token)
    return order


class EndedFolds:
    """Folds that have ended, until the next manifest adopts them. Base of those who run folds: they put orders into `_done`, with the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[tuple[str, int], FoldOrder] = {}
        self._stats = FoldStats()

    def finished(self) -> dict[tuple[str, int], Folded]:
        """The folds that have ended, for the next manifest."""
        with self._lock:
            done, self._done = self._done, {}
            self._stats.folded += len(done)
        return {where: Folded(order.chosen, order.made) for where, order in done.items()}

    def in_flight(self) -> set[str]:
        """Objects that the next manifest may name."""
        with self._lock:
            return {ref.name for order in self._done.values() for ref in order.made}

    def since(self) -> int | None:
        """The oldest epoch in which a fold under way began."""
        raise NotImplementedError

    def stats(self) -> FoldStats:
        """How folding is doing."""
        return msgspec.structs.replace(self._stats, since=self.since())
