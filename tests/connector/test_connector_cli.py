"""`millstream sink run` and `millstream sink read`, as they are typed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from millstream.cli import main
from millstream.connector import WorkerClient


def start(*args: str, env: dict[str, str] | None = None, stderr: int | None = None) -> tuple[subprocess.Popen[str], str]:
    import os

    command = [sys.executable, "-m", "millstream.cli", "sink", "run", "--listen", "127.0.0.1:0", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(env or {})})
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"listening on (\S+),", line)
    assert found, line
    return process, found[1]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process, address = start("--dir", str(tmp_path), env={"MILLSTREAM_COOKIE": "secret"})
    yield process, address
    process.kill()
    process.wait()


def commit(worker: WorkerClient, txn: str, data: bytes) -> None:
    worker.write(data)
    assert worker.prepare(txn)
    worker.finish(txn, commit=True, confirm=True)


@pytest.mark.slow
def test_a_sink_runs_is_read_and_stops(
    running: tuple[subprocess.Popen[str], str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    process, address = running
    with WorkerClient.connect(address, "app-w-1", cookie="secret") as worker:
        commit(worker, "t1", b"one\n")
        worker.write(b"not committed\n")
        worker.flush()
        assert main(["sink", "read", str(tmp_path), "app-w-1"]) == 0
        assert capfdbinary.readouterr().out == b"one\n"
        command = [sys.executable, "-m", "millstream.cli", "sink", "read", str(tmp_path), "app-w-1", "--follow"]
        with open(tmp_path / "followed", "wb") as out:
            follower = subprocess.Popen(command, stdout=out)
        try:
            until(lambda: (tmp_path / "followed").read_bytes() == b"one\n")
            assert worker.prepare("t2")
            worker.finish("t2", commit=False, confirm=True)
            commit(worker, "t3", b"three\n")
            until(lambda: (tmp_path / "followed").read_bytes() == b"one\nthree\n")
        finally:
            follower.kill()
            follower.wait()
    assert main(["sink", "read", str(tmp_path)]) == 0
    assert capfdbinary.readouterr().out == b"app-w-1\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [False, True])
def test_a_sink_says_who_comes_who_goes_and_what_is_committed(tmp_path: Path, quiet: bool) -> None:
    process, address = start("--dir", str(tmp_path), *(["--quiet"] if quiet else []), stderr=subprocess.PIPE)
    with WorkerClient.connect(address, "app-w-1") as worker:
        commit(worker, "t1", b"one\n")
        commit(worker, "t2", b"two\n")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0 and out == "sink: stopped; what was promised is kept (2 transactions with 8 bytes were committed)\n"
    if quiet:
        assert err == ""
        return
    commits = [line for line in err.splitlines() if "committed" in line]
    came, went = (line for line in err.splitlines() if line not in commits)
    assert re.fullmatch(r"sink: 'app-w-1' has connected from 127\.0\.0\.1:\d+", came) and went == "sink: 'app-w-1' has disconnected"
    assert 1 <= len(commits) <= 2 and all(
        re.fullmatch(r"sink: committed [48] bytes in [12] transactions? of 'app-w-1'", line) for line in commits
    )


def test_a_sink_says_while_it_runs_that_a_worker_has_come(tmp_path: Path) -> None:
    process, address = start("--dir", str(tmp_path), stderr=subprocess.PIPE)
    assert process.stderr is not None
    watchdog = threading.Timer(20, process.kill)  # who says nothing does not keep us waiting
    watchdog.start()
    with WorkerClient.connect(address, "app-w-1"):
        assert "'app-w-1' has connected" in process.stderr.readline()
    assert process.stderr.readline() == "sink: 'app-w-1' has disconnected\n"
    watchdog.cancel()
    process.kill()
    process.communicate()


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sink", "read", str(tmp_path), "nobody"]) == 5
    assert "no output of a worker 'nobody'" in capsys.readouterr().err
    assert main(["sink", "run", "--listen", "0.0.0.0:0", "--dir", str(tmp_path)]) == 1
    assert "without a cookie" in capsys.readouterr().err
    assert main(["sink", "run", "--listen", "here", "--dir", str(tmp_path)]) == 1
    assert "HOST:PORT" in capsys.readouterr().err
    assert main(["sink", "run"]) == 2
    assert main(["sink", "run", "--dir", str(tmp_path), "--tls-key", "k"]) == 1
    assert "need --tls-cert" in capsys.readouterr().err


def test_two_sinks_cannot_have_the_same_directory(
    running: tuple[subprocess.Popen[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sink", "run", "--listen", "127.0.0.1:0", "--dir", str(tmp_path)]) == 5
    assert "another sink" in capsys.readouterr().err
