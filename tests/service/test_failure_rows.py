"""The rows of the design's table of failures that are about disks, damage, watchers and writes that come too early."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from servicekit import APP, HandLog, NodeProcess, get, partition, session, upsert

from millstream.errors import Busy, DamageError, NotReady, RefusedRequest, Stale, StorageError, UnknownOutcome
from millstream.service import Table, functions, logs, stores
from millstream.service.channel import Channel
from millstream.service.client import AsyncClient
from millstream.service.logs.disk import SharedDiskLog
from millstream.service.logs.frames import decode_file
from millstream.service.messages import LIMIT
from millstream.service.node import Node
from millstream.service.proto import service_pb2 as pb
from millstream.service.watchers import Watchers


def put(key: bytes, value: bytes, **header: Any) -> pb.UpsertRequest:
    return pb.UpsertRequest(header=pb.Header(table="t", **header), keys=[key], values=[value])


async def value_of(channel: Channel, key: bytes, table: str = "t") -> bytes | None:
    reply = await channel.ask("Get", pb.GetRequest(header=pb.Header(table=table), keys=[key]), 5)
    return reply.values[0] if reply.versions[0] else None


# --- disks


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

    def open(self, folder: Path, crash: str = "") -> SharedDiskLog:
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
    for table in ("t", "u"):
        async with AsyncClient(node.data.address, table) as client:
            for number in range(10):
                await client.put(b"k%d" % number, b"value %d" % number)
    await node.stop()
    (wal,) = (folder / "wal").glob("*.log")
    return wal


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


# --- two of one name


@pytest.mark.crash
def test_a_second_node_on_a_folder_or_under_a_name_exits_and_says_why(tmp_path: Path) -> None:
    shared = ("--registry", str(tmp_path / "registry"))
    with NodeProcess(tmp_path / "a", arguments=shared) as first:
        second = NodeProcess(tmp_path / "a", arguments=shared)
        other = NodeProcess(tmp_path / "b", arguments=shared)
        said = []
        for node in (second, other):
            node.start(wait=False)
        for node in (second, other):
            assert node.process is not None
            said.append(node.process.communicate(timeout=30)[0])
            assert node.process.returncode not in (0, -9)
        assert "is in use by another node" in said[0] and "--dir" in said[0]
        assert "a node called 'n1' is known already" in said[1] and first.address in said[1] and "--take-over n1" in said[1]
        assert all("Traceback" not in text for text in said), said

        async def still_there() -> None:
            async with AsyncClient(first.address, "t") as client:
                await client.put("a", "1")

        asyncio.run(still_there())


# --- watchers


def test_a_slow_watcher_is_told_where_to_go_on_and_goes_on_without_a_hole(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([Table("t")], folder=tmp_path)
        await node.start()
        channel, seen, last, stale = Channel(node.data.address), {}, None, 0

        async def follow(upto: int, slow: bool) -> None:
            """Takes what comes until it has this position, and does not take anything for a while at first."""
            nonlocal last, stale
            asked = pb.WatchRequest(header=pb.Header(table="t"))
            if last is not None:
                asked.after = last
            try:
                async for reply in channel.stream("Watch", asked):
                    if reply.kind == pb.WatchReply.RESET:
                        seen.clear()
                    for key, value, version in zip(reply.keys, reply.values, reply.versions, strict=True):
                        assert reply.kind != pb.WatchReply.CHANGES or version > (last or 0), "told twice, or out of order"
                        seen[key] = value
                    if reply.kind in (pb.WatchReply.MARK, pb.WatchReply.CHANGES):
                        last = reply.at.lsn
                    if slow and reply.kind == pb.WatchReply.MARK:
                        await written.wait()
                    if (last or 0) >= upto:
                        return
            except Stale as error:
                stale += 1
                assert "after position" in str(error)

        written = asyncio.Event()
        slow = asyncio.ensure_future(follow(60, slow=True))
        for number in range(60):
            await channel.ask("Upsert", put(b"k%d" % (number % 7), b"%d" % number + b"x" * 400_000), 10)
        written.set()
        await asyncio.wait_for(slow, 20)
        assert stale == 1, "it kept up with 24 MB that it did not take"
        while (last or 0) < 60:
            await asyncio.wait_for(follow(60, slow=False), 20)
        assert {key: value.split(b"x")[0] for key, value in seen.items()} == {b"k%d" % (n % 7): b"%d" % n for n in range(53, 60)}
        await channel.close()
        await node.stop()

    asyncio.run(main())


def test_a_watcher_that_fell_behind_can_go_on_where_it_was_told_to() -> None:
    """What is kept for those who come back is more than what a slow one may be behind: or else every one of them had to begin anew."""

    async def main() -> None:
        watchers = Watchers()
        slow, _ = watchers.join(lambda key: True, 0, None)
        quick, _ = watchers.join(lambda key: True, 0, None)
        seen = []
        for lsn in range(1, 61):
            watchers.tell(lsn, [[(b"Kk%d" % lsn, lsn.to_bytes(8, "big") + b"x" * 100_000)]])
            seen.append((await quick.next())[0])
        with pytest.raises(Stale, match="after position") as told:
            await slow.next()
        after = int(str(told.value).rsplit(" ", 1)[1])
        again, goes_on = watchers.join(lambda key: True, 60, after)
        assert goes_on
        assert [(await again.next())[0] for _ in range(60 - after)] == list(range(after + 1, 61)) and seen == list(range(1, 61))

    asyncio.run(main())


# --- writes that come before their elders


def test_early_writes_that_nobody_waits_for_any_more_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        for name in range(3000):
            with pytest.raises(Busy):
                one.write(upsert(b"a", b"x", session=session(name), seq=500))  # far ahead of a write that never comes
        assert len(one._early) == 0, "a session that was refused is remembered for ever"
        for round_ in range(3):
            waiting = [one.write(upsert(b"a", b"x", session=session(name, round_ + 1), seq=2)) for name in range(2000)]
            for write in waiting:
                write.cancel()
            await asyncio.sleep(0)
        assert len(one._early) == 0 and one._early.count == 0
        kept = one.write(upsert(b"a", b"2", session=session(9, 99), seq=2))
        first = one.write(upsert(b"a", b"1", session=session(9, 99), seq=1))
        assert [(await first).lsn, (await kept).lsn] == [1, 2]

    asyncio.run(main())


def test_an_early_write_that_is_sent_again_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([Table("t", functions=[functions.add])], folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)

        async def send(seq: int) -> pb.WriteReply:
            while True:
                try:
                    return await channel.ask("Upsert", put(b"a", b"%d" % seq, session=session(1, 10**12), seq=seq), 3)
                except Busy:
                    await asyncio.sleep(0.01)

        lost = asyncio.ensure_future(send(2))
        await asyncio.sleep(0.1)
        lost.cancel()  # the connection broke; it is sent again, and so is its elder
        again, twice = asyncio.ensure_future(send(2)), asyncio.ensure_future(send(2))
        await asyncio.sleep(0.05)
        assert (await send(1)).at.lsn == 1
        assert {(await again).at.lsn, (await twice).at.lsn} == {2}
        await channel.close()
        await node.stop()

    asyncio.run(main())


def test_a_session_that_writes_too_far_ahead_is_told_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        with pytest.raises(Busy) as busy:
            one.write(upsert(b"a", b"x", session=session(1), seq=200))
        assert busy.value.retry_after > 0
        with pytest.raises(RefusedRequest, match="16 bytes"):
            one.write(upsert(b"a", b"x", session=b"short", seq=1))

    asyncio.run(main())


# --- reads that cannot be confirmed


class AwayLog(HandLog):
    """A log whose storage cannot be asked for a while."""

    alone = False
    is_away = False

    async def confirm(self, term: int) -> None:
        if self.is_away:
            raise StorageError("the storage cannot be reached")
        await super().confirm(term)


def test_a_read_that_cannot_be_confirmed_is_refused_and_the_partition_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        log = AwayLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        log.is_away = True
        for done in await asyncio.wait_for(asyncio.gather(*(one.read(get(b"a")) for _ in range(3)), return_exceptions=True), 10):
            assert isinstance(done, NotReady) and "cannot be reached" in str(done)
        log.is_away = False
        assert (await one.read(get(b"a"))).values == [b"1"]
        await one.write(upsert(b"a", b"2"))

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
