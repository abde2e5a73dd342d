"""Faults that a review found, each as the smallest thing that showed it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from servicekit import HandLog, call, decide, get, partition, session, upsert

from millstream.errors import (
    Busy,
    Conflict,
    Fenced,
    FencedRun,
    MillstreamError,
    NotReady,
    RefusedRequest,
    ServiceError,
    StorageError,
    TooLarge,
    UnknownOutcome,
)
from millstream.service import AsyncClient, Client, Node, Table, functions, logs, stores
from millstream.service import client as client_module
from millstream.service.channel import Channel, Unreachable
from millstream.service.local_node import serving
from millstream.service.logs.disk import DiskLog
from millstream.service.manager import Manager
from millstream.service.messages import Decision, Descriptor, Op, Request
from millstream.service.partition import Partition
from millstream.service.proto import service_pb2 as pb
from millstream.service.snapshotting import SnapshotPlace, load_newest_snapshot, restore_from, restore_reader, snapshot_to
from millstream.service.state_machine import Turn, TurnView
from millstream.service.stores.memory import memory
from millstream.service.stores.snapshots import write_snapshot
from millstream.service.transforms import drop_fields
from millstream.state.memory import MemoryStorage
from millstream.state.storage import LocalStorage


async def soon(future: Any) -> Any:
    """What becomes of a request; an error is given, not raised. Nothing that is tested takes a second."""
    try:
        return await asyncio.wait_for(asyncio.ensure_future(future), 5)
    except (MillstreamError, TimeoutError, asyncio.TimeoutError) as error:
        return error


def stage(keys: list[bytes], values: list[bytes], txn: str, **more: Any) -> Request:
    return Request(Op.STAGE, keys, values, txn=txn, size=8, **more)


# --- whatever users' code raises or gives, the partition goes on


def boom(key: bytes, value: bytes, turn: Turn) -> bytes:
    raise KeyError("no such field")


def raises_before(key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
    if key == b"bad":
        raise KeyError("no such field")
    return value


def raises_after(key: bytes, value: bytes) -> bytes:
    raise KeyError("no such field")


def swaps(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, b"1")
    return b"0"


def puts_text(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, b"half")
    turn.put(b"other", "text")  # type: ignore[arg-type]
    return b""


def puts_number(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, 5)  # type: ignore[arg-type]
    return b""


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("where", ["before", "after", "puts_text", "puts_number"])
def test_what_users_code_raises_is_told_and_nothing_of_it_stays(where: str, named: bool) -> None:
    async def main() -> None:
        log = HandLog()
        options: dict[str, Any] = (
            {"before": [raises_before]} if where == "before" else {"after": [raises_after]} if where == "after" else {}
        )
        one = await partition(log, Table("t", functions=[puts_text, puts_number, swaps], **options))
        who: dict[str, Any] = {"session": session(), "seq": 2} if named else {}
        asked = upsert(b"bad", b"1", **who) if where == "before" else call("swaps" if where == "after" else where, b"bad", **who)
        elder = one.write(upsert(b"a", b"1", **({"session": session(), "seq": 1} if named else {})))
        found = [await soon(elder), await soon(one.write(asked))]
        found.append(await soon(one.write(upsert(b"b", b"2", **({"session": session(), "seq": 3} if named else {})))))
        assert not isinstance(found[0], BaseException) and not isinstance(found[2], BaseException), found
        assert isinstance(found[1], RefusedRequest), found
        again = await partition(log)
        for state in (one, again):
            assert state.store.get(b"Kbad") is None and state.store.get(b"Kother") is None

    asyncio.run(main())


def test_a_removal_can_be_staged_in_a_table_that_enriches() -> None:
    async def main() -> None:
        one = await partition(HandLog(), Table("t", before=[drop_fields("ssn")]))
        assert (await soon(one.write(stage([b"a"], [], "l|1|1|x")))).lsn == 1
        assert (await soon(one.write(decide(Decision.COMMIT, 1, "l|1|1|x")))).rows == [1]

    asyncio.run(main())


@pytest.mark.parametrize("txn", ["l|1|99999999999999999999999|x", "l|" + "9" * 5000 + "|1|x", "l" * 70_000 + "|1|1|x"])
def test_a_transactions_name_that_is_no_good_is_refused(txn: str) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        assert isinstance(await soon(one.write(stage([b"a"], [b"1"], txn))), RefusedRequest)
        assert isinstance(await soon(one.write(decide(Decision.COMMIT, 1, txn))), RefusedRequest)
        assert (await soon(one.write(upsert(b"a", b"1")))).lsn == 1

    asyncio.run(main())


def test_a_function_cannot_put_what_the_store_does_not_take() -> None:
    def bad(turn: Turn, key: bytes, argument: bytes) -> bytes:
        turn.put(key, b"no number")
        return b""

    async def main() -> None:
        log = HandLog()
        of = Table("t", store=stores.counters(), functions=[bad])
        one = await partition(log, of, store=stores.counters().open(Path("unused")).of(1))
        assert isinstance(await soon(one.write(call("bad", b"a"))), RefusedRequest)
        assert (await soon(one.write(upsert(b"a", bytes(8))))).lsn == 1

    asyncio.run(main())


# --- sessions


def test_an_early_write_that_is_sent_again_is_answered() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        first = one.write(upsert(b"b", b"2", session=session(), seq=2))
        first.cancel()  # its sender waits no longer
        await asyncio.sleep(0)
        second = one.write(upsert(b"b", b"2", session=session(), seq=2))
        third = one.write(upsert(b"b", b"2", session=session(), seq=2))
        await soon(one.write(upsert(b"a", b"1", session=session(), seq=1)))
        assert (await soon(third)).lsn == 2
        assert isinstance(await soon(second), ServiceError) or second.result().lsn == 2
        assert one.store.applied == 2

    asyncio.run(main())


def test_early_writes_that_nobody_waits_for_are_forgotten() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        for name in range(5000):
            one.write(upsert(b"b", b"2", session=session(name), seq=2)).cancel()
            await asyncio.sleep(0)
        assert not len(one._early) and not one._early.count

    asyncio.run(main())


def test_early_writes_are_bounded_in_bytes() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        held = 0
        with pytest.raises(ServiceError):
            for seq in range(2, 129):
                one.write(Request(Op.UPSERT, [b"k"], [b""], size=1 << 20, session=session(), seq=seq))
                held += 1
        assert held <= 64

    asyncio.run(main())


def test_a_session_from_the_far_future_does_not_shut_out_all_others() -> None:
    async def main() -> None:
        now = [1_000_000]
        one = await partition(HandLog(), wall=lambda: now[0])
        with pytest.raises(RefusedRequest, match="clock"):
            await one.write(upsert(b"a", b"1", session=b"\xff" * 16, seq=1))

    asyncio.run(main())


# --- a log that fails


class SharedHandLog(HandLog):
    alone = False
    broken: Exception | None = None

    async def confirm(self, term: int) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        await super().confirm(term)


def test_a_read_that_cannot_be_confirmed_is_answered_and_the_partition_goes_on() -> None:
    async def main() -> None:
        log = SharedHandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        log.broken = StorageError("the storage is away")
        assert isinstance(await soon(one.read(get(b"a"))), NotReady)
        log.broken = None
        assert (await soon(one.read(get(b"a")))).values == [b"1"]
        assert (await soon(one.write(upsert(b"a", b"2")))).lsn == 2

    asyncio.run(main())


def test_reads_are_answered_after_a_log_failed_with_a_full_window() -> None:
    async def main() -> None:
        log = SharedHandLog(at_once=False)
        one = await partition(log)
        writes = []
        for _ in range(100):
            writes.append(one.write(upsert(b"a", b"1")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        log.waiting[0][1].set_exception(UnknownOutcome("who knows"))
        assert {type(await soon(write)) for write in writes} == {UnknownOutcome, NotReady}
        assert (await soon(one.read(get(b"a")))).versions == [0]

    asyncio.run(main())


def test_a_read_that_waits_is_not_answered_from_a_store_that_was_given_away() -> None:
    async def main() -> None:
        log = SharedHandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        reads = [asyncio.ensure_future(one.read(get(b"a")))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reads.append(asyncio.ensure_future(one.read(get(b"a"))))
        await asyncio.sleep(0)
        await one.leave()
        one.store.replace([], 0)
        for read in reads:
            found = await soon(read)
            assert isinstance(found, ServiceError) or found.values == [b"1"], found

    asyncio.run(main())


# --- restores


async def backup(storage: Any) -> None:
    """A snapshot of another time."""
    before = await partition(HandLog())
    await before.write(upsert(b"z", b"as it was"))
    await write_snapshot(before.store.pin(), storage, "monday")


def test_a_restore_that_its_caller_does_not_wait_for_is_done_whole() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        await one.write(upsert(b"a", b"1"))
        log.at_once = False
        restoring = asyncio.ensure_future(one.replace([(b"Kz", bytes(8) + b"restored")], "name"))
        while not log.waiting:
            await asyncio.sleep(0)
        restoring.cancel()
        await asyncio.sleep(0)
        log.at_once = True
        log.complete(0)
        assert (await soon(one.read(get(b"z")))).values == [b"restored"]
        assert (await soon(one.read(get(b"a")))).versions == [0]
        assert (await soon(one.write(upsert(b"b", b"2")))).lsn == 3

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["before the log", "behind the log", "saved"])
def test_whoever_takes_over_during_a_restore_has_it_if_the_log_has_it(tmp_path: Path, moment: str) -> None:
    async def main() -> None:
        storage, home, log = LocalStorage(tmp_path), MemoryStorage(), HandLog()
        await backup(storage)
        old = await partition(log)
        await old.write(upsert(b"a", b"1", session=session(), seq=1))
        log.at_once = False
        restoring = asyncio.ensure_future(restore_from(old, SnapshotPlace(storage, "monday"), home))
        while not log.waiting:
            await asyncio.sleep(0.001)
        log.at_once = True
        if moment == "before the log":
            log.waiting.pop()[1].set_exception(Fenced("another has taken over"))
        else:
            log.complete(0)
        if moment == "saved":
            await restoring
            assert not log.records and not home.list("restores")
            await old.write(upsert(b"c", b"3"))
        new = Partition(Descriptor(1, "t", term=2), old.table, log, memory().open(Path("unused")).of(1))
        load_newest_snapshot(new.store, home, 1)
        await new.open(restore_reader(home, 1))
        done = await soon(restoring)
        assert isinstance(done, MillstreamError) == (moment == "before the log")
        is_restored = moment != "before the log"
        assert new.machine.read(get(b"z")).versions == [2 if is_restored else 0]
        assert new.machine.read(get(b"a")).versions == [0 if is_restored else 1]
        assert (await soon(new.write(upsert(b"a", b"1", session=session(), seq=1)))).again

    asyncio.run(main())


def test_a_restore_of_what_the_store_does_not_take_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        await backup(LocalStorage(tmp_path))
        log = HandLog()
        one = await partition(log, Table("t", store=stores.counters()), store=stores.counters().open(Path("unused")).of(1))
        with pytest.raises(RefusedRequest):
            await restore_from(one, SnapshotPlace(LocalStorage(tmp_path), "monday"), MemoryStorage())
        assert not log.records
        assert (await soon(one.write(upsert(b"a", bytes(8))))).lsn == 1

    asyncio.run(main())


def test_a_partition_knows_after_a_restart_how_much_no_snapshot_has() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        for _ in range(10):
            await one.write(upsert(b"a", bytes(1000)))
        again = await partition(log)
        assert again.unsaved >= one.unsaved > 10_000

    asyncio.run(main())


# --- the manager


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
        await node.manager.look()
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


# --- the client


def test_a_write_that_was_refused_for_its_size_does_not_keep_later_ones_waiting() -> None:
    with serving(Table("t")) as address, Client(address, "t", timeout="8s") as client:
        client.put("a", "1")
        for key, value in ((b"k" * 5000, b""), (b"a", bytes(1 << 20))):
            with pytest.raises(TooLarge):
                client.put(key, value)
        assert client.put("a", "2") == 2


def test_a_number_that_the_node_did_not_count_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "check_message", lambda asked, together: None)  # another client, which does not look at sizes
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


def test_a_newer_run_keeps_an_older_one_from_sweeping() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        await soon(one.write(stage([b"a"], [b"1"], "p/e/0|2|5|x")))
        assert isinstance(await soon(one.write(decide(Decision.SWEEP, 1, "p/e/|1|9|"))), FencedRun)
        assert (await soon(one.write(decide(Decision.SWEEP, 2, "p/e/|2|9|")))).rows == [1]

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
                while client._left:
                    await asyncio.wait(set(client._left))
            found = Counter((await client.get("k") or b"").decode().strip(",").split(","))
        assert set(found.values()) == {1}
        assert {str(number) for number, what in told.items() if what == "done"} <= set(found)
        (one,) = node.manager.partitions.values()
        assert not len(one._early)
        await node.stop()

    asyncio.run(main())


def test_a_snapshot_for_an_operator_has_the_rows_of_users_only(tmp_path: Path) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        await one.write(upsert(b"a", b"1", session=session(), seq=1))
        await one.write(stage([b"b"], [b"2"], "l|1|1|x"))
        assert (await snapshot_to(one, SnapshotPlace(LocalStorage(tmp_path), "monday"))).rows == 1

    asyncio.run(main())
