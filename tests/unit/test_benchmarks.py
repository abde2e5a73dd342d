"""The benchmarks' accounting: what is burnt is counted, once, and where it belongs; what is divided by what; what is run. Without Spark: processes
that behave like a JVM with PySpark's daemon below it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import all as everything  # noqa: E402
from benchmarks import compare, cpu, data, epoch, jobs, latency, measure, once, throughput  # noqa: E402
from benchmarks.cpu import Cpu, Meter  # noqa: E402
from benchmarks.measure import Epoch, Measured  # noqa: E402
from millstream.core.time import duration  # noqa: E402

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the meter reads Linux's clocks")

BURNT = 0.5  # seconds of CPU

_TOOLS = """
import os, signal, subprocess, sys, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def say(word):
    print(word, flush=True)
"""

#: A daemon as PySpark's: it ignores SIGCHLD, and forks a worker for each line that it reads. Told to, it burns something itself. A worker rests
#: before it ends, so that a machine with much to do has a chance to read it.
_DAEMON = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    who, _, seconds = line.partition(" ")
    if who == "daemon":
        burn(float(seconds))
        say("burnt")
        continue
    said, answered = os.pipe()
    pid = os.fork()
    if pid == 0:
        burn(float(seconds))
        time.sleep(0.2)
        os.write(answered, b"!")
        if "stay" in sys.argv: time.sleep(600)
        os._exit(0)
    os.close(answered)
    os.read(said, 1)
    os.close(said)
    while "stay" not in sys.argv and os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
    say("burnt")
"""

#: A "JVM": starts the daemon, passes lines on to it, and can itself burn, or start a child that burns and wait for it.
_JVM = """
daemon = subprocess.Popen([sys.executable, "-c", sys.argv[1], "pyspark.daemon", *sys.argv[2:]], stdin=subprocess.PIPE,
stdout=subprocess.PIPE, text=True, bufsize=1)
for line in sys.stdin:
    what, _, seconds = line.strip().partition(" ")
    if what in ("worker", "daemon"):
        daemon.stdin.write(line); daemon.stdin.flush(); daemon.stdout.readline()
    elif what == "self":
        burn(float(seconds))
    elif what == "child":
        subprocess.run([sys.executable, "-c", sys.argv[1].partition("signal.signal")[0] + f"burn({seconds})"], check=True)
    elif what == "end":
        daemon.stdin.close(); daemon.wait()
    say("done")
"""


class Application:
    """The made-up JVM, and its meter."""

    def __init__(self, process: subprocess.Popen[str], meter: Meter) -> None:
        self.process, self.meter = process, meter

    def do(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def cost(self, what: str) -> Cpu:
        """What is counted for one thing done."""
        before = self.meter.read()
        self.do(what)
        return self.meter.read(look=True) - before


@contextmanager
def application(*words: str, interval: float = 0.01) -> Iterator[Application]:
    command = [sys.executable, "-c", _TOOLS + _JVM, _TOOLS + _DAEMON, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        with Meter(process.pid, interval) as meter:
            one = Application(process, meter)
            one.do("worker 0")  # the daemon is there
            meter.read(look=True)
            yield one
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.2)


SLIGHT = 0.2 * BURNT


@pytest.mark.slow
@linux
@pytest.mark.parametrize("words", [("stay",), ()], ids=["lives on", "has ended"])
def test_what_a_worker_burns_is_pythons(words: tuple[str, ...]) -> None:
    with application(*words) as one:
        cost = one.cost(f"worker {BURNT}")
    assert cost.python == near(BURNT)
    assert cost.jvm < SLIGHT and cost.driver < SLIGHT


@pytest.mark.slow
@linux
def test_without_readings_in_between_a_worker_that_has_ended_is_lost() -> None:
    """Why the meter keeps reading: the kernel adds the time of a child to nobody's if its parent ignores SIGCHLD."""
    with application(interval=600) as one:
        cost = one.cost(f"worker {BURNT}")
    assert cost.total < SLIGHT


@pytest.mark.slow
@linux
def test_what_the_jvm_burns_and_starts_is_the_jvms() -> None:
    with application() as one:
        own, child = one.cost(f"self {BURNT}"), one.cost(f"child {BURNT}")
    assert own.jvm == near(BURNT) and own.python < SLIGHT
    assert child.jvm == near(BURNT) and child.python < SLIGHT


@pytest.mark.slow
@linux
def test_a_process_own_clock_misses_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the JVM's children are read."""
    monkeypatch.setattr(cpu, "_waited", lambda pid: 0.0)
    with application() as one:
        child = one.cost(f"child {BURNT}")
    assert child.total < SLIGHT


@pytest.mark.slow
@linux
def test_a_daemon_that_ends_is_counted_once() -> None:
    with application() as one:
        assert one.cost(f"daemon {BURNT}").python == near(BURNT)
        ended = one.cost("end")
        given_back = one.meter._tree.gone_of_jvm
        assert not any(worker.of_jvm for worker in one.meter._tree.workers.values())
    assert abs(ended.jvm) < SLIGHT and abs(ended.python) < SLIGHT
    assert ended.jvm + given_back > BURNT, "the kernel gave the daemon's time to the JVM when it ended: without the rule it counts twice"


@pytest.mark.slow
@linux
def test_the_driver_is_charged_for_its_own_work_but_not_for_the_readings() -> None:
    with application(interval=1e-6) as one:
        began, mine, readers = time.time(), time.process_time(), one.meter._own
        while one.meter._own < readers + BURNT:
            time.sleep(0.01)
        idle = one.meter.between(began, time.time())
        assert time.process_time() - mine > BURNT and idle.driver < SLIGHT
    with application() as one:
        began, until = time.time(), time.process_time() + BURNT
        while time.process_time() < until:
            pass
        assert one.meter.between(began, time.time()).driver == near(BURNT)


@pytest.mark.slow
@linux
def test_only_what_falls_between_two_moments_is_counted() -> None:
    with application() as one:
        moments = []
        for seconds in (BURNT, BURNT / 2, BURNT):
            one.do(f"self {seconds}")
            one.meter.read()
            moments.append(time.time())
        assert one.meter.between(moments[0], moments[1]).jvm == near(BURNT / 2)
        with pytest.raises(ValueError, match="start it before the job"):
            one.meter.at(moments[0] - 600)


# --- what is divided by what


class Line(Meter):
    """A meter whose readings are given: the JVM spends a second a second, Python two, the driver a tenth."""

    def __init__(self) -> None:
        pass

    def at(self, moment: float) -> Cpu:
        return Cpu(jvm=moment, python=2 * moment, driver=0.1 * moment, jit=0.5 * moment)


def query(*epochs: dict[str, Any]) -> Any:
    return SimpleNamespace(recentProgress=[SimpleNamespace(json=json.dumps(one)) for one in epochs])


def told(rows: int, tick: int, millis: int, timestamp: str) -> dict[str, Any]:
    sources = [
        {"description": "FileStreamSource[here]", "numInputRows": rows},
        {"description": "RatePerMicroBatchStream[rowsPerBatch=1]", "numInputRows": tick},
    ]
    return {"numInputRows": rows + tick, "sources": sources, "batchDuration": millis, "timestamp": timestamp}


def test_epochs_are_those_with_input_and_the_ticking_source_is_none() -> None:
    found = measure.progress(
        query(
            told(200, 1, 500, "1970-01-01T00:00:10.000Z"),
            told(0, 1, 40, "1970-01-01T00:00:11.000Z"),
            told(1, 0, 250, "1970-01-01T00:00:12.500Z"),
        )
    )
    assert found == [Epoch(200, 0.5, 10.0), Epoch(1, 0.25, 12.5)]
    assert [one.ended for one in found] == [10.5, 12.75]


def test_steady_epochs_are_divided_by_their_own_records() -> None:
    epochs = [Epoch(1_000_000, 50.0, 0.0), Epoch(9_000_000, 10.0, 50.0), Epoch(1_000_000, 4.0, 61.0), Epoch(1_000_000, 4.0, 66.0)]
    found = measure.measured(Line(), epochs, 2)
    assert found.rate == 2_000_000 / 8  # the durations alone
    assert found.cpu == Cpu(jvm=5.0, python=10.0, driver=0.5, jit=2.5)  # from 60 to 70: the gaps too
    assert found.epochs == tuple(epochs[2:])
    with pytest.raises(ValueError, match="give more files, at least 5"):
        measure.measured(Line(), epochs, 4)


def run_of(rate: float, total: float) -> Measured:
    return Measured(rate, Cpu(jvm=total), ())


def test_ratios_are_millstreams_over_the_others_and_a_variants_over_millstreams() -> None:
    found = {
        "sql": [run_of(100, 8)],
        "millstream": [run_of(150, 4), run_of(200, 6)],
        "floor": [run_of(400, 2)],
        "tws": [run_of(10, 100)],
        "millstream-dedup": [run_of(100, 6)],
    }
    assert measure.ratios(found) == {
        "throughput_vs_tws": 20.0,
        "cpu_vs_tws": 0.04,
        "throughput_vs_sql": 2.0,
        "cpu_vs_sql": 0.5,
        "throughput_vs_floor": 0.5,
        "cpu_vs_floor": 2.0,
        "throughput_dedup_vs_millstream": 0.5,
        "cpu_dedup_vs_millstream": 1.5,
    }
    assert measure.ratios({"sql": [run_of(100, 8)]}) == {}


def test_a_small_epochs_cost_is_the_median_from_end_to_end() -> None:
    ends = [0.0, 1.0, 1.1, 1.2, 1.4, 9.0]
    found = epoch.small(Line(), [Epoch(1, 0.0, end) for end in ends], 5)
    assert (found.jvm, found.python, found.driver, found.jit) == pytest.approx((200.0, 400.0, 20.0, 100.0))
    with pytest.raises(ValueError, match="6 epochs had input, and 6 are to be measured"):
        epoch.small(Line(), [Epoch(1, 0.0, end) for end in ends], 6)


def test_the_files_of_one_record_come_after_the_others(tmp_path: Path) -> None:
    epoch._make(tmp_path, 100, 10, 4)
    by_age = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    assert by_age == sorted(tmp_path.glob("*.parquet")) and len(by_age) == epoch.FILES + 4
    assert all(one.stat().st_mtime + 0.5 < other.stat().st_mtime for one, other in itertools.pairwise(by_age))


# --- outputs are checked


def test_a_wrong_a_missing_and_a_doubled_count_are_noticed(tmp_path: Path) -> None:
    truth = {("tea", data.START - 1000): 2, ("tea", data.START + 60_000): 1}
    rows = [{"key": "tea", "timestamp": data.START, "value": 2}, {"key": "tea", "timestamp": data.START + 61_000, "value": 1}]

    def check(way: str, *told: dict[str, Any]) -> None:
        work = jobs.fresh(tmp_path / way)
        (work / "counts").mkdir()
        name = "part.jsonl" if way == "millstream" else "part.json"
        (work / "counts" / name).write_text("".join(json.dumps(one) + "\n" for one in told))
        throughput._check(way, work, truth, data.START + 10_000)

    check("millstream", *rows)
    check("sql", *rows)
    check("sql", rows[0])  # the other second is not complete
    for way, told in (
        ("millstream", rows[:1]),
        ("millstream", [rows[0], *rows]),
        ("sql", rows[1:]),
        ("sql", [{**rows[0], "value": 3}]),
        ("tws", []),
    ):
        with pytest.raises(AssertionError):
            check(way, *told)


# --- what is run


def test_the_trigger_is_a_duration_and_spark_has_the_same() -> None:
    assert duration(latency.TRIGGER) == 100 and latency.SPARK_TRIGGER == "100 milliseconds"


def test_a_way_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["throughput", "--only", "sql,flor"])
    with pytest.raises(SystemExit):
        throughput._options()
    assert "no way is called flor; there are: sql, millstream" in capsys.readouterr().err


def test_make_bench_runs_everything() -> None:
    runnable = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert runnable - {"all", "compare", "nab", "nab_engines", "once"} == set(everything.PARTS)
    text = (ROOT / "Makefile").read_text()
    assert "-m benchmarks.all" in text and "-m benchmarks.throughput --quick" in text


def test_a_part_is_shown_and_its_last_line_is_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = everything.run("filters")
    assert all(name.startswith("filter_") for name in found)
    assert capsys.readouterr().out.startswith("ours (numpy)")


def test_a_part_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match=r"benchmarks\.nothing failed(.|\n)*No module named"):
        everything.run("nothing")


def test_the_readme_names_what_exists() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    named = set(re.findall(r"-m benchmarks\.(\w+)", text))
    assert {*everything.PARTS, "compare"} - {"throughput"} <= named
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in named)


# --- comparing with another version


def test_the_other_version_is_a_src_folder(tmp_path: Path) -> None:
    package = tmp_path / "src" / "millstream"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert compare.source_folder(tmp_path / "src") == (tmp_path / "src").resolve()
    with pytest.raises(ValueError, match=r"there is no Millstream in .*; .*/src would do"):
        compare.source_folder(tmp_path)
    with pytest.raises(ValueError, match="give the folder that holds the package"):
        compare.source_folder(tmp_path / "nowhere")


def test_a_side_runs_with_its_own_millstream_or_not_at_all(tmp_path: Path) -> None:
    package = tmp_path / "src" / "millstream"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    code = f"from benchmarks import once; from pathlib import Path; once._check_source(Path({str(tmp_path / 'src')!r}))"
    for source, right in ((tmp_path / "src", True), (compare.OURS, False)):
        environment = compare.environment(source, tmp_path, os.environ)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode == 0) == right and ("is PYTHONPATH set?" in done.stderr) != right, done.stderr


def test_ratios_of_two_versions_are_of_their_means() -> None:
    ours = compare.mean([Cpu(2, 1, 0.5, 0.5), Cpu(4, 3, 0.5, 1.5)])
    assert ours == Cpu(3, 2, 0.5, 1)
    assert compare.ratios(ours, Cpu(4, 1, 1, 2)) == {
        "cpu_vs_other": 0.92,
        "cpu_without_jit_vs_other": 1.12,
        "jvm_vs_other": 0.75,
        "python_vs_other": 2.0,
        "driver_vs_other": 0.5,
    }


def test_only_settings_that_another_version_can_have_are_passed_on() -> None:
    settings = [
        ("spark.app.id", "local-1"),
        ("spark.driver.port", "4711"),
        ("spark.master", "local[2,4]"),
        ("spark.python.daemon.module", "millstream.daemon"),
        ("spark.ui.enabled", "false"),
    ]
    assert once.given(settings) == {"spark.master": "local[2,4]", "spark.ui.enabled": "false"}
