"""What `millstream push` says while it waits: when, how often, and for whom."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sourcekit import HERE, Committing
from waiting import until

from millstream.connector.source.push import PushClient, Waiting
from millstream.connector.source.push_console import WaitMessages
from millstream.connector.source.server import SourceServer


def away(seconds: float) -> Waiting:
    return Waiting("h:1 to listen", seconds, "h:1", is_away=True)


def commits(seconds: float) -> Waiting:
    return Waiting("the pipeline at h:1 to commit 5 bytes", seconds, "h:1")


def test_a_wait_is_told_after_a_second_and_then_every_ten() -> None:
    signs = WaitMessages()
    told = [tenth for tenth in range(350) if signs.look(away(tenth / 10)) is not None]
    assert told == [10, 110, 210, 310]


def test_the_end_of_a_wait_for_the_server_is_told_and_a_new_wait_begins_anew() -> None:
    signs = WaitMessages()
    assert signs.look(away(3)) == "waiting for h:1 to listen (3 s)"
    assert signs.look(None) == "h:1 answers" and signs.look(None) is None
    assert signs.look(commits(1.5)) == "waiting for the pipeline at h:1 to commit 5 bytes (2 s)"
    assert signs.look(commits(0.3)) is None and signs.look(commits(1.1)) is not None
    assert signs.look(None) is None


def test_a_wait_that_nobody_was_told_of_ends_silently() -> None:
    signs = WaitMessages()
    assert [signs.look(away(0.9)), signs.look(None), signs.look(commits(0.9)), signs.look(None)] == [None] * 4


def test_a_wait_for_lines_is_told_once_and_not_too_often() -> None:
    signs = WaitMessages()
    assert signs.look_at_input("a.txt", 3, 0.9, 100) is None
    assert signs.look_at_input("a.txt", 3, 1.1, 100) == "3 records are committed; waiting for more lines of a.txt"
    assert signs.look_at_input("a.txt", 3, 500, 599) is None  # the same wait
    assert signs.look_at_input("a.txt", 4, 1.1, 600) is not None
    assert signs.look_at_input("a.txt", 5, 1.1, 605) is None  # too soon
    assert signs.look_at_input("a.txt", 5, 9, 613) is not None


# ---- what a client waits for


@pytest.fixture
def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def waits(client: PushClient, what: str) -> bool:
    found = client.waiting()
    return found is not None and what in found.what


def test_a_client_knows_what_it_waits_for(tmp_path: Path, free: str) -> None:
    with PushClient(free) as client:
        assert waits(client, f"{free} to listen")
        server = SourceServer(tmp_path / "intake", free).start()
        client.notify("s")
        assert client.waiting() is None
        client.send("s", 1, b"one")
        assert waits(client, f"the pipeline at {free} to commit")
        with Committing(server):
            assert client.wait("10s") and client.waiting() is None
        server.stop()
        until(lambda: waits(client, f"{free} to listen"))


def test_a_client_knows_that_it_waits_for_another(tmp_path: Path) -> None:
    with SourceServer(tmp_path / "intake") as server, PushClient(server.address) as first, PushClient(server.address) as second:
        first.notify("s")
        threading.Thread(target=second.notify, args=("s",), daemon=True).start()
        until(lambda: waits(second, "another program pushes it"))
        first.close()
        until(lambda: second.waiting() is None)


def test_a_client_that_is_not_answered_says_so(free: str) -> None:
    host, _, port = free.rpartition(":")
    with socket.create_server((host, int(port))), PushClient(free, timeout="60s") as client:
        until(lambda: waits(client, f"{free} to answer"))


# ---- the command


@pytest.fixture
def command() -> Iterator[list[subprocess.Popen[str]]]:
    """Who says nothing does not keep us waiting."""
    running: list[subprocess.Popen[str]] = []
    watchdog = threading.Timer(30, lambda: [process.kill() for process in running])
    watchdog.start()
    yield running
    watchdog.cancel()
    for process in running:
        process.kill()
        process.communicate()


def start(command: list[subprocess.Popen[str]], *args: str) -> Iterator[str]:
    """Starts it; gives the lines that it says."""
    process = subprocess.Popen([sys.executable, str(HERE / "pushproc.py"), *args], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    command.append(process)
    assert process.stderr is not None
    return iter(process.stderr)


@pytest.mark.slow
def test_the_command_says_for_whom_it_waits_and_what_it_did(tmp_path: Path, free: str, command: list[subprocess.Popen[str]]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    said = start(command, str(path), "--address", free)
    assert re.fullmatch(rf"push: waiting for {free} to listen \(\d+ s\)\n", next(said))
    with SourceServer(tmp_path / "intake", free) as server:
        assert next(said) == f"push: {free} answers\n"
        assert next(said).startswith(f"push: waiting for the pipeline at {free} to commit ")
        with Committing(server):
            assert next(said) == "push: 2 records, committed up to byte 8 of stream a.txt\n"
            assert command[0].wait(10) == 0


@pytest.mark.slow
def test_the_command_says_that_it_waits_for_lines_and_what_it_did_when_it_is_interrupted(
    tmp_path: Path, command: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nthr")
    with SourceServer(tmp_path / "intake") as server, Committing(server):
        said = start(command, str(path), "--address", server.address, "--follow")
        assert next(said) == f"push: 2 records are committed; waiting for more lines of {path}\n"
        command[0].send_signal(signal.SIGINT)
        assert next(said) == "push: 2 records were sent, committed up to byte 8 of stream a.txt; run it again to go on from there\n"
