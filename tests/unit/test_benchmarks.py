"""The benchmarks' accounting: what is burnt is counted, once, and where it belongs; what is divided by what; what is run. Without Spark: processes
that behave like a JVM with PySpark's daemon below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cpu  # noqa: E402
from benchmarks.cpu import Cpu, Meter  # noqa: E402

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the meter reads Linux's clocks")

BURNT = 0.5  # seconds of CPU

_TOOLS = """
import os, signal, subprocess, sys, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def say(word):
    print(word, flush=True)
"""

#: A daemon as PySpark's: it ignores SIGCHLD, and forks a worker for each line that it reads. Told to, it burns something itself. A worker rests
#: before it ends, so that a machine with much to do has a chance to read it.
_DAEMON = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    who, _, seconds = line.partition(" ")
    if who == "daemon":
        burn(float(seconds))
        say("burnt")
        continue
    said, answered = os.pipe()
    pid = os.fork()
    if pid == 0:
        burn(float(seconds))
        time.sleep(0.2)
        os.write(answered, b"!")
        if "stay" in sys.argv: time.sleep(600)
        os._exit(0)
    os.close(answered)
    os.read(said, 1)
    os.close(said)
    while "stay" not in sys.argv and os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
    say("burnt")
"""

#: A "JVM": starts the daemon, passes lines on to it, and can itself burn, or start a child that burns and wait for it.
_JVM = """
daemon = subprocess.Popen([sys.executable, "-c", sys.argv[1], "pyspark.daemon", *sys.argv[2:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
for line in sys.stdin:
    what, _, seconds = line.strip().partition(" ")
    if what in ("worker", "daemon"):
        daemon.stdin.write(line); daemon.stdin.flush(); daemon.stdout.readline()
    elif what == "self":
        burn(float(seconds))
    elif what == "child":
        subprocess.run([sys.executable, "-c", sys.argv[1].partition("signal.signal")[0] + f"burn({seconds})"], check=True)
    elif what == "end":
        daemon.stdin.close(); daemon.wait()
    say("done")
"""


class Application:
    """The made-up JVM, and its meter."""

    def __init__(self, process: subprocess.Popen[str], meter: Meter) -> None:
        self.process, self.meter = process, meter

    def do(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def cost(self, what: str) -> Cpu:
        """What is counted for one thing done."""
        before = self.meter.read()
        self.do(what)
        return self.meter.read(look=True) - before


@contextmanager
def application(*words: str, interval: float = 0.01) -> Iterator[Application]:
    command = [sys.executable, "-c", _TOOLS + _JVM, _TOOLS + _DAEMON, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        with Meter(process.pid, interval) as meter:
            one = Application(process, meter)
            one.do("worker 0")  # the daemon is there
            meter.read(look=True)
            yield one
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.2)


SLIGHT = 0.2 * BURNT


@linux
@pytest.mark.parametrize("words", [("stay",), ()], ids=["lives on", "has ended"])
def test_what_a_worker_burns_is_pythons(words: tuple[str, ...]) -> None:
    with application(*words) as one:
        cost = one.cost(f"worker {BURNT}")
    assert cost.python == near(BURNT)
    assert cost.jvm < SLIGHT and cost.driver < SLIGHT


@linux
def test_without_readings_in_between_a_worker_that_has_ended_is_lost() -> None:
    """Why the meter keeps reading: the kernel adds the time of a child to nobody's if its parent ignores SIGCHLD."""
    with application(interval=600) as one:
        cost = one.cost(f"worker {BURNT}")
    assert cost.total < SLIGHT


@linux
def test_what_the_jvm_burns_and_starts_is_the_jvms() -> None:
    with application() as one:
        own, child = one.cost(f"self {BURNT}"), one.cost(f"child {BURNT}")
    assert own.jvm == near(BURNT) and own.python < SLIGHT
    assert child.jvm == near(BURNT) and child.python < SLIGHT


@linux
def test_a_process_own_clock_misses_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the JVM's children are read."""
    monkeypatch.setattr(cpu, "_waited", lambda pid: 0.0)
    with application() as one:
        child = one.cost(f"child {BURNT}")
    assert child.total < SLIGHT


@linux
def test_a_daemon_that_ends_is_counted_once() -> None:
    with application() as one:
        assert one.cost(f"daemon {BURNT}").python == near(BURNT)
        ended = one.cost("end")
        given_back = one.meter._tree.gone_of_jvm
        assert not any(worker.of_jvm for worker in one.meter._tree.workers.values())
    assert abs(ended.jvm) < SLIGHT and abs(ended.python) < SLIGHT
    assert ended.jvm + given_back > BURNT, "the kernel gave the daemon's time to the JVM when it ended: without the rule it counts twice"


@linux
def test_the_driver_is_charged_for_its_own_work_but_not_for_the_readings() -> None:
    with application(interval=1e-6) as one:
        began, mine, readers = time.time(), time.process_time(), one.meter._own
        while one.meter._own < readers + BURNT:
            time.sleep(0.01)
        idle = one.meter.between(began, time.time())
        assert time.process_time() - mine > BURNT and idle.driver < SLIGHT
    with application() as one:
        began, until = time.time(), time.process_time() + BURNT
        while time.process_time() < until:
            pass
        assert one.meter.between(began, time.time()).driver == near(BURNT)


@linux
def test_only_what_falls_between_two_moments_is_counted() -> None:
    with application() as one:
        moments = []
        for seconds in (BURNT, BURNT / 2, BURNT):
            one.do(f"self {seconds}")
            one.meter.read()
            moments.append(time.time())
        assert one.meter.between(moments[0], moments[1]).jvm == near(BURNT / 2)
        with pytest.raises(ValueError, match="start it before the job"):
            one.meter.at(moments[0] - 600)
