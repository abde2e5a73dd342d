"""Real processes, killed with SIGKILL: the source's server, with its engine, and `millstream push`. Every line is committed once, in order."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sourcekit import HERE, SourceProcess
from waiting import until

from millstream.connector.intake.reader import durable_end
from millstream.connector.source.push import PushClient

pytestmark = pytest.mark.crash


def pusher(source: SourceProcess, path: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "pushproc.py"), str(path), "--address", source.address, "--patience", "20s", *options],
        stderr=subprocess.DEVNULL,
    )


def expected(path: Path, stream: str) -> list[tuple[str, int, str]]:
    found, at = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        at += len(line)
        found.append((stream, at, line.rstrip(b"\n").decode()))
    return found


def test_killing_the_server_and_the_pusher_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    draw = random.Random(11)
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number} {'x' * draw.randrange(60)}\n" for number in range(30_000)))
    with SourceProcess(tmp_path / "source", server={"credits": 700, "segment_size": 200_000}) as source:
        push = pusher(source, path)
        kills = 0
        while kills < 6 or push.poll() is None:
            time.sleep(draw.uniform(0.3, 0.6))
            if kills < 6 and kills % 2 == 0:
                source.kill()
                source.start()
            elif kills < 6:
                push.kill()
                push.wait()
                push = pusher(source, path)
            kills += 1
            assert kills < 60
        assert push.returncode == 0
        assert source.committed() == expected(path, "lines.txt")


def test_a_client_that_lives_on_resends_to_a_server_that_was_killed(tmp_path: Path) -> None:
    with SourceProcess(tmp_path / "source", every=0.02) as source, PushClient(source.address, patience="20s") as client:
        client.notify("s")
        for id in range(1, 3001):
            client.send("s", id, str(id).encode())
            if id % 1000 == 500:
                source.kill()
                source.start()
        client.end("s")
        assert client.wait("20s")
        assert source.committed() == [("s", id, str(id)) for id in range(1, 3001)]


def test_a_server_that_forgets_what_it_received_doubles_lines(tmp_path: Path) -> None:
    """The negative twin: the same kills, with deduplication off."""
    with SourceProcess(tmp_path / "source", every=2, broken="forgets what was received") as source:
        for _ in range(2):
            before = durable_end(tmp_path / "source" / "intake") or 0
            with PushClient(source.address, patience="20s") as client:
                assert client.notify("s") is None, "nothing is committed yet"
                client.send("s", 1, b"1")
                until(lambda before=before: (durable_end(tmp_path / "source" / "intake") or 0) > before)  # type: ignore[misc]
        until(lambda: len(source.committed()) == 2)
        assert source.committed() == [("s", 1, "1"), ("s", 1, "1")]
