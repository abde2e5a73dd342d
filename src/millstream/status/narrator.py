"""What a run says while it goes on, to a person who waits: a line when something has changed, at most one a second, and where the rows are at the end.
Lines that do not go to a terminal begin with the time: somebody will read them later."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from millstream.status import render
from millstream.status.report import Status

_EVERY = 1.0


class Narrator:
    """Says lines to a stream (stderr, so that a program's own output stays its own), or nothing if it is quiet. drawn: somebody else draws how the run is
    doing, and how it ended."""

    def __init__(self, pipeline: str, quiet: bool, stream: TextIO | None = None, drawn: bool = False) -> None:
        self._pipeline = pipeline
        self._quiet = quiet
        self._drawn = drawn
        self._stream = stream
        self._shown: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """One line, at once."""
        self._print(f"{self._pipeline}: {text}")

    def _print(self, line: str) -> None:
        if not self._quiet:
            stream = self._stream or sys.stderr  # None in a process that was started without one
            if stream is not None:
                print(line if stream.isatty() else f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", file=stream, flush=True)

    def tell(self, look: Callable[[], Status]) -> None:
        """How the run is doing, if that is worth a line."""
        if self._quiet or self._drawn:
            return
        status = look()
        if status.epoch >= 0 or status.waits_for:
            self._tell(status, _EVERY)

    def _tell(self, status: Status, every: float) -> None:
        with self._lock:
            changes, now = render.changes(status), time.monotonic()
            if changes == self._shown or now - self._at < every:
                return
            self._shown, self._at = changes, now
            self._print(render.line(status))

    def ended(self, status: Status, stopped: bool, published: Mapping[str, tuple[str, int]]) -> None:
        """The last words of a run that has not failed: how it was doing, how it ended, and where the rows are."""
        if not self._drawn:
            self._tell(status, 0.0)
            self.say(last_words(status, stopped, published))


def last_words(status: Status, stopped: bool, published: Mapping[str, tuple[str, int]]) -> str:
    """How a run ended, and what it has put where. published: by sink, what it is and how many rows it got from this run."""
    if stopped:
        text = f"stopped after epoch {status.epoch}; the next run goes on from there"
    else:
        text = f"ended with epoch {status.epoch}" + (", drained" if status.drained else "")
    for where, rows in published.values():
        text += f"; {rows:,} row{'' if rows == 1 else 's'} in {_near(where)}" if rows else f"; no new row in {_near(where)}"
    return text


def _near(where: str) -> str:
    """A place as one would type it here."""
    here = os.getcwd() + os.sep
    return where.replace(here, "")
