"""A growing group: what its tree looks like from epoch to epoch, read from the checkpoint while the pipeline runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from demos.people.world import CHECKPOINT, RISING
from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, decode_row
from millstream.errors import MillstreamError
from millstream.state.manifest import Manifest, ManifestLog
from millstream.state.reader import CommittedState
from millstream.state.storage import open_storage
from millstream.views.agg_tree import FAN, depth


class TreeSight(msgspec.Struct, frozen=True):
    """The group in an epoch: its users, its leaves (0: all in the row), and how many entries each level has, leaves first."""

    epoch: int
    people: int = 0
    leaves: int = 0
    records: int = 0

    @property
    def levels(self) -> list[int]:
        """How many entries each level of the tree has, the leaves first; nothing while all is in the row."""
        found, width = [], self.leaves
        for _ in range(1 + depth(self.leaves) if self.leaves else 0):
            found.append(width)
            width = -(-width // FAN)
        return found


class TreeWatcher:
    """Looks at the checkpoint, whenever it is asked to."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._state: CommittedState | None = None
        self.sights: list[TreeSight] = []

    def look(self) -> TreeSight:
        """The newest epoch, noted if it is new."""
        try:
            if self._state is None:
                if not (self._output / CHECKPOINT / "identity.json").exists():
                    return TreeSight(-1)
                self._state = CommittedState(ManifestLog(open_storage(str(self._output / CHECKPOINT), None)))
            log = self._state.log
            manifest = log.latest()
            if manifest is None or (self.sights and self.sights[-1].epoch == manifest.epoch):
                return self.sights[-1] if self.sights else TreeSight(-1)
            sight = self._sight(manifest)
        except (MillstreamError, OSError):
            return self.sights[-1] if self.sights else TreeSight(-1)
        self.sights.append(sight)
        return sight

    def _sight(self, manifest: Manifest) -> TreeSight:
        assert self._state is not None
        records = sum(one.records for one in manifest.injectors.values())
        view = manifest.computations.get("countries")
        if view is None:
            return TreeSight(manifest.epoch, records=records)
        row_key = key_bytes(RISING)
        with self._state.at(manifest.epoch) as reader:
            raw = reader.entry("countries", shard_of(row_key, len(view.shards)), ROW + row_key)
        if raw is None:
            return TreeSight(manifest.epoch, records=records)
        _, leaves, count, *_ = msgspec.msgpack.decode(decode_row(raw).state)
        return TreeSight(manifest.epoch, count, leaves, records)
