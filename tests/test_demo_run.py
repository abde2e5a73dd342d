"""The demo as a whole: its processes, its kills, what a person sees, the comparison; and once on Spark."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from demos import live, undisturbed
from demos import run as demo
from demos.driver import pipeline
from demos.drivers import DriverFailed, Drivers, Kill, Planned, Story, plan
from demos.live import Show
from demos.look import Onlooker, Sighting
from demos.processes import Child, members
from demos.traffic import Traffic, Truth, read_truth, write
from demos.zeitgeist import STREAMS
from millstream.core.watermark import Progress
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from pacedriver import EPOCHS

TINY = Traffic(seed=3, terms=8, seconds=300, rate=40.0, spikes=3, dips=0, files=30)


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Waits for something that must come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)


def recorded(terminal: bool = False, width: int = 200) -> Console:
    return Console(width=width, file=io.StringIO(), record=True, force_terminal=terminal)


# --- processes


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        pytest.skip("there is no ps")
    return bool(state) and not state.startswith("Z")


def workers(output: Path) -> list[int]:
    """The processes that the paced drivers of a directory and their workers had."""
    file = output / "workers"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


@pytest.mark.crash
class TestProcesses:
    def test_a_kill_takes_all_that_the_child_has_started(self, tmp_path: Path) -> None:
        child = Child("pacedriver", str(tmp_path), log=tmp_path / "log")
        until(lambda: workers(tmp_path))
        driver, worker = workers(tmp_path)
        assert alive(driver) and alive(worker) and os.getpgid(worker) != os.getpgid(driver)
        assert child.kill() == 2
        assert child.code == -signal.SIGKILL and members(child.pid) == [] and not alive(worker)

    def test_a_child_whose_parent_is_gone_ends(self, tmp_path: Path) -> None:
        code = (
            "import sys, time; from pathlib import Path; from demos.processes import Child\n"
            "folder = Path(sys.argv[1]); child = Child('pacedriver', str(folder), log=folder / 'log'); time.sleep(600)"
        )
        (tmp_path / "checkpoint").mkdir()
        parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
        until(lambda: workers(tmp_path))
        assert all(map(alive, workers(tmp_path)))
        parent.kill()
        parent.wait()
        until(lambda: not any(map(alive, workers(tmp_path))))

    def test_the_session_is_found_without_proc(self) -> None:
        from demos import processes

        if not os.path.exists("/proc/self/stat") or not any(os.access(f"{folder}/ps", os.X_OK) for folder in os.get_exec_path()):
            pytest.skip("needs both /proc and ps")
        own = set(processes._from_ps(os.getsid(0)))
        assert os.getpid() in own and os.getpid() in processes._from_proc(os.getsid(0))


# --- drivers


@pytest.mark.crash
class TestDrivers:
    def drivers(self, output: Path, planned: list[Planned], console: Console | None = None) -> Drivers:
        truth = Truth(TINY, [], 0)
        return Drivers(output, planned, Onlooker(output, truth), Show(console or recorded()), module="pacedriver")

    def test_each_is_killed_where_it_was_planned_and_followed_by_another(self, tmp_path: Path) -> None:
        console = recorded()
        (tmp_path / "halt-4").touch()
        drivers = self.drivers(tmp_path, [Planned(2), Planned(6, "epoch.6-committed")], console)
        drivers.run(lambda: None)
        first, second = drivers.story.kills
        assert first.epoch in (2, 3) and second.epoch == 6 and Story.of(tmp_path) == drivers.story
        assert drivers._onlooker.look().epoch == EPOCHS - 1
        assert len(workers(tmp_path)) == 6 and not any(map(alive, workers(tmp_path)))
        text = console.export_text()
        assert "kill -9 of driver 1, with its JVM and workers (2 processes)" in text
        assert "kill -9 of driver 2, after the commit of epoch 6, before its output was published" in text
        assert "driver 3 goes on after epoch 6" in text and "driver 3 has ended" in text

    def test_one_that_fails_shows_the_end_of_its_log(self, tmp_path: Path) -> None:
        (tmp_path / "stumble").touch()
        with pytest.raises(DriverFailed, match=r"driver 1 ended with 1\. The end of .*driver\.log:[\s\S]*stumbled over a stone"):
            self.drivers(tmp_path, []).run(lambda: None)
        assert not any(map(alive, workers(tmp_path)))

    def test_an_error_of_millstream_is_a_message_and_no_traceback(self, tmp_path: Path) -> None:
        write(TINY, tmp_path)
        (tmp_path / "checkpoint").write_text("a file where the checkpoint should be")
        child = Child("demos.driver", str(tmp_path), log=tmp_path / "log")
        until(lambda: child.code is not None)
        child.kill()
        assert child.code == 1 and "Traceback" not in child.tail() and "checkpoint" in child.tail()

    def test_a_kill_that_is_not_ours_is_a_failure(self, tmp_path: Path) -> None:
        def strange() -> None:
            if workers(tmp_path):
                os.kill(workers(tmp_path)[0], signal.SIGKILL)

        drivers = self.drivers(tmp_path, [Planned(EPOCHS - 1, "epoch.6-committed")])
        with pytest.raises(DriverFailed, match="driver 1 ended with -9"):
            drivers.run(strange)
        assert drivers.story.kills == []

    def test_an_interruption_leaves_no_process_and_counts(self, tmp_path: Path) -> None:
        def interrupt() -> None:
            if workers(tmp_path):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.drivers(tmp_path, []).run(interrupt)
        assert not any(map(alive, workers(tmp_path)))
        again = self.drivers(tmp_path, [])
        again.run(lambda: None)
        assert len(again.story.kills) == 1 and again.story.ended

    def test_the_plan_spreads_the_kills_over_the_run(self) -> None:
        assert plan(demo.FULL, 2) == [Planned(16), Planned(32, "epoch.6-committed")]
        assert plan(demo.SMALL, 1) == [Planned(10)]


# --- the undisturbed run, and the comparison


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the undisturbed run has been, and the other one with the same rows in other files."""
    folder = tmp_path_factory.mktemp("ran")
    write(TINY, folder)
    undisturbed.execute(folder)
    for stream in STREAMS:
        (folder / stream).mkdir()
        lines = (folder / undisturbed.FOLDER / stream / "rows.jsonl").read_bytes().splitlines(keepends=True)
        for part in range(3):
            (folder / stream / f"part-{part}.jsonl").write_bytes(b"".join(reversed(lines[part::3])))
    return folder


class TestComparison:
    @pytest.mark.slow
    def test_the_undisturbed_run_finds_what_was_injected(self, ran: Path) -> None:
        rows = undisturbed.read_rows(ran / undisturbed.FOLDER / "anomalies")
        assert {row["key"] for row in rows} == {injected.term for injected in read_truth(ran).injected}
        assert [spec.name for spec in pipeline(ran, read_truth(ran)).topology().computations] == ["counts", "anomalies"]

    def test_the_same_rows_in_other_files_are_the_same(self, ran: Path) -> None:
        rows, differences = undisturbed.compare(ran)
        assert rows > 100 and differences == []
        console = recorded()
        assert demo._verdict(2, rows, differences, console) == 0
        assert console.export_text().startswith("killed 2 times, the same anomalies as an undisturbed run")

    @pytest.mark.parametrize("stream", STREAMS)
    def test_a_row_that_is_lost_doubled_or_changed_is_found(self, ran: Path, stream: str) -> None:
        file = ran / stream / "part-0.jsonl"
        data = file.read_bytes()
        lines = data.splitlines(keepends=True)
        changed = lines[0].replace(b'"actual":', b'"actual":1')
        cases = {(1, 0): lines[1:], (0, 1): [*lines, lines[0]], (1, 1): [changed, *lines[1:]]}
        try:
            for (missing, extra), left in cases.items():
                file.write_bytes(b"".join(left))
                rows, (difference,) = undisturbed.compare(ran)
                assert (difference.stream, len(difference.missing), len(difference.extra)) == (stream, missing, extra)
                console = recorded()
                assert demo._verdict(2, rows, [difference], console) == 1
                text = console.export_text()
                assert (
                    "killed 2 times, and NOT the same as an undisturbed run" in text
                    and f"{stream}: {missing} rows are missing, {extra}" in text
                )
        finally:
            file.write_bytes(data)


# --- the directory


class TestRoom:
    def make(self, output: Path, fresh: bool = False) -> str:
        console = recorded()
        demo._make_room(output, TINY, fresh, Show(console))
        return console.export_text()

    def test_an_interrupted_demo_goes_on(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        write(TINY, tmp_path)
        Story([Kill(3, 70)]).note(tmp_path)
        assert "was interrupted, so this one goes on" in self.make(tmp_path)
        assert Story.of(tmp_path) == Story([Kill(3, 70)]) and (tmp_path / "queries").is_dir()

    def test_a_complete_demo_begins_anew_and_leaves_what_is_not_its_own(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        write(TINY, tmp_path)
        Story([Kill(3, 70)], ended=True, complete=True).note(tmp_path)
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "notes.txt").write_text("mine")
        assert "is complete, so this one begins anew" in self.make(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".story.json"} and Story.of(tmp_path) == Story()

    def test_an_interrupted_demo_of_other_traffic_is_kept_unless_told(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        write(msgspec.structs.replace(TINY, seed=4), tmp_path)
        with pytest.raises(demo.Refused, match=r"has an unfinished demo of other traffic .*Say --fresh"):
            self.make(tmp_path)
        assert (tmp_path / "queries").is_dir()
        self.make(tmp_path, fresh=True)
        assert not (tmp_path / "queries").exists()

    def test_what_the_demo_has_not_made_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "queries").mkdir()
        (tmp_path / "queries" / "mine.json").touch()
        for fresh in (False, True):
            console = recorded()
            assert demo.run(tmp_path, small=True, fresh=fresh, console=console) == 1
            assert "has queries, which the demo would overwrite and has not made" in console.export_text()
        assert (tmp_path / "queries" / "mine.json").exists()

    def test_a_removal_that_was_killed_leaves_nothing_that_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.make(tmp_path)
        write(TINY, tmp_path)
        (tmp_path / "checkpoint").mkdir()

        def killed(path: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(demo.shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else killed(path))
            demo.clear(tmp_path)
        assert (tmp_path / "checkpoint").is_dir()
        self.make(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {".story.json"}

    def test_one_demo_at_a_time(self, tmp_path: Path) -> None:
        console = recorded()
        with demo._alone(tmp_path):
            assert demo.run(tmp_path, small=True, console=console) == 1
        assert f"another demo is running in {tmp_path}" in console.export_text()


# --- what is seen, and what a person sees


def test_what_is_seen_is_committed_and_speeds_are_of_one_driver(tmp_path: Path) -> None:
    onlooker = Onlooker(tmp_path, Truth(TINY, [], 300))
    assert onlooker.look() == Sighting()
    log = ManifestLog(open_storage(tmp_path / "checkpoint"))
    log.identify("demo", 1, 1, ["queries"])
    assert onlooker.look() == Sighting()
    speeds = []
    for epoch, token in enumerate(["1-a", "1-a", "2-b", "2-b"]):
        progress = {"queries": Progress(records=100 * epoch + 100)}
        computations = {"counts": ComputationState(low_watermark=TINY.begin + 7_000 * epoch, shards=[ShardState(keys=5)], fired=epoch)}
        assert log.commit(Manifest(epoch, token, 1, [(0, token)], progress, computations))
        seen = onlooker.look()
        assert (seen.epoch, seen.records, seen.second, seen.terms, seen.fired) == (epoch, 100 * epoch + 100, 7 * epoch, 5, epoch)
        speeds.append(seen.per_second > 0)
    assert speeds == [False, True, False, True]
    (tmp_path / "anomalies" / "_staging").mkdir(parents=True)
    rows = [{"value": {"event": event, "kind": "dip", "term": "tea", "at": TINY.begin + 9_000}} for event in ("begin", "end")]
    (tmp_path / "anomalies" / "1.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    (tmp_path / "undisturbed.log").write_text("queries-0000.parquet\n")
    for _ in range(2):
        seen = onlooker.look()
        assert (seen.found, seen.undisturbed, seen.undisturbed_ended) == ((("dip", "tea", 9.0),), 1, False)


MIDST = Sighting(
    epoch=6,
    records=1_234_567,
    per_second=23_456.0,
    second=187,
    terms=1_000,
    fired=987_654,
    found=(("spike", "jazz haifa", 161.4), ("spike", "observatory krakow", 172.2), ("dip", "pizza cebu", 177.3)),
)


class TestShow:
    truth = Truth(TINY, [], 2_000_000)

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_the_view_of_a_terminal(self, width: int) -> None:
        console = recorded(terminal=True, width=width)
        show = Show(console)
        show.about(self.truth)
        show.doing("driver 2: epoch 7 is under way")
        show.seen(MIDST)
        console.print(show)
        lines = console.export_text().splitlines()
        assert all(len(line) <= width for line in lines)
        text = "\n".join(lines)
        assert [line.split()[0] for line in lines[-4:]] == ["committed", "state", "found", "beside"]
        assert "driver 2: epoch 7 is under way" in text and "1,234,567 of 2,000,000" in text and "62%" in text
        assert "7 epochs: all is counted up to second 187 of 300" in text and "3 of 0 anomalies   ▼ dip pizza cebu 177" in text

    def test_lines_without_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "SILENCE", 0.0)
        console = recorded()
        with Show(console) as show:
            show.doing("making the queries")
            until(lambda: "making the queries (0 s)" in console.file.getvalue())  # type: ignore[attr-defined]
            show.about(self.truth)
            show.event("driver 1 starts")
            monkeypatch.setattr(live, "_EVERY", 0.0)
            show.seen(MIDST)
            until(lambda: "epoch 6 is committed" in console.file.getvalue())  # type: ignore[attr-defined]
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "\x1b" not in text and "\r" not in text
        assert (
            " s  epoch 6 is committed, 1,234,567 of 2,000,000 queries (62%), counted up to second 187 of 300, 3 of 0 anomalies found\n"
            in text
        )


# --- all of it, on Spark


@pytest.mark.spark
@pytest.mark.crash
def test_a_demo_that_is_killed_finds_what_an_undisturbed_run_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SMALL", TINY)
    console = recorded()
    assert demo.run(tmp_path / "demo", seed=TINY.seed, small=True, console=console) == 0, console.export_text()
    text = console.export_text()
    assert "kill -9 of driver 1, with its JVM and workers" in text and "driver 2 has ended" in text
    assert "3 anomalies injected, 3 found, 0 false: precision 1.00, recall 1.00" in text
    assert re.search(r"^killed 1 time, the same anomalies as an undisturbed run \([\d,]+ rows compared\)$", text, re.MULTILINE)
    assert "WARN" not in text and "log4j" not in text
    assert Story.of(tmp_path / "demo") == Story([Story.of(tmp_path / "demo").kills[0]], ended=True, complete=True)  # type: ignore[union-attr]
    assert not (tmp_path / "demo" / ".scratch").exists() and (tmp_path / "demo" / "driver.log").stat().st_size
