"""What users write: streams, and `stream.by(...).window(...).reduce(...)`.

Rules
1. A step without state (map, filter, flat_map) is a note on the stream. It runs inside the operator that reads it, or, where something else does, as a
   computation of its own that nobody has to name.
2. `Keyed` and `Windowed` are descriptions. Nothing is in the pipeline until the last call, which gives a stream.
3. What keeps state has a name: the identity of its state in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

from msgspec.structs import replace

from millstream.core.links import FILTER, FLAT_MAP, MAP, Link
from millstream.core.outcome import DROP
from millstream.core.record import Record, V
from millstream.core.time import Duration, duration
from millstream.core.topology import FAIL, INTERVAL_JOIN, PRODUCTIONS, WINDOW, ComputationSpec, Input, is_expression
from millstream.errors import DefinitionError
from millstream.operators.expressions import Expression
from millstream.operators.functions import Not, as_function
from millstream.operators.spread import OfParts, Unsalted, check_spread, salted
from millstream.operators.window_spec import WindowSpec, shape_of
from millstream.operators.windows import Same, Session, WindowKind
from millstream.reducers.base import Reducer, spelled
from millstream.reducers.composite import Several, as_reducer

W = TypeVar("W")


class Graph(Protocol):
    """The pipeline, as streams see it."""

    def _operate(self, name: str, factory: Callable[[], Any], inputs: Mapping[str, Any], late: str | None, **options: Any) -> Any: ...
    def _chained(self, branches: tuple[Branch, ...]) -> str: ...
    def _is_injected(self, stream: str) -> bool: ...
    def _injector(self, stream: str) -> Any: ...
    def _running(self, name: str, inputs: Mapping[str, Any], links: Mapping[str, Any], reducer: Any, **options: Any) -> Any: ...
    def _looked_up(self, name: str, stream: str, key: Any, right: Any, how: str, on_error: str) -> Any: ...
    def _changing(self, operator: str, stream: str, is_one_group: bool) -> Any: ...


class Branch(NamedTuple):
    """A stream in the pipeline, and what is done to its records on the way."""

    stream: str
    links: tuple[Link, ...] = ()


class Via(NamedTuple):
    """A stream's way into one computation, where it differs from what the producer says."""

    stream: Stream
    production: str
    slow_after: int | None


class Stream(Generic[V]):
    """A flow of records, whose values have a type if somebody has said it: `inject(value=Click)`, or what `map` is given returns it."""

    def __init__(self, name: str, pipeline: Any, branches: tuple[Branch, ...] | None = None) -> None:
        self.pipeline = pipeline
        self._branches = branches or (Branch(name),)
        self._name = name
        self._key: Any = None  # its key, where `by` has said it
        self._key_fields: tuple[str, ...] | None = None  # what its key is made of, where that is known

    @property
    def name(self) -> str:
        """Its name in the pipeline. That of a stream with steps behind it is made for it."""
        if not self._name:
            self._name = self.pipeline._chained(self._branches)
            self._branches = (Branch(self._name),)
        return self._name

    def via(self, production: str, *, slow_after: Duration | None = None) -> Via:
        """This stream over an edge of a kind of its own, for one consumer: `compute(C, counts.via(ms.STRONG))`."""
        return Via(self, production_kind(production, f"stream {self.name!r}"), None if slow_after is None else duration(slow_after))

    @overload
    def map(self, f: Callable[[Record[V]], W]) -> Stream[W]: ...
    @overload
    def map(self, f: str | Expression | Mapping[str, Any]) -> Stream: ...
    def map(self, f: Any) -> Stream:
        """Every record with another value: what f gives of the record; an SQL text; or a dict of SQL texts by name, which gives a dict."""
        return self._and(MAP, as_function(f, "map", takes_dict=True))

    def filter(self, f: Callable[[Record[V]], Any] | str | Expression) -> Stream[V]:
        """Only the records for which f is true: a function of the record, SQL text such as "price > 3", or `ms.col("price") > 3`."""
        return self._and(FILTER, as_function(f, "filter"))

    def flat_map(self, f: Callable[[Record[V]], Iterable[W]]) -> Stream[W]:
        """Every record as several values, or none: what f gives of it, one after the other."""
        return self._and(FLAT_MAP, as_function(f, "flat_map"))

    def _and(self, kind: str, f: Any) -> Stream:
        return Stream("", self.pipeline, tuple(Branch(one.stream, (*one.links, (kind, f))) for one in self._branches))

    def branch(self, f: Callable[[Record[V]], Any] | str | Expression) -> tuple[Stream[V], Stream[V]]:
        """Two streams: the records for which f is true, and the others."""
        test = as_function(f, "branch")
        return self.filter(test), self.filter(Not(test))

    def merge(self, *others: Stream[W]) -> Stream[V | W]:
        """The records of this stream and of others."""
        wrong = [one for one in others if not isinstance(one, Stream)]
        if wrong:
            raise DefinitionError(f"merge({wrong[0]!r}): give streams; behind by(...), merge what has a key with what has a key")
        streams: tuple[Stream, ...] = (self, *others)
        return Stream("", self.pipeline, tuple(branch for one in streams for branch in one._branches))

    @overload
    def by(self, f: Callable[[Record[V]], Any], /) -> Keyed[V]: ...
    @overload
    def by(self, *key: str | Expression) -> Keyed[V]: ...
    def by(self, *key: Any) -> Keyed[V]:
        """This stream with a key: a field, several (the key is a tuple), SQL text, one function of the record, or nothing: one group for all."""
        is_function = len(key) == 1 and callable(key[0]) and not isinstance(key[0], Expression)
        for one in () if is_function else key:
            if not isinstance(one, (str, Expression)):
                raise DefinitionError(f"by({one!r}): give names of fields, SQL texts, or one function of the record")
        fields = None if is_function or any(isinstance(one, Expression) or is_expression(one) for one in key) else key
        if is_function:
            given = key[0]
        else:
            given = ONE_GROUP if not key else key[0] if len(key) == 1 else tuple(key)
        found = []
        for stream, links in self._branches:
            # What comes before the key must be done before it. A filter may as well be done behind it.
            if all(kind == FILTER for kind, _ in links) and not (is_function and self.pipeline._is_injected(stream)):
                found.append(KeyedBranch(stream, given, links))
            else:
                found.append(KeyedBranch(self.pipeline._chained((Branch(stream, links),)), given))
        return Keyed(self.pipeline, tuple(found), fields)

    def detect(
        self,
        *,
        bucket: Duration,
        season: Duration = "1d",
        value: str | None = "count",
        kind: str = "counts",
        weekly: bool = False,
        patience: Duration | None = None,
        until: int | None = None,
        rarity: float = 2_000,
        forecasts: bool | Collection[Any] = False,
        name: str,
        **options: Any,
    ) -> Any:
        """The begins and ends of what is not as usual in each key's series, by a model that learns from it: docs/anomalies.md.

        The stream has a key: it is the result of a window, or `by(...)` stands before. bucket: the length of a step of the series. season: after how long its
        rhythm comes again. value: the field that counts; None for the record's value. kind: "counts" for numbers of events, where a bucket without a record
        is a zero, or "gauge" for values that are measured. weekly: whether seven seasons have a rhythm of their own. patience: for how long a silent key
        gets zeros. until: when the traffic ends, if that is known. rarity: of a gauge, one alarm in so many usual buckets.
        forecasts: True for all keys, or one key, or a list of them: then it gives two streams, the anomalies, and for every bucket what was expected, and a
        score.
        name: the identity of the models in the checkpoint. options: `late=`, `expire=`, `on_error=`, `renamed_from=`, `production=`, as in `compute`.
        """
        from millstream.anomalies.detector import detector
        from millstream.anomalies.settings import SeriesRules

        if unknown := sorted(options.keys() - DETECT_OPTIONS):
            raise DefinitionError(f"detect({unknown[0]}=...) is no argument; of compute's there are {', '.join(sorted(DETECT_OPTIONS))}")
        rules = SeriesRules.of(kind, bucket, season, weekly=weekly, patience=patience, until=until, rarity=rarity)
        told = (
            forecasts
            if isinstance(forecasts, bool)
            else tuple(forecasts)
            if isinstance(forecasts, list | set | frozenset)
            else (forecasts,)
        )
        streams = (name, f"{name}.forecasts")
        options = {"late": DROP, "key": self._key, **options, "name": name, "produces": name if told is False else streams}
        return self.pipeline.compute(partial(detector, rules, streams, value, told, self._key_fields or ()), self, **options)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


#: What `detect` hands on to `compute`.
DETECT_OPTIONS = frozenset(("late", "expire", "on_error", "renamed_from", "production", "slow_after"))
#: The key of a stream that is one group.
ONE_GROUP = "''"


class KeyedBranch(NamedTuple):
    """A stream with its key, and what is done to its records behind the key."""

    stream: str
    key: Any
    links: tuple[Link, ...] = ()


class Keyed(Generic[V]):
    """A stream with its key."""

    def __init__(self, pipeline: Any, branches: tuple[KeyedBranch, ...], fields: tuple[str, ...] | None) -> None:
        self.pipeline, self._branches, self._fields = pipeline, branches, fields

    @overload
    def map(self, f: Callable[[Record[V]], W]) -> Keyed[W]: ...
    @overload
    def map(self, f: str | Expression | Mapping[str, Any]) -> Keyed: ...
    def map(self, f: Any) -> Keyed:
        """Every record with another value, as `Stream.map`. It keeps its key."""
        return self._and(MAP, as_function(f, "map", takes_dict=True))

    def filter(self, f: Callable[[Record[V]], Any] | str | Expression) -> Keyed[V]:
        """Only the records for which f is true, as `Stream.filter`."""
        return self._and(FILTER, as_function(f, "filter"))

    def flat_map(self, f: Callable[[Record[V]], Iterable[W]]) -> Keyed[W]:
        """Every record as several values, or none, as `Stream.flat_map`. They keep its key."""
        return self._and(FLAT_MAP, as_function(f, "flat_map"))

    def _and(self, kind: str, f: Any) -> Keyed:
        return Keyed(self.pipeline, tuple(one._replace(links=(*one.links, (kind, f))) for one in self._branches), self._fields)

    def merge(self, *others: Keyed[W]) -> Keyed[V | W]:
        """The records of several streams, each with its own key. The fields of results are named as this one's key."""
        wrong = [one for one in others if not isinstance(one, Keyed)]
        if wrong:
            raise DefinitionError(f"merge({wrong[0]!r}): behind by(...), merge streams that have a key: other.by(...)")
        streams: tuple[Keyed, ...] = (self, *others)
        return Keyed(self.pipeline, tuple(branch for one in streams for branch in one._branches), self._fields)

    def window(self, kind: WindowKind, *, late: str = DROP, lateness: Duration = 0, early: Duration | None = None) -> Windowed:
        """The records of a key in windows. late: what becomes of records all of whose windows are over: `ms.DROP` (they are counted), or the name of a
        stream that gets them.

        With one of the following, results may change, and are told as changes. lateness: how long after its end, in event time, records may still come to
        a window. early: how long by the wall clock, at the most, until a record shows in what is told of its window, although that has not ended."""
        if not isinstance(kind, WindowKind):
            raise DefinitionError(f"window({kind!r}): use one of ms.windows, such as ms.windows.tumbling('1m')")
        after, before = duration(lateness), None if early is None else duration(early)
        if isinstance(kind, Same) and (after or before is not None):
            raise DefinitionError("window(same()): lateness= and early= belong to the window that the results come from")
        return Windowed(self, kind, late, after, before)

    def reduce(
        self,
        reducer: Reducer | Mapping[str, Reducer] | None = None,
        /,
        *,
        name: str,
        expire: Any = None,
        on_error: str = FAIL,
        renamed_from: str | None = None,
        **named: Reducer,
    ) -> Any:
        """The total of every key, always that of all records so far: a view, to be published, or to derive others from.

        name: the identity of its state in the checkpoint. expire: for how long a key is kept that no record comes to, as in `compute`; its total then goes.
        """
        branches = distinct(self._branches, self.pipeline._chained)
        links = {one.stream: one.links for one in branches if one.links}
        inputs = {one.stream: one.key for one in branches}
        options = {"expire": expire, "on_error": on_error, "renamed_from": renamed_from}
        return self.pipeline._running(name, inputs, links, as_reducer(reducer, named), **options)

    def join(
        self,
        other: Any,
        *,
        after: Duration | None = None,
        before: Duration = 0,
        how: str = "inner",
        lateness: Duration = 0,
        late: str = DROP,
        name: str,
        on_error: str = FAIL,
    ) -> Any:
        """Every record with those of another keyed stream that have its key and are near it in event time: {"left": ..., "right": ...}.

        A right record is near if it is at most `after` newer and at most `before` older than the left one. how: "inner", or "left", "right" and "outer",
        which tell a record without a partner with None in the partner's place, as soon as none can come any more. A pair comes once, with the timestamp
        of the newer record.

        other may be a table or a view, too: every record with the document that is there under its key, by order of arrival. how: "inner" or "left".
        """
        if not isinstance(other, Keyed) and hasattr(other, "source"):
            if after is not None or before or lateness or late != DROP:
                raise DefinitionError(f"join {name!r}: a table has no time: leave after=, before=, lateness= and late= out, or use asof")
            one = self._single(f"join {name!r}")
            return self.pipeline._looked_up(name, one.stream, one.key, other, how, on_error)
        if not isinstance(other, Keyed):
            raise DefinitionError(f"join {name!r}: the other side is {other!r}: give a stream with its key, other.by(...)")
        if after is None:
            raise DefinitionError(f"join {name!r}: say how much newer the right record may be: after='30m', or after=0")
        from millstream.operators.interval_join import IntervalJoin

        make = partial(IntervalJoin, after=duration(after), before=duration(before), how=how, lateness=duration(lateness))
        about = {"join": f"after={after!r}, before={before!r}, how={how!r}"}
        return self._joined(other, make, name, late, on_error, about, kind=INTERVAL_JOIN, in_columns=True)

    def asof(
        self, other: Keyed, *, back: Duration | None = None, how: str = "left", late: str = DROP, name: str, on_error: str = FAIL
    ) -> Any:
        """Every record with the newest of another keyed stream that is not newer than it: {"left": ..., "right": ...}. It is told when the low watermark has
        passed it, so a right record that arrives later but is older counts. back: how much older it may be. how: "left" tells a record without a right one,
        too, "inner" does not."""
        from millstream.operators.asof import AsOfJoin

        make = partial(AsOfJoin, back=None if back is None else duration(back), how=how)
        return self._joined(other, make, name, late, on_error, {"asof": f"back={back!r}, how={how!r}"})

    def _joined(
        self, other: Keyed, make: Callable[..., Any], name: str, late: str, on_error: str, about: dict[str, str], **options: Any
    ) -> Any:
        left, right = (side._single(f"join {name!r}, {what} side") for side, what in ((self, "left"), (other, "right")))
        if left.stream == right.stream:
            right = right._replace(stream=self.pipeline._chained((Branch(right.stream),)))  # the same records, on two ways
        inputs = {left.stream: left.key, right.stream: right.key}
        return self.pipeline._operate(name, partial(make, left.stream), inputs, late, on_error=on_error, about=about, **options)

    def _single(self, what: str) -> KeyedBranch:
        """One stream without steps behind its key."""
        if len(self._branches) == 1 and not self._branches[0].links:
            return self._branches[0]
        keys = {str(one.key) for one in self._branches}
        if len(keys) > 1:
            raise DefinitionError(
                f"{what}: streams that were merged behind their keys have several of them. Merge them before: a.merge(b).by(...)"
            )
        key = self._branches[0].key
        steps = [one for one in self._branches if any(kind != FILTER for kind, _ in one.links)]
        if steps and key != ONE_GROUP:
            raise DefinitionError(f"{what}: map and flat_map stand before by(...) here, because the key is worked out behind them")
        return KeyedBranch(self.pipeline._chained(tuple(Branch(one.stream, one.links) for one in self._branches)), key)

    def deduplicate(self, *, within: Duration, late: str = DROP, name: str, on_error: str = FAIL) -> Stream[V]:
        """The first record of every key, and then none less than `within` away from it in event time."""
        from millstream.operators.first import Deduplicate

        one = self._single(f"deduplicate {name!r}")
        about = {"deduplicate": f"within={within!r}"}
        make = partial(Deduplicate, duration(within))
        first: Stream[V] = self.pipeline._operate(name, make, {one.stream: one.key}, late, on_error=on_error, about=about)
        return first

    def in_order(self, *, late: str = DROP, name: str, on_error: str = FAIL) -> Stream[V]:
        """The records of every key in order of (timestamp, id), each when the low watermark has passed it."""
        from millstream.operators.in_order import InOrder

        one = self._single(f"in_order {name!r}")
        ordered: Stream[V] = self.pipeline._operate(name, InOrder, {one.stream: one.key}, late, on_error=on_error, about={"in_order": ""})
        return ordered

    def detect(self, **options: Any) -> Any:
        """What is not as usual in the series of every key, with the arguments of `Stream.detect`."""
        one = self._single(f"detect {options.get('name')!r}")
        keyed = Stream[V](one.stream, self.pipeline)
        keyed._key, keyed._key_fields = one.key, self._fields
        return keyed.detect(**options)


class Windowed:
    """A keyed stream in windows."""

    def __init__(self, keyed: Keyed, kind: WindowKind, late: str, lateness: int, early: int | None) -> None:
        self._keyed, self._kind, self._late, self._lateness, self._early = keyed, kind, late, lateness, early

    def reduce(
        self,
        reducers: Reducer | Mapping[str, Reducer] | None = None,
        /,
        *,
        name: str,
        spread: int | None = None,
        on_error: str = FAIL,
        renamed_from: str | None = None,
        **named: Reducer,
    ) -> Any:
        """One result per key and window, when no record of it is expected any more.

        Its value is a dict: the fields of `by` (or `key`, where that is a function or an expression), `start`, `end`, and what the reducers show, by name; a
        single one is called as its kind is (`ms.count()`: "count"). Its timestamp is `end - 1`, so it falls into the windows that its own window lies in.
        name: the identity of its state in the checkpoint. spread: for a key with very many records: its records are counted in so many groups, in as many
        tasks as there are, and the groups are joined behind; the results are the same.

        With `lateness=` or `early=` it gives changes, as a view does: publish them, read them as a stream of [prev, next] (`.changes`), or derive views of
        them. The key of what is published is that of the window: the key and `start`.
        """
        made = as_reducer(reducers, named)
        members = dict(made.members) if isinstance(made, Several) else {getattr(made, "name", type(made).__name__): made}
        fields = self._keyed._fields
        for word in ("start", "end", *(fields if fields is not None else ("key",))):
            if word in members:
                raise DefinitionError(
                    f"window {name!r}: a reducer cannot be called {word!r}, because every result has that field. Give it another name."
                )
        branches = distinct(self._keyed._branches, self._keyed.pipeline._chained)
        about = {"window": self._kind.describe(), "reduce": made.describe()}
        options: dict[str, Any] = {"on_error": on_error, "renamed_from": renamed_from, "about": about}
        links = {one.stream: one.links for one in branches if one.links}
        spec = WindowSpec(self._kind, members, fields, links, self._lateness, self._early)
        if spec.changes and isinstance(self._kind, Session):  # those are told key by key
            about["parts"] = ", ".join(type(one).__name__ for one in members.values())
        else:
            options |= {"kind": WINDOW, "window": shape_of(self._kind, members), "in_columns": True}
        if spec.changes:
            about["changes"] = (
                f"lateness={spec.lateness} ms, early={spec.early} ms" if spec.early is not None else f"lateness={spec.lateness} ms"
            )
            options |= {"stream": f"{name}~told", "refines": True}
        pipeline, inputs, late = self._keyed.pipeline, {one.stream: one.key for one in branches}, self._late
        if spread is not None:
            spec, inputs, late = spread_out(pipeline, name, spec, spread, inputs, late, options), {f"{name}.parts": Unsalted()}, DROP
        told = pipeline._operate(name, partial(window_operator, spec), inputs, late, **options)
        told._key_fields = fields
        return pipeline._changing(name, told.name, fields == ()) if spec.changes else told


def spread_out(
    pipeline: Any, name: str, spec: WindowSpec, spread: int, inputs: Mapping[str, Any], late: str, options: dict[str, Any]
) -> WindowSpec:
    """Adds the operator that makes parts, and says what joins them. options: of both; afterwards those of what joins."""
    check_spread(name, spec, spread)
    keys = {stream: salted(name, key, stream, spread, pipeline._injector) for stream, key in inputs.items()}
    was = options["renamed_from"]
    about = {**options["about"], "spread": f"over {spread} groups of each key", "joined by": name}
    parts = {**options, "about": about, "renamed_from": None if was is None else f"{was}.parts"}
    pipeline._operate(f"{name}.parts", partial(window_operator, replace(spec, fields=(), tells_parts=True)), keys, late, **parts)
    joining = WindowSpec(Same(), {field: OfParts(one, field) for field, one in spec.reducers.items()}, spec.fields)
    options["about"] = {"window": joining.kind.describe(), "reduce": options["about"]["reduce"]}
    options["window"] = shape_of(joining.kind, spec.reducers)
    return joining


def distinct(branches: Sequence[Any], chained: Callable[[tuple[Branch, ...]], str]) -> tuple[Any, ...]:
    """Branches with each stream once: a second way of the same one goes through a step of its own."""
    found: dict[str, Any] = {}
    for one in branches:
        if one.stream in found:
            one = one._replace(stream=chained((Branch(one.stream),)))
        found[one.stream] = one
    return tuple(found.values())


def stateless(branches: Sequence[Branch], is_injected: Callable[[str], bool], taken: Sequence[str]) -> ComputationSpec:
    """A computation of steps without state. Its name is made of what it reads; taken: names that others of its kind have."""
    base = "+".join(one.stream.partition("~")[0] for one in branches)
    name = f"{base}~{1 + sum(other.partition('~')[0] == base for other in taken)}"
    inputs = tuple(Input(one.stream, key=() if is_injected(one.stream) else None) for one in branches)
    about = {"steps": "; ".join(f"{kind} {spelled(function)}" for one in branches for kind, function in one.links)}
    make = partial(stateless_steps, {one.stream: one.links for one in branches}, {i.stream: i.key is None for i in inputs})
    in_columns = not any(is_injected(one.stream) for one in branches)
    return ComputationSpec(name, make, inputs, (name,), hidden=True, about=about, in_columns=in_columns)


def stateless_steps(links: Mapping[str, Sequence[Link]], keyed: Mapping[str, bool]) -> Any:
    """The computation, made where it runs."""
    from millstream.operators.chain import Stateless

    return Stateless(links, keyed)


def keyed_inputs(inputs: Sequence[Any], who: str, key: Any) -> tuple[Sequence[Any], Any]:
    """Inputs of which some bring their key, as streams and a key for each."""
    if not any(isinstance(one, Keyed) for one in inputs):
        return inputs, key
    if key is not None and not isinstance(key, Mapping):
        raise DefinitionError(f"{who}: give key= or streams with their key (by(...)), not both")
    found, keys = [], dict(key or {})
    for one in inputs:
        if isinstance(one, Keyed):
            branch = one._single(who)
            keys[branch.stream] = branch.key
            one = Stream(branch.stream, one.pipeline)
        found.append(one)
    return found, keys


def window_operator(spec: WindowSpec) -> Any:
    """The operator, made where it runs: it needs pyarrow."""
    if spec.changes:
        from millstream.operators.changing_panes import ChangingWindow
        from millstream.operators.changing_sessions import ChangingSessions

        return ChangingSessions(spec) if isinstance(spec.kind, Session) else ChangingWindow(spec)
    if isinstance(spec.kind, Session):
        from millstream.operators.session import SessionWindow

        return SessionWindow(spec)
    from millstream.operators.panes import PaneWindow

    return PaneWindow(spec)


def production_kind(kind: str, who: str) -> str:
    if kind not in PRODUCTIONS:
        raise DefinitionError(f"{who}: production={kind!r}: use ms.WEAK, ms.STRONG or ms.ADAPTIVE")
    return kind
