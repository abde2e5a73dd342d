"""Partitions that come and go: the plan against a model, nodes killed half way, and registries under many hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servicekit import NodeProcess, upsert

from effort import some
from millstream.errors import (
    MillstreamError,
    RefusedRequest,
    StorageError,
    UnknownOutcome,
    Unreachable,
)
from millstream.service import AsyncClient, Node, Table
from millstream.service.channel import Channel
from millstream.service.desired_state import (
    Desired,
    NodeEntry,
    NodeJoined,
    PartitionMoved,
    PartitionOp,
    PartitionRemoved,
    PartitionsAdded,
    plan,
)
from millstream.service.logs.disk import DiskLog
from millstream.service.manager import Manager
from millstream.service.messages import Descriptor
from millstream.service.proto import service_pb2 as pb
from millstream.service.registry import EVERY, Registry
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import open_storage
from s3server import S3Server

POINTS = [b"%d" % number for number in range(10)]


@st.composite
def ranges(draw: st.DrawFn, first_id: int, nodes: tuple[str, ...]) -> dict[int, Descriptor]:
    """Partitions of one table that do not overlap, on some nodes."""
    cuts = sorted(draw(st.sets(st.sampled_from(POINTS), min_size=1)))
    found = {}
    for number, (start, end) in enumerate(zip(cuts, [*cuts[1:], b""], strict=True)):
        if draw(st.booleans()):
            id = first_id + number
            found[id] = Descriptor(id, "t", start, end, draw(st.integers(1, 3)), draw(st.sampled_from(nodes)))
    return found


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[int, Descriptor], dict[int, Descriptor]]:
    """What node n1 has, and what is desired: some partitions stay, some go elsewhere, come back in a new term, or are replaced by others."""
    before = draw(ranges(1, ("n1",)))
    desired: dict[int, Descriptor] = {}
    for id, one in before.items():
        if draw(st.booleans()):
            desired[id] = Descriptor(id, "t", one.start, one.end, one.term + draw(st.integers(0, 1)), draw(st.sampled_from(["n1", "n2"])))
    for id, one in draw(ranges(100, ("n1", "n2"))).items():
        if not any(one.overlaps(other) for other in desired.values()):
            desired[id] = one
    return before, desired


def carry_out(current: dict[int, Descriptor], op: PartitionOp) -> dict[int, Descriptor]:
    after = dict(current)
    if not op.opens:
        assert after.pop(op.partition.id) == op.partition
    else:
        assert op.partition.id not in after
        after[op.partition.id] = op.partition
    return after


def overlap(current: dict[int, Descriptor]) -> bool:
    every = list(current.values())
    return any(one.overlaps(other) for place, one in enumerate(every) for other in every[place + 1 :])


@given(states(), st.lists(st.integers(0, 6), max_size=4))
def test_a_plan_that_is_broken_off_anywhere_and_made_again_ends_as_desired_without_an_overlap(
    state: tuple[dict[int, Descriptor], dict[int, Descriptor]], breaks: list[int]
) -> None:
    current, desired = state
    for steps in [*breaks, 1 << 30]:
        for op in plan("n1", current, desired)[:steps]:
            current = carry_out(current, op)
            assert not overlap(current), op
    assert current == {id: one for id, one in desired.items() if one.node == "n1"}
    assert plan("n1", current, desired) == []


def test_a_plan_in_another_order_overlaps() -> None:
    """The twin: what comes before what goes."""
    current = {1: Descriptor(1, "t", b"", b"m", node="n1")}
    desired = {2: Descriptor(2, "t", b"", b"z", node="n1")}
    for op in reversed(plan("n1", current, desired)):
        current = carry_out(current, op)
        if overlap(current):
            return
    raise AssertionError("no overlap")


# --- registries

_moto: list[S3Server] = []


@pytest.fixture(scope="module")
def s3() -> Iterator[Callable[[], S3Server]]:
    def get() -> S3Server:
        if not _moto:
            _moto.append(S3Server())
        return _moto[0]

    yield get
    while _moto:
        _moto.pop().stop()


@pytest.fixture(params=["folder", "memory", "s3"])
def registry(request: pytest.FixtureRequest, tmp_path: Path, s3: Callable[[], S3Server]) -> Callable[[], Registry]:
    """Opens the same registry again and again, as different processes do."""
    if request.param == "folder":
        return lambda: Registry(open_storage(str(tmp_path / "registry")))
    if request.param == "memory":
        storage = MemoryStorage()
        return lambda: Registry(storage)
    server = s3()
    url = server.url()
    return lambda: Registry(open_storage(url, server.options))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors


@pytest.mark.slow
def test_many_hands_change_a_registry_by_compare_and_set(registry: Callable[[], Registry]) -> None:
    """Each adds partitions wherever there seems to be room. Every change that was said to be made is there, and nothing overlaps."""
    made: list[Descriptor] = []
    lost: list[int] = []

    def work(number: int) -> None:
        mine = registry()
        for place in range(some(10)):
            start, end = b"%02d" % place, b"%02d" % (place + 1)
            while True:
                desired = mine.read()
                one = Descriptor(desired.next_id, "t", start, end, 1, f"n{number}")
                try:
                    if mine.change(PartitionsAdded([one]), desired.version):
                        made.append(one)
                        break
                    lost.append(number)
                except RefusedRequest:
                    break  # somebody has it

    in_threads(4, work)
    found = registry().read()
    assert sorted(found.partitions.values(), key=lambda one: one.id) == sorted(made, key=lambda one: one.id)
    assert len(made) == some(10) == found.version
    assert not overlap(found.partitions)


def test_a_change_to_an_old_version_is_not_made(registry: Callable[[], Registry]) -> None:
    one, other = registry(), registry()
    before = one.read()
    assert other.change(NodeJoined(NodeEntry("n1", "a:1", "x")), before.version)
    assert not one.change(NodeJoined(NodeEntry("n2", "a:2", "y")), before.version)
    assert set(one.read().nodes) == {"n1"}
    with pytest.raises(RefusedRequest, match="a node called 'n1' is known already"):
        one.change(NodeJoined(NodeEntry("n1", "a:3", "z")), one.read().version)


def test_rules_of_the_desired_state() -> None:
    desired = Desired()
    for change in (PartitionsAdded([Descriptor(1, "t", b"", b"m", node="n1")]), PartitionsAdded([Descriptor(2, "t", b"m", node="n1")])):
        desired.check(change)
        desired.apply(change)
    for wrong in (
        PartitionsAdded([Descriptor(3, "t", b"l", b"n")]),
        PartitionsAdded([Descriptor(2, "u")]),
        PartitionsAdded([Descriptor(4, "u", b"b", b"a")]),
        PartitionRemoved(9),
        PartitionMoved(1, "n2", 1),
    ):
        with pytest.raises(RefusedRequest):
            desired.check(wrong)
    desired.apply(PartitionRemoved(2))
    with pytest.raises(RefusedRequest, match="given out before"):
        desired.check(PartitionsAdded([Descriptor(2, "t", b"m")]))


@pytest.mark.slow
def test_a_registry_is_condensed_while_others_read_it(tmp_path: Path) -> None:
    """Versions go on, and whoever reads sees each change once: the address of a node is the number of the change."""
    place, rounds, over = str(tmp_path / "registry"), 2 * EVERY + 40, threading.Event()

    def work(number: int) -> None:
        if number == 0:
            writer = Registry(open_storage(place))
            try:
                for change in range(rounds):
                    assert writer.change(NodeJoined(NodeEntry("n", str(change + 1), "x")), change)
            finally:
                over.set()
            return
        last, keeps = 0, Registry(open_storage(place))
        while not over.is_set():
            found = (keeps if number == 1 else Registry(open_storage(place))).read()
            assert found.version >= last
            assert not found.version or found.nodes["n"].address == str(found.version)
            last = found.version

    in_threads(3, work)
    assert Registry(open_storage(place)).read().version == rounds
    assert len(list((tmp_path / "registry" / "changes").iterdir())) < 2 * EVERY


# --- a node that is killed half way


async def ask(channel: Channel, name: str, request: object) -> Any:
    """A call of the control plane, when it listens again."""
    for _ in range(500):
        try:
            return await channel.ask(name, request, 10)
        except Unreachable as error:
            if error.sent:
                raise
            await asyncio.sleep(0.02)
    raise AssertionError(f"nobody listens on {channel.address}")


async def listed(channel: Channel) -> list[pb.Partition]:
    return list((await ask(channel, "ListPartitions", pb.ListPartitionsRequest(table="t"))).partitions)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in (folder / "partitions").iterdir()} if (folder / "partitions").is_dir() else set()


@pytest.mark.crash
def test_a_node_that_is_killed_between_what_is_desired_and_what_is_done_carries_on(tmp_path: Path) -> None:
    """The desired state changes beside a node that is killed: some partitions are to come, one is to go, and one takes its range."""

    async def main() -> None:
        node = NodeProcess(tmp_path, options="partitions=0, store=ms.service.stores.lmdb()", arguments=("--limits", "off"))
        await asyncio.to_thread(node.start)
        control, overlaps, watching = Channel(node.control), [], True

        async def watch() -> None:
            """No two partitions that take requests ever have a point in common."""
            while watching:
                try:
                    found = [one for one in await listed(control) if one.state in ("serving", "opening")]
                except MillstreamError:
                    await asyncio.sleep(0.02)
                    continue
                for place, one in enumerate(found):
                    for other in found[place + 1 :]:
                        if (not other.end or one.start < other.end) and (not one.end or other.start < one.end):
                            overlaps.append((one, other))
                await asyncio.sleep(0.005)

        looking = asyncio.ensure_future(watch())
        try:
            added = await ask(control, "AddPartition", pb.AddPartitionRequest(table="t", start=b"a", end=b"m"))
            async with AsyncClient(node.address, "t", timeout="20s") as client:
                for number in range(20):
                    await client.put(b"b%d" % number, b"x" * 100)
            # the answer comes when it is desired; the node is killed before or while it is carried out
            await ask(control, "RemovePartition", pb.RemovePartitionRequest(table="t", id=added.id))
            node.kill()
            await asyncio.to_thread(node.start)
            deadline = asyncio.get_running_loop().time() + 20
            while await listed(control) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.02)
            assert await listed(control) == [] and files_of(tmp_path / "n1") == set()
            new = await ask(control, "AddPartition", pb.AddPartitionRequest(table="t", start=b"", end=b"z"))
            node.kill()
            assert new.id > added.id
            await asyncio.to_thread(node.start)
            async with AsyncClient(node.address, "t", timeout="20s") as client:
                assert await client.get("b1") is None, "the new partition has what the old one had"
                await client.put("b1", "new")
            assert [(one.id, one.state) for one in await listed(control)] == [(new.id, "serving")]
            assert len(files_of(tmp_path / "n1")) == 1
            # other partitions are desired while the node is down
            node.kill()
            registry = Registry(open_storage(str(tmp_path / "n1" / "registry")))
            registry.change(PartitionRemoved(new.id), registry.read().version)
            registry.change(PartitionsAdded([Descriptor(50, "t", b"c", b"", 1, "n1")]), registry.read().version)
            await asyncio.to_thread(node.start)
            assert [(one.id, one.state) for one in await listed(control)] == [(50, "serving")]
            async with AsyncClient(node.address, "t", timeout="2s") as client:
                await client.put("d", "1")
                with pytest.raises(MillstreamError, match="no partition of table 't' has key"):
                    await client.put("b1", "1")
            assert list((tmp_path / "n1" / "trash").iterdir()), "what was removed is kept in the trash"
        finally:
            watching = False
            await looking
            await control.close()
            node.kill()
        assert not overlaps, overlaps
        left = {int(entry.split("-")[0]) for entry in _partitions_in_store(tmp_path / "n1")}
        assert left <= {50}, f"partitions {left} are left in the store"

    asyncio.run(main())


def _partitions_in_store(folder: Path) -> list[str]:
    """Which partitions an LMDB store holds anything of."""
    from millstream.service.stores import lmdb

    shared = lmdb().open(folder)
    try:
        return [f"{id}-{shared.of(id).applied}" for id in range(1, 60) if list(shared.of(id).scan(b"", b"\xff\xff"))]
    finally:
        shared.close()


def test_a_partition_that_could_not_be_opened_is_opened_when_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        seal = DiskLog.seal

        async def away(log: DiskLog, term: int) -> int:
            raise StorageError("the storage is away")

        monkeypatch.setattr(DiskLog, "seal", away)
        node = Node([Table("t")], folder=tmp_path / "n1")
        await node.start()
        (one,) = node.manager.partitions.values()
        assert "away" in one.reason
        monkeypatch.setattr(DiskLog, "seal", seal)
        await node.manager.tend()
        assert [one.state for one in node.manager.partitions.values()] == ["serving"]
        async with AsyncClient(node.data.address, "t") as client:
            assert await client.put("a", "1") == 1
        await node.stop()

    asyncio.run(main())


def test_what_is_desired_is_tried_again_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = Node([Table("t", partitions=0)], folder=tmp_path / "n1")
        await node.start()
        with monkeypatch.context() as broken:

            async def away(*_: Any) -> None:
                raise StorageError("the disk is full")

            broken.setattr(Manager, "_open", away)
            await node.manager.add("t", None, b"", b"")
            with pytest.raises(StorageError):
                await node.manager.reconcile()
        await node.manager.refresh()
        assert [one.state for one in node.manager.partitions.values()] == ["serving"]
        with pytest.raises(RefusedRequest, match="too large"):
            await node.manager.add("t", 2**64 - 1, b"", b"")
        await node.stop()

    asyncio.run(main())


def test_a_partition_that_stopped_and_is_removed_is_kept_in_the_trash(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([Table("t")], folder=tmp_path / "n1")
        await node.start()
        (one,) = node.manager.partitions.values()
        await one.write(upsert(b"a", b"1"))
        one._fail(UnknownOutcome("the disk is full"))
        await node.manager.remove("t", one.descriptor.id, b"", b"")
        await node.manager.reconcile()
        assert len(list((tmp_path / "n1" / "trash").glob("t-1-*"))) == 1
        await node.stop()

    asyncio.run(main())


@pytest.mark.crash
def test_a_second_node_on_a_folder_or_under_a_name_exits_and_says_why(tmp_path: Path) -> None:
    shared = ("--registry", str(tmp_path / "registry"))
    with NodeProcess(tmp_path / "a", arguments=shared) as first:
        second = NodeProcess(tmp_path / "a", arguments=shared)
        other = NodeProcess(tmp_path / "b", arguments=shared)
        said = []
        for node in (second, other):
            node.start(wait=False)
        for node in (second, other):
            assert node.process is not None
            said.append(node.process.communicate(timeout=30)[0])
            assert node.process.returncode not in (0, -9)
        assert "is in use by another node" in said[0] and "--dir" in said[0]
        assert "a node called 'n1' is known already" in said[1] and first.address in said[1] and "--take-over n1" in said[1]
        assert all("Traceback" not in text for text in said), said

        async def still_there() -> None:
            async with AsyncClient(first.address, "t") as client:
                await client.put("a", "1")

        asyncio.run(still_there())
