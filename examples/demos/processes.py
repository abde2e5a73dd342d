"""A child process and all that it starts, to be killed as one.

Rules
1. A child leads a session of its own. What it starts stays in that session (Spark's JVM, Python workers), also where it makes process
   groups; and Ctrl-C in the terminal reaches the parent alone.
2. `kill` sends SIGKILL to every process of the session, and returns when none of them is left.
3. What a child prints goes to a file, behind what is there.
4. A child whose parent is gone kills itself and its session: its standard input is a pipe that the parent holds (`end_with_parent`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_PAUSE = 0.02


class Child:
    """A Python module in a process of its own."""

    def __init__(self, module: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        command = [sys.executable, "-m", module, *arguments]
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=sink, stderr=sink, env={**os.environ, **(env or {})}, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The process's number, which is the session's, too."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """What the process ended with (a signal as a negative number), or None while it runs."""
        return self._process.poll()

    def kill(self) -> int:
        """Kills the process and all that it started. Returns how many there were."""
        killed: set[int] = set()
        while found := members(self.pid):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            killed |= set(found)
            time.sleep(_PAUSE)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return len(killed)

    def settle(self, seconds: float) -> None:
        """Gives what a child has started some time to end after it, before it is killed: a JVM may have something to put away."""
        end = time.monotonic() + seconds
        while members(self.pid) and time.monotonic() < end:
            time.sleep(_PAUSE)

    def tail(self, lines: int = 25) -> str:
        """The last lines of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def end_with_parent() -> None:
    """In a child: kills the session when the parent is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        for pid in [*(pid for pid in members(os.getsid(0)) if pid != os.getpid()), os.getpid()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def members(session: int) -> list[int]:
    """The processes of a session that are alive."""
    return _from_proc(session) if os.path.exists("/proc/self/stat") else _from_ps(session)


def _from_proc(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _, _, own = file.read().rpartition(b")")[2].split()[:4]
            except OSError:
                continue
            if int(own) == session and state != b"Z":
                found.append(int(name))
    return found


def _from_ps(session: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    found = []
    for line in listed.splitlines():
        pid, state = line.split()[:2]
        try:
            if os.getsid(int(pid)) == session and not state.startswith("Z"):
                found.append(int(pid))
        except OSError:
            continue
    return found
