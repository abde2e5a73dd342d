"""Checkpoints that are written, folded, collected, renamed and restored by hand, and what each epoch must come to; and questions to a live server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, Row, encode_row
from millstream.service.live.backend import LiveBackend
from millstream.service.proto import service_pb2 as pb
from millstream.state.compaction import adopt, compact, unit_name
from millstream.state.gc import collect
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import KEEP, ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import SegmentRef, encode_segment, runs

Rows = dict[bytes, bytes]
Delta = dict[bytes, bytes | None]


def row(state: bytes) -> bytes:
    return encode_row(Row(state))


def owner(entry: bytes) -> bytes:
    """The row key that an entry belongs to."""
    return entry[1:] if entry[:1] == ROW else entry[5 : 5 + int.from_bytes(entry[1:5], "big")]


class Table:
    """A computation: its chains, and its entries now."""

    def __init__(self, lineage: str, shards: int) -> None:
        self.lineage = lineage
        self.chains: list[list[SegmentRef]] = [[] for _ in range(shards)]
        self.entries: Rows = {}
        self.low = -(2**63)


class Checkpoint:
    """A pipeline's checkpoint, written by hand. `as_of`: by epoch and computation, the entries."""

    def __init__(self, seed: int = 0, shards: int = 2, storage: Any = None, names: tuple[str, ...] = ("C",)) -> None:
        self.rng = random.Random(seed)
        self.storage = MemoryStorage() if storage is None else storage
        self.log = ManifestLog(self.storage)
        self.log.identify("p", shards, 1, [])
        self.shards = shards
        self.epoch = -1
        self.now = 0
        self.runs: list[tuple[int, str]] = [(0, "1-a")]
        self.made = 0
        self.tables: dict[str, Table] = {}
        self.as_of: dict[int, dict[str, Rows]] = {}
        self.lows: dict[int, dict[str, int]] = {}
        self.codec = "msgpack"
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self.made += 1
        self.tables[name] = Table(f"{self.epoch + 1}-{self.made}", self.shards)

    def commit(self, **deltas: Delta) -> Manifest:
        """An epoch. deltas: by computation, entries that are put or deleted."""
        self.epoch += 1
        for name, delta in deltas.items():
            table = self.tables[name]
            for shard in range(self.shards):
                mine = {k: v for k, v in delta.items() if shard_of(owner(k), self.shards) == shard}
                if mine:
                    data = encode_segment(sorted(mine.items()))
                    unit = unit_name(self.epoch, f"{name}{shard}")
                    self.storage.put(unit, b"before" + data)
                    table.chains[shard].append(SegmentRef(unit, 6, len(data), len(mine), self.epoch, self.epoch))
            for key, value in delta.items():
                if value is None:
                    table.entries.pop(key, None)
                else:
                    table.entries[key] = value
        self.as_of[self.epoch] = {name: dict(table.entries) for name, table in self.tables.items()}
        self.lows[self.epoch] = {name: table.low for name, table in self.tables.items()}
        computations = {
            name: ComputationState(
                low_watermark=table.low, shards=[ShardState(list(c)) for c in table.chains], lineage=table.lineage, codec=self.codec
            )
            for name, table in self.tables.items()
        }
        manifest = Manifest(self.epoch, self.runs[-1][1], self.now, list(self.runs), computations=computations)
        assert self.log.commit(manifest)
        return manifest

    def put(self, **rows: dict[str, bytes | None]) -> Manifest:
        """An epoch of rows: states by key; None deletes."""
        return self.commit(**{n: {ROW + key_bytes(k): None if s is None else row(s) for k, s in of.items()} for n, of in rows.items()})

    def some(self) -> Manifest:
        """An epoch of random rows in every computation."""
        deltas: dict[str, dict[str, bytes | None]] = {}
        for name, table in self.tables.items():
            keys = self.rng.sample(range(30), self.rng.randrange(0, 8))
            deltas[name] = {f"{k:02d}": None if self.rng.random() < 0.3 else b"%d" % self.epoch for k in keys}
            table.low = max(table.low, self.rng.randrange(1000) + self.epoch * 10)
        return self.put(**deltas)

    def compact_some(self) -> None:
        table, shard = self.rng.choice(list(self.tables.values())), self.rng.randrange(self.shards)
        ordered = runs(table.chains[shard])
        if ordered:
            first = self.rng.randrange(len(ordered))
            last = self.rng.randrange(first, len(ordered))
            self.compact(table, shard, [ref for run in ordered[first : last + 1] for ref in run])

    def compact(self, table: Table, shard: int, chosen: list[SegmentRef]) -> None:
        made = compact(self.storage, chosen, chosen[0] == table.chains[shard][0], self.epoch)
        table.chains[shard] = adopt(table.chains[shard], chosen, made)

    def collect(self) -> None:
        newest = self.log.latest()
        assert newest is not None
        collect(self.log, newest, window=0)

    def leap(self) -> None:
        """So many epochs, compactions and collections that nothing of before is left but its content."""
        for table in self.tables.values():
            for shard in range(self.shards):
                if table.chains[shard]:
                    self.compact(table, shard, list(table.chains[shard]))
        for _ in range(KEEP + 1):
            self.some()
        self.collect()

    def restart(self) -> None:
        """A new driver."""
        self.runs = [*self.runs, (self.epoch + 1, f"{len(self.runs) + 1}-{self.rng.randrange(10**9)}")]

    def rows_at(self, epoch: int, name: str = "C") -> Rows:
        return {k[1:]: v for k, v in self.as_of[epoch][name].items() if k[:1] == ROW}


# --- asking


def header(table: str = "C", **more: Any) -> pb.Header:
    return pb.Header(table=table, **more)


async def got(live: LiveBackend, *keys: str | bytes, table: str = "C", **more: Any) -> pb.GetReply:
    wanted = [key.encode() if isinstance(key, str) else key for key in keys]
    return await live.get(pb.GetRequest(header=header(table, **more), keys=wanted))


async def scanned(live: LiveBackend, table: str = "C", *, of: dict[str, Any] | None = None, **more: Any) -> tuple[int, Rows]:
    """The epoch and the rows of a scan; all replies must be of one epoch, and in order."""
    found: list[tuple[bytes, bytes]] = []
    epochs = set()
    async for reply in live.scan(pb.ScanRequest(header=header(table, **more), **(of or {}))):
        found += zip(reply.keys, reply.values, strict=True)
        epochs.add(reply.at.epoch)
    (epoch,) = epochs
    assert [key for key, _ in found] == sorted({key for key, _ in found})
    return epoch, dict(found)


@asynccontextmanager
async def served(checkpoint: Any, **options: Any) -> AsyncIterator[LiveBackend]:
    live = LiveBackend(checkpoint, **options)
    await live.start()
    try:
        yield live
    finally:
        await live.close()


def run(main: Callable[[], Coroutine[Any, Any, Any]], seconds: float = 60) -> Any:
    return asyncio.run(asyncio.wait_for(main(), seconds))
