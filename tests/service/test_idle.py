"""Partitions that nobody asks cost nothing but memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from millstream.service import HASH, AsyncClient, Node, Table, stores
from millstream.service.stores.store_contract import StoreKind


async def cost(folder: Path, partitions: int, store: StoreKind) -> tuple[int, int, int, int]:
    """Tasks, timers, file handles and bytes of log of a node that has just started."""
    before = len(os.listdir("/proc/self/fd"))
    node = Node([Table("t", point=HASH, partitions=partitions, store=store)], folder=folder)
    await node.start()
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    logged = sum(path.stat().st_size for path in (folder / "wal").glob("*"))
    found = (len(asyncio.all_tasks()), len(loop._scheduled), len(os.listdir("/proc/self/fd")) - before, logged)  # type: ignore[attr-defined]
    async with AsyncClient(node.data.address, "t") as client:
        await client.put("a", "1")
        assert await client.get("a") == b"1" and len(await client.partitions()) == partitions
    await node.stop()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_many_idle_partitions_cost_no_task_no_timer_and_no_file_more_than_one(tmp_path: Path, kind: str) -> None:
    store = stores.lmdb() if kind == "lmdb" else stores.memory()
    one = asyncio.run(cost(tmp_path / "one", 1, store))
    many = asyncio.run(cost(tmp_path / "many", 300, store))
    again = asyncio.run(cost(tmp_path / "many", 300, store))
    assert many[:2] == again[:2] == one[:2]
    assert max(many[2], again[2]) <= one[2] + 2  # threads that open files may have one open
    assert many[3] == one[3]
