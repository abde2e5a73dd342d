"""Hostile peers: whatever they send, another worker's session goes on, and the sink's memory stays where it was."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from sinkkit import Nursery, Raw, SinkProcess
from waiting import until

from millstream.connector import WorkerClient
from millstream.connector.sink.outputs import files
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode, message_head

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.crash

MEGABYTE = 1 << 20
HELLO = encode(m.Hello(m.SINK_VERSION, "", "p", "hostile"))
NOTIFY = encode(m.Notify(1, "hostile", 0))


class Bystander:
    """A worker in the middle of its work, on the same sink. Its commits go through, before, while and after."""

    def __init__(self, sink: SinkProcess) -> None:
        self.sink = sink
        self.client = WorkerClient.connect(sink.address, "bystander", timeout="5s")
        self.done = b""

    def works(self) -> None:
        self.client.write(b"%d\n" % len(self.done))
        assert self.client.prepare(f"t{len(self.done)}")
        self.client.finish(f"t{len(self.done)}", commit=True, confirm=True)
        self.done += b"%d\n" % len(self.done)
        assert b"".join(files.read(self.sink.folder, "bystander")) == self.done


@pytest.fixture
def bystander(sink: SinkProcess) -> Iterator[Bystander]:
    """Checks afterwards that nothing happened to it, and that the sink's memory has not grown."""
    made = Bystander(sink)
    made.works()
    process = psutil.Process(sink.pid)
    before = process.memory_info().rss
    yield made
    made.works()
    made.client.close()
    assert process.memory_info().rss - before < 48 * MEGABYTE
    assert psutil.pid_exists(sink.pid)


def refused(sink: SinkProcess, *what: bytes) -> m.Frame | None:
    """What the sink says last to a peer that sends this; it must close afterwards."""
    last = None
    with Raw(sink.address) as peer:
        try:
            peer.send(*what)
            peer.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        while (frame := peer.hear()) is not None:
            last = frame
    return last


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param([b"GET / HTTP/1.1\r\n\r\n"], "limit", id="http"),
        pytest.param([b"\0\0\0\0"], "length 0", id="zero length"),
        pytest.param([b"\xff\xff\xff\xff"], "limit", id="four gigabytes"),
        pytest.param([struct.pack(">IB", 1, 99)], "unknown tag", id="unknown tag"),
        pytest.param([NOTIFY], "not expected", id="no hello"),
        pytest.param([encode(m.Hello("v0.0.2", "", "", "x"))], "version", id="version"),
        pytest.param([HELLO, HELLO], "not expected", id="two hellos"),
        pytest.param([HELLO, encode(m.Message(1, 0, b"x"))], "not expected", id="data before notify"),
        pytest.param([HELLO, encode(m.Notify(0, "hostile", 0))], "stream 0", id="notify 0"),
        pytest.param([HELLO, encode(m.Notify(2, "hostile", 0))], "stream 2", id="notify 2"),
        pytest.param([HELLO, NOTIFY, b"\0\0\0\0"], "length 0", id="zero length later"),
        pytest.param([HELLO, NOTIFY, struct.pack(">I", (16 << 20) + 1)], "limit", id="over the limit later"),
        pytest.param([HELLO, NOTIFY, message_head(0, 0, 1) + b"\xff"], "unknown tag", id="unknown inner tag"),
        pytest.param([HELLO, NOTIFY, message_head(0, 0, 0)], "empty", id="empty inner"),
        pytest.param([HELLO, NOTIFY, encode(m.Ok(3))], "not expected", id="a sink's message"),
    ],
)
def test_nonsense_is_answered_with_an_error_and_closed(sink: SinkProcess, bystander: Bystander, what: list[bytes], says: str) -> None:
    answer = refused(sink, *what)
    assert isinstance(answer, m.Error) and says in answer.text


def test_garbage_is_refused(sink: SinkProcess, bystander: Bystander) -> None:
    """Its first four bytes are a length. One that is too large, or 0, is refused; behind another the sink waits, until the peer has ended."""
    lots = random.Random(7)
    assert isinstance(refused(sink, HELLO, NOTIFY), m.NotifyAck), "the twin: what makes sense is not refused"
    for _ in range(100):
        assert isinstance(refused(sink, lots.randbytes(lots.randint(4, 2000))), m.Error)
        garbage = lots.randbytes(lots.randint(4, 3000))
        is_too_long = not 0 < int.from_bytes(garbage[:4], "big") <= 16 * MEGABYTE
        assert isinstance(refused(sink, HELLO, NOTIFY, garbage), m.Error if is_too_long else m.Error | m.NotifyAck)


def test_half_frames_and_sudden_ends_leave_nothing_behind(sink: SinkProcess, bystander: Bystander) -> None:
    wire = HELLO + NOTIFY + encode(m.Message(1, 0, b"x" * 100)) + encode(m.Phase1("t", ((1, 0, 100),)))
    process = psutil.Process(sink.pid)
    threads, descriptors = process.num_threads(), process.num_fds()
    for cut in range(0, len(wire), 7):
        with Raw(sink.address) as peer:
            peer.send(wire[:cut])
            if cut % 2:
                peer.reset()
    with WorkerClient.connect(sink.address, "later"):  # one that is taken up behind all of them
        pass
    until(lambda: process.num_threads() <= threads and process.num_fds() <= descriptors)
    with WorkerClient.connect(sink.address, "hostile") as worker:
        assert worker.offset == 0 and worker.uncommitted == ()
    refused(sink, wire)  # the twin: all of it
    with WorkerClient.connect(sink.address, "hostile") as worker:
        assert worker.offset == 100 and worker.uncommitted == ("t",)
        worker.resolve("t", commit=False)
    bystander.works()


def test_empty_frames_stop_nobody(sink: SinkProcess, bystander: Bystander) -> None:
    empty = encode(m.Message(1, 0, b"")) * 10_000
    with Raw(sink.address) as peer:
        peer.greet("hostile")
        for round in range(100):
            peer.send(empty)
            if round % 25 == 0:
                bystander.works()
        peer.send(m.ListUncommitted(9))
        assert peer.hear() == m.ReplyUncommitted(9)
    assert isinstance(refused(sink, HELLO, NOTIFY, b"\0\0\0\0" * 1_000_000), m.Error | m.NotifyAck | None)


def test_a_peer_that_asks_and_never_reads_is_not_read_from_either(sink: SinkProcess, bystander: Bystander) -> None:
    questions = b"".join(encode(m.ListUncommitted(number)) for number in range(20_000))
    with Raw(sink.address, timeout=0.3) as peer:
        peer.send(HELLO, NOTIFY)
        with pytest.raises(TimeoutError):
            for _ in range(100):
                peer.send(questions)
        bystander.works()


@pytest.mark.parametrize("name", ["../../../../tmp/escaped", "/etc/passwd", "a/b/c", "..", "\x00", "x\n; rm -rf /", "%2e%2e", "Ü" * 100])
def test_names_with_slashes_stay_inside(sink: SinkProcess, bystander: Bystander, name: str) -> None:
    with WorkerClient.connect(sink.address, name) as worker:
        worker.write(b"inside\n")
        assert worker.prepare("../t")
        worker.finish("../t", commit=True, confirm=True)
    assert b"".join(files.read(sink.folder, name)) == b"inside\n"
    made = {path.relative_to(sink.folder).parts[0] for path in sink.folder.rglob("*")}
    assert made == {"workers", "left", "lock"} and len(list((sink.folder / "workers").iterdir())) == 2


def test_a_crowd_of_connections_stops_nobody(nursery: Nursery, tmp_path: Path) -> None:
    with SinkProcess(nursery, tmp_path / "sink", server={"sessions": 20, "unauthenticated": 20}) as sink:
        bystander = Bystander(sink)
        bystander.works()
        process = psutil.Process(sink.pid)
        before, threads = process.memory_info().rss, 0
        host, _, port = sink.address.rpartition(":")
        for wave in range(50):
            crowd = []
            for number in range(200):
                peer = socket.create_connection((host, int(port)), 5)
                if number % 3 == 0:
                    try:
                        peer.sendall(HELLO[: number % 40] if number % 2 else os.urandom(20))
                    except OSError:
                        pass
                crowd.append(peer)
            threads = max(threads, process.num_threads())
            assert isinstance(refused(sink, b"\0\0\0\0"), m.Error)  # it has got through the crowd
            if wave % 10 == 0:
                bystander.works()
            for peer in crowd:
                peer.close()
        bystander.works()
        with WorkerClient.connect(sink.address, "newcomer", timeout="5s", patience="5s") as newcomer:
            assert newcomer.offset == 0
        assert threads <= 20 + 2 * 20 + 4
        assert process.memory_info().rss - before < 32 * MEGABYTE
        bystander.client.close()


def test_negative_twin_without_a_limit_memory_follows_the_peer(nursery: Nursery, tmp_path: Path) -> None:
    """The limit on a frame's length is what bounds memory: raised to 200 MB, a peer can make the sink hold that much."""
    grown = {}
    for limit in (1 * MEGABYTE, 200 * MEGABYTE):
        with SinkProcess(nursery, tmp_path / str(limit), server={"frame_limit": limit}) as sink, Raw(sink.address) as peer:
            peer.greet("w")
            process = psutil.Process(sink.pid)
            before = process.memory_info().rss
            try:
                peer.send(message_head(1, 0, 150 * MEGABYTE))
                for _ in range(100):
                    peer.send(bytes(MEGABYTE))
            except OSError:
                pass
            grown[limit] = process.memory_info().rss - before
    assert grown[1 * MEGABYTE] < 16 * MEGABYTE < 60 * MEGABYTE < grown[200 * MEGABYTE]
