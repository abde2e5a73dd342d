"""The end of a run: whoever waits is told, and what went wrong at the very end is not lost."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import cast

import msgspec
import pytest
from plannedkit import KitEpochs, Told, pipeline
from rich.console import Console

from millstream.cli.run import watch
from millstream.engine import publishing
from millstream.engine.spark.background_jobs import ResidentJob
from millstream.engine.spark.run import PlannedRun
from millstream.errors import InputError, MillstreamError
from millstream.handle import Handle
from millstream.sources.splits import SplitPlan
from millstream.state.memory_storage import MemoryStorage
from millstream.status.narrator import Narrator
from millstream.status.report import Status, status_of


class Stuck(Told):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("the door is stuck")


def test_a_source_that_cannot_be_closed_ends_the_run_with_an_error_and_the_last_word_is_said() -> None:
    program = pipeline().program()
    epochs = KitEpochs(program, MemoryStorage(), {"in": Stuck([1])}, bounded=True)
    run = epochs.planned_run()
    said: list[str] = []
    run.start(lambda: said.append("ended"))
    assert run.done.wait(60) and said == ["ended"]
    assert isinstance(run.error, MillstreamError) and "the door is stuck" in str(run.error)
    assert epochs.latest is not None and epochs.latest.drained


class Unreadable(Told):
    """Spark cannot read it, nor can anybody."""

    def plan(self, start: str) -> SplitPlan:
        raise ValueError("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.parquet")

    def refused(self, text: str) -> InputError | None:
        raise ValueError("no parquet at all")


def test_an_error_that_cannot_be_explained_is_told_as_it_is() -> None:
    program = pipeline().program()
    epochs = KitEpochs(program, MemoryStorage(), {"in": Unreadable([1])}, bounded=True)
    run = epochs.planned_run()
    run.start(lambda: None)
    assert run.done.wait(60) and isinstance(run.error, InputError) and "a.parquet" in str(run.error)


def test_a_process_without_a_stderr_has_a_narrator_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Narrator("p", quiet=False).say("starting Spark")


class Unstarted(PlannedRun):
    """Fails at once."""

    def begin(self) -> None:
        raise MillstreamError("Spark is not there")


@pytest.mark.parametrize(("kind", "serve"), [(PlannedRun, "no address"), (Unstarted, None), (Unstarted, "127.0.0.1:0")])
def test_a_run_that_does_not_begin_ends_what_was_started_for_it(kind: type[PlannedRun], serve: str | None) -> None:
    program, ended = pipeline().program(), []
    epochs = KitEpochs(program, MemoryStorage(), {"in": Told([1])}, bounded=True)
    epochs.close = lambda: ended.append("epochs")  # type: ignore[method-assign]
    run = epochs.planned_run(kind=kind)
    run.beside.append(lambda: ended.append("beside"))
    with pytest.raises(MillstreamError):
        Handle(program, run, Narrator("p", quiet=True), serve)
    assert ended == ["epochs", "beside"]


def test_a_collection_that_fails_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = KitEpochs(pipeline().program(), MemoryStorage(), {"in": Told()})
    epochs.turn()

    def denied(*given: object) -> None:
        raise OSError("no permission")

    monkeypatch.setattr(publishing.gc, "collect", denied)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            epochs.collect()
            epochs.upkeep.close()
    assert [record.message for record in caplog.records] == [
        "what no manifest needs could not be removed, and is left for the next time: no permission"
    ]


def test_a_resident_job_that_was_about_to_begin_when_the_run_ended_does_not_begin() -> None:
    job = ResidentJob(None, "1-a")  # whoever asks Spark for anything fails
    with pytest.raises(RuntimeError):
        job.run(b"", 1, [0])
    job.end(joined=False)
    job.run(b"", 1, [0])


class Slow:
    """A run whose epoch does not end at once."""

    published: dict[str, tuple[str, int]] = {}

    def __init__(self, times: int, narrator: Narrator) -> None:
        self.left, self.narrator = times, narrator

    def stop(self, timeout: float) -> bool:
        self.left -= 1
        return not self.left

    def await_termination(self, timeout: float) -> bool:
        return not self.left

    def say(self, text: str) -> None:
        self.narrator.say(text)

    def status(self) -> Status:
        return msgspec.structs.replace(status_of("p", None), epoch=7, waits_for="files in [/data/in] " + "and somewhere else " * 5)


def test_a_stop_that_takes_long_is_announced_once_and_then_told_what_it_waits_for() -> None:
    said, stopping = io.StringIO(), threading.Event()
    stopping.set()
    watch(cast(Handle, Slow(3, Narrator("p", False, said))), stopping, Console(file=said, highlight=False))
    lines = said.getvalue().splitlines()
    assert [line.partition("Z p: ")[2].partition(";")[0] for line in lines] == [
        "stopping when the epoch under way is committed",
        "still stopping",
        "still stopping",
    ], "in one line each, with the time"
    assert "[/data/in]" in lines[1]


def test_whoever_waits_is_told_of_an_error_when_all_is_closed_and_not_before() -> None:
    """He may then end Spark, or the process, which something of the run's still uses."""
    program = pipeline().program()
    epochs = KitEpochs(program, MemoryStorage(), {"in": Unreadable([1])}, bounded=True)
    run = epochs.planned_run()
    closing, go = threading.Event(), threading.Event()
    run.beside.append(lambda: (closing.set(), go.wait(60)))  # type: ignore[arg-type,return-value]
    handle = Handle(program, run, Narrator("p", quiet=True))
    assert closing.wait(60) and run.error is not None
    assert not handle.await_termination(0.01)
    go.set()
    with pytest.raises(InputError):
        handle.await_termination(60)


class StopsItself(Told):
    """Stops the run that asks it."""

    run: PlannedRun

    def plan(self, start: str) -> SplitPlan:
        assert self.run.stop() is False, "it has not ended: it ends when this returns"
        return super().plan(start)


def test_a_stop_in_the_thread_of_the_run_itself_does_not_wait_for_itself() -> None:
    program, source = pipeline().program(), StopsItself([1])
    epochs = KitEpochs(program, MemoryStorage(), {"in": source})
    source.run = run = epochs.planned_run(bounded=False, drain=False)
    run.start(lambda: None)
    assert run.done.wait(60) and run.error is None
