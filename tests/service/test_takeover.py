"""Two nodes on one log of objects: one is paused and replaced. When it wakes it answers nothing, and its clients find their way."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from history import OK, CuttingProxy, Metrics, NotingClient, mixed, read_all
from servicekit import NodeProcess

from millstream.errors import MillstreamError, ServiceError
from millstream.service.channel import Channel
from millstream.service.proto import service_pb2 as pb

pytestmark = pytest.mark.crash


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def pair(folder: Path, more: str = "") -> tuple[NodeProcess, NodeProcess]:
    """Two nodes that share log and registry."""
    options = f"log=ms.service.logs.objects({str(folder / 'log')!r}){more}"
    shared = ("--registry", str(folder / "registry"))
    first = NodeProcess(folder / "a", name="n1", options=options, arguments=shared)
    second = NodeProcess(folder / "b", name="n2", options=options, arguments=(*shared, "--take-over", "n1"))
    first.port, second.port = free_port(), free_port()
    return first, second


async def refusals(channel: Channel, count: int, timeout: float) -> list[BaseException | None]:
    """Reads and writes to one node, whatever it knows; None for each that it has answered."""
    header = pb.Header(table="t")

    async def one(number: int) -> None:
        if number % 2:
            await channel.ask("Get", pb.GetRequest(header=header, keys=[b"r0"]), timeout)
        else:
            await channel.ask("Upsert", pb.UpsertRequest(header=header, keys=[b"raw"], values=[b"late"]), timeout)

    done = await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)
    return [found if isinstance(found, BaseException) else None for found in done]


async def until(history: Metrics, more: int, tasks: list[asyncio.Future[None]], clients: set[int]) -> None:
    """Each of these clients has been answered so many more times."""
    before = {number: sum(one.client == number for one in history.answered()) for number in clients}
    while any(sum(one.client == number for one in history.answered()) < before[number] + more for number in clients):
        for task in tasks:
            if task.done():
                await task
        await asyncio.sleep(0.02)


async def replaced(folder: Path, seed: int) -> None:
    n1, n2 = pair(folder)
    history, ending = Metrics(), asyncio.Event()
    registry, away = folder / "registry", folder / "registry.away"
    await asyncio.to_thread(n1.start)
    knows_one = NotingClient(history, 1, n1.address, "40s")
    know_both = [NotingClient(history, number, [n1.address, f"127.0.0.1:{n2.port}"], "40s") for number in (2, 3)]
    clients, direct = [knows_one, *know_both], Channel(n1.address)
    tasks = [asyncio.ensure_future(mixed(client, 3, seed + client.number, ending)) for client in clients]
    try:
        await until(history, 30, tasks, {1, 2, 3})
        await direct.ask("Route", pb.RouteRequest(table="t"), 5)  # it is connected
        n1.pause()
        asked = asyncio.ensure_future(refusals(direct, 40, 30))  # they lie in its socket when it wakes
        await asyncio.to_thread(n2.start)
        await until(history, 30, tasks, {2, 3})
        registry.rename(away)  # so that it cannot even look who has its partition now
        n1.go_on()
        outcomes = await asked
        assert all(isinstance(one, ServiceError) for one in outcomes), outcomes
        assert {one.reason for one in outcomes if isinstance(one, ServiceError)} <= {"BAD_NODE", "UNKNOWN_OUTCOME"}
        assert all(isinstance(one, MillstreamError) for one in await refusals(direct, 10, 5))
        await until(history, 20, tasks, {2, 3})
        away.rename(registry)
        await until(history, 20, tasks, {1, 2, 3})  # it was told by the node that it knew
        registry.rename(away)
        late = NotingClient(history, 4, n1.address, "10s")  # with the registry away
        assert (await late.put(b"r0")).outcome == OK
        assert (await late.get(b"r0")).outcome == OK
        await late.close()
        ending.set()
        await asyncio.gather(*tasks)
        await read_all(history, f"127.0.0.1:{n2.port}", 3)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(direct.close(), *(client.close() for client in clients))
        n1.kill()
        n2.kill()
    history.check()


def test_a_node_that_was_paused_and_replaced_answers_nothing_and_clients_find_their_way(tmp_path: Path) -> None:
    asyncio.run(replaced(tmp_path, 7))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_to_and_fro_between_two_nodes(tmp_path: Path, seed: int) -> None:
    """Each takes over from the other, again and again, while the other is paused, killed or at work."""

    async def main() -> None:
        options = f"log=ms.service.logs.objects({str(tmp_path / 'log')!r})"
        shared = ("--registry", str(tmp_path / "registry"))
        nodes = [NodeProcess(tmp_path / name, name=name, options=options, arguments=shared) for name in ("n1", "n2")]
        for node in nodes:
            node.port = free_port()
        history, ending, proxy = Metrics(), asyncio.Event(), CuttingProxy(seed)
        addresses = [f"127.0.0.1:{node.port}" for node in nodes]
        await asyncio.to_thread(nodes[0].start)
        clients = [NotingClient(history, number, addresses, "60s") for number in range(4)]
        tasks = [asyncio.ensure_future(mixed(client, 3, seed * 10 + client.number, ending)) for client in clients]
        try:
            for turn in range(6):
                old, new = nodes[turn % 2], nodes[(turn + 1) % 2]
                await until(history, 30, tasks, {0, 1, 2, 3})
                how = (seed + turn) % 3
                if how == 0:
                    old.pause()
                elif how == 1:
                    old.kill()
                new.kill()
                await asyncio.to_thread(new.start, "", True, "--take-over", old.name)
                await until(history, 10, tasks, {0, 1, 2, 3})
                if how == 0:
                    old.go_on()
            ending.set()
            await asyncio.gather(*tasks)
            await read_all(history, addresses, 3)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*(client.close() for client in clients))
            for node in nodes:
                node.kill()
            await proxy.stop()
        history.check()

    asyncio.run(main())
