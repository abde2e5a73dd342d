"""The local engine: the same pipelines in one process, without Spark, on a hand-moved clock. The oracle of the tests.

It runs the very step of the Spark engine, epoch by epoch, and commits by replacing one dictionary. What it does not model: shuffles,
attempts, files. Keys and timestamps of injected streams must be column names (a Spark Column needs Spark).
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from millstream.core.keys import BadKey, key_bytes, key_text, shard_of
from millstream.core.layout import ROW, decode_row, sub_prefix
from millstream.core.record import ListBatch, Timer
from millstream.core.step import Arrivals, Outcome, StateKind, Times
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK
from millstream.core.topology import Injector, Topology
from millstream.core.watermark import propagate
from millstream.engine.program import Arrival, BodyBatch, Program, Worker
from millstream.errors import DefinitionError, InputError


class MemoryStore:
    """An ordered map in memory. Implements the core's Store."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        low, high = bisect.bisect_left(self._keys, start), bisect.bisect_left(self._keys, stop)
        found = self._keys[low:high]
        for key in reversed(found) if reverse else found:
            yield key, self.entries[key]

    def apply(self, delta: Mapping[bytes, bytes | None]) -> None:
        """Puts and deletes, together."""
        for key, value in delta.items():
            if value is None:
                if self.entries.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]
            else:
                if key not in self.entries:
                    bisect.insort(self._keys, key)
                self.entries[key] = value


class Emitted(msgspec.Struct, frozen=True):
    """A record as a stream carried it."""

    key: Any
    value: Any
    timestamp: int
    id: str


class SimulatedCrash(Exception):
    """Raised by an epoch that was asked to crash. Nothing of it was committed."""


class LocalEngine:
    """A pipeline in memory."""

    def __init__(self, program: Program, shards: int = 2) -> None:
        self.program = program
        self.topology: Topology = program.topology
        self.worker = Worker(program, all_ids=True)
        self.shards = shards
        self.epoch = -1
        self.now = 0
        self.pending: list[tuple[str, dict[str, Any]]] = []
        self.newest: dict[str, int | None] = dict.fromkeys(self.topology.injectors)
        self.injected: dict[str, int] = dict.fromkeys(self.topology.injectors, BEGINNING)
        self.low_watermarks: dict[str, int] = {spec.name: BEGINNING for spec in self.topology.computations}
        self.stores = {(spec.name, shard): MemoryStore() for spec in self.topology.computations for shard in range(shards)}
        self.outputs: dict[str, list[Emitted]] = {stream: [] for spec in self.topology.computations for stream in spec.produces}
        self.late: dict[str, int] = {spec.name: 0 for spec in self.topology.computations}
        self.next_timers: dict[tuple[str, int], tuple[int | None, int | None]] = {}

    def push(self, stream: str, row: dict[str, Any]) -> None:
        """Lets a row arrive in the next epoch."""
        if stream not in self.topology.injectors:
            raise DefinitionError(f"no injected stream is called {stream!r}; there are: {', '.join(self.topology.injectors)}")
        self.pending.append((stream, dict(row)))

    def run_epoch(self, crash: bool = False) -> None:
        """One epoch: everything pushed so far, and every timer that is due."""
        low = propagate(self.topology, self.injected, self.low_watermarks)
        times = {name: Times(self.now, self.low_watermarks[name], low[name], self.epoch + 1) for name in low}
        queued: dict[tuple[str, int], list[Arrival]] = {}
        newest = dict(self.newest)
        for stream, row in self.pending:
            self._route(self.topology.injectors[stream], row, queued, newest)
        outcomes: dict[tuple[str, int], Outcome] = {}
        for groups in self.topology.levels:
            for group in groups:
                for shard in range(self.shards):
                    arrivals = {name: Arrivals.of(queued.get((name, shard), ())) for name in group.computations}
                    stores = {name: self.stores[name, shard] for name in group.computations}
                    for name, outcome in self.worker.run_group(group, arrivals, stores, times).items():
                        outcomes[name, shard] = outcome
                        self._forward(outcome, queued)
        if crash:
            raise SimulatedCrash(f"epoch {self.epoch + 1} was not committed")
        self._commit(low, newest, outcomes)

    def _route(self, injector: Injector, row: dict[str, Any], queued: dict[tuple[str, int], list[Arrival]], newest: dict[str, int | None]) -> None:
        time = self.now if injector.timestamp is None else self._column(injector, row, injector.timestamp, "timestamp")
        if time.__class__ is not int:
            raise InputError(f"stream {injector.name!r}: the timestamp {time!r} of {row!r} is not an int (milliseconds)")
        if injector.id is None:
            name = blake2b(repr(sorted(row.items(), key=lambda item: item[0])).encode(), digest_size=8).hexdigest()
        else:
            name = str(self._column(injector, row, injector.id, "id"))
        value = row if injector.value is None else self._column(injector, row, injector.value, "value")
        newest[injector.name] = max(time, newest[injector.name] if newest[injector.name] is not None else time)  # type: ignore[type-var]
        for route in self.worker.routes_of.get(injector.name, ()):
            if isinstance(route.key, tuple):
                key: Any = tuple(self._column(injector, row, k, "key") for k in route.key) if route.key else name
            else:
                key = self._column(injector, row, route.key, "key")
            try:
                text = key_text(key)
            except BadKey as error:
                raise InputError(f"stream {injector.name!r}, key {route.key!r} of computation {route.computation!r}: {error} (row {row!r})") from error
            shard = shard_of(text.encode(), self.shards)
            queued.setdefault((route.computation, shard), []).append((text, time, name, ListBatch(injector.name, (copy.deepcopy(value),), (name,)), 0))

    def _column(self, injector: Injector, row: dict[str, Any], column: Any, what: str) -> Any:
        if not isinstance(column, str):
            raise DefinitionError(f"stream {injector.name!r}: the local engine needs a column name for its {what}, not a Spark expression")
        if column not in row:
            raise InputError(f"stream {injector.name!r}: {row!r} has no column {column!r}, which is its {what}")
        return row[column]

    def _forward(self, outcome: Outcome, queued: dict[tuple[str, int], list[Arrival]]) -> None:
        for p in outcome.productions:
            for route in self.worker.routes_of.get(p.stream, ()):
                text = self.worker.route_keys[route.index](p)
                batch = BodyBatch(p.stream, [p.body], [p.id], self.worker.decode_value)
                shard = shard_of(text.encode(), self.shards)
                queued.setdefault((route.computation, shard), []).append((text, p.timestamp, p.id, batch, 0))

    def _commit(self, low: dict[str, int], newest: dict[str, int | None], outcomes: dict[tuple[str, int], Outcome]) -> None:
        self.epoch += 1
        self.pending = []
        self.low_watermarks = low
        self.newest = newest
        for name, time in newest.items():
            self.injected[name] = max(self.injected[name], self.topology.injectors[name].watermark.watermark(time))
        for (name, shard), outcome in outcomes.items():
            self.stores[name, shard].apply(outcome.delta)
            self.late[name] += outcome.counts.late
            self.next_timers[name, shard] = (outcome.counts.next_low, outcome.counts.next_wall)
            for p in outcome.productions:
                self.outputs[p.stream].append(Emitted(p.key, self.worker.decode_value(p.body), p.timestamp, p.id))

    def due(self) -> bool:
        """Whether the next epoch has anything to do."""
        low = propagate(self.topology, self.injected, self.low_watermarks)
        return bool(self.pending) or any(
            (next_low is not None and next_low <= low[name]) or (next_wall is not None and next_wall <= self.now)
            for (name, _), (next_low, next_wall) in self.next_timers.items()
        )

    def drain(self) -> None:
        """Ends event time: all that was pushed is processed, and every low-watermark timer fires."""
        if self.pending:
            self.run_epoch()
        self.injected = dict.fromkeys(self.injected, END)
        self.run_epoch()
        while self.due():
            self.run_epoch()

    def state(self, computation: str) -> dict[Any, Any]:
        """The committed state of every key."""
        from millstream.core.keys import key_of

        kind = self._kind(computation)
        found: dict[Any, Any] = {}
        for shard in range(self.shards):
            store = self.stores[computation, shard]
            for entry, raw in store.scan(ROW, ROW + b"\xff" * 4):
                row_key = entry[1:]
                state = kind.fresh() if kind.is_map else kind.decode(decode_row(raw).state)
                for field, sub in kind.maps(state):
                    sub.bind(store, sub_prefix(row_key, field), kind.encode, kind.decode_sub)
                found[key_of(row_key.decode())] = state
        return found

    def timers(self, computation: str, key: Any) -> list[Timer]:
        """The timers of a key, in order of time."""
        self._kind(computation)
        row_key = key_bytes(key)
        raw = self.stores[computation, shard_of(row_key, self.shards)].get(ROW + row_key)
        if raw is None:
            return []
        row = decode_row(raw)
        return sorted([Timer(t, tag, LOW_WATERMARK) for t, tag in row.low] + [Timer(t, tag, WALL_CLOCK) for t, tag in row.wall])

    def _kind(self, computation: str) -> StateKind:
        if computation not in self.topology.by_name:
            raise DefinitionError(f"no computation is called {computation!r}; there are: {', '.join(self.topology.by_name)}")
        return self.worker.make(computation)[1]
