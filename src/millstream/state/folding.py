"""Folding: many small segments into few large ones, and collection of what no manifest names.

Rules
1. A chain of runs is folded when it has more than `MAX_RUNS`: from the newest back, as long as the next older run is not more than
   twice as large as what has been gathered. Every entry is rewritten about once per doubling of the state, and a chain stays short.
2. A fold that reaches the oldest run is a snapshot: deletions are dropped, and it becomes the base.
3. Folds happen beside the epochs; the next manifest adopts them. One that nobody adopts is a leftover like any other.
4. An object's name begins with the epoch in which it was made. Collection after the commit of N removes only objects made
   before the oldest manifest kept that no kept manifest names: a driver that has been replaced without noticing can
   never remove what its successor made.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from millstream.state.manifest import KEEP, Manifest, ManifestLog, manifest_name
from millstream.state.runs import run_number
from millstream.state.segment import PIECE, Entry, SegmentRef, encode_segment, merge, runs
from millstream.state.storage import Storage

MAX_RUNS = 12
UNITS = "units"


def unit_name(epoch: int, label: str, token: str = "0-") -> str:
    """A name for an object made in an epoch by a run, never used twice."""
    return f"{UNITS}/{epoch:012d}-{run_number(token)}-{label}-{secrets.token_hex(6)}"


def made_in(name: str) -> int:
    """The epoch in which an object was made."""
    return int(name.rsplit("/", 1)[-1].split("-", 1)[0])


def to_fold(chain: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
    """The newest part of a chain that should become one run; empty if all is well."""
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
    chosen = [ref for run in ordered[len(ordered) - take :] for ref in run]
    return chosen


def fold(storage: Storage, chosen: Sequence[SegmentRef], is_base: bool, epoch: int, token: str = "0-") -> list[SegmentRef]:
    """Writes the run that replaces the chosen segments. Memory: one piece, whatever the size of the state."""
    first, last = chosen[0].first, chosen[-1].last
    made: list[SegmentRef] = []

    def flush(piece: list[Entry]) -> None:
        data = encode_segment(piece)
        name = unit_name(epoch, "fold", token)
        storage.put(name, data)
        made.append(SegmentRef(name, 0, len(data), len(piece), first, last, is_base))

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


def named_by(manifest: Manifest) -> set[str]:
    """The objects that a manifest needs."""
    names = {ref.name for c in manifest.computations.values() for shard in c.shards for ref in shard.segments}
    names.update(parcel.name for parcel in manifest.pending)
    names.update(part["staged"] for parts in manifest.sinks.values() for part in parts if part.get("in_checkpoint"))
    return names


def collect(log: ManifestLog, newest: Manifest, in_flight: Iterable[str] = (), folding_since: int | None = None) -> int:
    """Removes manifests beyond the last few, and objects that nothing names. Returns how many objects went.

    in_flight: finished folds that the next manifest may adopt. folding_since: the epoch in which a fold still under way began.
    """
    storage = log.storage
    epochs = log.epochs()
    kept = [epoch for epoch in epochs if newest.epoch - KEEP < epoch <= newest.epoch]
    if not kept:
        return 0
    needed = set(in_flight) | named_by(newest)
    for epoch in kept[:-1]:
        needed |= named_by(log.read(epoch))
    limit = kept[0] if folding_since is None else min(kept[0], folding_since)
    gone = [name for name in storage.list(UNITS) if name not in needed and made_in(name) < limit]
    storage.delete(gone)
    storage.delete(manifest_name(epoch) for epoch in epochs if epoch < kept[0])
    return len(gone)
