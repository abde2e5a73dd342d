"""What a checkpoint says of its tables, views and joins, as data: how large they are, how they are laid out, how far a fill is. No row is read.

Rule: all of it follows from one manifest, from what hooks have counted (tallies) and what was defined (`about`).
"""

from __future__ import annotations

import msgspec

from millstream.core.topology import STRONG
from millstream.readable.relations import rows_shown
from millstream.state.manifest import ComputationState, Manifest
from millstream.status.tables import relations
from millstream.views.dsl import TABLE, VIEW

_DEEP = "groups of depth "


class Fill(msgspec.Struct):
    """A build that is being filled beside what is shown. waits_for: senders that are being filled themselves. rows: that the sweep passes in all."""

    generation: int
    swept: int
    rows: int
    rows_per_second: float
    waits_for: list[str] = []
    is_swept: bool = False  # it is switched in the next epoch


class RelationStatus(msgspec.Struct):
    """A table, view or join.

    rows: documents, groups, or keys of a join's right side. contributions: of a view. depths: by depth, how many groups have leaves of their own; small ones
    stand in one row. stage: its place in an epoch's job, 1 for a table; behind a strong edge the next epoch begins anew with 1.
    messages_per_change: how many messages a change of its senders has come to. most_entries: how many entries a message to the deepest group
    reads, and writes, at most.
    """

    name: str
    kind: str
    rows: int
    generation: int
    contributions: int | None = None
    fill: Fill | None = None
    senders: list[str] = []
    about: dict[str, str] = {}
    depths: dict[int, int] = {}
    stage: int = 1
    messages: int = 0
    messages_per_change: float | None = None
    most_entries: int | None = None
    changes: int = 0
    stale: int = 0
    mismatches: int = 0
    log_bytes: int = 0


class Relations(msgspec.Struct):
    """All of a checkpoint, as of an epoch."""

    epoch: int
    relations: list[RelationStatus]


def relations_of(manifest: Manifest) -> Relations:
    """What a manifest says of tables, views and joins."""
    producers = {stream: name for name, state in manifest.computations.items() for stream in state.streams}
    return Relations(manifest.epoch, [_status(manifest, name, state, producers) for name, state in relations(manifest).items()])


def _status(manifest: Manifest, name: str, state: ComputationState, producers: dict[str, str]) -> RelationStatus:
    tallies = state.tallies
    senders = [] if state.kind == TABLE else list(dict.fromkeys(producers[feed] for feed in state.feeds if feed in producers))
    spoken = sum(manifest.computations[sender].tallies.get("changes", 0) for sender in senders)
    depths = {int(tally[len(_DEEP) :]): count for tally, count in sorted(tallies.items()) if tally.startswith(_DEEP) and count}
    build = manifest.builds.get(name)
    return RelationStatus(
        name=name,
        kind=state.kind,
        rows=rows_shown(state),
        generation=1 if build is None else build.active,
        contributions=tallies.get("contributions", 0) if state.kind == VIEW else None,
        fill=_fill(manifest, name, senders),
        senders=senders,
        about=state.about,
        depths=depths,
        stage=_stage(manifest, name, producers, ()),
        messages=0 if state.kind == TABLE else state.records,
        messages_per_change=state.records / spoken if spoken and state.kind != TABLE else None,
        most_entries=_most(state, max(depths, default=0)) if state.kind == VIEW else None,
        changes=tallies.get("changes", 0),
        stale=tallies.get("stale", 0),
        mismatches=tallies.get("mismatches", 0),
        log_bytes=sum(ref.length for shard in state.shards for ref in shard.segments),
    )


def _fill(manifest: Manifest, name: str, senders: list[str]) -> Fill | None:
    build = manifest.builds.get(name)
    if build is None or not build.is_filling:
        return None
    millis = manifest.now - build.began
    return Fill(
        generation=build.generation,
        swept=build.swept,
        rows=sum(shard.keys for sender in senders for shard in manifest.computations[sender].shards),
        rows_per_second=build.swept / millis * 1000 if millis > 0 else 0.0,
        waits_for=[sender for sender in senders if sender in manifest.builds and manifest.builds[sender].is_filling],
        is_swept=build.is_swept,
    )


def _most(state: ComputationState, deepest: int) -> int:
    """The row; its leaf; and without an inverse a node of every level above."""
    if not deepest:
        return 1
    return 2 if state.about.get("nodes", "").startswith("none") else 1 + deepest


def _stage(manifest: Manifest, name: str, producers: dict[str, str], seen: tuple[str, ...]) -> int:
    state = manifest.computations[name]
    if state.about.get("production") == STRONG or name in seen:
        return 1
    before = [producers[feed] for feed in state.feeds if feed in producers]
    return 1 + max((_stage(manifest, one, producers, (*seen, name)) for one in before), default=0)
