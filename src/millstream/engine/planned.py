"""Epochs of planned sources, whatever runs their tasks: what an epoch reads is decided here, and sources are told what is safe.

Rule: everything that costs time and is not part of the commit (collection, leftovers of replaced runs) is done by time, not by the count of epochs: there
may be tens of them a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import msgspec

from millstream.engine.epochs import Epochs
from millstream.engine.plan import Reading
from millstream.engine.receipts import EpochOrder
from millstream.engine.source_planner import Sources
from millstream.sources.splits import SplitPlan
from millstream.state.manifest import Manifest

_log = logging.getLogger("millstream.planned")

UPKEEP_EVERY = 2.0  # seconds


class PlannedEpochs(Epochs):
    """Epochs whose sources are all planned by Millstream. `sources` is set before the first of them."""

    is_planned = True
    sources: Sources
    _under_way: Reading | None = None
    _upkeep_at = 0.0
    _collecting: threading.Thread | None = None
    _tried = (-1, 0)  # epoch, and tries of it

    def run_planned(self, takes: Mapping[str, SplitPlan], ranges: Reading, planning: float) -> None:
        """The next epoch. takes: what it reads, by injector; planning: when it began to be planned."""
        self._under_way = ranges
        self.noted("plan", planning)
        try:
            super().run_reading(takes, ranges)
        finally:
            self._under_way = None

    def next_try(self, order: EpochOrder) -> EpochOrder:
        """An order to resident tasks, with the number of tries of its epoch so far."""
        self._tried = (order.epoch, self._tried[1] + 1 if self._tried[0] == order.epoch else 0)
        return msgspec.structs.replace(order, tries=self._tried[1])

    def read_files(self, injector: str) -> tuple[dict[str, int], set[str]]:
        reader = self.sources.readers[injector]
        return dict(reader.files()), reader.files_read()

    def took_over(self, manifest: Manifest) -> None:
        self.sources.renew(manifest)

    def acknowledge(self, number: int) -> None:
        latest = self.latest
        if self._under_way is not None and self._under_way.batch == number and (latest is None or latest.batch != number):
            assert self._under_way.positions is not None
            self.sources.committed(self._under_way.positions)  # before the commit: only where a guard is off
        elif latest is not None:
            self.sources.committed(latest.sources)

    def is_upkeep_due(self, epoch: int) -> bool:
        if time.monotonic() - self._upkeep_at < UPKEEP_EVERY:
            return False
        self._upkeep_at = time.monotonic()
        return True

    def collect(self, manifest: Manifest) -> None:
        """Beside the epochs: the log is collected in a thread, one at a time. Sinks are used by one thread only, this one."""
        self.publishing.sweep(manifest)
        if self._collecting is None or not self._collecting.is_alive():
            meanwhile = self.publishing.folded_meanwhile(self.folds)
            self._collecting = threading.Thread(
                target=self._collect, args=(manifest, *meanwhile), name="millstream-collection", daemon=True
            )
            self._collecting.start()

    def _collect(self, manifest: Manifest, since: int | None, in_flight: set[str]) -> None:
        try:
            self.publishing.collect_log(manifest, since, in_flight)
        except Exception as error:  # what is left over is collected the next time
            self.collection_failed(error)

    def collection_failed(self, error: BaseException) -> None:
        """A collection beside the epochs has failed; the epochs go on."""
        if str(error) != self.leftovers:
            _log.warning("what no manifest needs could not be removed, and is left for the next time: %s", error)
        self.leftovers = str(error)

    leftovers: str = ""

    def close(self) -> None:
        """Ends what runs on the driver for sources."""
        if self._collecting is not None:
            self._collecting.join(10)
        self.sources.close()
        for injector in self.topology.injectors.values():
            injector.source.close()
