"""The sink server over sockets: who may come, who is fenced, who has left, and what a slow output costs the others."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from sinkkit import Nursery, Raw, SinkProcess
from waiting import until

from millstream.connector import FileOutputs, MemoryOutputs, SinkServer, SinkStats, Tls, WorkerClient
from millstream.connector.sink.outputs import files
from millstream.connector.sink.outputs.memory import MemoryOutput
from millstream.connector.wire import messages as m
from millstream.errors import DefinitionError, NetworkError, RemoteProtocolError, SinkError


@pytest.fixture
def outputs() -> MemoryOutputs:
    return MemoryOutputs()


def commit(address: str, name: str, data: bytes, txn: str = "t", **options: object) -> None:
    with WorkerClient.connect(address, name, **options) as worker:  # type: ignore[arg-type]
        worker.write(data)
        assert worker.prepare(txn)
        worker.finish(txn, commit=True, confirm=True)


def test_several_workers_commit_at_once(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server:

        def work(number: int) -> None:
            with WorkerClient.connect(server.address, f"w{number}") as worker:
                for txn in range(20):
                    worker.write(b"%d %d\n" % (number, txn))
                    assert worker.prepare(str(txn))
                    worker.finish(str(txn), commit=True)
                worker.confirm()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(8):
        assert outputs.committed(f"w{number}") == b"".join(b"%d %d\n" % (number, txn) for txn in range(20))


def test_a_new_hello_fences_the_older_session_of_that_name_only(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server:
        old, other = WorkerClient.connect(server.address, "w"), WorkerClient.connect(server.address, "v")
        old.write(b"old\n")
        old.flush()
        new = WorkerClient.connect(server.address, "w")
        assert new.offset == 0
        with pytest.raises(SinkError, match="fenced"):
            old.prepare("t")
        other.write(b"x")
        assert other.prepare("t")
        for client in (old, new, other):
            client.close()


def test_fencing_waits_for_the_last_effect_of_the_older_session() -> None:
    entered, go_on, order = threading.Event(), threading.Event(), []

    class Waits(MemoryOutput):
        def prepare(self, txn: str, start: int, end: int) -> None:
            entered.set()
            go_on.wait(10)
            order.append("prepared")
            super().prepare(txn, start, end)

        def recover(self):  # type: ignore[no-untyped-def]
            order.append("recovers")
            return super().recover()

    memory = MemoryOutputs()
    output = Waits(memory, "w")
    with SinkServer(lambda worker: output) as server:
        old = WorkerClient.connect(server.address, "w")
        old.write(b"x")

        def attempt() -> None:
            with pytest.raises(SinkError):
                old.prepare("t")

        threading.Thread(target=attempt, daemon=True).start()
        entered.wait(10)
        threading.Timer(0.3, go_on.set).start()
        with WorkerClient.connect(server.address, "w") as new:
            assert order == ["recovers", "prepared", "recovers"]
            assert new.uncommitted == ("t",)


def test_a_slow_output_slows_down_its_own_worker_only(outputs: MemoryOutputs) -> None:
    gate = threading.Event()

    class Slow(MemoryOutput):
        def append(self, data: bytes) -> None:
            gate.wait(20)
            super().append(data)

    slow = Slow(outputs, "slow")
    with SinkServer(lambda worker: slow if worker == "slow" else outputs(worker)) as server:
        with WorkerClient.connect(server.address, "slow", timeout="0.5s") as stuck:
            with pytest.raises(SinkError, match="did not answer"):  # TCP's buffers are full, and nothing piles up behind them
                for _ in range(1000):
                    stuck.write(bytes(1 << 20))
            sent = stuck.offset
        began = time.monotonic()
        commit(server.address, "quick", b"quick\n")
        assert time.monotonic() - began < 1 and sent < 100 << 20
        gate.set()
    assert outputs.committed("quick") == b"quick\n"


@pytest.mark.slow
def test_memory_stays_bounded_while_the_disk_is_slow(nursery: Nursery, tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    with SinkProcess(nursery, tmp_path / "sink", slow=5) as sink:
        process = psutil.Process(sink.pid)
        before = process.memory_info().rss
        with WorkerClient.connect(sink.address, "slow", timeout="0.7s") as worker, pytest.raises(SinkError):
            for _ in range(1000):
                worker.write(bytes(1 << 20))
        assert process.memory_info().rss - before < 16 << 20


def test_workers_that_have_left_are_archived_and_begin_again(tmp_path: Path) -> None:
    with SinkServer(FileOutputs(tmp_path)) as server:
        commit(server.address, "gone", b"old\n")
        with WorkerClient.connect(server.address, "gone") as still_there, WorkerClient.connect(server.address, "w") as worker:
            worker.workers_left(["gone", "never was"])
            assert (tmp_path / "left" / "gone.0").exists()
            with pytest.raises(SinkError, match="left"):
                still_there.confirm()
        with WorkerClient.connect(server.address, "gone") as again:
            assert again.offset == 0
        commit(server.address, "gone", b"new\n")
    assert b"".join(files.read(tmp_path, "gone")) == b"new\n"
    assert (tmp_path / "left" / "gone.0" / "output").read_bytes() == b"old\n"


def test_a_worker_cannot_say_that_itself_has_left(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server, WorkerClient.connect(server.address, "w") as worker, pytest.raises(SinkError, match="still here"):
        worker.workers_left(["w"])


def test_a_worker_that_speaks_as_wallaroos_may_goes_on_and_is_counted(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server, Raw(server.address) as peer:
        peer.greet("w")
        peer.send(m.Message(1, 0, b"one\n"), m.Notify(1, "w", 0), m.Eos(1), m.Phase1("t", ((1, 0, 4),)))
        assert [peer.hear() for _ in range(3)] == [m.NotifyAck(True, 1, 4), m.Ack(0, ((1, 4),)), m.Vote("t", True)]
        peer.send(
            m.Message(1, 4, b"two\n"),
            m.Notify(1, "w", 0),
            m.Eos(1),
            m.Phase2("never heard of", True),
            m.Phase2("t", True),
            m.Phase2("t", True),
        )
        assert [peer.hear() for _ in range(2)] == [m.NotifyAck(True, 1, 8), m.Ack(0, ((1, 8),))]
        peer.send(m.ListUncommitted(9), m.Phase1("u", ((1, 4, 8),)))
        assert [peer.hear() for _ in range(2)] == [m.ReplyUncommitted(9), m.Vote("u", True)]
        assert outputs.committed("w") == b"one\n"
        now = server.stats()
        assert (now.connections, now.sessions, now.messages, now.bytes) == (1, 1, 2, 8)
        peer.send(m.Phase2("u", False), m.Phase1("v", ((1, 0, 4),)))
        assert peer.hear() == m.Vote("v", False)
    assert server.stats() == SinkStats(
        connections=1,
        messages=2,
        bytes=8,
        messages_between_phases=1,
        votes_yes=2,
        votes_no=1,
        commits=1,
        bytes_committed=4,
        rollbacks=1,
        repeated_notifies=2,
        repeated_commits=1,
        unknown_phase_twos=1,
        ends=2,
    )


def test_who_is_sent_away_with_an_error_is_counted(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server:
        with Raw(server.address) as peer:
            peer.send(b"\0\0\0\0")
            assert isinstance(peer.hear(), m.Error) and peer.hear() is None
        WorkerClient.connect(server.address, "w").close()
    found = server.stats()
    assert (found.connections, found.errors, found.sessions) == (2, 1, 0)


def test_a_stopping_server_tells_its_workers_to_come_back(outputs: MemoryOutputs) -> None:
    server = SinkServer(outputs).start()
    with WorkerClient.connect(server.address, "w") as worker, Raw(server.address) as stranger:
        server.stop()
        with pytest.raises(SinkError, match="come back"):
            worker.confirm()
        assert isinstance(stranger.hear(), m.Restart | None)


def test_sessions_are_limited_and_one_too_many_is_told(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs, sessions=2) as server:
        first, second = WorkerClient.connect(server.address, "a"), WorkerClient.connect(server.address, "b")
        with pytest.raises(SinkError, match="takes no more"):
            WorkerClient.connect(server.address, "c")
        again = WorkerClient.connect(server.address, "a")  # takes the place of the first
        second.confirm()
        first.close()
        until(lambda: len(server._greeted) == 2)
        second.close()
        until(lambda: len(server._greeted) == 1)
        WorkerClient.connect(server.address, "c").close()
        again.close()


def test_strangers_are_limited_and_the_oldest_goes(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs, unauthenticated=3) as server:
        crowd = [Raw(server.address) for _ in range(10)]
        commit(server.address, "w", b"x")
        assert isinstance(crowd[0].hear(), m.Error | None)
        for stranger in crowd:
            stranger.socket.close()


def test_who_does_not_greet_in_time_is_sent_away(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs, greeting="0.2s") as server, Raw(server.address) as silent, Raw(server.address) as slow:
        slow.send(b"\0\0")
        assert silent.hear() == slow.hear() == m.Error("nothing was heard for too long")
        assert silent.hear() is None


# ---- credentials


def test_the_cookie_must_be_right(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs, cookie="Dragons-Love-Tacos") as server:
        commit(server.address, "w", b"x", cookie="Dragons-Love-Tacos")
        for wrong in ("", "dragons-love-tacos", "Dragons-Love-Tacos!"):
            with pytest.raises(SinkError, match="cookie is wrong"):
                WorkerClient.connect(server.address, "w", cookie=wrong)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0", "example.com:0"])
def test_listening_beyond_this_machine_needs_a_cookie(outputs: MemoryOutputs, listen: str) -> None:
    with pytest.raises(DefinitionError, match="without a cookie"):
        SinkServer(outputs, listen)
    SinkServer(outputs, listen, cookie="secret")
    SinkServer(outputs, listen, force=True)


def test_an_address_that_is_taken_is_a_clear_error(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server, pytest.raises(NetworkError, match="cannot listen"):
        SinkServer(outputs, server.address).start()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("sink", "other"):
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
                "-subj",
                f"/CN={name}",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-keyout",
                folder / f"{name}.key",
                "-out",
                folder / f"{name}.pem",
            ],
            check=True,
            capture_output=True,
        )
    return folder


@pytest.mark.slow
def test_tls_on_both_sides(outputs: MemoryOutputs, certificates: Path) -> None:
    cert, key = str(certificates / "sink.pem"), str(certificates / "sink.key")
    with SinkServer(outputs, tls=Tls(cert, key)) as server:
        commit(server.address, "w", b"secret\n" * 200_000, tls=Tls(ca=cert))
        assert outputs.committed("w") == b"secret\n" * 200_000
        with pytest.raises(SinkError, match="cannot be reached"):
            WorkerClient.connect(server.address, "w", tls=Tls(ca=str(certificates / "other.pem")))
        with pytest.raises((SinkError, RemoteProtocolError)):
            WorkerClient.connect(server.address, "w", timeout="2s")
        old = WorkerClient.connect(server.address, "w", tls=Tls(ca=cert))
        with WorkerClient.connect(server.address, "w", tls=Tls(ca=cert)) as new:
            new.confirm()
            with pytest.raises(SinkError, match=r"fenced|closed"):
                old.confirm()
        old.close()


def test_tls_with_certificates_of_the_workers(outputs: MemoryOutputs, certificates: Path) -> None:
    cert, key = str(certificates / "sink.pem"), str(certificates / "sink.key")
    with SinkServer(outputs, tls=Tls(cert, key, ca=cert)) as server:
        commit(server.address, "w", b"x", tls=Tls(cert, key, ca=cert))
        with pytest.raises(SinkError):
            WorkerClient.connect(server.address, "w", tls=Tls(ca=cert))


def test_a_certificate_that_cannot_be_used_is_a_clear_error(outputs: MemoryOutputs, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot be used"):
        SinkServer(outputs, tls=Tls(str(tmp_path / "none.pem")))
    with pytest.raises(DefinitionError, match="needs a certificate"):
        SinkServer(outputs, tls=Tls())


# ---- the client against sinks that are none


def fake(answer: bytes) -> str:
    """Something that answers whoever connects, once, and keeps the line open."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        peer, _ = listener.accept()
        peer.sendall(answer)
        while peer.recv(1 << 16):
            pass
        peer.close()
        listener.close()

    threading.Thread(target=run, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_something_else_that_answers_is_a_remote_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError):
        WorkerClient.connect(fake(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "w", timeout="2s")


def test_a_sink_that_does_not_answer_is_a_sink_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"did not answer within 0\.2 s"):
        WorkerClient.connect(fake(b""), "w", timeout="0.2s")
    assert time.monotonic() - began < 2


def test_nobody_there_is_a_sink_error_unless_somebody_comes_in_time(outputs: MemoryOutputs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(SinkError, match="cannot be reached"):
        WorkerClient.connect(address, "w")
    server = SinkServer(outputs, address)
    threading.Timer(0.2, server.start).start()
    WorkerClient.connect(address, "w", patience="5s").close()
    server.stop()


def test_after_an_error_the_client_can_come_back(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server, WorkerClient.connect(server.address, "w") as worker:
        worker.write(b"lost")
        WorkerClient.connect(server.address, "w").close()
        with pytest.raises(SinkError):
            worker.prepare("t")
        with pytest.raises(SinkError, match="closed"):
            worker.confirm()
        worker.reconnect()
        worker.write(b"kept")
        assert worker.prepare("t")
        worker.finish("t", commit=True, confirm=True)
    assert outputs.committed("w") == b"kept"


def test_finish_with_confirm_gets_through_although_the_connection_is_lost(outputs: MemoryOutputs) -> None:
    with SinkServer(outputs) as server, WorkerClient.connect(server.address, "w") as worker:
        worker.write(b"kept")
        assert worker.prepare("t")
        assert worker._socket is not None
        worker._socket.shutdown(socket.SHUT_RDWR)
        worker.finish("t", commit=True, confirm=True)
    assert outputs.committed("w") == b"kept"


def test_a_constant_time_comparison_guards_the_cookie() -> None:
    import inspect

    from millstream.connector.sink.protocol import session as sink_session

    assert "hmac.compare_digest" in inspect.getsource(sink_session.SinkSession._hello)
    assert ssl.HAS_TLSv1_3
