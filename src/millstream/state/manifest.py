"""Manifests: what an epoch has committed. How they are written is `manifest_log`.

Rule: a manifest is complete in itself: state (segments per computation and shard), low watermarks, earliest timers and holds, stored productions, what the
sinks have still to publish, and which run wrote it. Recovery needs the newest one and nothing else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.backfill import BuildState
from millstream.core.dedup import DedupCounts
from millstream.core.outcome import DeadSample, LateRecord
from millstream.core.time import BEGINNING
from millstream.core.topology import INTERVAL_JOIN, EdgeState, RelationSpec, WindowShape
from millstream.core.watermark import Progress
from millstream.state import formats
from millstream.state.segment import SegmentRef


class Part(msgspec.Struct):
    """What one task has staged at one sink, until it is published. rows: how many there are. staged: the object that holds them, if they are in one: `sweep`
    keeps it while a manifest names it. in_checkpoint: that object lies in the checkpoint, and its collection keeps it. own: what only the sink understands.

    >>> part = Part(rows=2, staged="_staging/7", own={"final": "counts-7.jsonl"})
    >>> part.rows, part.own["final"]
    (2, 'counts-7.jsonl')
    """

    rows: int = 0
    staged: str | None = None
    in_checkpoint: bool = False
    own: dict[str, Any] = {}


class ProductionsRef(msgspec.Struct):
    """Stored productions of one task over one edge. slices: by the consumer's shard, (offset, length, count) in the object."""

    stream: str
    computation: str
    name: str
    slices: dict[int, tuple[int, int, int]]
    oldest: int


class ShardState(msgspec.Struct):
    """One shard of one computation. held and holder: the oldest hold, and whose it is. ids: held by deduplication."""

    segments: list[SegmentRef] = []
    keys: int = 0
    timers: int = 0
    next_low: int | None = None
    next_wall: int | None = None
    held: int | None = None
    holder: str = ""
    ids: int = 0
    low_watermark: int = BEGINNING
    output: int = BEGINNING


class ComputationState(msgspec.Struct):
    """One computation: its low watermark in the epoch, its shards, and totals since the beginning."""

    low_watermark: int = BEGINNING
    shards: list[ShardState] = []
    codec: str = "msgpack"
    feeds: list[str] = []
    records: int = 0
    late: int = 0
    fired: int = 0
    produced: int = 0
    lineage: str = ""  # where this state began (epoch and run); survives renaming, and tells a successor of the same name from it
    streams: list[str] = []
    output: int = BEGINNING  # what its streams promise
    late_by: dict[str, int] = {}
    last_late: list[LateRecord] = []
    dead: int = 0
    last_dead: list[DeadSample] = []
    dedup: DedupCounts = msgspec.field(default_factory=DedupCounts)
    hidden: bool = False  # a helper that the user has not written
    tallies: dict[str, int] = {}  # what its hooks have counted
    kind: str = ""  # "table", "view", "join", "window" or "interval join": whoever has no code can tell
    relation: RelationSpec | None = None  # of a table, view or join
    window: WindowShape | None = None  # of a window operator
    about: dict[str, str] = {}  # for people: what it was defined as
    strong: list[str] = []  # the feeds whose productions are stored
    by_stream: dict[str, int] = {}  # the records of each feed, where there are several

    @property
    def keeps_columns(self) -> bool:
        """Whether it keeps columns instead of a row per key."""
        return self.window is not None or self.kind == INTERVAL_JOIN


class SourcePosition(msgspec.Struct):
    """How far a planned source has been read: the offset in its own words. names: the files that were read, as a chain of segments of their own."""

    offset: str
    names: list[SegmentRef] = []


class WaitingParts(msgspec.Struct):
    """Parts of a sink that rolls, which are committed and wait to be published together. since: the wall clock of the epoch that had the first of them."""

    since: int
    parts: list[Part]


class OutputState(msgspec.Struct):
    """What goes to a sink: a stream, to a place in words. rows: that were to be published, since the beginning. files: "json" or "parquet", where the place is
    a folder of such files."""

    stream: str
    place: str
    rows: int = 0
    files: str = ""


class Manifest(msgspec.Struct):
    """An epoch, committed. now: its clock, which hooks see as self.now. committed_at: the wall clock when it was committed; an epoch that settles has the
    clock of the last input. spent: by phase, the milliseconds of all epochs up to this one, without what follows its commit. written: the bytes of their deltas
    and stored productions."""

    epoch: int
    token: str
    now: int
    runs: list[tuple[int, str]]
    injectors: dict[str, Progress] = {}
    computations: dict[str, ComputationState] = {}
    sinks: dict[str, list[Part]] = {}
    drain: bool = False
    drained: bool = False
    ended: int | None = None  # the first epoch of the drain: from it on, no source may bring anything
    offsets: str | None = None
    pending: list[ProductionsRef] = []
    edges: dict[str, EdgeState] = {}
    refused: int = 0  # writes of runs that had been replaced
    outside: int = 0  # how many epochs up to this one were run outside the query, and so have no number in Spark's log
    settle: bool = False  # run outside the query, at the end of a bounded run: no input, and what the last input made due
    format: int = formats.MANIFEST.newest
    builds: dict[str, BuildState] = {}  # of computations that are derived from others
    sources: dict[str, SourcePosition] = {}  # by injector, of those whose epochs Millstream plans itself
    waiting: dict[str, WaitingParts] = {}  # by emission, of sinks that roll
    committed_at: int | None = None
    outputs: dict[str, OutputState] = {}  # by emission
    spent: dict[str, float] = {}
    written: int = 0

    @property
    def batch(self) -> int | None:
        """The number that Spark's log has for this epoch; None for one that was run outside the query."""
        return None if self.drain or self.settle else self.epoch - self.outside

    @property
    def last_batch(self) -> int:
        """The last number of Spark's log that is committed."""
        return self.epoch - self.outside

    def token_at(self, epoch: int) -> str | None:
        return next((token for first, token in reversed(self.runs) if first <= epoch), None)


def edge_name(stream: str, computation: str) -> str:
    return f"{stream} → {computation}"
