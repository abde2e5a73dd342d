"""What tests of the state service share: a log whose completions the test decides, partitions without a node, and nodes as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from millstream.errors import Fenced, MillstreamError
from millstream.service import Table, functions
from millstream.service.logs.log_contract import Log
from millstream.service.messages import Decide, Decision, Descriptor, LogRecord, Op, Request
from millstream.service.partition import Partition
from millstream.service.stores.memory import memory

SRC = str(Path(__file__).resolve().parents[2] / "src")


class HandLog:
    """A log in memory. Records are for good when the test says so, in any order; or at once."""

    alone = True

    def __init__(self, at_once: bool = True) -> None:
        self.at_once = at_once
        self.records: list[LogRecord] = []
        self.waiting: list[tuple[LogRecord, asyncio.Future[None]]] = []
        self.sealed = 0
        self.confirmed = 0

    async def seal(self, term: int) -> int:
        if term < self.sealed:
            raise Fenced(f"term {term} is over")
        self.sealed = term
        return self.records[-1].last if self.records else 0

    async def read(self, after: int) -> AsyncIterator[LogRecord]:
        for record in list(self.records):
            if record.last > after:
                yield record

    def append(self, record: LogRecord) -> Awaitable[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if record.term < self.sealed:
            future.set_exception(Fenced(f"term {record.term} is over"))
        elif self.at_once:
            self.records.append(record)
            future.set_result(None)
        else:
            self.waiting.append((record, future))
        return future

    def complete(self, place: int) -> None:
        """One that waits is for good now, whatever the order. What is kept stays in order."""
        record, future = self.waiting.pop(place)
        self.records.append(record)
        self.records.sort(key=lambda one: one.first)
        future.set_result(None)

    async def confirm(self, term: int) -> None:
        self.confirmed += 1
        if term < self.sealed:
            raise Fenced(f"term {term} is over")

    async def trim(self, upto: int) -> None:
        self.records = [record for record in self.records if record.last > upto]

    async def close(self) -> None:
        """Nothing is open."""


class SharedHandLog(HandLog):
    """A log that others may seal, so reads are confirmed. `broken`: what a confirmation raises."""

    alone = False
    broken: Exception | None = None

    async def confirm(self, term: int) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        await super().confirm(term)


async def settle() -> None:
    """Lets everything that is ready run. A call passes the event loop a few times at most before it waits for the log."""
    for _ in range(20):
        await asyncio.sleep(0)


async def soon(future: Any) -> Any:
    """What becomes of a request; an error is given, not raised. Nothing that is tested takes five seconds."""
    try:
        return await asyncio.wait_for(asyncio.ensure_future(future), 5)
    except (MillstreamError, TimeoutError) as error:
        return error


def table(**options: Any) -> Table:
    """A table with some functions."""
    return Table("t", functions=[functions.add, functions.append, functions.swap], **options)


async def partition(log: Log | None = None, of: Table | None = None, wall: Callable[[], int] | None = None, store: Any = None) -> Partition:
    """A partition of its own, open."""
    found = Partition(
        Descriptor(1, "t"),
        of or table(),
        log or HandLog(),
        store or memory().open(Path("unused")).of(1),
        wall=wall or (lambda: time.time_ns() // 1_000_000),
    )
    await found.open()
    return found


def session(name: int = 0, began: int = 1) -> bytes:
    """A session's name."""
    return began.to_bytes(8, "big") + name.to_bytes(8, "big")


def upsert(key: bytes, value: bytes, **more: Any) -> Request:
    return Request(Op.UPSERT, [key], [value], size=len(key) + len(value), **more)


def get(key: bytes, **more: Any) -> Request:
    return Request(Op.GET, [key], **more)


def call(function: str, key: bytes, argument: bytes = b"", **more: Any) -> Request:
    return Request(Op.CALL, [key], function=function, argument=argument, size=len(key) + len(argument), **more)


def stage(keys: list[bytes], values: list[bytes], txn: str, **more: Any) -> Request:
    return Request(Op.STAGE, keys, values, txn=txn, size=8, **more)


def decide(decision: Decision, fence: int, *txns: str, keep: tuple[str, ...] = ()) -> Request:
    return Request(Op.DECIDE, [txn.encode() for txn in txns], decide=Decide(decision, list(txns), fence, list(keep)), size=10)


APP = """
import millstream as ms
from millstream.service import functions
t = ms.service.Table("t", functions=[functions.add, functions.append, functions.swap]{options})
"""


class NodeProcess:
    """A node in a process of its own: started, killed, paused, gone on with."""

    def __init__(
        self, folder: Path, *, name: str = "n1", options: str = "", arguments: tuple[str, ...] = (), app: str | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self.app = folder / f"app_{name}.py"
        self.app.write_text(app or APP.format(options=f", {options}" if options else ""))
        self.arguments = arguments
        self.address = ""
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def control(self) -> str:
        return f"unix:{self.folder / self.name}/control.sock"

    def start(self, crash: str = "", wait: bool = True, *more: str) -> NodeProcess:
        """Starts it and waits until it listens; with `wait` off, the caller looks at what becomes of it."""
        environment = {**os.environ, "PYTHONPATH": SRC, "MILLSTREAM_CRASH": crash}
        command = [
            sys.executable,
            "-m",
            "millstream.cli",
            "serve",
            "tables",
            str(self.app),
            "--node",
            self.name,
            "--dir",
            str(self.folder / self.name),
        ]
        command += ["--listen", f"127.0.0.1:{self.port}", *self.arguments, *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        if wait:
            assert self.process.stdout is not None
            said = []
            for line in self.process.stdout:
                said.append(line)
                if "listens on" in line:
                    self.address = line.split("listens on ")[1].split(" ")[0]
                    self.port = int(self.address.rpartition(":")[2])
                    return self
            raise AssertionError("".join(said))
        return self

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def died(self, seconds: float = 30) -> bool:
        """Whether it was killed, by itself, within so many seconds."""
        assert self.process is not None
        try:
            return self.process.wait(seconds) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def __enter__(self) -> NodeProcess:
        return self if self.process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
