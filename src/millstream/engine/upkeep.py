"""When is garbage collected? What no manifest names is removed beside the epochs in a real run, and between them where time is simulated.

Rule: in a real run this goes by time, not by the count of epochs, of which there may be tens a second; and it runs in a thread, one collection at a time. Sinks
are used by the thread of the epochs only.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from millstream.engine.contracts import Compaction
from millstream.engine.publishing import Publishing
from millstream.state import gc
from millstream.state.manifest import Manifest

COLLECT_EVERY = 20  # epochs, where collection is done between them
UPKEEP_EVERY = 2.0  # seconds, where it is done beside them

_log = logging.getLogger("millstream.upkeep")


def _compacted_meanwhile(compaction: Compaction) -> tuple[set[str], int | None]:
    """What a collection has to know of compactions that its manifest does not name. Asked between two commits: later, one may already be in a manifest that
    the collection does not look at."""
    since = compaction.since()  # asked before what is done: a compaction that ends in between is then in one of the two
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
