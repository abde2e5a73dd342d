"""The graph of a pipeline, checked and laid out in levels.

Rules
1. Names are the identity: of streams, computations, injectors. State belongs to a computation's name.
2. An edge is weak (delivered in the epoch that makes the production), strong (stored with the producer's commit, delivered in the
   next epoch), or adaptive. Weak and adaptive edges form no cycle; strong edges may close one. Computations are kept in an order in which producers come
   first, strong edges aside.
3. A computation that gives no key for a stream gets the producer's key. Where that holds for all its inputs, over weak edges from
   one group, it joins the group: the same task runs both, and no shuffle stands between them. A production that
   changes its key on such a stream would land in the wrong shard, so it is refused. Dead letters may be of records that had no key,
   so whoever reads them joins nobody.
4. A group is one partition range of one level. Level L runs after L-1 in the same job; only what crosses groups is shuffled. A
   strong edge needs no level: its productions are stored by the consumer's shard, and a chain of strong edges is one level.
5. An adaptive edge is weak while its consumer keeps up, and stores while it is slow or has failed (MillWheel §6.1.3: a straggler's producers checkpoint).
   It begins to store in the epoch after one in which the consumer took longer than `slow_after`, and within the same epoch if it failed. It goes back
   after `CALM` epochs with records in a row in which the consumer took less than half of that: no flapping around the limit. The decision is kept in the
   manifest with its reason. It changes when productions arrive, never what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec

from millstream.core.backfill import Derivation
from millstream.core.computation import Computation
from millstream.core.dedup import Dedup
from millstream.core.outcome import DROP, HOOK
from millstream.core.typed import required_fields
from millstream.core.watermark import Policy
from millstream.errors import DefinitionError


class Produced(Enum):
    """What an input says for its key to take the production's own through the shuffle."""

    KEY = "produced"


PRODUCED = Produced.KEY

WEAK = "weak"
STRONG = "strong"
ADAPTIVE = "adaptive"
PRODUCTIONS = (WEAK, STRONG, ADAPTIVE)
CALM = 3

FAIL = "fail"  # a hook that raises fails the epoch
DEAD_LETTER = "dead_letter"  # its record goes to a stream


def check_on_error(what: str, on_error: str) -> None:
    if on_error not in (FAIL, DEAD_LETTER):
        raise DefinitionError(f"{what}: on_error={on_error!r}: use ms.FAIL or ms.DEAD_LETTER")


class Injector(msgspec.Struct, frozen=True):
    name: str
    source: Any
    timestamp: Any
    id: Any
    value: str | None
    watermark: Policy
    dedup: Dedup | None = None
    typed: type | None = None  # the class of its values

    def check(self, known: Collection[str] | None) -> None:
        """Raises DefinitionError if it names a column that its source does not have. known: the source's columns, None where that cannot be told."""
        if self.typed is not None:
            check_columns(f"injected stream {self.name!r}, value={self.typed.__name__}", required_fields(self.typed), known)
        named = {"timestamp": self.timestamp, "id": self.id, "value": self.value, "watermark": self.watermark.mark_column}
        for what, column in {**named, "sub-source": self.watermark.sub_column}.items():
            check_columns(f"injected stream {self.name!r}, {what}", [column], known)


def as_key(key: Any) -> Any:
    """A key as a route has it: several columns are a tuple."""
    return tuple(key) if isinstance(key, list) else key


class Input(msgspec.Struct, frozen=True):
    stream: str
    key: Any  # a column name, a list of names, a Spark Column, a callable, None for the producer's, or PRODUCED for the production's, which may be another
    production: str | None = None  # what this edge says itself, None for what its producer says
    slow_after: int | None = None
    late: str = HOOK  # DROP, HOOK, or the stream that late records go to


class RelationSpec(msgspec.Struct, frozen=True):
    """What readers of a checkpoint must know of a table, view or join."""

    origins: bool = True  # contributions are kept by document
    inverts: bool = False  # the reducer has an inverse, so there are no nodes of partial results
    how: str = ""  # of a join
    is_strong: bool = False  # it follows an epoch behind its senders


class WindowShape(msgspec.Struct, frozen=True):
    """What readers of a checkpoint must know of a window operator. window: its kind, as plain data. reducers: in the order of their columns, which of the
    builtin ones each is, by name; nothing where only the program can make it. is_hopping: a pane is a part of several windows."""

    window: dict[str, Any]
    reducers: dict[str, str]
    is_hopping: bool = False


WINDOW = "window"  # the kind of a window operator
INTERVAL_JOIN = "interval join"  # that of a join of streams


class ComputationSpec(msgspec.Struct, frozen=True):
    name: str
    factory: Callable[[], Computation]
    inputs: tuple[Input, ...]
    produces: tuple[str, ...]
    codec: Any = None
    renamed_from: str | None = None
    production: dict[str, str] = {}
    slow_after: int = 1000
    dead_letters: str | None = None  # the stream of what made a hook raise; None: the epoch fails
    expire: tuple[int, str] | None = None  # for how long a row is kept that nothing comes to, in milliseconds, and by which time
    hidden: bool = False  # a helper that the user has not written and should not be asked about
    derives: Derivation | None = None  # its state follows from the rows of other computations, and can be made again from them
    refines: bool = False  # what it produces, and how its state lies, depends on how records fall into epochs; what the state says does not
    kind: str = ""  # "table", "view", "join", "window" or "interval join"; nothing for a computation of the user's own
    relation: RelationSpec | None = None  # of a table, view or join: what its readers decide by
    window: WindowShape | None = None  # of a window operator: what its readers decide by
    in_columns: bool = False  # an operator that takes whole columns (`operators/`)
    about: dict[str, str] = {}  # for people: what a table, view, join or window operator was defined as

    @property
    def late_streams(self) -> dict[str, str]:
        return {i.stream: i.late for i in self.inputs}

    @property
    def streams(self) -> tuple[str, ...]:
        """All that comes out of it: what its hooks produce, late records, dead letters."""
        extra = [i.late for i in self.inputs if i.late not in (DROP, HOOK)] + ([self.dead_letters] if self.dead_letters else [])
        return (*self.produces, *dict.fromkeys(extra))


class Emission(msgspec.Struct, frozen=True):
    """A stream's way to a sink. `name` is unique in the pipeline. ids: rows carry the production's id."""

    name: str
    stream: str
    sink: Any
    ids: bool = False


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
    production: str = WEAK

    @property
    def spread(self) -> bool:
        """Whether the consumer has no key at all, and records may go to any shard."""
        return isinstance(self.key, tuple) and not self.key


class Topology:
    def __init__(self, injectors: Sequence[Injector], computations: Sequence[ComputationSpec], emissions: Sequence[Emission]) -> None:
        self.injectors = {injector.name: injector for injector in injectors}
        self.emissions = tuple(emissions)
        self._producer = self._producers(injectors, computations)
        self._check_inputs(computations)
        self.edges = {(i.stream, spec.name): self._edge(spec, i) for spec in computations for i in spec.inputs}
        self.computations = self._ordered(computations)
        self.by_name = {spec.name: spec for spec in self.computations}
        self.levels = self._laid_out()
        self.group_of = {name: group for groups in self.levels for group in groups for name in group.computations}
        self.routes = self._routes()
        self.cycles = _cycles(self.computations)
        self.cycle_of = {name: at for at, members in enumerate(self.cycles) for name in members}
        self.same_key_streams = frozenset(i.stream for spec in self.computations for i in spec.inputs if self._fused(spec.name, i.stream))

    def __getstate__(self) -> dict[str, Any]:
        """What workers get: without sources and the expressions of injected streams, which belong to the driver."""
        replace = msgspec.structs.replace
        injectors: dict[str, Injector] = {}
        for name, one in self.injectors.items():
            watermark = replace(one.watermark, function=None)
            injectors[name] = replace(one, source=None, timestamp=_plain(one.timestamp), id=_plain(one.id), watermark=watermark)

        def stripped(one: Any) -> Any:
            return replace(one, key=_plain(one.key)) if one.stream in self.injectors else one

        computations = tuple(replace(spec, inputs=tuple(map(stripped, spec.inputs))) for spec in self.computations)
        by_name = {spec.name: spec for spec in computations}
        producers = {  # a computation may be called like an injector
            stream: injectors[one.name] if isinstance(one, Injector) else by_name[one.name] for stream, one in self._producer.items()
        }
        found = {"injectors": injectors, "computations": computations, "by_name": by_name, "_producer": producers}
        return {**self.__dict__, **found, "routes": tuple(map(stripped, self.routes))}

    def _producers(self, injectors: Sequence[Injector], computations: Sequence[ComputationSpec]) -> dict[str, ComputationSpec | Injector]:
        producer: dict[str, ComputationSpec | Injector] = {injector.name: injector for injector in injectors}
        for spec in computations:
            for stream in spec.streams:
                if stream in producer:
                    raise DefinitionError(
                        f"two producers for stream {stream!r}: {producer[stream].name!r} and {spec.name!r}. Give one of them another name."
                    )
                producer[stream] = spec
        return producer

    def _check_inputs(self, computations: Sequence[ComputationSpec]) -> None:
        known = ", ".join(repr(name) for name in sorted(self._producer)) or "none"
        for spec in computations:
            for i in spec.inputs:
                if i.stream not in self._producer:
                    raise DefinitionError(
                        f"computation {spec.name!r} reads a stream {i.stream!r} that nobody produces. Known streams: {known}."
                    )
                injected = i.stream in self.injectors
                if injected and i.production not in (None, WEAK):
                    raise DefinitionError(
                        f"computation {spec.name!r}: the injected stream {i.stream!r} cannot be {i.production}: its source keeps the records. Only "
                        f"streams that a computation produces have strong or adaptive edges."
                    )
                if injected and (i.key is None or i.key is PRODUCED):
                    raise DefinitionError(
                        f"computation {spec.name!r} reads the injected stream {i.stream!r} without a key. Say key='column' or a Column."
                    )
                if injected and callable(i.key) and not type(i.key).__module__.startswith("pyspark."):  # a Column can be called, too
                    raise DefinitionError(
                        f"computation {spec.name!r}: the key of the injected stream {i.stream!r} is a Python callable. "
                        f"Injected keys are computed by Spark: give a column name, a list of names, or a Column expression."
                    )
                if not injected and not (i.key is None or i.key is PRODUCED or callable(i.key) or isinstance(i.key, (str, list, tuple))):
                    raise DefinitionError(
                        f"computation {spec.name!r}: the key of the internal stream {i.stream!r} must be None (the producer's key), "
                        f"ms.PRODUCED (the production's), a field name, a list of names, or a callable on the record, not {type(i.key).__name__}."
                    )
        for emission in self.emissions:
            if emission.stream not in self._producer:
                raise DefinitionError(f"emit: nobody produces a stream {emission.stream!r}. Known streams: {known}.")

    def _ordered(self, computations: Sequence[ComputationSpec]) -> tuple[ComputationSpec, ...]:
        left = list(computations)
        ready = set(self.injectors)
        ordered: list[ComputationSpec] = []
        while left:
            free = [spec for spec in left if all(i.stream in ready or self.edges[i.stream, spec.name] == STRONG for i in spec.inputs)]
            if not free:
                circling = frozenset().union(*_cycles(left))
                names = " → ".join(spec.name for spec in left if spec.name in circling)
                raise DefinitionError(
                    f"the streams form a cycle through {names}. Weak edges deliver within one epoch, so a cycle would never end: "
                    f"make one of its edges strong, with compute(..., production={{stream: ms.STRONG}}) or stream.via(ms.STRONG)."
                )
            for spec in free:
                ordered.append(spec)
                ready.update(spec.streams)
                left.remove(spec)
        return tuple(ordered)

    def _laid_out(self) -> list[list[Group]]:
        members: dict[tuple[int, int], list[str]] = {}
        place: dict[str, tuple[int, int]] = {}
        width: list[int] = []
        for spec in self.computations:
            near = [i for i in spec.inputs if self.edges[i.stream, spec.name] != STRONG]
            producers = [self._producer[i.stream] for i in near]
            homes = {place[p.name] for p in producers if isinstance(p, ComputationSpec)}
            if len(homes) == 1 and all(i.key is None and self._takes_over_key(spec, i) for i in spec.inputs):
                home = homes.pop()
            else:
                level = 1 + max((level for level, _ in homes), default=-1)
                if level == len(width):
                    width.append(0)
                home = (level, width[level])
                width[level] += 1
            place[spec.name] = home
            members.setdefault(home, []).append(spec.name)
        return [[Group(index, level, tuple(members[level, index])) for index in range(count)] for level, count in enumerate(width)]

    def _edge(self, spec: ComputationSpec, i: Input) -> str:
        producer = self._producer[i.stream]
        if isinstance(producer, Injector):
            return WEAK
        return i.production or producer.production.get(i.stream) or WEAK

    def _takes_over_key(self, spec: ComputationSpec, i: Input) -> bool:
        """Whether an input may run on its producer's keys. Dead letters of rejected records have another key than their producer's row."""
        producer = self._producer[i.stream]
        return isinstance(producer, ComputationSpec) and producer.dead_letters != i.stream and self.edges[i.stream, spec.name] == WEAK

    def takes_rejected(self, computation: str) -> bool:
        """Whether a computation sends records to a stream that no hook can be called with."""
        return self.by_name[computation].dead_letters is not None

    def slow_after(self, stream: str, computation: str) -> int:
        """How long a consumer may take before an adaptive edge stores, in milliseconds."""
        own = next(i.slow_after for i in self.by_name[computation].inputs if i.stream == stream)
        producer = self._producer[stream]
        assert isinstance(producer, ComputationSpec)
        return producer.slow_after if own is None else own

    def producer(self, stream: str) -> str:
        """The computation (or injector) that a stream comes from."""
        return self._producer[stream].name

    def _fused(self, computation: str, stream: str) -> bool:
        producer = self._producer[stream]
        is_near = isinstance(producer, ComputationSpec) and self.edges[stream, computation] == WEAK
        return is_near and self.group_of[producer.name] is self.group_of[computation]

    def _routes(self) -> tuple[Route, ...]:
        routes: list[Route] = []
        for spec in self.computations:
            group = self.group_of[spec.name]
            for i in spec.inputs:
                if not self._fused(spec.name, i.stream):
                    edge = self.edges[i.stream, spec.name]
                    routes.append(Route(len(routes), i.stream, spec.name, i.key, group.level, group.index, edge))
        return tuple(routes)

    def fused_inputs(self, computation: str) -> list[str]:
        """The streams that reach a computation inside its own task."""
        return [i.stream for i in self.by_name[computation].inputs if self._fused(computation, i.stream)]

    @property
    def derived(self) -> dict[str, Derivation]:
        """The computations whose state can be made again, and what from."""
        return {spec.name: spec.derives for spec in self.computations if spec.derives is not None}

    def feeds(self, computation: str) -> list[str]:
        return [i.stream for i in self.by_name[computation].inputs]


class EdgeState(msgspec.Struct):
    """An adaptive edge after an epoch: whether it stores in the next one, why, and for how many epochs its consumer has been quick."""

    stored: bool = False
    why: str = ""
    calm: int = 0
    was_stored: bool = False  # in this epoch


def edge_after(before: EdgeState, stored: bool, why: str, millis: float | None, slow_after: int) -> EdgeState:
    """What an edge does in the next epoch. `stored` and `why`: what it did in this one; `millis`: the consumer's longest task, None if it had no records."""
    if millis is None:
        return EdgeState(stored, why, before.calm, stored)
    if millis > slow_after:
        return EdgeState(True, f"its consumer took {millis:.0f} ms, more than {slow_after} ms", 0, stored)
    if not stored:
        return EdgeState(False, "", 0, stored)
    calm = before.calm + 1 if millis < slow_after / 2 else 0
    return EdgeState(calm < CALM, why if calm < CALM else "", calm if calm < CALM else 0, stored)


def _cycles(computations: Sequence[ComputationSpec]) -> list[frozenset[str]]:
    """The sets of computations that feed each other."""
    readers: dict[str, set[str]] = {}
    for spec in computations:
        for i in spec.inputs:
            readers.setdefault(i.stream, set()).add(spec.name)
    next_of = {spec.name: {name for stream in spec.streams for name in readers.get(stream, ())} for spec in computations}
    reach: dict[str, set[str]] = {}
    for start in next_of:
        found = reach[start] = set()
        ahead = [start]
        while ahead:
            new = next_of[ahead.pop()] - found
            found |= new
            ahead += new
    cycles = {frozenset(b for b in reach if b in reach[a] and a in reach[b]) for a in reach if a in reach[a]}
    return sorted(cycles, key=sorted)


def _plain(key: Any) -> Any:
    """A column's name or names as they are, an expression as a word for messages."""
    if key is None or isinstance(key, str):
        return key
    return tuple(_plain(part) for part in key) if isinstance(key, tuple) else "expression"


def check_columns(what: str, given: Iterable[Any], known: Collection[str] | None) -> None:
    """Raises DefinitionError if one of the columns or fields that are given is none of those that are known; None: nothing is known.

    >>> check_columns("by", ["contry"], ["id", "country"])
    Traceback (most recent call last):
    millstream.errors.DefinitionError: by: there is no column 'contry'; the source has: id, country. Did you mean 'country'?
    """
    for name in given if known is not None else ():
        if isinstance(name, str) and name not in known and not is_expression(name):  # type: ignore[operator]
            near = get_close_matches(name, known or (), 1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise DefinitionError(f"{what}: there is no column {name!r}; the source has: {', '.join(known or ())}{hint}")


def is_expression(text: str) -> bool:
    """Whether a text can only be SQL, not the name of a column that somebody has mistyped.

    >>> is_expression("coalesce(user, '?')"), is_expression("a - b"), is_expression("user"), is_expression("user-id")
    (True, True, False, False)
    """
    return re.search(r"[^\w.\- ]|\w (- )?\w", text) is not None
