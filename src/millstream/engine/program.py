"""A pipeline made ready to run: the graph, codecs and key functions, worked out once and shared by all engines.

`Program` is plain data and is pickled to the workers once; `Compiled` is what a process makes of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

from millstream.columnviews import steps
from millstream.core.arrivals import Arrivals, OperatorInput, wrapped
from millstream.core.computation import Computation
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_text
from millstream.core.keyspace import Store
from millstream.core.operator_step import OperatorStep
from millstream.core.outcome import Outcome, Times, Wiring
from millstream.core.record import Batch, Production
from millstream.core.route_keys import NoKey, route_key
from millstream.core.statekind import Codec, StateKind
from millstream.core.step import Step
from millstream.core.topology import Group, Injector, Route, Topology, check_columns
from millstream.errors import DefinitionError
from millstream.sources.schema import Kind, columns
from millstream.state.codec import msgpack

Arrival = tuple[Any, Any, Any, Batch, int]  # key text (None: rejected), timestamp, id, batch, index in it


class Program:
    """All that a task needs to know of a pipeline, whatever the epoch."""

    def __init__(self, name: str, topology: Topology, codec: Codec) -> None:
        self.name, self.topology, self.codec = name, topology, codec
        self.expressions: dict[str, Callable[[dict[str, Any]], Any]] = {}  # what SQL texts mean, for engines without Spark

    def codec_of(self, computation: str) -> Codec:
        spec = self.topology.by_name[computation]
        made_by = getattr(spec.factory, "func", spec.factory)  # the class behind a functools.partial
        return spec.codec or getattr(made_by, "codec", None) or msgpack


class Compiled:
    """A program in one process: codecs, state kinds and key functions, ready for use."""

    def __init__(self, program: Program, all_ids: bool = False) -> None:
        """all_ids: give every production an id, not only those that another computation reads (it costs a hash each)."""
        self.program = program
        self.topology = program.topology
        self.encode_value = program.codec.encoder()
        self.decode_value = program.codec.decoder(object)
        self._kinds: dict[str, StateKind] = {}
        self._operators: dict[str, Computation] = {}
        self._columns: dict[str, dict[str, Kind] | None] = {}
        self.running: Step | None = None  # the step under way, for whoever looks from another thread
        self.route_keys: dict[int, Callable[[Production], str]] = {
            route.index: route_key(route, self.decode_value)
            for route in self.topology.routes
            if route.stream not in self.topology.injectors
        }
        consumed = {i.stream for spec in self.topology.computations for i in spec.inputs}
        consumed |= {emission.stream for emission in self.topology.emissions if emission.ids}
        self._wirings = {
            spec.name: Wiring(
                name=spec.name,
                streams=spec.produces,
                same_key=self.topology.same_key_streams,
                named=None if all_ids else frozenset(consumed),
                late=spec.late_streams,
                dead_letters=spec.dead_letters,
                circling=spec.name in self.topology.cycle_of,
                expire=spec.expire,
            )
            for spec in self.topology.computations
        }
        self.routes_of: dict[str, list[Route]] = {}
        for route in self.topology.routes:
            self.routes_of.setdefault(route.stream, []).append(route)

    def make(self, name: str) -> tuple[Computation, StateKind]:
        """A fresh instance of a computation, and how its state is kept."""
        spec = self.topology.by_name[name]
        try:
            computation = spec.factory()
        except Exception as error:
            raise DefinitionError(
                f"computation {name!r}: making an instance raised {type(error).__name__}: {error}. Give a subclass of ms.Computation, or a callable without "
                f"arguments that makes one (functools.partial, for instance)."
            ) from error
        if not isinstance(computation, Computation):
            raise DefinitionError(f"computation {name!r}: {spec.factory!r} made a {type(computation).__name__}, not a Computation")
        if name not in self._kinds:
            try:
                self._kinds[name] = StateKind(computation, self.program.codec_of(name))
            except Exception as error:
                raise DefinitionError(f"computation {name!r}: its State cannot be made or kept: {type(error).__name__}: {error}") from error
        return computation, self._kinds[name]

    def operator(self, name: str) -> Any:
        """An operator that takes columns. It keeps nothing between epochs, so one serves all."""
        if name not in self._operators:
            self._operators[name] = self.make(name)[0]
        return self._operators[name]

    def columns_of(self, injector: Injector) -> dict[str, Kind] | None:
        """The columns of an injector's source, where they can be told without Spark."""
        if injector.name not in self._columns:
            self._columns[injector.name] = columns(injector.source.schema)
        return self._columns[injector.name]

    def rejected(self, route: Route, production: Production, error: NoKey) -> bytes:
        """What goes to a consumer in the place of a production whose key cannot be worked out. Raises the error if the consumer has no dead letters."""
        if not self.topology.takes_rejected(route.computation):
            raise error
        return self.encode_value(wrapped(self.decode_value(production.body), error.why))

    def run_group(
        self,
        group: Group,
        arrivals: Mapping[str, Arrivals | OperatorInput],
        stores: Mapping[str, Store],
        times: Mapping[str, Times],
        guards: Guards = ALL_GUARDS,
    ) -> dict[str, Outcome]:
        """Runs the computations of a group in order, handing productions on inside the group."""
        outcomes: dict[str, Outcome] = {}
        for name in group.computations:
            fused, in_columns = self.topology.fused_inputs(name), self.topology.by_name[name].in_columns
            here = self._handed_over(outcomes.values(), fused, in_columns) if fused else arrivals.get(name)
            computation, kind = self.make(name)
            began = perf_counter()
            relation = steps.step_of(self.topology.by_name[name].kind) if in_columns else None
            made: Any = relation or (OperatorStep if in_columns else Step)
            step: Step = made(self._wirings[name], computation, kind, stores[name], times[name], self.encode_value, self.decode_value)
            step.visit.guards = guards
            self.running = step
            outcomes[name] = outcome = step.run(here or Arrivals.none())  # type: ignore[arg-type]
            outcome.millis = (perf_counter() - began) * 1000
            if here is not None and len(self.topology.by_name[name].inputs) > 1:
                outcome.by_stream = here.by_stream()
        self.running = None
        return outcomes

    def productions_of(self, outcome: Outcome, streams: Container[str]) -> Iterable[Production]:
        """What a step has produced, one by one; of what stands in columns, only some streams."""
        if not outcome.results:
            return outcome.productions
        made = [result.productions(self.encode_value) for result in outcome.results if result.stream in streams]
        return chain(outcome.productions, *made)

    def arrival(self, stream: str, text: Any, timestamp: int, id: str, body: bytes) -> Arrival:
        """A production as its consumer gets it, where records are handled one by one."""
        return text, timestamp, id, BodyBatch(stream, [body], [id], self.decode_value), 0

    def _handed_over(self, outcomes: Iterable[Outcome], streams: Sequence[str], in_columns: bool) -> Arrivals | OperatorInput:
        """What others of the group have produced on some streams, as their consumer gets it. To an operator, columns are handed over as they are."""
        batches: dict[str, BodyBatch] = {}
        rows: list[Arrival] = []
        columns: list[Any] = []
        for outcome in outcomes:
            productions = [p for p in outcome.productions if p.stream in streams]
            for result in outcome.results:
                if result.stream in streams:
                    one = result.rows() if in_columns else None
                    if one is not None:
                        columns.append(one)
                    else:
                        productions += result.productions(self.encode_value)
            for p in productions:
                batch = batches.get(p.stream)
                if batch is None:
                    batch = batches[p.stream] = BodyBatch(p.stream, [], [], self.decode_value)
                batch.bodies.append(p.body)
                batch.ids.append(p.id)
                rows.append((key_text(p.key), p.timestamp, p.id, batch, len(batch.bodies) - 1))
        arrivals = Arrivals.of(rows)
        if not columns:
            return arrivals
        from millstream.operators.rows import rows_of  # it needs pyarrow

        return OperatorInput([*columns, *rows_of(arrivals).rows])


class BodyBatch(Batch):
    """Records whose values are still encoded."""

    __slots__ = ("_decode", "bodies", "ids")

    def __init__(self, stream: str, bodies: list[bytes], ids: list[str], decode: Callable[[bytes], Any]) -> None:
        super().__init__(stream)
        self.bodies, self.ids, self._decode = bodies, ids, decode

    def value(self, index: int) -> Any:
        return self._decode(self.bodies[index])

    def id(self, index: int) -> str:
        return self.ids[index]


def check(compiled: Compiled) -> None:
    """Raises DefinitionError for the first thing that cannot work, as far as that can be told before Spark is started: columns that a source's schema does not
    have, hooks that cannot work. A source whose columns are not known, and SQL text, are Spark's business."""
    for spec in compiled.topology.computations:
        computation, _ = compiled.make(spec.name)
        check_hooks(spec.name, computation)
    for injector in compiled.topology.injectors.values():
        known = compiled.columns_of(injector)
        injector.check(known)
        for route in compiled.topology.routes:
            if route.stream == injector.name:
                keys = route.key if isinstance(route.key, tuple) else (route.key,)
                check_columns(f"injected stream {injector.name!r}, key of computation {route.computation!r}", keys, known)


_OWN = {name for name in {**vars(Computation), **Computation.__annotations__} if name.startswith("_") and not name.startswith("__")}


def check_hooks(name: str, computation: Computation) -> None:
    """A hook that is a generator or a coroutine would be called and never run; a name that Millstream uses itself would be overwritten."""
    for cls in type(computation).__mro__:
        taken = sorted(_OWN & set(vars(cls))) if cls is not Computation and not cls.__module__.startswith("millstream.") else []
        if taken:
            raise DefinitionError(
                f"computation {name!r}: {cls.__name__}.{taken[0]} is a name that Millstream uses itself: give it another, without the underscore"
            )
    for hook in ("process_record", "process_records", "process_timer", "process_late_record", "process_expiry"):
        function = getattr(computation, hook)
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            what = "is async" if not inspect.isgeneratorfunction(function) else "has a yield"
            raise DefinitionError(
                f"computation {name!r}: {type(computation).__name__}.{hook} {what}, so its body would never run. Hooks are plain functions; "
                f"to send something on, call self.produce(value)."
            )
