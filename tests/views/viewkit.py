"""Checkpoints with tables and views, made by the production protocol with simulated tasks; and what they should hold, by the local engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec

import millstream as ms
from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, Row, decode_row, encode_row
from millstream.engine.evolution import reconciled
from millstream.simulation.simulated_run import InputPlan
from millstream.state.compaction import unit_name
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.reader import CommittedState
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.storage import LocalStorage
from sparklog import SparkLogDriver, SparkLogSimulation

NOON = 1_714_564_800_000
SCHEMA = "id long, name string, age long, ts long, gone boolean"


class Recorded:
    """A checkpoint, epoch by epoch; and the same records in a LocalRunner."""

    is_copy = False

    def __init__(self, pipeline: ms.Pipeline, shards: int = 3, storage: Any = None) -> None:
        self.shards = shards
        self.storage = MemoryStorage() if storage is None else storage
        self.plan = InputPlan([], [])
        self.runner = ms.testing.LocalRunner(pipeline, shards=shards)
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.log = ManifestLog(self.storage)
        self.log.identify(pipeline.name, shards, shards, list(pipeline.topology().injectors))
        self._take(pipeline)

    def _take(self, pipeline: ms.Pipeline) -> None:
        self.program = pipeline.program()
        self._simulate()

    def _simulate(self) -> None:
        self.simulation = SparkLogSimulation(self.program, self.plan, [], seed=1, shards=self.shards, storage=self.storage)
        self.driver = SparkLogDriver(self.simulation)
        if self.driver.epochs.latest is not None:
            self.driver.epochs.latest = reconciled(self.driver.epochs.latest, self.simulation.program)

    def become(self, pipeline: ms.Pipeline, chunk: int = 10_000) -> None:
        """A restart with changed code. chunk: rows that a scan passes in its first epoch."""
        self._take(pipeline)
        self.runner.become(pipeline)
        assert self.driver.epochs.latest is not None
        for builds in (self.driver.epochs.latest.builds, self.runner._engine.builds):
            builds.update({name: msgspec.structs.replace(build, chunk=chunk) for name, build in builds.items()})

    def restart(self) -> None:
        """A new driver, on other workers."""
        self.driver = SparkLogDriver(self.simulation)
        assert self.driver.epochs.latest is not None
        self.driver.epochs.latest = reconciled(self.driver.epochs.latest, self.simulation.program)
        self.driver.epochs.resume()

    def copied(self) -> Recorded:
        """The same checkpoint once more, for whoever changes it. Its runner stays where it is."""
        found = copy.copy(self)
        found.storage = MemoryStorage()
        found.storage.objects.update(self.storage.objects)
        found.log = ManifestLog(found.storage)
        found.plan = InputPlan(list(self.plan.epochs), list(self.plan.clock))
        found.is_copy = True
        found._simulate()
        return found

    def push(self, *rows: dict[str, Any], stream: str = "users") -> None:
        self.rows = [*self.rows, *((stream, row) for row in rows)]
        if not self.is_copy:
            self.runner.push(stream, *rows)

    def epoch(self) -> None:
        number, rows, self.rows = len(self.plan.epochs), self.rows, []
        self.plan.epochs.append(rows)
        self.plan.clock.append(NOON + 1000 * number)
        self.driver.run(rows, number)
        if not self.is_copy:
            self.runner._engine.now = NOON + 1000 * number
            self.runner.epoch()

    @classmethod
    def opened(cls, folder: Path, pipeline: ms.Pipeline) -> Recorded:
        """A checkpoint that Spark has made, for looking at it and damaging it."""
        found = cls.__new__(cls)
        found.storage = LocalStorage(folder)
        found.log = ManifestLog(found.storage)
        found.shards = found.log.identity().shards
        found.program = pipeline.program()
        return found

    @property
    def latest(self) -> Manifest:
        found = self.log.latest()
        assert found is not None
        return found

    def published(self, stream: str) -> list[tuple[Any, Any]]:
        """What a sink got: keys and values, in order."""
        return [(key, value) for key, _, value, _ in self.simulation.ledgers[stream].rows(stream)]

    def saved(self, folder: Path) -> Path:
        """The checkpoint in a folder."""
        for name, data in self.storage.objects.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    # --- damage

    def entry(self, computation: str, row_key: bytes, entry: bytes) -> bytes | None:
        return CommittedState(self.log).newest().entry(computation, shard_of(row_key, self.shards), entry)

    def damage(self, computation: str, row_key: bytes, entries: dict[bytes, bytes | None]) -> None:
        """Commits an epoch in which nothing has happened but this: some entries of a shard are others."""
        before = self.latest
        epoch, shard = before.epoch + 1, shard_of(row_key, self.shards)
        data = encode_segment(sorted(entries.items()))
        name = unit_name(epoch, "damage", before.token)
        self.storage.put(name, data)
        manifest = self.log.read(before.epoch)
        manifest.epoch, manifest.sinks, manifest.outside, manifest.settle = epoch, {}, before.outside + 1, True
        manifest.computations[computation].shards[shard].segments.append(SegmentRef(name, 0, len(data), len(entries), epoch, epoch))
        assert self.log.commit(manifest)

    def row(self, computation: str, key: Any) -> tuple[bytes, Row]:
        row_key = key_bytes(key)
        raw = self.entry(computation, row_key, ROW + row_key)
        assert raw is not None
        return row_key, decode_row(raw)

    def change(self, computation: str, key: Any, change: Any) -> None:
        """Damages the state of a row. change: of the state, as plain data."""
        decode, encode = ms.codecs.msgpack.decoder(object), ms.codecs.msgpack.encoder()
        row_key, row = self.row(computation, key)
        state = decode(row.state)
        made = change(state)
        row.state = encode(state if made is None else made)
        self.damage(computation, row_key, {ROW + row_key: encode_row(row)})


def user(id: int, name: str, age: int = 30, ts: int = 1, gone: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "age": age, "ts": ts, "gone": gone}
