"""Epochs of planned sources beside a run that is being replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from plannedkit import KitEpochs, pipeline

import millstream as ms
from millstream.sources.planned import PlannedReader
from millstream.state.memory import MemoryStorage

SCHEMA = pa.schema([("k", pa.string())])


class Files(KitEpochs):
    """Notes which files its epochs read."""

    def turn(self) -> None:
        self.read: list[str] = []
        super().turn()

    def job(self, takes, order):  # type: ignore[no-untyped-def]
        self.read = sorted(Path(name).name for take in (takes or {}).values() for name in take.names)
        return super().job(None, order)


def reader(folder: Path) -> PlannedReader:
    return ms.sources.files(folder, schema="k string", format="json").reader(lambda given: SCHEMA, None)


def put(folder: Path, name: str, at: int) -> None:
    (folder / name).write_text('{"k": "a"}\n')
    os.utime(folder / name, (at, at))


def test_files_of_an_epoch_that_is_found_committed_are_not_read_again(tmp_path: Path) -> None:
    """An outgoing run commits between our look at the newest manifest and our first epoch: its epoch stands, and so does what it read."""
    storage, program = MemoryStorage(), pipeline().program()
    put(tmp_path, "a.json", 1_700_000_000)
    old = Files(program, storage, {"in": reader(tmp_path)})
    old.turn()
    first = storage.objects.pop("manifests/00000000000000000000.json")  # it is about to commit
    new = Files(program, storage, {"in": reader(tmp_path)})
    assert new.latest is None
    storage.objects["manifests/00000000000000000000.json"] = first
    put(tmp_path, "b.json", 1_700_000_001)
    new.turn()
    assert new.read == [] and new.latest is not None and new.latest.token == old.token
    new.turn()
    assert new.read == ["b.json"]
    assert new.latest.sources["in"].offset == '{"files":2}'
