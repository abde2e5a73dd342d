"""What `millstream sink` says while it runs: who comes, who goes, what is committed.

Rules
1. One line for each who comes, goes or is refused; commits are gathered to at most one line a second.
2. Nobody waits for whoever reads the lines: sessions leave their words here, and the command's own thread prints them.
3. In a crowd not every one has a line: beyond `_LINES` at a time they are counted.
4. Names and reasons come from peers, so they are written as Python writes them: nothing in them reaches the terminal as a command.
"""

from __future__ import annotations

import threading
import time

_LINES = 20
_EVERY = 1.0
_NAMED = 3


class _Commits:
    def __init__(self) -> None:
        self.count = self.size = 0
        self.workers: dict[str, None] = {}

    def __str__(self) -> str:
        names = [*map(repr, list(self.workers)[:_NAMED])]
        if len(self.workers) > _NAMED:
            names.append(f"{len(self.workers) - _NAMED} more")
        return f"committed {self.size:,} bytes in {self.count:,} transaction{'s' if self.count > 1 else ''} of {', '.join(names)}"


class SinkConsole:
    """Whom a sink server tells what happens, from its threads. `take` gives the lines that are due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything below
        self._items: list[str | _Commits] = []
        self._commits: _Commits | None = None  # in `_items`
        self._uncounted = 0
        self._told = 0.0

    def say(self, text: str) -> None:
        with self._lock:
            if len(self._items) < _LINES:
                self._items.append(text)
            else:
                self._uncounted += 1

    def committed(self, worker: str, size: int) -> None:
        with self._lock:
            if self._commits is None:
                self._commits = _Commits()
                self._items.append(self._commits)
            self._commits.count += 1
            self._commits.size += size
            self._commits.workers[worker] = None

    def take(self, *, last: bool = False) -> list[str]:
        """The lines that are due, once; with `last` all that are left."""
        with self._lock:
            now = time.monotonic()
            early = not last and now - self._told < _EVERY
            kept: list[str | _Commits] = [item for item in self._items if early and item is self._commits]
            lines = [str(item) for item in self._items if item not in kept]
            if self._commits is not None and not kept:
                self._commits, self._told = None, now
            if self._uncounted:
                lines.append(f"{self._uncounted:,} more have connected, disconnected or were refused")
            self._items, self._uncounted = kept, 0
        return lines
