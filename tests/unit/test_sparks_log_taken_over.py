"""Checkpoints whose epochs Spark planned so far: what Spark's log says of the last committed one is where Millstream's own planner begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plannedkit import KitEpochs, pipeline

from millstream.core.watermark import Progress
from millstream.engine.source_planner import Sources
from millstream.engine.spark.run_builder import _begin
from millstream.engine.spark.start import Starting
from millstream.engine.trigger import Pacing
from millstream.errors import CheckpointError, DamageError
from millstream.sources.planned import PlannedReader, Take
from millstream.state.manifest import Manifest, ManifestLog
from millstream.state.memory_storage import MemoryStorage


class Numbered(PlannedReader):
    """Ten rows, and a name for every one that Spark has read."""

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> Take:
        return Take("10", [(int(start), 10)] if start != "10" else [])

    def adopt(self, offset: str, folder: str) -> Take:
        return Take(offset, names={f"/in/{at}": at for at in range(int(offset))})


def sparks(folder: Path, ends: list[str]) -> None:
    """Spark's log: an entry per batch."""
    (folder / "offsets").mkdir(parents=True)
    for number, end in enumerate(ends):
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", json.dumps({"batchTimestampMs": 1}), end, "7"]))


def begun(folder: Path, latest: Manifest) -> Sources:
    storage = MemoryStorage()
    asked = Starting(pipeline().program(), None, storage, ManifestLog(storage), str(folder), None, 0, False, None, (), print)
    sources = Sources({"in": Numbered()}, storage, "2-b")
    _begin(asked, sources, latest)
    return sources


def manifest(epoch: int, **fields: Any) -> Manifest:
    return Manifest(epoch=epoch, token="1-a", now=1, runs=[(0, "1-a")], injectors={"in": Progress(records=5)}, **fields)


CASES = {
    "a batch": (manifest(2), "7"),
    "one that Spark has planned and nobody has committed": (manifest(1), "5"),
    "settled": (manifest(4, outside=2, settle=True), "7"),
    "drained": (manifest(5, outside=3, drain=True, drained=True, ended=3), "7"),
    "drained by 0.1, which did not count such epochs": (manifest(4, drain=True, drained=True, ended=3), "7"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_epoch_of_ours_begins_where_the_last_committed_one_of_sparks_ended(tmp_path: Path, case: str) -> None:
    latest, start = CASES[case]
    sparks(tmp_path, ["3", "5", "7"])
    reading, _ = begun(tmp_path, latest).next(latest)
    assert reading.ranges is not None and reading.ranges["in"].start == start


def test_a_log_that_has_lost_the_epoch_is_refused(tmp_path: Path) -> None:
    sparks(tmp_path, ["3", "5"])
    with pytest.raises(CheckpointError, match="does not say how far"):
        begun(tmp_path, manifest(2))


def test_a_log_of_another_past_is_refused(tmp_path: Path) -> None:
    sparks(tmp_path, ["3", "5", "7"])
    with pytest.raises(DamageError, match="other source offsets"):
        begun(tmp_path, manifest(2, offsets="0123456789abcdef"))


class Taking(KitEpochs):
    """A resident run that takes over a checkpoint of Spark's, and has nothing to read."""

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(pipeline().program(), storage, {})
        self.sources = Sources({"in": Numbered()}, storage, self.token)
        self.sources.begin(self.latest, False, lambda name, reader: reader.adopt("10", ""))


def test_what_was_taken_over_is_written_down_once_while_nothing_comes() -> None:
    storage = MemoryStorage()
    first = KitEpochs(pipeline().program(), storage, {})
    first.turn()
    assert first.latest is not None and not first.latest.sources
    epochs = Taking(storage)
    pacing = Pacing(epochs, bounded=False, every=0.0, eager=False)
    for _ in range(10):
        pacing._turn()
    assert len(storage.list("units")) == 1
    assert epochs.latest is not None and [ref.name for ref in epochs.latest.sources["in"].names] == storage.list("units")
    assert msgspec.json.decode(epochs.latest.sources["in"].offset) == 10
