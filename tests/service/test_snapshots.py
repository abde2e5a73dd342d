"""Snapshots go from any store to any other, beside the turns, through a folder or S3; and the sidecar that carries them away."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import DamageError, StorageError
from millstream.service.stores import lmdb
from millstream.service.stores.memory import DictStore, counters, memory
from millstream.service.stores.snapshots import (
    WHOLE,
    describe_snapshot,
    drop_older,
    drop_snapshot,
    newest_snapshot,
    read_snapshot,
    upload_once,
    watch_and_upload,
    write_snapshot,
)
from millstream.service.stores.store_contract import KeyStore
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage, Storage, open_storage
from s3server import S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    found = S3Server()
    yield found
    found.stop()


@pytest.fixture(params=["local", "s3", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    server = request.getfixturevalue("server")
    return open_storage(server.url(), server.options)


def filled(store: KeyStore, rows: int, lsn: int = 7) -> dict[bytes, bytes]:
    chance = random.Random(rows)
    entries = {b"K%06d" % number: chance.randbytes(16) for number in range(rows)}
    store.apply(list(entries.items()), lsn)
    return entries


def save(store: KeyStore, storage: Storage, name: str, **options: Any) -> Any:
    async def work() -> Any:
        pinned = store.pin()
        try:
            return await write_snapshot(pinned.entries(), pinned.applied, storage, name, **options)
        finally:
            pinned.close()

    return asyncio.run(work())


def test_what_was_saved_comes_back_in_parts(storage: Storage) -> None:
    store = DictStore()
    entries = filled(store, 5000)
    saved = save(store, storage, "snapshots/1/7", part_bytes=40_000)
    assert (saved.lsn, saved.rows) == (7, 5000) and len(saved.parts) > 3 and all(part.bytes <= 40_000 for part in saved.parts)
    found, moves = read_snapshot(storage, "snapshots/1/7")
    assert found == saved and dict(moves) == entries
    assert saved.bytes == sum(len(storage.read(f"snapshots/1/7/{part.name}")) for part in saved.parts)


@pytest.mark.parametrize("rows", [0, 1, 1024, 1025])
def test_any_number_of_rows(rows: int) -> None:
    storage, store = MemoryStorage(), DictStore()
    entries = filled(store, rows)
    assert save(store, storage, "s").rows == rows
    assert dict(read_snapshot(storage, "s")[1]) == entries


KINDS = {"memory": memory(), "counters": counters(), "lmdb": lmdb(), "lmdb, durable": lmdb(durable=True)}


@pytest.mark.parametrize("into", KINDS)
@pytest.mark.parametrize("out_of", KINDS)
def test_from_any_store_to_any_other(out_of: str, into: str, tmp_path: Path) -> None:
    source, target = KINDS[out_of].open(tmp_path / "a"), KINDS[into].open(tmp_path / "b")
    entries = filled(source.of(1), 300)
    storage = LocalStorage(tmp_path / "c")
    save(source.of(1), storage, "s")
    target.of(9).apply([(b"Kold", bytes(16))], 3)
    found, moves = read_snapshot(storage, "s")
    target.of(9).replace(moves, found.lsn)
    assert dict(target.of(9).scan(b"", b"\xff")) == entries and target.of(9).applied == 7
    source.close()
    target.close()


def test_beside_turns_it_is_as_of_one_position_and_the_loop_goes_on() -> None:
    storage, store = MemoryStorage(), DictStore()
    entries = filled(store, 30_000)
    turns = [0]

    async def work() -> None:
        async def go_on() -> None:
            while True:
                turns[0] += 1
                store.apply([(b"K%06d" % (turns[0] % 30_000), None), (b"Knew%d" % turns[0], b"x")], 7 + turns[0])
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(go_on())
        pinned = store.pin()
        saved = await write_snapshot(pinned.entries(), pinned.applied, storage, "s")
        pinned.close()
        beside.cancel()
        assert saved.lsn == 7

    asyncio.run(work())
    assert turns[0] >= 30_000 // 1024
    assert dict(read_snapshot(storage, "s")[1]) == entries


class Counted:
    """A pin that counts how many entries are taken between two turns of the loop."""

    applied = 1

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size
        self.taken = self.most = 0

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for number in range(self._rows):
            self.taken += 1
            self.most = max(self.most, self.taken)
            yield b"K%d" % number, bytes(self._size)


@pytest.mark.parametrize("size", [1, 100_000])
def test_the_loop_gets_its_turn_often(size: int) -> None:
    pinned: Any = Counted(20_000 if size == 1 else 100, size)

    async def work() -> None:
        saving = asyncio.ensure_future(write_snapshot(pinned.entries(), pinned.applied, MemoryStorage(), "s"))
        while not saving.done():
            pinned.taken = 0
            await asyncio.sleep(0)
        await saving

    asyncio.run(work())
    assert pinned.most <= (4096 if size == 1 else 4)


def test_what_is_not_finished_is_no_snapshot(storage: Storage) -> None:
    storage.put("snapshots/5/part-00000", b"half")
    with pytest.raises(DamageError, match=f"{storage.url}/snapshots/5 is no snapshot, or was never finished"):
        read_snapshot(storage, "snapshots/5")
    assert newest_snapshot(storage, "snapshots") is None
    store = DictStore()
    filled(store, 10, lsn=5)
    save(store, storage, "snapshots/5")  # over it
    assert newest_snapshot(storage, "snapshots").lsn == 5  # type: ignore[union-attr]
    assert len(list(read_snapshot(storage, "snapshots/5")[1])) == 10


def test_a_name_is_used_once() -> None:
    storage, store = MemoryStorage(), DictStore()
    filled(store, 10, lsn=5)
    first = save(store, storage, "s")
    before = dict(storage.objects)
    assert save(store, storage, "s") == first and storage.objects == before
    store.apply([(b"Kx", b"1")], 6)
    with pytest.raises(StorageError, match="position 5 already"):
        save(store, storage, "s")
    assert storage.objects == before


def test_the_newest_stays_and_older_ones_go(storage: Storage) -> None:
    store = DictStore()
    for lsn in (3, 12, 7):
        filled(store, 5, lsn)
        save(store, storage, f"snapshots/1/{lsn:020d}")
    storage.put(f"snapshots/1/{5:020d}/part-00000", b"never finished")
    storage.put(f"snapshots/1/{15:020d}/part-00000", b"somebody is at it")
    newest = newest_snapshot(storage, "snapshots/1")
    assert newest is not None and newest.lsn == 12
    gone = drop_older(storage, "snapshots/1", newest.name)
    assert [int(name[-20:]) for name in gone] == [3, 5, 7]
    assert [int(name[-20:]) for name in storage.folders("snapshots/1")] == [12, 15]
    drop_snapshot(storage, newest.name)
    assert newest_snapshot(storage, "snapshots/1") is None


def test_damage_names_the_object_and_the_place() -> None:
    storage, store = MemoryStorage(), DictStore()
    filled(store, 3000)
    save(store, storage, "s", part_bytes=40_000)
    parts = [part.name for part in describe_snapshot(storage, "s").parts]
    name = f"s/{parts[1]}"
    whole = storage.read(name)
    chance = random.Random(1)
    for place in [0, 4, 8, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(200))]:
        changed = bytearray(whole)
        changed[place] ^= 16
        storage.put(name, bytes(changed))
        with pytest.raises(DamageError, match=f"memory/{name} is damaged: at byte [0-9]+"):
            list(read_snapshot(storage, "s")[1])
    for bad in (whole[:-1], whole + b"\0", b"", storage.read(f"s/{parts[0]}")):
        storage.put(name, bad)
        with pytest.raises(DamageError, match=f"memory/{name} is damaged"):
            list(read_snapshot(storage, "s")[1])
    storage.delete([name])
    with pytest.raises(DamageError, match=f"{name} is missing"):
        list(read_snapshot(storage, "s")[1])
    for bad in (b"{", b'{"name": "s"}', storage.read("s/snapshot.json").replace(b'"format": 1', b'"format": 2')):
        storage.put("s/snapshot.json", bad)
        with pytest.raises(DamageError, match=r"snapshot\.json is damaged"):
            read_snapshot(storage, "s")


# the sidecar


class Failing(MemoryStorage):
    """Breaks after so many puts."""

    def __init__(self, puts: int = 1 << 30) -> None:
        super().__init__()
        self.left, self.order = puts, []  # type: tuple[int, list[str]]

    def put(self, name: str, data: bytes) -> None:
        if self.left <= 0:
            raise StorageError("the store is away")
        self.left -= 1
        self.order.append(name)
        super().put(name, data)


def saved(folder: Path, names: Iterable[str]) -> None:
    for lsn, name in enumerate(names, 1):
        store = DictStore()
        filled(store, 3000, lsn)
        save(store, LocalStorage(folder), name, part_bytes=40_000)


def test_every_snapshot_is_sent_once_parts_first(tmp_path: Path) -> None:
    saved(tmp_path, ["a", "deep/er/b"])
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "part-00000").write_bytes(b"half")
    target, said = Failing(), []  # type: tuple[Failing, list[str]]
    assert upload_once(tmp_path, target, said.append) == ["a", "deep/er/b"]
    assert len(said) == 2 and "position 1, 3000 rows" in said[0]
    for name in ("a", "deep/er/b"):
        mine = [put for put in target.order if put.startswith(f"{name}/")]
        assert mine[-1] == f"{name}/{WHOLE}" and len(mine) > 3
        assert sorted(read_snapshot(target, name)[1]) == sorted(read_snapshot(LocalStorage(tmp_path), name)[1])
    count = len(target.order)
    assert upload_once(tmp_path, target, said.append) == [] and len(target.order) == count
    assert not any(name.startswith("half") for name in target.objects)


def test_a_sidecar_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    saved(tmp_path, ["a", "b"])
    target, rounds = Failing(0), 0
    while True:
        rounds += 1
        try:
            sent = upload_once(tmp_path, target)
            break
        except StorageError:
            for name in ("a", "b"):  # nothing looks whole that is not
                if target.exists(f"{name}/{WHOLE}"):
                    assert len(list(read_snapshot(target, name)[1])) == 3000
            target.left = 1
    assert rounds > 5 and sent == ["b"] and len(target.order) == len(set(target.order))


def test_damage_is_not_carried_on_and_does_not_keep_others(tmp_path: Path) -> None:
    saved(tmp_path, ["a", "b"])
    part = tmp_path / "a" / "part-00001"
    changed = bytearray(part.read_bytes())
    changed[100] ^= 1
    part.write_bytes(changed)
    target, said = Failing(), []  # type: tuple[Failing, list[str]]
    with pytest.raises(DamageError, match=f"{part} is damaged"):
        upload_once(tmp_path, target, said.append)
    assert target.exists(f"b/{WHOLE}") and not target.exists(f"a/{WHOLE}") and any("a could not be sent" in text for text in said)


def test_watching_sends_what_appears_and_lives_through_failures(tmp_path: Path, server: S3Server) -> None:
    target = open_storage(server.url(), server.options)
    stop, said = threading.Event(), []  # type: tuple[threading.Event, list[str]]

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            saved(tmp_path, ["b"])
        else:
            stop.set()

    saved(tmp_path, ["a"])
    assert watch_and_upload(tmp_path, target, say, every=0.001, stop=stop) == 2
    assert len(list(read_snapshot(target, "b")[1])) == 3000
    over, failures = threading.Event(), []  # type: tuple[threading.Event, list[str]]

    def fail(text: str) -> None:
        failures.append(text)
        if len(failures) == 6:  # three rounds of two
            over.set()

    assert watch_and_upload(tmp_path, Failing(0), fail, every=0, stop=over) == 0
    assert all("could not be sent" in text for text in failures)
