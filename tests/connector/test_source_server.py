"""The source server over real sockets: what is pushed is durable, acknowledged after the commit, and not disturbed by peers that are broken or hostile."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sourcekit import Committing, RawPusher, commit, memory, stored
from waiting import until

from millstream.connector.intake import writer as intake_module
from millstream.connector.source.protocol.outgoing import Outgoing
from millstream.connector.source.protocol.session import WATERMARK_KEY, Needs
from millstream.connector.source.push import PushClient
from millstream.connector.source.server import SourceServer
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode
from millstream.errors import DefinitionError, InputError, LocalProtocolError, NetworkError
from millstream.network import Tls


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SourceServer]:
    with SourceServer(tmp_path / "intake") as made:
        yield made


# ---- pushing


@pytest.mark.parametrize(
    ("needs", "message", "says"),
    [
        (Needs(key=True), {"event_time": 1}, "message 2 of stream 's' has no key"),
        (Needs(time=True), {"key": "k", "event_time": 2**63 - 1}, "has the event time 9223372036854775807"),
    ],
)
def test_what_would_stop_the_pipeline_is_refused_at_once_and_the_pusher_is_told(
    tmp_path: Path, needs: Needs, message: dict[str, Any], says: str
) -> None:
    with SourceServer(tmp_path / "intake", needs=needs) as server, PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 1, b"good", event_time=1, key="k")
        client.send("s", 2, b"bad", **message)
        with pytest.raises(InputError, match=says):
            client.wait("30s")
        until(lambda: stored(server) == [("s", 1, b"good")])
        assert stored(server) == [("s", 1, b"good")], "what was good is kept, and nothing else"


def test_without_needs_the_same_messages_are_taken(server: SourceServer) -> None:
    with PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 1, b"no key", event_time=2**63 - 1)
        until(lambda: len(stored(server)) == 1)


def test_what_is_pushed_is_stored_and_acknowledged_after_the_commit_and_not_before(server: SourceServer) -> None:
    with PushClient(server.address) as client:
        assert client.notify("s") is None
        for id in range(1, 101):
            client.send("s", id, b"%d" % id, event_time=id, key="k")
        until(lambda: len(stored(server)) == 100)
        assert not client.wait("0.2s") and client.acknowledged("s") is None
        commit(server)
        assert client.wait("5s") and client.acknowledged("s") == 100 and client.unacknowledged == 0
    assert [id for _, id, _ in stored(server)] == list(range(1, 101))


def test_a_second_client_resumes_at_the_acknowledged_point_and_what_it_sends_again_is_skipped(server: SourceServer) -> None:
    with PushClient(server.address) as client:
        client.notify("s")
        for id in range(1, 6):
            client.send("s", id, b"x")
        until(lambda: len(stored(server)) == 5)
    with RawPusher(server.address) as raw:
        raw.greet()
        assert raw.open(1, "s").point is None
    commit(server)
    with PushClient(server.address) as client:
        assert client.notify("s") == 5
        assert not client.send("s", 5, b"x") and client.send("s", 6, b"y")
        until(lambda: len(stored(server)) == 6)


def test_a_stopped_server_goes_on_with_the_same_log_and_port(tmp_path: Path) -> None:
    first = SourceServer(tmp_path).start()
    with PushClient(first.address) as client:
        client.notify("s")
        client.send("s", 1, b"a")
        until(lambda: len(stored(first)) == 1)
        first.stop()  # says RESTART
        client.send("s", 2, b"b")
        with SourceServer(tmp_path, first.address) as second, Committing(second):
            client.send("s", 3, b"c")
            assert client.wait("10s")
            assert [id for _, id, _ in stored(second)] == [1, 2, 3]


def test_restart_sends_clients_elsewhere(tmp_path: Path) -> None:
    with SourceServer(tmp_path / "b") as other, Committing(other):
        first = SourceServer(tmp_path / "a").start()
        with PushClient(first.address) as client:
            client.notify("s")
            client.send("s", 1, b"a")
            until(lambda: len(stored(first)) == 1)
            first.stop(other.address)
            assert client.wait("10s") and client.address == other.address
        assert [id for _, id, _ in stored(other)] == [1]


def test_a_frame_more_than_there_are_credits_is_refused_and_those_before_it_are_kept(tmp_path: Path) -> None:
    with SourceServer(tmp_path, credits=10) as server, RawPusher(server.address) as raw:
        raw.greet().open(1, "s")
        assert raw.hear() == m.Ack(1)  # that of NOTIFY
        raw.send(*(m.Message(1, id, b"x") for id in range(1, 12)))
        assert "without a credit" in raw.hear_until(m.Error).text
        until(lambda: len(stored(server)) == 10)
        assert raw.hear() is None and len(stored(server)) == 10


def test_a_client_never_sends_without_a_credit_and_gets_everything_through(tmp_path: Path) -> None:
    """The server would tell it, and that would be final."""
    with SourceServer(tmp_path, credits=10) as server, PushClient(server.address) as client:
        client.notify("s")
        for id in range(1, 101):
            client.send("s", id, b"x")
        until(lambda: len(stored(server)) >= 10)
        assert len(stored(server)) == 10
        with Committing(server):
            assert client.wait("10s") and len(stored(server)) == 100


def test_a_server_can_stop_although_a_pusher_is_gone_that_it_does_not_read(tmp_path: Path) -> None:
    server = SourceServer(tmp_path, backlog=1).start()
    with RawPusher(server.address) as raw:
        raw.greet().open(1, "s")
        assert isinstance(raw.hear(), m.Ack)
        raw.send(m.Message(1, 1, b"x"))
        until(lambda: server.stats().received == 1)  # more than the backlog: nobody is read any more
    server.stop()
    assert not server._greeted


def test_a_server_says_that_it_waits_for_a_program(tmp_path: Path) -> None:
    with SourceServer(tmp_path / "intake") as server:
        alone = f"a program to push to {server.address}"
        assert server.stats().waiting_for == alone
        with RawPusher(server.address):
            assert server.stats().waiting_for == alone  # it has not greeted
        with PushClient(server.address) as client:
            client.notify("s")
            assert server.stats().waiting_for is None
        until(lambda: server.stats().waiting_for == alone)


def test_the_backlog_bounds_the_log_and_reading_goes_on_after_a_commit(tmp_path: Path) -> None:
    with SourceServer(tmp_path, backlog=100_000) as server, PushClient(server.address) as client:
        client.notify("s")
        for id in range(1, 3001):
            client.send("s", id, b"x" * 1000)
        until(lambda: server._ask(lambda: server._is_paused and server._writer is None))
        end = server.stats().end
        assert 100_000 < end < 2_000_000 and server.stats().waiting_bytes == 0, "nobody is read, and nothing is on its way to the disk"
        assert server.stats().end == end
        with Committing(server):
            assert client.wait("20s") and len(stored(server)) == 3000


def test_a_client_keeps_no_more_than_it_may(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server, PushClient(server.address, most=10_000) as client:
        client.notify("s")
        sender = threading.Thread(target=lambda: [client.send("s", id, b"x" * 1000) for id in range(1, 31)])
        sender.start()
        until(lambda: client._changed._waiters)  # type: ignore[attr-defined]  # `send` waits: what comes next would be too much
        assert 9_000 < client.unacknowledged <= 10_000 and sender.is_alive()
        with Committing(server):
            sender.join(10)
            assert client.wait("10s")


def test_many_streams_and_clients_at_once(server: SourceServer) -> None:
    def push(name: str) -> None:
        with PushClient(server.address) as client:
            for stream in (name, name + "'"):
                client.notify(stream)
                for id in range(1, 201):
                    client.send(stream, id, name.encode())
                client.end(stream)
            assert client.wait("20s")

    with Committing(server):
        threads = [threading.Thread(target=push, args=(f"c{at}",)) for at in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    found = stored(server)
    assert len(found) == len(set(found)) == 2000


def test_a_stream_that_is_active_elsewhere_is_waited_for(server: SourceServer) -> None:
    with PushClient(server.address) as first, PushClient(server.address, patience="0.4s") as impatient:
        first.notify("s")
        with pytest.raises(InputError, match="active elsewhere"):
            impatient.notify("s")
        with PushClient(server.address) as patient:
            waiting = threading.Thread(target=patient.notify, args=("s",))
            waiting.start()
            until(lambda: (found := patient.waiting()) is not None and "another program pushes it" in found.what)
            first.close()
            waiting.join(5)
            assert not waiting.is_alive()


def test_a_half_open_connection_of_the_same_instance_is_fenced(server: SourceServer) -> None:
    with RawPusher(server.address) as old:
        old.greet(instance="me")
        old.open(1, "s")
        with PushClient(server.address, program="test", instance="me") as new:
            new.notify("s")
            assert "fenced" in old.hear_until(m.Error).text


def test_declared_watermarks_count_when_what_is_before_them_is_committed(server: SourceServer) -> None:
    with PushClient(server.address) as client:
        client.notify("a")
        client.notify("b")
        client.send("a", 1, b"x", event_time=100)
        client.declare("a", 90)
        client.declare("b", 50)
        until(lambda: server.stats().received == 3)
        assert server.watermark()[0] is None
        commit(server)
        until(lambda: server.watermark()[0] == 50)
        assert server.watermark(("a",))[0] == 90 and server.watermark(("a", "c"))[0] is None
        client.end("b")
        until(lambda: server.stats().received == 4)
        commit(server)
        until(lambda: server.watermark()[0] == 90)


@pytest.mark.parametrize("again", [True, False])
def test_a_watermark_is_declared_again_after_a_reconnect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """It was received, and not committed, when the server went: the next one has a log of its own, and hears of it only if it is said again."""
    first = SourceServer(tmp_path / "first").start()
    with PushClient(first.address) as client:
        client.notify("a")
        client.declare("a", 77)
        until(lambda: first.stats().received == 1)
        if not again:  # the twin: a client that forgets what it has promised
            monkeypatch.setattr(Outgoing, "_mark", lambda self, watermark: 0)
        first.stop()
        with SourceServer(tmp_path / "second", first.address) as second, Committing(second):
            until(lambda: second.stats().streams == 1)
            client.send("a", 1, b"x")
            assert client.wait("10s")
            assert second.watermark()[0] == (77 if again else None)


def test_what_the_server_knows_survives_a_restart(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server, PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 5, b"x")
        client.declare("s", 42)
        until(lambda: server.stats().received == 2)
        commit(server)
    with SourceServer(tmp_path) as server:
        assert server.watermark()[0] == 42
        with RawPusher(server.address) as raw:
            assert raw.greet().open(1, "s").point == 5


def test_wrong_calls_are_refused_and_change_nothing(server: SourceServer) -> None:
    with PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 5, b"x")
        for wrong in (
            lambda: client.send("s", 5, b"y"),
            lambda: client.send("t", 1, b"y"),
            lambda: client.send("s", -1, b"y"),
            lambda: client.send("s", 9, b"", key=WATERMARK_KEY),
            lambda: client.notify(""),
            lambda: client.send("s", 9, b"", key="k" * 70_000),
        ):
            with pytest.raises(LocalProtocolError):
                wrong()
        with Committing(server):
            assert client.wait("5s")
    assert [id for _, id, _ in stored(server)] == [5]


def test_an_epoch_that_is_committed_before_the_loop_knows_that_it_was_stored_is_acknowledged(
    server: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is durable may be read by Spark, and even be committed, before the writing thread has reported back."""
    write = server._intake.write

    def overtaken(groups: Any) -> Any:
        done = write(groups)
        server.acknowledge(done[-1].end)
        server.stats()  # a barrier: the loop has heard of the commit, and not yet of the write
        return done

    monkeypatch.setattr(server._intake, "write", overtaken)
    with PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 1, b"x")
        assert client.wait("5s")


# ---- a disk that fails


def test_a_full_disk_sends_clients_away_and_nothing_is_lost_or_doubled(server: SourceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failing = intake_module.os.fdatasync, threading.Event()

    def fdatasync(fd: int) -> None:
        if failing.is_set():
            raise OSError(28, "No space left on device")
        real(fd)

    with PushClient(server.address) as client, Committing(server):
        client.notify("s")
        client.send("s", 1, b"a")
        assert client.wait("5s")
        monkeypatch.setattr(intake_module.os, "fdatasync", fdatasync)
        failing.set()
        client.send("s", 2, b"b")
        client.send("s", 3, b"c")
        assert not client.wait("0.5s")
        failing.clear()
        assert client.wait("10s")
    assert [id for _, id, _ in stored(server)] == [1, 2, 3]


# ---- who may come


def test_a_wrong_cookie_is_final(tmp_path: Path) -> None:
    with SourceServer(tmp_path, cookie="secret") as server:
        with PushClient(server.address, cookie="wrong") as client, pytest.raises(InputError, match="cookie is wrong"):
            client.notify("s")
        with PushClient(server.address, cookie="secret") as client:
            client.notify("s")


def test_listening_beyond_this_machine_without_a_cookie_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="without a cookie"):
        SourceServer(tmp_path, "0.0.0.0:0")
    SourceServer(tmp_path, "0.0.0.0:0", cookie="x")
    SourceServer(tmp_path, "0.0.0.0:0", force=True)


def test_a_port_that_is_taken_is_an_error_and_the_folder_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NetworkError, match="cannot listen"):
        SourceServer(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}").start()
    SourceServer(tmp_path).start().stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def test_tls_on_both_sides(tmp_path: Path, certificates: Path) -> None:
    cert, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    with SourceServer(tmp_path, tls=Tls(cert, key, cert)) as server, Committing(server):
        with PushClient(server.address, tls=Tls(cert, key, cert)) as client:
            client.notify("s")
            for id in range(1, 2001):
                client.send("s", id, b"x" * 100)
            assert client.wait("10s")
        with PushClient(server.address, patience="0.3s", timeout="1s") as plain, pytest.raises(InputError):
            plain.notify("s")
        with PushClient(server.address, tls=Tls(ca=cert), patience="0.3s", timeout="1s") as nameless, pytest.raises(InputError):
            nameless.notify("s")
        assert len(stored(server)) == 2000


# ---- broken and hostile peers


@pytest.fixture
def victim(server: SourceServer) -> Iterator[Any]:
    """A well-behaved client that pushes all the time, and must not notice anything."""
    over, sent = threading.Event(), [0]
    with PushClient(server.address, instance="victim") as client, Committing(server):
        client.notify("victim")

        def push() -> None:
            while not over.is_set():
                sent[0] += 1
                client.send("victim", sent[0], b"x")
                time.sleep(0.002)

        thread = threading.Thread(target=push)
        thread.start()
        yield client
        over.set()
        thread.join()
        assert client.wait("10s")
    assert [id for name, id, _ in stored(server) if name == "victim"] == list(range(1, sent[0] + 1))


GREETING = encode(m.Hello(m.SOURCE_VERSION, "", "hostile", ""))
OPENED = GREETING + encode(m.Notify(1, "hostile", 0))


@pytest.mark.parametrize(
    "wire",
    [
        b"\0\0\0\0",
        b"\0\0\0\0" * 1_000_000,
        b"\xff" * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x05\x09abcd",
        b"\0\x10\0\0\x05",
        GREETING[:-1] + b"\xff",
        GREETING + GREETING,
        OPENED + b"\0\0\0\0" * 1000,
        OPENED + b"\x7f\xff\xff\xff" * 10,
        OPENED + encode(m.Eos(9)),
        OPENED + encode(m.Message(2, 1, b"")),
        GREETING + encode(m.Notify(1, "x" * 300, 0)),
        OPENED + encode(m.Ack(1)),
        OPENED + encode(m.Message(1, 1 << 63, b"")),
        OPENED + encode(m.Phase2("t", True)),
        OPENED + encode(m.Message(1, 5, b"x")) * 200_000,
        GREETING + b"".join(encode(m.Notify(n, f"n{n}", 0)) for n in range(2000)),
        encode(m.Message(1, 1, b"x")),
    ],
    ids=lambda wire: f"{len(wire)}-{wire[:6].hex()}",
)
def test_whatever_a_peer_sends_costs_only_its_own_connection(server: SourceServer, victim: PushClient, wire: bytes) -> None:
    with RawPusher(server.address) as raw:
        raw.socket.settimeout(5)
        try:
            raw.send(wire)
            raw.socket.shutdown(socket.SHUT_WR)
            last = None
            while (frame := raw.hear()) is not None:
                last = frame
        except OSError:
            last = None
        assert last is None or isinstance(last, (m.Error, m.Ack, m.NotifyAck))
    assert victim._error is None


def test_random_bytes_never_disturb_anybody(server: SourceServer, victim: PushClient) -> None:
    draw = random.Random(3)
    for _ in range(100):
        with RawPusher(server.address) as raw:
            try:
                raw.send((OPENED if draw.random() < 0.5 else b"") + draw.randbytes(draw.randrange(1, 300)))
            except OSError:
                pass
    until(lambda: server.stats().sessions == 1)
    assert victim._error is None


@pytest.mark.slow
def test_a_crowd_of_connections_keeps_nobody_out_and_memory_stays_bounded(server: SourceServer, victim: PushClient) -> None:
    before, crowd = memory(), []
    address = server.address.rpartition(":")
    for turn in range(10_000):
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex((address[0], int(address[2])))
        crowd.append(made)
        if len(crowd) >= 300:
            crowd.pop(0).close()
        if turn % 100 == 0:
            time.sleep(0.005)
    with PushClient(server.address) as client:
        client.notify("after the crowd")
    until(lambda: server.stats().unauthenticated <= 64)
    for made in crowd:
        made.close()
    assert memory() - before < 50 << 20
    assert victim._error is None


def test_who_does_not_greet_is_sent_away(tmp_path: Path) -> None:
    with SourceServer(tmp_path, greeting="0.2s") as server, RawPusher(server.address) as raw:
        raw.send(GREETING[:5])
        raw.socket.settimeout(3)
        started = time.monotonic()
        while raw.hear() is not None:
            pass
        assert time.monotonic() - started < 2


def test_one_session_too_many_is_told_so(tmp_path: Path) -> None:
    with (
        SourceServer(tmp_path, sessions=2) as server,
        RawPusher(server.address) as one,
        RawPusher(server.address) as two,
        RawPusher(server.address) as three,
    ):
        one.greet(), two.greet()
        three.send(GREETING)
        assert "takes no more" in three.hear_until(m.Error).text
        two.socket.close()
        until(lambda: server.stats().sessions == 1)
        with RawPusher(server.address) as four:
            four.greet()


def test_half_frames_are_not_held_beyond_the_limit(tmp_path: Path) -> None:
    with SourceServer(tmp_path, frame_limit=10_000) as server, RawPusher(server.address) as raw:
        raw.greet()
        raw.send(b"\0\0\x27\x11\x05")
        assert "the limit is 10000" in raw.hear_until(m.Error).text


@pytest.mark.slow
def test_who_does_not_read_is_cut_off(server: SourceServer, victim: PushClient) -> None:
    """Every NOTIFY is answered; a peer that never reads the answers would fill our memory."""
    with RawPusher(server.address) as raw:
        raw.greet()
        before, number = memory(), 0
        try:
            while number < 1_000_000:
                raw.socket.sendall(b"".join(encode(m.Notify(number + at, "victim", 0)) for at in range(1000)))
                number += 1000
        except OSError:
            pass
        until(lambda: server.stats().sessions == 1)
        assert number < 1_000_000 and memory() - before < 60 << 20
    assert victim._error is None
