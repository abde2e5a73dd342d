"""What the epoch protocol asks of those beside it: the source's log, and whoever folds chains."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef


class Offsets(Protocol):
    """What the source's log says about an epoch."""

    def may_have_rows(self, epoch: int) -> bool:
        """False only if nothing came in."""

    def planned_at(self, epoch: int) -> int | None:
        """The wall clock at which the epoch was planned, if that is known."""

    def digest(self, epoch: int) -> str | None:
        """Tells one content of an epoch from another."""


class Folder(Protocol):
    """Who folds chains beside the epochs."""

    def plan(self, manifest: Manifest, spark: Any) -> None:
        """Starts a fold if one is due."""

    def adopt(self, computation: str, shard: int, chain: list[SegmentRef]) -> list[SegmentRef]:
        """The chain for the next manifest."""

    def in_flight(self) -> set[str]:
        """Objects that the next manifest may name."""

    def since(self) -> int | None:
        """The epoch in which the fold under way began."""


class Stopped(Exception):
    """An epoch that was not begun because somebody said stop."""


class EpochStats(msgspec.Struct):
    """What one epoch was like. stored: the adaptive edges that stored in it, with the reason."""

    epoch: int
    records: int
    millis: float
    job: bool
    stored: dict[str, str] = {}
