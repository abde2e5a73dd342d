"""Manifests: one commit per epoch, damage told from absence, no checkpoint of somebody else."""

from __future__ import annotations

import threading

import msgspec
import pytest

from millstream.core.watermark import Progress
from millstream.errors import CheckpointError, DamageError
from millstream.state import manifest_log as manifest_module
from millstream.state.manifest import ComputationState, Manifest, Part, ShardState
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import SegmentRef
from millstream.state.storage import LocalStorage


def made(epoch=4, token="run"):
    shard = ShardState([SegmentRef("units/a", 7, 100, 3, 0, 4, True)], keys=2, timers=1, next_low=-5)
    return Manifest(
        epoch,
        token,
        1_700_000_000_000,
        [(0, "old"), (3, token)],
        {"in": Progress(9, 8, 7)},
        {"C": ComputationState(5, [shard], "pickle", ["in"], 1, 2, 3, 4)},
        {"out": [Part(rows=3, staged="x")]},
        offsets="abc",
    )


@pytest.fixture
def log():
    return ManifestLog(MemoryStorage())


def test_a_manifest_comes_back_as_it_was(log):
    assert log.commit(made())
    assert log.read(4) == made()


def test_an_epoch_is_committed_once(log):
    assert log.commit(made(token="one")) is True
    assert log.commit(made(token="two")) is False
    assert log.read(4).token == "one"


def test_of_eight_drivers_one_commits(tmp_path):
    log = ManifestLog(LocalStorage(tmp_path))
    barrier, won = threading.Barrier(8), {}

    def drive(token):
        barrier.wait()
        won[token] = log.commit(made(token=token))

    threads = [threading.Thread(target=drive, args=(f"run{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won.values()) == [False] * 7 + [True]
    assert won[log.read(4).token]


def test_the_newest_epoch_is_the_latest(log):
    for epoch in (0, 9, 10, 100, 2):
        log.commit(made(epoch))
    assert log.epochs() == [0, 2, 9, 10, 100]
    assert log.latest().epoch == 100
    assert log.exists(9) and not log.exists(3)


def test_without_manifests_there_is_no_latest(log):
    assert log.latest() is None
    assert log.epochs() == []
    log.storage.put("manifests/readme.txt", b"")
    assert log.latest() is None


def test_a_missing_manifest_is_damage(log):
    with pytest.raises(DamageError):
        log.read(0)


def test_every_changed_byte_is_noticed(log):
    log.commit(made())
    name = manifest_name(4)
    whole = log.storage.objects[name]
    for at in range(len(whole)):
        for bit in range(8):
            log.storage.objects[name] = whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
            if at == len(whole) - 1:  # the closing newline carries nothing: damaged or not, the content must stand
                try:
                    assert log.read(4) == made()
                except DamageError:
                    pass
                continue
            with pytest.raises(DamageError):
                log.read(4)


def test_every_truncation_is_noticed(log):
    log.commit(made())
    name = manifest_name(4)
    whole = log.storage.objects[name]
    for length in range(len(whole) - 1):
        log.storage.objects[name] = whole[:length]
        with pytest.raises(DamageError):
            log.read(4)


def test_a_damaged_latest_is_an_error_and_not_the_one_before(log):
    log.commit(made(3))
    log.commit(made(4))
    log.storage.objects[manifest_name(4)] = b""
    with pytest.raises(DamageError, match=manifest_name(4)):
        log.latest()


def test_a_manifest_under_another_name_is_noticed(log):
    log.commit(made(4))
    log.storage.objects[manifest_name(5)] = log.storage.objects[manifest_name(4)]
    with pytest.raises(DamageError, match="epoch 4"):
        log.read(5)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (6, r"manifests/0+4\.json has format 6; this version of Millstream reads 5: upgrade Millstream\."),
        (4, r"manifests/0+4\.json has format 4; this version of Millstream reads 5: run the version"),
    ],
)
def test_another_format_is_told_from_damage(log, said, message):
    other = made()
    other.format = said
    log.commit(other)
    with pytest.raises(CheckpointError, match=message) as caught:
        log.read(4)
    assert not isinstance(caught.value, DamageError)


def test_the_format_is_looked_at_before_the_types(log):
    """A later version may have changed all of them. Nobody is told to restore a copy of what is whole."""
    log.storage.put(manifest_name(4), manifest_module._seal({"format": 6, "epoch": "four", "runs": {}}))
    log.storage.put("identity.json", manifest_module._seal({"format": 9}))
    for read in (lambda: log.read(4), log.latest, log.identity, lambda: log.identify("p", None, 1, [])):
        with pytest.raises(CheckpointError, match=r"has format [69]; .*upgrade") as caught:
            read()
        assert not isinstance(caught.value, DamageError)


@pytest.mark.parametrize("shape", [{"epoch": "four", "format": 5}, {"epoch": 4}, {"format": "2"}, [], 7, {}], ids=repr)
def test_a_sound_object_of_another_shape_is_damage(log, shape):
    log.storage.put(manifest_name(4), manifest_module._seal(shape))
    with pytest.raises(DamageError, match=r"another shape|does not say its format"):
        log.read(4)


def test_fields_of_later_versions_are_passed_over(log):
    log.storage.put(manifest_name(4), manifest_module._seal({**msgspec.to_builtins(made()), "later": 1}))
    assert log.read(4) == made()


def test_the_run_that_committed_an_epoch_is_known():
    manifest = Manifest(9, "c", 0, [(2, "a"), (5, "b"), (8, "c")])
    assert [manifest.token_at(e) for e in (1, 2, 4, 5, 7, 8, 9)] == [None, "a", "a", "b", "b", "c", "c"]


# --- identity


def test_a_new_checkpoint_gets_an_identity_that_stays(log):
    first = log.identify("p", None, 3, ["a", "b"])
    assert (first.pipeline, first.shards, first.injectors) == ("p", 3, ["a", "b"])
    assert log.identify("p", None, 7, ["a", "b"]) == first
    assert log.identify("p", 3, 7, ["a", "b"]) == first
    assert log.identity() == first


def test_two_checkpoints_have_different_ids():
    assert ManifestLog(MemoryStorage()).identify("p", None, 3, []).id != ManifestLog(MemoryStorage()).identify("p", None, 3, []).id


def test_the_shards_asked_for_are_the_shards_made(log):
    assert log.identify("p", 5, 3, []).shards == 5


def test_a_checkpoint_of_another_pipeline_is_refused(log):
    log.identify("mine", None, 3, ["a"])
    with pytest.raises(CheckpointError, match="'mine', not of 'yours'"):
        log.identify("yours", None, 3, ["a"])


def test_another_number_of_shards_is_refused(log):
    log.identify("p", 3, 1, ["a"])
    with pytest.raises(CheckpointError, match="3 shards, and the run asks for 4"):
        log.identify("p", 4, 1, ["a"])


@pytest.mark.parametrize("injectors", [[], ["a"], ["b", "a"], ["a", "c"], ["a", "b", "c"]], ids=repr)
def test_other_injectors_are_refused(log, injectors):
    log.identify("p", None, 3, ["a", "b"])
    with pytest.raises(CheckpointError, match="injectors"):
        log.identify("p", None, 3, injectors)


def test_a_folder_without_identity_is_no_checkpoint(log):
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        log.identity()


def test_manifests_without_identity_are_damage_and_get_no_new_identity(log):
    log.commit(made())
    with pytest.raises(DamageError, match="no identity"):
        log.identify("p", None, 3, [])
    assert not log.storage.exists("identity.json")


def test_a_damaged_identity_is_noticed(log):
    log.identify("p", None, 3, ["a"])
    whole = log.storage.objects["identity.json"]
    for at in range(len(whole) - 1):
        log.storage.objects["identity.json"] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(DamageError):
            log.identify("p", None, 3, ["a"])


def test_of_two_that_make_the_identity_at_once_both_get_the_same():
    storage = MemoryStorage()
    log = ManifestLog(storage)
    found = []

    class Slow(MemoryStorage):
        """Sees no identity, as one that looked just before the other wrote it."""

        def exists(self, name):
            if not found:
                found.append(ManifestLog(storage).identify("p", None, 3, []))
                return False
            return storage.exists(name)

    slow = Slow()
    slow.objects = storage.objects
    assert ManifestLog(slow).identify("p", None, 3, []) == found[0] == log.identity()
