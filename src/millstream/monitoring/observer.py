"""Who looks at a pipeline for the page and for metrics: at a run in this process, or at a checkpoint, wherever its driver is.

Rules
1. At most one look a second, however many ask; and if a look takes long, so seldom that it is a twentieth of the time. What was seen is kept, so that a
   pipeline that cannot be looked at any more shows what it was.
2. Who comes while somebody looks gets what was seen before: a store that is slow holds up one thread. A look at a run reads what is in memory. A look at a
   checkpoint reads a listing, and a manifest where there is a new one.
3. A checkpoint that is new to somebody has a past: the manifests that it keeps.
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
_PAST = 40  # manifests
_SHARE = 20


class Look(NamedTuple):
    """What somebody saw. live and epochs: of a run in this process; error: why that has ended."""

    overview: Overview
    manifest: Manifest | None
    epochs: Sequence[EpochStats] = ()
    live: Status | None = None
    error: str = ""


class Observer:
    """Looks at one pipeline, for many. Safe for threads. log: of its checkpoint, for whoever wants to see rows."""

    def __init__(self, log: ManifestLog, look: Callable[[], Look] | None = None) -> None:
        self.log = log
        self._look = look or self._look_at_checkpoint
        self.is_remote = look is None
        self._history = RecentHistory()
        self._lock = threading.Lock()
        self._looked, self._every = 0.0, EVERY
        self._last: Look | None = None
        self._data: PageData | None = None
        self._json = b""
        self.version = 0  # grows when there is something new to see

    def see(self) -> tuple[PageData, bytes]:
        """What the page shows now, as data and as JSON."""
        if self._lock.acquire(blocking=self._data is None):
            try:
                began = time.monotonic()
                if self._data is None or began - self._looked >= self._every:
                    self._refresh()
                    self._looked = time.monotonic()
                    self._every = max(EVERY, _SHARE * (self._looked - began))
            finally:
                self._lock.release()
        assert self._data is not None
        return self._data, self._json

    def overview(self) -> Look | None:
        """What was seen last."""
        self.see()
        return self._last

    def _refresh(self) -> None:
        error = ""
        try:
            found = self._look()
            if found.manifest is not None:
                self._history.add(found.manifest, found.epochs)
            self._last = found
            error = found.error
        except (MillstreamError, OSError) as failure:
            found = self._last or Look(Overview(self.log.storage.url, "", 0, None, Status("")), None)
            found = found._replace(live=None)
            error = str(failure)
        now = int(time.time() * 1000)
        data = page_data(found.overview, found.manifest, self._history, now=now, live=found.live, error=error)
        seen = msgspec.json.encode(msgspec.structs.replace(data, looked_at=0))
        before = b"" if self._data is None else msgspec.json.encode(msgspec.structs.replace(self._data, looked_at=0))
        if seen != before:
            self.version += 1
        self._data, self._json = data, msgspec.json.encode(data)

    def _look_at_checkpoint(self) -> Look:
        before = None if self._last is None else self._last.manifest
        newest = max(self.log.epochs(), default=-1)
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
