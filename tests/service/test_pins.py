"""What is pinned for somebody who does not read is let go after a while; who reads is not hurried."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from livekit import Checkpoint, run

from millstream.errors import Stale
from millstream.service import AsyncClient, Node, Table, limits, stores
from millstream.service.grpc_servers import DATA_SERVICE, DataPlane, failure
from millstream.service.live.backend import LiveBackend
from millstream.service.proto import service_pb2 as pb

CALLS: dict[str, Any] = {"Scan": (pb.ScanRequest, pb.ScanReply), "Watch": (pb.WatchRequest, pb.WatchReply)}


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def asked(address: str, name: str, table: str) -> AsyncIterator[Any]:
    """A call whose replies are read by nobody but the test. A small window that does not grow by itself, so that the node cannot send all of it."""
    options = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", 16 << 20)]
    takes, gives = CALLS[name]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        make = channel.unary_stream(f"/{DATA_SERVICE}/{name}", takes.SerializeToString, gives.FromString)
        call = make(takes(header=pb.Header(table=table)))
        yield call
        call.cancel()


@contextlib.asynccontextmanager
async def filled(folder: Path, store: Any, rows: int = 200) -> AsyncIterator[tuple[Node, AsyncClient]]:
    """A node with more in its one partition than a connection takes unread."""
    node = Node([Table("t", store=store)], folder=folder)
    await node.start()
    async with AsyncClient(node.data.address, "t") as client:
        await client.put_many({f"k{n:05d}": b"x" * 100_000 for n in range(rows)})
        yield node, client
    await node.stop()


def pins_of(node: Node) -> list[Any]:
    return node.manager.partitions[1].store._map.pins  # type: ignore[attr-defined]


def noted(node: Node) -> int:
    """Bytes that a store in memory keeps for those who read what was before."""
    return sum(len(value or b"") for pin in pins_of(node) for value in pin._old.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_table_is_not_pinned_for_ever_for_who_does_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filled(tmp_path, stores.memory()) as (node, client), asked(node.data.address, name, "t") as call:
            await call.read()
            await until(lambda: len(pins_of(node)) == 1)
            await client.put_many({f"k{n:05d}": b"y" * 100_000 for n in range(200)})
            assert noted(node) > 15 << 20
            await until(lambda: not pins_of(node))  # though the call was neither read nor ended
            await client.put_many({f"k{n:05d}": b"z" * 100_000 for n in range(200)})
            assert noted(node) == 0
            with pytest.raises(grpc.aio.AioRpcError) as ended:  # and who reads on after all is told
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert isinstance(failure(ended.value, ""), Stale)

    monkeypatch.setattr(limits, "PINNED", 1.5)
    run(main)


@pytest.mark.slow
def test_pages_of_lmdb_are_used_again_once_a_watcher_that_does_not_read_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> int:
        return sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("data.mdb"))

    async def main() -> None:
        async with filled(tmp_path, stores.lmdb()) as (node, client), asked(node.data.address, "Watch", "t") as call:
            await call.read()
            watchers = node.manager.partitions[1].watchers
            await until(lambda: not len(watchers))

            async def grown() -> int:
                before = size()
                for round in range(6):
                    await client.put_many({f"k{n:05d}": bytes([65 + round]) * 100_000 for n in range(200)})
                return size() - before

            assert (
                await grown() < 85 << 20
            )  # room for four rounds, because the first may find pages still pinned; six were written, of 20 MB each

    monkeypatch.setattr(limits, "PINNED", 0.5)
    run(main)


def test_who_has_read_what_is_there_may_watch_for_as_long_as_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filled(tmp_path, stores.memory(), 3) as (node, client), asked(node.data.address, "Watch", "t") as call:
            while (await call.read()).kind != pb.WatchReply.MARK:
                pass
            await asyncio.sleep(0.6)  # longer than anything may be pinned
            await client.put("k", "1")
            assert list((await call.read()).keys) == [b"k"]

    monkeypatch.setattr(limits, "PINNED", 0.3)
    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_an_epoch_is_not_pinned_for_ever_for_who_does_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Checkpoint(names=("C",))
    world.put(C={f"{n:04d}": b"x" * 100_000 for n in range(200)})

    async def main() -> None:
        live = LiveBackend(world.storage, cache_folder=tmp_path, keep=1)
        await live.start()
        plane = DataPlane(live, "127.0.0.1:0", limits=limits.DATA)
        await plane.start()
        async with asked(plane.address, name, "C") as call:
            await call.read()
            pin = live.epochs.newest
            assert pin is not None and pin.count == 2
            world.put(C={"0000": b"y"})  # it is no longer the newest, and lasts for who has taken it
            await until(lambda: live.epochs.newest is not pin)
            await until(lambda: pin.count == 0)
        await plane.stop()
        await live.close()

    for module in ("backend", "watch"):
        monkeypatch.setattr(f"millstream.service.live.{module}.PATIENCE", 1.5)
    run(main)
