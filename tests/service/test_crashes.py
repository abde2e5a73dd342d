"""Nodes that are killed, paused and cut off while clients write: nothing that was answered is missing, nothing counts twice, and no read is stale."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from history import OK, UNKNOWN, CuttingProxy, Metrics, NotingClient, mixed, read_all
from servicekit import NodeProcess

from millstream.faults import REQUEST_POINTS

pytestmark = pytest.mark.crash
LMDB = "store=ms.service.stores.lmdb()"
SPREAD = "point=ms.service.HASH, partitions=2"


async def through_points(folder: Path, options: str, points: list[str], each: int) -> None:
    """One client adds ones. The node is killed at a point, and started again with the next one armed."""
    node, history = NodeProcess(folder, options=options), Metrics()
    for_good = "request.6" if "none()" in options else "request.5"  # without a log, the store decides
    armed = [f"{point}@{passage}" for point in points for passage in range(each, 2 * each, 2)]
    await asyncio.to_thread(node.start, armed[0])
    client = NotingClient(history, 1, node.address, "30s")
    ending = asyncio.Event()

    async def add() -> None:
        while not ending.is_set():
            assert (await client.add(b"c0")).outcome == OK

    adding = asyncio.ensure_future(add())
    try:
        for crash, following in zip(armed, [*armed[1:], ""], strict=True):
            before = client.again
            assert await asyncio.to_thread(node.died), crash
            count = len(history.answered())
            await asyncio.to_thread(node.start, following)
            while len(history.answered()) == count and not adding.done():
                await asyncio.sleep(0.01)
            if crash < "request.4":
                assert client.again == before, f"{crash}: nothing was written, and the retry was told that it had been"
            elif crash > for_good:
                assert client.again == before + 1, f"{crash}: it was for good, and the retry was not told so"
        ending.set()
        await adding
        await read_all(history, node.address, 1)
    finally:
        adding.cancel()
        await client.close()
        node.kill()
    history.check()
    assert not [one for one in history.operations if one.outcome == UNKNOWN]
    assert history.operations[-1].value == len([one for one in history.answered() if one.kind == "add"])


def test_killed_at_every_point_of_a_requests_life(tmp_path: Path) -> None:
    asyncio.run(through_points(tmp_path, "", list(REQUEST_POINTS), 2))


def test_killed_at_the_points_where_store_and_log_differ_with_a_store_on_disk(tmp_path: Path) -> None:
    asyncio.run(through_points(tmp_path, LMDB, ["request.5-durable", "request.6-applied"], 2))


@pytest.mark.soak
@pytest.mark.parametrize(
    "options", ["", LMDB, SPREAD, "dispatch=ms.service.split()", "log=ms.service.logs.none(), store=ms.service.stores.lmdb(durable=True)"]
)
def test_killed_at_every_point_at_many_passages(tmp_path: Path, options: str) -> None:
    asyncio.run(through_points(tmp_path, options, list(REQUEST_POINTS), 9))


async def under_faults(folder: Path, options: str, seed: int, faults: list[str], cutting: float = 0.0, clients: int = 4) -> Metrics:
    """Clients at work while the node is killed, paused and cut off."""
    chance, history, proxy = random.Random(seed), Metrics(), CuttingProxy(seed, cutting)
    way = await proxy.start()
    node = NodeProcess(folder, options=options, arguments=("--advertise", way))
    await asyncio.to_thread(node.start)
    proxy.target = node.port
    ending = asyncio.Event()
    working = [NotingClient(history, number, way, "30s") for number in range(clients)]
    tasks = [asyncio.ensure_future(mixed(client, 3, seed * 100 + client.number, ending)) for client in working]
    try:
        for fault in faults:
            count = len(history.answered())
            while len(history.answered()) < count + 60:
                await asyncio.sleep(0.01)
                for task in tasks:
                    if task.done():
                        await task
            await asyncio.sleep(chance.uniform(0, 0.1))
            if fault == "kill":
                node.kill()
                await asyncio.to_thread(node.start)
            elif fault == "pause":
                node.pause()
                await asyncio.sleep(chance.uniform(0.3, 1.2))
                node.go_on()
            else:
                proxy.cut()
        ending.set()
        await asyncio.gather(*tasks)
        proxy.chance = 0
        await read_all(history, way, 3)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(client.close() for client in working))
        node.kill()
        await proxy.stop()
    history.check()
    assert not [one for one in history.operations if one.outcome == UNKNOWN], "there was time enough to learn what became of every write"
    if cutting:
        assert proxy.cuts
    return history


def test_killed_paused_and_cut_at_random_with_four_clients(tmp_path: Path) -> None:
    asyncio.run(under_faults(tmp_path, SPREAD, 1, ["kill", "cut", "pause", "kill", "cut"], cutting=0.01))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("options", ["", LMDB, SPREAD + ", dispatch=ms.service.split()", f"{SPREAD}, {LMDB}"])
def test_minutes_of_faults(tmp_path: Path, options: str, seed: int) -> None:
    chance = random.Random(seed)
    faults = [chance.choice(["kill", "kill", "pause", "cut", "cut"]) for _ in range(12)]
    asyncio.run(under_faults(tmp_path, options, seed, faults, cutting=0.01 * (seed % 3), clients=6))
