"""Drivers of resident runs that are killed, paused and replaced."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
import taskkit as kit
from effort import first_seed
from millstream.faults import POINTS
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.crash


MODES = pytest.mark.parametrize("resident", [True, False], ids=["resident", "micro-batch"])


@MODES
@pytest.mark.parametrize("much", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_driver_killed_at_every_point_with_more_rows_after_each_crash_than_before(tmp_path: Path, much: int, resident: bool) -> None:
    """Little is read by the driver, much by the tasks, in turns. The epoch that was lost is planned anew, and has more rows then."""
    rows = kit.numbered(60 * len(POINTS) + 60)
    for at, point in enumerate(POINTS):
        kit.write_rows(tmp_path, rows[: 40 * at + 60])
        last = newest(tmp_path)
        assert kit.Driver(tmp_path, crash=f"{point}@{last + 1}", much=at % 2 == much, resident=resident).wait() == -signal.SIGKILL, point
        committed = POINTS.index(point) >= POINTS.index("epoch.6-committed")
        assert newest(tmp_path) == last + committed, point
    kit.write_rows(tmp_path, rows)
    assert kit.Driver(tmp_path, resident=resident).wait() == 0
    assert kit.faults_of(tmp_path, rows) == {}


def kill_at_random(work: Path, rows: list[dict[str, Any]], resident: bool, kills: int = 5) -> None:
    """Drivers are killed at any moment behind their first epoch, and one finishes."""
    kit.write_rows(work, rows)
    dice = random.Random(first_seed())
    for _ in range(kills):
        before = newest(work)
        driver = kit.Driver(work, per_epoch=15, resident=resident)
        kit.until(lambda before=before, driver=driver: newest(work) > before or not driver.is_alive())  # type: ignore[misc]
        time.sleep(dice.random() * 0.1)
        driver.end()
    assert kit.Driver(work, resident=resident).wait() == 0


@MODES
def test_drivers_killed_at_random_moments_lose_and_double_nothing(tmp_path: Path, resident: bool) -> None:
    rows = kit.numbered(600)
    kill_at_random(tmp_path, rows, resident)
    assert kit.faults_of(tmp_path, rows) == {}


@MODES
def test_negative_twin_where_offsets_are_noted_when_they_are_planned_a_killed_driver_loses_rows(tmp_path: Path, resident: bool) -> None:
    rows = kit.numbered(180)
    kit.write_rows(tmp_path, rows)
    killed = kit.Driver(tmp_path, crash="epoch.5-checked@1", guards="offsets", resident=resident)
    assert killed.wait() == -signal.SIGKILL
    assert kit.Driver(tmp_path, guards="offsets", resident=resident).wait() == 0
    assert kit.faults_of(tmp_path, rows)["lost"]


def strong(work: Path) -> tuple[ms.Pipeline, kit.Given]:
    """Productions are stored, so the last rows leave something to do."""
    return kit.pipeline(work, ms.STRONG)


@MODES
def test_a_bounded_run_that_is_killed_while_it_settles_goes_on_with_that_at_the_next_start(tmp_path: Path, resident: bool) -> None:
    rows = kit.numbered(120)
    kit.write_rows(tmp_path, rows)
    killed = kit.Driver(tmp_path, crash="epoch.6-committed@2", resident=resident, settles=True, build=strong)
    assert killed.wait() == -signal.SIGKILL
    assert ManifestLog(open_storage(str(tmp_path / "checkpoint"))).read(2).settle, "what the last rows made due is done outside the query"
    assert kit.Driver(tmp_path, resident=resident, settles=True, build=strong).wait() == 0
    assert kit.faults_of(tmp_path, rows) == {}


def newest(work: Path) -> int:
    folder = work / "checkpoint" / "manifests"
    return max((int(path.stem) for path in folder.glob("*.json")), default=-1) if folder.exists() else -1


def manifests(work: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (work / "checkpoint" / "manifests").iterdir()}


def replaced(work: Path, guards: str = "") -> tuple[kit.Driver, int, bool]:
    """A driver is paused before a commit, another one takes over, with other epochs, and finishes; the first goes on. How it ended, and whether what the
    other has committed and published still stands."""
    rows = kit.numbered(180)
    kit.write_rows(work, rows)
    first = kit.Driver(work, guards=guards, pause=1)
    try:
        kit.until(first.is_paused)
        assert kit.Driver(work, per_epoch=45).wait() == 0
        assert kit.faults_of(work, rows) == {}
        committed = manifests(work)
        os.kill(first.pid, signal.SIGCONT)
        code = first.wait()
    finally:
        first.end()
    return first, code, manifests(work) == committed and kit.faults_of(work, rows) == {}


def test_a_driver_that_was_paused_and_replaced_is_fenced(tmp_path: Path) -> None:
    first, code, stands = replaced(tmp_path)
    assert code == 3 and first.said().startswith("Fenced: another driver owns")
    assert stands


def test_of_two_drivers_started_at_the_same_moment_one_goes_on_to_the_end(tmp_path: Path) -> None:
    rows = kit.numbered(400)
    kit.write_rows(tmp_path, rows)
    both = [kit.Driver(tmp_path, per_epoch=4) for _ in range(2)]
    assert sorted(one.wait() for one in both) == [0, 3]
    assert any(one.said().startswith("Fenced: another driver owns") for one in both if one.wait() == 3)
    assert kit.faults_of(tmp_path, rows) == {}


def test_without_the_guards_it_commits_over_the_other(tmp_path: Path) -> None:
    _, _, stands = replaced(tmp_path, "tokens,exclusive")
    assert not stands
