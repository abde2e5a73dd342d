"""The sink of one's own in `examples/` is a whole one: real processes, killed with SIGKILL between any two words."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from sourcekit import free_port

from millstream.connector import WorkerClient
from millstream.connector.sink.protocol import txnlog
from millstream.errors import RemoteProtocolError, SinkError

pytestmark = pytest.mark.crash

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_sink.py"


class OwnSink:
    """The example as a process, always at the same port."""

    def __init__(self, folder: Path, program: Path = EXAMPLE) -> None:
        self.folder, self.program = folder, program
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, str(self.program), str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert re.match(r"listening on 127\.0\.0\.1:\d+", self.process.stdout.readline())

    def kill(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    def committed(self, worker: str) -> bytes:
        """What a reader may take: the bytes that the log says are committed."""
        return committed(self.folder / sha256(worker.encode()).hexdigest())


def committed(home: Path) -> bytes:
    entries, _ = txnlog.decode_log((home / "log").read_bytes())
    return (home / "data").read_bytes()[: txnlog.recovered(entries).committed]


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[OwnSink]:
    made = OwnSink(tmp_path / "out")
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("commit", [True, False])
def test_a_promise_outlives_a_kill_between_the_phases(sink: OwnSink, commit: bool) -> None:
    worker = WorkerClient.connect(sink.address, "w")
    worker.write(b"first\n")
    assert worker.prepare("t1")
    worker.finish("t1", commit=True, confirm=True)
    worker.write(b"second\n")
    assert worker.prepare("t2")
    sink.restart()
    assert sink.committed("w") == b"first\n", "nothing of the open transaction is visible"
    assert worker.settle("t2", commit=commit)
    assert sink.committed("w") == (b"first\nsecond\n" if commit else b"first\n")
    assert not worker.settle("t2", commit=True), "it is over, and to say so again does nothing"
    sink.restart()
    with WorkerClient.connect(sink.address, "w") as again:
        assert not again.uncommitted and again.offset == len(sink.committed("w")) == (13 if commit else 6)


def test_without_the_record_of_the_promise_it_is_lost(tmp_path: Path) -> None:
    """The negative twin: the same kill, and a sink that votes yes without writing it down."""
    program = tmp_path / "forgetful.py"
    text = EXAMPLE.read_text()
    assert text.count("self.record(txnlog.Prepared(txn, start, end))") == 1
    program.write_text(text.replace("self.record(txnlog.Prepared(txn, start, end))", "pass"))
    sink = OwnSink(tmp_path / "out", program)
    sink.start()
    worker = WorkerClient.connect(sink.address, "w")
    worker.write(b"first\n")
    assert worker.prepare("t1")
    sink.restart()
    assert not worker.settle("t1", commit=True) and sink.committed("w") == b""
    sink.kill()


STEPS = ("greeted", "written", "flushed", "prepared", "finished", "confirmed")


def push(sink: OwnSink, lines: list[bytes], at: Callable[[int, str], None]) -> None:
    """Commits each line in a transaction of its own, as a worker does that remembers only what it has decided."""
    ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]
    for n, line in enumerate(lines):
        decided = False
        while True:
            try:
                with WorkerClient.connect(sink.address, "w", patience="10s") as worker:
                    at(n, "greeted")
                    while worker.uncommitted:
                        worker.resolve(worker.uncommitted[0], commit=decided)
                    if worker.offset == ends[n]:
                        break
                    assert worker.offset == ends[n] - len(line)
                    worker.write(line)
                    at(n, "written")
                    worker.flush()
                    at(n, "flushed")
                    decided = worker.prepare(f"t{n}") or decided
                    at(n, "prepared")
                    worker.finish(f"t{n}", commit=True)
                    at(n, "finished")
                    worker.confirm()
                    at(n, "confirmed")
                    break
            except (SinkError, RemoteProtocolError):
                continue


def test_killed_at_every_step_it_has_every_line_once(sink: OwnSink) -> None:
    lines = [b"%d\n" % n * (n + 1) for n in range(len(STEPS))]
    killed = []

    def kill(n: int, step: str) -> None:
        if step == STEPS[n] and (n, step) not in killed:
            killed.append((n, step))
            sink.restart()

    push(sink, lines, kill)
    assert sink.committed("w") == b"".join(lines)
    assert [step for _, step in killed] == list(STEPS)


def test_whoever_comes_next_has_the_name_and_a_lower_fence_is_refused(sink: OwnSink) -> None:
    first = WorkerClient.connect(sink.address, "w", fence=1)
    first.write(b"x")
    assert first.prepare("t")
    with WorkerClient.connect(sink.address, "w", fence=2) as second:
        assert second.uncommitted == ("t",)
        with pytest.raises(SinkError):
            first.finish("t", commit=False)
            first.confirm()
        assert not sink.committed("w")
        sink.restart()
    with pytest.raises(SinkError, match="fence 2"):
        WorkerClient.connect(sink.address, "w", fence=1)


def test_a_peer_that_talks_nonsense_costs_nobody_anything(sink: OwnSink) -> None:
    with socket.create_connection(("127.0.0.1", sink.port)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"limit" in peer.recv(4096)
    with WorkerClient.connect(sink.address, "w") as worker:
        worker.write(b"x\n")
        assert worker.prepare("t")
        worker.finish("t", commit=True, confirm=True)
    assert sink.committed("w") == b"x\n"


def test_who_has_left_is_put_aside_and_its_name_begins_at_0(sink: OwnSink) -> None:
    def commit(worker: str, line: bytes) -> None:
        with WorkerClient.connect(sink.address, worker) as one:
            one.write(line)
            assert one.prepare("t")
            one.finish("t", commit=True, confirm=True)

    commit("gone", b"old\n")
    with WorkerClient.connect(sink.address, "stays") as other:
        other.workers_left(["gone", "never was"])
    sink.restart()
    (left,) = sink.folder.glob("*.left-*")
    assert committed(left) == b"old\n"
    commit("gone", b"new\n")
    assert sink.committed("gone") == b"new\n"
