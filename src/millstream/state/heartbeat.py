"""What a run says of itself: its state caches, and a driver's signs of life, one small object in the checkpoint that is written anew every few seconds.

Rules
1. A sign decides nothing: claims and manifests do. It is for people, and a driver that cannot write it goes on without.
2. The sign of a run that has ended says so; that of one that was killed just grows old.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import MillstreamError
from millstream.state import formats
from millstream.state.storage import Storage

NAME = "alive.json"
EVERY = 5.0  # seconds
_PATIENCE = 4 * EVERY * 1000


class StateCacheStats(msgspec.Struct, frozen=True):
    """A state cache: its size on disk, its entries, and how often this process loaded it anew, brought it up to date, and applied a segment."""

    bytes: int
    entries: int
    loads: int
    catch_ups: int
    segments: int


class TaskSign(msgspec.Struct, frozen=True):
    """One resident task: its slot, where it is, its shards, its memory (bytes); at: what it has been at for longer than a second, and for how long."""

    slot: int
    host: str
    pid: int
    shards: list[int]
    memory: int = 0
    at: str = ""
    millis: int = 0


class RunMode(msgspec.Struct, frozen=True):
    """How a run runs its epochs: "micro-batch", one Spark job each; or "resident", in tasks that stay. generation: how often all slots were filled; missing:
    those that are empty; jobs: how often Spark was asked for tasks. phases: where the milliseconds of an epoch go, on average."""

    name: str = "micro-batch"
    generation: int = 0
    losses: int = 0
    tasks: list[TaskSign] = []
    missing: list[int] = []
    jobs: int = 0
    epochs_per_second: float = 0.0
    phases: dict[str, float] = {}


class Backlog(msgspec.Struct, frozen=True):
    """What a source had that the last epoch did not take: how many of what ("files", "records", "bytes"). seconds: how long that takes at the present rate;
    None if nothing is read."""

    left: int
    counts: str
    seconds: float | None = None


class ShardLoad(msgspec.Struct, frozen=True):
    """What the steps of a shard took lately (milliseconds), for how many records."""

    shard: int
    millis: float
    records: int


class Figures(msgspec.Struct, frozen=True):
    """What a driver has measured lately. backlogs: by injector. shards: those with the most to do, of `busy` that had anything. computations: by name, the
    milliseconds of their steps. published: by sink, the last epoch that it has published. retries: attempts at epochs that were begun again.
    under_way: for how many seconds the epoch at hand has been under way."""

    backlogs: dict[str, Backlog] = {}
    shards: list[ShardLoad] = []
    busy: int = 0
    computations: dict[str, float] = {}
    published: dict[str, int] = {}
    retries: int = 0
    under_way: float = 0.0
    compactions: dict[str, Any] = {}
    state_caches: dict[str, StateCacheStats] = {}


class Alive(msgspec.Struct, frozen=True):
    """What a driver says of itself: its run, when (wall clock, ms), where, whether it is still at work, and how fast."""

    run: str
    at: int
    host: str
    pid: int
    state: str
    epoch: int = -1
    records_per_second: float = 0.0
    epoch_millis: float = 0.0
    waits_for: str = ""
    mode: RunMode = RunMode()
    figures: Figures = Figures()
    format: int = formats.SIGN.newest

    def is_alive(self, now: int) -> bool:
        """Whether a driver that gave this sign is likely to be at work still."""
        return self.state == "running" and now - self.at < _PATIENCE


def say(storage: Storage, sign: Alive) -> None:
    try:
        storage.put(NAME, msgspec.json.encode(sign))
    except (MillstreamError, OSError):
        pass


def last_sign(storage: Storage) -> Alive | None:
    """The last sign of the last driver; None if there is none, or none that can be read."""
    try:
        if not storage.exists(NAME):
            return None
        sign = msgspec.json.decode(storage.read(NAME), type=Alive)
        formats.SIGN.check(NAME, sign.format)
        return sign
    except (MillstreamError, OSError, msgspec.MsgspecError):
        return None
