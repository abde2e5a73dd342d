"""Compactions beside the epochs, whoever runs them: which chains are due, how one is compacted, and those that have ended and wait for the next manifest.

Rules
1. A compaction that fails fails alone: the other chains go on.
2. A chain that cannot be compacted is left alone for a second, then for two, and so on up to five minutes. The first failure is logged, the number of failures
   and the last error are in the status: a chain that grows makes every manifest larger, so somebody has to hear of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from millstream.state.compaction import compact, pick_segments
from millstream.state.fencing import refuse, superseded
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage

_LONGEST_WAIT = 300.0  # seconds

_log = logging.getLogger("millstream.compactions")


class CompactionOrder(msgspec.Struct):
    """One chain to compact, and what came of it."""

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
        return self.computation, self.shard


def carry_out(storage: Storage, order: CompactionOrder) -> CompactionOrder:
    """In a task: the order with what was made of it, or with why that failed. With neither, if the run has been replaced, of which a mark is left."""
    try:
        if superseded(storage, order.token):
            refuse(storage, order.token)
        else:
            order.made = compact(storage, order.chosen, order.is_base, order.epoch, order.token)
    except Exception as error:  # rule 1
        order.error = f"{type(error).__name__}: {error}"
    return order


class CompactionStats(msgspec.Struct):
    """Chains that were compacted since the run began, and compactions that failed. since: the epoch in which the one under way began."""

    compacted: int = 0
    failed: int = 0
    since: int | None = None
    last_error: str = ""


class Compaction:
    """Compactions that have ended, until the next manifest adopts them. This one never begins any: the next run will. Those who do tell `_take_in` and
    `_fail`, with the lock."""

    def __init__(self, token: str = "") -> None:
        self._lock = threading.Lock()
        self._token = token
        self._done: dict[tuple[str, int], CompactionOrder] = {}
        self._failures: dict[tuple[str, int], tuple[int, float]] = {}  # rule 2: how often in a row, and until when the chain is left alone
        self._stats = CompactionStats()

    def plan(self, manifest: Manifest) -> None:
        """Starts what is due (after every commit)."""

    def take_finished(self) -> dict[tuple[str, int], CompactionOrder]:
        """The compactions that have ended since the last call, by computation and shard (once per epoch, before its manifest is made)."""
        with self._lock:
            done, self._done = self._done, {}
            self._stats.compacted += len(done)
        return done

    def in_flight(self) -> set[str]:
        """Objects that the next manifest may name (before a garbage collection)."""
        with self._lock:
            return {ref.name for order in self._done.values() for ref in order.made}

    def since(self) -> int | None:
        """The oldest epoch in which a compaction under way began (before a garbage collection)."""
        return None

    def stats(self) -> CompactionStats:
        """How it is doing (whenever a status is asked for)."""
        return msgspec.structs.replace(self._stats, since=self.since())

    def close(self) -> None:
        """At the end of a run: cancels what is under way, because no manifest would adopt it."""

    def _due(self, manifest: Manifest) -> list[CompactionOrder]:
        """The chains that have grown too long."""
        now = time.monotonic()
        return [
            CompactionOrder(name, shard, manifest.epoch, list(chosen), chosen[0] == one.segments[0], self._token)
            for name, state in manifest.computations.items()
            for shard, one in enumerate(state.shards)
            if (chosen := pick_segments(one.segments))
            and (name, shard) not in self._done
            and self._failures.get((name, shard), (0, 0.0))[1] <= now
        ]

    def _take_in(self, order: CompactionOrder) -> None:
        if order.made:
            self._done[order.where] = order
            self._failures.pop(order.where, None)
        elif order.error:
            self._fail(order, order.error)

    def _fail(self, order: CompactionOrder, why: str) -> None:
        times = self._failures.get(order.where, (0, 0.0))[0] + 1
        self._failures[order.where] = (times, time.monotonic() + min(_LONGEST_WAIT, 2.0 ** min(times - 1, 30)))
        self._stats.failed += 1
        self._stats.last_error = f"computation {order.computation!r}, shard {order.shard}: {why}"
        if times == 1:
            _log.warning("a compaction failed and will be tried again: %s", self._stats.last_error)


class TaskCompaction(Compaction):
    """Compaction inside resident tasks: the owner of a shard compacts its chain in a thread. One that is lost with its task is planned again.

    send: gives an order to the task of a shard; False if it is not there."""

    def __init__(self, token: str, send: Callable[[CompactionOrder], bool]) -> None:
        super().__init__(token)
        self._send = send
        self._under_way: dict[tuple[str, int], int] = {}  # computation and shard: since which epoch

    def plan(self, manifest: Manifest) -> None:
        for order in self._due(manifest):
            with self._lock:
                if order.where in self._under_way:
                    continue
                self._under_way[order.where] = manifest.epoch
            if not self._send(order):
                self.lost(order.shard)

    def came(self, order: CompactionOrder) -> None:
        """A task has compacted (from the thread that hears it)."""
        with self._lock:
            if self._under_way.get(order.where) != order.epoch:
                return  # it was given up, and may have been collected since: its task was taken for lost
            del self._under_way[order.where]
            self._take_in(order)

    def lost(self, *shards: int) -> None:
        """The compactions of some shards are gone with their task: they are planned again."""
        with self._lock:
            self._under_way = {where: epoch for where, epoch in self._under_way.items() if where[1] not in shards}

    def since(self) -> int | None:
        with self._lock:
            return min(self._under_way.values(), default=None)
