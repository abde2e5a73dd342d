"""What the epoch protocol asks of the parts that it is given. Each method says when the driver calls it, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from millstream.engine.receipts import EpochOrder, Receipt
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import Manifest, SourcePosition
from millstream.state.segment import SegmentRef

_In = TypeVar("_In", contravariant=True)


class TaskRunner(Protocol[_In]):
    """Runs the tasks of an epoch: as a Spark job, in resident tasks, in a loop."""

    def run(self, input: _In | None, order: EpochOrder) -> list[Receipt]:
        """Runs all tasks on what came in (None: only time has moved). One receipt per group and shard. Once per attempt at an epoch."""

    def status(self) -> RunMode:
        """How tasks are run (whenever a status is asked for)."""

    def close(self) -> None:
        """At the end of a run."""


class Planner(Protocol):
    """What the driver asks of the sources: Millstream's own planner, or what is known of Spark's. is_ours: Millstream plans what epochs read."""

    is_ours: bool

    def files(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        """The files of a source with their times of modification, and those that were read. Once per epoch, if a watermark follows them."""

    def acknowledge(self, batch: int, positions: Mapping[str, SourcePosition]) -> None:
        """Tells sources what is safe: a batch is committed and published up to these positions. In step 7, at least once for every batch."""

    def took_over(self, manifest: Manifest) -> None:
        """The run before this one has committed one more epoch, which stands. Before it is published."""

    def close(self) -> None:
        """At the end of a run."""


class Compacted(msgspec.Struct):
    """A compaction that has ended: the segments that were chosen, and those that replace them."""

    chosen: list[SegmentRef]
    made: list[SegmentRef]


class CompactionStats(msgspec.Struct):
    """Chains that were compacted since the run began, and compactions that failed. since: the epoch in which the one under way began."""

    compacted: int = 0
    failed: int = 0
    since: int | None = None
    last_error: str = ""


class Compaction:
    """Compacts chains beside the epochs. This one never does: the next run will."""

    def plan(self, manifest: Manifest) -> None:
        """Starts a compaction if one is due (after every commit)."""

    def finished(self) -> dict[tuple[str, int], Compacted]:
        """The compactions that have ended since the last call, by computation and shard (once per epoch, before its manifest is made)."""
        return {}

    def in_flight(self) -> set[str]:
        """Objects that the next manifest may name (before a garbage collection)."""
        return set()

    def since(self) -> int | None:
        """The oldest epoch in which a compaction under way began (before a garbage collection)."""
        return None

    def stats(self) -> CompactionStats:
        """How it is doing (whenever a status is asked for)."""
        return CompactionStats()

    def close(self) -> None:
        """At the end of a run: cancels what is under way, because no manifest would adopt it."""


class Stopped(Exception):
    """An epoch that was not begun because the run is being stopped."""
