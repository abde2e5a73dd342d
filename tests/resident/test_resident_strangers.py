"""Who is no task of a run, and who is no driver of it: both are turned away, before anything that they say is believed."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import taskkit as kit
from millstream.core.membership import Attempt, Member
from millstream.engine.resident import messages, tls, wire
from millstream.engine.resident.exchange import Exchange, GivenUp, PeerLost
from millstream.engine.resident.messages import TaskHello, encode
from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.network import parse_address

COOKIE, OTHER = b"c" * 32, b"d" * 32
Accepted = list[wire.TaskLink | Exception]


@contextmanager
def server(cookie: bytes, tls: ssl.SSLContext | None = None, compared: bool = True) -> Iterator[tuple[int, Accepted]]:
    """Somebody who listens, and whom it lets in."""
    listener, found = wire.listen("127.0.0.1"), []

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            try:
                found.append(wire.accept(sock, cookie, tls, compared))
            except (OSError, MillstreamError) as error:
                found.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], found
    wire.stop_listening(listener)
    thread.join(10)
    for one in found:
        if isinstance(one, wire.TaskLink):
            one.close()


# --- the cookie


def test_both_ends_must_know_the_cookie() -> None:
    with server(COOKIE) as (port, found):
        with closing(wire.connect("127.0.0.1", port, COOKIE)) as link:
            link.send(messages.BEAT, [b"hello"], Attempt(1, 2), 3, 4)
            kit.until(lambda: found)
            got = found[0].receive()
            assert (got.kind, got.attempt, got.level, got.sender, bytes(got.body)) == (messages.BEAT, Attempt(1, 2), 3, 4, b"hello")
        with pytest.raises(RemoteProtocolError, match="does not know the cookie"):
            wire.connect("127.0.0.1", port, OTHER)
        kit.until(lambda: len(found) == 2)
        assert isinstance(found[1], RemoteProtocolError)


def test_where_the_server_does_not_compare_it_a_stranger_is_let_in_and_the_client_still_is_not_fooled() -> None:
    with server(COOKIE, compared=False) as (port, found):
        with pytest.raises(RemoteProtocolError, match="does not know the cookie"):
            wire.connect("127.0.0.1", port, OTHER)
        kit.until(lambda: found)
        assert isinstance(found[0], wire.TaskLink), "so the comparison is what keeps strangers out"


def test_where_the_client_does_not_compare_it_a_false_driver_is_believed() -> None:
    with server(OTHER, compared=False) as (port, _):
        link = wire.TaskLink(socket.create_connection(("127.0.0.1", port)), COOKIE, is_server=False, compared=False)
        link.close()


def test_a_proof_cannot_be_sent_back() -> None:
    """Whoever listens and sends back what he gets proves nothing: proofs name the role."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def mirror() -> None:
            sock, _ = listener.accept()
            with sock:
                while data := sock.recv(100):
                    sock.sendall(data)

        threading.Thread(target=mirror, daemon=True).start()
        with pytest.raises(RemoteProtocolError, match="does not know the cookie"):
            wire.connect("127.0.0.1", listener.getsockname()[1], COOKIE)


# --- TLS


def test_only_the_certificate_of_the_run_is_trusted_in_both_directions() -> None:
    ours, theirs = tls.make_certificate(), tls.make_certificate()
    with server(COOKIE, tls.contexts(*ours)[0]) as (port, found):
        link = wire.connect("127.0.0.1", port, COOKIE, tls.contexts(*ours)[1])
        kit.until(lambda: found)
        link.send(messages.BEAT, [b"x" * 200_000])
        assert len(found[0].receive().body) == 200_000
        link.close()
        with pytest.raises((OSError, MillstreamError)):  # it knows the cookie, but does not trust our certificate
            wire.connect("127.0.0.1", port, COOKIE, tls.contexts(*theirs)[1])
        careless = tls.contexts(*theirs)[1]
        assert careless is not None
        careless.verify_mode = ssl.CERT_NONE  # trusts anybody: then it is the server that says no
        with pytest.raises((OSError, MillstreamError)):
            wire.connect("127.0.0.1", port, COOKIE, careless)
        with pytest.raises((OSError, MillstreamError)):
            wire.connect("127.0.0.1", port, COOKIE)  # without TLS
        kit.until(lambda: len(found) == 4)
        assert not any(isinstance(one, wire.TaskLink) for one in found[1:])


def test_many_frames_at_once_in_both_directions_over_tls() -> None:
    """Several threads send at both ends while one reads there, as between a driver and a task: every frame comes, whole and in its order."""
    made = tls.make_certificate()
    with server(COOKIE, tls.contexts(*made)[0]) as (port, found):
        near = wire.connect("127.0.0.1", port, COOKIE, tls.contexts(*made)[1])
        kit.until(lambda: found)
        ends: list[Any] = [near, found[0]]
        got: list[dict[int, list[int]]] = [{}, {}]

        def send(end: int, sender: int) -> None:
            dice = random.Random(sender)
            for number in range(1, 120):
                size = dice.choice([1, 100, 5_000, 300_000])
                ends[end].send(messages.ROWS, [bytes([number]) * size], Attempt(1, number), 0, sender)

        def read(end: int) -> None:
            while sum(map(len, got[end].values())) < 2 * 119:
                frame = ends[end].receive()
                assert set(bytes(frame.body)) == {frame.attempt.number}
                got[end].setdefault(frame.sender, []).append(frame.attempt.number)

        work = [threading.Thread(target=send, args=(end, sender), daemon=True) for end in (0, 1) for sender in (1, 2)]
        work += [threading.Thread(target=read, args=(end,), daemon=True) for end in (0, 1)]
        for one in work:
            one.start()
        for one in work:
            one.join(60)
        assert got == [{sender: list(range(1, 120)) for sender in (1, 2)}] * 2
        near.close()


# --- hostile bytes


def hostile() -> list[bytes]:
    dice = random.Random(1)
    return [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 1000,
        bytes(16),
        bytes(48),
        bytes(48) + (1 << 40).to_bytes(8, "little") * 4,
        *(dice.randbytes(dice.randrange(1, 5000)) for _ in range(20)),
    ]


@pytest.mark.crash
def test_hostile_bytes_on_both_ports_disturb_nobody(tmp_path: Path) -> None:
    rows = kit.numbered(60)
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:20])
        ports = [
            parse_address(address)[1]
            for address in (run.coordinator.address, *(who.address for who in run.coordinator._membership.members))
        ]
        held = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(20)]  # say nothing
        for port in ports:
            for data in hostile():
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
        run.turn(*rows[20:40])
        assert run.mode.losses == 0 and run.mode.generation == 1
        for sock in held:
            sock.close()
        run.turn(*rows[40:])
    assert kit.faults_of(tmp_path, rows) == {}


@pytest.mark.crash
def test_somebody_who_knows_the_cookie_and_talks_nonsense_is_turned_away(tmp_path: Path) -> None:
    rows = kit.numbered(40)
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:20])
        port = parse_address(run.coordinator.address)[1]
        said = [
            (messages.HELLO, b"\xc1 no message"),
            (messages.HELLO, encode(TaskHello(99, "h", 1, "a:1", 1))),
            (messages.ROWS, b""),
            (77, b"?"),
        ]
        for kind, body in said:
            with closing(wire.connect("127.0.0.1", port, run.setup.cookie)) as link:
                link.send(kind, [body])
                assert link.receive() is None  # it is closed
        run.turn(*rows[20:])
        assert run.mode.losses == 0 and run.mode.generation == 1
    assert kit.faults_of(tmp_path, rows) == {}


def test_whoever_says_a_little_at_a_time_does_not_get_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "GREETING", 0.5)
    with server(COOKIE) as (port, found), socket.create_connection(("127.0.0.1", port)) as sock:
        began = time.monotonic()
        while not found and time.monotonic() - began < 20:
            try:
                sock.sendall(b"x")
            except OSError:
                pass
            time.sleep(0.05)
        assert isinstance(found[0], RemoteProtocolError) and "timed out" in str(found[0])


# --- the exchange


@contextmanager
def pair(**options: Any) -> Iterator[list[Exchange]]:
    both = [Exchange(slot, 2, "127.0.0.1", COOKIE, None, None, options.get("trusting", False)) for slot in (0, 1)]
    members = [Member(slot, slot + 1, "here", 0, one.address) for slot, one in enumerate(both)]
    for one in both:
        one.generation(members)
    yield both
    for one in both:
        one.end()


def reset(link: wire.TaskLink) -> None:
    """Ends a connection as a network would: without a word."""
    link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link._socket.close()


def test_a_peer_whose_connection_breaks_before_its_frame_comes_is_named() -> None:
    """Both are there, and both reach the driver: only the way between them is gone. Nobody would hear of it but the task that waits."""
    with pair() as (one, other):
        for number in (1, 2):
            at = Attempt(1, number)
            one.begin(at)
            other.begin(at)
            other.send(at, 0, {0: b"rows"})
            assert [bytes(data) for data in one.gather(at, 0)] == [b"rows"]
        at = Attempt(1, 3)
        one.begin(at)
        for _, link in other._links.values():
            reset(link)
        with pytest.raises(PeerLost) as caught:
            one.gather(at, 0)
        assert caught.value.slots == [1]


@pytest.mark.parametrize("closing", [wire.TaskLink.close, reset])
def test_a_peer_that_comes_again_over_another_connection_is_heard(closing: Callable[[wire.TaskLink], None]) -> None:
    with pair() as (one, other):
        at = Attempt(1, 1)
        one.begin(at)
        other.send(at, 0, {})
        closing(other._links.pop(0)[1])
        at = Attempt(1, 2)
        one.begin(at)
        threading.Timer(0.1, other.send, (at, 0, {0: b"again"})).start()
        found: list[Any] = []
        while not found:
            try:
                found = one.gather(at, 0)
            except PeerLost:
                time.sleep(0.01)
        assert [bytes(data) for data in found] == [b"again"]


def test_an_attempt_that_is_given_up_is_left() -> None:
    with pair() as (one, _):
        one.begin(Attempt(1, 1))
        threading.Timer(0.05, one.give_up, (Attempt(1, 1),)).start()
        with pytest.raises(GivenUp):
            one.gather(Attempt(1, 1), 0)
        assert one.is_given_up(Attempt(1, 1)) and not one.is_given_up(Attempt(1, 2))
