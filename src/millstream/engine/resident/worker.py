"""A resident task: says hello, waits for orders, reads what it is told to, runs its shards level by level, and answers. It ends when the driver does.

Rules
1. One order at a time, in the main thread. Threads beside it hear the driver and the peers, give signs of life, and fold.
2. The shards of a seat are `shard % seats`, for ever: a task that takes a seat over finds its replicas where its predecessor left them, or loads them.
3. All that an attempt stages lies in one object, written once; rows for later levels travel before it is durable, because nothing counts before the manifest.
4. A failure that retrying cannot fix is a receipt; anything unexpected is told to the driver, which tries again.
5. A task whose driver is gone ends: what it would stage belongs to nobody. If a hook does not let it, its process is ended. A driver that hangs up without a
   word has taken it for lost: it fails, so that Spark fills the seat again.
6. When it has ended, nothing of it is left in the process, which Spark may use for something else.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import resource
import socket
import threading
import time
import traceback
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from millstream import faults
from millstream.core.membership import Attempt
from millstream.engine.columns.arrow_inputs import ArrowInputs
from millstream.engine.columns.keying import Keying
from millstream.engine.compaction_orders import FoldOrder, carry_out
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident import messages, tls, wire
from millstream.engine.resident.exchange import Exchange, GivenUp, PeerLost, read_all
from millstream.engine.resident.messages import (
    Beat,
    Ending,
    Generation,
    SeatFailure,
    SeatHello,
    SeatOrder,
    SeatReceipts,
    decode,
    encode,
)
from millstream.engine.resident.partitioning import RouteArrays, by_part, by_seat, from_bytes, joined, to_bytes
from millstream.engine.staging import Unit, check_token
from millstream.engine.task import Task
from millstream.engine.worker_process import ProcessCache, RunPlace, compiled_of, storage_of, task_ended
from millstream.errors import MillstreamError, travelling_name
from millstream.network import parse_address
from millstream.sources.splits import PlannedReader
from millstream.state.compaction import unit_name

BEAT_EVERY = 1.0  # seconds
_GRACE = 20.0  # seconds that a hook has when the driver is gone


class Setup(msgspec.Struct):
    """All that a task needs to know before its first order; pickled into the job. sources: per injector its reader and its keying, both
    pickled (a topology that has travelled does not know its sources)."""

    address: str
    cookie: bytes
    seats: int
    digest: str
    program: bytes
    place: RunPlace
    sources: list[tuple[bytes, bytes]]
    certificate: bytes = b""
    private_key: bytes = b""
    guards_off: str = ""


class HungUp(Exception):
    """The driver has closed the connection without saying that the run is over. If it is still there, Spark has to fill the seat again."""


def serve(setup_bytes: bytes, seat: int, job: int) -> bool:
    """In a Spark task: takes a seat until the run is over. job: the number of its job. Returns whether this process has had its day, and another is to
    have the seat."""
    setup = msgspec.msgpack.decode(setup_bytes, type=Setup)
    return ResidentTask(setup, seat, job).run()


class ResidentTask:
    """One seat, as long as this process has it."""

    def __init__(self, setup: Setup, seat: int, job: int) -> None:
        self.seat = seat
        self._setup = setup
        server, client = tls.contexts(setup.certificate, setup.private_key)
        host, port = parse_address(setup.address)
        self._driver = wire.connect(host, port, setup.cookie, client, patience=60.0)
        try:
            self._unpack(setup)
            trusting = "attempts" in setup.guards_off.split(",")
            self._exchange = Exchange(seat, setup.seats, self._driver.host, setup.cookie, server, client, trusting)
        except BaseException as error:  # the driver can say it better than Spark, which would only try again
            self._failed(Attempt(), SeatFailure(error=type(error).__name__, text=str(error), seat=seat))
            self._driver.close()
            raise
        self._at: tuple[int, int] | None = None  # level and shard
        self._mail: queue.SimpleQueue[wire.ResidentFrame | None] = queue.SimpleQueue()
        self._folds: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._driver.send(messages.HELLO, [encode(SeatHello(seat, socket.gethostname(), os.getpid(), self._exchange.address, job))])

    def _unpack(self, setup: Setup) -> None:
        self._compiled = compiled_of(setup.digest, setup.program)
        self._place = setup.place
        self._storage = storage_of(setup.place)
        self._cache = ProcessCache(setup.place)
        self._shards = setup.place.shards
        self._mine = range(self.seat, self._shards, setup.seats)
        self._ways = RouteArrays(self._compiled.topology.routes, self._shards)
        self._readers: list[PlannedReader] = [pickle.loads(reader) for reader, _ in setup.sources]
        self._keyings: list[Keying] = [pickle.loads(keying) for _, keying in setup.sources]

    def run(self) -> bool:
        """Until the driver ends the run, or is gone. Returns whether the task is to be replaced."""
        for target in (self._hear, self._beat, self._fold):
            threading.Thread(target=target, name=f"millstream-resident{target.__name__}", daemon=True).start()
        try:
            while (frame := self._mail.get()) is not None:
                if frame.kind == messages.GENERATION:
                    self._exchange.generation(decode(frame.body, Generation).members)
                elif frame.kind == messages.ORDER:
                    if not self._exchange.is_given_up(frame.attempt):
                        self._obey(frame.attempt, decode(frame.body, SeatOrder))
                elif frame.kind == messages.END:
                    ending: Ending = decode(frame.body, Ending)
                    return ending.recycle
            raise HungUp(f"the driver at {self._setup.address} has closed the connection: it has ended, or has taken this task for lost")
        finally:
            self._ended.set()
            self._folds.put(None)
            self._exchange.end()
            self._driver.close()

    # --- threads

    def _hear(self) -> None:
        read_all(self._driver, self._got)
        self._exchange.end()
        self._mail.put(None)
        if not self._ended.wait(_GRACE):
            os._exit(1)  # rule 5

    def _got(self, frame: wire.ResidentFrame) -> None:
        if frame.kind == messages.GIVE_UP:
            self._exchange.give_up(frame.attempt)
        elif frame.kind == messages.FOLD:
            self._folds.put(bytes(frame.body))
        else:
            self._mail.put(frame)

    def _fold(self) -> None:
        while (given := self._folds.get()) is not None:
            order = decode(given, FoldOrder)
            try:
                self._driver.send(messages.FOLDED, [encode(carry_out(self._storage, order))])
            except OSError:
                return

    def _beat(self) -> None:
        since, last = time.monotonic(), Beat()
        while not self._ended.is_set():
            found = self._what()
            if (found.computation, found.shard, found.key) != (last.computation, last.shard, last.key) or not found.computation:
                since, last = time.monotonic(), found
            found.millis = int((time.monotonic() - since) * 1000)
            found.rss = _memory()
            try:
                self._driver.send(messages.BEAT, [encode(found)])
            except OSError:
                return
            self._ended.wait(BEAT_EVERY)

    def _what(self) -> Beat:
        """What the main thread is at."""
        step, at = self._compiled.running, self._at
        if step is None or at is None:
            return Beat()
        try:
            return Beat(step.name, at[1], repr(getattr(step.visit, "key", ""))[:200])
        except Exception:
            return Beat(step.name, at[1])

    # --- an order

    def _obey(self, attempt: Attempt, order: SeatOrder) -> None:
        gc.disable()  # records and rows make no cycles worth looking for thousands of times an epoch
        try:
            self._driver.send(messages.RECEIPTS, [encode(_Epoch(self, attempt, order).run())], attempt)
        except GivenUp:
            pass
        except PeerLost as lost:
            self._failed(attempt, SeatFailure(lost=lost.seats, text=str(lost)))
        except MillstreamError as error:
            self._failed(attempt, SeatFailure(error=travelling_name(error), text=str(error)))
        except (Exception, SystemExit) as error:  # a hook that exits would else look like a process that was killed
            self._failed(attempt, SeatFailure(error=type(error).__name__, text="".join(traceback.format_exception(error))[-4000:]))
        finally:
            self._at = None
            self._compiled.running = None
            gc.enable()
            task_ended()

    def _failed(self, attempt: Attempt, failure: SeatFailure) -> None:
        self._driver.send(messages.FAILED, [encode(failure)], attempt)


def _memory() -> int:
    """Bytes that this process has in memory now; where the system does not tell, the most that it ever had."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Epoch:
    """One attempt at one epoch, on all shards of a seat."""

    def __init__(self, task: ResidentTask, attempt: Attempt, order: SeatOrder) -> None:
        self.task = task
        self.attempt = attempt
        self.order: EpochOrder = order.order
        self.given = order
        self.rows: dict[int, list[Any]] = {level: [from_bytes(data)] for level, data in order.rows.items()}
        self.away: dict[int, dict[int, list[Any]]] = {}  # level, seat
        self.phases: dict[str, float] = {}
        self.now = next(iter(self.order.times.values())).now if self.order.times else 0

    def run(self) -> SeatReceipts:
        task = self.task
        at = time.perf_counter()
        task._exchange.begin(self.attempt)
        if self.given.reads is not None:
            self._read()
            at = self._noted("read", at)
            self._swap(0)
            at = self._noted("exchange", at)
        unit = Unit(task._storage, unit_name(self.order.epoch, f"t{task.seat}", self.order.token))
        receipts: list[Receipt] = []
        for level, groups in enumerate(task._compiled.topology.levels):
            if level:
                self._swap(level)
                at = self._noted("exchange", at)
            parts = by_part(joined(self.rows.pop(level, [])))
            for group in groups:
                for shard in task._mine:
                    task._at = (level, shard)
                    result = Task(
                        task._compiled,
                        self.order,
                        group,
                        shard,
                        shards=task._shards,
                        storage=task._storage,
                        cache=task._cache,
                        point=partial(self._point, level, shard),
                        unit=unit,
                    ).run(ArrowInputs(task._compiled, task._place.values, parts.get(group.index * task._shards + shard)))
                    receipts.append(result.receipt)
                    if result.receipt.failure:
                        return SeatReceipts([result.receipt])
                    for later, sent in result.sent.items():
                        self._add(later, task._ways.sent(sent, result.receipt.unit))
            at = self._noted("step", at)
        check_token(task._storage, self.order)
        for shard in task._mine:
            faults.point("task.4-staging", self.order.epoch, self.order.crash, self.order.driver, None, shard)
        unit.write()
        for shard in task._mine:
            faults.point("task.4-staged", self.order.epoch, self.order.crash, self.order.driver, None, shard)
        self._noted("stage", at)
        return SeatReceipts(receipts, self.phases)

    def _noted(self, phase: str, since: float) -> float:
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + (now - since) * 1000
        return now

    def _point(self, level: int, shard: int, name: str) -> None:
        if name == "task.3-shuffled":
            faults.point(name, self.order.epoch, self.order.crash, self.order.driver, level, shard)

    def _read(self) -> None:
        """What this task reads, keyed."""
        for one in self.given.reads or ():
            reader, keying = self.task._readers[one.injector], self.task._keyings[one.injector]
            for piece in pickle.loads(one.pieces):
                batches = list(reader.read(piece))
                if batches:
                    keyed = keying.keyed(pa.Table.from_batches(batches), self.now, reader.origin(piece))
                    for level, table in self.task._ways.by_level(keyed).items():
                        self._add(level, table)

    def _add(self, level: int, table: Any) -> None:
        """Rows for a level: ours stay, those of others wait to be sent."""
        for seat, rows in by_seat(table, self.task._shards, self.task._setup.seats).items():
            if seat == self.task.seat:
                self.rows.setdefault(level, []).append(rows)
            else:
                self.away.setdefault(level, {}).setdefault(seat, []).append(rows)

    def _swap(self, level: int) -> None:
        """Everybody gets what we have for a level, and we get what they have."""
        exchange = self.task._exchange
        if self.task._setup.seats == 1:
            return
        frames = {seat: to_bytes(joined(tables)) for seat, tables in self.away.pop(level, {}).items()}
        exchange.send(self.attempt, level, frames)
        self.rows.setdefault(level, []).extend(from_bytes(data) for data in exchange.gather(self.attempt, level))
