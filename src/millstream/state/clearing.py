"""What Millstream has left on this host, outside of checkpoints, that no run needs: caches of state, and archives of Spark's classes.

Rules
1. All of it is a cache: removing it costs time, never data.
2. Nothing that a process uses is removed: whoever uses a cache of state holds a lock in its folder (`replica.py`), for as long as it lives.
3. A run removes by itself what was not used for `IDLE`, and all but the newest archives. `millstream clean` removes more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

IN_USE = "in-use"
IDLE = 7 * 86_400.0  # seconds
ARCHIVES = 2
ARCHIVE = "spark-classes-*"


class Leftover(msgspec.Struct, frozen=True):
    """A cache that no process uses. used: when one last did (seconds since 1970)."""

    path: Path
    bytes: int
    used: float
    what: str


def state_caches(base: Path) -> list[Leftover]:
    """Caches of state below a folder, `<boot>/<checkpoint>`, that no process uses."""
    found = []
    for folder in sorted(base.glob("*/*")):
        if folder.is_dir() and not is_in_use(folder):
            files = list(_files(folder))
            used = max((path.stat().st_mtime for path in files), default=folder.stat().st_mtime)
            found.append(Leftover(folder, sum(_on_disk(path) for path in files), used, "cache of state"))
    return found


def archives(folder: Path, keep: int = ARCHIVES) -> list[Leftover]:
    """Archives of Spark's classes, but for the newest, and what was left of making one."""
    made = sorted(folder.glob(f"{ARCHIVE}.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    half = [path for path in folder.glob(ARCHIVE) if path.suffix != ".jsa" and time.time() - path.stat().st_mtime > 86_400]
    return [Leftover(path, _on_disk(path), path.stat().st_mtime, "archive of Spark's classes") for path in [*made[keep:], *half]]


def remove(leftover: Leftover) -> bool:
    """Removes one. False if somebody has begun to use it, or it cannot be removed."""
    path = leftover.path
    try:
        if path.is_dir():
            if is_in_use(path):
                return False
            shutil.rmtree(path)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def remove_idle(base: Path) -> None:
    """Rule 3."""
    for one in state_caches(base):
        if time.time() - one.used > IDLE:
            remove(one)


def use(folder: Path) -> int:
    """Notes that this process uses a cache, until the file that is returned is closed, or the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def is_in_use(folder: Path) -> bool:
    """Whether a process uses a cache, or a part of it."""
    for path in folder.rglob(IN_USE):
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
    return False


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _on_disk(path: Path) -> int:
    """LMDB's files are larger than what they take on the disk."""
    return path.stat().st_blocks * 512
