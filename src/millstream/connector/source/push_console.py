"""Signs of life of `millstream push`: what it waits for, on stderr.

Rules
1. A wait is told when it has lasted for about a second, and again every ten seconds. While lines flow, it is no wait that they are not committed yet.
2. The end of a wait for the server is told too. A wait for more lines is told once, and not more often than every ten seconds.
3. A thread of its own looks and prints, so that the lines come whatever the command waits in.
"""

from __future__ import annotations

import sys
import threading
import time

import msgspec

from millstream.connector.source.push import PushClient, Waiting

FIRST, AGAIN = 1.0, 10.0
_LOOK_EVERY = 0.2


class WaitMessages:
    """Decides what to say. `look` is given what is waited for, and returns a line when one is due."""

    def __init__(self) -> None:
        self._told = 0.0  # how long the present wait had lasted when it was told last; 0: not told
        self._away: str | None = None  # the server that was told to be away
        self._input_at: float | None = None

    def look(self, found: Waiting | None) -> str | None:
        if found is None or found.seconds < self._told:
            self._told = 0.0
        if self._away is not None and (found is None or not found.is_away):
            address, self._away = self._away, None
            return f"{address} answers"
        if found is None or found.seconds < (self._told + AGAIN if self._told else FIRST):
            return None
        self._told = found.seconds
        self._away = found.address if found.is_away else None
        return f"waiting for {found.what} ({found.seconds:.0f} s)"

    def look_at_input(self, name: str, count: int, seconds: float, now: float) -> str | None:
        """What it comes to that everything is committed and no line has come for so long."""
        since = now - seconds
        if seconds < FIRST or (self._input_at is not None and (since <= self._input_at or now - self._input_at < AGAIN)):
            return None
        self._input_at = now
        return f"{count:,} records are committed; waiting for more lines of {name}"


class ProgressPrinter:
    """Counts the lines that are read, and prints the signs in a thread while it is entered."""

    def __init__(self, client: PushClient, name: str) -> None:
        self._client, self._name = client, name
        self.count, self._at = 0, time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-push-signs", daemon=True)

    def line(self) -> None:
        self.count += 1
        self._at = time.monotonic()

    def __enter__(self) -> ProgressPrinter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        signs = WaitMessages()
        while not self._stopping.wait(_LOOK_EVERY):
            found, now = self._client.waiting(), time.monotonic()
            if found is not None and not found.is_away:
                found = msgspec.structs.replace(found, seconds=min(found.seconds, now - self._at))
            line = signs.look(found)
            if line is None and found is None:
                line = signs.look_at_input(self._name, self.count, now - self._at, now)
            if line is not None:
                print(f"push: {line}", file=sys.stderr, flush=True)
