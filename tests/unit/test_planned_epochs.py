"""Epochs of planned sources beside a run that is being replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
from plannedkit import KitEpochs, KitRunner, Told, pipeline

import millstream as ms
from millstream.engine.compaction_orders import Compaction, CompactionOrder
from millstream.sources.splits import PlannedReader
from millstream.state.compaction import unit_name
from millstream.state.manifest_log import KEEP
from millstream.state.memory_storage import MemoryStorage

SCHEMA = pa.schema([("k", pa.string())])


class FilesRead(KitRunner):
    """Notes which files each epoch reads."""

    def run(self, input, order):  # type: ignore[no-untyped-def]
        self.read = sorted(Path(name).name for take in (input or {}).values() for name in take.names)
        return super().run(None, order)


class Files(KitEpochs):
    """Knows which files its last epoch has read."""

    def turn(self) -> None:
        self.kit.read = []  # type: ignore[attr-defined]
        super().turn()

    @property
    def read(self) -> list[str]:
        return self.kit.read  # type: ignore[attr-defined,no-any-return]


def reader(folder: Path) -> PlannedReader:
    return ms.sources.files(folder, schema="k string", format="json").reader(lambda given: SCHEMA, None)


def put(folder: Path, name: str, at: int) -> None:
    (folder / name).write_text('{"k": "a"}\n')
    os.utime(folder / name, (at, at))


def test_files_of_an_epoch_that_is_found_committed_are_not_read_again(tmp_path: Path) -> None:
    """An outgoing run commits between our look at the newest manifest and our first epoch: its epoch stands, and so does what it read."""
    storage, program = MemoryStorage(), pipeline().program()
    put(tmp_path, "a.json", 1_700_000_000)
    old = Files(program, storage, {"in": reader(tmp_path)}, runner=FilesRead)
    old.turn()
    first = storage.objects.pop("manifests/00000000000000000000.json")  # it is about to commit
    new = Files(program, storage, {"in": reader(tmp_path)}, runner=FilesRead)
    assert new.latest is None
    storage.objects["manifests/00000000000000000000.json"] = first
    put(tmp_path, "b.json", 1_700_000_001)
    new.turn()
    assert new.read == [] and new.latest is not None and new.latest.token == old.token
    new.turn()
    assert new.read == ["b.json"]
    assert new.latest.sources["in"].offset == '{"files":2}'


class SlowThread(Compaction):
    """A compaction has ended. A thread that asks for it is so slow that the next manifest has it by then."""

    def __init__(self, made: str) -> None:
        super().__init__()
        self.made = {made}
        self.adopted = threading.Event()
        self.adopted.set()

    def take_finished(self) -> dict[tuple[str, int], CompactionOrder]:
        self.made = set()
        return {}

    def in_flight(self) -> set[str]:
        return self.made

    def since(self) -> int | None:
        if threading.current_thread() is not threading.main_thread():
            self.adopted.wait(10)
        return None


def test_what_a_compaction_has_made_is_not_collected_while_the_next_manifest_adopts_it() -> None:
    storage = MemoryStorage()
    made = unit_name(0, "compact")
    compaction = SlowThread(made)
    epochs = KitEpochs(pipeline().program(), storage, {"in": Told()}, compaction=compaction)
    for _ in range(2 * KEEP):
        epochs.turn()
    compaction.made = {made}
    leftover = unit_name(0, "leftover")
    storage.put(made, b"compacted")
    storage.put(leftover, b"nobody's")
    epochs.upkeep.close()  # a collection that was begun on the way
    compaction.adopted.clear()
    epochs.collect()
    compaction.take_finished()  # the next epoch takes it into its manifest
    compaction.adopted.set()
    epochs.upkeep.close()
    assert storage.exists(made) and not storage.exists(leftover) and not epochs.upkeep.failure  # type: ignore[attr-defined]
