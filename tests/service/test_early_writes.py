"""Writes of a session that come before their predecessors: they wait, bounded, and are answered or forgotten."""

from __future__ import annotations

import asyncio

import pytest
from servicekit import HandLog, partition, session, soon, upsert

from millstream.errors import (
    Busy,
    RefusedRequest,
    ServiceError,
)
from millstream.service.messages import Op, Request


def test_an_early_write_that_is_sent_again_is_answered() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        first = one.write(upsert(b"b", b"2", session=session(), seq=2))
        first.cancel()  # its sender waits no longer
        await asyncio.sleep(0)
        second = one.write(upsert(b"b", b"2", session=session(), seq=2))
        third = one.write(upsert(b"b", b"2", session=session(), seq=2))
        await soon(one.write(upsert(b"a", b"1", session=session(), seq=1)))
        assert (await soon(third)).lsn == 2
        assert isinstance(await soon(second), ServiceError) or second.result().lsn == 2
        assert one.store.applied == 2

    asyncio.run(main())


def test_early_writes_whose_callers_have_gone_are_forgotten() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        for name in range(3000):
            with pytest.raises(Busy):
                one.write(upsert(b"a", b"x", session=session(name), seq=500))  # far ahead of a write that never comes
        assert len(one.early) == 0, "a session that was refused is remembered for ever"
        for round_ in range(3):
            waiting = [one.write(upsert(b"a", b"x", session=session(name, round_ + 1), seq=2)) for name in range(2000)]
            for write in waiting:
                write.cancel()
            await asyncio.sleep(0)
        assert len(one.early) == one.early.count == 0
        kept = one.write(upsert(b"a", b"2", session=session(9, 99), seq=2))
        first = one.write(upsert(b"a", b"1", session=session(9, 99), seq=1))
        assert [(await first).lsn, (await kept).lsn] == [1, 2]

    asyncio.run(main())


def test_early_writes_are_bounded_in_bytes() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        held = 0
        with pytest.raises(ServiceError):
            for seq in range(2, 129):
                one.write(Request(Op.UPSERT, [b"k"], [b""], size=1 << 20, session=session(), seq=seq))
                held += 1
        assert held <= 64

    asyncio.run(main())


def test_a_session_that_writes_too_far_ahead_is_told_to_come_back() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        with pytest.raises(Busy) as busy:
            one.write(upsert(b"a", b"x", session=session(1), seq=200))
        assert busy.value.retry_after > 0
        with pytest.raises(RefusedRequest, match="16 bytes"):
            one.write(upsert(b"a", b"x", session=b"short", seq=1))

    asyncio.run(main())


def test_a_session_from_the_far_future_does_not_shut_out_all_others() -> None:
    async def main() -> None:
        now = [1_000_000]
        one = await partition(HandLog(), wall=lambda: now[0])
        with pytest.raises(RefusedRequest, match="clock"):
            await one.write(upsert(b"a", b"1", session=b"\xff" * 16, seq=1))

    asyncio.run(main())
