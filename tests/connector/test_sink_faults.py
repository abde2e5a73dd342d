"""One fault at a time, each with its own outcome: lost votes, dropped connections and kills at every step."""

from __future__ import annotations

from pathlib import Path

import pytest
from sinkkit import Link, Nursery, Raw, SinkProcess
from sinkproc import CALLS
from waiting import until

from millstream.connector import WorkerClient
from millstream.connector.sink.outputs import files
from millstream.connector.wire import messages as m
from millstream.errors import ProtocolError, SinkError

pytestmark = pytest.mark.crash


def committed(sink: SinkProcess, name: str = "w") -> bytes:
    return b"".join(files.read(sink.folder, name))


def first_commit(address: str) -> None:
    """Something that must survive whatever follows."""
    with WorkerClient.connect(address, "w") as worker:
        worker.write(b"first\n")
        assert worker.prepare("t0")
        worker.finish("t0", commit=True, confirm=True)


def attempt(address: str, gap: bool = False) -> bool:
    """A worker's second transaction, up to its decision: commit only if a yes arrived."""
    try:
        with WorkerClient.connect(address, "w", timeout="5s") as worker:
            if gap:
                worker._session.write(3)
            worker.write(b"second\n")
            if not worker.prepare("t1"):
                return False
            try:
                worker.finish("t1", commit=True, confirm=False)
            except SinkError:
                pass  # it is decided all the same
            return True
    except SinkError:
        return False


def settle(sink: SinkProcess, decision: bool) -> None:
    """The greeting of a connection that was dropped may still be on its way to the sink, and take the name: then come again, as any worker does."""
    while True:
        try:
            with WorkerClient.connect(sink.address, "w") as worker:
                worker.settle("t1", decision)
                assert worker.uncommitted == ()
                return
        except SinkError as error:
            if "fenced" not in str(error):
                raise


def single_fault(sink: SinkProcess, vote: bool, cut: str | None) -> bytes:
    """The sink votes, and the line breaks before or after the vote is delivered, or not at all. Then the worker comes back and resolves."""
    first_commit(sink.address)
    with Link(sink.address, lambda side, frame, _: cut if isinstance(frame, m.Vote) else None) as link:
        decision = attempt(link.address, gap=not vote)
    assert decision == (vote and cut != "before")
    with WorkerClient.connect(sink.address, "w") as worker:
        listed = worker.uncommitted
        worker.settle("t1", decision)
        assert worker.offset == len(committed(sink))
    assert listed in ((), ("t1",))
    return committed(sink)


def test_vote_no_is_a_rollback(sink: SinkProcess) -> None:
    assert single_fault(sink, False, None) == b"first\n"


def test_vote_no_and_close_before_the_reply_is_a_rollback(sink: SinkProcess) -> None:
    assert single_fault(sink, False, "before") == b"first\n"


def test_vote_no_and_close_after_the_reply_is_a_rollback(sink: SinkProcess) -> None:
    assert single_fault(sink, False, "after") == b"first\n"


def test_vote_yes_is_a_commit(sink: SinkProcess) -> None:
    assert single_fault(sink, True, None) == b"first\nsecond\n"


def test_vote_yes_and_close_before_the_reply_is_a_rollback(sink: SinkProcess) -> None:
    assert single_fault(sink, True, "before") == b"first\n"


def test_vote_yes_and_close_after_the_reply_is_a_commit(sink: SinkProcess) -> None:
    assert single_fault(sink, True, "after") == b"first\nsecond\n"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(10))
def test_a_connection_dropped_at_any_step_loses_and_doubles_nothing(sink: SinkProcess, step: int, when: str) -> None:
    first_commit(sink.address)
    with Link(sink.address, lambda side, frame, count: when if count == step else None) as link:
        decision = attempt(link.address)
    settle(sink, decision)
    assert committed(sink) == (b"first\nsecond\n" if decision else b"first\n")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [call for call in CALLS if call not in ("veto", "rollback")])
def test_a_sink_killed_at_any_step_keeps_its_promises(nursery: Nursery, tmp_path: Path, call: str, when: str) -> None:
    with SinkProcess(nursery, tmp_path / "sink") as sink:
        first_commit(sink.address)
        sink.kill()
        sink.start(kill=[call, when, 1])
        decision = attempt(sink.address)
        sink.kill()
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.settle("t1", decision)
        assert decision == (call == "commit")  # every other call is before the vote
        assert committed(sink) == (b"first\nsecond\n" if decision else b"first\n")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["rollback", "veto"])
def test_a_sink_killed_while_it_rolls_back_has_rolled_back(nursery: Nursery, tmp_path: Path, call: str, when: str) -> None:
    with SinkProcess(nursery, tmp_path / "sink") as sink:
        first_commit(sink.address)
        sink.kill()
        sink.start(kill=[call, when, 1])
        with WorkerClient.connect(sink.address, "w") as worker:
            if call == "veto":
                worker._session.write(3)
            worker.write(b"second\n")
            with pytest.raises(SinkError):
                worker.prepare("t1")
                worker.finish("t1", commit=False)
                worker.confirm()
        sink.wait()
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.settle("t1", commit=False)
            assert worker.offset == 6
            worker.write(b"other\n")
            assert worker.prepare("t1")
            worker.finish("t1", commit=True, confirm=True)
        assert committed(sink) == b"first\nother\n"


def early(sink: SinkProcess, commit: bool) -> None:
    """A transaction of a worker that sends bytes of its next one between the phases. The sink may die on the way."""
    with Raw(sink.address) as peer:
        try:
            peer.greet("w")
            peer.send(m.Message(1, 6, b"second\n"), m.Phase1("t1", ((1, 6, 13),)))
            assert peer.hear() == m.Vote("t1", True)
            peer.send(m.Message(1, 13, b"third\n"), m.Phase2("t1", commit), m.Message(1, 19, b"fourth\n"), m.ListUncommitted(9))
            peer.hear()
        except ConnectionError:
            pass  # it has died


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("call", "when"),
    [("begin_next", "before"), ("begin_next", "after"), ("append", "after"), ("phase two", "before"), ("phase two", "after")],
)
def test_a_sink_killed_with_bytes_behind_its_promise_keeps_the_promise_alone(
    nursery: Nursery, tmp_path: Path, call: str, when: str, commit: bool
) -> None:
    with SinkProcess(nursery, tmp_path / "sink") as sink:
        first_commit(sink.address)
        sink.kill()
        sink.start(kill=[("commit" if commit else "rollback") if call == "phase two" else call, when, 2 if call == "append" else 1])
        early(sink, commit)
        sink.wait()
        sink.start()
        with WorkerClient.connect(sink.address, "w") as worker:
            worker.settle("t1", commit)
            assert worker.offset == (13 if commit else 6)
            worker.write(b"last\n")
            assert worker.prepare("t2")
            worker.finish("t2", commit=True, confirm=True)
        assert committed(sink) == (b"first\nsecond\nlast\n" if commit else b"first\nlast\n")


def test_bytes_between_the_phases_are_promised_and_committed_with_the_next_transaction(sink: SinkProcess) -> None:
    first_commit(sink.address)
    with Raw(sink.address) as peer:
        peer.greet("w")
        peer.send(m.Message(1, 6, b"second\n"), m.Phase1("t1", ((1, 6, 13),)), m.Message(1, 13, b"third\n"), m.Phase2("t1", True))
        peer.send(m.Message(1, 19, b"fourth\n"), m.Phase1("t2", ((1, 13, 26),)))
        assert [peer.hear(), peer.hear()] == [m.Vote("t1", True), m.Vote("t2", True)]
        assert committed(sink) == b"first\nsecond\n"
        sink.kill()
    sink.start()
    with WorkerClient.connect(sink.address, "w") as worker:
        assert (worker.uncommitted, worker.offset) == (("t2",), 26)
        worker.resolve("t2", commit=True)
    assert committed(sink) == b"first\nsecond\nthird\nfourth\n"


@pytest.mark.parametrize("guard", ["commits what came between the phases", "keeps what came between the phases"])
def test_negative_twin_with_the_guard_off_nobody_promised_what_is_committed(nursery: Nursery, tmp_path: Path, guard: str) -> None:
    with SinkProcess(nursery, tmp_path / "sink", broken=guard) as sink:
        first_commit(sink.address)
        early(sink, True)
        sink.kill()
        sink.start()
        try:
            with WorkerClient.connect(sink.address, "w") as worker:
                worker.settle("t1", True)
                worker.write(b"last\n")
                worker.prepare("t2")
                worker.finish("t2", commit=True, confirm=True)
        except (SinkError, ProtocolError):
            return
        assert committed(sink) != b"first\nsecond\nlast\n"


def test_a_veto_outlives_the_sink(sink: SinkProcess) -> None:
    with WorkerClient.connect(sink.address, "w") as worker:
        worker._session.write(3)
        worker.write(b"after the gap\n")
        assert not worker.prepare("t1")
    sink.kill()
    sink.start()
    with Raw(sink.address) as peer:
        assert peer.greet("w")[2].txns == ("t1",)
        peer.send(m.Phase2("t1", True))
        answer = peer.hear()
        assert isinstance(answer, m.Error) and "voted down" in answer.text
    assert committed(sink) == b""


def test_a_task_prepares_and_leaves_and_the_driver_commits(sink: SinkProcess) -> None:
    with WorkerClient.connect(sink.address, "w") as task:
        task.write(b"rows\n")
        assert task.prepare("epoch 7")
    sink.kill()
    sink.start()
    with WorkerClient.connect(sink.address, "w") as driver:
        assert driver.uncommitted == ("epoch 7",)
        assert driver.settle("epoch 7", commit=True)
        assert not driver.settle("epoch 7", commit=True)
    assert committed(sink) == b"rows\n"


def test_a_second_attempt_rolls_back_the_first_and_writes_again(sink: SinkProcess) -> None:
    first = WorkerClient.connect(sink.address, "w")
    first.write(b"of the first attempt\n")
    assert first.prepare("epoch 7")
    with WorkerClient.connect(sink.address, "w") as second:
        assert second.uncommitted == ("epoch 7",)
        second.resolve("epoch 7", commit=False)
        second.write(b"of the second\n")
        assert second.prepare("epoch 7")
        with pytest.raises(SinkError, match="fenced"):
            first.finish("epoch 7", commit=False)
            first.confirm()
        second.finish("epoch 7", commit=True, confirm=True)
    assert committed(sink) == b"of the second\n"


def test_an_attempt_that_comes_too_late_cannot_take_back_what_the_driver_has_counted(sink: SinkProcess) -> None:
    with WorkerClient.connect(sink.address, "w", fence=14) as task:
        task.write(b"rows\n")
        assert task.prepare("epoch 7")
    with WorkerClient.connect(sink.address, "w", fence=15) as driver:
        assert driver.uncommitted == ("epoch 7",)
        with pytest.raises(SinkError, match="fenced"):  # and the driver keeps its connection
            WorkerClient.connect(sink.address, "w", fence=14)
        sink.kill()
        sink.start()
        with pytest.raises(SinkError, match="fenced"):
            WorkerClient.connect(sink.address, "w", fence=14)
        with pytest.raises(SinkError, match="fenced"):
            WorkerClient.connect(sink.address, "w")
        assert driver.settle("epoch 7", commit=True)
        with pytest.raises(SinkError, match="fenced"):
            WorkerClient.connect(sink.address, "w", fence=14)
        driver.confirm()
    with WorkerClient.connect(sink.address, "w", fence=16) as following:
        assert following.offset == 5
    assert committed(sink) == b"rows\n"


def test_negative_twin_without_a_fence_the_late_attempt_takes_it_back(sink: SinkProcess) -> None:
    with WorkerClient.connect(sink.address, "w") as task:
        task.write(b"rows\n")
        assert task.prepare("epoch 7")
    with WorkerClient.connect(sink.address, "w") as driver, WorkerClient.connect(sink.address, "w") as late:
        assert driver.uncommitted == ("epoch 7",)
        late.resolve("epoch 7", commit=False)
        assert not driver.settle("epoch 7", commit=True)
    assert committed(sink) == b""


def test_a_stalled_attempt_is_fenced_and_its_backlog_dropped(nursery: Nursery, tmp_path: Path) -> None:
    with SinkProcess(nursery, tmp_path / "sink", slow=0.05) as sink, WorkerClient.connect(sink.address, "slow") as old:
        for _ in range(40):
            old.write(b"OLD\n" * 50_000)
        old.flush()
        with WorkerClient.connect(sink.address, "slow") as new:
            assert (new.offset, new.uncommitted) == (0, ())
            new.write(b"new\n")
            assert new.prepare("t")
            new.finish("t", commit=True, confirm=True)
        assert committed(sink, "slow") == b"new\n"


def test_negative_twin_without_the_ledgers_rule_about_gaps_bytes_are_missing(nursery: Nursery, tmp_path: Path) -> None:
    with SinkProcess(nursery, tmp_path / "sink", broken="ignores gaps") as sink:
        first_commit(sink.address)
        assert attempt(sink.address, gap=True)  # it votes yes, and nobody learns that three bytes never came


def test_negative_twin_without_fencing_an_older_attempt_spoils_the_newer(nursery: Nursery, tmp_path: Path) -> None:
    with SinkProcess(nursery, tmp_path / "sink", broken="does not fence") as sink:
        first = WorkerClient.connect(sink.address, "w")
        first.write(b"old\n")
        first.flush()
        try:
            with WorkerClient.connect(sink.address, "w") as second:
                first.write(b"older\n")
                first.flush()
                until(lambda: (sink.folder / "workers" / "w" / "output").stat().st_size)
                second.write(b"new\n")
                assert second.prepare("t")
                second.finish("t", commit=True, confirm=True)
                first.write(b"oldest\n")
                first.prepare("t")
        except (SinkError, ProtocolError):
            return
        assert committed(sink) != b"new\n"
