"""A partition: one writer. Requests wait in its inbox, get their turn, go to the log, then to the store, and are answered.

The life of a write (the numbers are those of docs/views-and-service.md and of the crash points):

    1 routed     the node has found the partition
    2 queued     it waits in the inbox, behind its session's earlier writes
    3 turned     a turn has decided: changes, positions, answers. Synchronous: nothing else of this partition runs
    4 logged     the log was given the record; further turns go on meanwhile
    5 durable    the log has the record
    6 applied    in the order of records: the store has it, watchers are told
    7 answered   the answers go out

Rules
1. The store is never ahead of the log, and reads see the store only: what the log does not have is not visible.
2. Records leave in their order, whatever the log's order of completion: what is durable early waits for those before it. `UNDER_WAY` are at the log at most.
3. A read sees every write that was answered before it was asked. With a linear inbox it also waits for the writes that came before it. Where another owner
   may have sealed the log, it is confirmed before it is answered: one confirmation serves all that were read before it. If another owner has, no read is
   answered any more; if the log says nothing, the caller may ask again.
4. When the log fails, the partition takes no writes any more, what was under way has an unknown outcome, and reads go on; not if another owner has sealed it.
5. Idle, it costs no task, no timer and no file.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millstream import faults
from millstream.errors import BadNode, DamageError, Fenced, MillstreamError, NotReady, RefusedRequest, ServiceError, Stale, UnknownOutcome
from millstream.service.dedup_sessions import check_session_name
from millstream.service.dispatch import PendingCall, ReorderBuffer
from millstream.service.logs.log_contract import Log
from millstream.service.messages import LIMIT, Answer, Change, Descriptor, Level, LogRecord, Request
from millstream.service.snapshotting import RECORD, RestoreReader, replace_user_entries, replay_log
from millstream.service.state_machine import PartitionStateMachine, TurnResult, next_time
from millstream.service.stores.store_contract import KeyStore
from millstream.service.table import Table
from millstream.service.watchers import Watchers

_log = logging.getLogger("millstream.service")

UNDER_WAY = 64  # records
_BYTES_UNDER_WAY = 16 << 20
_SLOW = 0.1  # seconds of a turn


class PartitionState(str, enum.Enum):
    """What a partition does for callers: reads and writes only while it is SERVING, reads only while it is READ_ONLY, and otherwise nothing."""

    OPENING = "opening"
    SERVING = "serving"
    READ_ONLY = "read-only"  # its log failed
    FAILED = "failed"  # it could not be opened, or its store failed. It is opened again, unless something is damaged
    FENCED = "fenced"  # another owner has sealed its log
    LEAVING = "leaving"  # it was removed from this node


SERVING = PartitionState.SERVING  # a name of its own, for the path of every request


class RequestPoints(msgspec.Struct):
    """Counts the passages of each point, and has the process killed where a test wants it (`millstream.faults`)."""

    spec: str = ""
    seen: dict[str, int] = {}

    def __call__(self, name: str) -> None:
        if self.spec:
            self.seen[name] = count = self.seen.get(name, 0) + 1
            faults.point(name, count, self.spec)


class TurnUnderWay(msgspec.Struct):
    """A turn whose record is at the log. size: bytes of its requests."""

    result: TurnResult
    calls: list[PendingCall]
    size: int
    is_durable: bool


class Partition:
    def __init__(
        self,
        descriptor: Descriptor,
        table: Table,
        log: Log,
        store: KeyStore,
        *,
        wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        crash: RequestPoints | None = None,
    ) -> None:
        self.descriptor = descriptor
        self.table = table
        self.state = PartitionState.OPENING
        self.reason = ""
        self.damage: DamageError | None = None
        self.log = log
        self.store = store
        self.watchers = Watchers()
        self.unsaved = 0  # bytes that the log has and no snapshot
        self.restores: list[str] = []  # that the log has and no snapshot
        self._wall = wall
        self._crash = crash or RequestPoints()
        self._inbox = table.dispatch.make()
        self._orders_reads = self._inbox.orders_reads
        self._alone = log.alone
        self._under_way: deque[TurnUnderWay] = deque()  # rule 2
        self._bytes = 0  # of those
        self._behind: list[tuple[int, PendingCall]] = []  # reads that wait for a position, and the position
        self._unconfirmed: list[PendingCall] = []  # reads that the log must confirm
        self._confirming: asyncio.Task[None] | None = None
        self._confirmed_at = time.monotonic()
        self._session_lsn: dict[bytes, int] = {}  # of sessions with writes under way
        self.early = ReorderBuffer(self._inbox.put)
        self._scheduled = False
        self._held = False  # no turns: all entries are being replaced
        self._said_slow = -10.0
        self._idle: asyncio.Future[None] | None = None
        self._replacing: asyncio.Task[int] | None = None
        self.machine: PartitionStateMachine

    # --- beginning

    async def open(self, restored: RestoreReader | None = None) -> None:
        """Seals the log, brings the store up to it, and serves. The store may begin with a snapshot. restored: gives the entries of a restore."""
        descriptor, store = self.descriptor, self.store
        last = await self.log.seal(descriptor.term)
        if self.table.log.keeps:
            if store.applied > last:
                who = f"partition {descriptor.id} of {descriptor.table!r}"
                raise NotReady(f"{who}: its store is at {store.applied}, ahead of its log at {last}")
            restores, size = await replay_log(store, self.log.read(store.applied), restored)
            self.restores += restores
            self.unsaved += size
        table = self.table
        self.machine = PartitionStateMachine(descriptor, store, table.functions_by_name, table.gate, table.horizon)
        self.state, self.reason = SERVING, ""

    # --- reading

    def read_now(self, request: Request) -> Answer | None:
        if self.state is not SERVING and self.state is not PartitionState.READ_ONLY:
            raise self._unready()
        if request.level == Level.BOUNDED:
            return self.machine.read(request)
        if not self._alone or (self._orders_reads and len(self._inbox)):
            return None
        if self._required(request) > self.store.applied or (request.session and request.session in self.early):
            return None
        return self.machine.read(request)

    def _required(self, request: Request) -> int:
        level = request.level
        if level == Level.LINEARIZABLE:
            return self.machine.lsn if self._orders_reads else self._session_lsn.get(request.session, 0)
        if level == Level.SESSION:
            if request.seen > self.machine.lsn:
                raise Stale(f"partition {self.descriptor.id} is at {self.machine.lsn}, and the session has seen {request.seen}")
            return max(request.seen, self._session_lsn.get(request.session, 0))
        if level == Level.BOUNDED:
            return 0
        raise RefusedRequest("AS_OF is for the live state of a pipeline: a table is read LINEARIZABLE, SESSION or BOUNDED")

    def age(self) -> int:
        """How old what is read here may be, in milliseconds: the time since no other owner could have taken over unnoticed."""
        return 0 if self._alone else int((time.monotonic() - self._confirmed_at) * 1000)

    async def read(self, request: Request) -> Answer:
        answer = self.read_now(request)
        return await self.read_later(request) if answer is None else answer

    def read_later(self, request: Request) -> asyncio.Future[Answer]:
        """A read that `read_now` could not answer: it waits for its turn."""
        self._required(request)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._inbox.put(PendingCall(request, future))
        self._schedule()
        return future

    # --- writing

    def write(self, request: Request) -> asyncio.Future[Answer]:
        if self.state is not SERVING:
            raise self._unready()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = PendingCall(request, future)
        if request.session:
            sessions = self.machine.sessions
            check_session_name(request.session, request.seq)
            sessions.check_time(request.session, self._wall())
            self.early.take(call, sessions)
        else:
            self._inbox.put(call)
        self._crash("request.2-queued")
        self._schedule()
        return future

    # --- the turn

    def _schedule(self) -> None:
        if not self._scheduled and len(self._inbox):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        is_full = len(self._under_way) >= UNDER_WAY or self._bytes > _BYTES_UNDER_WAY
        if is_full or self._held or self.state is PartitionState.LEAVING:
            return  # what comes back from the log asks again
        calls = self._inbox.take(LIMIT)
        writes = [call for call in calls if call.request.writes]
        if writes and self.state is SERVING:
            self._take_turn(writes)
        elif writes:
            fail_calls(writes, self._unready())
        for call in calls:
            if not call.request.writes:
                self._place_read(call)
        self._schedule()

    def _take_turn(self, calls: list[PendingCall]) -> None:
        begun = time.monotonic()
        writes = [call.request for call in calls]
        try:
            result = self.machine.turn(writes, self._wall())
        except Exception as error:  # of ours: a half-done turn must not go on, and no caller waits for ever
            _log.exception("a turn of partition %d failed", self.descriptor.id)
            self._fail(ServiceError(f"internal error in a turn ({type(error).__name__}: {error}); the log of the node says more"))
            fail_calls(calls, self._unready())
            return
        self._crash("request.3-turned")
        took = time.monotonic() - begun
        if took > _SLOW and begun - self._said_slow > 10:
            self._warn_of_slow_turn(writes, took)
        for request in writes:
            if request.session in self.early:
                self.early.after_turn(request.session, self.machine.sessions.last(request.session))
        record = result.record
        if record is None and not self._under_way:
            self._finish(calls, result.answers)
            return
        size = sum(request.size for request in writes)
        self._bytes += size
        turn = TurnUnderWay(result, calls, size, record is None)
        self._under_way.append(turn)
        for request in writes:
            if request.session:
                self._session_lsn[request.session] = self.machine.lsn
        if record is None:  # only answers from before: they wait for the records that they belong to
            self._complete()
            return
        self.unsaved += size + RECORD
        logged = asyncio.ensure_future(self.log.append(record))
        self._crash("request.4-logged")
        logged.add_done_callback(partial(self._logged, turn))

    def _warn_of_slow_turn(self, writes: Sequence[Request], seconds: float) -> None:
        """A turn has kept the event loop, and so the whole node. Said at most every ten seconds."""
        self._said_slow = time.monotonic()
        names = sorted({request.function for request in writes if request.function}) or ["none"]
        what = f"a turn of partition {self.descriptor.id} of table {self.descriptor.table!r} took {seconds * 1000:.0f} ms for {len(writes)} writes"
        _log.warning("%s, and all partitions of this node have waited (functions: %s)", what, ", ".join(names))

    def _logged(self, turn: TurnUnderWay, logged: asyncio.Future[None]) -> None:
        error = UnknownOutcome("the log was closed") if logged.cancelled() else logged.exception()
        if error is not None:
            self._fail(error)
            return
        self._crash("request.5-durable")
        turn.is_durable = True
        self._complete()

    def _leaving(self) -> list[TurnUnderWay]:
        """Rule 2."""
        leaving = []
        while self._under_way and self._under_way[0].is_durable:
            leaving.append(self._under_way.popleft())
        return leaving

    def _complete(self) -> None:
        leaving = self._leaving()
        if not leaving:
            return
        records = [(turn.result.record, turn.result.expanded) for turn in leaving if turn.result.record is not None]
        if records:
            try:
                self._apply(records)
            except Exception as error:
                self._under_way.extendleft(reversed(leaving))
                self._fail(error, readable=False)
                return
        self._crash("request.6-applied")
        for turn in leaving:
            self._bytes -= turn.size
            self._finish(turn.calls, turn.result.answers)
        if not self._under_way:
            self._session_lsn.clear()
            self._signal_idle()
        if self._behind:
            behind = self._take_behind()
            self._behind = [later for later in behind if later[0] > self.store.applied]  # first: an answer may raise
            for required, call in behind:
                if required <= self.store.applied:
                    self._answer(call)
        self._schedule()

    def _apply(self, records: Sequence[tuple[LogRecord, Sequence[Change]]]) -> None:
        if len(records) == 1:
            record, expanded = records[0]
            changes: list[Change] = [*expanded, *record.changes] if expanded else record.changes
        else:
            changes = [change for record, expanded in records for part in (expanded, record.changes) for change in part]
        self.store.apply(changes, records[-1][0].last)
        for record, expanded in records:
            self.machine.applied(record)
            self.watchers.tell(record.last, (expanded, record.changes))

    # --- reads that had to wait (rule 3)

    def _place_read(self, call: PendingCall) -> None:
        try:
            required = self._required(call.request)
            if required > self.store.applied:
                self._behind.append((required, call))
            else:
                self._answer(call)
        except ServiceError as error:
            fail_calls([call], error)

    def _take_behind(self) -> list[tuple[int, PendingCall]]:
        behind, self._behind = self._behind, []
        return behind

    def _answer(self, call: PendingCall) -> None:
        """Answers a read that sees what it must, after a confirmation if one is needed."""
        if self._alone:
            self._finish([call], [self._read_safely(call.request)])
            return
        self._unconfirmed.append(call)
        if self._confirming is None:
            self._confirming = asyncio.ensure_future(self._confirm())

    def _read_safely(self, request: Request) -> Answer | ServiceError:
        try:
            return self.machine.read(request)
        except ServiceError as error:
            return error

    async def _confirm(self) -> None:
        try:
            while self._unconfirmed:
                calls, self._unconfirmed = self._unconfirmed, []
                answers = [self._read_safely(call.request) for call in calls]
                asked = time.monotonic()
                try:
                    await self.log.confirm(self.descriptor.term)
                except Fenced as error:
                    self._unconfirmed = calls + self._unconfirmed
                    self._fail(error)
                    return
                except Exception as error:
                    fail_calls(calls, NotReady(f"partition {self.descriptor.id}: a read cannot be confirmed: {error}"))
                    continue
                self._confirmed_at = asked
                self._finish(calls, answers)
        finally:
            self._confirming = None

    def _finish(self, calls: Sequence[PendingCall], answers: Sequence[Answer | ServiceError]) -> None:
        for call, answer in zip(calls, answers, strict=True):
            self._crash("request.7-answered")
            future = call.future
            if not future.done():
                if isinstance(answer, Answer):
                    future.set_result(answer)
                else:
                    future.set_exception(answer)

    # --- endings

    def _unready(self) -> MillstreamError:
        if self.damage is not None:
            return DamageError(str(self.damage))  # a new one each time: one that is raised again and again keeps all that raised it
        if self.state is PartitionState.FENCED:
            return BadNode(self.reason)
        who = f"partition {self.descriptor.id} of table {self.descriptor.table!r}"
        return NotReady(
            f"{who} takes no writes: {self.reason}"
            if self.state is PartitionState.READ_ONLY
            else f"{who} is {self.state.value}{': ' if self.reason else ''}{self.reason}"
        )

    def _fail(self, error: BaseException, readable: bool = True) -> None:
        """Rule 4."""
        fenced = isinstance(error, Fenced)
        if self.state is not PartitionState.FENCED:
            self.state = PartitionState.FENCED if fenced else PartitionState.READ_ONLY if readable else PartitionState.FAILED
            self.reason = str(error)
        under_way = [call for turn in self._under_way for call in turn.calls]
        self._under_way.clear()
        self._bytes = 0
        self.machine.lsn = self.store.applied  # nothing comes behind it any more, so no read waits for it
        self._session_lsn.clear()
        fail_calls(under_way, UnknownOutcome(f"the write may have been done: {error}"))
        queued = self._inbox.take(1 << 62)
        fail_calls([*(call for call in queued if call.request.writes), *self.early.take_all()], self._unready())
        reads = [call for _, call in self._take_behind()] + [call for call in queued if not call.request.writes]
        if fenced or not readable:
            unconfirmed, self._unconfirmed = self._unconfirmed, []
            fail_calls([*unconfirmed, *reads], self._unready())
            self.watchers.close(self.reason)
        else:
            for call in reads:
                self._answer(call)
        self._signal_idle()

    def _signal_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def drain(self) -> None:
        """Waits until nothing is under way. Ordered with the data: what was taken in before is done."""
        while self._under_way or (self.state is SERVING and len(self._inbox) and not self._held):
            self._idle = asyncio.get_running_loop().create_future()
            self._schedule()
            await asyncio.wait([self._idle], timeout=0.2)
        self._idle = None

    async def leave(self) -> None:
        """Takes no more requests, and ends when those that it has are answered."""
        if self._replacing is not None:
            await asyncio.wait([self._replacing])
        if self.state is SERVING:
            await self.drain()
        self.state, self.reason = PartitionState.LEAVING, "it was removed from this node"
        waiting = [*self._inbox.take(1 << 62), *self.early.take_all(), *(call for _, call in self._take_behind()), *self._unconfirmed]
        self._unconfirmed = []
        fail_calls(waiting, BadNode(f"partition {self.descriptor.id} was removed"))
        self.watchers.close("the partition was removed")
        await self.log.close()

    async def replace(self, entries: Sequence[tuple[bytes, bytes]], name: str) -> int:
        """Other users' entries instead of those that are there (`snapshotting.py`, rule 3); the position of the change. name: where a replay of
        the log finds them. Once begun it ends, even if its caller waits no longer: the log has it, so it must be visible."""
        if self.state is not SERVING or self._held:
            raise self._unready() if self.state is not SERVING else NotReady(f"partition {self.descriptor.id} is being restored already")
        self._held = True
        self._replacing = asyncio.ensure_future(self._replace(entries, name))
        return await asyncio.shield(self._replacing)

    async def _replace(self, entries: Sequence[tuple[bytes, bytes]], name: str) -> int:
        try:
            await self.drain()
            if self.state is not SERVING:
                raise self._unready()
            lsn = self.machine.lsn = self.machine.lsn + 1
            now = self.machine.time = next_time(self.machine.time, self._wall())
            await self.log.append(LogRecord(self.descriptor.id, self.descriptor.term, lsn, lsn, now, restored=name))
            self.restores.append(name)
            replace_user_entries(self.store, entries, lsn)
        except BaseException as error:
            if self.state is SERVING:
                self._fail(error)
            raise
        finally:
            self._held = False
        self.watchers.close(f"the partition was restored from a snapshot, at position {lsn}: watch it anew")
        self._schedule()
        return lsn


def fail_calls(calls: Sequence[PendingCall], error: MillstreamError) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
