"""Files that survive a crash: locks, whole writes, and files that are replaced whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.state.durable import lock_folder, replace_file, sync_folder, write_all


def test_a_locked_folder_is_refused_until_the_lock_is_closed(tmp_path: Path) -> None:
    held = lock_folder(tmp_path / "new" / "folder")
    assert held is not None
    assert lock_folder(tmp_path / "new" / "folder") is None
    other = lock_folder(tmp_path / "new" / "folder", "other.lock")
    assert other is not None
    os.close(held)
    again = lock_folder(tmp_path / "new" / "folder")
    assert again is not None
    os.close(again)
    os.close(other)


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from millstream.state.durable import lock_folder; "
        "assert lock_folder(Path(sys.argv[1])) is not None; print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "locked\n"
    assert lock_folder(tmp_path) is None
    child.kill()
    child.communicate()
    held = lock_folder(tmp_path)
    assert held is not None
    os.close(held)


def test_all_bytes_are_written_however_few_the_system_takes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_pwrite(fd, data[:2], offset))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_all(fd, b"0123456789")
    write_all(fd, b"abcdef", 4)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123abcdef"


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    assert path.read_bytes() == b"old"

    def breaks(fd: int) -> None:
        write_all(fd, b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        replace_file(path, breaks)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"
    replace_file(path, lambda fd: write_all(fd, b"new"))
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"new"


def test_a_folder_that_is_missing_cannot_be_synced(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "absent")
