"""One contract for all storages: a folder, real S3 and Azure servers on this host, a stand-in for Google's, and the dictionary under every simulation."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plannedkit import pipeline
from unitkit import write_delta

import azureserver
import millstream as ms
from gcsserver import GcsServer
from millstream.errors import DamageError, StorageError
from millstream.state import storage as storage_module
from millstream.state.compaction import adopt, compact
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import encode_segment, merge, read_blocks
from millstream.state.state_cache import StateCache
from millstream.state.storage import LocalStorage, ObjectStorage, Storage, open_storage, under
from s3server import S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    found = S3Server()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def azure() -> Iterator[Any]:
    found = azureserver.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def google() -> Iterator[GcsServer]:
    found = GcsServer()
    yield found
    found.stop()


@pytest.fixture(params=["local", "s3", "memory", "gs", pytest.param("azure", marks=pytest.mark.slow)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    server = request.getfixturevalue({"s3": "server", "azure": "azure", "gs": "google"}[request.param])
    return open_storage(server.url(), server.options)


@pytest.mark.slow
def test_folders_are_those_directly_in_a_folder(storage: Storage) -> None:
    for name in ("top", "a/one", "a/b/two", "a/c/d/three", "ab/four"):
        storage.put(f"folders/{name}", b"x")
    assert storage.folders("folders") == ["folders/a", "folders/ab"]
    assert storage.folders("folders/a") == ["folders/a/b", "folders/a/c"]
    assert storage.folders("folders/a/b") == [] == storage.folders("folders/nowhere")
    assert "folders" in storage.folders("")  # other tests may share a bucket


def at_once(count: int, what: Callable[[int], Any]) -> list[Any]:
    """What comes of several threads that begin together: results, or the errors. They take turns as often as they can."""
    barrier = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(index: int) -> None:
        barrier.wait()
        try:
            found[index] = what(index)
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    return found


# --- create, put


def test_what_was_created_can_be_read(storage):
    assert storage.create("manifests/1.json", b"one") is True
    assert storage.read("manifests/1.json") == b"one"


def test_a_name_is_created_once(storage):
    assert storage.create("manifests/1.json", b"one")
    assert storage.create("manifests/1.json", b"two") is False
    assert storage.create("manifests/1.json", b"one") is False
    assert storage.read("manifests/1.json") == b"one"


def test_create_says_no_to_a_name_that_was_put(storage):
    storage.put("a", b"put")
    assert storage.create("a", b"created") is False
    assert storage.read("a") == b"put"


def test_a_deleted_name_can_be_created_again(storage):
    assert storage.create("a", b"1")
    storage.delete(["a"])
    assert storage.create("a", b"2")
    assert storage.read("a") == b"2"


@pytest.mark.parametrize("round", range(5))
def test_of_eight_that_create_at_once_exactly_one_succeeds(storage, round):
    name = f"manifests/{round}.json"
    data = [bytes([i]) * 10_000 for i in range(8)]
    won = at_once(8, lambda i: storage.create(name, data[i]))
    assert sorted(map(str, won)) == ["False"] * 7 + ["True"]
    assert storage.read(name) == data[won.index(True)]
    assert storage.list("manifests") == [name]


def test_put_replaces(storage):
    storage.put("units/a", b"one")
    storage.put("units/a", b"two")
    assert storage.read("units/a") == b"two"


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)) * 5000], ids=["empty", "nul", "large"])
def test_any_bytes_come_back(storage, data):
    storage.put("put", data)
    storage.create("created", data)
    assert storage.read("put") == storage.read("created") == data


# --- read


def test_parts_of_an_object_are_what_slices_are(storage):
    data = bytes(range(20))
    storage.put("a", data)
    for offset in (0, 1, 7, 19):
        assert storage.read("a", offset) == data[offset:]
        for length in (1, 2, 13, 20, 100):
            assert storage.read("a", offset, length) == data[offset : offset + length]


def test_a_missing_object_is_damage_however_it_is_read(storage):
    storage.put("units/there", b"x")
    for args in [(), (0, 5), (3,), (3, 5)]:
        with pytest.raises(DamageError, match="units/gone"):
            storage.read("units/gone", *args)


def test_an_object_cut_short_is_damage_wherever_it_is_cut(storage):
    first, second = encode_segment([(b"a", b"1")]), encode_segment([(b"b", b"2")])
    ref = write_delta(storage, 1, {b"b": b"2"})
    from millstream.state.segment import SegmentRef

    ref = SegmentRef(ref.name, len(first), len(second), 1, 1, 1)
    whole = first + second
    storage.put(ref.name, whole)
    assert list(read_blocks(storage, ref)) == [([b"b"], [b"2"])]
    problems = []
    for cut in (len(whole) - 1, len(first) + 3, len(first), len(first) - 1, 0):
        storage.put(ref.name, whole[:cut])
        try:
            list(read_blocks(storage, ref))
            problems.append((cut, "not noticed"))
        except DamageError:
            pass
        except Exception as error:
            problems.append((cut, type(error).__name__))
    assert problems == []


# --- exists, list, delete


def test_size_tells_how_many_bytes_there_are(storage):
    storage.put("units/a", b"12345")
    assert storage.size("units/a") == 5
    with pytest.raises(DamageError, match="units/b"):
        storage.size("units/b")


def test_exists_tells_what_is_there(storage):
    storage.put("units/a", b"")
    assert storage.exists("units/a")
    assert not storage.exists("units/b")
    assert not storage.exists("units/a/b")


def test_list_gives_the_names_directly_in_a_folder_sorted(storage):
    for name in ("units/b", "units/a", "units/deep/c", "units2/d", "unit", "e"):
        storage.put(name, b"x")
    assert storage.list("units") == ["units/a", "units/b"]
    assert storage.list("units/deep") == ["units/deep/c"]
    assert storage.list("nothing") == []
    assert storage.list("") == ["e", "unit"]
    for name in storage.list("units"):
        assert storage.read(name) == b"x"


@pytest.mark.slow
def test_list_is_complete_beyond_a_page(storage):
    count = 1100 if isinstance(storage, ObjectStorage) else 50  # S3 lists a thousand at a time
    names = [f"units/{i:05d}" for i in range(count)]

    def put(worker: int) -> None:
        for name in names[worker::4]:
            storage.create(name, b"x") if isinstance(storage, ObjectStorage) else storage.put(name, b"x")

    at_once(4, put)
    assert storage.list("units") == names


@pytest.mark.slow
def test_a_listing_while_others_write_has_all_that_was_there_before(storage):
    names = [f"units/{i:03d}" for i in range(20)]
    for name in names:
        storage.put(name, b"x")

    def run(worker: int) -> Any:
        if worker:
            return [storage.put(f"units/{worker}-{i:03d}", b"x") for i in range(30)] and None
        return [found for found in (storage.list("units") for _ in range(20)) if not set(names) <= set(found)]

    assert at_once(4, run) == [[], None, None, None]


def test_delete_removes_and_does_not_mind_what_is_gone(storage):
    storage.put("a", b"1")
    storage.put("b", b"2")
    storage.delete(["a", "never", "a"])
    assert not storage.exists("a")
    assert storage.read("b") == b"2"


# --- publish


def test_publish_moves_an_object_whole(storage):
    storage.put("_staging/part", b"rows")
    assert storage.publish("_staging/part", "out/part") is True
    assert storage.read("out/part") == b"rows"
    assert not storage.exists("_staging/part")


def test_publishing_again_does_nothing(storage):
    storage.put("_staging/part", b"rows")
    assert storage.publish("_staging/part", "part")
    assert storage.publish("_staging/part", "part") is True
    assert storage.read("part") == b"rows"


def test_publishing_over_another_object_says_no_and_changes_nothing(storage):
    storage.put("part", b"somebody else's")
    storage.put("_staging/part", b"rows")
    assert storage.publish("_staging/part", "part") is False
    assert storage.read("part") == b"somebody else's"
    assert storage.read("_staging/part") == b"rows"


def test_a_publication_that_died_in_the_middle_can_be_repeated(storage):
    storage.put("_staging/part", b"rows")
    if isinstance(storage, LocalStorage):
        os.link(storage.root / "_staging/part", storage.root / "part")
    else:
        storage.put("part", b"rows")
    assert storage.publish("_staging/part", "part") is True
    assert storage.read("part") == b"rows"
    assert not storage.exists("_staging/part")


@pytest.mark.slow
def test_eight_that_publish_the_same_part_at_once_all_succeed(storage):
    """A driver that was replaced without noticing publishes beside its successor."""
    problems = []
    for round in range(8 if isinstance(storage, ObjectStorage) else 40):
        storage.put(f"_staging/{round}", b"rows")
        won = at_once(8, lambda _, round=round: storage.publish(f"_staging/{round}", f"part-{round}"))
        problems += [repr(w) for w in won if w is not True]
        assert storage.read(f"part-{round}") == b"rows"
    assert problems == []


# --- a folder


def test_a_disk_without_room_is_a_storage_error_and_leaves_nothing(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (storage.create, storage.put):
        with pytest.raises(StorageError, match="No space left"):
            write("units/a", b"data")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_disk_that_cannot_be_read_has_not_published(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    storage.put("_staging/part", b"rows")
    stat = os.stat

    def broken(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("_staging/part"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        storage.publish("_staging/part", "part")


def test_a_half_written_object_is_never_seen(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    seen: list[Any] = []
    sync = os.fsync

    def look(handle: int) -> None:
        seen.append((storage.list("units"), storage.exists("units/a")))
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    storage.create("units/a", b"data")
    assert seen[0] == ([], False)
    assert storage.list("units") == ["units/a"]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are fsynced from now on."""
    found: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.mark.parametrize("how", ["create", "put", "publish"])
def test_bytes_and_name_are_on_disk_when_a_write_returns(tmp_path, monkeypatch, how):
    storage = LocalStorage(tmp_path)
    storage.put("units/source", b"data")
    paths = synced(monkeypatch)
    if how == "publish":
        storage.publish("units/source", "units/a")
    else:
        getattr(storage, how)("units/a", b"data")
        assert ".tmp-" in paths[0]
    assert paths[-1] == str(tmp_path / "units")


@pytest.mark.parametrize("how", ["create", "put", "publish"])
def test_a_folder_that_a_write_makes_is_on_disk_too(tmp_path, monkeypatch, how):
    """Without that, a power cut after the commit of epoch 0 takes the whole folder of manifests with it."""
    storage = LocalStorage(tmp_path)
    storage.put("source", b"data")
    paths = synced(monkeypatch)
    if how == "publish":
        storage.publish("source", "new/deeper/a")
    else:
        getattr(storage, how)("new/deeper/a", b"data")
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "deeper")} <= set(paths)


def test_a_name_whose_folder_is_a_file_is_a_storage_error(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put("units", b"a file")
    with pytest.raises(StorageError, match=r"Not a directory\. See that this user may write there, or choose another place"):
        storage.create("units/a", b"data")


def no_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_is_refused_before_anything_is_written(tmp_path, monkeypatch, code):
    no_links(monkeypatch, code)
    storage = LocalStorage(tmp_path / "deep" / "checkpoint")
    for use in (
        storage.check,
        lambda: ms.sinks.files(tmp_path).check(),
        lambda: pipeline(ms.sinks.memory()).run(checkpoint=storage.url, quiet=True),
    ):
        with pytest.raises(StorageError, match=r"its file system has no hard links.*or the URL of an object store"):
            use()
    assert list(tmp_path.iterdir()) == []
    storage.put("source", b"1")
    for write in (lambda: storage.create("a", b"1"), lambda: storage.publish("source", "a")):
        with pytest.raises(StorageError, match="no hard links"):
            write()
    assert storage.list("") == ["source"]


def test_a_link_that_fails_for_another_reason_is_no_lack_of_links(tmp_path, monkeypatch):
    no_links(monkeypatch, errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        LocalStorage(tmp_path).check()


def test_a_folder_that_can_be_used_is_left_as_it_was(tmp_path):
    storage = LocalStorage(tmp_path / "checkpoint")
    storage.check()
    assert list(tmp_path.iterdir()) == []
    storage.put("a", b"1")
    storage.check()
    assert [one.name for one in (tmp_path / "checkpoint").iterdir()] == ["a"]


# --- opening


def test_a_published_name_is_on_disk_before_the_staged_one_goes(tmp_path, monkeypatch):
    """On a file system that does not keep the two in order, a power cut in between would else lose a part that is committed. Also if whoever came first died
    before the sync."""
    storage = LocalStorage(tmp_path)
    steps: list[str] = []
    sync, unlink = storage_module.sync_folder, os.unlink
    monkeypatch.setattr(storage_module, "sync_folder", lambda folder: (steps.append(f"sync {os.path.basename(folder)}"), sync(folder)))
    monkeypatch.setattr(os, "unlink", lambda path, **how: (steps.append(f"unlink {os.path.basename(path)}"), unlink(path, **how)))
    for there_already in (False, True):
        storage.put("units/staged", b"rows")
        storage.put("out/other", b"rows")
        if there_already:
            os.link(tmp_path / "units" / "staged", tmp_path / "out" / "part")
        steps.clear()
        assert storage.publish("units/staged", "out/part")
        assert steps[-2:] == ["sync out", "unlink staged"]
        storage.delete(["out/part"])


@pytest.mark.parametrize("how", ["create", "put", "read", "exists", "list", "folders", "delete", "publish"])
def test_whatever_the_disk_refuses_is_a_storage_error_that_names_the_object(tmp_path, how):
    storage = LocalStorage(tmp_path)
    storage.put("here", b"1")
    name = "n" * 300  # longer than file names may be
    given = {"create": (name, b"1"), "put": (name, b"1"), "delete": ([name],), "publish": ("here", f"{name}/part")}.get(how, (name,))
    with pytest.raises(StorageError, match=f"cannot .* {tmp_path}/{name}.*: File name too long"):
        getattr(storage, how)(*given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"], "and nothing is left behind"


def test_a_path_and_a_url_open_what_they_say(tmp_path, server):
    assert isinstance(open_storage(tmp_path), LocalStorage)
    assert open_storage(f"file://{tmp_path}").url == str(tmp_path)
    assert isinstance(open_storage(server.url(), server.options), ObjectStorage)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["az://bucket", "azure://bucket", "abfss://bucket@devstoreaccount1.dfs.core.windows.net"])
def test_azure_has_several_names_for_one_place(azure, scheme):
    options = {name: value for name, value in azure.options.items() if name != "account_name" or "@" not in scheme}
    where = azure.url()
    open_storage(where, azure.options).put("a", b"1")
    assert open_storage(scheme + where.removeprefix("az://bucket"), options).read("a") == b"1"


def test_two_prefixes_of_a_bucket_do_not_see_each_other(server):
    one, other = open_storage(server.url(), server.options), open_storage(server.url(), server.options)
    one.put("units/a", b"1")
    assert other.list("units") == [] and not other.exists("units/a")


def test_a_store_that_cannot_be_opened_is_a_storage_error():
    with pytest.raises(StorageError, match="nonsense"):
        open_storage("nonsense://bucket/x")


def test_a_store_that_does_not_answer_is_a_storage_error(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        options = {**server.options, "endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}", "retry_config": {"max_retries": 0}}
        storage = open_storage("s3://bucket/x", options)
        for call in (
            lambda: storage.create("a", b"1"),
            lambda: storage.put("a", b"1"),
            lambda: storage.read("a"),
            lambda: storage.exists("a"),
            lambda: storage.list("units"),
            lambda: storage.delete(["a"]),
        ):
            with pytest.raises(StorageError, match="s3://bucket/x"):
                call()


def losing_one_answer(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on the first PUT of a manifest is done, but its answer says 500. The client tries again by itself."""
    app, lost = server._server.app, []

    def lossy(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "PUT" and "/manifests/" in environ["PATH_INFO"] and not lost:
            lost.append(environ["PATH_INFO"])
            list(app(environ, lambda *_: lambda _: None))
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        return app(environ, start_response)

    monkeypatch.setattr(server._server, "app", lossy)
    return lost


def test_a_commit_whose_answer_was_lost_is_a_commit(server, monkeypatch):
    """Otherwise the driver is stopped as fenced by itself."""
    log = ManifestLog(open_storage(server.url(), server.options))
    lost = losing_one_answer(server, monkeypatch)
    assert log.commit(Manifest(0, "mine", 0, [(0, "mine")])) is True
    assert lost and log.latest().token == "mine"


def test_a_commit_whose_answer_was_lost_is_no_licence_to_take_over_another(server, monkeypatch):
    log = ManifestLog(open_storage(server.url(), server.options))
    assert log.commit(Manifest(0, "theirs", 0, [(0, "theirs")]))
    lost = losing_one_answer(server, monkeypatch)
    assert log.commit(Manifest(0, "mine", 0, [(0, "mine")])) is False
    assert lost and log.latest().token == "theirs"


# --- the log on both


def test_manifests_segments_compactions_and_state_cache_work_on_both(storage, tmp_path):
    log = ManifestLog(storage)
    identity = log.identify("p", None, 1, ["in"])
    assert log.identify("p", 1, 5, ["in"]) == identity
    model: dict[bytes, bytes] = {}
    chain: list[Any] = []
    state_cache = StateCache(tmp_path / "state_cache")
    for epoch in range(8):
        delta: dict[bytes, bytes | None] = {b"k%d" % i: b"%d" % epoch for i in range(epoch, epoch + 3)}
        if epoch:
            delta[b"k%d" % (epoch - 1)] = None
        chain = [*chain, write_delta(storage, epoch, delta)]
        for key, value in delta.items():
            model.pop(key, None) if value is None else model.__setitem__(key, value)
        if epoch == 5:
            chain = adopt(chain, chain, compact(storage, chain, True, epoch))
        manifest = Manifest(epoch, "run", 0, [(0, "run")], computations={"C": ComputationState(shards=[ShardState(chain)])})
        assert log.commit(manifest) is True
        assert log.commit(Manifest(epoch, "other", 0, [(0, "other")])) is False
        if epoch % 3 == 0:
            view = state_cache.view(storage, chain, manifest)
            assert dict(view.scan(b"k", b"l")) == model
            view.close()
    assert log.epochs() == list(range(8))
    found = log.latest()
    assert found == manifest
    chain = found.computations["C"].shards[0].segments
    assert len(chain) == 3 and chain[0].base
    assert dict(merge(storage, chain, drop_deleted=True)) == model
    state_cache.retire()


def test_what_is_under_a_prefix_is_a_storage_of_its_own():
    whole = MemoryStorage()
    under(whole, "a/b").put("c", b"1")
    assert whole.read("a/b/c") == b"1" and under(whole, "a").list("b") == ["b/c"]
