"""What tests and demos need and a machine may lack: fetched once, into the cache folder, by whoever needs it first."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"


def missing(*tools: str) -> str | None:
    """The first of some tools that is not there."""
    return next((tool for tool in tools if shutil.which(tool) is None), None)


def fetched(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this name, filled if nobody has done that yet. Tests run side by side: all wait for the one that fetches."""
    folder = cache() / name
    if not (folder / "complete").exists():
        cache().mkdir(parents=True, exist_ok=True)
        with open(cache() / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                (folder / "complete").touch()
    return folder


def run(command: Sequence[str], folder: Path, what: str) -> None:
    """Runs a command in a folder, or says how it failed."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ran.returncode:
        raise RuntimeError(f"{what}: {(ran.stdout + ran.stderr).strip()[-500:]}")
