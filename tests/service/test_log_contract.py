"""One contract for all logs (L1 to L7), and twins that break a rule each: the check must say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from effort import some
from millstream.errors import Fenced
from millstream.service.logs.disk import DiskLog, SharedDiskLog, disk
from millstream.service.logs.none import none
from millstream.service.logs.objects import ObjectsLog, SharedObjectsLog, objects
from millstream.service.messages import LogRecord
from millstream.state.memory_storage import MemoryStorage
from s3server import S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    found = S3Server()
    yield found
    found.stop()


def check(open_log: Callable[[], Any], seeds: int, shared: bool = False, steps: int = 40) -> None:
    asyncio.run(ms.testing.check_log(open_log, seeds=range(some(seeds)), shared=shared, steps=steps))


def test_disk(tmp_path: Path) -> None:
    check(lambda: disk(1 << 14).open(tmp_path), 12)


@pytest.mark.slow
def test_objects_in_a_folder(tmp_path: Path) -> None:
    check(lambda: objects(str(tmp_path)).open(tmp_path), 6, shared=True)


@pytest.mark.slow
def test_objects_in_memory() -> None:
    storage = MemoryStorage()
    check(lambda: SharedObjectsLog(storage), 5, shared=True, steps=60)


@pytest.mark.slow
def test_objects_in_s3(server: S3Server, tmp_path: Path) -> None:
    url = server.url()
    asyncio.run(ms.testing.check_log(lambda: objects(url, server.options).open(tmp_path), seeds=range(2), shared=True, steps=16))


def test_none_keeps_nothing_but_fences(tmp_path: Path) -> None:
    async def run() -> None:
        shared = none().open(tmp_path)
        log = shared.of(1)
        assert await log.seal(2) == 0
        await log.append(LogRecord(1, 2, 1, 1, 0))
        await log.confirm(2)
        assert [record async for record in log.read(0)] == []
        with pytest.raises(Fenced, match="term 2"):
            await log.append(LogRecord(1, 1, 2, 2, 0))
        with pytest.raises(Fenced):
            await log.seal(1)
        with pytest.raises(Fenced):
            await log.confirm(1)
        with pytest.raises(ms.errors.StorageError, match="in use by another node"):
            none().open(tmp_path)
        await shared.close()
        await none().open(tmp_path).close()

    asyncio.run(run())
    assert not none().keeps


class NeverFences(DiskLog):
    def append(self, record: LogRecord) -> Awaitable[None]:
        term, record.term = record.term, max(record.term, self.term)
        try:
            return super().append(record)
        finally:
            record.term = term


class LetsOldTermsConfirm(DiskLog):
    async def confirm(self, term: int) -> None:
        return None


class ForgetsTheEnd(DiskLog):
    async def seal(self, term: int) -> int:
        return max(0, await super().seal(term) - 1)


class SkipsARecord(DiskLog):
    async def read(self, after: int) -> AsyncIterator[LogRecord]:
        number = 0
        async for record in super().read(after):
            number += 1
            if number != 3:
                yield record


class ConfirmsAtOnce(DiskLog):
    """The next open finds nothing: what was confirmed had not been written."""

    def append(self, record: LogRecord) -> Awaitable[None]:
        if record.term < self.term:
            return super().append(record)
        self.next = record.last + 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


@pytest.mark.parametrize(
    ("log", "rule"),
    [(NeverFences, "L1"), (LetsOldTermsConfirm, "L6"), (ForgetsTheEnd, "L5"), (SkipsARecord, "L2, L4"), (ConfirmsAtOnce, "L[25]")],
)
def test_a_disk_log_that_breaks_a_rule_is_found(log: type[DiskLog], rule: str, tmp_path: Path) -> None:
    class Shared(SharedDiskLog):
        def of(self, partition: int) -> DiskLog:
            found = self._logs.get(partition)
            if found is None:
                found = self._logs[partition] = log(self, partition)
            return found

    with pytest.raises(AssertionError, match=f"{rule} does not hold"):
        check(lambda: Shared(tmp_path, 1 << 14), 10)


class DoesNotLook(ObjectsLog):
    """Without the look at the next slot an old owner goes on answering reads."""

    async def _is_taken(self, number: int) -> bool:
        return False


class SealsNothing(ObjectsLog):
    """Who takes over without a seal cannot keep the old owner out."""

    async def seal(self, term: int) -> int:
        self._term = term
        walk = await self._catch_up()
        self._position, self._stopped = walk.last + 1, None
        return walk.last


@pytest.mark.parametrize(("log", "rule"), [(DoesNotLook, "L6"), (SealsNothing, "L[15-6]")])
def test_a_log_of_objects_that_breaks_a_rule_is_found(log: type[ObjectsLog], rule: str) -> None:
    storage = MemoryStorage()

    class Shared(SharedObjectsLog):
        def of(self, partition: int) -> ObjectsLog:
            found = self._logs.get(partition)
            if found is None:
                found = self._logs[partition] = log(self, partition)
            return found

    with pytest.raises(AssertionError, match=f"{rule} does not hold"):
        check(lambda: Shared(storage), 60, shared=True)
