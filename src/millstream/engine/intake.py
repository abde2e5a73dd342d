"""Rows of injected streams on their way into shards, where they are plain Python dictionaries: for the local engine and the simulation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from millstream.core import dedup
from millstream.core.dedup import DedupCounts, SpanFilters
from millstream.core.keys import BadKey, key_text, shard_of
from millstream.core.record import ListBatch
from millstream.core.topology import Group, Injector
from millstream.core.watermark import Percentile, Progress, Seen, bucket
from millstream.engine.program import Arrival, Worker
from millstream.errors import DefinitionError, InputError


class Intake:
    """The injected records of one epoch, by consumer and shard, and what watermark policies want to know of them."""

    def __init__(self, worker: Worker, shards: int, now: int, progress: Mapping[str, Progress]) -> None:
        self.worker = worker
        self.shards = shards
        self.now = now
        self.progress = progress
        self.queued: dict[tuple[str, int], list[Arrival]] = {}
        self.seen: dict[tuple[str, str, int], Seen] = {}  # stream, first consumer, shard

    def add(self, injector: Injector, row: dict[str, Any]) -> None:
        """Takes a row in."""
        time = self.now if injector.timestamp is None else _column(injector, row, injector.timestamp, "timestamp")
        if time.__class__ is not int:
            raise InputError(f"stream {injector.name!r}: the timestamp {time!r} of {row!r} is not an int (milliseconds)")
        if injector.id is None:
            name = blake2b(repr(sorted(row.items(), key=lambda item: item[0])).encode(), digest_size=8).hexdigest()
        else:
            name = str(_column(injector, row, injector.id, "id"))
        value = row if injector.value is None else _column(injector, row, injector.value, "value")
        routes = self.worker.routes_of.get(injector.name, [])
        for route in routes:
            if isinstance(route.key, tuple):
                key: Any = tuple(_column(injector, row, k, "key") for k in route.key) if route.key else name
            else:
                key = _column(injector, row, route.key, "key")
            try:
                text = key_text(key)
            except BadKey as error:
                raise InputError(f"stream {injector.name!r}, key {route.key!r} of computation {route.computation!r}: {error} (row {row!r})") from error
            shard = shard_of(text.encode(), self.shards)
            self.queued.setdefault((route.computation, shard), []).append((text, time, name, ListBatch(injector.name, (copy.deepcopy(value),), (name,)), 0))
            if route is routes[0]:
                self.seen.setdefault((injector.name, route.computation, shard), Seen()).add(self._look(injector, row, time))
        if not routes:
            self.seen.setdefault((injector.name, "", 0), Seen()).add(self._look(injector, row, time))

    def _look(self, injector: Injector, row: dict[str, Any], time: int) -> Seen:
        """What the injector's watermark policy wants to know of one row."""
        policy = injector.watermark
        mark = _column(injector, row, policy.mark_column, "watermark") if policy.mark_column else None
        one = Seen(1, time, mark)
        if policy.sub_column:
            sub = _column(injector, row, policy.sub_column, "sub-source")
            if sub is not None:
                one.subs = {sub: (time, mark)}
        newest = self.progress.get(injector.name, Progress()).newest
        if isinstance(policy, Percentile) and newest is not None:
            one.lags = {bucket(newest - time): 1}
        return one

    def seen_in_all(self) -> dict[str, Seen]:
        """What came in on every stream."""
        found = {name: Seen() for name in self.worker.topology.injectors}
        for (stream, _, _), seen in self.seen.items():
            found[stream].add(seen)
        return found

    def seen_by(self, group: Group, shard: int) -> dict[str, Seen]:
        """What one task sees of it."""
        return {stream: seen for (stream, computation, at), seen in self.seen.items() if at == shard and computation in group.computations}

    def deduplicated(
        self, computation: str, rows: Sequence[Arrival], store: Any, filters: Callable[[str], SpanFilters], epoch: int
    ) -> tuple[list[Arrival], dict[bytes, bytes | None], DedupCounts]:
        """A computation's rows without duplicates, what changes in its store, and the counts. The clever way; the local engine has a dumb one."""
        topology = self.worker.topology
        delta: dict[bytes, bytes | None] = {}
        counts = DedupCounts()
        kept = [row for row in rows if topology.injectors[row[3].stream].dedup is None]
        for i in topology.by_name[computation].inputs:
            rule = topology.injectors[i.stream].dedup if i.stream in topology.injectors else None
            if rule is None:
                continue
            mine = [row for row in rows if row[3].stream == i.stream]
            names = [f"{row[0]}\x1f{row[2]}".encode() for row in mine]
            hashes = np.array([int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names], np.uint64)

            keep, changed, count = dedup.check(rule, i.stream, store, filters(i.stream), hashes, _Names(names, [row[1] for row in mine]), self.now, epoch)
            kept += [row for row, stays in zip(mine, keep.tolist(), strict=True) if stays]
            delta.update(changed)
            counts.add(count)
        return kept, delta, counts


class _Names:
    """The names of some rows, in lists."""

    def __init__(self, names: list[bytes], times: list[int]) -> None:
        self._names, self._times = names, times

    def ids(self, positions: Any) -> list[bytes]:
        return [self._names[at] for at in positions.tolist()]

    def packed(self, positions: Any) -> bytes:
        return dedup.pack(self.ids(positions))

    def in_order(self, positions: Any) -> Any:
        return np.array(sorted(positions.tolist(), key=lambda at: (self._times[at], at)), np.int64)


def _column(injector: Injector, row: dict[str, Any], column: Any, what: str) -> Any:
    if not isinstance(column, str):
        raise DefinitionError(f"stream {injector.name!r}: the local engine needs a column name for its {what}, not a Spark expression")
    if column not in row:
        raise InputError(f"stream {injector.name!r}: {row!r} has no column {column!r}, which is its {what}")
    return row[column]
