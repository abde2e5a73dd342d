"""What the tests of tables and views on columns share: epochs of a pipeline without a driver, whose rows come as Arrow tables, each step on the path that a
test says; and what is compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

import millstream as ms
from millstream.core.arrivals import OperatorInput
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.outcome import Outcome, Times
from millstream.core.time import BEGINNING
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.keying import Keying
from millstream.engine.program import Compiled
from millstream.engine.resident.partitioning import ArrowRows, joined
from millstream.engine.routing import route
from millstream.errors import MillstreamError
from millstream.state.memory_storage import MemoryStore

_TYPES = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "boolean": pa.bool_(), "double": pa.float64()}

Row = dict[str, Any]
Path = Callable[[], bool]  # whether the next step goes row by row


def arrow_schema(ddl: str) -> pa.Schema:
    return pa.schema([(field.split(" ")[0], _TYPES[field.split(" ")[1]]) for field in ddl.split(", ")])


class Epochs:
    """Epochs of a pipeline, of which nothing is kept but entries. path: asked for every step."""

    def __init__(self, pipeline: ms.Pipeline, path: Path, shards: int = 2, guards: Guards = ALL_GUARDS) -> None:
        program = pipeline.program()
        self.compiled, self.path, self.shards, self.guards = Compiled(program), path, shards, guards
        topology = self.compiled.topology
        self._schemas = {name: arrow_schema(injector.source.schema) for name, injector in topology.injectors.items()}
        self._keyings = {name: Keying(program, topology.injectors[name], schema, shards) for name, schema in self._schemas.items()}
        self.stores = {(spec.name, shard): MemoryStore() for spec in topology.computations for shard in range(shards)}
        self.epoch = 0

    def run(self, rows: Mapping[str, Sequence[Row]]) -> dict[tuple[str, int], Outcome]:
        """One epoch. Gives what every step has come to."""
        topology, shards = self.compiled.topology, self.shards
        layouts = [keying.layout for keying in self._keyings.values()]
        format = ArrowRows(topology, shards, 1, lambda table: ArrowInputs(self.compiled, layouts, table))
        waiting: dict[int, list[Any]] = {}
        for stream, some in rows.items():
            if some:
                table = pa.Table.from_pylist(list(some), self._schemas[stream])
                for level, keyed in format.by_level(self._keyings[stream].keyed(table, 0)).items():
                    waiting.setdefault(level, []).append(keyed)
        now = 1_000 * self.epoch
        times = {spec.name: Times(now, BEGINNING, BEGINNING, self.epoch) for spec in topology.computations}
        found: dict[tuple[str, int], Outcome] = {}
        for level, groups in enumerate(topology.levels):
            inputs = format.inputs([joined(waiting.get(level, []))])
            for group in groups:
                for shard in range(shards):
                    mine = inputs(group, shard, 0)
                    mine.take([])
                    arrivals = {name: mine.arrivals(name, {}) for name in group.computations}
                    for given in arrivals.values():
                        if isinstance(given, OperatorInput):
                            given.one_by_one, given.by_lot = self.path(), True
                    stores = {name: self.stores[name, shard] for name in group.computations}
                    outcomes = self.compiled.run_group(group, arrivals, stores, times, self.guards)
                    for later, sent in route(self.compiled, outcomes.values(), shards, ()).sent.items():
                        waiting.setdefault(later, []).append(format.sent(sent, 0))
                    for name, outcome in outcomes.items():
                        outcome.millis = 0.0
                        found[name, shard] = outcome
        for place, outcome in found.items():
            self.stores[place].apply(outcome.delta)
        self.epoch += 1
        return found


def told(outcomes: Mapping[tuple[str, int], Outcome], compiled: Compiled) -> dict[tuple[str, int], Any]:
    """All that must be the same on both paths."""
    return {
        place: (
            outcome.delta,
            [msgspec.structs.astuple(one) for one in compiled.productions_of(outcome, compiled.routes_of)],
            [msgspec.structs.astuple(one) for one in outcome.productions],
            msgspec.structs.asdict(outcome.counts),
        )
        for place, outcome in outcomes.items()
    }


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two things begin to differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=repr):
            if key not in one or key not in other or one[key] != other[key]:
                return difference(one.get(key, "nothing"), other.get(key, "nothing"), f"{path}[{key!r}]")
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return difference(a, b, f"{path}[{at}]")
    return f"{path}: row by row {one!r}, and otherwise {other!r}"


def same_on_both_paths(
    make: Callable[[], ms.Pipeline],
    epochs: Sequence[Mapping[str, Sequence[Row]]],
    shards: int = 2,
    seed: int = 0,
    guards: Guards = ALL_GUARDS,
) -> Epochs:
    """Runs epochs row by row, on columns, and on paths drawn by lot, and compares them after each. Gives the run on columns."""
    dice = random.Random(seed)
    runs = [Epochs(make(), path, shards, guards) for path in (lambda: True, lambda: False, lambda: dice.random() < 0.5)]
    for rows in epochs:
        found = []
        for run in runs:
            try:
                found.append(told(run.run(rows), run.compiled))
            except MillstreamError as error:
                found.append(str(error).split("\nTraceback")[0])
        for other in found[1:]:
            assert other == found[0], difference(found[0], other)
        if isinstance(found[0], str):
            break
    return runs[1]
