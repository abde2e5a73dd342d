"""A resident task: says hello, waits for orders, reads what it is told to, runs its shards level by level, and answers. It ends when the driver does.

Rules
1. One order at a time, in the main thread. Threads beside it hear the driver and the peers, give signs of life, and compact.
2. The shards of a slot are `shard % slots`, for ever: a task that takes a slot over finds its state caches where its predecessor left them, or loads them.
3. What an attempt does, and in which order, is `round`'s; here are its sockets. Anything unexpected is told to the driver, which tries again.
4. A task whose driver is gone ends: what it would stage belongs to nobody. If a hook does not let it, its process is ended. A driver that hangs up without a
   word has taken it for lost: it fails, so that Spark fills the slot again.
5. When it has ended, nothing of it is left in the process, which Spark may use for something else.
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
from typing import Any

import msgspec

from millstream import faults
from millstream.core.guards import Guards
from millstream.core.membership import Attempt
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.folding import Folding
from millstream.engine.columns.keying import Keying
from millstream.engine.compaction_orders import CompactionOrder, carry_out
from millstream.engine.resident import messages, wire
from millstream.engine.resident.exchange import Exchange, GivenUp, PeerLost, read_all
from millstream.engine.resident.messages import Beat, Ending, Generation, TaskFailure, TaskHello, TaskOrder, TaskReceipts, decode, encode
from millstream.engine.resident.partitioning import ArrowRows, from_bytes, joined, read_keyed, to_bytes
from millstream.engine.resident.round import AwaitRows, ReadSplits, Round, RoundStep, RunTask, SendRows, StageUnit
from millstream.engine.task import newest_before
from millstream.engine.worker_process import PROCESS, RunPlace
from millstream.errors import MillstreamError, travelling_name
from millstream.network import parse_address
from millstream.sources.splits import PlannedReader

BEAT_EVERY = 1.0  # seconds
_GRACE = 20.0  # seconds that a hook has when the driver is gone


class Setup(msgspec.Struct):
    """All that a task needs to know before its first order; pickled into the job. sources: per injector its reader and its keying, both
    pickled (a topology that has travelled does not know its sources)."""

    address: str
    cookie: bytes
    slots: int
    digest: str
    program: bytes
    place: RunPlace
    sources: list[tuple[bytes, bytes]]
    certificate: bytes = b""
    private_key: bytes = b""
    guards_off: str = ""


class HungUp(Exception):
    """The driver has closed the connection without saying that the run is over. If it is still there, Spark has to fill the slot again."""


def serve(setup_bytes: bytes, slot: int, job: int) -> bool:
    """In a Spark task: takes a slot until the run is over. job: the number of its job. Returns whether this process has had its day, and another is to
    have the slot."""
    setup = msgspec.msgpack.decode(setup_bytes, type=Setup)
    return ResidentTask(setup, slot, job).run()


class ResidentTask:
    """One slot, as long as this process has it."""

    def __init__(self, setup: Setup, slot: int, job: int) -> None:
        self.slot = slot
        self._setup = setup
        server, client = wire.tls_contexts(setup.certificate, setup.private_key)
        host, port = parse_address(setup.address)
        self._driver = wire.connect(host, port, setup.cookie, client, patience=60.0)
        try:
            self._unpack(setup)
            trusting = not Guards.without(setup.guards_off).attempts
            self._exchange = Exchange(slot, setup.slots, self._driver.host, setup.cookie, server, client, trusting)
        except BaseException as error:  # the driver can say it better than Spark, which would only try again
            self._tell_failure(Attempt(), TaskFailure(error=type(error).__name__, text=str(error), slot=slot))
            self._driver.close()
            raise
        self._at: tuple[int, int] | None = None  # level and shard
        self._mail: queue.SimpleQueue[wire.ResidentFrame | None] = queue.SimpleQueue()
        self._compactions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._driver.send(messages.HELLO, [encode(TaskHello(slot, socket.gethostname(), os.getpid(), self._exchange.address, job))])

    def _unpack(self, setup: Setup) -> None:
        compiled = self._compiled = PROCESS.compiled(setup.digest, setup.program)
        self._storage = PROCESS.storage(setup.place)
        self._cache = PROCESS.cache(setup.place)
        self._shards = setup.place.shards
        self._rows = ArrowRows(compiled.topology, self._shards, setup.slots, lambda table: ArrowInputs(compiled, setup.place.values, table))
        self._sources: list[tuple[PlannedReader, Keying]] = [
            (pickle.loads(reader), pickle.loads(keying)) for reader, keying in setup.sources
        ]

    def run(self) -> bool:
        """Until the driver ends the run, or is gone. Returns whether the task is to be replaced."""
        for target in (self._hear, self._beat, self._compact):
            threading.Thread(target=target, name=f"millstream-resident{target.__name__}", daemon=True).start()
        try:
            while (frame := self._mail.get()) is not None:
                if frame.kind == messages.GENERATION:
                    self._exchange.generation(decode(frame.body, Generation).members)
                elif frame.kind == messages.ORDER:
                    if not self._exchange.is_given_up(frame.attempt):
                        self._obey(frame.attempt, decode(frame.body, TaskOrder))
                elif frame.kind == messages.END:
                    return decode(frame.body, Ending).recycle
            raise HungUp(f"the driver at {self._setup.address} has closed the connection: it has ended, or has taken this task for lost")
        finally:
            self._ended.set()
            self._compactions.put(None)
            self._exchange.end()
            self._driver.close()

    # --- threads

    def _hear(self) -> None:
        read_all(self._driver, self._got)
        self._exchange.end()
        self._mail.put(None)
        if not self._ended.wait(_GRACE):
            os._exit(1)  # rule 4

    def _got(self, frame: wire.ResidentFrame) -> None:
        if frame.kind == messages.GIVE_UP:
            self._exchange.give_up(frame.attempt)
        elif frame.kind == messages.COMPACT:
            self._compactions.put(bytes(frame.body))
        else:
            self._mail.put(frame)

    def _compact(self) -> None:
        while (given := self._compactions.get()) is not None:
            order = decode(given, CompactionOrder)
            try:
                self._driver.send(messages.COMPACTED, [encode(carry_out(self._storage, order))])
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

    def _obey(self, attempt: Attempt, order: TaskOrder) -> None:
        gc.disable()  # records and rows make no cycles worth looking for thousands of times an epoch
        try:
            self._driver.send(messages.RECEIPTS, [encode(self._run_round(attempt, order))], attempt)
        except GivenUp:
            pass
        except PeerLost as lost:
            self._tell_failure(attempt, TaskFailure(lost=lost.slots, text=str(lost)))
        except MillstreamError as error:
            self._tell_failure(attempt, TaskFailure(error=travelling_name(error), text=str(error)))
        except (Exception, SystemExit) as error:  # a hook that exits would else look like a process that was killed
            self._tell_failure(attempt, TaskFailure(error=type(error).__name__, text="".join(traceback.format_exception(error))[-4000:]))
        finally:
            self._at = None
            self._compiled.running = None
            gc.enable()
            PROCESS.end_task()

    def _run_round(self, attempt: Attempt, given: TaskOrder) -> TaskReceipts:
        """One attempt at one epoch: does what the round wants, and notes how long what took."""
        order = given.order
        self._exchange.begin(attempt)
        steps = Round(
            self._compiled,
            order,
            self.slot,
            self._setup.slots,
            self._shards,
            rows=self._rows,
            given={level: from_bytes(data) for level, data in given.rows.items()},
            reads=given.reads is not None,
            storage=self._storage,
            cache=self._cache,
            point=lambda name, level, shard, number: faults.point(name, order.epoch, order.crash, order.driver, level, shard),
        ).steps()
        phases: dict[str, float] = {}
        brought: Any = None
        at = time.perf_counter()

        def note(phase: str) -> None:
            nonlocal at
            before, at = at, time.perf_counter()
            phases[phase] = phases.get(phase, 0.0) + (at - before) * 1000

        while True:
            try:
                step = steps.send(brought)
            except StopIteration as end:
                return TaskReceipts(end.value, phases)
            if isinstance(step, RunTask):
                self._at = (step.level, step.shard)
                brought = None
                continue
            note("step")
            phase, brought = self._do(step, attempt, given)
            note(phase)

    def _do(self, step: RoundStep, attempt: Attempt, given: TaskOrder) -> tuple[str, Any]:
        """What a step of the round brings, and the phase that its time counts for."""
        if isinstance(step, ReadSplits):
            found: list[tuple[int, Any]] = []
            order = given.order
            folding = Folding(self._compiled, order.times, newest_before(order.before, self._compiled.topology))
            for one in given.reads or ():
                for split in pickle.loads(one.splits):
                    found += read_keyed(*self._sources[one.injector], self._rows, split, order.now, folding)
            return "read", found
        if isinstance(step, SendRows):
            self._exchange.send(attempt, step.level, {slot: to_bytes(joined(tables)) for slot, tables in step.rows.items()})
            return "exchange", None
        if isinstance(step, AwaitRows):
            return "exchange", [from_bytes(data) for data in self._exchange.gather(attempt, step.level)]
        assert isinstance(step, StageUnit)
        step.unit.write()
        return "stage", None

    def _tell_failure(self, attempt: Attempt, failure: TaskFailure) -> None:
        self._driver.send(messages.FAILED, [encode(failure)], attempt)


def _memory() -> int:
    """Bytes that this process has in memory now; where the system does not tell, the most that it ever had."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
