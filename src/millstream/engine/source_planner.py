"""Millstream's own planner: where each source of a run stands, and what the next epoch reads. Driver.

Rules
1. Where an epoch begins is what the last manifest says; where it ends is decided here, and stands in its own manifest. Nothing else is written down, so an
   epoch that was not committed leaves nothing behind and is planned anew.
2. The files that were read are a chain of segments, like state: an epoch adds those that it reads, and the chain is compacted when it has become long. They
   are staged under a name of this run, like everything of an epoch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.plan import Range, Reading
from millstream.errors import CheckpointError
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.compaction import adopt, compact, pick_segments, unit_name
from millstream.state.heartbeat import Backlog
from millstream.state.manifest import Manifest, SourcePosition
from millstream.state.segment import SegmentRef, merge, write_segment
from millstream.state.storage import Storage

_METERED = 10.0  # seconds

_pack = msgspec.msgpack.Encoder().encode
_number = msgspec.msgpack.Decoder(int).decode


class SourcePlanner:
    """The readers of a run, by injector. bounded: the run ends with its input."""

    is_ours = True

    def __init__(
        self,
        readers: Mapping[str, PlannedReader],
        storage: Storage,
        token: str,
        latest: Manifest | None,
        bounded: bool,
        guards: Guards = ALL_GUARDS,
    ) -> None:
        self.readers = dict(readers)
        self._storage, self._token, self._bounded, self._guards = storage, token, bounded, guards
        self._starts: dict[str, str] = {}
        self._meters = {name: BacklogMeter(reader.counts) for name, reader in self.readers.items() if reader.counts}
        for name, reader in self.readers.items():
            position = latest.sources.get(name) if latest is not None else None
            if position is None and latest is not None and any(progress.records for progress in latest.injectors.values()):
                raise CheckpointError(
                    f"{storage.url} was read by Spark's own planner so far, and now Millstream is to read injected stream {name!r}: it does not know how far "
                    f"the stream was read. Leave the sources as they were, or start with a new checkpoint."
                )
            reader.begin({} if position is None else names_read(storage, position), bounded)

    def took_over(self, manifest: Manifest) -> None:
        for name, position in manifest.sources.items():
            if name in self.readers:
                self.readers[name].begin(names_read(self._storage, position), self._bounded)

    def next(self, latest: Manifest | None) -> tuple[Reading, dict[str, SplitPlan]]:
        takes, ranges, positions = {}, {}, {}
        epoch, batch = (0, 0) if latest is None else (latest.epoch + 1, latest.last_batch + 1)
        for name, reader in self.readers.items():
            known = latest.sources.get(name) if latest is not None else None
            start = known.offset if known is not None else self._starts.get(name)
            if start is None:
                start = self._starts[name] = reader.first()
            take = takes[name] = reader.plan(start if self._guards.offsets else self._last_planned(name, start))
            ranges[name] = Range(start, take.end)
            if reader.counts:
                self._meters[name].note(take)
            positions[name] = SourcePosition(take.end, self._chain(name, known, take, epoch))
        return Reading(batch=batch, ranges=ranges, positions=positions), {name: take for name, take in takes.items() if take.splits}

    def _last_planned(self, name: str, start: str) -> str:
        """For tests that show what manifests are for: where an epoch ends is written down when it is planned, and the next one begins there."""
        known = f"planned-{name}"
        begin = self._storage.read(known).decode() if self._storage.exists(known) else start
        self._storage.put(known, self.readers[name].plan(begin).end.encode())
        return begin

    def nothing(self, latest: Manifest) -> Reading:
        """An epoch that reads nothing: all sources stay where they are."""
        return Reading(batch=latest.last_batch + 1, ranges={}, positions=latest.sources)

    def _chain(self, name: str, known: SourcePosition | None, take: SplitPlan, epoch: int) -> list[SegmentRef]:
        chain = list(known.names) if known is not None else []
        entries: dict[bytes, bytes | None] = {file.encode(): _pack(time) for file, time in take.names.items()}
        entries |= {file.encode(): None for file in take.gone}
        if not entries:
            return chain
        chain.append(write_segment(self._storage, unit_name(epoch, "names", self._token), sorted(entries.items()), epoch, epoch))
        chosen = pick_segments(chain)
        return adopt(chain, chosen, compact(self._storage, chosen, chosen[0] == chain[0], epoch, self._token)) if chosen else chain

    def parts(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        reader = self.readers[injector]
        return reader.parts(), reader.parts_read()

    def backlogs(self) -> dict[str, Backlog]:
        return {name: meter.backlog() for name, meter in self._meters.items()}

    def acknowledge(self, batch: int, positions: Mapping[str, SourcePosition]) -> None:
        for name, position in positions.items():
            if name in self.readers:
                self.readers[name].committed(position.offset)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()


class BacklogMeter:
    """What a source had left when it was planned last, and how fast it is read. Noted by the driver, asked for by anybody."""

    def __init__(self, counts: str) -> None:
        self._counts = counts
        self._left = 0
        self._taken: deque[tuple[float, int]] = deque()  # moment, how many

    def note(self, plan: SplitPlan) -> None:
        self._left = plan.left
        if plan.takes or self._taken:
            now = time.monotonic()
            self._taken.append((now, plan.takes))
            while self._taken[0][0] < now - _METERED:
                self._taken.popleft()

    def backlog(self) -> Backlog:
        taken = list(self._taken)
        rate = sum(count for _, count in taken[:-1]) / (taken[-1][0] - taken[0][0]) if len(taken) > 1 else 0.0
        seconds = 0.0 if not self._left else round(self._left / rate, 1) if rate else None
        return Backlog(self._left, self._counts, seconds)


def names_read(storage: Storage, position: SourcePosition) -> dict[str, int]:
    """The files that were read, with their times of modification."""
    return {key.decode(): _number(value) for key, value in merge(storage, position.names, drop_deleted=True) if value is not None}
