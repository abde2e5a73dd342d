"""Folding inside the tasks: the owner of a shard folds its chain in a thread, beside the epochs; the next manifest adopts the result.

A fold reads and writes the log only, so one that is lost with its task is planned again.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.engine.compaction_orders import EndedFolds, FoldOrder
from millstream.state.manifest import Manifest


class ResidentFolds(EndedFolds):
    """Plans folds, hands them to tasks, and takes in what they made. send: gives an order to the task of a shard; False if it is not there."""

    def __init__(self, token: str, send: Callable[[FoldOrder], bool]) -> None:
        super().__init__(token)
        self._send = send
        self._under_way: dict[tuple[str, int], int] = {}  # computation and shard: since which epoch

    def plan(self, manifest: Manifest, spark: object) -> None:
        """Hands out what is due and not under way."""
        for order in self._due(manifest):
            with self._lock:
                if order.where in self._under_way:
                    continue
                self._under_way[order.where] = manifest.epoch
            if not self._send(order):
                self.lost(order.shard)

    def came(self, order: FoldOrder) -> None:
        """A task has folded (from the thread that hears it)."""
        with self._lock:
            if self._under_way.get(order.where) != order.epoch:
                return  # it was given up, and may have been collected since: its task was taken for lost
            del self._under_way[order.where]
            self._take_in(order)

    def lost(self, *shards: int) -> None:
        """The folds of some shards are gone with their task: they are planned again."""
        with self._lock:
            self._under_way = {where: epoch for where, epoch in self._under_way.items() if where[1] not in shards}

    def since(self) -> int | None:
        """The oldest epoch in which a fold under way began."""
        with self._lock:
            return min(self._under_way.values(), default=None)
