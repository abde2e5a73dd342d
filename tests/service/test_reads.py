"""Reads of a partition: what each level promises, what a read waits for, and how ownership is confirmed."""

from __future__ import annotations

import asyncio

import pytest
from servicekit import HandLog, SharedHandLog, get, partition, session, settle, soon, table, upsert

from millstream.errors import (
    NotReady,
    RefusedRequest,
    ServiceError,
    Stale,
    StorageError,
)
from millstream.service import dispatch
from millstream.service.messages import Level


def test_nobody_sees_what_the_log_does_not_have() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.split()))
        writing = one.write(upsert(b"a", b"1"))
        await settle()
        assert (await one.read(get(b"a"))).versions == [0]
        assert not writing.done()
        log.complete(0)
        assert (await writing).lsn == 1
        assert (await one.read(get(b"a"))).values == [b"1"]

    asyncio.run(main())


def test_a_linear_inbox_has_a_read_wait_for_the_writes_before_it() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log)
        writing = one.write(upsert(b"a", b"1"))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(one.read(get(b"a")))
        await settle()
        assert not reading.done()
        log.complete(0)
        assert (await reading).values == [b"1"]
        assert (await writing).lsn == 1

    asyncio.run(main())


def test_a_split_inbox_has_a_sessions_read_stay_behind_its_writes_and_only_its() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.split()))
        mine, other = session(1), session(2)
        writing = one.write(upsert(b"a", b"1", session=mine, seq=1))
        reading = asyncio.ensure_future(one.read(get(b"a", session=mine)))
        await settle()
        assert (await one.read(get(b"a", session=other))).versions == [0]
        assert not reading.done()
        log.complete(0)
        assert (await reading).values == [b"1"]
        await writing

    asyncio.run(main())


def test_levels_ask_for_what_they_say() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.split()))
        writing = one.write(upsert(b"a", b"1", session=session(1), seq=1))
        await asyncio.sleep(0)
        assert (await one.read(get(b"a", level=Level.BOUNDED))).versions == [0]
        with pytest.raises(Stale):
            await one.read(get(b"a", level=Level.SESSION, seen=7))
        seeing = asyncio.ensure_future(one.read(get(b"a", level=Level.SESSION, seen=1)))
        await settle()
        assert not seeing.done()
        log.complete(0)
        assert (await seeing).values == [b"1"]
        with pytest.raises(RefusedRequest, match="AS_OF"):
            await one.read(get(b"a", level=Level.AS_OF))
        await writing

    asyncio.run(main())


def test_an_owner_that_was_replaced_answers_neither_writes_nor_reads() -> None:
    async def main() -> None:
        log = HandLog()
        log.alone = False
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        assert (await one.read(get(b"a"))).values == [b"1"]
        await log.seal(2)
        with pytest.raises(ServiceError):
            await one.read(get(b"a"))
        with pytest.raises(ServiceError):
            await one.write(upsert(b"a", b"2"))
        assert log.records[-1].last == 1

    asyncio.run(main())


def test_without_confirmation_a_replaced_owner_would_answer_from_the_past() -> None:
    async def main() -> None:
        log = HandLog()  # alone: the twin, which confirms nothing
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        await log.seal(2)
        assert (await one.read(get(b"a"))).values == [b"1"]

    asyncio.run(main())


def test_many_reads_share_one_confirmation() -> None:
    async def main() -> None:
        log = HandLog()
        log.alone = False
        one = await partition(log)
        await asyncio.gather(*(one.read(get(b"a")) for _ in range(50)))
        assert log.confirmed <= 2

    asyncio.run(main())


def test_a_bounded_read_of_a_shared_log_asks_nobody_and_says_how_old_it_may_be() -> None:
    async def main() -> None:
        log = HandLog()
        log.alone = False
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        assert (await one.read(get(b"a", level=Level.BOUNDED))).values == [b"1"] and log.confirmed == 0
        await asyncio.sleep(0.5)
        old = one.age()
        assert old >= 500
        await one.read(get(b"a"))  # linearizable: confirmed, and young again
        assert log.confirmed == 1 and one.age() < old

    asyncio.run(main())


def test_a_read_that_cannot_be_confirmed_is_refused_and_the_partition_goes_on() -> None:
    async def main() -> None:
        log = SharedHandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        log.broken = StorageError("the storage cannot be reached")
        for done in await asyncio.wait_for(asyncio.gather(*(one.read(get(b"a")) for _ in range(3)), return_exceptions=True), 10):
            assert isinstance(done, NotReady) and "cannot be reached" in str(done)
        log.broken = None
        assert (await one.read(get(b"a"))).values == [b"1"]
        await one.write(upsert(b"a", b"2"))

    asyncio.run(main())


def test_a_read_that_waits_is_not_answered_from_a_store_that_was_given_away() -> None:
    async def main() -> None:
        log = SharedHandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        reads = [asyncio.ensure_future(one.read(get(b"a")))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reads.append(asyncio.ensure_future(one.read(get(b"a"))))
        await asyncio.sleep(0)
        await one.leave()
        one.store.replace([], 0)
        for read in reads:
            found = await soon(read)
            assert isinstance(found, ServiceError) or found.values == [b"1"], found

    asyncio.run(main())
