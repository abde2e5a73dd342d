"""Who sits where in a resident run: tasks that are replaced, cut off, silent, in vain, or never there. Each loss is named, and none counts twice."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import taskkit as kit
from millstream.engine.resident import coordinator
from millstream.engine.resident.worker import Setup
from millstream.errors import ClusterError, HookError

pytestmark = pytest.mark.crash


def key_on(slot: int) -> str:
    return next(f"k{at}" for at in range(100) if kit.slot_of(f"k{at}") == slot)


def beside(run: kit.ResidentRun, slot: int) -> None:
    """One more process for a slot that is taken, as when Spark takes somebody for lost who is not."""
    run.nursery.setups.clear()
    threading.Thread(target=run.nursery.once, args=(slot,), daemon=True).start()


def units(work: Path) -> list[str]:
    return [path.name for path in (work / "checkpoint" / "units").iterdir()]


# --- a task that is cut off and does not know it


def cut_off(work: Path, guards: str = "") -> tuple[kit.ResidentRun, dict[str, int]]:
    """A task works on although the driver has given its attempt up and somebody else has its slot: its frame comes to its peer before that of the other.
    The code before the weak edge never says the same twice."""
    rows = kit.numbered(42)
    rows[40] |= {"key": key_on(0), "do": f"touch:{work / 'peer'}"}
    rows[41] |= {"key": key_on(1), "do": f"wait:{work / 'dice'}"}
    with kit.ResidentRun(work, guards=guards, proxied=1) as run:
        run.turn(*rows[:40])
        old = run.pid(1)
        run.go()
        run.give(*rows[40:])
        kit.until(lambda: (work / f"dice.{old}").exists() and (work / "peer").exists())  # in mid-attempt; its peer will wait for its frame
        run.proxy.cut()
        beside(run, 1)
        kit.until(lambda: run.pid(1) != old)
        new = run.pid(1)
        kit.until((work / f"dice.{new}").exists)  # the epoch is run again, and the newcomer is as far
        staged = set(units(work))
        (work / f"dice.{old}.go").touch()
        kit.until(lambda: any("-t1-" in name for name in set(units(work)) - staged))  # it has sent its frame, got its peer's, and staged
        (work / f"dice.{new}.go").touch()
        while run.error is None and run.reader.safe < 42:  # where the epoch is abandoned it is tried again, with other numbers
            for here in work.glob("dice.*[0-9]"):
                here.with_name(f"{here.name}.go").touch()
            time.sleep(0.005)
        os.kill(old, signal.SIGKILL)
        if isinstance(run.error, HookError) and run.epochs.abandoned:
            run.error, rows = None, rows[:40]
    return run, kit.faults_of(work, rows)


def test_frames_of_an_old_attempt_do_not_count(tmp_path: Path) -> None:
    run, wrong = cut_off(tmp_path)
    assert wrong == {}
    assert run.epochs.abandoned == 0 and run.mode.losses == 1


def test_with_the_guard_off_they_do_and_the_receipts_tell(tmp_path: Path) -> None:
    run, wrong = cut_off(tmp_path, "attempts")
    assert run.epochs.abandoned, "the peer was fed by an attempt that is not the one staged"
    assert wrong == {}, "and so nothing of it is committed"


def test_with_the_receipts_unchecked_two_attempts_are_mixed(tmp_path: Path) -> None:
    _, wrong = cut_off(tmp_path, "attempts,receipts")
    assert wrong == {"mixed": 1}, "the group was told another number than the one that is committed"


def test_an_answer_to_an_old_attempt_does_not_count(tmp_path: Path) -> None:
    """A task is in a hook while its peer is lost and replaced: what it answers then is for an attempt that is over."""
    rows = [*kit.numbered(40), kit.numbered(1, first=40)[0] | {"key": key_on(0), "do": f"wait:{tmp_path / 'dice'}"}]
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:40])
        pid = run.pid(0)
        run.go()
        run.give(rows[40])
        kit.until((tmp_path / f"dice.{pid}").exists)
        run.kill(1)
        kit.until(lambda: run.mode.generation == 2)
        (tmp_path / f"dice.{pid}.go").touch()
        run.wait()
        assert run.lost_epochs == 1 and run.pid(0) == pid
    assert kit.faults_of(tmp_path, rows) == {}


# --- a task of which nothing is heard


def test_a_silent_task_is_lost_and_its_slot_is_taken_again_when_it_wakes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = kit.numbered(90)
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:30])
        asleep = run.pid(1)
        monkeypatch.setattr(coordinator, "SILENCE", 1.5)
        os.kill(asleep, signal.SIGSTOP)
        run.go()
        run.give(*rows[30:60])
        kit.until(lambda: run.mode.missing == [1])
        assert any("task 1" in loss and "nothing was heard of it for" in loss for loss in run.coordinator._membership.last_losses)
        os.kill(asleep, signal.SIGCONT)  # finds that the driver has hung up, and ends: Spark puts somebody else there
        run.wait(60)
        assert run.pid(1) != asleep and run.mode.losses == 1
        run.give(*rows[60:])
        run.wait()
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_silent_task_does_not_hold_the_driver_whatever_it_is_to_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that is larger than what the system takes for a process that does not read."""
    rows = [*kit.numbered(2), kit.numbered(1, first=2)[0] | {"key": key_on(1), "do": "x" * (16 << 20)}]
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:2])
        asleep = run.pid(1)
        monkeypatch.setattr(coordinator, "SILENCE", 1.5)
        os.kill(asleep, signal.SIGSTOP)
        run.go()
        run.give(rows[2])
        kit.until(lambda: run.mode.missing == [1])
        os.kill(asleep, signal.SIGKILL)
        run.wait()
    assert kit.faults_of(tmp_path, rows) == {}


# --- tasks that go, do not come, or come in vain


def test_tasks_are_replaced_by_plan_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 0.2)
    rows = kit.numbered(400)
    pids = set()
    with kit.ResidentRun(tmp_path) as run:
        for at in range(0, 400, 20):
            run.turn(*rows[at : at + 20])
            pids |= {sign.pid for sign in run.mode.tasks}
        assert run.mode.losses == 0
        monkeypatch.setattr(coordinator, "RECYCLE_EVERY", 3600.0)
    assert len(pids) > 3
    assert kit.faults_of(tmp_path, rows) == {}


def test_tasks_that_do_not_come_are_named_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "PATIENCE", 0.6)
    rows = kit.numbered(30)
    with kit.ResidentRun(tmp_path, slots=3, nursery=kit.Nursery(3, holds=[1])) as run:
        with pytest.raises(ClusterError, match=r"1 of 3 resident tasks have not come within \d+ seconds: 1\. .*say tasks="):
            run.turn(*rows)
        run.nursery.let_go()
        monkeypatch.setattr(coordinator, "PATIENCE", 60.0)
        run.turn()
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_task_that_cannot_start_says_why(tmp_path: Path) -> None:
    def break_it(setup: Setup) -> None:
        setup.program = b"cno_such_module\nThing\n."

    said = r"cannot start: ModuleNotFoundError: No module named 'no_such_module'.*--py-files"
    with kit.ResidentRun(tmp_path, nursery=kit.Nursery(2, tries=3), change=break_it) as run, pytest.raises(ClusterError, match=said):
        run.turn(*kit.numbered(3))


def test_tasks_that_die_before_they_say_anything_end_the_run_with_what_spark_says(tmp_path: Path) -> None:
    def break_it(setup: Setup) -> None:
        setup.digest = "cannot"

    said = r"Spark has ended the job of the resident tasks 2 times.*task \d failed 2 times"
    with kit.ResidentRun(tmp_path, nursery=kit.Nursery(2, tries=2), change=break_it) as run, pytest.raises(ClusterError, match=said):
        run.turn(*kit.numbered(3))


def test_a_hook_that_ends_its_process_is_a_loss_and_nobody_blames_the_hook(tmp_path: Path) -> None:
    rows = kit.numbered(40, do={20: f"exit-once:{tmp_path / 'exited'}"})
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows)
        assert run.lost_epochs == 1 and run.mode.losses == 1
    assert kit.faults_of(tmp_path, rows) == {}


def test_losses_again_and_again_end_the_run_and_are_named(tmp_path: Path) -> None:
    rows = kit.numbered(40, do={20: "exit"})
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:10])
        with pytest.raises(ClusterError) as caught:
            run.turn(*rows[10:])
        assert not isinstance(caught.value, HookError)
        assert "tasks were lost 6 times within 60 seconds: task" in str(caught.value) and "workers' own logs" in str(caught.value)
    assert kit.faults_of(tmp_path, rows[:10]) == {}, "what was committed stands"
    with kit.ResidentRun(tmp_path, rows=[row | {"do": ""} for row in rows]) as run:
        run.turn()
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_task_that_the_driver_hangs_up_on_while_it_is_idle_makes_room_for_another(tmp_path: Path) -> None:
    """Its slot must not stay empty: a task that ends well is not started again by Spark."""
    rows = kit.numbered(40)
    with kit.ResidentRun(tmp_path) as run:
        run.turn(*rows[:20])
        idle = run.pid(1)
        run.coordinator._members[1].connection.close()
        kit.until(lambda: any(sign.slot == 1 and sign.pid != idle for sign in run.mode.tasks))
        run.turn(*rows[20:])
        assert (1, 1) in run.nursery.ended and run.mode.losses == 1
    assert kit.faults_of(tmp_path, rows) == {}


def test_when_a_run_has_ended_nothing_of_it_is_left_in_the_processes_that_it_used(tmp_path: Path) -> None:
    """Spark keeps a worker for the next task that comes: here all tasks, and the driver, are threads of one process."""
    before = {thread.name for thread in threading.enumerate()}
    rows = kit.numbered(60)
    for end in (30, 60):
        nursery = kit.Nursery(2)
        nursery.once = lambda slot, pids=None, job=1, nursery=nursery: kit.served(nursery.setup, slot, job)  # type: ignore[method-assign,misc]
        with kit.ResidentRun(tmp_path, rows=rows[:end], nursery=nursery) as run:
            run.turn()
            address = run.coordinator.address
    assert kit.faults_of(tmp_path, rows) == {}
    kit.until(
        lambda: {thread.name for thread in threading.enumerate() if "millstream" in thread.name} <= before,
        said=lambda: str(threading.enumerate()),
    )
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), 1.0)
