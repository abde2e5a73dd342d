"""A resident run without Spark: the driver in this process, its tasks in processes of their own, and somebody in Spark's place who starts them again.

`Nursery` does what Spark does for a run: it starts a process per slot, starts one that has failed again, and gives the job up when one has failed too
often. Processes are forked off a server that has all modules, as Spark's own workers are. `ResidentRun` is what `engine/spark/run_builder.py` builds, with rows
that a test gives. The pipeline has two levels with a weak edge between them, and numbers everything: what is lost or doubled leaves a gap.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from glob import glob
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import millstream as ms
from millstream import faults
from millstream.core.guards import Guards
from millstream.core.keys import key_text, shard_of
from millstream.core.topology import Group
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.keying import Keying
from millstream.engine.compaction_orders import CompactionOrder, carry_out
from millstream.engine.epochs import Epochs
from millstream.engine.program import Compiled, Program
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident import worker
from millstream.engine.resident.partitioning import ArrowRows, read_keyed
from millstream.engine.resident.runner import assemble
from millstream.engine.resident.worker import Setup
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.spark import pickling
from millstream.engine.task import Result, Task
from millstream.engine.trigger import Trigger
from millstream.engine.worker_process import RunPlace, WorkerProcess
from millstream.sources.base import Source
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.heartbeat import RunMode
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

GROUPS = 5
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["taskkit"])


def _fork_a_server() -> None:
    """In a driver, before it has threads: the server of its tasks is forked, because one that is started would import everything again. It is the driver's
    own, because a driver that is killed in the middle of asking for a process takes the server along."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    address = connection.arbitrary_address("AF_UNIX")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        alive, held = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(held)
            try:
                forkserver.main(listener.detach(), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, held, pid


def until(what: Callable[[], Any], seconds: float = 30.0, said: Callable[[], str] = str) -> None:
    """Waits for something to hold."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.005)


def slot_of(key: str, shards: int = 4, slots: int = 2) -> int:
    """Who has a key."""
    return shard_of(key_text(key).encode(), shards) % slots


# --- rows


class GivenReader(PlannedReader):
    """Rows that a test gives, as they come. They travel inside their pieces."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[dict[str, Any]] = []
        self.per_epoch = 1_000
        self.size = 1  # what a piece claims to have; more than `epochs.LITTLE` is read by the tasks
        self.safe = 0
        self._call: Callable[[], None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema}

    def first(self) -> str:
        return "0"

    def plan(self, start: str) -> SplitPlan:
        begin, end = int(start), min(len(self.rows), int(start) + self.per_epoch)
        pieces = [self.rows[at : min(end, at + 50)] for at in range(begin, end, 50)]
        return SplitPlan(str(end), pieces, self.size)

    def read(self, piece: Any) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(piece, schema=self.schema)

    def committed(self, end: str) -> None:
        self.safe = int(end)

    def wake(self, call: Callable[[], None]) -> bool:
        self._call = call
        return True

    def give(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows.extend(rows)
        self._call()


def arrow_of(ddl: str) -> pa.Schema:
    """Plain columns, without Spark."""
    types = {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC")}
    return pa.schema([(name, types[kind]) for name, kind in (field.split(" ") for field in ddl.split(", "))])


class Given(Source):
    """The source of those."""

    def __init__(self, schema: str = "key string, n long, at long, id string, do string") -> None:
        self.schema = schema
        self.given = GivenReader(arrow_of(schema))

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Any, unreadable: str | None = None) -> PlannedReader:
        return self.given


def numbered(count: int, keys: int = 12, first: int = 0, do: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    """Rows with growing numbers. do: what some of them have the hook do."""
    return [
        {"key": f"k{at % keys}", "n": at, "at": 1_700_000_000_000 + at, "id": f"{at:07d}", "do": (do or {}).get(at, "")}
        for at in range(first, first + count)
    ]


# --- the pipeline


def obey(do: str) -> None:
    """What a row has the hook do. FILE in "wait:FILE" is made by whoever waits, under a name of its own; it goes on when FILE.go is there."""
    what, _, where = do.partition(":")
    if what == "exit":
        os._exit(3)
    if what == "exit-once" and not os.path.exists(where):
        Path(where).touch()
        os._exit(3)
    if what == "touch":
        Path(where).touch()
    if what == "wait":
        here = Path(f"{where}.{os.getpid()}")
        here.touch()
        while not Path(f"{here}.go").exists():
            time.sleep(0.002)


class Steps(ms.Computation):
    """Numbers the records of a key, and says a number that is never the same again."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        if record.value["do"]:
            obey(record.value["do"])
        self.state += 1
        chance = secrets.randbits(32) if record.value["do"].endswith("dice") else 0
        self.produce({"step": self.state, "id": record.value["id"], "n": record.value["n"], "chance": chance})


class Groups(ms.Computation):
    """Numbers what a group of keys gets, behind a shuffle, and adds it up."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        count, total = self.state or (0, 0)
        self.state = [count + 1, total + record.value["n"]]
        self.produce({"count": count + 1, "total": total + record.value["n"], "id": record.value["id"], "chance": record.value["chance"]})


def group_of(record: ms.Record) -> int:
    """Few groups of keys."""
    return int(record.key[1:]) % GROUPS


Build = Callable[[Path], tuple[ms.Pipeline, Source]]  # a pipeline, and its source


def pipeline(work: Path, production: str = ms.WEAK) -> tuple[ms.Pipeline, Given]:
    p, source = ms.Pipeline("kit"), Given()
    rows = p.inject("rows", source, timestamp="at", id="id")
    steps = p.compute(Steps, rows, key="key", produces="steps", production=production)
    groups = p.compute(Groups, steps, key=group_of, produces="groups")
    p.emit(steps, ms.sinks.files(work / "steps"))
    p.emit(groups, ms.sinks.files(work / "groups"))
    return p, source


# --- in Spark's place


class _Forked:
    def __init__(self, setup: bytes, slot: int, job: int) -> None:
        self._process = _forks.Process(target=task, args=(setup, slot, job), daemon=True)
        self._process.start()
        self.pid: int = self._process.pid or 0

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode or 0


class Started:
    """The same with a command: for tasks that need more than a fork, as a network of their own."""

    def __init__(self, setup: bytes, slot: int, job: int, prefix: Sequence[str]) -> None:
        command = [*prefix, sys.executable, __file__, str(slot), str(job)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(setup)
        self._process.stdin.close()
        self.pid = self._process.pid

    def wait(self) -> int:
        return self._process.wait()


def task(setup: bytes, slot: int, job: int) -> None:
    """The body of a task's process."""
    given = msgspec.msgpack.decode(setup, type=Setup)
    if given.digest.startswith("cannot"):
        raise SystemExit(1)  # dies before it has said anything
    worker.carry_out = partial(_carry_out, Path(given.place.checkpoint).parent)  # type: ignore[attr-defined]
    worker.PROCESS = HiccupProcess(Path(given.place.checkpoint).parent, slot)  # type: ignore[attr-defined]
    try:
        worker.serve(setup, slot, job)
    except Exception:
        os._exit(1)  # what Spark would log


def _carry_out(work: Path, storage: Any, order: CompactionOrder) -> CompactionOrder:
    """A compaction that takes as long as there is a file `hold-compactions`, and fails while there is one `break-compactions`."""
    (work / f"compaction-begun-{order.computation}-{order.shard}-{time.monotonic_ns()}").touch()
    while (work / "hold-compactions").exists():
        time.sleep(0.005)
    if (work / "break-compactions").exists():
        return msgspec.structs.replace(order, error="OSError: broken by the test")
    return carry_out(storage, order)


class HiccupProcess(WorkerProcess):
    """A task cannot start while there is a file `hiccup-SLOT`, which it takes away unless it is to last."""

    def __init__(self, work: Path, slot: int) -> None:
        super().__init__()
        self._hiccup = work / f"hiccup-{slot}"

    def compiled(self, digest: str, blob: bytes) -> Any:
        if self._hiccup.exists():
            if self._hiccup.read_text() != "for ever":
                self._hiccup.unlink()
            raise OSError("the disk was slow")
        return super().compiled(digest, blob)


def served(setup: bytes, slot: int, job: int) -> int:
    """The same in a thread of this process."""
    try:
        worker.serve(setup, slot, job)
        return 0
    except Exception:
        return 1


class Nursery:
    """Runs a process per slot, as a job of Spark's does: one that fails is started again, `tries` times in all. holds: slots that it leaves empty."""

    def __init__(
        self, slots: int, tries: int = 1000, holds: Sequence[int] = (), prefixes: Mapping[int, Sequence[str]] | None = None
    ) -> None:
        self.tries, self.holds = tries, set(holds)
        self.prefixes = prefixes or {}
        self.setup = b""
        self.setups: dict[int, bytes] = {}  # of slots that are told something else
        self.jobs = 0
        self.alive: set[int] = set()
        self.ended: list[tuple[int, int]] = []  # slot and exit code
        self._lock = threading.Condition()
        self._closed = False

    def begin(self, job: int, slots: Sequence[int]) -> None:
        """A job: until all its slots have ended well. Raises if one fails too often."""
        self.jobs += 1
        failed: list[str] = []
        pids: set[int] = set()
        threads = [threading.Thread(target=self._keep, args=(job, slot, failed, pids), daemon=True) for slot in slots]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if failed:
            raise RuntimeError(f"Job aborted due to stage failure: {failed[0]}")

    def _keep(self, job: int, slot: int, failed: list[str], pids: set[int]) -> None:
        with self._lock:
            self._lock.wait_for(lambda: slot not in self.holds or self._closed or bool(failed))
        for left in reversed(range(self.tries)):
            if self._closed or failed:
                return
            if self.once(slot, pids, job) == 0:
                return
            if not left:
                failed.append(f"task {slot} failed {self.tries} times")
                self.kill_all(pids)
                with self._lock:
                    self._lock.notify_all()

    def once(self, slot: int, pids: set[int] | None = None, job: int = 1) -> int:
        """One process on a slot, until it ends. By hand: one more, beside the one that is there. pids: of its job."""
        setup = self.setups.get(slot, self.setup)
        process = Started(setup, slot, job, self.prefixes[slot]) if slot in self.prefixes else _Forked(setup, slot, job)
        with self._lock:
            self.alive.add(process.pid)
            if pids is not None:
                pids.add(process.pid)
            if self._closed:
                os.kill(process.pid, signal.SIGKILL)
        code = process.wait()
        with self._lock:
            self.alive.discard(process.pid)
            self.ended.append((slot, code))
        return code

    def let_go(self) -> None:
        """Slots that were held are filled."""
        with self._lock:
            self.holds.clear()
            self._lock.notify_all()

    def kill_all(self, pids: set[int] | None = None) -> None:
        """pids: those alone, if they are still there."""
        with self._lock:
            for pid in self.alive if pids is None else self.alive & pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self.kill_all()


# --- the run


class KitPoints(faults.CrashPoints):
    """pause: an epoch before whose commit the process stops itself."""

    pause: int | None = None

    def __call__(self, name: str, epoch: int) -> None:
        super().__call__(name, epoch)
        if epoch == self.pause and name == "epoch.5-checked":
            self.pause = None
            os.kill(os.getpid(), signal.SIGSTOP)


class ProcessTasks:
    """A process per task and epoch, as in a micro-batch, without a JVM. Implements the epochs' TaskRunner."""

    def __init__(self, program: Program, place: RunPlace, reader: PlannedReader, keying: Keying) -> None:
        self._compiled, self._place, self._reader, self._keying = Compiled(program), place, reader, keying

    def run(self, input: Mapping[str, SplitPlan] | None, order: EpochOrder) -> list[Receipt]:
        topology, place = self._compiled.topology, self._place
        rows = ArrowRows(topology, place.shards, 1, lambda table: ArrowInputs(self._compiled, place.values, table))
        waiting: dict[int, list[Any]] = defaultdict(list)
        for split in [split for plan in (input or {}).values() for split in plan.splits]:
            for level, table in read_keyed(self._reader, self._keying, rows, split, order.now):
                waiting[level].append(table)
        receipts: list[Receipt] = []
        for level, groups in enumerate(topology.levels):
            inputs = rows.inputs(waiting.pop(level, []))
            for group in groups:
                for shard in range(place.shards):
                    result = self._in_a_process(order, level, group, shard, inputs(group, shard, 0))
                    receipts.append(result.receipt)
                    for later, sent in result.sent.items():
                        waiting[later].append(rows.sent(sent, result.receipt.unit))
        return receipts

    def _in_a_process(self, order: EpochOrder, level: int, group: Group, shard: int, inputs: ArrowInputs) -> Result:
        fork = multiprocessing.get_context("fork")  # this process has no other thread
        ours, theirs = fork.Pipe(duplex=False)

        def work() -> None:
            process = WorkerProcess()
            task = Task(
                self._compiled,
                order,
                group,
                shard,
                shards=self._place.shards,
                storage=process.storage(self._place),
                cache=process.cache(self._place),
                point=lambda name: faults.point(name, order.epoch, order.crash, order.driver, level, shard),
            )
            theirs.send(task.run(inputs))

        child = fork.Process(target=work)
        child.start()
        theirs.close()
        result: Result = ours.recv()
        child.join()
        return result

    def status(self) -> RunMode:
        return RunMode()

    def close(self) -> None:
        pass


class MicroBatchRun:
    """One run of epochs whose tasks are processes of their own, on a checkpoint in `work`."""

    def __init__(
        self,
        work: Path,
        rows: Sequence[dict[str, Any]],
        crash: str = "",
        guards: str = "",
        shards: int = 2,
        build: Build = pipeline,
        bounded: bool = False,
    ) -> None:
        opened = _Opened(work, rows, shards, build)
        self.reader, self.points = opened.reader, KitPoints(crash)
        chosen = Guards.without(guards)
        planner = SourcePlanner(opened.readers, opened.log.storage, opened.token, opened.latest, bounded, chosen)
        self.epochs: Epochs[Mapping[str, SplitPlan]] = Epochs(
            opened.program,
            shards,
            opened.log,
            opened.latest,
            opened.token,
            runner=ProcessTasks(opened.program, opened.place, self.reader, opened.keying),
            planner=planner,
            guards=chosen,
            points=self.points,
        )
        self._trigger = Trigger(self.epochs, planner, bounded=bounded, every=0.0, eager=False)
        self.epochs.resume()

    def __enter__(self) -> MicroBatchRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.epochs.close()

    def turn(self) -> None:
        while self._trigger.turn():
            pass


class _Opened:
    """A checkpoint in `work`, claimed, and what a run on it needs."""

    def __init__(self, work: Path, rows: Sequence[dict[str, Any]], shards: int, build: Build) -> None:
        made, source = build(work)
        self.reader: Any = source.reader(arrow_of)
        if rows:
            self.reader.give(rows)
        self.program = made.program()
        topology = self.program.topology
        for emission in topology.emissions:
            emission.sink.by_default(0)
            emission.sink.check()
        self.log = ManifestLog(open_storage(str(work / "checkpoint")))
        identity = self.log.identify(self.program.name, shards, shards, list(topology.injectors))
        (injector,) = topology.injectors.values()
        self.readers: dict[str, Any] = {injector.name: self.reader}
        self.keying = Keying(self.program, injector, self.reader.schema, shards, None)
        self.keyings = {injector.name: self.keying}
        self.latest = self.log.latest()
        self.token = self.log.runs.claim(self.latest.token if self.latest is not None else None)
        self.place = RunPlace(str(work / "checkpoint"), identity.id, None, str(work / "state_caches"), shards, [self.keying.layout])


class ResidentRun:
    """One resident run on a checkpoint in `work`. Use it with `with`. proxied: the slot whose way to the driver can be cut."""

    def __init__(
        self,
        work: Path,
        *,
        slots: int = 2,
        shards: int = 4,
        guards: str = "",
        crash: str = "",
        host: str = "127.0.0.1",
        tls: bool = False,
        nursery: Nursery | None = None,
        rows: Sequence[dict[str, Any]] = (),
        proxied: int | None = None,
        change: Callable[[Setup], None] = lambda setup: None,
        build: Build = pipeline,
        bounded: bool = False,
    ) -> None:
        for flag in glob(f"/tmp/millstream-crash-{os.getpid()}-*"):  # of another test of this process
            os.unlink(flag)
        self.work = work
        opened = _Opened(work, rows, shards, build)
        self.reader = opened.reader
        self.nursery = nursery or Nursery(slots)
        self.points = KitPoints(crash)
        parts = assemble(
            opened.program,
            log=opened.log,
            latest=opened.latest,
            token=opened.token,
            place=opened.place,
            slots=slots,
            readers=opened.readers,
            keyings=opened.keyings,
            host=host,
            remote=tls,
            bounded=bounded,
            pickled=pickling.dumps,
            points=self.points,
            guards_off=guards,
        )
        self.epochs, self.coordinator, self.setup = parts.epochs, parts.coordinator, parts.setup
        change(self.setup)
        self.nursery.setup = msgspec.msgpack.encode(self.setup)
        if proxied is not None:
            self.proxy = Proxy(self.coordinator.address)
            self.nursery.setups[proxied] = msgspec.msgpack.encode(msgspec.structs.replace(self.setup, address=self.proxy.address))
        self._trigger = Trigger(self.epochs, parts.planner, bounded=bounded, every=0.0, eager=False)
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        parts.start(self.nursery.begin)
        self.epochs.resume()

    def __enter__(self) -> ResidentRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(check=exc[0] is None)

    def give(self, *rows: dict[str, Any]) -> None:
        self.reader.give(rows)

    def turn(self, *rows: dict[str, Any]) -> None:
        """Epochs, here and now, until all that was given is committed."""
        if rows:
            self.reader.give(rows)
        while self._trigger.turn():
            pass

    def go(self) -> None:
        """Epochs in a thread, until `stop`."""
        self._thread = threading.Thread(target=self._go, name="kit-epochs", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Epochs, until somebody says `stop`."""
        self._trigger.run(lambda: self._stopping)

    def _go(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.error = error

    def wait(self, rows: int | None = None, seconds: float = 30.0) -> None:
        """Until so many rows are committed and published: all that were given, if nobody says it."""
        wanted = len(self.reader.rows) if rows is None else rows
        until(lambda: self.reader.safe >= wanted or self.error is not None, seconds, lambda: f"{self.reader.safe} of {wanted}; {self.mode}")
        if self.error is not None:
            raise self.error

    def stop(self, check: bool = True) -> None:
        self._stopping = True
        self._trigger.wake()
        if self._thread is not None:
            self._thread.join(30)
        self.epochs.close()
        if check:
            until(lambda: not self.nursery.alive, 15, lambda: f"{self.nursery.alive} have not ended")
        self.nursery.close()
        if check and self.error is not None:
            raise self.error

    @property
    def lost_epochs(self) -> int:
        """How often an epoch was run again because a task was lost."""
        return self.epochs.runner.lost_epochs  # type: ignore[attr-defined,no-any-return]

    @property
    def mode(self) -> Any:
        return self.coordinator.status()

    def pid(self, slot: int) -> int:
        """The process on a slot, once there is one."""
        found: list[int] = []
        until(lambda: found.extend(sign.pid for sign in self.mode.tasks if sign.slot == slot) or found)
        return found[0]

    def kill(self, slot: int) -> int:
        """kill -9 of whoever sits there; waits until somebody else does. Returns who was killed."""
        before = self.pid(slot)
        os.kill(before, signal.SIGKILL)
        until(lambda: any(sign.slot == slot and sign.pid != before for sign in self.mode.tasks) or self.error is not None)
        return before


# --- a driver in a process of its own


class Driver:
    """Runs epochs over `rows.jsonl` until all of it is committed, as a process that can be killed and paused. crash: see `faults`; pause: an epoch before
    which it stops itself; much: tasks read their part themselves; resident: in tasks that stay, else a process per task and epoch; settles: what the last
    rows made due is done, too, as in a bounded run."""

    def __init__(
        self,
        work: Path,
        crash: str = "",
        guards: str = "",
        pause: int | None = None,
        much: bool = False,
        per_epoch: int = 60,
        resident: bool = True,
        settles: bool = False,
        build: Build = pipeline,
        shards: int | None = None,
    ) -> None:
        shards = shards or (4 if resident else 2)
        args = (work, crash, guards, pause, much, per_epoch, resident, settles, build, shards)
        self._process = _forks.Process(target=_drive, args=args)
        self._process.start()
        self.work = work
        self.pid: int = self._process.pid or 0

    def wait(self, seconds: float = 60.0) -> int:
        """How it ended: 0, or minus the signal, or 3 for an error of Millstream's, which `said` then tells."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it has not ended within {seconds} seconds"
        return self._process.exitcode

    def said(self) -> str:
        return (self.work / f"said-{self.pid}").read_text()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def is_paused(self) -> bool:
        """Whether it has stopped itself."""
        return "\nState:\tT" in Path(f"/proc/{self.pid}/status").read_text()

    def end(self) -> None:
        """However it is."""
        self._process.kill()
        self._process.join()


def write_rows(work: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """What drivers find; rows are only ever added."""
    work.mkdir(exist_ok=True)
    (work / "rows.new").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "rows.new").rename(work / "rows.jsonl")


def _drive(
    work: Path,
    crash: str,
    guards: str,
    pause: int | None,
    much: bool,
    per_epoch: int,
    resident: bool,
    settles: bool,
    build: Build,
    shards: int,
) -> None:
    _fork_a_server()
    rows = [json.loads(line) for line in (work / "rows.jsonl").read_text().splitlines()]
    try:
        with (ResidentRun if resident else MicroBatchRun)(
            work, rows=rows, crash=crash, guards=guards, build=build, shards=shards, bounded=settles
        ) as run:
            run.reader.per_epoch = per_epoch
            run.reader.size = 1 << 30 if much else 1
            run.points.pause = pause
            run.turn()
            if settles:
                run.epochs.settle(lambda: False)
    except ms.errors.MillstreamError as error:
        (work / f"said-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
        os._exit(3)


# --- what became of it


def deaths(pid: int) -> int:
    """How many workers of a driver died. Each left a mark, so as not to die again."""
    marks = list(Path("/tmp").glob(f"millstream-crash-{pid}-*"))
    for mark in marks:
        mark.unlink()
    return len(marks)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Published rows, files in order of epoch."""
    found = []
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.name.rsplit("-", 1)[1]):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


def faults_of(
    work: Path, given: Sequence[Mapping[str, Any]], published: Callable[[Path], list[dict[str, Any]]] = rows_of
) -> dict[str, int]:
    """How many of the rows given are lost, doubled, out of order, or wrong, at both levels. {} is exact. published: the rows of an output."""
    found: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    step: dict[str, int] = defaultdict(int)
    steps, grouped = published(work / "steps"), published(work / "groups")
    for row in steps:
        step[row["key"]] += 1
        seen[row["value"]["id"]] += 1
        found["out of order"] += row["value"]["step"] != step[row["key"]]
    found["lost"] += sum(not seen[row["id"]] for row in given)
    found["doubled"] += sum(count - 1 for count in seen.values())
    groups: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    fed: Counter[str] = Counter()
    number = {row["id"]: row["n"] for row in given}
    for row in grouped:
        one, value = groups[row["key"]], row["value"]
        one[0] += 1
        one[1] += number.get(value["id"], 0)
        fed[value["id"]] += 1
        found["out of order"] += one[0] != value["count"]
        found["wrong"] += one[1] != value["total"]
    found["lost"] += sum(not fed[row["id"]] for row in given)
    found["doubled"] += sum(count - 1 for count in fed.values())
    told = {row["value"]["id"]: row["value"]["chance"] for row in steps}
    found["mixed"] += sum(told.get(row["value"]["id"]) != row["value"]["chance"] for row in grouped)
    return {name: count for name, count in found.items() if count}


# --- a way that can be cut


class Proxy:
    """Stands between a task and the driver. When it is cut, the driver's end closes, and the task hears nothing of it: a partition."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ways: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._ways.append((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                if not self._is_cut:
                    other.sendall(data)
        except OSError:
            pass
        if not self._is_cut:
            for end in (one, other):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def cut(self) -> None:
        self._is_cut = True
        for _, far in self._ways:
            far.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    import taskkit

    taskkit.task(sys.stdin.buffer.read(), int(sys.argv[1]), int(sys.argv[2]))
