"""Who looks at a pipeline for the page and for metrics: at a run in this process, or at a checkpoint, wherever its driver is.

Rules
1. One thread looks at one pipeline, at most once a second, and only while somebody wants to see it; if a look takes long, so seldom that it is a twentieth of
   the time. Whoever asks gets what was seen last, and waits for the first look only. So a store that hangs holds up nobody but who asks for its pipeline.
2. What was seen is kept: a pipeline that cannot be looked at any more shows what it was, but counts as unreadable, and its driver not as alive.
3. A look at a run reads what is in memory. A look at a checkpoint reads a listing, and a manifest where there is a new one.
4. A checkpoint that is new to somebody has a past: the manifests that it keeps. One that is put in the place of another begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from millstream.engine.metrics import EpochStats
from millstream.errors import MillstreamError
from millstream.monitoring.history import RecentHistory
from millstream.monitoring.page_data import PageData, page_data
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.status.report import Overview, Status, overview_of

EVERY = 1.0  # seconds
FIRST = 20.0  # seconds that somebody waits for the first look
_PAST = 40  # manifests
_SHARE = 20
_WANTED = 10.0  # seconds after somebody has asked


class Look(NamedTuple):
    """What somebody saw. live and epochs: of a run in this process; error: why that has ended, or why the look has failed (failed)."""

    overview: Overview
    manifest: Manifest | None
    epochs: Sequence[EpochStats] = ()
    live: Status | None = None
    error: str = ""
    failed: bool = False


class PageView(NamedTuple):
    """What there is to see. version: grows when there is something new; data: what the page shows, and as JSON."""

    version: int
    look: Look
    data: PageData
    json: bytes


class Observer:
    """Looks at one pipeline, for many. Safe for threads. log: of its checkpoint, for whoever wants to see rows."""

    def __init__(self, log: ManifestLog, look: Callable[[], Look] | None = None) -> None:
        self.log = log
        self.is_remote = look is None
        self._look = look or self._look_at_checkpoint
        self._history = RecentHistory()
        self._view: PageView | None = None  # changed as a whole, by the thread that looks
        self._seen = b""  # what the newest version shows, but for the moment of the look
        self._begun = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._has_looked = threading.Event()

    def see(self) -> PageView:
        """What there is to see now."""
        self.ask()
        self._has_looked.wait(FIRST)
        return self._view or self._shown(self._failed(f"{self.log.storage.url} has not answered for {FIRST:.0f} s"), 0)

    def ask(self) -> None:
        """Has somebody look, and does not wait."""
        self._asked = time.monotonic()
        with self._begun:
            if self._thread is None or not self._thread.is_alive():
                if self._view is not None:  # nobody has looked for a while
                    self._has_looked.clear()
                self._thread = threading.Thread(target=self._keep_looking, name="millstream-observer", daemon=True)
                self._thread.start()

    def _keep_looking(self) -> None:
        while time.monotonic() - self._asked < _WANTED:
            began = time.monotonic()
            try:
                found = self._look()
            except Exception as error:  # whatever it is: the next look may go well
                known = isinstance(error, MillstreamError | OSError)
                found = self._failed(str(error) if known else f"{type(error).__name__}: {error}")
            view = self._shown(found, 0 if self._view is None else self._view.version)
            seen = msgspec.json.encode(msgspec.structs.replace(view.data, looked_at=0))
            self._view = view._replace(version=view.version + (seen != self._seen))
            self._seen = seen
            self._has_looked.set()
            time.sleep(max(EVERY, _SHARE * (time.monotonic() - began)))

    def _shown(self, found: Look, version: int) -> PageView:
        if found.manifest is not None and not found.failed:
            self._history.add(found.manifest, found.epochs)
        now = int(time.time() * 1000)
        data = page_data(found.overview, found.manifest, self._history, now=now, live=found.live, error=found.error)
        return PageView(version, found, data, msgspec.json.encode(data))

    def _failed(self, why: str) -> Look:
        """Rule 2."""
        known = None if self._view is None else self._view.look
        if known is None:
            return Look(Overview(self.log.storage.url, "", 0, None, Status("")), None, error=why, failed=True)
        overview = msgspec.structs.replace(known.overview, alive=False)
        return known._replace(overview=overview, live=None, error=why, failed=True)

    def _look_at_checkpoint(self) -> Look:
        known = None if self._view is None else self._view.look
        before = None if known is None else known.manifest
        newest = max(self.log.epochs(), default=-1)
        if known is not None and known.overview.id not in ("", self.log.identity().id):
            self._history, before = RecentHistory(), None  # another checkpoint is there
        manifest = before if before is not None and before.epoch == newest else self.log.latest()
        if before is None and manifest is not None:
            for older in self._past(manifest.epoch):
                self._add(before, older)
                before = older
        if manifest is not None:
            self._add(before, manifest)
        return Look(overview_of(self.log, manifest), manifest)

    def _past(self, newest: int) -> list[Manifest]:
        epochs = [epoch for epoch in self.log.epochs() if epoch < newest]
        found = []
        for epoch in epochs[-_PAST:]:
            try:
                found.append(self.log.read(epoch))
            except (MillstreamError, OSError):
                continue  # collected meanwhile
        return found

    def _add(self, before: Manifest | None, after: Manifest) -> None:
        if before is not None and after.epoch > before.epoch:
            self._history.add_between(before, after)
        self._history.add(after)
