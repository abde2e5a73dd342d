"""How a run begins and ends: a refusal is one message, nothing of ours is at work in the JVM when the process ends, and a stop that cannot be had says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, run, write

import millstream as ms
from millstream.engine.spark import background_jobs, jvm, start
from millstream.errors import DefinitionError
from millstream.state import heartbeat
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from millstream.status.narrator import Narrator

pytestmark = pytest.mark.spark

PROGRAM = """
import millstream as ms

class Count(ms.Computation):
    State = int
    def process_record(self, record):
        self.state += 1
        self.produce(self.state)

pipeline = ms.Pipeline("counts")
rows = pipeline.inject("rows", ms.sources.files("in", schema="k string, at long", format="json"), timestamp="at")
pipeline.emit(pipeline.compute(Count, rows, key="k", produces="out"), ms.sinks.files("out"))
"""


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(self.state)


class Waits(ms.Computation):
    """Waits until a file is there."""

    def process_record(self, record: ms.Record) -> None:
        Path(record.value["go"] + ".waits").touch()
        while not os.path.exists(record.value["go"]):
            time.sleep(0.01)


def simple(work: Path, computation: Any = Count, key: str = "k") -> ms.Pipeline:
    (work / "in").mkdir(exist_ok=True)
    p = ms.Pipeline("counts")
    source = ms.sources.files(work / "in", schema="k string, at long, go string", format="json")
    p.compute(computation, p.inject("rows", source, timestamp="at"), key=key, produces="out")
    p.emit("out", ms.sinks.files(work / "out"))
    return p


def command(work: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "millstream.cli", "run", "program.py", *arguments]
    return subprocess.run(program, cwd=work, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [(("--shards", "8"), PROGRAM, "has 3 shards, and the run asks for 8"), ((), PROGRAM.replace('"counts"', '"other"'), "not of 'other'")],
)
def test_what_a_checkpoint_refuses_is_one_message_before_spark_is_started(
    tmp_path: Path, arguments: tuple[str, ...], text: str, said: str
) -> None:
    ManifestLog(open_storage(tmp_path / "checkpoint")).identify("counts", 3, 3, ["rows"])
    (tmp_path / "program.py").write_text(text)
    ran = command(tmp_path, "--checkpoint", "checkpoint", *arguments, JAVA_HOME="/nowhere", PATH="/nowhere")
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and ran.stderr.startswith("millstream: ") and said in ran.stderr


class _Endless:
    """A session whose warm-up goes on until it is over."""

    def __init__(self, awaited: threading.Event) -> None:
        self._awaited = awaited

    @property
    def sparkContext(self) -> Any:
        self._awaited.wait(60)
        raise RuntimeError("over")


def warming_up(monkeypatch: pytest.MonkeyPatch, waits: bool = True) -> threading.Event:
    """A warm-up that goes on until somebody waits for its end."""
    awaited = threading.Event()

    def warm_up(spark: Any) -> Callable[[], None]:
        end = jvm.warm_up(_Endless(awaited))
        return lambda: (awaited.set(), end())[0] if waits else None

    monkeypatch.setattr(start, "warm_up", warm_up)
    return awaited


def is_warming_up() -> bool:
    return any(thread.name == "millstream-warm-up" for thread in threading.enumerate())


def test_a_refusal_leaves_no_thread_behind_in_the_jvm(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes back from there while the interpreter is taken down aborts the process."""
    warming_up(monkeypatch)
    with pytest.raises(DefinitionError, match="q"):
        simple(tmp_path, key="lower(q)").run(None, checkpoint=tmp_path / "checkpoint", available_now=True, quiet=True)
    assert not is_warming_up()


def test_without_the_wait_it_does(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    awaited = warming_up(monkeypatch, waits=False)
    try:
        with pytest.raises(DefinitionError):
            simple(tmp_path, key="lower(q)").run(None, checkpoint=tmp_path / "checkpoint", available_now=True, quiet=True)
        assert is_warming_up()
    finally:
        awaited.set()


def test_a_very_short_run_leaves_none_behind_either(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warming_up(monkeypatch)
    handle = simple(tmp_path).run(None, checkpoint=tmp_path / "checkpoint", available_now=True, quiet=True)
    handle.await_termination()
    assert not is_warming_up()


@pytest.mark.crash
def test_a_run_that_is_refused_with_spark_up_ends_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM.replace('key="k"', 'key="lower(q)"'))
    ran = command(tmp_path, "--available-now")
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1
    assert "key of computation 'Count': Spark cannot resolve the expression" in ran.stderr


# --- stopping


def until(what: Any) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_that_waits_for_a_hung_hook_says_that_the_run_has_not_ended(spark: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    handle = simple(tmp_path, Waits).run(spark, checkpoint=tmp_path / "checkpoint", quiet=True, shards=1)
    try:
        write(tmp_path / "in", "0.json", [{"k": "a", "at": BASE, "go": str(go)}])
        until((tmp_path / "go.waits").exists)
        assert not handle.stop(timeout=0.2) and handle.running
    finally:
        go.touch()
    assert handle.stop() and not handle.running
    assert handle.status().records == 1, "the epoch under way was committed"


# --- signs of life


def test_signs_of_life_go_on_when_one_of_them_fails(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.0)
    failing = threading.Event()
    failures: list[int] = []
    tell = Narrator.tell

    def failing_tell(self: Narrator, look: Any) -> None:
        if failing.is_set():
            failures.append(1)
            raise OSError("the terminal is gone")
        tell(self, look)

    monkeypatch.setattr(Narrator, "tell", failing_tell)
    handle = simple(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", quiet=True, shards=1)
    try:
        storage = open_storage(tmp_path / "checkpoint")
        failing.set()
        until(lambda: len(failures) >= 2)
        failing.clear()
        before = heartbeat.last_sign(storage)
        assert before is not None
        until(lambda: (heartbeat.last_sign(storage) or before).at > before.at)
    finally:
        handle.stop()
    told = [record.message for record in caplog.records if "sign of life" in record.message]
    assert told == ["a sign of life could not be given, and is tried again: OSError: the terminal is gone"]


def test_a_run_outside_a_terminal_says_when(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", "0.json", [{"k": "a", "at": BASE}])
    run(simple(tmp_path), spark, tmp_path, quiet=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(time.strptime(line.split(" ")[0], "%Y-%m-%dT%H:%M:%SZ") for line in lines)
    assert lines[-1].endswith("drained; 1 row in " + str(tmp_path / "out") + "/")


def test_a_resident_run_says_that_it_waits_for_its_tasks_until_they_are_there(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever pushes meanwhile must not read that the run waits for input."""
    go, begin = threading.Event(), background_jobs.ResidentJob.run
    monkeypatch.setattr(background_jobs.ResidentJob, "run", lambda self, *given: (go.wait(60), begin(self, *given)))
    handle = simple(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", resident=True, tasks=1, shards=1)
    try:
        assert handle.status().waits_for == "its tasks to start"
        said: list[str] = []
        until(lambda: said.append(capfd.readouterr().err) or "waiting for its tasks to start" in "".join(said))
        go.set()
        write(tmp_path / "in", "0.json", [{"k": "a", "at": BASE}])
        until(lambda: handle.status().records == 1)
        assert handle.status().waits_for == ""
    finally:
        go.set()
        handle.stop()
