"""Folding inside the tasks: the owner of a shard folds its chain in a thread, beside the epochs; the next manifest adopts the result.

A fold reads and writes the log only, so one that is lost with its task is planned again.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.engine.foldorders import EndedFolds, FoldOrder, carried_out, due
from millstream.state.manifest import Manifest
from millstream.state.storage import Storage

__all__ = ["FoldOrder", "ResidentFolds", "folded"]


class ResidentFolds(EndedFolds):
    """Plans folds, hands them to tasks, and takes in what they made. send: gives an order to the task of a shard; False if it is not there."""

    def __init__(self, token: str, send: Callable[[FoldOrder], bool]) -> None:
        super().__init__()
        self._token = token
        self._send = send
        self._under_way: dict[tuple[str, int], int] = {}  # computation and shard: since which epoch

    def plan(self, manifest: Manifest, spark: object) -> None:
        """Hands out what is due and not under way."""
        for order in due(manifest, self._token):
            where = (order.computation, order.shard)
            with self._lock:
                if where in self._under_way or where in self._done:
                    continue
                self._under_way[where] = manifest.epoch
            if not self._send(order):
                self.lost(order.shard)

    def came(self, order: FoldOrder) -> None:
        """A task has folded (from the thread that hears it)."""
        with self._lock:
            where = (order.computation, order.shard)
            if self._under_way.get(where) != order.epoch:
                return  # it was given up, and may have been collected since: its task was taken for lost
            del self._under_way[where]
            if order.made:
                self._done[order.computation, order.shard] = order
            else:
                self._stats.failed += 1

    def lost(self, *shards: int) -> None:
        """The folds of some shards are gone with their task."""
        with self._lock:
            for where in [where for where in self._under_way if where[1] in shards]:
                del self._under_way[where]
                self._stats.failed += 1

    def since(self) -> int | None:
        """The oldest epoch in which a fold under way began."""
        with self._lock:
            return min(self._under_way.values(), default=None)


def folded(storage: Storage, order: FoldOrder) -> FoldOrder:
    """In the task: the order with what was made of it; with nothing, if it failed."""
    try:
        return carried_out(storage, order)
    except Exception:
        return order
