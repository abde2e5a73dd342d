"""The disk log on disks that do what disks do: torn ends, lost sectors, flipped bits, no room, syncs that fail, a disk that hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.errors import DamageError, Fenced, NotReady, StorageError, UnknownOutcome
from millstream.service.logs.disk import DiskLog, SharedDiskLog, disk
from millstream.service.logs.wal import RECORD, SECTOR, STAND, WalEntry, decode_file, encode_group, padded
from millstream.service.messages import LogRecord
from millstream.state.durable import write_all

SMALL = 1 << 16


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(work())


def record(log: DiskLog, size: int = 10, term: int | None = None, positions: int = 1) -> LogRecord:
    first = log.next
    changes: list[tuple[bytes, bytes | None]] = [(b"K%d" % first, random.Random(first).randbytes(size))]
    return LogRecord(log.partition, log.term if term is None else term, first, first + positions - 1, 0, changes)


async def positions(log: DiskLog, after: int = 0) -> list[int]:
    return [found.first async for found in log.read(after)]


def written(folder: Path, count: int = 3, size: int = 700) -> tuple[Path, list[int]]:
    """A file with so many records of partition 1, one frame each; and where the frames begin."""

    async def work() -> None:
        shared = SharedDiskLog(folder, SMALL)
        log = shared.of(1)
        await log.seal(1)
        for _ in range(count):
            await log.append(record(log, size))
        await shared.close()

    run(work)
    path = folder / "wal" / f"{1:012d}.log"
    groups, _, torn = decode_file(path.read_bytes(), "here", True)
    assert not torn
    return path, [group.at for group in groups]


async def found(folder: Path) -> list[int]:
    shared = SharedDiskLog(folder, SMALL)
    try:
        return await positions(shared.of(1))
    finally:
        await shared.close()


def test_records_that_wait_go_into_one_frame_with_one_sync(tmp_path: Path) -> None:
    syncs, gate, blocked = [0], threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        syncs[0] += 1
        if syncs[0] == 3:  # the first is the file's, the second the seal's
            blocked.set()
            gate.wait(20)
        os.fdatasync(fd)

    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL, sync=sync)
        log, other = shared.of(1), shared.of(2)
        await log.seal(1)
        first = log.append(record(log))
        await asyncio.to_thread(blocked.wait)
        rest = [(log if number % 2 else other).append(record(log if number % 2 else other)) for number in range(100)]
        await asyncio.sleep(0)  # a disk that hangs keeps nobody else waiting
        assert not first.done() and not any(future.done() for future in rest)  # type: ignore[attr-defined]
        assert await positions(log) == []
        gate.set()
        await asyncio.gather(first, *rest)
        assert syncs[0] == 4
        assert await positions(log) == list(range(1, 52)) and await positions(other) == list(range(1, 51))
        await shared.close()

    run(work)


def test_the_last_frame_cut_at_any_byte_is_dropped_and_all_before_is_there(tmp_path: Path) -> None:
    path, at = written(tmp_path, 4)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    cuts = range(at[-1], end) if some(1000) == 1000 else range(at[-1], end, 13)
    for cut in cuts:
        groups, next_at, torn = decode_file(whole[:cut].ljust(len(whole), b"\0"), "here", True)  # the rest of it is zeros
        assert len(groups) == len(at) - 1 and next_at == at[-1] and torn == any(whole[at[-1] : cut]), cut
        groups, next_at, _ = decode_file(whole[:cut], "here", True)  # the file ends there
        assert len(groups) == len(at) - 1 and next_at in (at[-1], padded(len(whole[: at[-1]]))), cut
        if any(whole[at[-1] : cut]):
            with pytest.raises(DamageError, match=f"here is damaged at byte {at[-1]}"):  # in any other file it is no torn end
                decode_file(whole[:cut].ljust(len(whole), b"\0"), "here", False)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("kept", [1, 9, 300, -1])
def test_a_torn_end_is_wiped_before_anything_is_appended(tmp_path: Path, kept: int, zeros: bool) -> None:
    path, at = written(tmp_path)
    whole = path.read_bytes()
    cut = at[-1] + kept if kept > 0 else len(whole.rstrip(b"\0")) - 1
    path.write_bytes(whole[:cut].ljust(len(whole) if zeros else 0, b"\0"))

    async def work() -> None:
        for number in range(3):
            shared = SharedDiskLog(tmp_path, SMALL)
            log = shared.of(1)
            assert await log.seal(2 + number) == 2 + number
            assert await positions(log) == list(range(1, 3 + number))
            await log.append(record(log, 20))  # shorter than what was torn
            await shared.close()

    run(work)
    assert run(lambda: found(tmp_path)) == [1, 2, 3, 4, 5]


def test_without_wiping_the_rest_of_a_torn_end_would_be_damage(tmp_path: Path) -> None:
    """The negative twin: a short frame over a long torn one leaves the torn one's end behind it."""
    path, at = written(tmp_path)
    whole = bytearray(path.read_bytes())
    end = len(bytes(whole).rstrip(b"\0"))
    whole[end - 1] = 0
    short = encode_group([WalEntry(RECORD, 1, 1, 3, 3, b"x")])
    whole[at[-1] : at[-1] + len(short)] = short
    whole[at[-1] + len(short) : at[-1] + SECTOR] = bytes(SECTOR - len(short))
    with pytest.raises(DamageError):
        decode_file(bytes(whole), "here", True)


def test_a_changed_byte_anywhere_else_is_damage_with_file_and_place(tmp_path: Path) -> None:
    path, at = written(tmp_path, 3, 700)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    places = [place for place in range(end) if whole[place] or place < 40]
    for place in places if some(1000) == 1000 else places[::11]:
        frame = max(start for start in at if start <= place)
        inside = decode_file(whole, "here", True)[0][at.index(frame)]
        if place >= inside.at + inside.size:
            continue  # zeros between frames
        for bit in (0, 7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            with pytest.raises(DamageError, match=f"^here is damaged at byte {frame}:") as caught:
                decode_file(bytes(changed), "here", True)
            assert caught.value.object == "here"
    changed = bytearray(whole)
    changed[at[1] + 20] ^= 4
    path.write_bytes(changed)
    with pytest.raises(DamageError, match=f"{path} is damaged at byte {at[1]}"):
        SharedDiskLog(tmp_path, SMALL)
    path.write_bytes(whole)
    assert run(lambda: found(tmp_path)) == [1, 2, 3]  # a failed open has let go of the folder


def test_damage_that_comes_later_is_found_by_whoever_reads(tmp_path: Path) -> None:
    path, at = written(tmp_path)

    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL)
        with open(path, "r+b") as handle:
            handle.seek(at[3] + 30)
            handle.write(b"?")
        log, seen = shared.of(1), []  # type: tuple[DiskLog, list[int]]
        with pytest.raises(DamageError, match=f"{path} is damaged at byte {at[3]}"):
            seen = await positions(log)
        assert seen == [] and await positions(log, 2) == [3]
        await shared.close()

    run(work)


def test_something_in_the_zeros_behind_is_damage_unless_it_can_be_a_torn_end(tmp_path: Path) -> None:
    path, at = written(tmp_path)
    whole = path.read_bytes()
    end = padded(len(whole.rstrip(b"\0")))
    for place, is_damage in ((end + 3, False), (end + 8, True), (end + 20, True), (end + SECTOR, False), (len(whole) - 1, False)):
        changed = bytearray(whole)
        changed[place] = 7
        if is_damage:
            with pytest.raises(DamageError, match=f"byte {end}"):
                decode_file(bytes(changed), "here", True)
        else:
            groups, next_at, torn = decode_file(bytes(changed), "here", True)
            assert len(groups) == len(at) and next_at == end and torn


@given(lost=st.sets(st.integers(0, 5), min_size=1))
@settings(deadline=None, database=None, max_examples=some(60))
def test_a_power_cut_that_loses_any_sectors_of_the_last_frame_drops_it(lost: set[int]) -> None:
    first = encode_group([WalEntry(STAND, 1, 1, 0, 0)])
    last = encode_group([WalEntry(RECORD, 1, 1, 1, 1, bytes(range(1, 256)) * 11)])
    assert padded(len(last)) == 6 * SECTOR
    data = bytearray(first.ljust(SECTOR, b"\0") + last.ljust(6 * SECTOR, b"\0") + bytes(4 * SECTOR))
    for sector in lost:
        data[SECTOR * (1 + sector) : SECTOR * (2 + sector)] = bytes(SECTOR)
    groups, at, torn = decode_file(bytes(data), "here", True)
    assert len(groups) == 1 and at == SECTOR and torn == (len(lost) < 6)
    behind = encode_group([WalEntry(RECORD, 1, 1, 2, 2, b"x")])  # something behind it: then it was confirmed
    data[7 * SECTOR : 7 * SECTOR + len(behind)] = behind
    with pytest.raises(DamageError, match=f"byte {SECTOR}"):
        decode_file(bytes(data), "here", True)


def test_a_frame_never_shares_a_sector(tmp_path: Path) -> None:
    _, at = written(tmp_path, 20, 1)
    assert all(place % SECTOR == 0 for place in at) and len(at) == 22


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, 4096)
        log = shared.of(1)
        for _ in range(12):
            await log.append(record(log, 1500))
        await shared.close()

    run(work)
    (tmp_path / "wal" / f"{2:012d}.log").unlink()
    with pytest.raises(DamageError, match=r"0002\.log is missing"):
        SharedDiskLog(tmp_path, 4096)


def test_a_file_of_another_log_is_a_hole(tmp_path: Path) -> None:
    """Files that read well, and do not fit together."""

    async def work(folder: Path, count: int) -> None:
        shared = SharedDiskLog(folder, 4096)
        log = shared.of(1)
        for _ in range(count):
            await log.append(record(log, 1500))
        await shared.close()

    run(lambda: work(tmp_path / "one", 9))
    run(lambda: work(tmp_path / "two", 3))
    (tmp_path / "two" / "wal" / f"{1:012d}.log").rename(tmp_path / "one" / "wal" / f"{1:012d}.log")
    with_hole = tmp_path / "one" / "wal" / f"{2:012d}.log"
    data = bytearray(with_hole.read_bytes())
    groups = decode_file(bytes(data), "here", False)[0]
    stand = encode_group([entry._replace(last=entry.last + 1) for entry in groups[0].entries])
    data[: len(stand)] = stand
    with_hole.write_bytes(data)
    with pytest.raises(DamageError, match=f"{with_hole} is damaged at byte 0: partition 1 has a hole"):
        SharedDiskLog(tmp_path / "one", 4096)


@pytest.mark.parametrize("where", ["write", "sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_ends_the_log_for_good_and_no_sync_is_tried_again(tmp_path: Path, where: str, error: int) -> None:
    calls = {"write": 0, "sync": 0}
    armed = [False]

    def write(fd: int, data: bytes, offset: int) -> None:
        calls["write"] += 1
        if armed[0] and where == "write":
            write_all(fd, data[: len(data) // 2], offset)
            raise OSError(error, os.strerror(error))
        write_all(fd, data, offset)

    def sync(fd: int) -> None:
        calls["sync"] += 1
        if armed[0] and where == "sync":
            raise OSError(error, os.strerror(error))
        os.fdatasync(fd)

    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL, write=write, sync=sync)
        log = shared.of(1)
        await log.seal(1)
        await log.append(record(log))
        assert shared.failed is None
        armed[0] = True
        before = dict(calls)
        with pytest.raises(UnknownOutcome, match=os.strerror(error)):
            await log.append(record(log))
        armed[0] = False
        assert shared.failed is not None and os.strerror(error) in shared.failed
        for _ in range(3):
            with pytest.raises(NotReady, match=os.strerror(error)):
                await log.append(record(log))
        retry = record(log)
        retry.first = retry.last = 2
        with pytest.raises(NotReady):
            await log.append(retry)
        with pytest.raises(NotReady):
            await log.seal(5)
        assert calls["write"] == before["write"] + 1 and calls["sync"] == before["sync"] + (where == "sync")
        assert await positions(log) == [1]
        await shared.close()

    run(work)
    assert run(lambda: found(tmp_path)) == ([1] if where == "write" else [1, 2])  # for all readers or for none: the file says


def test_what_waits_when_the_disk_fails_is_told_so(tmp_path: Path) -> None:
    gate, armed, blocked = threading.Event(), [False], threading.Event()

    def sync(fd: int) -> None:
        if armed[0]:
            blocked.set()
            gate.wait(20)
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(fd)

    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL, sync=sync)
        log = shared.of(1)
        await log.seal(1)
        armed[0] = True
        first = log.append(record(log))
        await asyncio.to_thread(blocked.wait)
        waiting = [log.append(record(log)) for _ in range(5)]
        gate.set()
        outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [UnknownOutcome] * 6
        await shared.close()

    run(work)


def test_no_room_for_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, 4096)
        log = shared.of(1)
        await log.append(record(log, 1500))

        def full(fd: int, offset: int, length: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(UnknownOutcome, match="No space left"):
            await log.append(record(log, 3000))
        assert shared.failed is not None and "No space left" in shared.failed
        await shared.close()

    run(work)
    monkeypatch.undo()
    assert run(lambda: found(tmp_path)) == [1]
    assert not list((tmp_path / "wal").glob(".new*"))


def test_a_new_file_that_was_not_finished_is_nobodys(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    (path.parent / ".new-2").write_bytes(b"half")
    assert run(lambda: found(tmp_path)) == [1, 2, 3]
    assert not (path.parent / ".new-2").exists()


def test_what_cannot_be_synced_is_not_opened(tmp_path: Path) -> None:
    """A frame that an earlier process wrote and did not sync counts only after a sync."""
    written(tmp_path)

    def sync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(StorageError, match="Input/output error"):
        SharedDiskLog(tmp_path, SMALL, sync=sync)


def test_a_second_open_of_a_folder_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        shared = disk().open(tmp_path)
        with pytest.raises(StorageError, match=f"{tmp_path} is in use by another node"):
            disk().open(tmp_path)
        await shared.close()
        await disk().open(tmp_path).close()

    run(work)


def test_terms_positions_and_trims_outlive_files(tmp_path: Path) -> None:
    async def work() -> None:
        for number in range(3):
            shared = SharedDiskLog(tmp_path, 4096)
            log, idle = shared.of(1), shared.of(2)
            if number:
                with pytest.raises(Fenced, match="sealed in term 7"):
                    await idle.seal(6)
                assert await idle.seal(7) == 1
                with pytest.raises(DamageError, match="trimmed"):
                    await positions(log, log.trimmed - 1)
            else:
                await idle.seal(7)
                await idle.append(record(idle))
            for _ in range(30):
                await log.append(record(log, 1000))
            await idle.trim(1)
            await log.trim(log.last - 1)
            assert len(list((tmp_path / "wal").glob("*.log"))) <= 2
            assert await positions(log, log.last - 1) == [log.last]
            assert await positions(idle, 1) == []
            assert log.last == 30 * (number + 1)
            await shared.close()

    run(work)


def test_old_files_name_who_keeps_them_until_that_is_trimmed_or_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, 4096)
        lazy, gone, busy = (shared.of(partition) for partition in (1, 2, 3))
        await lazy.append(record(lazy))
        await gone.append(record(gone))
        assert shared.pressing() == []
        for _ in range(30):
            await busy.append(record(busy, 1500))
        assert shared.pressing() == [1, 2, 3]
        await busy.trim(busy.last)
        assert shared.pressing() == [1, 2]
        assert (tmp_path / "wal" / f"{1:012d}.log").exists()
        shared.forget(2)
        assert shared.pressing() == [1]
        with pytest.raises(Fenced, match="removed"):
            await gone.append(record(gone, term=1))
        await lazy.trim(1)
        assert shared.pressing() == [] and len(list((tmp_path / "wal").glob("*.log"))) == 1
        again = shared.of(2)
        assert await again.seal(1) == 0
        await again.append(record(again))
        await shared.close()
        shared = SharedDiskLog(tmp_path, 4096)
        assert await positions(shared.of(2)) == [1] and shared.of(1).last == 1 and shared.of(3).last == 30
        await shared.close()

    run(work)


def test_what_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL)
        log = shared.of(1)
        await log.append(record(log))
        shared.forget(1)
        shared.forget(1)
        await shared.close()
        shared = SharedDiskLog(tmp_path, SMALL)
        assert await shared.of(1).seal(1) == 0 and await positions(shared.of(1)) == []
        await shared.close()

    run(work)


def test_a_record_larger_than_a_file_gets_a_larger_file(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, 4096)
        log = shared.of(1)
        for size in (10, 100_000, 10, 100_000):
            await log.append(record(log, size))
        await shared.close()

    run(work)
    assert run(lambda: found(tmp_path)) == [1, 2, 3, 4]


def test_positions_follow_each_other(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path, SMALL)
        log = shared.of(1)
        await log.append(record(log))
        wrong = record(log)
        wrong.first += 1
        wrong.last += 1
        with pytest.raises(ValueError, match="do not follow"):
            await log.append(wrong)
        await log.append(record(log))
        await shared.close()

    run(work)


def test_many_partitions_share_one_thread_and_few_files(tmp_path: Path) -> None:
    async def work() -> None:
        shared = SharedDiskLog(tmp_path)
        files = len(os.listdir("/proc/self/fd"))
        logs = [shared.of(partition) for partition in range(1000)]
        tasks = len(asyncio.all_tasks())
        await asyncio.gather(*(log.seal(1) for log in logs))
        await asyncio.gather(*(log.append(record(log)) for log in logs))
        assert [thread.name for thread in threading.enumerate()].count(f"log {tmp_path.name}") == 1
        assert len(os.listdir("/proc/self/fd")) <= files and len(asyncio.all_tasks()) == tasks
        await shared.close()

    run(work)


@pytest.mark.parametrize("seed", range(some(30)))
def test_random_work_cut_at_a_random_write_and_opened_again_has_all_that_was_confirmed(tmp_path: Path, seed: int) -> None:
    """Random appends, seals, trims and removals over small files; at some write the power goes, and a part of its sectors stays."""
    chance = random.Random(seed)
    model: dict[int, list[int]] = {partition: [] for partition in range(4)}  # first positions that were confirmed
    trimmed = dict.fromkeys(model, 0)
    unknown: dict[int, set[int]] = {partition: set() for partition in range(4)}
    terms = dict.fromkeys(model, 0)

    async def life() -> None:
        budget = [chance.randint(1, 25)]

        def write(fd: int, data: bytes, offset: int) -> None:
            budget[0] -= 1
            if budget[0] < 0:
                for start in range(0, len(data), SECTOR):
                    if chance.random() < 0.5:
                        write_all(fd, data[start : start + SECTOR], offset + start)
                raise OSError(errno.EIO, "the power is gone")
            write_all(fd, data, offset)

        shared = SharedDiskLog(tmp_path, 4096, write=write if chance.random() < 0.8 else write_all)
        try:
            for partition, firsts in model.items():
                log = shared.of(partition)
                there = await positions(log, max(trimmed[partition], log.trimmed))
                assert [first for first in there if first not in unknown[partition]] == [
                    first for first in firsts if first > max(trimmed[partition], log.trimmed)
                ]
                assert log.term >= terms[partition]
                for first in sorted(unknown[partition] & set(there)):
                    firsts.append(first)
                unknown[partition].clear()
                assert log.last == (firsts[-1] if firsts else 0)
            for _ in range(chance.randint(1, 40)):
                partition = chance.randrange(4)
                log = shared.of(partition)
                what = chance.random()
                if what < 0.7:
                    some_records = []
                    for _ in range(chance.randint(1, 4)):
                        one = record(log, chance.choice([1, 600, 3000]))
                        some_records.append((one.first, log.append(one)))
                    for first, future in some_records:
                        try:
                            await future
                        except (UnknownOutcome, NotReady) as error:
                            if isinstance(error, UnknownOutcome):
                                unknown[partition].add(first)
                        else:
                            model[partition].append(first)
                elif what < 0.8:
                    term = log.term + 1
                    await log.seal(term)
                    terms[partition] = term
                elif what < 0.9:
                    upto = chance.randint(0, log.last)
                    await log.trim(upto)
                    trimmed[partition] = max(trimmed[partition], upto)
                else:
                    assert await positions(log, trimmed[partition]) == [p for p in model[partition] if p > trimmed[partition]]
                if shared.failed:
                    break
        except (UnknownOutcome, NotReady):
            pass
        finally:
            await shared.close()

    for _ in range(6):
        run(life)
