"""What readers take of the files of `sinks.files`: every row once, and nothing of an epoch that may get another file."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plannedkit import KitEpochs, KitRunner, Told, pipeline, published

import millstream as ms
from millstream.engine.receipts import EpochOrder
from millstream.errors import CheckpointError, DefinitionError, InputError
from millstream.sinks.base import DriverContext, SinkRow, TaskContext
from millstream.sinks.published import PublishedFiles, batch, check_columns
from millstream.state.compaction import unit_name
from millstream.state.manifest import Part
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage, Storage


def put(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text('{"key":"k","timestamp":1,"value":1}\n')


def name(epoch: int, shard: int = 0, who: str = "kit-out", suffix: str = "jsonl") -> str:
    return f"{who}-{shard:04d}-{epoch:010d}.{suffix}"


def read(files: PublishedFiles, after: int = -1) -> tuple[int, list[str]]:
    """A turn of a reader: how far it is then, and which files it reads."""
    end = files.complete()
    return end, [one.name for one in files.files(after, end)]


def test_an_epoch_is_complete_when_a_file_of_a_later_one_is_there(tmp_path: Path) -> None:
    files = PublishedFiles(str(tmp_path))
    assert read(files) == (-1, [])
    put(tmp_path, name(4, shard=1))
    assert read(files) == (3, []), "its other shards may follow"
    put(tmp_path, name(4, shard=3))
    put(tmp_path, name(7, 9999))
    put(tmp_path, "_staging-x", "notes.txt")
    assert read(files) == (6, [name(4, 1), name(4, 3)])
    put(tmp_path, name(9))
    assert read(files, after=6) == (8, [name(7, 9999)])


def test_of_several_streams_one_is_to_be_named(tmp_path: Path) -> None:
    put(tmp_path, name(1, who="a-b-c"), name(2, who="a-b-c"), name(1, who="a-c"), name(3, who="a-c"))
    with pytest.raises(DefinitionError, match=r"files of several streams \(a-b-c, a-c"):
        read(PublishedFiles(str(tmp_path)))
    with pytest.raises(DefinitionError, match="say which"):
        read(PublishedFiles(str(tmp_path), stream="c"))
    assert read(PublishedFiles(str(tmp_path), stream="c", pipeline="a")) == (2, [name(1, who="a-c")])
    assert read(PublishedFiles(str(tmp_path), stream="c", pipeline="a-b")) == (1, [name(1, who="a-b-c")])
    assert read(PublishedFiles(str(tmp_path), stream="b-c")) == (1, [name(1, who="a-b-c")])


class Stale(LocalStorage):
    """Whose first listing misses a file that appeared while it was made, and has one that appeared later."""

    def __init__(self, root: Path, missed: str) -> None:
        super().__init__(root)
        self._missed: str | None = missed

    def list(self, prefix: str) -> list[str]:
        found, missed, self._missed = super().list(prefix), self._missed, None
        return [one for one in found if one != missed]


def test_a_file_that_one_listing_missed_is_read(tmp_path: Path) -> None:
    put(tmp_path, name(1, 0), name(1, 5), name(2, 0))
    files = PublishedFiles(str(tmp_path))
    files.storage = Stale(tmp_path, name(1, 0))
    assert read(files) == (1, [name(1, 0), name(1, 5)])


def run(storage: Storage, folder: Path, rows: list[Any], bounded: bool, roll: int = 0) -> KitEpochs:
    sink = ms.sinks.files(folder, roll=roll)
    sink.check()
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": Told(rows)}, bounded)  # type: ignore[arg-type]
    epochs.resume()
    return epochs


def test_with_a_checkpoint_the_end_is_read_too(tmp_path: Path) -> None:
    storage, folder = LocalStorage(tmp_path / "checkpoint"), tmp_path / "out"
    ManifestLog(storage).identify("kit", 1, 1, ["in"])
    epochs = run(storage, folder, [1], bounded=False)
    epochs.turn()
    plain = PublishedFiles(str(folder))
    knows = PublishedFiles(str(folder), checkpoint=storage.url)
    assert read(plain)[1] == [] and read(knows)[1] == published(folder)
    epochs.publishing.publish = lambda *_: None  # type: ignore[method-assign]
    reader = epochs.sources.readers["in"]
    assert isinstance(reader, Told)
    reader.rows.append(2)
    epochs.turn()  # killed between the commit and the publication
    assert read(knows) == (0, published(folder)), "epoch 1 is committed, and not published"
    again = run(storage, folder, reader.rows, bounded=False)
    assert again.latest is not None
    assert read(knows) == (again.latest.epoch, published(folder)) and len(published(folder)) == 2


class Sizes(KitRunner):
    """Rows above 5 are too large to wait in the checkpoint: the task puts a file of them into the folder."""

    def part(self, emission: Any, rows: list[Any], order: EpochOrder) -> Part:
        if max(rows) <= 5:
            return super().part(emission, rows, order)
        context = TaskContext(self.storage, "out", order.epoch, "kit-out-0000", "1.a", token=order.token, pipeline="kit")
        return emission.sink.stage_encoded(context, emission.sink.encode_part(context, [SinkRow("k", 1, row) for row in rows]), len(rows))  # type: ignore[no-any-return]


@pytest.mark.parametrize("stream", [None, "out"])
@pytest.mark.parametrize("seed", range(10))
def test_a_reader_that_knows_the_checkpoint_misses_no_file_of_a_sink_that_rolls(tmp_path: Path, seed: int, stream: str | None) -> None:
    dice, storage, folder = random.Random(seed), LocalStorage(tmp_path / "checkpoint"), tmp_path / "out"
    ManifestLog(storage).identify("kit", 1, 1, ["in"])
    sink = ms.sinks.files(folder, roll="5s")
    sink.check()
    rows = Told([])
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": rows}, runner=Sizes)  # type: ignore[arg-type]
    epochs.resume()
    files = PublishedFiles(str(folder), checkpoint=storage.url, stream=stream)
    at, found = -1, []
    for _ in range(30):
        if dice.random() < 0.7:
            rows.rows.append(dice.randrange(1, 9))
        epochs.now += dice.randrange(3_000)
        epochs.turn()
        end, names = read(files, at)
        found += names
        assert end >= at
        at = end
    epochs.now += 3_600_000
    epochs.turn()
    epochs.turn()  # what was published is complete when another epoch is committed
    found += read(files, at)[1]
    assert found == sorted(set(found), key=lambda one: one.split("-")[-1]) and sorted(found) == published(folder)


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    ManifestLog(LocalStorage(tmp_path)).identify("kit", 1, 1, ["in"])
    with pytest.raises(CheckpointError, match="is a checkpoint of pipeline 'kit', not of 'other'"):
        PublishedFiles("nowhere", pipeline="other", checkpoint=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"no identity\.json"):
        PublishedFiles("nowhere", checkpoint=str(tmp_path / "gone"))


@pytest.mark.parametrize("seed", range(20))
def test_files_of_one_commit_appear_in_the_order_of_their_epochs(tmp_path: Path, seed: int) -> None:
    """Parts that waited, and parts that were too large to wait, in any mixture: after each file, a reader has only what will not change."""
    dice, checkpoint = random.Random(seed), MemoryStorage()
    sink = ms.sinks.files(tmp_path, roll="5s")
    sink.check()
    parts = []
    for epoch in range(8):
        for shard in range(dice.randrange(3)):
            context = TaskContext(checkpoint, "out", epoch, f"kit-out-{shard:04d}", "1.a", pipeline="kit")
            data = sink.encode_part(context, [SinkRow("k", epoch, shard)])
            if dice.random() < 0.5:
                parts.append(sink.stage_encoded(context, data, 1))
            else:
                unit = unit_name(epoch, "t")
                checkpoint.put(unit, data)
                parts.append(Part(rows=1, staged=unit, in_checkpoint=True, own={"offset": 0, "length": len(data)}))
    dice.shuffle(parts)
    seen: list[tuple[int, list[str]]] = []
    files = PublishedFiles(str(tmp_path))

    class Watched(LocalStorage):
        def publish(self, source: str, target: str) -> bool:
            done = super().publish(source, target)
            seen.append(read(files))
            return done

        def create(self, name: str, data: bytes) -> bool:
            done = super().create(name, data)
            seen.append(read(files))
            return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["millstream.sinks.files"], "open_storage", lambda path, options: Watched(path))
        sink.commit(DriverContext(checkpoint, "kit", "out"), 9, parts)
    for end, names in seen:
        assert [one.name for one in files.files(-1, end)] == names
    if parts:
        total = sum(len((tmp_path / one).read_bytes().splitlines()) for one in published(tmp_path))
        assert len(seen) == len(published(tmp_path)) and total == len(parts)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_rows_become_the_columns_that_are_asked_for(tmp_path: Path, format: str) -> None:
    sink = ms.sinks.files(tmp_path, format=format)
    context = TaskContext(MemoryStorage(), "out", 0, "kit-out-0000", "1.a")
    rows = [SinkRow("a", 1_500, {"n": 1, "m": [1.5]}), SinkRow("b", 2_500, {"n": 2, "m": []})]
    where, storage = f"rows.{'jsonl' if format == 'json' else 'parquet'}", LocalStorage(tmp_path)
    storage.put(where, sink.encode_part(context, rows))
    texts = pa.schema([("key", pa.string()), ("timestamp", pa.int64()), ("value", pa.string())])
    assert batch(storage, where, texts).to_pylist()[0] == {"key": "a", "timestamp": 1_500, "value": '{"n": 1, "m": [1.5]}'}
    typed = pa.schema([("value", pa.struct([("n", pa.int32())])), ("timestamp", pa.timestamp("us", "UTC")), ("id", pa.string())])
    found = batch(storage, where, typed)
    assert found.column("value").to_pylist() == [{"n": 1}, {"n": 2}] and found.column("id").to_pylist() == [None, None]
    assert [one.timestamp() for one in found.column("timestamp").to_pylist()] == [1.5, 2.5]
    with pytest.raises(InputError, match=where):
        batch(storage, where, pa.schema([("key", pa.int64())]))


def test_a_column_that_no_row_has_is_refused() -> None:
    check_columns(["value", "id"])
    with pytest.raises(DefinitionError, match="no column 'name'"):
        check_columns(["key", "name"])
