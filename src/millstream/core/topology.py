"""The graph of a pipeline, checked and laid out in levels.

Rules
1. Names are the identity: of streams, computations, injectors. State belongs to a computation's name.
2. Edges of one epoch form no cycle. Computations are kept in an order in which producers come first.
3. A computation that gives no key for a stream gets the producer's key. Where that holds for all its inputs and these come from
   one group, it joins the group: the same task runs both, and no shuffle stands between them. A production that
   changes its key on such a stream would land in the wrong shard, so it is refused.
4. A group is one partition range of one level. Level L runs after L-1 in the same job; only what crosses groups is shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.computation import Computation
from millstream.core.watermark import Bounded
from millstream.errors import DefinitionError


class Injector(msgspec.Struct, frozen=True):
    """A source with a watermark."""

    name: str
    source: Any
    timestamp: Any
    id: Any
    value: str | None
    watermark: Bounded


class Input(msgspec.Struct, frozen=True):
    """One stream into a computation. The key is a column name, a Spark Column, a callable, a list of names, or None for the producer's."""

    stream: str
    key: Any


class ComputationSpec(msgspec.Struct, frozen=True):
    """A computation's place in the graph."""

    name: str
    factory: Callable[[], Computation]
    inputs: tuple[Input, ...]
    produces: tuple[str, ...]
    codec: Any = None
    renamed_from: str | None = None


class Emission(msgspec.Struct, frozen=True):
    """A stream's way to a sink. `name` is unique in the pipeline."""

    name: str
    stream: str
    sink: Any


class Group(msgspec.Struct, frozen=True):
    """Computations that one task runs in order, all on the same keys."""

    index: int  # within its level
    level: int
    computations: tuple[str, ...]


class Route(msgspec.Struct, frozen=True):
    """The way of a stream's records into a computation of another group."""

    index: int
    stream: str
    computation: str
    key: Any
    level: int
    group: int

    @property
    def spread(self) -> bool:
        """Whether the consumer has no key at all, and records may go to any shard."""
        return isinstance(self.key, tuple) and not self.key


class Topology:
    """A checked graph."""

    def __init__(
        self, injectors: Sequence[Injector], computations: Sequence[ComputationSpec], emissions: Sequence[Emission]
    ) -> None:
        self.injectors = {injector.name: injector for injector in injectors}
        self.emissions = tuple(emissions)
        self._producer = self._producers(injectors, computations)
        self._check_inputs(computations)
        self.computations = self._ordered(computations)
        self.by_name = {spec.name: spec for spec in self.computations}
        self.levels: list[list[Group]] = []
        self.group_of: dict[str, Group] = {}
        self._lay_out()
        self.routes = self._routes()
        self.same_key_streams = frozenset(
            i.stream for spec in self.computations for i in spec.inputs if self._fused(spec.name, i.stream)
        )

    def __getstate__(self) -> dict[str, Any]:
        """What workers get: without sources and the expressions of injected streams, which belong to the driver."""
        injectors = {
            name: msgspec.structs.replace(i, source=None, timestamp=_plain(i.timestamp), id=_plain(i.id)) for name, i in self.injectors.items()
        }

        def stripped(stream: str, key: Any) -> Any:
            return _plain(key) if stream in self.injectors else key

        computations = tuple(
            msgspec.structs.replace(spec, inputs=tuple(Input(i.stream, stripped(i.stream, i.key)) for i in spec.inputs))
            for spec in self.computations
        )
        by_name = {spec.name: spec for spec in computations}
        return {
            **self.__dict__,
            "injectors": injectors,
            "computations": computations,
            "by_name": by_name,
            "routes": tuple(msgspec.structs.replace(route, key=stripped(route.stream, route.key)) for route in self.routes),
            "_producer": {stream: by_name.get(p.name, injectors.get(stream, p)) for stream, p in self._producer.items()},
        }

    def _producers(
        self, injectors: Sequence[Injector], computations: Sequence[ComputationSpec]
    ) -> dict[str, ComputationSpec | Injector]:
        producer: dict[str, ComputationSpec | Injector] = {}
        for injector in injectors:
            producer[injector.name] = injector
        for spec in computations:
            for stream in spec.produces:
                if stream in producer:
                    raise DefinitionError(f"two producers for stream {stream!r}: {producer[stream].name!r} and {spec.name!r}. Give one of them another name.")
                producer[stream] = spec
        return producer

    def _check_inputs(self, computations: Sequence[ComputationSpec]) -> None:
        known = ", ".join(repr(name) for name in sorted(self._producer)) or "none"
        for spec in computations:
            for i in spec.inputs:
                if i.stream not in self._producer:
                    raise DefinitionError(f"computation {spec.name!r} reads a stream {i.stream!r} that nobody produces. Known streams: {known}.")
                injected = i.stream in self.injectors
                if injected and i.key is None:
                    raise DefinitionError(f"computation {spec.name!r} reads the injected stream {i.stream!r} without a key. Say key='column' or a Column.")
                if injected and callable(i.key) and not hasattr(i.key, "_jc") and not hasattr(i.key, "_expr"):
                    raise DefinitionError(
                        f"computation {spec.name!r}: the key of the injected stream {i.stream!r} is a Python callable. "
                        f"Injected keys are computed by Spark: give a column name, a list of names, or a Column expression."
                    )
                if not injected and not (i.key is None or callable(i.key) or isinstance(i.key, (str, list, tuple))):
                    raise DefinitionError(
                        f"computation {spec.name!r}: the key of the internal stream {i.stream!r} must be None (the producer's key), "
                        f"a field name, a list of names, or a callable on the record, not {type(i.key).__name__}."
                    )
        for emission in self.emissions:
            if emission.stream not in self._producer:
                raise DefinitionError(f"emit: nobody produces a stream {emission.stream!r}. Known streams: {known}.")

    def _ordered(self, computations: Sequence[ComputationSpec]) -> tuple[ComputationSpec, ...]:
        left = list(computations)
        ready = set(self.injectors)
        ordered: list[ComputationSpec] = []
        while left:
            free = [spec for spec in left if all(i.stream in ready for i in spec.inputs)]
            if not free:
                names = " → ".join(spec.name for spec in _circling(left))
                raise DefinitionError(f"the streams form a cycle through {names}. Weak edges deliver within one epoch, so a cycle would never end.")
            for spec in free:
                ordered.append(spec)
                ready.update(spec.produces)
                left.remove(spec)
        return tuple(ordered)

    def _lay_out(self) -> None:
        members: dict[tuple[int, int], list[str]] = {}
        place: dict[str, tuple[int, int]] = {}
        width: list[int] = []
        for spec in self.computations:
            producers = [self._producer[i.stream] for i in spec.inputs]
            homes = {place[p.name] for p in producers if isinstance(p, ComputationSpec)}
            joins = len(homes) == 1 and all(i.key is None and isinstance(p, ComputationSpec) for i, p in zip(spec.inputs, producers, strict=True))
            if joins:
                home = homes.pop()
            else:
                level = 1 + max((level for level, _ in homes), default=-1)
                if level == len(width):
                    width.append(0)
                home = (level, width[level])
                width[level] += 1
            place[spec.name] = home
            members.setdefault(home, []).append(spec.name)
        self.levels = [
            [Group(index, level, tuple(members[level, index])) for index in range(count)] for level, count in enumerate(width)
        ]
        self.group_of = {name: group for groups in self.levels for group in groups for name in group.computations}

    def _fused(self, computation: str, stream: str) -> bool:
        producer = self._producer[stream]
        return isinstance(producer, ComputationSpec) and self.group_of[producer.name] is self.group_of[computation]

    def _routes(self) -> tuple[Route, ...]:
        routes: list[Route] = []
        for spec in self.computations:
            group = self.group_of[spec.name]
            for i in spec.inputs:
                if not self._fused(spec.name, i.stream):
                    routes.append(Route(len(routes), i.stream, spec.name, i.key, group.level, group.index))
        return tuple(routes)

    def fused_inputs(self, computation: str) -> list[str]:
        """The streams that reach a computation inside its own task."""
        return [i.stream for i in self.by_name[computation].inputs if self._fused(computation, i.stream)]

    def feeds(self, computation: str) -> list[str]:
        """The streams that a computation reads."""
        return [i.stream for i in self.by_name[computation].inputs]


def _circling(left: Sequence[ComputationSpec]) -> list[ComputationSpec]:
    """Those of some computations that are part of a cycle, without what only reads from one."""
    circling = list(left)
    while True:
        read = {i.stream for spec in circling for i in spec.inputs}
        kept = [spec for spec in circling if read & set(spec.produces)]
        if len(kept) == len(circling):
            return kept
        circling = kept


def _plain(key: Any) -> Any:
    """A column's name or names as they are, an expression as a word for messages."""
    if key is None or isinstance(key, str):
        return key
    return tuple(_plain(part) for part in key) if isinstance(key, tuple) else "expression"
