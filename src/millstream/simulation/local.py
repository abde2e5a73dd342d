"""The local engine: the same pipelines in one process, without Spark, on a hand-moved clock. The oracle of the tests.

It runs the very step of the Spark engine, epoch by epoch, and commits by replacing one dictionary. What it does not model: shuffles,
attempts, files. Keys and timestamps of injected streams must be column names (a Spark Column needs Spark).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core import step
from millstream.core.arrivals import Arrivals
from millstream.core.authority import Edge, Standing
from millstream.core.backfill import begun, builds_after, scanned_by
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_bytes, key_of, shard_of
from millstream.core.keyspace import ROW, after, decode_row
from millstream.core.outcome import Counts, Outcome
from millstream.core.record import Timer
from millstream.core.statekind import StateKind
from millstream.core.time import BEGINNING, END
from millstream.core.topology import INTERVAL_JOIN, Topology
from millstream.core.watermark import Progress, Said, Seen
from millstream.engine.evolution import reconciled
from millstream.engine.hints import Hints
from millstream.engine.next_manifest import injectors_after
from millstream.engine.plan import Plan, Position, declared, plan
from millstream.engine.program import Arrival, Compiled, Program
from millstream.engine.routing import route
from millstream.errors import DefinitionError
from millstream.simulation.list_inputs import Injected
from millstream.state.manifest import ComputationState, Manifest, ProductionsRef, ShardState
from millstream.state.memory_storage import MemoryStore
from millstream.state.queries import bound, timers_of


class Emitted(msgspec.Struct, frozen=True):
    """A record as a stream carried it."""

    key: Any
    value: Any
    timestamp: int
    id: str


Stored = tuple[str, str, int, Arrival]  # stream, consumer, its shard, the record


class SimulatedCrash(Exception):
    """Raised by an epoch that was asked to crash. Nothing of it was committed."""


class LocalEngine:
    """A pipeline in memory."""

    def __init__(self, program: Program, shards: int = 2, guards: Guards = ALL_GUARDS) -> None:
        self.program = program
        self.topology: Topology = program.topology
        self.compiled = Compiled(program, all_ids=True)
        self.shards = shards
        self.guards = guards
        self.epoch = -1
        self.now = 0
        self.pending: list[tuple[str, dict[str, Any]]] = []
        self.stored: list[Stored] = []  # productions of the last epoch that wait for the next one
        self.storing: set[Edge] = set()  # adaptive edges that store; nothing is ever slow here
        self.drained = False
        self.progress = {name: Progress() for name in self.topology.injectors}
        self.standings: dict[str, Standing] = {spec.name: Standing() for spec in self.topology.computations}
        self.stores = {(spec.name, shard): MemoryStore() for spec in self.topology.computations for shard in range(shards)}
        self.outputs: dict[str, list[Emitted]] = {stream: [] for spec in self.topology.computations for stream in spec.streams}
        self.late: dict[str, int] = {spec.name: 0 for spec in self.topology.computations}
        self.late_by: dict[str, int] = {}
        self.dead: dict[str, int] = {spec.name: 0 for spec in self.topology.computations}
        self.duplicates = 0
        self.ids: dict[tuple[str, str], dict[tuple[str, str], int]] = {}  # consumer and stream: (key, id) to span. Dumb, and exact
        self.marks: dict[tuple[str, int], Counts] = {}
        self.timer_counts: dict[tuple[str, int], int] = {}
        self.key_counts: dict[tuple[str, int], int] = {}
        self.builds = begun(self.topology.derived, {}, ())
        self.tallies: dict[str, dict[str, int]] = {}
        self.look: Callable[[LocalEngine], None] | None = None  # called after every commit
        self.hints = Hints(self.topology)
        self.warn: Callable[[str], None] | None = None  # told what looks wrong

    def become(self, program: Program, drop: Sequence[str] = ()) -> None:
        """Goes on as another version of the program, as a restart on Spark would. drop: computations whose state may go. Raises CheckpointError for what a
        checkpoint would refuse."""
        found = reconciled(self._manifest(), program, drop)
        was = {name: state.lineage for name, state in found.computations.items()}
        names = [spec.name for spec in program.topology.computations]
        self.program, self.topology, self.compiled = program, program.topology, Compiled(program, all_ids=True)
        self.hints = Hints(self.topology)
        self.builds = found.builds
        old, shards = self.stores, range(self.shards)
        self.stores = {(name, shard): old.get((was.get(name, name), shard)) or MemoryStore() for name in names for shard in shards}
        self.progress = {name: self.progress.get(name, Progress()) for name in self.topology.injectors}
        self.standings = {name: self.standings.get(was.get(name, name), Standing()) for name in names}
        self.late, self.dead = ({name: counts.get(was.get(name, name), 0) for name in names} for counts in (self.late, self.dead))
        for spec in self.topology.computations:
            for stream in spec.streams:
                self.outputs.setdefault(stream, [])
        now = {old: new for new, old in was.items() if new in names}
        self.stored = [(stream, now[name], shard, arrival) for stream, name, shard, arrival in self.stored if name in now]
        self.ids = {(now[name], stream): held for (name, stream), held in self.ids.items() if name in now}
        self.marks = {(now[name], shard): counts for (name, shard), counts in self.marks.items() if name in now}
        self.timer_counts = {(now[name], shard): count for (name, shard), count in self.timer_counts.items() if name in now}
        self.key_counts = {(now[name], shard): count for (name, shard), count in self.key_counts.items() if name in now}

    def _manifest(self) -> Manifest:
        """What a checkpoint would say of now, as far as another version of the program is measured by it. The lineage is the name."""
        states = {
            spec.name: ComputationState(
                shards=[ShardState(keys=self.key_counts.get((spec.name, shard), 0)) for shard in range(self.shards)],
                codec=self.program.codec_of(spec.name).name,
                lineage=spec.name,
                **{field: getattr(spec, field) for field in ("hidden", "kind", "relation", "window", "about")},
            )
            for spec in self.topology.computations
        }
        pending = [ProductionsRef(stream, name, "", {}, END) for stream, name, *_ in self.stored]
        return Manifest(self.epoch, "", self.now, [], computations=states, pending=pending, builds=self.builds, drained=self.drained)

    @property
    def low_watermarks(self) -> dict[str, int]:
        """Every computation's low watermark."""
        return {name: standing.low for name, standing in self.standings.items()}

    @property
    def injected(self) -> dict[str, int]:
        """Every injector's watermark."""
        return {name: progress.watermark for name, progress in self.progress.items()}

    def push(self, stream: str, row: dict[str, Any]) -> None:
        """Lets a row arrive in the next epoch."""
        if stream not in self.topology.injectors:
            raise DefinitionError(f"no injected stream is called {stream!r}; there are: {', '.join(self.topology.injectors)}")
        self.pending.append((stream, dict(row)))

    def run_epoch(self, crash: bool = False) -> None:
        """One epoch: everything pushed so far, what was stored, and every timer that is due."""
        planned = self._plan(declared(self.topology, lambda injector: ({}, set())))  # there are no files
        injected = Injected(self.compiled, self.shards, self.now, self.progress)
        for stream, row in self.pending:
            injected.add(self.topology.injectors[stream], row)
        queued, seen = injected.queued, injected.seen_in_all()
        ids, duplicates = self._deduplicated(queued)
        for _, computation, shard, arrival in self.stored:
            queued.setdefault((computation, shard), []).append(arrival)
        stored: list[Stored] = []
        outcomes: dict[tuple[str, int], Outcome] = {}
        for groups in self.topology.levels:
            for group in groups:
                for shard in range(self.shards):
                    arrivals = {name: Arrivals.of(queued.get((name, shard), ()), self.guards.order) for name in group.computations}
                    stores = {name: self.stores[name, shard] for name in group.computations}
                    for name, outcome in self.compiled.run_group(group, arrivals, stores, planned.times, self.guards).items():
                        outcomes[name, shard] = outcome
                        self._forward(outcome, queued, stored)
        if crash:
            raise SimulatedCrash(f"epoch {self.epoch + 1} was not committed")
        self._commit(planned, seen, outcomes, stored, ids, duplicates)

    def _deduplicated(self, queued: dict[tuple[str, int], list[Arrival]]) -> tuple[dict[tuple[str, str], dict[tuple[str, str], int]], int]:
        """Takes duplicates out of what came in, and says which ids are held now."""
        held = {
            (spec.name, i.stream): {
                name: span
                for name, span in self.ids.get((spec.name, i.stream), {}).items()
                if not self.topology.injectors[i.stream].dedup.is_over(span, self.now)  # type: ignore[union-attr]
            }
            for spec in self.topology.computations
            for i in spec.inputs
            if i.stream in self.topology.injectors and self.topology.injectors[i.stream].dedup is not None and self.guards.dedup
        }
        dropped = 0
        for (computation, _), arrivals in queued.items():
            kept: list[Arrival] = []
            for arrival in sorted(arrivals, key=lambda a: BEGINNING if a[1] is None else a[1]):
                mine = held.get((computation, arrival[3].stream))
                if mine is None or arrival[0] is None:
                    kept.append(arrival)
                elif (arrival[0], arrival[2]) in mine:
                    dropped += 1
                else:
                    mine[arrival[0], arrival[2]] = self.topology.injectors[arrival[3].stream].dedup.span_of(self.now)  # type: ignore[union-attr]
                    kept.append(arrival)
            arrivals[:] = kept
        return held, dropped

    def _forward(self, outcome: Outcome, queued: dict[tuple[str, int], list[Arrival]], stored: list[Stored]) -> None:
        out = route(self.compiled, [outcome], self.shards, self.storing)
        for rows in out.sent.values():
            for row in rows.rows():
                to = self.topology.routes[row.route]
                arrival = self.compiled.arrival(to.stream, row.key, row.time, row.id, row.body)
                queued.setdefault((to.computation, row.shard), []).append(arrival)
        for (stream, computation), by_shard in out.kept.items():
            stored += [
                (stream, computation, shard, self.compiled.arrival(stream, *row)) for shard, kept in by_shard.items() for row in kept
            ]

    def _commit(
        self,
        planned: Plan,
        seen: dict[str, Seen],
        outcomes: dict[tuple[str, int], Outcome],
        stored: list[Stored],
        ids: dict[tuple[str, str], dict[tuple[str, str], int]],
        duplicates: int,
    ) -> None:
        self.epoch += 1
        self.pending = []
        self.stored = stored
        self.ids = ids
        self.duplicates += duplicates
        self.progress = injectors_after(self.topology, planned, seen)
        if planned.told.scans:
            self.builds = builds_after(self.builds, planned.told, scanned_by([outcome.counts for outcome in outcomes.values()]), 0.0)
        for (name, shard), outcome in outcomes.items():
            self.stores[name, shard].apply(outcome.delta)
            self.late[name] += outcome.counts.late
            for stream, count in outcome.counts.late_by.items():
                self.late_by[stream] = self.late_by.get(stream, 0) + count
            self.dead[name] += outcome.counts.dead
            for tally, n in outcome.counts.tallies.items():
                mine = self.tallies.setdefault(name, {})
                mine[tally] = mine.get(tally, 0) + n
            self.marks[name, shard] = outcome.counts
            self.timer_counts[name, shard] = self.timer_counts.get((name, shard), 0) + outcome.counts.timers
            self.key_counts[name, shard] = self.key_counts.get((name, shard), 0) + outcome.counts.keys
            for p in self.compiled.productions_of(outcome, self.outputs):
                self.outputs[p.stream].append(Emitted(p.key, self.compiled.decode_value(p.body), p.timestamp, p.id))
        for name, standing in planned.standings.items():
            marks = [counts for (computation, _), counts in self.marks.items() if computation == name]
            standing.held = min((c.held for c in marks if c.held is not None), default=None)
            standing.next_low = min((c.next_low for c in marks if c.next_low is not None), default=None)
            standing.crowded = any(count > step.MAX_DUE for (computation, _), count in self.timer_counts.items() if computation == name)
            standing.pending = min((a[1] for _, computation, _, a in stored if computation == name), default=None)
        self.standings = planned.standings
        if self.warn is not None:
            texts = [text for (name, _), outcome in outcomes.items() for text in self.hints.of_late(name, outcome.counts)]
            for text in (*texts, *self.hints.of_times(seen)):
                self.warn(text)
        if self.look is not None:
            self.look(self)

    def _plan(self, said: dict[str, Said] | None = None) -> Plan:
        walls = [(name, counts.next_wall) for (name, _), counts in self.marks.items() if counts.next_wall is not None]
        position = Position(
            progress=self.progress,
            epoch=self.epoch,
            standings=self.standings,
            next_wall={name: min(time for other, time in walls if other == name) for name, _ in walls},
            storing=dict.fromkeys(self.storing, ""),
            builds=self.builds,
        )
        return plan(self.topology, position, clock=self.now, drain=self.drained, said=said)

    def due(self) -> bool:
        """Whether the next epoch has anything to do: records, stored productions, timers, or time that has still to reach a computation."""
        planned = self._plan()
        return (
            bool(self.pending)
            or planned.due
            or any(
                planned.standings[name].low != standing.low for name, standing in self.standings.items() if standing.next_low is not None
            )
        )

    def drain(self) -> None:
        """Ends event time: all that was pushed is processed, and every low-watermark timer fires."""
        if self.pending:
            self.run_epoch()
        self.drained = True
        self.run_epoch()
        while self.due() or any(standing.low != END for standing in self.standings.values()):
            self.run_epoch()

    def state(self, computation: str) -> dict[Any, Any]:
        """The committed state of every key; of a window operator its open panes (`operators/pane_rows.py`), of a join of streams the records that wait."""
        kind = self._kind(computation)
        made = self.compiled.make(computation)[0]
        if self.topology.by_name[computation].window is not None:
            from millstream.operators.pane_rows import PANES, PaneReader  # it needs pyarrow

            entries = (entry for shard in range(self.shards) for entry in self.stores[computation, shard].scan(*PANES))
            return {key_of(text): panes for text, panes in PaneReader.of_operator(made, kind).rows(entries)}  # type: ignore[arg-type]
        if self.topology.by_name[computation].kind == INTERVAL_JOIN:
            from millstream.operators.waiting_rows import RECORDS, WaitingReader

            entries = (entry for shard in range(self.shards) for entry in self.stores[computation, shard].scan(*RECORDS))
            return {key_of(text): records for text, records in WaitingReader(self.compiled.decode_value).rows(entries)}
        return {
            key_of(entry[len(ROW) :].decode()): bound(kind, entry[len(ROW) :], decode_row(raw), store)
            for store in (self.stores[computation, shard] for shard in range(self.shards))
            for entry, raw in store.scan(ROW, after(ROW))
        }

    def timers(self, computation: str, key: Any) -> list[Timer]:
        """The timers of a key, in order of time."""
        self._kind(computation)
        row_key = key_bytes(key)
        raw = self.stores[computation, shard_of(row_key, self.shards)].get(ROW + row_key)
        return [] if raw is None else sorted(timers_of(decode_row(raw)), key=lambda timer: (timer.time, timer.tag, timer.kind))

    def _kind(self, computation: str) -> StateKind:
        if computation not in self.topology.by_name:
            raise DefinitionError(f"no computation is called {computation!r}; there are: {', '.join(self.topology.by_name)}")
        return self.compiled.make(computation)[1]
