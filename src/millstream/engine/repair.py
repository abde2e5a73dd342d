"""One epoch outside the query, in which groups of views and joins are made what they should be. The driver runs the tasks itself, without Spark.

Rules
1. The epoch is an ordinary one in all but its input: the seven steps, one manifest. Views on views hear of it, and sinks get what was shown and what is.
2. What mends says all that a group should hold, worked out from the rows of its senders as the manifest before has them. A sender that is mended in the
   same epoch tells the difference to those very rows. So everybody is right after one epoch, whatever is wrong on the way: by the same induction by which
   an ordinary epoch keeps views right. For that, a message that mends comes before all others of its group.
3. A row that cannot be decoded is taken for an empty one; what it showed is not known, and so not told.
4. Nothing is read but the log: no state cache is touched.
5. Event time is what the mended computations have come to, or the clock where there is none: at the beginning, and behind the end of a drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.arrivals import Arrivals
from millstream.core.dedup import IdRows, NoIds, SpanFilters
from millstream.core.keys import shard_of
from millstream.core.keyspace import ROW, OpenStore, Row, decode_row, encode_row
from millstream.core.time import BEGINNING, END
from millstream.core.topology import Route
from millstream.core.watermark import Seen
from millstream.engine.epochs import Epochs
from millstream.engine.evolution import reconciled
from millstream.engine.plan import Plan
from millstream.engine.program import Arrival, Compiled, Program
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.task import Task
from millstream.errors import CheckpointError
from millstream.state.blocks import Chain, Segments
from millstream.state.heartbeat import RunMode
from millstream.state.manifest import Manifest, SourcePosition
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import SegmentRef
from millstream.state.storage import Storage

Mending = tuple[str, str, bytes]  # the computation, the text of the group, and the message


def mended(program: Program, log: ManifestLog, epoch: int, mends: Sequence[Mending], spark: Any = None) -> Manifest:
    """Takes the checkpoint over, and mends. epoch: the one that the messages were worked out from; if another has been committed since, nothing is done.
    spark: for sinks that need a session. They are ready for use."""
    shards = log.identity().shards
    before = log.latest()
    if before is not None:
        _unchanged(before, program)  # before anybody is sent away
    token = log.runs.claim(before.token if before is not None else None)
    before = log.latest()  # a run that ends may have committed one more before it found the claim
    if before is None or before.epoch != epoch:
        raise CheckpointError(
            f"{log.storage.url}: an epoch was committed since {epoch}, which was checked. Check again when the pipeline does not run."
        )
    runner = RepairRunner(program, shards, log.storage, mends)
    epochs: Epochs[None] = Epochs(
        program,
        shards,
        log,
        _unchanged(before, program),
        token,
        runner=runner,
        planner=_NoSources(),
        session=lambda: spark,
        adjust=_with_times,
    )
    epochs.publish_again()  # sinks get epochs in their order
    epochs.run_outside(drain=False)
    assert epochs.latest is not None
    return epochs.latest


def _unchanged(before: Manifest, program: Program) -> Manifest:
    """The manifest as this program goes on from it: it must be the one that has written it, because a repair is no occasion to drop state or to begin a
    fill."""
    found = reconciled(before, program)
    names = {spec.name for spec in program.topology.computations}
    changed = sorted(names ^ set(found.computations)) or sorted(
        name for name, build in found.builds.items() if name in before.builds and build.generation != before.builds[name].generation
    )
    if changed:
        raise CheckpointError(
            f"the pipeline is not the one that has last run: {', '.join(changed)} is new, gone or changed. Mend with the file that wrote the checkpoint, or "
            f"run the new one first."
        )
    return found


def _with_times(planned: Plan) -> Plan:
    """Rule 5: nothing could be said behind the end of time."""
    times = {
        name: msgspec.structs.replace(one, least=BEGINNING, promised=BEGINNING) if one.least == END else one
        for name, one in planned.times.items()
    }
    return msgspec.structs.replace(planned, due=True, times=times)


class RepairRunner:
    """Runs the tasks of one epoch whose only input are messages that mend."""

    def __init__(self, program: Program, shards: int, storage: Storage, mends: Sequence[Mending]) -> None:
        self._compiled = Compiled(program)
        self.topology = program.topology
        self.shards = shards
        self.storage = storage
        self._mends: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
        for computation, text, body in mends:
            self._mends.setdefault((computation, shard_of(text.encode(), shards)), []).append((text, body))

    def status(self) -> RunMode:
        """It is not asked for."""
        return RunMode()

    def close(self) -> None:
        """Nothing is open."""

    def run(self, input: None, order: EpochOrder) -> list[Receipt]:
        receipts: list[Receipt] = []
        handed: dict[tuple[str, int], list[tuple[int, Arrival]]] = {}
        cache = _LogCache(self.storage, self._overlays(order))
        for groups in self.topology.levels:
            for group in groups:
                for shard in range(self.shards):
                    inputs = _MendingInputs(
                        self._compiled,
                        {name: self._arrivals(name, shard, order) for name in group.computations},
                        {name: handed.get((name, shard), []) for name in group.computations},
                    )
                    task = Task(
                        self._compiled, order, group, shard, shards=self.shards, storage=self.storage, cache=cache, point=lambda name: None
                    )
                    receipt, sent = task.run(inputs)
                    receipts.append(receipt)
                    for row in (row for rows in sent.values() for row in rows.rows()):
                        route = self.topology.routes[row.route]
                        arrival = self._compiled.arrival(route.stream, row.key, row.time, row.id, row.body)
                        handed.setdefault((route.computation, row.shard), []).append((receipt.unit, arrival))
        return receipts

    def _arrivals(self, computation: str, shard: int, order: EpochOrder) -> list[Arrival]:
        """The messages for a shard. They come first (rule 2): whoever hears of one speaks no earlier, and no id is less than an empty one."""
        mends = self._mends.get((computation, shard), ())
        stream = self.topology.by_name[computation].inputs[0].stream
        return [self._compiled.arrival(stream, text, self._time(order), "", self._compiled.encode_value(body)) for text, body in mends]

    def _time(self, order: EpochOrder) -> int:
        """Rule 5: one for all."""
        lows = [order.times[computation].low_watermark for computation, _ in self._mends]
        return max((low for low in lows if BEGINNING < low < END), default=order.now)

    def _overlays(self, order: EpochOrder) -> dict[tuple[str, int], dict[bytes, bytes]]:
        """Rule 3, by lineage and shard."""
        assert order.before is not None
        found: dict[tuple[str, int], dict[bytes, bytes]] = {}
        segments = Segments(self.storage)
        for (computation, shard), mends in self._mends.items():
            state = order.before.computations[computation]
            kind = self._compiled.make(computation)[1]
            chain = Chain(segments, state.shards[shard].segments)
            for text, _ in mends:
                raw = chain.get(ROW + text.encode())
                try:
                    if raw is not None:
                        kind.decode(decode_row(raw).state)
                except Exception:
                    found.setdefault((state.lineage, shard), {})[ROW + text.encode()] = encode_row(Row(kind.empty))
        return found


class _LogStore(Chain):
    """The entries of a shard, from the log; a few of them as an overlay says."""

    def __init__(self, segments: Segments, chain: Sequence[SegmentRef], overlay: Mapping[bytes, bytes]) -> None:
        super().__init__(segments, chain)
        self._overlay = overlay

    def get(self, key: bytes) -> bytes | None:
        found = self._overlay.get(key)
        return found if found is not None else super().get(key)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _ in self.scan(start, stop))

    def stats(self) -> None:
        """Nothing to say."""


class _LogCache:
    """Implements the task's Cache without keeping anything."""

    def __init__(self, storage: Any, overlays: Mapping[tuple[str, int], Mapping[bytes, bytes]]) -> None:
        self._segments = Segments(storage)
        self._overlays = overlays

    def view(self, lineage: str, shard: int, chain: Sequence[SegmentRef], before: Manifest) -> OpenStore:
        return _LogStore(self._segments, chain, self._overlays.get((lineage, shard), {}))

    def filters(self, lineage: str, shard: int, stream: str) -> SpanFilters:
        return SpanFilters()


class _MendingInputs:
    """The records of one task: what mends, what other tasks handed over, and what was stored. Implements the task's Inputs."""

    def __init__(self, compiled: Compiled, mends: Mapping[str, list[Arrival]], handed: Mapping[str, Sequence[tuple[int, Arrival]]]) -> None:
        self._compiled = compiled
        self._units = sorted({unit for some in handed.values() for unit, _ in some})
        self._rows = {name: [*mends[name], *(arrival for _, arrival in some)] for name, some in handed.items()}

    def consumed(self) -> list[int]:
        return self._units

    def take(self, stored: Iterable[tuple[Route, Any]]) -> None:
        for route, table in stored:
            columns = [table.column(name).to_pylist() for name in ("key", "ts", "id", "body")]
            self._rows[route.computation] += [self._compiled.arrival(route.stream, *row) for row in zip(*columns, strict=True)]

    def seen(self, newest: Mapping[str, int | None]) -> dict[str, Seen]:
        return {}

    def ids(self, computation: str, stream: str) -> IdRows:
        return NoIds()

    def arrivals(self, computation: str, keep: Mapping[str, Any]) -> Arrivals:
        return Arrivals.of(self._rows[computation])


class _NoSources:
    """Implements Planner: nothing is read. Sources are told by the next run of the pipeline."""

    is_ours = True

    def files(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        return {}, set()

    def acknowledge(self, batch: int, positions: Mapping[str, SourcePosition]) -> None:
        """Not here."""

    def took_over(self, manifest: Manifest) -> None:
        """Not here."""

    def close(self) -> None:
        """Nothing is open."""
