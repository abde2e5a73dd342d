"""The line of a partition, part by part: order kept over a log that does not keep it, inbox bounds, dispatchers, clock, reads."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servicekit import HandLog, call, get, partition, session, table, upsert

from millstream.errors import Busy, Fenced, NotReady, RefusedRequest, ServiceError, Stale, UnknownOutcome
from millstream.service import dispatch
from millstream.service.clock import PartitionClock
from millstream.service.completion_window import CompletionWindow
from millstream.service.messages import Level, Op, Request
from millstream.service.stores.memory import memory


@given(st.permutations(range(1, 40)))
def test_a_window_gives_everything_once_and_in_order_whatever_the_order_of_arrival(order: list[int]) -> None:
    window: CompletionWindow[int] = CompletionWindow(1, 64)
    left = [number for arrived in order for number in window.arrive(arrived, arrived)]
    assert left == list(range(1, 40))
    assert window.arrive(5, 5) == []


@given(st.lists(st.integers(0, 2**40)), st.integers(0, 2**40))
def test_a_clock_never_goes_back_nor_stands_still(walls: list[int], last: int) -> None:
    clock = PartitionClock(last)
    times = [clock.next(wall) for wall in walls]
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


class LooseWindow(CompletionWindow[int]):
    """The twin: whatever arrives leaves at once."""

    def arrive(self, number: int, what: int) -> list[int]:
        self.next = max(self.next, number + 1)
        return [what]


async def out_of_order(seed: int, window: CompletionWindow[int] | None) -> tuple[list[int], list[tuple[bytes, bytes | None]]]:
    """Writes to a log that completes in any order: the positions in the order of their answers, and what is there in the end."""
    log, chosen = HandLog(at_once=False), random.Random(seed)
    one = await partition(log)
    if window is not None:
        one._window = window
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
        answered, there = asyncio.run(out_of_order(seed, None))
        assert answered == list(range(1, 31))
        assert there == [(b"key-0", b"27"), (b"key-1", b"28"), (b"key-2", b"29")]


def test_without_the_window_the_order_is_lost() -> None:
    wrong = 0
    for seed in range(20):
        answered, there = asyncio.run(out_of_order(seed, LooseWindow(1, 64)))
        wrong += answered != list(range(1, 31)) or there != [(b"key-0", b"27"), (b"key-1", b"28"), (b"key-2", b"29")]
    assert wrong


def test_nobody_sees_what_the_log_does_not_have() -> None:
    async def main() -> None:
        log = HandLog(at_once=False)
        one = await partition(log, table(dispatch=dispatch.split()))
        writing = one.write(upsert(b"a", b"1"))
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
        assert (await one.read(get(b"a", session=other))).versions == [0]
        assert not reading.done()
        log.complete(0)
        assert (await reading).values == [b"1"]
        await writing

    asyncio.run(main())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 400)), max_size=40), st.integers(1, 1000), st.booleans())
def test_a_dispatcher_gives_every_request_once_and_keeps_what_it_promises(
    plan: list[tuple[bool, int, int]], budget: int, is_split: bool
) -> None:
    inbox = (dispatch.split() if is_split else dispatch.linear()).make()
    asked = []
    for number, (writes, who, size) in enumerate(plan):
        op = Op.UPSERT if writes else Op.GET
        asked.append(Request(op, [b"%d" % number], session=session(who), size=size))
        inbox.put(asked[-1])
    given = []
    while taken := inbox.take(budget):
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
        await asyncio.sleep(0.01)
        while log.waiting:
            log.complete(0)
            await asyncio.sleep(0)
        assert [(await one_).lsn for one_ in taken] == [1, 2, 3, 4]
        with pytest.raises(Busy):
            one.write(upsert(b"6", b"x" * 2000))

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
        await asyncio.sleep(0.01)
        log.complete(0)
        await done
        lost = [one.write(upsert(b"a", b"2"))]
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
        assert not seeing.done()
        log.complete(0)
        assert (await seeing).values == [b"1"]
        with pytest.raises(RefusedRequest, match="AS_OF"):
            await one.read(get(b"a", level=Level.AS_OF))
        await writing

    asyncio.run(main())


def test_transforms_filter_enrich_and_sanitize_within_the_turn() -> None:
    from millstream.service import drop_fields, enrich, hide_fields, keep_if

    async def main() -> None:
        seen = enrich(lambda key, value, turn: value.replace(b"}", b',"n":%d}' % (turn.version(key) + 1)))
        of = table(
            before=[keep_if(lambda key, value: value != b"{}", "it is empty"), drop_fields("ssn"), seen], after=[hide_fields("inner")]
        )
        one = await partition(of=of)
        await one.write(upsert(b"a", b'{"name":"x","ssn":1,"inner":2}'))
        assert (await one.read(get(b"a"))).values == [b'{"name":"x","n":1}']
        assert one.store.get(b"Ka")[8:] == b'{"name":"x","inner":2,"n":1}'
        with pytest.raises(RefusedRequest, match="b'b': it is empty"):
            await one.write(upsert(b"b", b"{}"))
        with pytest.raises(RefusedRequest, match="no JSON object"):
            await one.write(upsert(b"b", b"text"))
        assert (await one.read(get(b"b"))).versions == [0]

    asyncio.run(main())


def test_a_function_that_raises_is_named_and_changes_nothing() -> None:
    def half(turn: object, key: bytes, argument: bytes) -> bytes:
        turn.put(key, b"1")  # type: ignore[attr-defined]
        raise ValueError("no more")

    async def main() -> None:
        from millstream.service import Table

        one = await partition(of=Table("t", functions=[half]))
        with pytest.raises(RefusedRequest, match=r"function 'half' of key b'a' raised ValueError: no more"):
            await one.write(call("half", b"a"))
        assert (await one.read(get(b"a"))).versions == [0]
        with pytest.raises(RefusedRequest, match="no function 'other'; it has: half"):
            await one.write(call("other", b"a"))

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


def test_a_store_of_counters_refuses_other_values_in_the_turn_and_goes_on() -> None:
    from millstream.service import stores

    async def main() -> None:
        log = HandLog()
        one = await partition(log, table(store=stores.counters()), store=stores.counters().open(None).of(1))  # type: ignore[arg-type]
        with pytest.raises(RefusedRequest, match="b'a'"):
            await one.write(upsert(b"a", b"text", session=session(1), seq=1))
        with pytest.raises(RefusedRequest):
            await one.write(call("swap", b"a", b"text", session=session(1), seq=2))
        with pytest.raises(RefusedRequest):
            await one.write(Request(Op.STAGE, [b"a"], [b"text"], txn="p|1|1|x", size=5))
        assert (await one.write(call("add", b"a", b"7", session=session(1), seq=3))).result == b"7"
        assert not any(entry == b"Ka" for record in log.records[:-1] for entry, _ in record.changes)

    asyncio.run(main())


def test_a_function_that_keeps_the_node_waiting_is_named(caplog: pytest.LogCaptureFixture) -> None:
    import time

    from millstream.service import Table

    def slow(turn: object, key: bytes, argument: bytes) -> bytes:
        time.sleep(0.15)
        return b""

    async def main() -> None:
        one = await partition(of=Table("t", functions=[slow]))
        await one.write(call("slow", b"a"))
        await one.write(call("slow", b"a"))

    asyncio.run(main())
    assert [record.message for record in caplog.records if "functions: slow" in record.message and "of table 't'" in record.message]
    assert len(caplog.records) == 1


def test_a_value_is_put_only_where_there_is_none() -> None:
    from millstream.service import Table, functions

    async def main() -> None:
        one = await partition(of=Table("t", functions=[functions.put_if_absent]))
        assert (await one.write(call("put_if_absent", b"a", b"1"))).result == b"1"
        assert (await one.write(call("put_if_absent", b"a", b"2"))).result == b"1"
        assert (await one.read(get(b"a"))).values == [b"1"]

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [2, 0])
def test_one_call_more_than_a_plane_takes_at_once_is_refused_and_without_a_limit_none_is(at_once: int) -> None:
    import msgspec

    from millstream.service.channel import Channel
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


def test_a_bounded_read_of_a_shared_log_asks_nobody_and_says_how_old_it_may_be() -> None:
    async def main() -> None:
        log = HandLog()
        log.alone = False
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        assert (await one.read(get(b"a", level=Level.BOUNDED))).values == [b"1"] and log.confirmed == 0
        one._confirmed_at -= 5
        assert one.age() >= 5000
        await one.read(get(b"a"))  # linearizable: confirmed, and young again
        assert log.confirmed == 1 and one.age() < 5000

    asyncio.run(main())


def test_changes_that_nobody_watches_any_more_are_let_go() -> None:
    from millstream.service.watchers import PATIENCE, Watchers

    async def main() -> None:
        watchers = Watchers()
        one, _ = watchers.join(lambda key: True, 0, None)
        watchers.tell(1, [[(b"Ka", bytes(8) + b"1")]])
        watchers.leave(one)
        watchers.tell(2, [[(b"Ka", bytes(8) + b"2")]])
        assert watchers.join(lambda key: True, 2, 1)[1]  # goes on where it was
        watchers._all.clear()
        watchers._left -= PATIENCE + 1
        watchers.tell(3, [[(b"Ka", bytes(8) + b"3")]])
        assert not watchers._kept and not watchers.join(lambda key: True, 3, 1)[1]

    asyncio.run(main())
