"""What the epoch protocol asks of those beside it: whoever plans what is read, and whoever folds chains. Each method says who calls it and how often."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from millstream.engine.plan import Reading
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef


class Planner(Protocol):
    """Who decides what an epoch reads: Spark's log, a simulation's plan."""

    def reading(self, number: int) -> Reading:
        """What a batch reads (driver, once per epoch, before it runs; the same answer after a crash)."""


class Folded(msgspec.Struct):
    """A fold that has ended: the segments that were chosen, and those that replace them."""

    chosen: list[SegmentRef]
    made: list[SegmentRef]


class FoldStats(msgspec.Struct):
    """Chains that were folded since the run began, and folds that failed. since: the epoch in which the fold under way began."""

    folded: int = 0
    failed: int = 0
    since: int | None = None
    last_error: str = ""


class Folding(Protocol):
    """Who folds chains beside the epochs."""

    def plan(self, manifest: Manifest, spark: Any) -> None:
        """Starts a fold if one is due (driver, after every commit)."""

    def finished(self) -> dict[tuple[str, int], Folded]:
        """The folds that have ended since the last call, by computation and shard (driver, once per epoch, before its manifest is made)."""

    def in_flight(self) -> set[str]:
        """Objects that the next manifest may name (driver, before a collection)."""

    def since(self) -> int | None:
        """The epoch in which the fold under way began (driver, before a collection)."""

    def stats(self) -> FoldStats:
        """How folding is doing (driver, whenever somebody looks)."""


class Stopped(Exception):
    """An epoch that was not begun because somebody said stop."""
