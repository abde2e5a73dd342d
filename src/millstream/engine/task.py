"""One task: what one shard of one group of computations does in one epoch. Written once; Spark and the simulation bring inputs and caches.

In steps 3 and 4 of an epoch, in this order:

    a. What came through the shuffle is joined by the productions that were stored for this shard in the epoch before.
    b. Records that no hook can be called with (no key, no time, a row that does not fit) are set aside.
    c. Every computation's state is opened as the last manifest has it.
    d. Ids of injected records are checked; a repeated one is dropped. What they change in the store belongs to the computation's delta.
    e. What is left is put into canonical order.
    f. The step runs, computation by computation, handing productions on inside the group.
    g. Productions that leave the task get their targets: a later level of this epoch, or the log.
    h. Everything is staged under names of this attempt, invisible until a manifest names it.
    i. A failure that retrying cannot fix (a hook that raises, a full disk) becomes a receipt; anything unexpected is raised, and the task is tried again.

Rule: a shard that nothing came to, and of which nothing is due, is idle: it says what the manifest before it says, and its state is not looked at. Its cache
follows all the same when an epoch has changed the shard: later a compaction may have taken the segment away, and the cache would be loaded anew.

A task gives back two values: its receipt for the driver, and rows for later levels. It reads the order and changes nothing in it, so one order serves
every task of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from millstream.core import dedup
from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.dedup import DedupCounts, IdRows, SpanFilters
from millstream.core.keyspace import NoEntries, OpenStore
from millstream.core.outcome import Counts, Outcome
from millstream.core.topology import Group, Route, Topology
from millstream.core.watermark import Seen
from millstream.engine.program import Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.routing import SentRows, route
from millstream.engine.staging import Unit, read_slice, stage
from millstream.errors import MillstreamError, travelling_name
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage


class Inputs(Protocol):
    """What came to one task through the shuffle. The task calls each method once (`ids` and `arrivals`: per computation), in this order."""

    def consumed(self) -> list[int]:
        """The units whose productions are here, ascending."""

    def take(self, stored: Iterable[tuple[Route, Any]]) -> None:
        """Adds stored productions (Arrow tables of key, ts, id, body), and sets aside what no hook can be called with."""

    def is_empty(self) -> bool:
        """Whether nothing came, nor was stored (after `take`)."""

    def seen(self, newest: Mapping[str, int | None]) -> dict[str, Seen]:
        """What watermark policies want to know of the injected records, by stream. newest: the newest timestamp before this epoch, by stream."""

    def ids(self, computation: str, stream: str) -> IdRows | None:
        """The records of one injected stream for one computation, as deduplication sees them; None if there are none."""

    def arrivals(self, computation: str, keep: Mapping[str, Any]) -> Arrivals | OperatorInput:
        """All records of a computation in canonical order; for an operator that takes columns, as they came. keep: for a stream with
        duplicates, a mask over its `ids`."""


class Cache(Protocol):
    """What a worker process keeps between tasks. Losing it costs time and nothing else."""

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> OpenStore:
        """The entries of a shard as a manifest has them."""

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        """The filters in front of the ids held."""


class Result(NamedTuple):
    """What a task gives back. sent: rows for later levels of this epoch, by level."""

    receipt: Receipt
    sent: dict[int, SentRows]


class _Checked(NamedTuple):
    """What deduplication says of one computation's records."""

    keep: dict[str, Any]
    delta: dict[bytes, bytes | None]
    counts: DedupCounts


def newest_before(before: Manifest | None, topology: Topology) -> dict[str, int | None]:
    """The newest timestamp of each injected stream before an epoch."""
    known = before.injectors if before is not None else {}
    return {name: known[name].newest if name in known else None for name in topology.injectors}


@dataclass
class Task:
    """One attempt at one shard of one group. unit: where it stages, if other tasks of its process stage there too."""

    compiled: Compiled
    order: EpochOrder
    group: Group
    shard: int
    shards: int
    storage: Storage
    cache: Cache
    point: Callable[[str], None]
    unit: Unit | None = None

    def run(self, inputs: Inputs) -> Result:
        """a to i."""
        receipt = Receipt(self.group.level, self.group.index, self.shard)
        try:
            outcomes = self._outcomes(inputs, receipt)
            began = perf_counter()
            out = route(self.compiled, outcomes.values(), self.shards, set(self.order.stored))  # g
            stage(self, receipt, outcomes, out)  # h
            receipt.staging = (perf_counter() - began) * 1000
        except MillstreamError as error:
            failed = Receipt(self.group.level, self.group.index, self.shard, failure=travelling_name(error), message=str(error))  # i
            return Result(failed, {})
        return Result(receipt, out.sent)

    def _outcomes(self, inputs: Inputs, receipt: Receipt) -> dict[str, Outcome]:
        receipt.consumed = inputs.consumed()
        inputs.take(self._stored())  # a, b
        self.point("task.3-shuffled")
        if inputs.is_empty() and (idle := self._idle()) is not None:
            return idle
        views: dict[str, OpenStore] = {}
        try:
            for name in self.group.computations:
                views[name] = self._view(name)  # c
            receipt.seen = inputs.seen(newest_before(self.order.before, self.compiled.topology))
            checked = {name: self._deduplicated(name, inputs, view) for name, view in views.items()}  # d
            arrivals = {name: inputs.arrivals(name, one.keep) for name, one in checked.items()}  # e
            outcomes = self.compiled.run_group(self.group, arrivals, views, self.order.times, self.order.guards)  # f
            receipt.state_caches = {name: one for name, view in views.items() if (one := view.stats()) is not None}
        finally:
            for view in views.values():
                view.close()
        for name, one in checked.items():
            outcomes[name].delta.update(one.delta)
            outcomes[name].dedup = one.counts
        return outcomes

    def _idle(self) -> dict[str, Outcome] | None:
        """The outcomes of a shard that nothing came to, if nothing of it is due."""
        before, injectors = self.order.before, self.compiled.topology.injectors
        if before is None:
            return None
        found = {}
        for name in self.group.computations:
            known, times = before.computations.get(name), self.order.times[name]
            if known is None or times.scans or times.builds:
                return None
            state = known.shards[self.shard]
            moments = ((state.next_low, times.low_watermark), (state.next_wall, times.now))
            if self.order.guards.due and any(at is not None and at <= until for at, until in moments):
                return None
            for one in self.compiled.topology.by_name[name].inputs:
                holds_ids = one.stream in injectors and injectors[one.stream].dedup is not None and self.order.guards.dedup
                if holds_ids and self.cache.filters(known.lineage, self.shard, one.stream).may_be_over(self.order.token, times.now):
                    return None
            if state.segments and state.segments[-1].last == before.epoch:
                self._view(name).close()
            counts = Counts(next_low=state.next_low, next_wall=state.next_wall, held=state.held, holder=state.holder)
            found[name] = Outcome({}, [], counts)
        return found

    def _stored(self) -> Iterable[tuple[Route, Any]]:
        """The productions that were stored for this shard, by the way they take."""
        before = self.order.before
        for stored_ref in before.pending if before is not None else ():
            if stored_ref.computation not in self.group.computations:
                continue
            rows = read_slice(self.storage, stored_ref, self.shard)
            if rows is None:
                continue
            if not self.order.guards.journal:
                del stored_ref.slices[self.shard]  # "delivered": gone with the first attempt
            yield next(r for r in self.compiled.routes_of[stored_ref.stream] if r.computation == stored_ref.computation), rows

    def _known(self, computation: str) -> ComputationState | None:
        return self.order.before.computations.get(computation) if self.order.before is not None else None

    def _view(self, computation: str) -> OpenStore:
        known, before = self._known(computation), self.order.before
        if known is None or before is None:
            return NoEntries()
        return self.cache.view(known.lineage, self.shard, known.shards[self.shard].segments, before)

    def _deduplicated(self, computation: str, inputs: Inputs, view: OpenStore) -> _Checked:
        checked = _Checked({}, {}, DedupCounts())
        if not self.order.guards.dedup:
            return checked
        known = self._known(computation)
        topology = self.compiled.topology
        for stream in (i.stream for i in topology.by_name[computation].inputs if i.stream in topology.injectors):
            rule = topology.injectors[stream].dedup
            if rule is None:
                continue
            rows = inputs.ids(computation, stream)
            filters = self.cache.filters(known.lineage if known is not None else "", self.shard, stream)
            keep, delta, counts = dedup.check(
                rule, stream, view, filters, rows, self.order.times[computation].now, self.order.epoch, self.order.token
            )
            checked.delta.update(delta)
            checked.counts.add(counts)
            if counts.dropped:
                checked.keep[stream] = keep
        return checked
