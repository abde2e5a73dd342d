"""What a simulation models: a sink, worker processes with their state caches, and processes that are killed."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from millstream.core.dedup import SpanFilters
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.state.manifest import Manifest
from millstream.state.memory_storage import MemoryStore
from millstream.state.segment import SegmentRef, read_blocks
from millstream.state.state_cache import mark_of, missing
from millstream.state.storage import Storage


class Killed(BaseException):
    """The driver's process is gone."""


class Violation(AssertionError):
    """Something that must never happen has happened."""


class PublishedRows(Sink):
    """A sink that stages and publishes as `sinks.files` does, and notes the order in which epochs are handed over."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.handed: list[int] = []

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        staged = f"staging/{context.epoch:06d}-{context.label}-{context.attempt}"
        self.storage.put(staged, pickle.dumps([(row.key, row.timestamp, row.value, row.id) for row in rows]))  # type: ignore[attr-defined]
        return Part(rows=len(rows), staged=staged, own={"final": f"out/{context.emission}/{context.epoch:06d}-{context.label}"})

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        if self.handed and epoch < self.handed[-1]:
            raise Violation(f"epoch {epoch} was published after epoch {self.handed[-1]}")
        self.handed.append(epoch)
        for part in parts:
            assert part.staged is not None
            if not context.redo and not self.storage.exists(part.staged):
                raise Violation(
                    f"rows of stream {context.emission!r} in epoch {epoch} were committed, and what was staged for them is gone"
                )
            if not self.storage.publish(part.staged, part.own["final"]):
                raise Violation(f"{part.own['final']} was published twice, with different rows")

    def rows(self, emission: str) -> list[tuple[Any, int, Any, str]]:
        """All that was published, in order of epochs."""
        return [row for name in self.storage.list(f"out/{emission}") for row in pickle.loads(self.storage.read(name))]


class MemoryStateCache:
    """One shard in the memory of one worker, with the rules of `state/state_cache.py`."""

    def __init__(self) -> None:
        self.marker: bytes | None = None
        self.store = MemoryStore()

    def view(self, storage: Storage, chain: Sequence[SegmentRef], manifest: Manifest, trusting: bool) -> MemoryStore:
        mark = mark_of(manifest)
        if self.marker == mark or (trusting and self.marker is not None):
            return self.store
        due = missing(self.marker, chain, manifest)
        if due is None:
            self.store = MemoryStore()
            due = chain
        for ref in due:
            for keys, values in read_blocks(storage, ref):
                self.store.apply(dict(zip(keys, values, strict=True)))
        self.marker = mark
        return self.store


class Host:
    """A worker process: state caches and filters."""

    def __init__(self) -> None:
        self.state_caches: dict[tuple[str, int], MemoryStateCache] = {}
        self.filters: dict[tuple[str, int, str], SpanFilters] = {}


class HostCache:
    """A host's state caches and filters, as a task wants them. trusting: a state cache is used whatever it stands at."""

    def __init__(self, host: Host, storage: Storage, trusting: bool) -> None:
        self._host = host
        self._storage = storage
        self._trusting = trusting

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> MemoryStore:
        return self._host.state_caches.setdefault((lineage, shard), MemoryStateCache()).view(self._storage, chain, before, self._trusting)

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return self._host.filters.setdefault((lineage, shard, stream), SpanFilters())
