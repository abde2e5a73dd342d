"""Files that survive a crash: lock a folder, write all bytes, sync a folder, replace a file.

Rules
1. A folder is locked with `flock` on a file in it. The lock ends when the descriptor is closed or the process ends, so a killed process leaves none behind.
2. A name is durable only when the folder that holds it was synced: after a rename, a creation or a removal.
3. `replace_file` shows the old content or the new content, never a part of either, whenever the process or the machine stops.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def lock_folder(folder: Path, name: str = "lock") -> int | None:
    """Locks a folder, which is made if it is missing. Returns the descriptor that holds the lock, or None if another one holds it (rule 1)."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def sync_folder(folder: Path | str) -> None:
    """Makes names that came or went in a folder durable (rule 2)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Writes all bytes, at an offset or at the descriptor's own position. The system call alone may write fewer."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:]) if offset is None else os.pwrite(fd, view[done:], offset + done)


def replace_file(path: Path, fill: bytes | Callable[[int], None], beside: str | None = None) -> None:
    """Puts a file in the place of the one that is there, if any (rule 3). fill: the content, or a function that writes it to a descriptor. beside: the name of
    the new file until it is whole, which must lie in the same folder."""
    hidden = path.with_name(beside or f".new-{path.name}")
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            if callable(fill):
                fill(fd)
            else:
                write_all(fd, fill)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise
    sync_folder(path.parent)
