"""Restores and snapshots of a partition: whole, decided by the log, and refused when they do not fit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from servicekit import HandLog, get, partition, session, soon, stage, upsert

from millstream.errors import (
    Fenced,
    MillstreamError,
    RefusedRequest,
)
from millstream.service import Table, stores
from millstream.service.messages import Descriptor
from millstream.service.partition import Partition
from millstream.service.snapshotting import SnapshotPlace, load_newest_snapshot, restore_from, restore_reader, snapshot_to
from millstream.service.stores.memory import memory
from millstream.service.stores.snapshots import write_snapshot
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage


async def backup(storage: Any) -> None:
    """A snapshot of another time."""
    before = await partition(HandLog())
    await before.write(upsert(b"z", b"as it was"))
    await write_snapshot(before.store.pin().entries(), before.store.applied, storage, "monday")


def test_a_restore_that_its_caller_does_not_wait_for_is_done_whole() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        log.at_once = False
        restoring = asyncio.ensure_future(one.replace([(b"Kz", bytes(8) + b"restored")], "name"))
        while not log.waiting:
            await asyncio.sleep(0)
        restoring.cancel()
        await asyncio.sleep(0)
        log.at_once = True
        log.complete(0)
        assert (await soon(one.read(get(b"z")))).values == [b"restored"]
        assert (await soon(one.read(get(b"a")))).versions == [0]
        assert (await soon(one.write(upsert(b"b", b"2")))).lsn == 3

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["before the log", "behind the log", "saved"])
def test_whoever_takes_over_during_a_restore_has_it_if_the_log_has_it(tmp_path: Path, moment: str) -> None:
    async def main() -> None:
        storage, home, log = LocalStorage(tmp_path), MemoryStorage(), HandLog()
        await backup(storage)
        old = await partition(log)
        await old.write(upsert(b"a", b"1", session=session(), seq=1))
        log.at_once = False
        restoring = asyncio.ensure_future(restore_from(old, SnapshotPlace(storage, "monday"), home))
        while not log.waiting:
            await asyncio.sleep(0.001)
        log.at_once = True
        if moment == "before the log":
            log.waiting.pop()[1].set_exception(Fenced("another has taken over"))
        else:
            log.complete(0)
        if moment == "saved":
            await restoring
            assert not log.records and not home.list("restores")
            await old.write(upsert(b"c", b"3"))
        new = Partition(Descriptor(1, "t", term=2), old.table, log, memory().open(Path("unused")).of(1))
        load_newest_snapshot(new.store, home, 1)
        await new.open(restore_reader(home, 1))
        done = await soon(restoring)
        assert isinstance(done, MillstreamError) == (moment == "before the log")
        is_restored = moment != "before the log"
        assert new.machine.read(get(b"z")).versions == [2 if is_restored else 0]
        assert new.machine.read(get(b"a")).versions == [0 if is_restored else 1]
        assert (await soon(new.write(upsert(b"a", b"1", session=session(), seq=1)))).again

    asyncio.run(main())


def test_a_restore_of_what_the_store_does_not_take_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        await backup(LocalStorage(tmp_path))
        log = HandLog()
        one = await partition(log, Table("t", store=stores.counters()), store=stores.counters().open(Path("unused")).of(1))
        with pytest.raises(RefusedRequest):
            await restore_from(one, SnapshotPlace(LocalStorage(tmp_path), "monday"), MemoryStorage())
        assert not log.records
        assert (await soon(one.write(upsert(b"a", bytes(8))))).lsn == 1

    asyncio.run(main())


def test_a_partition_knows_after_a_restart_how_much_no_snapshot_has() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        for _ in range(10):
            await one.write(upsert(b"a", bytes(1000)))
        again = await partition(log)
        assert again.unsaved >= one.unsaved > 10_000

    asyncio.run(main())


def test_a_snapshot_for_an_operator_has_the_rows_of_users_only(tmp_path: Path) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        await one.write(upsert(b"a", b"1", session=session(), seq=1))
        await one.write(stage([b"b"], [b"2"], "l|1|1|x"))
        assert (await snapshot_to(one, SnapshotPlace(LocalStorage(tmp_path), "monday"))).rows == 1

    asyncio.run(main())
