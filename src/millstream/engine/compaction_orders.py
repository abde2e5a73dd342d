"""Folds beside the epochs, whoever runs them: which chains are due, how one is folded, and those that have ended and wait for the next manifest.

Rules
1. A fold that fails fails alone: the other chains go on.
2. A chain that cannot be folded is left alone for a second, then for two, and so on up to five minutes. The first failure is logged, the number of failures
   and the last error are in the status: a chain that grows makes every manifest larger, so somebody has to hear of it.
"""

from __future__ import annotations

import logging
import threading
import time

import msgspec

from millstream.engine.contracts import Folded, FoldStats
from millstream.state.compaction import fold, to_fold
from millstream.state.fencing import refuse, superseded
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage

_LONGEST_WAIT = 300.0  # seconds

_log = logging.getLogger("millstream.folds")


class FoldOrder(msgspec.Struct):
    """One chain to fold, and what came of it."""

    computation: str
    shard: int
    epoch: int
    chosen: list[SegmentRef]
    is_base: bool
    token: str
    made: list[SegmentRef] = []
    error: str = ""

    @property
    def where(self) -> tuple[str, int]:
        """Computation and shard."""
        return self.computation, self.shard


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


def carry_out(storage: Storage, order: FoldOrder) -> FoldOrder:
    """In a task: the order with what was made of it, or with why that failed. With neither, if the run has been replaced, of which a mark is left."""
    try:
        if superseded(storage, order.token):
            refuse(storage, order.token)
        else:
            order.made = fold(storage, order.chosen, order.is_base, order.epoch, order.token)
    except Exception as error:  # rule 1
        order.error = f"{type(error).__name__}: {error}"
    return order


class EndedFolds:
    """Folds that have ended, until the next manifest adopts them. Base of those who run folds: they tell `_take_in` and `_fail`, with the lock."""

    def __init__(self, token: str) -> None:
        self._lock = threading.Lock()
        self._token = token
        self._done: dict[tuple[str, int], FoldOrder] = {}
        self._failures: dict[tuple[str, int], tuple[int, float]] = {}  # rule 2: how often in a row, and until when the chain is left alone
        self._stats = FoldStats()

    def _due(self, manifest: Manifest) -> list[FoldOrder]:
        now = time.monotonic()
        return [
            order
            for order in due(manifest, self._token)
            if order.where not in self._done and self._failures.get(order.where, (0, 0.0))[1] <= now
        ]

    def _take_in(self, order: FoldOrder) -> None:
        if order.made:
            self._done[order.where] = order
            self._failures.pop(order.where, None)
        elif order.error:
            self._fail(order, order.error)

    def _fail(self, order: FoldOrder, why: str) -> None:
        times = self._failures.get(order.where, (0, 0.0))[0] + 1
        self._failures[order.where] = (times, time.monotonic() + min(_LONGEST_WAIT, 2.0 ** min(times - 1, 30)))
        self._stats.failed += 1
        self._stats.last_error = f"computation {order.computation!r}, shard {order.shard}: {why}"
        if times == 1:
            _log.warning("a fold failed and will be tried again: %s", self._stats.last_error)

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
