"""What follows from a manifest: sinks are told, and what no manifest names is removed. Driver.

Rules
1. A sink is prepared before the manifest, and commits after it, epoch after epoch in their order. Both may be repeated with the same parts.
2. Nothing here decides: whatever is done follows from a manifest, so it can be done again, or elsewhere than in the path of the epochs.
3. Garbage is collected between epochs where time is simulated. In a real run it goes by time, not by the count of epochs, of which there may be tens a
   second; and it runs in a thread, one collection at a time. Sinks are used by the thread of the epochs only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.engine.compaction_orders import Compaction
from millstream.engine.program import Program
from millstream.sinks.base import DriverContext
from millstream.state import gc
from millstream.state.manifest import Manifest, Part
from millstream.state.manifest_log import KEEP, ManifestLog

COLLECT_EVERY = 20  # epochs, where collection is done between them
UPKEEP_EVERY = 2.0  # seconds, where it is done beside them

_log = logging.getLogger("millstream.upkeep")


class Published(msgspec.Struct):
    """What one sink got from this run. What may have been there before a crash is not counted again."""

    place: str
    rows: int = 0
    parts: int = 0
    epochs: int = 0
    millis: float = 0.0
    epoch: int = -1  # the last that is published


@dataclass(eq=False)
class Publishing:
    """The sinks of one run."""

    program: Program
    log: ManifestLog
    token: str
    session: Callable[[], Any]
    point: Callable[[str, int], None]

    def __post_init__(self) -> None:
        self._sinks = {emission.name: emission.sink for emission in self.program.topology.emissions}
        self.published = {name: Published(sink.place()) for name, sink in self._sinks.items()}

    def prepare(self, manifest: Manifest) -> None:
        """Before the manifest: the last moment at which a sink can say no."""
        for name, sink in self._sinks.items():
            if parts := manifest.sinks.get(name):
                sink.prepare(self._context(name), manifest.epoch, parts)

    def publish(self, manifest: Manifest, redo: bool, instead: Mapping[str, Sequence[Part]]) -> None:
        """After it. redo: it may have been done before. instead: what this run staged for an epoch that an outgoing run has committed before it."""
        for at, (name, parts) in enumerate(manifest.sinks.items()):
            if at:
                self.point("epoch.7-publishing", manifest.epoch)
            if name in self._sinks:
                began = time.perf_counter()
                self._sinks[name].commit(self._context(name, redo, instead.get(name, ())), manifest.epoch, parts)
                if not redo:
                    count = self.published[name]
                    count.rows += sum(part.rows for part in parts)
                    count.parts += len(parts)
                    count.epochs += 1
                    count.millis += (time.perf_counter() - began) * 1000
        for name, published in self.published.items():
            if name not in manifest.waiting:
                published.epoch = manifest.epoch
        self.point("epoch.7-published", manifest.epoch)

    def sweep(self, manifest: Manifest) -> None:
        for name, sink in self._sinks.items():
            waiting = manifest.waiting[name].parts if name in manifest.waiting else ()
            keep = [part.staged for part in (*manifest.sinks.get(name, ()), *waiting) if part.staged is not None]
            sink.sweep(self._context(name), manifest.epoch - KEEP, keep)

    def _context(self, emission: str, redo: bool = False, instead: Sequence[Part] = ()) -> DriverContext:
        return DriverContext(
            checkpoint=self.log.storage,
            pipeline=self.program.name,
            emission=emission,
            spark=self.session(),
            redo=redo,
            token=self.token,
            instead=list(instead),
        )


def _compacted_meanwhile(compaction: Compaction) -> tuple[set[str], int | None]:
    """What a collection has to know of compactions that its manifest does not name. Asked between two commits: later, one may already be in a manifest that
    the collection does not look at. What is under way is asked first: a compaction that ends in between is then in one of the two."""
    since = compaction.since()
    return compaction.in_flight(), since


class Upkeep:
    """Collects between epochs, every so many of them."""

    def __init__(self, every: int | None = None) -> None:
        self._every = every

    def is_due(self, epoch: int) -> bool:
        """Whether this epoch is followed by a collection. Asked once per epoch."""
        return epoch % (self._every or COLLECT_EVERY) == 0

    def collect(self, manifest: Manifest, publishing: Publishing, compaction: Compaction) -> None:
        gc.collect(publishing.log, manifest, *_compacted_meanwhile(compaction))
        publishing.sweep(manifest)

    def close(self) -> None:
        """At the end of a run."""


class BackgroundUpkeep(Upkeep):
    """Collects beside the epochs, every few seconds. failure: why the last collection failed, if it did; the epochs go on."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0
        self._thread: threading.Thread | None = None
        self.failure = ""

    def is_due(self, epoch: int) -> bool:
        if time.monotonic() - self._last < UPKEEP_EVERY:
            return False
        self._last = time.monotonic()
        return True

    def collect(self, manifest: Manifest, publishing: Publishing, compaction: Compaction) -> None:
        publishing.sweep(manifest)
        if self._thread is None or not self._thread.is_alive():
            args = (publishing.log, manifest, *_compacted_meanwhile(compaction))
            self._thread = threading.Thread(target=self._collect, args=args, name="millstream-collection", daemon=True)
            self._thread.start()

    def _collect(self, *args: Any) -> None:
        try:
            gc.collect(*args)
        except Exception as error:  # what is left over is collected the next time
            if str(error) != self.failure:
                _log.warning("what no manifest needs could not be removed, and is left for the next time: %s", error)
            self.failure = str(error)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(10)
