"""What `millstream sink` says while it runs: who comes, who goes, what is committed.

Rules
1. One line for each who comes, goes or is refused, up to `_LINES` at a time; the others are counted. Commits are gathered to one line a second at most.
2. Nobody waits for whoever reads the lines: sessions leave their words here, and the command's own thread prints them.
3. Names and reasons come from peers, so they are written as Python writes them: nothing in them reaches the terminal as a command.
"""

from __future__ import annotations

import threading
import time

_LINES = 20
_EVERY = 1.0
_NAMED = 3  # workers
_COUNTED = 1_000


class SinkConsole:
    """Whom a sink server tells what happens, from its threads. `take` gives the lines that are due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything below
        self._lines: list[str] = []
        self._uncounted = self._count = self._size = 0
        self._workers: dict[str, None] = {}
        self._told = 0.0

    def say(self, text: str) -> None:
        with self._lock:
            if len(self._lines) < _LINES:
                self._lines.append(text)
            else:
                self._uncounted += 1

    def committed(self, worker: str, size: int) -> None:
        with self._lock:
            self._count += 1
            self._size += size
            if len(self._workers) < _COUNTED:  # a server whose lines nobody takes must not grow
                self._workers[worker] = None

    def take(self, *, last: bool = False) -> list[str]:
        """The lines that are due, once; with `last` all that are left."""
        with self._lock:
            now, lines = time.monotonic(), self._lines
            if self._uncounted:
                lines.append(f"{self._uncounted:,} more have connected, disconnected or were refused")
            if self._count and (last or now - self._told >= _EVERY):
                names = [*map(repr, [*self._workers][:_NAMED])]
                if len(self._workers) > _NAMED:
                    names.append(f"{len(self._workers) - _NAMED} more")
                many = "s" if self._count > 1 else ""
                lines.append(f"committed {self._size:,} bytes in {self._count:,} transaction{many} of {', '.join(names)}")
                self._count, self._size, self._workers, self._told = 0, 0, {}, now
            self._lines, self._uncounted = [], 0
        return lines
