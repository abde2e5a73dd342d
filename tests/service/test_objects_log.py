"""The log of objects: two owners on one storage, answers that are lost, owners that wake up late, and damage."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import DamageError, Fenced, NotReady, StorageError, UnknownOutcome
from millstream.service.logs.object_slots import Slot, decode_slot, encode_slot, slot_name
from millstream.service.logs.objects import ObjectsLog, SharedObjectsLog, objects
from millstream.service.messages import LogRecord, encode_record
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(work())


def record(first: int, term: int = 1, size: int = 10) -> LogRecord:
    return LogRecord(1, term, first, first, 0, [(b"K%d" % first, b"x" * size)])


async def positions(log: ObjectsLog, after: int = 0) -> list[int]:
    return [found.first async for found in log.read(after)]


def slots(storage: MemoryStorage) -> list[int]:
    return [int(name.rsplit("/", 1)[1]) for name in storage.list("1/slots")]


class Faulty(MemoryStorage):
    """Answers get lost (`lose`: how many, after the object was made or before), creates wait (`gate`), and calls are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_after = self.lose_before = 0
        self.gate: threading.Event | None = None
        self.waiting = threading.Event()
        self.creates: list[str] = []

    def create(self, name: str, data: bytes) -> bool:
        self.creates.append(name)
        if self.gate is not None:
            self.waiting.set()
            self.gate.wait(20)
        if self.lose_before:
            self.lose_before -= 1
            raise StorageError("the connection broke")
        made = super().create(name, data)
        if self.lose_after:
            self.lose_after -= 1
            raise StorageError("the connection broke")
        return made


@pytest.mark.parametrize("local", [True, False])
def test_who_seals_takes_over_and_the_other_is_fenced(tmp_path: Path, local: bool) -> None:
    storage = LocalStorage(tmp_path) if local else MemoryStorage()

    async def work() -> None:
        one, two = SharedObjectsLog(storage), SharedObjectsLog(storage)
        assert await one.of(1).seal(1) == 0
        await asyncio.gather(*(one.of(1).append(record(n)) for n in range(1, 6)))
        await one.of(1).confirm(1)
        assert await two.of(1).seal(2) == 5
        for _ in range(2):
            with pytest.raises(Fenced, match="term 2"):
                await one.of(1).confirm(1)
        with pytest.raises(Fenced):
            await one.of(1).append(record(6))
        with pytest.raises(Fenced):
            await one.of(1).seal(1)
        await two.of(1).append(record(6, 2))
        await two.of(1).confirm(2)
        assert await positions(SharedObjectsLog(storage).of(1)) == [1, 2, 3, 4, 5, 6]
        assert await one.of(1).seal(3) == 6  # and back
        with pytest.raises(Fenced):
            await two.of(1).append(record(7, 2))
        await one.close()
        await two.close()

    run(work)


@pytest.mark.parametrize("seal_first", [True, False])
def test_an_append_under_way_is_before_the_seal_or_fenced(seal_first: bool) -> None:
    storage = Faulty()

    async def work() -> None:
        one, two = SharedObjectsLog(storage), SharedObjectsLog(storage)
        await one.of(1).seal(1)
        storage.gate = threading.Event()
        under_way = [one.of(1).append(record(n)) for n in (1, 2)]
        await asyncio.to_thread(storage.waiting.wait)
        waiting = one.of(1).append(record(3))
        gate, storage.gate = storage.gate, None
        if seal_first:
            assert await two.of(1).seal(2) == 0
            gate.set()
            outcomes = await asyncio.gather(*under_way, waiting, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Fenced] * 3
            assert await positions(two.of(1)) == []
        else:
            gate.set()
            await asyncio.gather(*under_way, waiting)
            assert await two.of(1).seal(2) == 3
            assert await positions(two.of(1)) == [1, 2, 3]
        with pytest.raises(Fenced):
            await one.of(1).confirm(1)

    run(work)


class DoesNotChain(ObjectsLog):
    """The twin: slots are created side by side."""

    def start(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:1], self._waiting[1:]
            number, self._next = self._next, self._next + 1
            self._side = [*getattr(self, "_side", []), asyncio.get_running_loop().create_task(self._one(number, *group[0]))]

    async def _one(self, number: int, one: LogRecord, data: bytes, future: asyncio.Future[None]) -> None:
        slot = Slot(one.term, self._shared.token, one.first, one.last, False, [data])
        if await self._shared.call(self._create, number, slot) is slot:
            future.set_result(None)
        else:
            future.set_exception(Fenced("taken"))


class TakesTheNextSlot(ObjectsLog):
    """The twin: a slot that is taken is passed over, whoever took it."""

    async def _put(self, group: Any) -> None:
        while True:
            try:
                return await super()._put(group)
            except Fenced:
                self._next += 1

    def _know(self, number: int, slot: Slot) -> None:
        self._next = number + 1


@pytest.mark.parametrize("twin", [DoesNotChain, TakesTheNextSlot])
def test_without_the_guards_the_contract_is_broken(twin: type[ObjectsLog]) -> None:
    class OneWaits(MemoryStorage):
        """The first create of slot 1 waits."""

        gate, waiting, is_used = threading.Event(), threading.Event(), False

        def create(self, name: str, data: bytes) -> bool:
            if name.endswith("1/" + slot_name(1)) and not OneWaits.is_used:
                OneWaits.is_used = True
                self.waiting.set()
                self.gate.wait(20)
            return super().create(name, data)

    storage = OneWaits()

    async def work() -> None:
        one, two = SharedObjectsLog(storage), SharedObjectsLog(storage)
        log = twin(one, 1)
        await ObjectsLog.seal(log, 1)
        log._next = 1
        appended = [log.append(record(1)), log.append(record(2))]
        await asyncio.to_thread(storage.waiting.wait)
        if twin is DoesNotChain:
            await appended[1]  # its slot is there before the other's
        end = await two.of(1).seal(2)
        if twin is DoesNotChain:  # position 2 is there, and 1 is not: L4 is broken
            assert end == 2
            with pytest.raises(DamageError, match="begins with position 2"):
                await positions(two.of(1))
        storage.gate.set()
        outcomes = await asyncio.gather(*appended, return_exceptions=True)
        if twin is TakesTheNextSlot:  # both are confirmed behind the seal: L1 is broken
            assert end == 0 and outcomes == [None, None]
            assert await positions(SharedObjectsLog(storage).of(1)) == []

    run(work)


def test_records_that_wait_share_a_slot() -> None:
    storage = Faulty()

    async def work() -> None:
        shared = SharedObjectsLog(storage)
        log = shared.of(1)
        await log.seal(1)
        storage.gate = threading.Event()
        first = log.append(record(1))
        await asyncio.to_thread(storage.waiting.wait)
        rest = [log.append(record(n, size=300_000 if n > 90 else 10)) for n in range(2, 101)]
        storage.gate.set()
        storage.gate = None
        await asyncio.gather(first, *rest)
        assert len(storage.creates) == 2 + 4  # the seal, the first; then at most 1 MB at a time
        assert await positions(log) == list(range(1, 101))
        await shared.close()

    run(work)


def test_an_answer_that_was_lost_is_looked_up() -> None:
    storage = Faulty()

    async def work() -> None:
        log = SharedObjectsLog(storage).of(1)
        storage.lose_after = 1
        await log.seal(1)
        for first, (after, before) in enumerate([(1, 0), (0, 1), (1, 1), (0, 2)], 1):
            storage.lose_after, storage.lose_before = after, before
            await log.append(record(first))
        assert await positions(log) == [1, 2, 3, 4] and slots(storage) == [0, 1, 2, 3, 4]

    run(work)


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unknown_outcome_is_settled_by_the_next_seal(monkeypatch: pytest.MonkeyPatch, arrives: bool) -> None:
    monkeypatch.setattr(sys.modules["millstream.service.logs.objects"], "_PAUSE", 0.0)
    storage = Faulty()

    async def work() -> None:
        shared = SharedObjectsLog(storage)
        log = shared.of(1)
        await log.seal(1)
        storage.lose_before = 100
        lost = [log.append(record(1)), log.append(record(2))]
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [UnknownOutcome] * 2
        with pytest.raises(NotReady, match="sealed again"):
            await log.append(record(3))
        with pytest.raises(NotReady):
            await log.confirm(1)
        storage.lose_before = 0
        late = Slot(1, shared.token, 1, 2, False, [encode_record(record(n)) for n in (1, 2)])
        if arrives:  # what was on its way gets there after all
            storage.objects[f"1/{slot_name(1)}"] = encode_slot(late)
        assert await log.seal(1) == (2 if arrives else 0)
        assert storage.create(f"1/{slot_name(1)}", encode_slot(late)) is False  # later it cannot
        assert await positions(log) == ([1, 2] if arrives else [])
        await log.append(record(3 if arrives else 1))

    run(work)


def test_an_owner_that_wakes_up_after_a_trim_is_fenced_all_the_same() -> None:
    storage = MemoryStorage()

    async def work() -> None:
        old, new = SharedObjectsLog(storage), SharedObjectsLog(storage)
        await old.of(1).seal(1)
        await old.of(1).append(record(1))
        await new.of(1).seal(2)
        for first in range(2, 10):
            await new.of(1).append(record(first, 2))
        await new.of(1).trim(9)
        assert slots(storage) == [0, 2, 10]  # the seals and the newest
        with pytest.raises(Fenced):
            await old.of(1).confirm(1)
        with pytest.raises(Fenced):
            await old.of(1).append(record(2))
        third = SharedObjectsLog(storage)
        assert await third.of(1).seal(3) == 9
        await third.of(1).append(record(10, 3))
        assert await positions(third.of(1), 9) == [10]
        with pytest.raises(DamageError, match=r"begins with position 9.*trimmed"):
            await positions(third.of(1), 3)

    run(work)


class RemovesSeals(ObjectsLog):
    """The twin: seals are trimmed as well."""

    def _remove_below(self, first: int, covered: set[int], seals: set[int]) -> set[int]:
        self._storage.delete([slot_name(number) for number in range(first)])
        return set()


def test_without_old_seals_an_owner_that_wakes_up_would_go_on() -> None:
    storage = MemoryStorage()

    async def work() -> None:
        old, new = SharedObjectsLog(storage), SharedObjectsLog(storage)
        await old.of(1).seal(1)
        twin = RemovesSeals(new, 1)
        await twin.seal(2)
        await twin.append(record(1, 2))
        await twin.append(record(2, 2))
        await twin.trim(2)
        await old.of(1).confirm(1)  # wrong, and so is this:
        await old.of(1).append(record(1))
        assert await positions(SharedObjectsLog(storage).of(1), 1) == [2]

    run(work)


def test_a_trim_that_was_killed_leaves_a_log_that_is_read_right() -> None:
    """Whatever was removed of what may go, from above: the rest is the same log."""
    whole = MemoryStorage()

    async def build() -> None:
        shared = SharedObjectsLog(whole)
        for term in (1, 2, 3):
            end = await shared.of(1).seal(term)
            for first in range(end + 1, end + 4):
                await shared.of(1).append(record(first, term))

    run(build)
    before = dict(whole.objects)
    removed: list[str] = []

    class Noting(MemoryStorage):
        def delete(self, names: Iterable[str]) -> None:
            for name in list(names):
                removed.append(name)
                super().delete([name])

    async def trim() -> None:
        storage = Noting()
        storage.objects = dict(before)
        log = SharedObjectsLog(storage).of(1)
        await log.seal(4)
        await log.trim(8)

    run(trim)
    assert [int(name[-20:]) for name in removed] == [10, 9, 7, 6, 5, 3, 2, 1]

    async def look(count: int) -> None:
        storage = MemoryStorage()
        storage.objects = {name: data for name, data in before.items() if name not in removed[:count]}
        log = SharedObjectsLog(storage).of(1)
        assert await positions(log, 8) == [9]
        assert await log.seal(5) == 9
        await log.append(record(10, 5))
        await log.trim(9)
        assert slots(storage) == [0, 4, 8, 12, 13]

    for count in range(len(removed) + 1):
        run(lambda count=count: look(count))


def test_what_is_behind_a_seal_of_a_higher_term_counts_as_nothing() -> None:
    storage = MemoryStorage()

    async def work() -> None:
        one = SharedObjectsLog(storage)
        await one.of(1).seal(1)
        await one.of(1).append(record(1))
        two = SharedObjectsLog(storage)
        await two.of(1).seal(2)
        void = Slot(1, one.token, 2, 2, False, [encode_record(record(2))])
        storage.create(f"1/{slot_name(3)}", encode_slot(void))
        await two.of(1).confirm(2)
        assert await positions(two.of(1)) == [1]
        await two.of(1).append(record(2, 2))
        third = SharedObjectsLog(storage)
        assert [r.term async for r in third.of(1).read(0)] == [1, 2]
        assert await third.of(1).seal(3) == 2
        await third.of(1).trim(1)
        assert [r.term async for r in SharedObjectsLog(storage).of(1).read(1)] == [2]

    run(work)


def test_damage_names_the_object(tmp_path: Path) -> None:
    async def build() -> None:
        log = objects(str(tmp_path)).open(tmp_path).of(1)
        await log.seal(1)
        for first in range(1, 4):
            await log.append(record(first))

    run(build)
    path = tmp_path / "1" / slot_name(2)
    whole = path.read_bytes()

    async def look() -> None:
        shared = objects(str(tmp_path)).open(tmp_path)
        for ask in (positions(shared.of(1)), shared.of(1).seal(9)):
            with pytest.raises(DamageError, match=str(path)):
                await ask

    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(DamageError, match="here"):
            decode_slot(bytes(changed), "here")
    path.write_bytes(bytes(changed))
    run(look)
    path.write_bytes(whole + b"x")
    run(look)
    path.write_bytes(encode_slot(Slot(1, b"", 5, 5, False, [])))  # reads well, and does not fit
    run(look)

    async def after_loss() -> None:
        log = objects(str(tmp_path)).open(tmp_path).of(1)
        with pytest.raises(DamageError, match="position 3"):
            await positions(log)

    path.unlink()
    run(after_loss)


def test_forgetting_leaves_what_another_node_may_need() -> None:
    storage = MemoryStorage()

    async def work() -> None:
        shared = SharedObjectsLog(storage)
        await shared.of(1).seal(1)
        await shared.of(1).append(record(1))
        shared.forget(1)
        assert await shared.of(1).seal(2) == 1
        shared.home(1).put("snapshots/x/snapshot.json", b"{}")
        assert storage.exists("1/snapshots/x/snapshot.json")

    run(work)


def test_nothing_is_appended_before_a_seal_and_positions_follow() -> None:
    async def work() -> None:
        log = SharedObjectsLog(MemoryStorage()).of(1)
        with pytest.raises((NotReady, Fenced)):
            await log.append(record(1))
        await log.seal(1)
        with pytest.raises(ValueError, match="does not follow"):
            await log.append(record(2))

    run(work)


def test_many_idle_partitions_have_no_task_and_no_thread() -> None:
    async def work() -> None:
        before = threading.active_count()
        shared = SharedObjectsLog(MemoryStorage())
        logs = [shared.of(partition) for partition in range(1000)]
        assert len(logs) == 1000 and len(asyncio.all_tasks()) == 1 and threading.active_count() <= before
        await shared.close()

    run(work)
