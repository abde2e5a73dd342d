"""A log that fails: full disks, failed syncs, torn ends, damage, storage that is away."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from servicekit import APP, HandLog, NodeProcess, SharedHandLog, get, partition, session, settle, soon, table, upsert

from millstream.errors import (
    Busy,
    DamageError,
    Fenced,
    NotReady,
    ServiceError,
    UnknownOutcome,
)
from millstream.service import AsyncClient, Node, Table, dispatch, functions, logs, stores
from millstream.service.channel import Channel
from millstream.service.logs.disk import SharedDiskLog
from millstream.service.logs.wal import decode_file
from millstream.service.messages import LIMIT
from millstream.service.proto import service_pb2 as pb
from millstream.service.stores.memory import memory


def put(key: bytes, value: bytes, **header: Any) -> pb.UpsertRequest:
    return pb.UpsertRequest(header=pb.Header(table="t", **header), keys=[key], values=[value])


async def value_of(channel: Channel, key: bytes, table: str = "t") -> bytes | None:
    reply = await channel.ask("Get", pb.GetRequest(header=pb.Header(table=table), keys=[key]), 5)
    return reply.values[0] if reply.versions[0] else None


@pytest.mark.crash
def test_a_disk_that_is_full_ends_writes_for_good_and_reads_go_on(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: a file of the log cannot be made large enough."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    node = NodeProcess(tmp_path, app=limit + APP.format(options=", log=ms.service.logs.disk(segment_bytes=1 << 20)"))

    async def main() -> None:
        await asyncio.to_thread(node.start)
        channel = Channel(node.address)
        await channel.ask("Upsert", put(b"a", b"1"), 5)
        with pytest.raises(UnknownOutcome, match=r"File too large \(.*\.log\)"):
            await channel.ask("Upsert", put(b"large", b"x" * (LIMIT - 100)), 5)
        with pytest.raises(NotReady, match=r"takes no writes.*File too large"):
            await channel.ask("Upsert", put(b"a", b"2"), 5)
        assert await value_of(channel, b"a") == b"1"
        node.kill()
        node.app.write_text(APP.format(options=", log=ms.service.logs.disk(segment_bytes=1 << 20)"))
        await asyncio.to_thread(node.start)
        async with AsyncClient(node.address, "t") as client:
            assert await client.get("a") == b"1"
            await client.put("a", "3")
        await channel.close()

    try:
        asyncio.run(main())
    finally:
        node.kill()


class BrokenDisk:
    """A log whose sync fails when told to. Implements `LogKind`."""

    shared, keeps = False, True

    def __init__(self) -> None:
        self.breaks, self.syncs_after = False, 0

    def open(self, folder: Path) -> SharedDiskLog:
        def sync(fd: int) -> None:
            if self.breaks:
                self.syncs_after += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fdatasync(fd)

        return SharedDiskLog(folder, 1 << 20, sync=sync)

    def describe(self) -> str:
        return "broken disk"


def test_a_sync_that_failed_is_never_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        kind = BrokenDisk()
        node = Node([Table("t", log=kind)], folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)
        await channel.ask("Upsert", put(b"a", b"1"), 5)
        kind.breaks = True
        with pytest.raises(UnknownOutcome, match="Input/output error"):
            await channel.ask("Upsert", put(b"a", b"2"), 5)
        kind.breaks = False  # the kernel says yes the second time, and has lost what it could not write
        for _ in range(3):
            with pytest.raises(NotReady, match="Input/output error"):
                await channel.ask("Upsert", put(b"a", b"3"), 5)
        assert kind.syncs_after == 1
        assert await value_of(channel, b"a") == b"1"
        await node.stop()
        again = Node([Table("t", log=logs.disk(1 << 20))], folder=tmp_path)
        await again.start()
        other = Channel(again.data.address)
        assert await value_of(other, b"a") in (b"1", b"2")
        await other.ask("Upsert", put(b"a", b"4"), 5)
        assert await value_of(other, b"a") == b"4"
        await channel.close()
        await other.close()
        await again.stop()

    asyncio.run(main())


def two_tables() -> list[Table]:
    return [Table("t"), Table("u", store=stores.lmdb(durable=True), log=logs.none())]


async def filled(folder: Path) -> Path:
    """A node's folder with ten writes in each of two tables, of which one has a log on disk."""
    node = Node(two_tables(), folder=folder)
    await node.start()
    for name in ("t", "u"):
        async with AsyncClient(node.data.address, name) as client:
            for number in range(10):
                await client.put(b"k%d" % number, b"value %d" % number)
    await node.stop()
    (wal,) = (folder / "wal").glob("*.log")
    return wal


@pytest.mark.slow
def test_a_torn_end_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        wal = await filled(tmp_path)
        data = bytearray(wal.read_bytes())
        groups, end, torn = decode_file(bytes(data), "it", True)
        assert not torn
        half = bytes(data[groups[-1].at : groups[-1].at + groups[-1].size // 2])
        data[end : end + len(half)] = half
        wal.write_bytes(data)
        node = Node(two_tables(), folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)
        assert [await value_of(channel, b"k%d" % number) for number in range(10)] == [b"value %d" % number for number in range(10)]
        await channel.ask("Upsert", put(b"k0", b"new"), 5)
        await channel.close()
        await node.stop()
        assert decode_file(wal.read_bytes(), "it", True)[2] is False

    asyncio.run(main())


@pytest.mark.slow
def test_a_flipped_bit_elsewhere_is_damage_with_file_and_place_and_other_tables_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        wal = await filled(tmp_path)
        data = bytearray(wal.read_bytes())
        group = decode_file(bytes(data), "it", True)[0][4]
        data[group.at + group.size // 2] ^= 4
        wal.write_bytes(data)
        node = Node(two_tables(), folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)
        for _ in range(50):
            with pytest.raises(DamageError, match=rf"{wal.name} is damaged at byte {group.at}"):
                await value_of(channel, b"k1")
        with pytest.raises(DamageError, match=f"byte {group.at}"):
            await channel.ask("Upsert", put(b"k1", b"x"), 5)
        assert await value_of(channel, b"k1", "u") == b"value 1"
        (broken,) = [one for one in node.manager.partitions.values() if one.descriptor.table == "t"]
        frames, trace = 0, broken.damage.__traceback__ if broken.damage else None
        while trace is not None:
            frames, trace = frames + 1, trace.tb_next
        assert frames < 30, "what is told again and again grows with every telling"
        await channel.close()
        await node.stop()
        assert bytes(data) == wal.read_bytes(), "damage is left as it was found"

    asyncio.run(main())


def test_a_log_that_hangs_fills_the_window_then_the_inbox_and_reads_go_on() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.split(requests=50)))
        writes = []
        with pytest.raises(Busy):
            for number in range(1000):
                writes.append(one.write(upsert(b"%d" % number, b"x")))
                await asyncio.sleep(0)
        assert len(log.waiting) == 64
        assert (await one.read(get(b"1"))).versions == [0]
        while log.waiting or not all(write.done() for write in writes):
            while log.waiting:
                log.complete(0)
            await asyncio.sleep(0)
        assert [(await write).lsn for write in writes] == list(range(1, len(writes) + 1))

    asyncio.run(main())


def test_a_log_that_fails_ends_writes_for_good_with_an_unknown_outcome_and_reads_go_on() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log)
        done = one.write(upsert(b"a", b"1"))
        await settle()
        log.complete(0)
        await done
        lost = [one.write(upsert(b"a", b"2"))]
        await settle()
        lost.append(one.write(upsert(b"a", b"3")))
        log.waiting[0][1].set_exception(UnknownOutcome("fsync failed"))
        with pytest.raises(UnknownOutcome):
            await lost[0]
        with pytest.raises(ServiceError):
            await lost[1]
        with pytest.raises(NotReady, match="fsync failed"):
            one.write(upsert(b"a", b"4"))
        assert (await one.read(get(b"a"))).values == [b"1"]

    asyncio.run(main())


def test_reads_are_answered_after_a_log_failed_with_a_full_window() -> None:
    async def main() -> None:
        log = SharedHandLog(at_once=False)
        one = await partition(log)
        writes = []
        for _ in range(100):
            writes.append(one.write(upsert(b"a", b"1")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        log.waiting[0][1].set_exception(UnknownOutcome("who knows"))
        assert {type(await soon(write)) for write in writes} == {UnknownOutcome, NotReady}
        assert (await soon(one.read(get(b"a")))).versions == [0]

    asyncio.run(main())


def test_a_store_that_cannot_take_what_the_log_has_ends_the_partition_and_a_restart_mends_it() -> None:
    class Full:
        durable = False

        def __init__(self) -> None:
            self._store = memory().open(None).of(1)  # type: ignore[arg-type]
            self.full = False

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        def apply(self, changes: object, upto: int) -> None:
            if self.full:
                raise OSError("no space left")
            self._store.apply(changes, upto)  # type: ignore[arg-type]

    async def main() -> None:
        log, store = HandLog(), Full()
        one = await partition(log, store=store)
        await one.write(upsert(b"a", b"1"))
        store.full = True
        with pytest.raises(UnknownOutcome):
            await one.write(upsert(b"a", b"2"))
        with pytest.raises(NotReady):
            await one.read(get(b"a"))
        again = await partition(log)
        assert (await again.read(get(b"a"))).values == [b"2"]

    asyncio.run(main())


def test_fenced_is_what_a_log_says_to_an_old_term() -> None:
    async def main() -> None:
        log = HandLog()
        await log.seal(3)
        with pytest.raises(Fenced):
            await partition(log)

    asyncio.run(main())


def test_a_storage_that_was_away_for_a_while_is_used_again_and_nothing_that_was_answered_is_missing(tmp_path: Path) -> None:
    """The folder of the log is a file for a while. The write under way has an unknown outcome; then the partition seals its log anew."""
    place, away = tmp_path / "log", tmp_path / "away"

    async def main() -> None:
        node = Node([Table("t", log=logs.objects(str(place)), functions=[functions.add])], folder=tmp_path / "n1")
        await node.start()
        channel, client = Channel(node.data.address), AsyncClient(node.data.address, "t", timeout="30s")
        try:
            assert await client.call("add", "sum", "1") == b"1"
            place.rename(away)
            place.write_text("")
            with pytest.raises(UnknownOutcome):
                await channel.ask("Upsert", put(b"a", b"1", session=session(1, 10**12), seq=1), 10)
            adding = asyncio.ensure_future(client.call("add", "sum", "1"))
            with pytest.raises(NotReady):
                await value_of(channel, b"sum")
            place.unlink()
            away.rename(place)
            assert await adding == b"2"
            again = await channel.ask("Upsert", put(b"a", b"1", session=session(1, 10**12), seq=1), 10)
            assert await value_of(channel, b"a") == b"1" and again.at.lsn > 0
        finally:
            await client.close()
            await channel.close()
            await node.stop()

    asyncio.run(main())
