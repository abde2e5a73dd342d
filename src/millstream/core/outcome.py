"""What goes into a step besides records, and what comes out of it."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.backfill import Build
from millstream.core.dedup import DedupCounts
from millstream.core.record import Production
from millstream.core.time import BEGINNING

DROP = "drop"  # a late record is counted and dropped
HOOK = "hook"  # it is handed to process_late_record
LAST_DEAD = 5  # dead letters that are shown
_SHOWN = 300  # characters of a key, or of an error


class Times(msgspec.Struct, frozen=True):
    """The times of one computation in one epoch. Invariants: late_before <= low_watermark; least <= promised <= low_watermark."""

    now: int
    late_before: int  # what is older is late; nothing is where event time had ended before
    low_watermark: int
    epoch: int = 0
    least: int = BEGINNING  # no production may be older: what was promised before or, where that was the end, what anybody still waits for
    promised: int = BEGINNING  # what its streams promise now: no hold may be older
    scans: dict[
        str, int
    ] = {}  # visits of all rows in chunks, by name: how many rows in this epoch, 0 for all that are left, PAUSED for none
    builds: dict[
        str, Build
    ] = {}  # of those that are derived from this one, and of itself, where it is no matter of course (core/backfill.py)


class Wiring(msgspec.Struct, frozen=True):
    name: str
    streams: tuple[str, ...]
    same_key: frozenset[str] = frozenset()
    named: frozenset[str] | None = None  # the streams whose productions need an id
    late: dict[str, str] = {}  # by input: DROP, HOOK or a stream
    dead_letters: str | None = None
    circling: bool = False  # part of a cycle
    expire: tuple[int, str] | None = None  # for how long rows are kept, and by which time (core/expiry.py)


class LateRecord(msgspec.Struct):
    stream: str
    key: str
    timestamp: int
    low_watermark: int
    value: str


class DeadSample(msgspec.Struct):
    """One of the last dead letters: whose it was, and why."""

    stream: str
    key: str
    timestamp: int | None
    error: str


class Counts(msgspec.Struct):
    """What a step did, for status and manifest."""

    records: int = 0
    late: int = 0
    fired: int = 0
    touched: int = 0
    keys: int = 0  # rows added minus rows removed
    timers: int = 0  # timers added minus timers removed
    next_low: int | None = None  # earliest timer left, if any
    next_wall: int | None = None
    held: int | None = None  # oldest hold left, if any
    holder: str = ""  # whose it is
    late_by: dict[str, int] = {}  # per input
    last_late: list[LateRecord] = []
    dead: int = 0  # dead letters
    last_dead: list[DeadSample] = []
    tallies: dict[str, int] = {}  # what hooks have counted
    scanned: dict[str, tuple[int, bool]] = {}  # by scan: rows visited, and whether it has ended here

    def add_dead(self, stream: str, key: str, timestamp: int | None, error: str) -> None:
        """One more dead letter."""
        self.dead += 1
        self.last_dead = [*self.last_dead[1 - LAST_DEAD :], DeadSample(stream, key[:_SHOWN], timestamp, error[:_SHOWN])]


class Outcome(msgspec.Struct):
    """The result of a step. What follows the counts is noted by whoever runs it."""

    delta: dict[bytes, bytes | None]  # None deletes
    productions: list[Production]  # in order
    counts: Counts
    results: list[Any] = []  # productions in columns (`operators/results.py`), behind the others
    dedup: DedupCounts = msgspec.field(default_factory=DedupCounts)  # what became of ids before the step ran
    millis: float = 0.0
    by_stream: dict[str, int] = {}  # the records of each input, where there are several
