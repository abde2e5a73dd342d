"""CPU time of a Spark application on this machine, process by process: the JVM, the Python workers, the driver's Python.

Wall time on a shared machine tells who else was at work. CPU time (user and system, all threads) tells what the work cost.

Rules
1. *JVM* is Spark's JVM and what it started and waited for, but no Python. Spark starts a `chmod` for many of the files it makes: they count.
2. *Python* is every child of the JVM that runs a module of PySpark (daemons, mostly) and the children of those (the workers), each worker with
   what it started and waited for itself.
3. PySpark's daemon ignores SIGCHLD. The kernel then adds the time of a worker that ends to nobody's, so the daemon's children times stay at zero.
   The meter therefore keeps reading, and the last reading of a worker that has ended stays in the sum. What it did after that reading is lost:
   at most one interval for each worker that ends.
4. The JVM waits for a daemon that ends, and then has the daemon's time among its children's. It has been counted as Python: the last reading is
   taken out of the JVM's. A Python process that lives too briefly to be seen (`_LOOK`) is counted with the JVM. The total is right in both cases.
5. *Driver* is this process and what it waited for, without the thread that reads. It must not wait for the JVM while it measures.
6. *JIT* is the part of the JVM's time that its compiler threads took. It falls from run to run in one JVM, and is in the JVM's time.
7. Readings are kept with the time of the clock. What fell between two moments is interpolated, so it can be asked for afterwards, for the epochs
   that Spark's progress tells of, and nothing is added to the job that is measured.
8. A process's own time comes from its CPU clock, in nanoseconds. Children's times come from /proc, in hundredths of a second. Linux only.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INTERVAL = 0.02  # seconds between two readings
_LOOK = 0.2  # seconds between two looks for new processes and compiler threads
_PROC = Path("/proc")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_JIT = ("C1 CompilerThre", "C2 CompilerThre")


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU time. jit is a part of jvm."""

    jvm: float = 0.0
    python: float = 0.0
    driver: float = 0.0
    jit: float = 0.0

    @property
    def total(self) -> float:
        """JVM, Python workers and driver together."""
        return self.jvm + self.python + self.driver

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.jvm + other.jvm, self.python + other.python, self.driver + other.driver, self.jit + other.jit)

    def __mul__(self, factor: float) -> Cpu:
        return Cpu(self.jvm * factor, self.python * factor, self.driver * factor, self.jit * factor)

    def __sub__(self, other: Cpu) -> Cpu:
        return self + other * -1

    def __str__(self) -> str:
        return f"{self.total:6.2f} (JVM {self.jvm:5.2f}, of it JIT {self.jit:.2f}; Python {self.python:5.2f}; driver {self.driver:5.2f})"


@dataclass
class _Worker:
    """A Python process and its last reading."""

    pid: int
    of_jvm: bool
    spent: float = 0.0


@dataclass
class _Tree:
    """The processes below a JVM. Numbers only grow, whatever ends."""

    jvm: int
    workers: dict[int, _Worker] = field(default_factory=dict)
    gone: float = 0.0  # of Python processes that have ended
    gone_of_jvm: float = 0.0  # of those, what the JVM waited for
    compilers: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """Finds Python processes and compiler threads that are new."""
        for thread in _threads(self.jvm):
            if thread not in self.compilers and _text(self.jvm, f"task/{thread}/comm").startswith(_JIT):
                self.compilers[thread] = 0.0
            for pid in _children(self.jvm, thread):
                if pid not in self.workers and " pyspark." in _text(pid, "cmdline"):
                    self.workers[pid] = _Worker(pid, True)

    def read(self, driver: float) -> Cpu:
        """What all have spent up to now."""
        own = _clock(self.jvm)
        if own is None:
            raise ProcessLookupError(f"the JVM that is measured, process {self.jvm}, has ended")
        for daemon in [worker.pid for worker in self.workers.values() if worker.of_jvm]:
            for pid in _children(daemon, daemon):
                self.workers.setdefault(pid, _Worker(pid, False))
        for worker in list(self.workers.values()):
            self._read_worker(worker)
        for thread in self.compilers:
            words = _text(self.jvm, f"task/{thread}/schedstat").split()
            self.compilers[thread] = int(words[0]) / 1e9 if words else self.compilers[thread]
        python = self.gone + sum(worker.spent for worker in self.workers.values())
        return Cpu(own + _waited(self.jvm) - self.gone_of_jvm, python, driver, sum(self.compilers.values()))

    def _read_worker(self, worker: _Worker) -> None:
        spent = _clock(worker.pid)
        if spent is not None:
            worker.spent = spent + (0.0 if worker.of_jvm else _waited(worker.pid))
            return
        del self.workers[worker.pid]
        self.gone += worker.spent
        self.gone_of_jvm += worker.spent if worker.of_jvm else 0.0


class Meter:
    """Reads until it is closed: `with Meter(pid) as meter: ...; meter.between(start, end)`."""

    def __init__(self, jvm: int, interval: float = INTERVAL) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("CPU time is read from /proc and from Linux's clocks of other processes: run the benchmarks on Linux")
        if interval <= 0:
            raise ValueError(f"interval is {interval}: seconds between two readings, more than 0")
        self._tree = _Tree(jvm)
        self._interval = interval
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._readings: list[Cpu] = []
        self._ended = threading.Event()
        self._own = 0.0  # of the thread that reads
        self._thread = threading.Thread(target=self._run, name="bench-cpu", daemon=True)
        self.read(look=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def read(self, look: bool = False) -> Cpu:
        """A reading, now."""
        with self._lock:
            if look:
                self._tree.look()
            if threading.current_thread() is self._thread:
                self._own = time.thread_time()
            found = self._tree.read(_driver() - self._own)
            self._times.append(time.time())
            self._readings.append(found)
            return found

    def at(self, moment: float) -> Cpu:
        """What had been spent at a moment of the clock (`time.time`), by the readings on both sides of it."""
        if moment < self._times[0]:
            raise ValueError(
                f"the meter began {self._times[0] - moment:.1f} s after the moment that it is asked about: start it before the job"
            )
        if moment > self._times[-1]:
            self.read()
        with self._lock:
            after = min(bisect.bisect_right(self._times, moment), len(self._times) - 1)
            (start, end), (before, then) = self._times[after - 1 : after + 1], self._readings[after - 1 : after + 1]
        return before + (then - before) * min(1.0, (moment - start) / (end - start))

    def between(self, start: float, end: float) -> Cpu:
        """What was spent between two moments."""
        return self.at(end) - self.at(start)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(self._interval):
            look = time.monotonic() - looked >= _LOOK
            looked = time.monotonic() if look else looked
            with contextlib.suppress(ProcessLookupError):
                self.read(look)


def meter(spark: Any, interval: float = INTERVAL) -> Meter:
    """A meter for the JVM behind a session."""
    return Meter(int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()), interval)


def _clock(pid: int) -> float | None:
    """CPU seconds of a process, all its threads, those that have ended too; None if it has ended. The clock's number is what clock_getcpuclockid gives."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def _waited(pid: int) -> float:
    """CPU seconds of the children that a process has waited for, and of theirs."""
    words = _text(pid, "stat").rpartition(")")[2].split()
    return (int(words[13]) + int(words[14])) * _TICK if words else 0.0


def _driver() -> float:
    """CPU seconds of this process, and of the children that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []


def _children(pid: int, thread: int) -> list[int]:
    """The living children that a thread of a process has started."""
    return [int(word) for word in _text(pid, f"task/{thread}/children").split()]


def _text(pid: int, name: str) -> str:
    """A file of /proc; empty if the process has ended."""
    try:
        with open(f"{_PROC}/{pid}/{name}", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
