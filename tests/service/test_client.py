"""The client: where it finds nodes, how it spreads keys, what cancelled and refused writes leave."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import (
    Busy,
    Conflict,
    NotReady,
    TooLarge,
    Unreachable,
)
from millstream.service import AsyncClient, Client, Node, Table, client_session, functions, logs
from millstream.service.channel import Channel
from millstream.service.node import serving
from millstream.service.proto import service_pb2 as pb


def counters(**options: object) -> Table:
    return Table("t", functions=[functions.add], **options)  # type: ignore[arg-type]


def test_a_write_that_the_node_refuses_does_not_keep_later_ones_waiting(tmp_path: Path) -> None:
    """The node refuses a key that is too long before the partition sees it, so its number is never used."""

    async def main() -> None:
        from millstream.errors import TooLarge
        from millstream.service import AsyncClient

        node = Node([counters()], folder=tmp_path)
        await node.start()
        try:
            async with AsyncClient(node.data.address, "t", timeout="4s") as client:
                await client.put("a", "1")
                with pytest.raises(TooLarge):
                    await client.put("k" * 5000, "1")
                await client.put("a", "2")
                done = await asyncio.gather(client.put("k" * 5000, "1"), client.put("a", "3"), client.put("a", "4"), return_exceptions=True)
                assert isinstance(done[0], TooLarge)
                assert [isinstance(one, int) for one in done[1:]] == [True, True], done
        finally:
            await node.stop()

    asyncio.run(main())


def test_a_number_that_the_node_did_not_count_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "check_message", lambda asked, together: None)  # another client, which does not look at sizes
    with serving(Table("t")) as address, Client(address, "t", timeout="8s") as client:
        client.put("a", "1")
        with pytest.raises(TooLarge):
            client.put(b"k" * 5000, b"")
        with pytest.raises(Conflict):
            client.put("a", "2", expect=7)
        assert client.put("a", "3") == 3


def test_many_large_values_are_found_and_all_keys_of_a_prefix() -> None:
    with serving(Table("t")) as address, Client(address, "t") as client:
        rows = {b"k%05d" % number: bytes(2500) for number in range(2000)}
        client.put_many(rows)
        assert {found.key: found.value for found in client.get_many(list(rows))} == rows
        client.put(b"\xff\xff\xff\1", b"last")
        assert [found.key for found in client.scan(prefix=b"\xff")] == [b"\xff\xff\xff\1"]


def test_a_node_that_starts_says_so_and_a_write_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        first = Node([Table("t")], folder=tmp_path / "n1")
        await first.start()
        address = first.data.address
        client = AsyncClient(address, "t")
        await client.put("a", "1")
        await first.stop()
        node = Node([Table("t")], folder=tmp_path / "n1", data=address)
        read, go = node.manager.registry.read, threading.Event()

        def slow() -> Any:
            go.wait(10)
            return read()

        node.manager.registry.read = slow  # type: ignore[method-assign]
        starting = asyncio.ensure_future(node.start())
        while node.data._server is None:
            await asyncio.sleep(0.01)
        with pytest.raises(NotReady, match="is starting"):
            await node.backend.route(pb.RouteRequest(table="t"))
        writing = asyncio.ensure_future(client.put("a", "2"))
        await asyncio.sleep(0)
        go.set()
        assert await writing == 2
        await starting
        await client.close()
        await node.stop()

    asyncio.run(main())


def test_a_client_that_only_writes_finds_the_node_that_took_over(tmp_path: Path) -> None:
    async def main() -> None:
        def node(name: str, **more: Any) -> Node:
            table = Table("t", log=logs.objects(str(tmp_path / "log")))
            return Node([table], name=name, folder=tmp_path / name, registry=str(tmp_path / "registry"), **more)

        first, second = node("n1"), node("n2")
        await first.start()
        await second.start()
        there = second.data.address
        await second.stop()
        client = AsyncClient([first.data.address, there], "t")
        assert await client.put("a", "1") == 1
        await first.stop()
        second = node("n2", data=there, take_over="n1")
        await second.start()
        assert await client.put("a", "2") == 2
        await client.close()
        await second.stop()

    asyncio.run(main())


class Shaky:
    """Calls whose requests and answers are lost, late, or turned away."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ask = Channel.ask

    async def ask(self, channel: Channel, name: str, request: Any, timeout: float) -> Any:
        asked, dice = type(request)(), self._random.random()
        asked.CopyFrom(request)
        if name == "Route" or dice > 0.4:
            return await self._ask(channel, name, asked, timeout)
        if dice < 0.13:
            raise self._random.choice([Busy("busy", 0.01), NotReady("not now"), Unreachable("no way", sent=False)])
        if dice < 0.17:
            raise Unreachable("the request is lost")
        if dice < 0.23:
            await self._ask(channel, name, asked, timeout)
            raise Unreachable("the answer is lost")
        await asyncio.sleep(dice / 10)
        return await self._ask(channel, name, asked, timeout)


@pytest.mark.parametrize("seed", range(3))
def test_a_cancelled_write_costs_no_other_and_nothing_counts_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def main() -> None:
        node = Node([Table("t", functions=[functions.append])], folder=tmp_path / "n1")
        await node.start()
        shaky, chosen, told = Shaky(seed), random.Random(seed), dict.fromkeys(range(120), "cancelled")
        async with AsyncClient(node.data.address, "t") as client:

            async def write(number: int) -> None:
                await client.call("append", "k", b"%d," % number)
                told[number] = "done"

            with monkeypatch.context() as patched:
                patched.setattr(Channel, "ask", lambda *args: shaky.ask(*args))
                tasks = [asyncio.ensure_future(write(number)) for number in told]
                for task in tasks[::20]:
                    asyncio.get_running_loop().call_later(chosen.random() / 10, task.cancel)
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    assert result is None or isinstance(result, asyncio.CancelledError), result
                while client._writer.abandoned:
                    await asyncio.sleep(0.01)
            found = Counter((await client.get("k") or b"").decode().strip(",").split(","))
        assert set(found.values()) == {1}
        assert {str(number) for number, what in told.items() if what == "done"} <= set(found)
        (one,) = node.manager.partitions.values()
        assert one.early.count == 0
        await node.stop()

    asyncio.run(main())
