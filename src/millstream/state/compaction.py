"""Compaction: many small segments into few large ones; and the names of units.

Rules
1. A chain of runs is compacted when it has more than `MAX_RUNS`: from the newest back, as long as the next older run is not more than twice as large as what
   has been gathered. Every entry is rewritten about once per doubling of the state, and a chain stays short.
2. A compaction that reaches the oldest run is a snapshot: deletions are dropped, and it becomes the base.
3. Compactions happen beside the epochs; the next manifest adopts them. One that is not adopted is garbage like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from millstream.state.fencing import run_number
from millstream.state.manifest import Manifest
from millstream.state.segment import PIECE, Entry, SegmentRef, merge, runs, write_segment
from millstream.state.storage import Storage

MAX_RUNS = 12
UNITS = "units"


def unit_name(epoch: int, label: str, token: str = "0-") -> str:
    """A name for an object made in an epoch by a run, never used twice."""
    return f"{UNITS}/{epoch:012d}-{run_number(token)}-{label}-{secrets.token_hex(6)}"


def made_in(name: str) -> int:
    return int(name.rsplit("/", 1)[-1].split("-", 1)[0])


def pick_segments(chain: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
    """The newest part of a chain that should become one run; empty if all is well."""
    if len(chain) <= MAX_RUNS:
        return []
    ordered = runs(chain)
    if len(ordered) <= MAX_RUNS:
        return []
    gathered, take = 0, 0
    for run in reversed(ordered):
        size = sum(ref.length for ref in run)
        if take >= 2 and size > 2 * gathered:
            break
        gathered += size
        take += 1
    return [ref for run in ordered[len(ordered) - take :] for ref in run]


def compact(storage: Storage, chosen: Sequence[SegmentRef], is_base: bool, epoch: int, token: str = "0-") -> list[SegmentRef]:
    """Writes the run that replaces the chosen segments. Memory: one piece, whatever the size of the state."""
    made: list[SegmentRef] = []

    def flush(piece: list[Entry]) -> None:
        made.append(write_segment(storage, unit_name(epoch, "compact", token), piece, chosen[0].first, chosen[-1].last, is_base))

    piece: list[Entry] = []
    size = 0
    for key, value in merge(storage, chosen, drop_deleted=is_base):
        piece.append((key, value))
        size += len(key) + len(value or b"") + 8
        if size >= PIECE:
            flush(piece)
            piece, size = [], 0
    if piece or not made:
        flush(piece)
    return made


def adopt(chain: Sequence[SegmentRef], chosen: Sequence[SegmentRef], made: Sequence[SegmentRef]) -> list[SegmentRef]:
    """The chain with the chosen segments replaced; unchanged if they are not all in it."""
    names = {(ref.name, ref.offset) for ref in chosen}
    present = [ref for ref in chain if (ref.name, ref.offset) in names]
    if len(present) != len(chosen):
        return list(chain)
    at = next(i for i, ref in enumerate(chain) if (ref.name, ref.offset) in names)
    return [*chain[:at], *made, *chain[at + len(chosen) :]]


class ChainStats(msgspec.Struct, frozen=True):
    """The log of one computation: its segments, their bytes and entries, the runs of its longest chain, and how many bytes are due to be compacted."""

    segments: int
    bytes: int
    entries: int
    longest: int
    due: int


def stats(manifest: Manifest) -> dict[str, ChainStats]:
    """How long the chains of each computation are. Nothing is read."""
    found = {}
    for name, state in manifest.computations.items():
        chains = [shard.segments for shard in state.shards]
        every = [ref for chain in chains for ref in chain]
        found[name] = ChainStats(
            segments=len(every),
            bytes=sum(ref.length for ref in every),
            entries=sum(ref.entries for ref in every),
            longest=max((len(runs(chain)) for chain in chains), default=0),
            due=sum(ref.length for chain in chains for ref in pick_segments(chain)),
        )
    return found
