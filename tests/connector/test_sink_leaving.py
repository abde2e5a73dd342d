"""Workers that have left: which life of a name it is about, in every order in which words and workers can arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sinkkit import Nursery, Raw, SinkProcess
from waiting import until

from millstream.connector import FileOutputs, MemoryOutputs, SinkServer, WorkerClient
from millstream.connector.sink import name_registry
from millstream.connector.sink.outputs import files
from millstream.connector.sink.outputs.memory import MemoryOutput
from millstream.connector.wire import messages as m
from millstream.errors import SinkError


def commit(address: str, name: str, data: bytes, txn: str = "t") -> None:
    with WorkerClient.connect(address, name) as worker:
        write(worker, data, txn)


def write(worker: WorkerClient, data: bytes, txn: str = "t") -> None:
    worker.write(data)
    assert worker.prepare(txn)
    worker.finish(txn, commit=True, confirm=True)


def committed(folder: Path, name: str = "gone") -> bytes:
    return b"".join(files.read(folder, name))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SinkServer]:
    outputs = FileOutputs(tmp_path)
    with SinkServer(outputs) as made:
        commit(made.address, "gone", b"old\n")
        yield made
    outputs.close()


def archived(folder: Path) -> list[bytes]:
    return [(path / "output").read_bytes() for path in sorted((folder / "left").iterdir())]


def test_who_comes_back_at_once_is_a_new_life(server: SinkServer, tmp_path: Path) -> None:
    with WorkerClient.connect(server.address, "w") as worker:
        for number in range(30):
            worker.workers_left(["gone"])
            with WorkerClient.connect(server.address, "gone") as again:
                assert again.offset == 0
                write(again, b"%d\n" % number)
    assert committed(tmp_path) == b"29\n"
    assert sorted(archived(tmp_path)) == sorted([b"old\n", *(b"%d\n" % number for number in range(29))])


def test_who_came_back_before_it_was_said_has_left(server: SinkServer, tmp_path: Path) -> None:
    with WorkerClient.connect(server.address, "gone") as again, WorkerClient.connect(server.address, "w") as worker:
        write(again, b"more\n", "u")
        worker.workers_left(["gone"])
        with pytest.raises(SinkError, match="said to have left"):
            again.confirm()
    with WorkerClient.connect(server.address, "gone") as third:
        assert third.offset == 0
    assert archived(tmp_path) == [b"old\nmore\n"]


def test_the_answer_to_what_stands_behind_it_says_that_it_is_done() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    class Waits(MemoryOutput):
        def archive(self) -> None:
            begun.set()
            go_on.wait(10)
            super().archive()
            done.set()

    memory = MemoryOutputs()
    with SinkServer(lambda worker: Waits(memory, worker)) as server, Raw(server.address) as peer:
        peer.greet("w")
        peer.send(m.WorkersLeft(7, ("gone",)), m.ListUncommitted(9))
        assert begun.wait(10)
        threading.Timer(0.2, go_on.set).start()
        assert peer.hear() == m.ReplyUncommitted(9) and done.is_set()


class Stuck(MemoryOutput):
    """An output whose append takes as long as the test likes."""

    def __init__(self, owner: MemoryOutputs, worker: str, gate: threading.Event) -> None:
        super().__init__(owner, worker)
        self.entered, self._gate = threading.Event(), gate

    def append(self, data: bytes) -> None:
        self.entered.set()
        self._gate.wait(10)
        super().append(data)


def test_who_comes_back_while_the_old_life_still_comes_to_rest_is_not_cut_off_and_begins_at_nothing() -> None:
    memory, gate = MemoryOutputs(), threading.Event()
    stuck = Stuck(memory, "gone", gate)
    answers: dict[str, object] = {}
    with SinkServer(lambda worker: stuck if worker == "gone" else memory(worker)) as server:
        old = WorkerClient.connect(server.address, "gone", fence=9)
        old.write(b"old\n")
        old.flush()
        assert stuck.entered.wait(10)

        def tells() -> None:
            with WorkerClient.connect(server.address, "w") as worker:
                worker.workers_left(["gone"])
                answers["told"] = True

        def returns() -> None:
            with WorkerClient.connect(server.address, "gone") as again:  # with no fence: the old life's is gone with it
                answers["offset"] = again.offset
                write(again, b"new\n")

        teller = threading.Thread(target=tells)
        teller.start()
        until(lambda: "gone" in server._names._left)
        comer = threading.Thread(target=returns)
        comer.start()
        until(lambda: server._names._lines["gone"].users == 3)  # the old life, the leaving and the new life
        gate.set()
        teller.join(10)
        comer.join(10)
        old.close()
    assert answers == {"told": True, "offset": 0}
    assert bytes(stuck.data) == b"new\n" and memory.archived == [("gone", b"")]


def test_a_second_worker_that_says_it_does_not_mean_the_life_that_has_begun_in_between(server: SinkServer, tmp_path: Path) -> None:
    with WorkerClient.connect(server.address, "a") as a, WorkerClient.connect(server.address, "b") as b:
        a.workers_left(["gone"])
        with WorkerClient.connect(server.address, "gone") as again:
            write(again, b"new\n")
            b.workers_left(["gone"])
            write(again, b"more\n", "u")
        assert server.stats().repeated_leavings == 1 and server.stats().archived == 1
        assert committed(tmp_path) == b"new\nmore\n" and archived(tmp_path) == [b"old\n"]
        b.workers_left(["gone"])  # its second word is about what is there now
        a.workers_left(["gone"])
        assert archived(tmp_path) == [b"old\n", b"new\nmore\n"] and server.stats().repeated_leavings == 2


def test_negative_twin_without_a_memory_of_leavings_the_second_word_takes_the_new_life(
    server: SinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_registry, "REMEMBERED", 0)
    with WorkerClient.connect(server.address, "a") as a, WorkerClient.connect(server.address, "b") as b:
        a.workers_left(["gone"])
        commit(server.address, "gone", b"new\n")
        b.workers_left(["gone"])
    assert archived(tmp_path) == [b"old\n", b"new\n"]


def test_several_workers_that_say_it_at_once_archive_once(server: SinkServer, tmp_path: Path) -> None:
    clients = [WorkerClient.connect(server.address, f"w{number}") for number in range(6)]
    threads = [threading.Thread(target=client.workers_left, args=(["gone", "never was"],)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert archived(tmp_path) == [b"old\n"] and server.stats().repeated_leavings == 10
    for client in clients:
        client.confirm()
        client.close()


def test_a_worker_that_repeats_it_waits_until_it_is_done() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Waits(MemoryOutput):
        def archive(self) -> None:
            begun.set()
            go_on.wait(10)
            super().archive()

    memory = MemoryOutputs()
    with SinkServer(lambda worker: Waits(memory, worker)) as server, Raw(server.address) as a, Raw(server.address) as b:
        a.greet("a"), b.greet("b")
        a.send(m.WorkersLeft(7, ("gone",)), m.ListUncommitted(8))
        assert begun.wait(10)
        b.send(m.WorkersLeft(7, ("gone",)), m.ListUncommitted(9))
        until(lambda: server._names.repeated == 1)
        threading.Timer(0.2, go_on.set).start()
        assert b.hear() == m.ReplyUncommitted(9) and len(memory.archived) == 1
        assert a.hear() == m.ReplyUncommitted(8)


def test_a_worker_that_came_later_means_the_present_life(server: SinkServer, tmp_path: Path) -> None:
    with WorkerClient.connect(server.address, "a") as a:
        a.workers_left(["gone"])
        commit(server.address, "gone", b"new\n")
        with WorkerClient.connect(server.address, "c") as c:
            c.workers_left(["gone"])
    assert archived(tmp_path) == [b"old\n", b"new\n"]


def test_of_two_workers_that_say_it_of_each_other_one_stays() -> None:
    for _ in range(20):
        memory = MemoryOutputs()
        with SinkServer(memory) as server:
            pair = {name: WorkerClient.connect(server.address, name, timeout="5s") for name in ("a", "b")}
            outcome: dict[str, str] = {}

            def tell(name: str, other: str, pair: dict[str, WorkerClient] = pair, outcome: dict[str, str] = outcome) -> None:
                try:
                    pair[name].workers_left([other])
                    outcome[name] = "stays"
                except SinkError as error:
                    outcome[name] = "left" if "left" in str(error) or "closed" in str(error) else str(error)

            threads = [threading.Thread(target=tell, args=names) for names in (("a", "b"), ("b", "a"))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert sorted(outcome.values()) == ["left", "stays"], outcome
            for client in pair.values():
                client.close()


def test_what_cannot_be_put_aside_is_told_and_may_be_said_again() -> None:
    memory = MemoryOutputs()
    broken = [True]

    class Full(MemoryOutput):
        def archive(self) -> None:
            if broken[0]:
                raise OSError("no space left on device")
            super().archive()

    with SinkServer(lambda worker: Full(memory, worker)) as server:
        with WorkerClient.connect(server.address, "b") as b, WorkerClient.connect(server.address, "w") as worker:
            with pytest.raises(SinkError, match=r"'other', which has left, cannot be put aside: no space left"):
                worker.workers_left(["other", "gone"])
            broken[0] = False
            b.workers_left(["gone"])  # nothing was carried out, so it repeats nothing
        assert [name for name, _ in memory.archived] == ["gone"] and server.stats().repeated_leavings == 0


def test_one_message_can_speak_of_many_workers() -> None:
    with SinkServer(MemoryOutputs()) as server, WorkerClient.connect(server.address, "w") as worker:
        worker.workers_left([str(number) for number in range(1000)])
        with pytest.raises(SinkError, match="at most 1000"):
            worker.workers_left([str(number) for number in range(1001)])


# ---- the sink is killed on the way


@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sink_killed_while_it_archives_gives_no_answer_and_is_told_again(nursery: Nursery, tmp_path: Path, when: str) -> None:
    with SinkProcess(nursery, tmp_path / "sink") as sink:
        commit(sink.address, "gone", b"old\n")
        sink.kill()
        sink.start(kill=["archive", when, 1])
        with WorkerClient.connect(sink.address, "w") as worker:
            with pytest.raises(SinkError):
                worker.workers_left(["gone"])
            sink.wait()
            assert len(list((sink.folder / "left").iterdir())) == (when == "after")
            sink.start()
            worker.reconnect()
            worker.workers_left(["gone"])
        commit(sink.address, "gone", b"new\n")
        sink.kill()
        assert archived(sink.folder) == [b"old\n"] and committed(sink.folder) == b"new\n"


@pytest.mark.crash
def test_a_sink_killed_after_the_answer_has_archived(nursery: Nursery, tmp_path: Path) -> None:
    with SinkProcess(nursery, tmp_path / "sink") as sink:
        commit(sink.address, "gone", b"old\n")
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.workers_left(["gone"])
            sink.kill()
        sink.start()
        with WorkerClient.connect(sink.address, "gone") as again:
            assert again.offset == 0
    assert archived(sink.folder) == [b"old\n"]
