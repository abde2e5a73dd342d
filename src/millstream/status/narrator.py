"""What a run says while it goes on, to a person who waits: a line when something has changed, at most one a second, and where the rows are at the end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

from millstream.status import view
from millstream.status.report import Status

_EVERY = 1.0


class Narrator:
    """Says lines to a stream (stderr, so that a program's own output stays its own), or nothing if it is quiet."""

    def __init__(self, pipeline: str, quiet: bool, stream: TextIO | None = None) -> None:
        self._pipeline = pipeline
        self._quiet = quiet
        self._stream = stream
        self._shown: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """One line, at once."""
        if not self._quiet:
            print(f"{self._pipeline}: {text}", file=self._stream or sys.stderr, flush=True)

    def tell(self, status: Status) -> None:
        """How the run is doing, if that is worth a line."""
        if self._quiet or status.epoch < 0:
            return
        with self._lock:
            changes, now = view.changes(status), time.monotonic()
            if changes == self._shown or now - self._at < _EVERY:
                return
            self._shown, self._at = changes, now
            print(view.line(status), file=self._stream or sys.stderr, flush=True)

    def ended(self, status: Status, stopped: bool, published: Mapping[str, tuple[str, int]]) -> None:
        """The last words: how it ended, and where the rows are."""
        if status.state != "failed":
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
