"""A copy of a checkpoint while its run goes on: consistent at one epoch, under an identity of its own, and never half a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unitkit import write_delta

from millstream.errors import CheckpointError, DamageError
from millstream.state.checkpoint_copy import CopyProgress, copy_checkpoint
from millstream.state.compaction import compact
from millstream.state.manifest import ComputationState, Manifest, ShardState, SourcePosition
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import SegmentRef, merge


class Busy(MemoryStorage):
    """Something happens before an object is read for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], None]] = {}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.before.pop(name, lambda: None)()
        return super().read(name, offset, length)


def commit(storage: MemoryStorage, epoch: int, segments: list[SegmentRef]) -> None:
    manifest = Manifest(
        epoch,
        "1-a",
        0,
        [(0, "1-a")],
        computations={"C": ComputationState(shards=[ShardState(segments)])},
        sources={"in": SourcePosition("7")},
    )
    assert ManifestLog(storage).commit(manifest)


def checkpoint(segments: int = 4) -> tuple[Busy, list[SegmentRef]]:
    storage = Busy()
    ManifestLog(storage).identify("p", 1, 1, ["in"])
    chain = [write_delta(storage, at, {b"key%d" % at: b"1"}) for at in range(segments)]
    commit(storage, 5, chain)
    return storage, chain


def content(storage: MemoryStorage) -> dict[bytes, bytes | None]:
    latest = ManifestLog(storage).latest()
    assert latest is not None
    return dict(merge(storage, latest.computations["C"].shards[0].segments, drop_deleted=True))


def test_a_copy_is_what_the_manifest_names_with_an_identity_of_its_own() -> None:
    source, _ = checkpoint()
    source.put("units/000000000005-1-leftover", b"nobody names it")
    source.put("runs/0000000001", b"1-a 0.0")
    target = MemoryStorage()
    done = copy_checkpoint(source, target)
    assert (done.epoch, done.of, done.objects) == (5, 4, 4)
    assert content(target) == content(source)
    ours, copy = ManifestLog(source).identity(), ManifestLog(target).identity()
    assert copy.id != ours.id and (copy.pipeline, copy.shards, copy.injectors) == ("p", 1, ["in"])
    assert target.list("runs") == [] and len(target.list("units")) == 4


def test_what_the_run_collects_meanwhile_is_taken_from_a_newer_epoch() -> None:
    source, chain = checkpoint()
    target = MemoryStorage()

    def go_on() -> None:
        commit(source, 6, compact(source, chain, True, 6))
        source.delete([ref.name for ref in chain])

    source.before[chain[2].name] = go_on
    done = copy_checkpoint(source, target)
    assert done.epoch == 6 and ManifestLog(target).epochs() == [6]
    assert content(target) == content(source) and len(target.list("units")) == 1, "and what only the older epoch needed is gone"


def test_a_manifest_may_be_collected_as_soon_as_it_was_found() -> None:
    source, chain = checkpoint()

    def go_on() -> None:
        commit(source, 6, chain)
        source.delete([manifest_name(5)])

    source.before[manifest_name(5)] = lambda: source.before.update({manifest_name(5): go_on})  # it is found, and then gone
    target = MemoryStorage()
    assert copy_checkpoint(source, target).epoch == 6 and content(target) == content(source)


def test_an_object_that_nobody_has_collected_is_missing() -> None:
    """The twin: a copy does not go round and round, or leave it out."""
    source, chain = checkpoint()
    source.delete([chain[1].name])
    with pytest.raises(DamageError, match="missing"):
        copy_checkpoint(source, MemoryStorage())


@pytest.mark.parametrize("after", range(4))
def test_a_copy_that_was_interrupted_is_no_checkpoint_and_no_empty_folder(after: int) -> None:
    source, _ = checkpoint()
    target = MemoryStorage()

    def die(progress: CopyProgress) -> None:
        if progress.objects > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_checkpoint(source, target, die)
    with pytest.raises(DamageError, match=r"has manifests but no identity\.json"):
        ManifestLog(target).identify("p", 1, 1, ["in"])


def test_a_target_with_anything_in_it_is_refused() -> None:
    source, _ = checkpoint()
    for name in ("identity.json", "manifests/000000000001.json", "queries/a.json"):
        target = MemoryStorage()
        target.put(name, b"mine")
        with pytest.raises(CheckpointError, match="not empty"):
            copy_checkpoint(source, target)


def test_a_checkpoint_whose_sources_spark_plans_is_refused() -> None:
    storage = MemoryStorage()
    ManifestLog(storage).identify("p", 1, 1, ["in"])
    with pytest.raises(CheckpointError, match="no committed epoch"):
        copy_checkpoint(storage, MemoryStorage())
    assert ManifestLog(storage).commit(Manifest(0, "1-a", 0, [(0, "1-a")]))
    with pytest.raises(CheckpointError, match="Spark keeps how far the sources are read"):
        copy_checkpoint(storage, MemoryStorage())
