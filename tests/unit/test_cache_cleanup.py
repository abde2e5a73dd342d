"""Caches on a host: what a process uses stays, what nobody needs goes, by itself and on request."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.state import cache_cleanup, state_cache

BOOT_BEFORE = "7a1c0f52-2f2e-4f6c-9c66-0d4c7d0f3c11"
OLD, YOUNG = "00000000000000aa", "00000000000000bb"
HOLD = """
import sys
from pathlib import Path
from millstream.state.state_cache import open_state_cache
open_state_cache(Path(sys.argv[1]), "lineage", 0)
print("open", flush=True)
sys.stdin.read()
"""


def cache(base: Path, boot: str, checkpoint: str, days: float = 0.0) -> Path:
    folder = base / boot / checkpoint
    state_cache.open_state_cache(folder, "lineage", 0)
    state_cache.close_state_cache(folder, "lineage", 0)
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - days * 86_400,) * 2)
    return folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_STATE_CACHE", str(tmp_path / "state_caches"))
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_what_a_process_uses_stays_until_it_ends_however_it_ends(host: Path) -> None:
    folder = cache(host / "state_caches", state_cache.boot_id(), "0" * 16, days=30)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline() == b"open\n"
        assert cache_cleanup.is_in_use(folder) and main(["clean", "--all"]) == 0 and folder.exists()
        assert not cache_cleanup.remove(cache_cleanup.Leftover(folder, 0, 0.0, "")), "also if it was not in use a moment ago"
        user.kill()
        user.wait()
    assert main(["clean", "--all"]) == 0 and not folder.exists()


def test_clean_removes_old_boots_and_what_was_not_used_for_a_day(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = host / "state_caches"
    old, boot, fresh = cache(base, state_cache.boot_id(), OLD, 2), cache(base, BOOT_BEFORE, OLD), cache(base, state_cache.boot_id(), YOUNG)
    assert main(["clean", "--dry-run"]) == 0 and old.exists() and boot.exists()
    assert "would remove 2 caches" in capsys.readouterr().out
    assert main(["clean"]) == 0 and not old.exists() and not boot.parent.exists() and fresh.exists()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[-1].startswith("removed 2 caches, ") and str(base) in said[-1]
    assert main(["clean", "--all"]) == 0 and not fresh.exists()


def test_a_run_removes_by_itself_what_was_not_used_for_a_week(host: Path) -> None:
    base = host / "state_caches"
    old, young = cache(base, BOOT_BEFORE, OLD, 8), cache(base, BOOT_BEFORE, YOUNG, 6)
    cache_cleanup.remove_idle(base)
    assert not old.exists() and young.exists()


def test_on_a_disk_that_others_use_nothing_of_theirs_is_touched(host: Path) -> None:
    base = host / "state_caches"
    ours, theirs = cache(base, BOOT_BEFORE, OLD, 30), base / "projects" / "thesis" / "chapter-1.txt"
    nested = cache(base / "other" / "state_caches", BOOT_BEFORE, OLD, 30)
    beside = base / BOOT_BEFORE / "notes" / "a.txt"
    for path in (theirs, beside):
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
        os.utime(path, (time.time() - 400 * 86_400,) * 2)
    cache_cleanup.remove_idle(base)
    assert main(["clean", "--all"]) == 0
    assert not ours.exists() and theirs.exists() and beside.exists() and nested.exists()


def test_what_somebody_else_removes_meanwhile_is_nobodys_error(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = host / "state_caches"
    cache(base, BOOT_BEFORE, OLD, 30)
    look = cache_cleanup.is_in_use

    def removed_meanwhile(folder: Path) -> bool:
        found = look(folder)
        shutil.rmtree(folder.parent)
        return found

    monkeypatch.setattr(cache_cleanup, "is_in_use", removed_meanwhile)
    cache_cleanup.remove_idle(base)
    assert not (base / BOOT_BEFORE).exists()


def test_whoever_begins_to_use_a_cache_while_it_is_removed_gets_a_new_one(host: Path) -> None:
    folder = cache(host / "state_caches", BOOT_BEFORE, OLD)
    with cache_cleanup._alone(folder) as is_alone:
        user = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while not _waits_for_a_lock(user.pid):
            time.sleep(0.01)
        assert is_alone
        shutil.rmtree(folder)
    with user:
        assert user.stdout is not None and user.stdout.readline() == b"open\n"
        assert cache_cleanup.is_in_use(folder) and (folder / "lineage" / "0").exists()
        user.kill()


def _waits_for_a_lock(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_only_the_newest_archives_of_spark_classes_are_kept(host: Path) -> None:
    folder = host / "cache"
    for age, name in enumerate(["a.jsa", "b.jsa", "c.jsa", "d.making", "e.5.new"]):
        (folder / f"spark-classes-{name}").write_bytes(b"x")
        os.utime(folder / f"spark-classes-{name}", (time.time() - age * 86_400 - 10,) * 2)
    (folder / "something-else").touch()
    assert main(["clean"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["something-else", "spark-classes-a.jsa", "spark-classes-b.jsa"]


def test_a_cache_that_somebody_deleted_is_protected_again_when_it_is_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "boot" / "checkpoint"
    state_cache.open_state_cache(root, "lineage", 0)
    shutil.rmtree(root)
    state_cache.open_state_cache(root, "lineage", 0)
    assert cache_cleanup.is_in_use(root)
    state_cache.close_state_cache(root, "lineage", 0)
    assert not cache_cleanup.is_in_use(root)
