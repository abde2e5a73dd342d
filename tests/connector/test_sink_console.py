"""What the sink command says: one line each, and commits gathered."""

from __future__ import annotations

import pytest
from sinkkit import Raw
from waiting import until

from millstream.connector import MemoryOutputs, SinkServer, WorkerClient
from millstream.connector.sink import console
from millstream.connector.sink.console import SinkConsole
from millstream.connector.wire import messages as m
from millstream.errors import SinkError


def test_who_comes_and_goes_has_a_line_and_commits_are_one() -> None:
    told = SinkConsole()
    with SinkServer(MemoryOutputs(), console=told) as server:
        with WorkerClient.connect(server.address, "w") as worker:
            for number in range(3):
                worker.write(b"12345\n")
                assert worker.prepare(str(number))
                worker.finish(str(number), commit=number != 1, confirm=True)
            with WorkerClient.connect(server.address, "v") as other:
                worker.workers_left(["v"])
                with pytest.raises(SinkError):
                    other.confirm()
        with pytest.raises(SinkError, match="cookie"):
            WorkerClient.connect(server.address, "x", cookie="guess")
    lines = told.take(last=True)
    came, second, *_, commits = lines
    assert came.startswith("'w' has connected from 127.0.0.1:") and second.startswith("'v' has connected from")
    assert commits == "committed 12 bytes in 2 transactions of 'w'"
    assert sorted(line.split(": ")[0] for line in lines[2:-1] if "127.0.0.1" not in line) == [
        "'v' has left for good; its output is put aside",
        "'v' was sent away",
        "'w' has disconnected",
    ]
    assert [line.split(" ", 1)[1] for line in lines if line.startswith("127.0.0.1")] == ["was refused: 'the cookie is wrong'"]
    assert told.take(last=True) == []


def test_commits_are_gathered_to_one_line_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    told = SinkConsole()
    told.committed("a", 5)
    assert told.take() == ["committed 5 bytes in 1 transaction of 'a'"]
    for worker in "bcdef":
        told.committed(worker, 1000)
        clock[0] += 0.1
        assert told.take() == []
    told.say("somebody came")
    assert told.take() == ["somebody came"]
    clock[0] += 0.6
    assert told.take() == ["committed 5,000 bytes in 5 transactions of 'b', 'c', 'd', 2 more"]
    told.committed("a", 5)
    assert told.take() == [] and told.take(last=True) == ["committed 5 bytes in 1 transaction of 'a'"]


def test_a_crowd_is_counted() -> None:
    told = SinkConsole()
    for number in range(1000):
        told.say(str(number))
    assert len(lines := told.take()) == 21 and lines[-1] == "980 more have connected, disconnected or were refused"


def test_what_peers_say_is_written_so_that_no_terminal_obeys_it() -> None:
    told = SinkConsole()
    with SinkServer(MemoryOutputs(), console=told) as server:
        with WorkerClient.connect(server.address, "\x1b[2J\n") as worker:
            worker.write(b"1")
            assert worker.prepare("t")
            worker.finish("t", commit=True, confirm=True)
        with Raw(server.address) as peer:
            peer.send(m.Hello("\x1b]0;x\x07", "", "p", "w"))
            until(lambda: server.stats().errors == 1)
    lines = told.take(last=True)
    assert len(lines) == 4 and all(line.isprintable() for line in lines)
