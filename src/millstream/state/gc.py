"""Garbage collection: removes what no manifest that is kept names.

Rules
1. Kept are the newest `KEEP` manifests and, for readers, the first of each second of the last `WINDOW`: at 60 epochs a second a reader has one that
   lasts for a minute, and collection has at most some seventy to look at. Time is the manifests' own (`now`), so no clock is asked.
2. An object's name begins with the epoch in which it was made. Collection after the commit of N removes only objects made before the newest `KEEP`
   epochs that no kept manifest names: a driver that has been replaced without noticing can never remove what its successor made.
3. A manifest goes before the objects that only it names. What is there can be read whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from millstream.errors import DamageError
from millstream.state.compaction import UNITS, made_in
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import KEEP, ManifestLog, manifest_name

_READERS = 8
WINDOW = 60_000  # milliseconds
_SECOND = 1000


def named_by(manifest: Manifest) -> set[str]:
    names = {ref.name for c in manifest.computations.values() for shard in c.shards for ref in shard.segments}
    names.update(stored_ref.name for stored_ref in manifest.pending)
    for parts in (*manifest.sinks.values(), *(waiting.parts for waiting in manifest.waiting.values())):
        names.update(part.staged for part in parts if part.in_checkpoint and part.staged is not None)
    names.update(ref.name for position in manifest.sources.values() for ref in position.names)
    return names


def second_of(now: int) -> int:
    """The second that a manifest's time is in: the first manifest of each is kept for a while."""
    return now // _SECOND


def collect(
    log: ManifestLog, newest: Manifest, in_flight: Iterable[str] = (), compacting_since: int | None = None, window: int = WINDOW
) -> int:
    """Removes manifests that are not kept any longer, and objects that nothing names. Returns how many objects went. in_flight: finished compactions that the
    next manifest may adopt. compacting_since: the epoch in which a compaction still under way began. window: for how long (milliseconds) a manifest of each
    second is kept; 0: no longer than others."""
    storage, known = log.storage, log.collection
    epochs = [epoch for epoch in log.epochs() if epoch <= newest.epoch]
    recent = [epoch for epoch in epochs if newest.epoch - KEEP < epoch]
    if not recent:
        return 0
    _note(log, newest)
    unknown = [epoch for epoch in epochs if epoch not in known.times]
    if len(unknown) > KEEP:  # in the first collection of a run: they are read side by side, a store may be far away
        with ThreadPoolExecutor(_READERS) as readers:
            list(readers.map(lambda epoch: _note_if_there(log, epoch), unknown))
    lasts = window + _SECOND if window else 0  # a second goes as a whole: nobody steps into its first one's place
    lasting: dict[int, int] = {}
    for epoch in epochs:
        if epoch in known.times or _note_if_there(log, epoch):
            now = known.times[epoch]
            if abs(second_of(newest.now) - second_of(now)) * _SECOND < lasts:  # a clock may have been put back
                lasting.setdefault(second_of(now), epoch)
    kept = {*recent, *(epoch for epoch in lasting.values() if epoch in known.names or _note_if_there(log, epoch))}
    needed = set(in_flight)
    for epoch in kept:
        needed |= known.names[epoch] if epoch in known.names else _note(log, log.read(epoch))
    limit = recent[0] if compacting_since is None else min(recent[0], compacting_since)
    gone = [name for name in storage.list(UNITS) if name not in needed and made_in(name) < limit]
    old = [epoch for epoch in epochs if epoch not in kept]
    storage.delete(map(manifest_name, old))
    storage.delete(gone)
    for epoch in old:
        known.times.pop(epoch, None)
        known.names.pop(epoch, None)
    return len(gone)


def _note(log: ManifestLog, manifest: Manifest) -> frozenset[str]:
    """Notes what collection wants to know of a manifest, which never changes."""
    log.collection.times[manifest.epoch] = manifest.now
    log.collection.names[manifest.epoch] = names = frozenset(map(sys.intern, named_by(manifest)))
    return names


def _note_if_there(log: ManifestLog, epoch: int) -> bool:
    """Notes a manifest that may be gone: a driver that has been replaced may be collecting too. Returns whether it was there."""
    try:
        _note(log, log.read(epoch))
    except DamageError:
        return False
    return True
