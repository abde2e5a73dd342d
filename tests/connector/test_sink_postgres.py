"""PostgreSQL behind a sink that is killed: rows and commit mark come together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sinkkit import Nursery, Raw, SinkProcess
from sinkproc import CALLS

from millstream.connector import WorkerClient
from millstream.connector.wire import messages as m
from millstream.errors import SinkError

pytestmark = pytest.mark.crash


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """The server's database, with no tables in it."""
    import psycopg

    yield postgres
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP TABLE IF EXISTS lines, lines_staged, lines_workers, lines_left")


def lines(dsn: str, worker: str = "w") -> list[str]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        return [bytes(line).decode() for (line,) in connection.execute("SELECT line FROM lines WHERE worker = %s ORDER BY at", (worker,))]


def attempt(address: str, txn: str, data: bytes) -> bool:
    """Whether it is decided that this commits: only if a yes arrived."""
    try:
        with WorkerClient.connect(address, "w", timeout="10s") as worker:
            for found in worker.uncommitted:
                worker.resolve(found, commit=False)
            worker.write(data)
            if not worker.prepare(txn):
                return False
            try:
                worker.finish(txn, commit=True, confirm=False)
                worker.confirm()
            except SinkError:
                pass
            return True
    except SinkError:
        return False


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [call for call in CALLS if call not in ("veto", "rollback")])
def test_a_sink_killed_around_any_call_loses_and_doubles_no_row(nursery: Nursery, tmp_path: Path, dsn: str, call: str, when: str) -> None:
    with SinkProcess(nursery, tmp_path, postgres=dsn) as sink:
        assert attempt(sink.address, "t0", b"one\ntwo\nhalf of ")
        sink.kill()
        sink.start(kill=[call, when, 1])
        decision = attempt(sink.address, "t1", b"three\nfour\n")
        assert decision == (call == "commit")
        sink.wait()
        # nothing is half there, also while the sink is away
        assert lines(dsn) in (["one", "two"], ["one", "two", "half of three", "four"])
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.settle("t1", decision)
        assert lines(dsn) == (["one", "two", "half of three", "four"] if decision else ["one", "two"])
        assert attempt(sink.address, "t2", b"five\n")
        assert lines(dsn)[-1] == ("five" if decision else "half of five")


def test_a_sink_killed_between_the_phases_keeps_the_promise_in_the_database(nursery: Nursery, tmp_path: Path, dsn: str) -> None:
    with SinkProcess(nursery, tmp_path, postgres=dsn) as sink:
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.write(b"a\nb\n")
            assert worker.prepare("t")
        sink.kill()
        assert lines(dsn) == []
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            assert worker.uncommitted == ("t",)
            worker.resolve("t", commit=True)
        assert lines(dsn) == ["a", "b"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("call", "when"), [("begin_next", "after"), ("append", "after"), ("phase two", "before"), ("phase two", "after")])
def test_a_sink_killed_with_lines_behind_its_promise_keeps_the_promise_alone(
    nursery: Nursery, tmp_path: Path, dsn: str, call: str, when: str, commit: bool
) -> None:
    with SinkProcess(nursery, tmp_path, postgres=dsn) as sink:
        sink.kill()
        sink.start(kill=[("commit" if commit else "rollback") if call == "phase two" else call, when, 2 if call == "append" else 1])
        with Raw(sink.address) as peer:
            peer.greet("w")
            peer.send(m.Message(1, 0, b"one\nhalf of "), m.Phase1("t", ((1, 0, 12),)))
            assert peer.hear() == m.Vote("t", True)
            peer.send(m.Message(1, 12, b"two\nthree\n"), m.Phase2("t", commit))
            assert peer.hear() is None
        sink.wait()
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.settle("t", commit)
            worker.write(b"last\n")
            assert worker.prepare("u")
            worker.finish("u", commit=True, confirm=True)
        assert lines(dsn) == (["one", "half of last"] if commit else ["last"])


def test_several_workers_share_a_table(nursery: Nursery, tmp_path: Path, dsn: str) -> None:
    with SinkProcess(nursery, tmp_path, postgres=dsn) as sink:
        clients = [WorkerClient.connect(sink.address, name) for name in ("w", "v", "u/'; DROP TABLE lines")]
        for client in clients:
            client.write(client.name.encode() + b"\n")
        assert all([client.prepare("t") for client in clients])
        for client in clients:
            client.finish("t", commit=client.name != "v", confirm=True)
            client.close()
        assert lines(dsn, "w") == ["w"] and lines(dsn, "v") == [] and lines(dsn, "u/'; DROP TABLE lines") == ["u/'; DROP TABLE lines"]


def test_many_lines_are_many_rows(nursery: Nursery, tmp_path: Path, dsn: str) -> None:
    with SinkProcess(nursery, tmp_path, postgres=dsn) as sink:
        assert attempt(sink.address, "t", b"".join(b"line %d\n" % number for number in range(20_000)))
        assert lines(dsn) == [f"line {number}" for number in range(20_000)]
