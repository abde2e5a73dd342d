"""`millstream push`: lines of files and of stdin, resumed at the acknowledged point."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sourcekit import HERE, Committing, decode_entries, stored
from waiting import until

from millstream.cli import push as push_command
from millstream.connector.intake import reader as intake_reader
from millstream.connector.source.server import SourceServer
from millstream.errors import DefinitionError, InputError
from millstream.network import parse_address


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SourceServer]:
    with SourceServer(tmp_path / "intake") as made, Committing(made):
        yield made


def push(*args: str) -> int:
    """The command, in this process."""
    import argparse

    parser = argparse.ArgumentParser()
    push_command.add_command(parser.add_subparsers())
    parsed = parser.parse_args(["push", *args])
    code: int = parsed.command(parsed)
    return code


def entries(server: SourceServer) -> list[Any]:
    end = intake_reader.durable_end(server._intake.folder) or 0
    return [entry for head, batch in intake_reader.batches(server._intake.folder, 0, end) for entry in decode_entries(batch, head)]


def test_the_id_is_the_position_behind_the_line(server: SourceServer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\nthree\nfour")
    assert push(str(path), "--address", server.address) == 0
    assert stored(server) == [("a.txt", 4, b"one"), ("a.txt", 5, b""), ("a.txt", 11, b"three"), ("a.txt", 15, b"four")]


def test_a_file_that_grew_is_pushed_from_where_it_was_acknowledged(server: SourceServer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in (b"one\n", b"two\n", b""):
        path.write_bytes((path.read_bytes() if path.exists() else b"") + text)
        push(str(path), "--address", server.address, "--stream", "s")
    assert stored(server) == [("s", 4, b"one"), ("s", 8, b"two")]


def test_a_file_that_is_shorter_than_what_is_committed_is_refused(server: SourceServer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    push(str(path), "--address", server.address)
    path.write_bytes(b"1\n")
    with pytest.raises(InputError, match="not the file"):
        push(str(path), "--address", server.address)


def test_key_and_time_are_fields(server: SourceServer, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"who": "ann", "at": 1000}\n{"who": 7, "at": "1970-01-01T00:00:03Z"}\n')
    push(str(path), "--address", server.address, "--key", "who", "--time", "at", "--watermark", "1s")
    found = entries(server)
    assert [(e[3], e[4]) for e in found if e[1] == 0] == [(1000, b"ann"), (3000, b"7")]
    assert [e[3] for e in found if e[1] == 1][-1] == 2000 and found[-1][1] == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no json", "no JSON object"),
        ('{"at": 5}', "no field 'who'"),
        ('{"who": "a", "at": "yesterday"}', "write milliseconds"),
        ("[1]", "no JSON object"),
    ],
)
def test_a_line_that_does_not_fit_is_named_by_its_position(server: SourceServer, tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"who": "ann", "at": 1}}\n{line}\n')
    with pytest.raises(InputError, match=why) as caught:
        push(str(path), "--address", server.address, "--key", "who", "--time", "at")
    assert f"byte {path.stat().st_size}" in str(caught.value)


def test_following_waits_for_whole_lines(server: SourceServer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntw")
    running = subprocess.Popen([sys.executable, str(HERE / "pushproc.py"), str(path), "--address", server.address, "--follow"])
    try:
        until(lambda: len(stored(server)) == 1)
        with open(path, "ab") as handle:
            handle.write(b"o\nthree\n")
        until(lambda: len(stored(server)) == 3)
    finally:
        running.kill()
        running.wait()
    assert stored(server) == [("a.txt", 4, b"one"), ("a.txt", 8, b"two"), ("a.txt", 14, b"three")]


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_stdin_is_pushed_and_given_again_it_is_not_pushed_twice(
    server: SourceServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (b"one\ntwo\n", b"one\ntwo\nthree\n"):
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        push("-", "--address", server.address, "--stream", "s")
    assert stored(server) == [("s", 4, b"one"), ("s", 8, b"two"), ("s", 14, b"three")]
    assert "first 8 bytes" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", Stdin(b"one\n"))
    with pytest.raises(InputError, match="stdin ends 10 bytes before"):
        push("-", "--address", server.address, "--stream", "s")


def test_stdin_needs_a_name_for_its_stream(server: SourceServer) -> None:
    with pytest.raises(InputError, match="--stream"):
        push("-", "--address", server.address)


def test_a_pipeline_that_is_away_is_waited_for_with_patience(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n")
    first = SourceServer(tmp_path / "intake").start()
    address = first.address
    first.stop()
    with pytest.raises(InputError, match="cannot be reached"):
        push(str(path), "--address", address, "--patience", "0.2s")
    done: list[int] = []
    running = threading.Thread(target=lambda: done.append(push(str(path), "--address", address, "--patience", "20s")))
    with socket.create_server(parse_address(address)) as nobody:
        running.start()
        nobody.accept()[0].close()  # it has come, and found nobody who answers
    with SourceServer(tmp_path / "intake", address) as second, Committing(second):
        running.join(10)
        assert done == [0] and len(stored(second)) == 1


def test_an_empty_file_and_an_absent_one(server: SourceServer, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert push(str(tmp_path / "empty"), "--address", server.address) == 0 and stored(server) == []
    with pytest.raises(DefinitionError, match="cannot be read"):
        push(str(tmp_path / "absent"), "--address", server.address)
