"""Many partitions: maps of ranges against a model, and work that grows with what is changed, not with what is there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from effort import some
from millstream.errors import NotReady
from millstream.service import AsyncClient, Node, Table, logs, stores
from millstream.service.desired_state import Desired, PartitionsAdded
from millstream.service.limits import CONTROL, off
from millstream.service.messages import Descriptor
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import RangeMap
from millstream.service.snapshotting import SnapshotPlaces
from millstream.service.table_backend import Control
from millstream.state.storage import LocalStorage


@pytest.mark.parametrize("seed", range(4))
def test_a_map_finds_what_looking_at_all_partitions_finds(seed: int) -> None:
    rng = random.Random(seed)

    def point() -> bytes:
        return bytes(rng.choices(b"abcd", k=rng.randrange(3)))

    for _ in range(some(200)):
        found: RangeMap[Descriptor] = RangeMap()
        model: list[Descriptor] = []
        for id in range(1, 15):
            start, end = sorted([point(), point()])
            one = Descriptor(id, "t", start, b"" if rng.random() < 0.2 or start == end else end)
            if rng.random() < 0.3 and model:
                gone = rng.choice(model)
                model.remove(gone)
                found.remove(gone)
                found.remove(gone)
            assert found.overlapping(one) == sorted((other for other in model if other.overlaps(one)), key=lambda other: other.start)
            model = [other for other in model if not other.overlaps(one)] + [one]
            found.add(one)
            model.sort(key=lambda other: other.start)
            assert found.all() == model and len(found) == len(model)
            at, limit = point(), rng.randrange(1, 4)
            assert found.find(at) == next((other for other in model if other.covers(at)), None)
            assert found.behind(at, limit) == [other for other in model if not other.end or other.end > at][:limit]
            assert found.by_id(id) is one and all((found.by_id(old) in model) or found.by_id(old) is None for old in range(id))


class Counted:
    """How often methods are called meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        for of, name in ((Descriptor, "overlaps"), (RangeMap, "add"), (RangeMap, "remove"), (LocalStorage, "read"), (LocalStorage, "put")):
            self._count(monkeypatch, of, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
        method = getattr(of, name)

        def counting(one: Any, *args: Any) -> Any:
            self.calls[f"{of.__name__}.{name}"] += 1
            return method(one, *args)

        monkeypatch.setattr(of, name, counting)


def cut(count: int) -> list[tuple[bytes, bytes]]:
    points = [b"%05d" % at for at in range(count)]
    return list(zip([b"", *points[1:]], [*points[1:], b""], strict=True))


def quick(**options: Any) -> Table:
    return Table("t", store=stores.lmdb(durable=True), log=logs.none(), **options)


@pytest.mark.slow
def test_adding_partitions_one_by_one_does_as_much_for_the_last_as_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def add(count: int) -> Counter[str]:
        node = Node([quick(partitions=0)], folder=tmp_path / str(count))
        await node.start()
        control = Control(node.manager, SnapshotPlaces(node.folder, node.folder / "backups"))
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            await fill(node, control, count)
        await node.stop()
        return counted.calls

    async def fill(node: Node, control: Control, count: int) -> None:
        async with AsyncClient(node.data.address, "t") as client:
            for start, end in cut(count):
                await control.add_partition(pb.AddPartitionRequest(table="t", start=start, end=end))
            while sum(one.state == "serving" for one in node.manager.partitions.values()) < count:
                await asyncio.sleep(0.01)
            assert len(await client.partitions()) == count
            await client.put("00003", "x")
            assert (await client.get_many(["00003"]))[0].partition == 4

    few, many = asyncio.run(add(20)), asyncio.run(add(160))
    assert few["RangeMap.add"] >= 20 and few["LocalStorage.put"] >= 20
    for name, calls in many.items():
        assert calls < 10 * max(20, few[name]), (name, few, many)  # eight times as many partitions


def test_partitions_that_are_desired_at_once_are_compared_with_their_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(count: int) -> int:
        desired = Desired()
        change = PartitionsAdded([Descriptor(at + 1, "t", start, end) for at, (start, end) in enumerate(cut(count))])
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            desired.check(change)
            desired.apply(change)
        return counted.calls["Descriptor.overlaps"]

    assert compared(2000) < 10 * compared(250)


def test_a_node_that_is_about_to_open_a_partition_says_so_and_does_not_send_clients_to_itself(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([Table("t", partitions=0)], folder=tmp_path, control_limits=off(CONTROL))
        await node.start()
        made = await node.manager.add("t", None, b"", b"")  # it is desired, and nobody has carried it out
        header = pb.Header(table="t")
        for asked in (
            node.backend.get(pb.GetRequest(header=header, keys=[b"a"])),
            node.backend.upsert(pb.UpsertRequest(header=header, keys=[b"a"], values=[b"1"])),
            node.backend.decide(pb.DecideRequest(header=pb.Header(table="t", partition=made.id), txns=["l|1|1|x"])),
            anext(node.backend.scan(pb.ScanRequest(header=header))),
            anext(node.backend.watch(pb.WatchRequest(header=header))),
        ):
            with pytest.raises(NotReady, match=f"partition {made.id} of table 't' is being opened on this node"):
                await asked
        await node.manager.reconcile()
        assert (await node.backend.upsert(pb.UpsertRequest(header=header, keys=[b"a"], values=[b"1"]))).at.lsn == 1
        await node.stop()

    asyncio.run(main())
