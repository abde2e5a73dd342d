"""Files of rows that waited: published once, whole, whatever has changed since they were committed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from plannedkit import KitEpochs, Told, pipeline, published

import millstream as ms
from millstream.engine.evolution import reconciled
from millstream.errors import CheckpointError
from millstream.state.memory_storage import MemoryStorage

LONG = 3_600_000


def sink(folder: Path, format: str = "json", roll: Any = "5s", resident: bool = True) -> ms.sinks.FileSink:
    found = ms.sinks.files(folder, format=format, roll=roll)
    found.check()
    found.by_default(5_000 if resident else 0)
    return found


def run(storage: MemoryStorage, out: ms.sinks.FileSink, rows: list[Any]) -> KitEpochs:
    """A run that has published what the last one left."""
    epochs = KitEpochs(pipeline(out).program(), storage, {"in": Told(rows)})
    epochs.resume()
    return epochs


def rows_of(folder: Path) -> list[Any]:
    found: list[Any] = []
    for name in published(folder):
        data = (folder / name).read_bytes()
        if name.endswith(".jsonl"):
            found += [msgspec.json.decode(line)["value"] for line in data.splitlines()]
        else:
            found += pyarrow.parquet.read_table(io.BytesIO(data)).column("value").to_pylist()
    return found


def add(epochs: KitEpochs, row: Any) -> None:
    reader = epochs.sources.readers["in"]
    assert isinstance(reader, Told)
    reader.rows.append(row)
    epochs.turn()


MIXED = [1, "two", 3.5, None, {"a": 4}, {"a": "five"}, [6], ["seven"], 2**60 + 1, True]


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_rows_whose_types_differ_from_epoch_to_epoch_are_published_as_they_were_committed(tmp_path: Path, format: str) -> None:
    epochs = run(MemoryStorage(), sink(tmp_path, format), [])
    for row in MIXED:
        add(epochs, row)
    assert published(tmp_path) == []
    epochs.now += LONG
    epochs.turn()
    found = rows_of(tmp_path)
    assert sorted(map(repr, found)) == sorted(map(repr, MIXED))


def test_a_crash_between_two_files_of_one_epoch_leaves_no_gap_and_nothing_twice(tmp_path: Path) -> None:
    storage = MemoryStorage()
    epochs = run(storage, sink(tmp_path, "parquet"), rows := [])
    for row in (1, "two"):
        add(epochs, row)
    epochs.now += LONG
    epochs.turn()
    assert len(published(tmp_path)) == 2
    for name in published(tmp_path):
        (tmp_path / name).unlink()  # as if the driver had died before it
        run(storage, sink(tmp_path, "parquet"), rows)
        assert sorted(map(repr, rows_of(tmp_path))) == ["'two'", "1"]


@pytest.mark.parametrize("before, after", [("json", "parquet"), ("parquet", "json")])
def test_what_waits_keeps_its_format_when_the_sink_gets_another(tmp_path: Path, before: str, after: str) -> None:
    storage = MemoryStorage()
    epochs = run(storage, sink(tmp_path, before), rows := [])
    for row in (1, 2):
        add(epochs, row)
    later = run(storage, sink(tmp_path, after), rows)  # the first was killed
    add(later, 3)
    later.now += LONG
    later.turn()
    assert sorted(rows_of(tmp_path)) == [1, 2, 3]
    assert len({name.rsplit(".", 1)[1] for name in published(tmp_path)}) == 2


def test_micro_batches_publish_what_waits_and_roll_no_more(tmp_path: Path) -> None:
    """The sink, too, may be the same object in both modes."""
    storage = MemoryStorage()
    out = sink(tmp_path, roll=None)
    epochs = run(storage, out, rows := [])
    add(epochs, 1)
    assert out.in_units and out.roll_millis == 5_000 and published(tmp_path) == []
    out.by_default(0)
    assert not out.in_units and out.roll_millis == 0
    later = run(storage, out, rows)
    add(later, 2)
    assert rows_of(tmp_path) == [2, 1]


def test_a_sink_that_is_gone_or_another_while_rows_wait_for_it_is_refused(tmp_path: Path) -> None:
    storage = MemoryStorage()
    epochs = run(storage, sink(tmp_path), rows := [])
    add(epochs, 1)
    add(epochs, 2)
    for other in (None, ms.sinks.memory()):
        program = pipeline(other).program()
        with pytest.raises(CheckpointError, match=r"2 committed rows wait .* for 'out', .* drop=\['out'\]"):
            KitEpochs(program, storage, {"in": Told(rows)})
        assert epochs.latest is not None and reconciled(epochs.latest, program, ["out"]).waiting
    add(run(storage, sink(tmp_path, roll=0, resident=False), rows), 3)
    assert sorted(rows_of(tmp_path)) == [1, 2, 3]
