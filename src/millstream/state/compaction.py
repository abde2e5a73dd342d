"""Folding: many small segments into few large ones, and collection of what no manifest names.

Rules
1. A chain of runs is folded when it has more than `MAX_RUNS`: from the newest back, as long as the next older run is not more than
   twice as large as what has been gathered. Every entry is rewritten about once per doubling of the state, and a chain stays short.
2. A fold that reaches the oldest run is a snapshot: deletions are dropped, and it becomes the base.
3. Folds happen beside the epochs; the next manifest adopts them. One that nobody adopts is a leftover like any other.
4. Kept are the newest `KEEP` manifests and, for readers, the first of each second of the last `WINDOW`: at 60 epochs a second a reader has one that
   lasts for a minute, and collection has at most some seventy to look at. Time is the manifests' own (`now`), so no clock is asked.
5. An object's name begins with the epoch in which it was made. Collection after the commit of N removes only objects made before the newest `KEEP`
   epochs that no kept manifest names: a driver that has been replaced without noticing can never remove what its successor made.
6. A manifest goes before the objects that only it names. What is there can be read whole.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.errors import DamageError
from millstream.state.fencing import run_number
from millstream.state.manifest import KEEP, Manifest, ManifestLog, manifest_name
from millstream.state.segment import PIECE, Entry, SegmentRef, encode_segment, merge, runs
from millstream.state.storage import Storage

MAX_RUNS = 12
UNITS = "units"
_READERS = 8
WINDOW = 60_000  # milliseconds
_SECOND = 1000


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
        made.append(SegmentRef(name=name, offset=0, length=len(data), entries=len(piece), first=first, last=last, base=is_base))

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
    for parts in (*manifest.sinks.values(), *(waiting.parts for waiting in manifest.waiting.values())):
        names.update(part.staged for part in parts if part.in_checkpoint and part.staged is not None)
    names.update(ref.name for position in manifest.sources.values() for ref in position.names)
    return names


def second_of(now: int) -> int:
    """The second that a manifest's time is in: the first manifest of each is kept for a while."""
    return now // _SECOND


def collect(
    log: ManifestLog, newest: Manifest, in_flight: Iterable[str] = (), folding_since: int | None = None, window: int = WINDOW
) -> int:
    """Removes manifests that are not kept any longer, and objects that nothing names. Returns how many objects went.

    in_flight: finished folds that the next manifest may adopt. folding_since: the epoch in which a fold still under way began.
    window: for how long (milliseconds) a manifest of each second is kept; 0: no longer than others.
    """
    storage, known = log.storage, log.collection
    epochs = [epoch for epoch in log.epochs() if epoch <= newest.epoch]
    recent = [epoch for epoch in epochs if newest.epoch - KEEP < epoch]
    if not recent:
        return 0
    _note(log, newest)
    _note_all(log, [epoch for epoch in epochs if epoch not in known.times])
    lasts = (
        window + _SECOND if window else 0
    )  # a second goes as a whole, when it is wholly outside: nobody steps into its first one's place
    lasting: dict[int, int] = {}
    for epoch in epochs:
        if epoch in known.times or _noted(log, epoch):
            now = known.times[epoch]
            if abs(second_of(newest.now) - second_of(now)) * _SECOND < lasts:  # a clock may have been put back
                lasting.setdefault(second_of(now), epoch)
    kept = {*recent, *(epoch for epoch in lasting.values() if epoch in known.names or _noted(log, epoch))}
    needed = set(in_flight)
    for epoch in kept:
        needed |= known.names[epoch] if epoch in known.names else _note(log, log.read(epoch))
    limit = recent[0] if folding_since is None else min(recent[0], folding_since)
    gone = [name for name in storage.list(UNITS) if name not in needed and made_in(name) < limit]
    old = [epoch for epoch in epochs if epoch not in kept]
    storage.delete(map(manifest_name, old))
    storage.delete(gone)
    for epoch in old:
        known.times.pop(epoch, None)
        known.names.pop(epoch, None)
    known.rounds += 1
    known.objects += len(gone)
    known.manifests += len(old)
    return len(gone)


class ChainStats(msgspec.Struct, frozen=True):
    """The log of one computation: its segments, their bytes and entries, the runs of its longest chain, and how many bytes are due to be folded."""

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
            due=sum(ref.length for chain in chains for ref in to_fold(chain)),
        )
    return found


def _note(log: ManifestLog, manifest: Manifest) -> frozenset[str]:
    """Notes what collection wants to know of a manifest, which never changes."""
    log.collection.times[manifest.epoch] = manifest.now
    log.collection.names[manifest.epoch] = names = frozenset(map(sys.intern, named_by(manifest)))
    return names


def _note_all(log: ManifestLog, epochs: Sequence[int]) -> None:
    """The first collection of a run knows none of the manifests that are there: they are read side by side, a store may be far away."""
    if len(epochs) > KEEP:
        with ThreadPoolExecutor(_READERS) as readers:
            list(readers.map(lambda epoch: _noted(log, epoch), epochs))


def _noted(log: ManifestLog, epoch: int) -> bool:
    """The same of one that need not be there: a driver that has been replaced may be collecting too."""
    try:
        _note(log, log.read(epoch))
    except DamageError:
        return False
    return True
