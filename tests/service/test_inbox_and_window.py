"""Inbox, dispatchers, completion window, clock and limits: order and bounds of a partition."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servicekit import HandLog, get, partition, session, settle, table, upsert

from millstream.errors import (
    Busy,
)
from millstream.service import dispatch
from millstream.service.channel import Channel
from millstream.service.messages import Op, Request
from millstream.service.partition import Partition, TurnUnderWay
from millstream.service.proto import service_pb2 as pb
from millstream.service.state_machine import next_time


@given(st.permutations(range(1, 40)))
def test_a_session_is_done_once_and_in_order_whatever_the_order_of_arrival(order: list[int]) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        writes = {seq: one.write(upsert(b"k", b"%d" % seq, session=session(), seq=seq)) for seq in order}
        assert [(await writes[seq]).lsn for seq in sorted(order)] == list(range(1, 40))
        assert (await one.write(upsert(b"k", b"", session=session(), seq=5))).again
        assert len(one.early) == one.early.count == 0

    asyncio.run(main())


@given(st.lists(st.integers(0, 2**40)), st.integers(0, 2**40))
def test_a_clock_never_goes_back_nor_stands_still(walls: list[int], last: int) -> None:
    times = list(accumulate(walls, next_time, initial=last))[1:]
    assert all(later > earlier for earlier, later in zip([last, *times], times, strict=False))
    assert all(time >= wall for time, wall in zip(times, walls, strict=True))


def test_the_clock_goes_on_after_a_restart_when_the_wall_clock_was_put_back() -> None:
    async def main() -> None:
        log = HandLog()
        first = await partition(log, wall=lambda: 1_000_000)
        await first.write(upsert(b"a", b"1"))
        again = await partition(log, wall=lambda: 5)
        await again.write(upsert(b"a", b"2"))
        assert log.records[-1].time > log.records[0].time >= 1_000_000

    asyncio.run(main())


def leaving_at_once(one: Partition) -> list[TurnUnderWay]:
    """The twin: whatever is durable leaves at once."""
    leaving = [turn for turn in one._under_way if turn.is_durable]
    for turn in leaving:
        one._under_way.remove(turn)
    return leaving


async def out_of_order(seed: int, twin: bool) -> tuple[list[int], list[tuple[bytes, bytes | None]]]:
    """Writes to a log that completes in any order: the positions in the order of their answers, and what is there in the end."""
    log, chosen = HandLog(at_once=False), random.Random(seed)
    one = await partition(log)
    if twin:
        one._leaving = lambda: leaving_at_once(one)  # type: ignore[method-assign]
    answered: list[int] = []

    async def write(number: int) -> None:
        answered.append((await one.write(upsert(b"key-%d" % (number % 3), b"%d" % number))).lsn)

    tasks = []
    for number in range(30):
        tasks.append(asyncio.ensure_future(write(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while log.waiting and chosen.random() < 0.3:
            log.complete(chosen.randrange(len(log.waiting)))
            await asyncio.sleep(0)
    while log.waiting:
        log.complete(chosen.randrange(len(log.waiting)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return answered, [(key, one.machine.read(get(key)).values[0]) for key in (b"key-0", b"key-1", b"key-2")]


def test_a_log_that_completes_out_of_order_changes_neither_the_order_of_answers_nor_what_is_there() -> None:
    for seed in range(20):
        answered, there = asyncio.run(out_of_order(seed, False))
        assert answered == list(range(1, 31))
        assert there == [(b"key-0", b"27"), (b"key-1", b"28"), (b"key-2", b"29")]


def test_without_the_wait_the_order_is_lost() -> None:
    wrong = 0
    for seed in range(20):
        answered, there = asyncio.run(out_of_order(seed, True))
        wrong += answered != list(range(1, 31)) or there != [(b"key-0", b"27"), (b"key-1", b"28"), (b"key-2", b"29")]
    assert wrong


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 400)), max_size=40), st.integers(1, 1000), st.booleans())
def test_a_dispatcher_gives_every_request_once_and_keeps_what_it_promises(
    plan: list[tuple[bool, int, int]], budget: int, is_split: bool
) -> None:
    inbox = (dispatch.split() if is_split else dispatch.linear()).make()
    asked = []
    for number, (writes, who, size) in enumerate(plan):
        op = Op.UPSERT if writes else Op.GET
        asked.append(Request(op, [b"%d" % number], session=session(who), size=size))
        inbox.put(dispatch.PendingCall(asked[-1], None))  # type: ignore[arg-type]
    given = []
    while calls := inbox.take(budget):
        taken = [pending.request for pending in calls]
        assert len(taken) == 1 or sum(request.size for request in taken) <= budget + max(request.size for request in taken)
        given += taken
    assert sorted(request.keys for request in given) == sorted(request.keys for request in asked)
    assert len(inbox) == 0
    place = {request.keys[0]: at for at, request in enumerate(given)}
    if not is_split:
        assert given == asked
    for earlier in range(len(asked)):
        for later in range(earlier + 1, len(asked)):
            one, two = asked[earlier], asked[later]
            if one.writes and (two.writes or one.session == two.session):
                assert place[one.keys[0]] < place[two.keys[0]]


def test_a_full_inbox_says_when_to_come_back_and_forgets_nothing() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.linear(requests=4, room=1000)))
        taken = [one.write(upsert(b"%d" % number, b"x")) for number in range(4)]
        with pytest.raises(Busy) as busy:
            one.write(upsert(b"5", b"x"))
        assert busy.value.retry_after > 0
        await settle()
        while log.waiting:
            log.complete(0)
            await asyncio.sleep(0)
        assert [(await one_).lsn for one_ in taken] == [1, 2, 3, 4]
        with pytest.raises(Busy):
            one.write(upsert(b"6", b"x" * 2000))

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [2, 0])
def test_one_call_more_than_a_plane_takes_at_once_is_refused_and_without_a_limit_none_is(at_once: int) -> None:
    import msgspec

    from millstream.service.grpc_servers import DataPlane
    from millstream.service.limits import DATA
    from millstream.service.proto import service_pb2 as pb

    class Hangs:
        def __init__(self) -> None:
            self.go = asyncio.Event()
            self.here = 0

        def tables(self) -> list[str]:
            return []

        async def get(self, request: pb.GetRequest) -> pb.GetReply:
            self.here += 1
            await self.go.wait()
            return pb.GetReply()

        upsert = remove = call = decide = scan = watch = route = get

    async def main() -> None:
        backend = Hangs()
        plane = DataPlane(backend, "127.0.0.1:0", limits=msgspec.structs.replace(DATA, at_once=at_once))  # type: ignore[arg-type]
        await plane.start()
        channel = Channel(plane.address)
        calls = [asyncio.ensure_future(channel.ask("Get", pb.GetRequest(), 20)) for _ in range(3)]
        while backend.here < (at_once or 3):
            await asyncio.sleep(0.005)
        if at_once:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert [type(one.exception()) for one in done] == [Busy]
        backend.go.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(one, Busy) for one in outcomes].count(True) == (1 if at_once else 0)
        await channel.close()
        await plane.stop()

    asyncio.run(main())
