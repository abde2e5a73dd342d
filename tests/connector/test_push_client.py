"""The pushing side as a library, on lines that break, with servers that come and go."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from sourcekit import Committing, RawPusher, commit, stored
from waiting import until

from millstream.connector.source.push import PushClient
from millstream.connector.source.server import SourceServer
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder
from millstream.errors import InputError, RemoteProtocolError


class BrokenLine:
    """A line that breaks after a random number of bytes, in either direction, without a word."""

    def __init__(self, target: str, seed: int, longest: int) -> None:
        self._target, self._draw, self._longest = target, random.Random(seed), longest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.breaks = 0
        self.is_whole = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = self._target.rpartition(":")
                far = socket.create_connection((host, int(port)))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other, self._draw.randrange(50, self._longest)), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                is_whole = self.is_whole  # once: a line that has cut a piece short must break
                target.sendall(data if is_whole else data[:left])
                left -= len(data)
                if left <= 0 and not is_whole:
                    self.breaks += 1
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_line_that_breaks_anywhere_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    with SourceServer(tmp_path, credits=300) as server, Committing(server):
        line = BrokenLine(server.address, seed, 20_000)
        with PushClient(line.address, patience="30s") as client:
            client.notify("a")
            client.notify("b")
            for id in range(1, 1501):
                client.send("a", id, b"x" * 20, event_time=id)
                client.send("b", 7 * id, b"y" * (id % 90))
                if id % 100 == 0:
                    client.declare("a", id)
                if id % 250 == 0:
                    time.sleep(0.05)
            until(lambda: line.breaks > 3, 30)
            line.is_whole = True
            client.end("a")
            assert client.wait("30s")
        line.close()
        assert [id for name, id, _ in stored(server) if name == "a"] == list(range(1, 1501))
        assert [id for name, id, _ in stored(server) if name == "b"] == list(range(7, 10501, 7))
        until(lambda: server.watermark(("a",))[0] == 1500)


def test_what_an_earlier_connection_had_sent_and_is_acknowledged_now_is_not_sent_again(tmp_path: Path) -> None:
    """Messages and a watermark wait to be sent again while the server commits what it had received: they are dropped, the watermark is not."""
    with SourceServer(tmp_path, credits=5) as server, PushClient(server.address) as client:
        client.notify("s")
        client.send("s", 1, b"a")
        client.declare("s", 10)
        client.send("s", 2, b"b")
        client.declare("s", 20)
        for id in range(3, 40):
            client.send("s", id, b"x")
        until(lambda: server.stats().received == 5)
        (peer,) = server._ask(lambda: list(server._greeted))
        server._ask(peer.abort)
        until(lambda: server._ask(lambda: bool(server._greeted - {peer})))  # it is back
        commit(server)
        with Committing(server):
            assert client.wait("10s")
        assert [id for _, id, _ in stored(server)] == list(range(1, 40))
        until(lambda: server.watermark()[0] == 20)


def test_a_stream_that_has_ended_is_left_alone_after_a_reconnect(tmp_path: Path) -> None:
    first = SourceServer(tmp_path).start()
    with PushClient(first.address) as client:
        client.notify("over")
        client.send("over", 1, b"x")
        client.end("over")
        until(lambda: first.stats().received == 2)
        commit(first)
        assert client.wait("5s")
        client.notify("going on")
        first.stop()
        with SourceServer(tmp_path, first.address) as second, Committing(second):
            client.send("going on", 1, b"y")
            assert client.wait("10s")
            with RawPusher(second.address) as other:
                assert other.greet().open(1, "over").success


def test_a_stream_can_be_announced_again_after_its_end(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server, Committing(server), PushClient(server.address) as client:
        for turn in range(3):
            assert client.notify("s") == (turn or None)
            client.send("s", turn + 1, b"x")
            client.end("s")
            assert client.wait("10s")
        assert [id for _, id, _ in stored(server)] == [1, 2, 3]


def test_what_was_sent_arrives_when_the_client_closes_at_once(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server:
        with PushClient(server.address) as client:
            client.notify("s")
            for id in range(1, 2001):
                client.send("s", id, b"x" * 100)
            client.end("s")
        until(lambda: server.stats().received == 2001)


class FakeServer:
    """Answers a greeting with whatever the test wants."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard: list[m.Frame] = []
        self._answers = answers
        self._socket: socket.socket | None = None
        self.is_left = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._socket = sock
                decoder, answers = Decoder(two_phase=False), list(self._answers)
                with sock:
                    while data := sock.recv(65536):
                        decoder.receive(data)
                        while (frame := decoder.next()) is not None:
                            self.heard.append(frame)
                            if answers:
                                sock.sendall(answers.pop(0))
                self.is_left = True

    def say(self, data: bytes) -> None:
        """To whoever is connected."""
        assert self._socket is not None
        self._socket.sendall(data)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], RemoteProtocolError),
        ([encode(m.Ok(0))], RemoteProtocolError),
        ([encode(m.NotifyAck(True, 1, None))], RemoteProtocolError),
        ([encode(m.Ok(5)), encode(m.NotifyAck(True, 9, None))], RemoteProtocolError),
        ([encode(m.Ok(5)), encode(m.Ack(1, ((3, 3),)))], RemoteProtocolError),
        ([encode(m.Error("go away"))], InputError),
        ([encode(m.Restart("not an address"))], RemoteProtocolError),
    ],
)
def test_what_is_no_source_server_is_an_error_that_says_so(answers: list[bytes], error: type[Exception]) -> None:
    server = FakeServer(*answers)
    with PushClient(server.address, patience="5s") as client:
        with pytest.raises(error):
            client.notify("s")
        with pytest.raises(error):
            client.send("s", 1, b"x")


def test_a_server_that_does_not_answer_is_given_up_after_a_while() -> None:
    server = FakeServer()
    with PushClient(server.address, patience="0.5s", timeout="0.2s") as client, pytest.raises(InputError, match="cannot be reached"):
        client.notify("s")


def test_a_server_that_sends_us_elsewhere_is_followed_on_its_host_and_left_again_when_nobody_is_there(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server, Committing(server):
        first = FakeServer(encode(m.Restart(server.address)))
        with PushClient(first.address, patience="20s") as client:
            client.notify("s")
            client.send("s", 1, b"x")
            assert client.wait("20s") and client.address == server.address
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    sends_away = FakeServer(encode(m.Restart(nobody)))
    with PushClient(sends_away.address, cookie="c", patience="20s") as client:
        until(lambda: len(sends_away.heard) >= 3)  # it has come back from where nobody is, again and again
        assert client.waiting() is not None


@pytest.mark.parametrize("named", [False, True])
def test_a_cookie_goes_to_no_host_that_nobody_has_named(named: bool) -> None:
    stranger = FakeServer(encode(m.Ok(5)))
    _, _, port = stranger.address.rpartition(":")
    first = FakeServer(encode(m.Restart(f"localhost:{port}")))  # another name than the one that was given
    with PushClient(first.address, cookie="secret", patience="20s", **({"hosts": ["localhost"]} if named else {})):
        until(lambda: len(first.heard) >= 3 or bool(stranger.heard))
    assert [frame.cookie for frame in stranger.heard if isinstance(frame, m.Hello)] == (["secret"] if named else [])


def test_nothing_is_sent_without_a_credit() -> None:
    """The server acknowledges twice and gives no credits back. Between the two the client has looked for something to send, with 46 messages waiting."""
    server = FakeServer(encode(m.Ok(4)), encode(m.NotifyAck(True, 1, None)))
    with PushClient(server.address) as client:
        client.notify("s")
        for id in range(1, 50):
            client.send("s", id, b"x")
        until(lambda: len(server.heard) == 5)
        for point in (1, 2):
            server.say(encode(m.Ack(0, ((1, point),))))
            until(lambda point=point: client.acknowledged("s") == point)  # type: ignore[misc]
    until(lambda: server.is_left)
    assert [type(frame) for frame in server.heard] == [m.Hello, m.Notify, m.Message, m.Message, m.Message]


def test_what_is_queued_is_sent_without_pauses(tmp_path: Path) -> None:
    """A queue of eighty chunks; a client that waited after each would need eight seconds."""
    with SourceServer(tmp_path) as server, Committing(server), PushClient(server.address) as client:
        client.notify("s")
        for id in range(1, 10_001):
            client.send("s", id, b"x" * 2000)
        started = time.monotonic()
        assert client.wait("20s") and time.monotonic() - started < 5
