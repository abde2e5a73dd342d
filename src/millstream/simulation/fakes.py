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


class Host:
    """A worker process: its state caches, with the rules of `state/state_cache.py`, and filters. trusting: a state cache is used whatever it stands at.
    Implements the task's cache."""

    def __init__(self, storage: Storage, trusting: bool) -> None:
        self._storage = storage
        self._trusting = trusting
        self._stores: dict[
            tuple[str, int], tuple[bytes | None, MemoryStore]
        ] = {}  # by lineage and shard: what it stands at, and its entries
        self._filters: dict[tuple[str, int, str], SpanFilters] = {}

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> MemoryStore:
        mark = mark_of(before)
        marker, store = self._stores.get((lineage, shard), (None, MemoryStore()))
        if marker == mark or (self._trusting and marker is not None):
            return store
        due = missing(marker, chain, before)
        if due is None:
            store, due = MemoryStore(), chain
        for ref in due:
            for keys, values in read_blocks(self._storage, ref):
                store.apply(dict(zip(keys, values, strict=True)))
        self._stores[lineage, shard] = mark, store
        return store

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return self._filters.setdefault((lineage, shard, stream), SpanFilters())
