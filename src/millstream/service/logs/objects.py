"""The log of objects: slots that are created if absent, in a folder that nodes share or in an object store. Another node can take over.

The process that creates slot n decides what is in it: that is the consensus, and the storage provides it. What slots mean: `object_slots.py`.

Rules
1. One slot at a time. While a slot is being created, further records wait, and go together into the next one. So an append is never confirmed before an
   earlier one, and none can land behind a seal that was put into the slot of an earlier one.
2. A slot that another process took in my term or a higher one ends my ownership: Fenced. One of a lower term counts as nothing: I take the next.
3. A create without an answer is looked at: my bytes mean done. If nothing is there it is sent again, the same bytes to the same slot. After some attempts
   the outcome is unknown, and nothing is taken until `seal`, which settles it: it either finds the slot or takes it.
4. confirm: all that I had appended is done, and the slot behind it is free. A seal would be there, and seals stay for ever.
5. Nothing is removed by `forget`: another node may have the partition now.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millstream.errors import DamageError, Fenced, NotReady, StorageError, UnknownOutcome
from millstream.service.logs.object_slots import Slot, SlotWalk, damaged_slot, decode_slot, encode_slot, slot_name
from millstream.service.messages import LIMIT, LogRecord, decode_record, encode_record
from millstream.state.storage import LocalStorage, Storage, open_storage, under

_T = TypeVar("_T")
_AHEAD = 8  # slots that are read at once
_TRIES = 5  # how often a create without an answer is sent
_PAUSE = 0.05  # seconds before the second attempt; doubled each time
_THREADS = 16


class _Moved(Exception):
    """A slot that was listed is gone: the log was trimmed meanwhile."""


class PendingRecord(NamedTuple):
    """A record that waits for its slot, as it is and as bytes."""

    record: LogRecord
    data: bytes
    future: asyncio.Future[None]


class ObjectsLog:
    """The log of one partition, in one process. Made by `SharedObjectsLog.of`."""

    alone = False

    def __init__(self, shared: SharedObjectsLog, partition: int) -> None:
        self.partition = partition
        self._shared = shared
        self._storage = shared.home(partition)
        self._is_local = isinstance(self._storage, LocalStorage)
        self._term = 0  # the one that this process has sealed
        self._walk: SlotWalk | None = None  # None: nothing was looked at yet
        self._next = 0  # the slot behind all that are known
        self._slots: list[int] = []  # those that count, and the last position of each: an index
        self._lasts: list[int] = []
        self._seals: set[int] = set()  # slots that are known to be seals
        self._position = 1  # where the next append begins
        self._waiting: list[PendingRecord] = []
        self._task: asyncio.Task[None] | None = None
        self._newest: asyncio.Future[None] | None = None  # of the last append
        self._stopped: Exception | None = NotReady(f"partition {partition} is not sealed by this process: nothing is appended before that")

    def _where(self, number: int) -> str:
        return f"{self._storage.url}/{slot_name(number)}"

    # what is there

    def _read(self, number: int) -> bytes | None:
        try:
            return self._storage.read(slot_name(number))
        except DamageError:
            return None  # the storage's word for: not there

    def _run(self) -> tuple[int, int]:
        """The first and the last slot of the run that is the log; (0, -1) if there is none. A listing may miss what was created meanwhile."""
        numbers = {int(name.rsplit("/", 1)[1]) for name in self._storage.list("slots")}
        if not numbers:
            return 0, -1
        first = last = max(numbers)
        while first and (first - 1 in numbers or self._storage.exists(slot_name(first - 1))):
            first -= 1
        return first, last

    async def _from(self, number: int, listed: int) -> AsyncIterator[tuple[int, Slot]]:
        """The slots from one on, up to the first that is free. Those that were listed must be there."""
        while True:
            many = max(1, min(_AHEAD, listed - number + 1))
            for data in await asyncio.gather(*(self._shared.call(self._read, at) for at in range(number, number + many))):
                if data is None:
                    if number <= listed:
                        raise _Moved(self._where(number))
                    return
                yield number, decode_slot(data, self._where(number))
                number += 1

    def _know(self, number: int, slot: Slot) -> None:
        assert self._walk is not None
        if self._walk.counts(slot, self._where(number)):
            self._slots.append(number)
            self._lasts.append(slot.last)
        if slot.seals:
            self._seals.add(number)
        self._next = number + 1

    async def _catch_up(self) -> SlotWalk:
        for _ in range(100):
            try:
                listed = -1
                if self._walk is None:
                    self._next, listed = await self._shared.call(self._run)
                    self._walk, self._slots, self._lasts = SlotWalk(), [], []
                async for number, slot in self._from(self._next, listed):
                    self._know(number, slot)
                return self._walk
            except BaseException as error:
                self._walk = None
                if not isinstance(error, _Moved):
                    raise
        raise StorageError(f"the log {self._storage.url} keeps changing while it is read")

    # owning

    async def seal(self, term: int) -> int:
        if term < self._term:
            raise Fenced(f"partition {self.partition} is sealed in term {self._term}: term {term} is over")
        if term == self._term and self._stopped is None and self._walk is not None:
            return self._position - 1
        self._term = term
        self._stop(Fenced(f"partition {self.partition} is sealed in term {term} now"))
        self._stopped = NotReady(f"partition {self.partition} is being sealed in term {term}")
        if self._task is not None:
            await asyncio.wait([self._task])
        walk = await self._catch_up()
        for slot in await self._shared.call(self._chase, term, walk.term, walk.last):
            self._know(self._next, slot)
        if walk.term > term:
            raise self._too_late(walk.term)
        self._position, self._stopped = walk.last + 1, None
        return walk.last

    def _chase(self, term: int, highest: int, last: int) -> list[Slot]:
        """Tries slot after slot for a seal: what is in them, up to the seal or to a higher term. In one go, in a thread: who appends without a pause would be
        ahead for ever of a seal that waits for the event loop in between."""
        passed: list[Slot] = []
        first = self._next
        while highest <= term:
            seal = Slot(term, self._shared.token, last + 1, last, seals=True)
            passed.append(self._create(first + len(passed), seal))
            if passed[-1] is seal:
                break
            if passed[-1].term >= highest:
                highest, last = passed[-1].term, passed[-1].last
        return passed

    def _too_late(self, term: int) -> Fenced:
        return Fenced(f"the log {self._storage.url} is in term {term}: another node has taken it over from term {self._term}")

    def _create(self, number: int, slot: Slot) -> Slot:
        """Puts something into a slot: itself, or what is there instead. Rule 3. Called in a thread."""
        data, error = encode_slot(slot), ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
            is_taken = False
            try:
                if self._storage.create(slot_name(number), data):
                    return slot
                is_taken = True
            except StorageError as failed:
                error = str(failed)
            try:
                there = self._read(number)
            except StorageError as failed:
                error = str(failed)
                continue
            if there is not None:
                return slot if there == data else decode_slot(there, self._where(number))
            if is_taken:
                raise Fenced(f"{self._where(number)} was taken and is gone: another node has trimmed the log of partition {self.partition}")
        raise UnknownOutcome(f"cannot tell whether {self._where(number)} was created: {error}")

    # appending: rules 1 and 2

    def append(self, record: LogRecord) -> Awaitable[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if record.term != self._term:
            future.set_exception(Fenced(f"partition {self.partition} is sealed in term {self._term} here, and this is term {record.term}"))
        elif self._stopped is not None:
            future.set_exception(self._again(self._stopped))
        elif record.first != self._position:
            future.set_exception(ValueError(f"position {record.first} does not follow {self._position - 1} in partition {self.partition}"))
        else:
            self._position = record.last + 1
            self._waiting.append(PendingRecord(record, encode_record(record), future))
            self._newest = future
            self.start()
        return future

    @staticmethod
    def _again(error: Exception) -> Exception:
        if isinstance(error, UnknownOutcome):
            return NotReady(f"an earlier write has no known outcome, and nothing is taken before the log is sealed again: {error}")
        return type(error)(str(error))

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._waiting:
                group = self._group()
                try:
                    await self._put(group)
                except (Fenced, UnknownOutcome, DamageError) as error:
                    self._stop(error, group)
                except BaseException as error:  # whatever it was: no caller waits for ever
                    self._stop(UnknownOutcome(f"partition {self.partition}: {error}"), group)
                    raise
        finally:
            self._task = None

    def _group(self) -> list[PendingRecord]:
        size = count = 0
        for _, data, _ in self._waiting:
            size += len(data)
            if count and size > LIMIT:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _put(self, group: list[PendingRecord]) -> None:
        first, last = group[0].record, group[-1].record
        slot = Slot(first.term, self._shared.token, first.first, last.last, False, [pending.data for pending in group])
        while (found := await self._shared.call(self._create, self._next, slot)) is not slot:
            if found.term >= slot.term:
                raise self._too_late(found.term)
            self._next += 1
        self._know(self._next, slot)
        for _, _, future in group:
            if not future.done():
                future.set_result(None)

    def _stop(self, error: Exception, group: list[PendingRecord] | None = None) -> None:
        """Nothing is taken any more, until a seal. Those that were not sent will never be there."""
        self._stopped = error
        waiting, self._waiting = self._waiting, []
        for _, _, future in [*(group or []), *waiting]:
            if not future.done():
                future.set_exception(type(error)(str(error)))

    # the rest

    async def confirm(self, term: int) -> None:
        """Rule 4. On a folder the look is so short that it is done at once."""
        if self._newest is not None and not self._newest.done():
            await asyncio.wait([self._newest])
        if term != self._term:
            raise self._too_late(self._term)
        if self._stopped is not None:
            raise self._again(self._stopped)
        while await self._is_taken(number := self._next):
            there = await self._shared.call(self._read, number)
            slot = None if there is None else decode_slot(there, self._where(number))
            if slot is not None and slot.by == self._shared.token and slot.term == term:
                return  # my own, created after this began: so no seal is before it
            if slot is None or slot.term >= term:
                fenced = Fenced(f"{self._where(number)} was taken and is gone") if slot is None else self._too_late(slot.term)
                self._stop(fenced)
                raise self._again(fenced)
            if number == self._next:
                self._next += 1

    async def _is_taken(self, number: int) -> bool:
        exists = self._storage.exists
        return exists(slot_name(number)) if self._is_local else await self._shared.call(exists, slot_name(number))

    async def read(self, after: int) -> AsyncIterator[LogRecord]:
        listed, walk = -1, SlotWalk()
        if self._slots:
            at = bisect_right(self._lasts, after)
            start = self._slots[at] if at < len(self._slots) else self._next
        else:
            start, listed = await self._shared.call(self._run)
        try:
            async for number, slot in self._from(start, listed):
                if not walk.is_begun and slot.first > after + 1:
                    raise DamageError(
                        f"the log {self._storage.url} begins with position {slot.first}: what follows {after} is needed and has been trimmed. "
                        f"Restore the partition from a newer snapshot."
                    )
                if walk.counts(slot, self._where(number)):
                    for data in slot.records:
                        record: LogRecord = decode_record(data)
                        if record.last > after:
                            if record.first > after + 1:
                                raise damaged_slot(self._where(number), f"it has position {record.first} behind {after}")
                            after = record.last
                            yield record
        except _Moved as gone:
            raise DamageError(f"{gone} is gone: the log was trimmed while it was read. Begin with a newer snapshot.") from None

    async def trim(self, upto: int) -> None:
        """Removes slots whose records are covered. Rules 3 and 4 of `object_slots.py`."""
        keep = bisect_right(self._lasts, upto)
        if not keep or not self._slots:
            return
        keep = min(keep, len(self._slots) - 1)
        first = self._slots[keep]
        covered = set(self._slots[:keep])
        del self._slots[:keep], self._lasts[:keep]
        self._seals |= await self._shared.call(self._remove_below, first, covered, set(self._seals))

    def _remove_below(self, first: int, covered: set[int], seals: set[int]) -> set[int]:
        """Removes what is no seal; returns the seals that were not known."""
        found: set[int] = set()
        for number in sorted((int(name.rsplit("/", 1)[1]) for name in self._storage.list("slots")), reverse=True):
            if number >= first or number in seals:
                continue
            if number not in covered:
                data = self._read(number)
                if data is None or decode_slot(data, self._where(number)).seals:
                    found.add(number)
                    continue
            self._storage.delete([slot_name(number)])
        return found

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


class SharedObjectsLog:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.token = secrets.token_bytes(8)
        self._logs: dict[int, ObjectsLog] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="log of objects")

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def of(self, partition: int) -> ObjectsLog:
        found = self._logs.get(partition)
        if found is None:
            found = self._logs[partition] = ObjectsLog(self, partition)
        return found

    def home(self, partition: int) -> Storage:
        return under(self.storage, str(partition))

    def forget(self, partition: int) -> None:
        """Rule 5."""
        self._logs.pop(partition, None)

    def pressing(self) -> list[int]:
        return []

    async def close(self) -> None:
        for log in list(self._logs.values()):
            await log.close()
        self._pool.shutdown(wait=False)


@dataclass(frozen=True)
class ObjectsKind:
    """A log in a folder that nodes share, or in an object store such as s3://bucket/prefix. Options go to the store's client.

    A write is confirmed when its object is there. Another node takes over by sealing the log in a higher term.
    """

    url: str
    options: Mapping[str, Any] | None = field(default=None, hash=False)
    shared = True
    keeps = True

    def open(self, folder: Path) -> SharedObjectsLog:
        return SharedObjectsLog(open_storage(self.url, dict(self.options) if self.options else None))

    def describe(self) -> str:
        return f"objects at {self.url}"


objects = ObjectsKind
