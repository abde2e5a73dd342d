"""Every write counts once, however often it is sent and whatever is lost; and without sessions it does not."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from history import CuttingProxy
from servicekit import session

from millstream.errors import (
    SessionExpired,
)
from millstream.service import Client, Node, Table, functions
from millstream.service.channel import Channel
from millstream.service.proto import service_pb2 as pb


def counters(**options: object) -> Table:
    return Table("t", functions=[functions.add], **options)  # type: ignore[arg-type]


async def add_all(folder: Path, seed: int, workers: int, each: int, with_sessions: bool) -> int:
    """Workers add ones over a way that breaks. Each request is sent until somebody answers, at random several times at once. The sum that is there."""
    node, proxy, chance = Node([counters()], folder=folder), CuttingProxy(seed, 0.06), random.Random(seed)
    await node.start()
    proxy.target = int(node.data.address.rpartition(":")[2])
    way = await proxy.start()

    async def worker(number: int) -> None:
        channel = Channel(way)
        for seq in range(1, each + 1):
            header = pb.Header(table="t", session=session(number, 10**12) if with_sessions else b"", seq=seq if with_sessions else 0)
            asked = pb.CallRequest(header=header, function="add", key=b"sum", argument=b"1")
            replies: list[pb.CallReply] = []
            while not replies:
                copies = [channel.ask("Call", asked, 5) for _ in range(chance.choice([1, 1, 2, 3]))]
                done = await asyncio.gather(*copies, return_exceptions=True)
                replies = [one for one in done if not isinstance(one, BaseException)]
            if with_sessions:
                assert len({(one.at.lsn, one.result) for one in replies}) == 1, "one write, one answer"
                assert sum(not one.again for one in replies) <= 1
        await channel.close()

    try:
        await asyncio.gather(*(worker(number) for number in range(workers)))
        direct = Channel(node.data.address)
        reply = await direct.ask("Get", pb.GetRequest(header=pb.Header(table="t"), keys=[b"sum"]), 5)
        await direct.close()
    finally:
        await proxy.stop()
        await node.stop()
    assert proxy.cuts
    return int.from_bytes(reply.values[0], "big", signed=True)


@pytest.mark.slow
def test_additions_that_are_sent_several_times_over_a_way_that_breaks_count_once(tmp_path: Path) -> None:
    assert asyncio.run(add_all(tmp_path, 3, 4, 40, with_sessions=True)) == 160


@pytest.mark.slow
def test_without_sessions_they_do_not(tmp_path: Path) -> None:
    assert asyncio.run(add_all(tmp_path, 3, 4, 40, with_sessions=False)) > 160


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_additions_count_once(tmp_path: Path, seed: int) -> None:
    assert asyncio.run(add_all(tmp_path, seed, 10, 400, with_sessions=True)) == 4000


@pytest.mark.slow
def test_an_answer_that_was_lost_is_given_again_after_a_restart_and_a_refusal_too(tmp_path: Path) -> None:
    async def ask(seq: int, expect: int | None, key: bytes = b"a") -> object:
        node = Node([counters()], folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)
        asked = pb.UpsertRequest(header=pb.Header(table="t", session=session(1, 10**12), seq=seq), keys=[key], values=[b"x"])
        if expect is not None:
            asked.expect.append(expect)
        try:
            reply = await channel.ask("Upsert", asked, 5)
            return reply.at.lsn, reply.again
        except Exception as error:
            return type(error).__name__, getattr(error, "versions", None)
        finally:
            await channel.close()
            await node.stop()

    assert asyncio.run(ask(1, None)) == (1, False)
    assert asyncio.run(ask(1, None)) == (1, True)
    assert asyncio.run(ask(2, 7)) == ("Conflict", [1])
    assert asyncio.run(ask(2, 7)) == ("Conflict", [1])
    assert asyncio.run(ask(3, 1)) == (3, False)


def test_a_retry_after_the_horizon_is_refused_and_never_done_again(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([counters(horizon="1ms")], folder=tmp_path)
        await node.start()
        channel = Channel(node.data.address)

        async def add(name: int, began: int, seq: int) -> pb.CallReply:
            header = pb.Header(table="t", session=session(name, began), seq=seq)
            return await channel.ask("Call", pb.CallRequest(header=header, function="add", key=b"sum", argument=b"1"), 5)

        try:
            assert (await add(1, 1000, 1)).result == b"1"
            for name in range(2, 6):  # others move the partition's clock on, and the first is forgotten
                await asyncio.sleep(0.005)
                await add(name, 2000 + name, 1)
            with pytest.raises(SessionExpired) as expired:
                await add(1, 1000, 1)
            with pytest.raises(SessionExpired):
                await add(7, expired.value.known_after, 1)  # as old as one that is forgotten: it cannot be told from it
            assert (await add(8, expired.value.known_after + 1, 1)).result == b"6"
        finally:
            await channel.close()
            await node.stop()

    asyncio.run(main())


def test_a_client_begins_a_new_session_by_itself_after_the_horizon(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([counters(horizon="1ms")], folder=tmp_path)
        await node.start()
        try:

            def work() -> list[bytes]:
                with Client(node.data.address, "t") as one, Client(node.data.address, "t") as other:
                    found = []
                    for _ in range(4):
                        found.append(one.call("add", "sum", "1"))
                        for _ in range(3):
                            other.call("add", "other", "1")
                    return found

            assert await asyncio.to_thread(work) == [b"1", b"2", b"3", b"4"]
        finally:
            await node.stop()

    asyncio.run(main())
