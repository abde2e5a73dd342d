"""What Millstream has left on this host, outside of checkpoints, that no run needs: caches of state, and archives of Spark's classes.

Rules
1. All of it is a cache: removing it costs time, never data. A folder is taken for a cache by its name, `<boot>/<checkpoint>`: the place may be a disk
   that others use, too.
2. Nothing that a process uses is removed: whoever uses a cache of state holds a lock in its folder (`state_cache.py`), for as long as it lives; and whoever
   removes one holds it alone, so that nobody begins to use what is half gone.
3. A run removes by itself what was not used for `IDLE`, and all but the newest archives. `millstream clean` removes more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

IN_USE = "in-use"
IDLE = 7 * 86_400.0  # seconds
ARCHIVES = 2
ARCHIVE = "spark-classes-*"
_NAME = re.compile(r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|unknown)/[0-9a-f]{16}")  # `state_cache_root`


class Leftover(msgspec.Struct, frozen=True):
    """A cache that no process uses. used: when one last did (seconds since 1970)."""

    path: Path
    bytes: int
    used: float
    what: str


def state_caches(base: Path) -> list[Leftover]:
    """Caches of state below a folder that no process uses."""
    found = []
    for folder in (folder for boot in _folders(base) for folder in _folders(boot) if _NAME.fullmatch(f"{boot.name}/{folder.name}")):
        if not is_in_use(folder):
            with contextlib.suppress(FileNotFoundError):  # somebody else has removed it meanwhile
                files = [one for path in folder.rglob("*") if stat.S_ISREG((one := path.lstat()).st_mode)]
                used = max((one.st_mtime for one in files), default=folder.stat().st_mtime)
                found.append(Leftover(folder, sum(map(_on_disk, files)), used, "cache of state"))
    return found


def archives(folder: Path, keep: int = ARCHIVES) -> list[Leftover]:
    """Archives of Spark's classes, but for the newest, and what was left of making one."""
    made = sorted(folder.glob(f"{ARCHIVE}.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    half = [path for path in folder.glob(ARCHIVE) if path.suffix != ".jsa" and time.time() - path.stat().st_mtime > 86_400]
    return [Leftover(path, _on_disk(path.stat()), path.stat().st_mtime, "archive of Spark's classes") for path in [*made[keep:], *half]]


def remove(leftover: Leftover) -> bool:
    """Removes one. False if somebody has begun to use it, or it cannot be removed."""
    path = leftover.path
    with contextlib.suppress(OSError):
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return True
        with _alone(path) as is_alone:
            if is_alone:
                shutil.rmtree(path)
        if is_alone and not any(path.parent.iterdir()):
            path.parent.rmdir()
        return is_alone
    return False


def remove_idle(base: Path) -> None:
    """Rule 3."""
    for one in state_caches(base):
        if time.time() - one.used > IDLE:
            remove(one)


def use(folder: Path) -> int:
    """Notes that this process uses a cache, until the file that is returned is closed, or the process ends."""
    path = folder / IN_USE
    while True:
        with contextlib.suppress(FileNotFoundError):  # it is being removed: then it is made anew
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def is_in_use(folder: Path) -> bool:
    """Whether a process uses a cache, or a part of it."""
    with _alone(folder) as is_alone:
        return not is_alone


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Within this block nobody begins to use a cache that is not in use. Tells whether it is not."""
    with contextlib.ExitStack() as held:
        yield all(_taken(Path(where) / IN_USE, held) for where, _, names in os.walk(folder) if IN_USE in names)


def _taken(path: Path, held: contextlib.ExitStack) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        held.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _on_disk(found: os.stat_result) -> int:
    """LMDB's files are larger than what they take on the disk."""
    return found.st_blocks * 512
