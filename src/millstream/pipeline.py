"""Pipeline: what users wire, and where they say run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core import dedup as rules_of_ids
from millstream.core.computation import Computation, Forward
from millstream.core.dedup import Dedup
from millstream.core.expiry import expiry
from millstream.core.outcome import DROP, HOOK
from millstream.core.record import V
from millstream.core.statekind import Codec
from millstream.core.time import Duration, duration
from millstream.core.topology import DEAD_LETTER, FAIL, ComputationSpec, Emission, Injector, Input, Topology, as_key, check_on_error
from millstream.core.typed import is_class_of_values
from millstream.core.watermark import Bounded, Partitions, Policy, bounded
from millstream.engine.program import Program
from millstream.errors import DefinitionError
from millstream.operators.expressions import as_text
from millstream.operators.record_keys import with_record_keys
from millstream.operators.streams import Branch, Keyed, Stream, Via, distinct, keyed_inputs, production_kind, stateless
from millstream.sinks.base import Sink
from millstream.sources.base import as_source
from millstream.sources.schema import check_injector, check_keys, table_fields
from millstream.state.codec import msgpack
from millstream.views import cdc
from millstream.views.cdc import Feed
from millstream.views.compile import compiled
from millstream.views.dsl import Joined, Lookups, PipelineTable, Relation, RunningView, View, WindowChanges
from millstream.views.operator import CHANGELOG, CHANGES, LATEST
from millstream.views.table import TableRules

if TYPE_CHECKING:
    from millstream.handle import Handle

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_FORWARD = "emit~"  # no name of a user's has a tilde


class Pipeline:
    """A graph of injectors, computations and sinks.

    >>> class Count(Computation):
    ...     State = int
    ...     def process_record(self, record):
    ...         self.state += 1
    >>> import millstream as ms
    >>> pipeline = ms.Pipeline("visits")
    >>> visits = pipeline.inject("visits", ms.sources.rate(10), timestamp="timestamp")
    >>> pipeline.compute(Count, visits, key="value")
    Stream('Count')
    """

    def __init__(self, name: str, *, codec: Codec = msgpack) -> None:
        self.name = _checked(name, "pipeline")
        self.codec = codec
        self._injectors: list[Injector] = []
        self._computations: list[ComputationSpec] = []
        self._emissions: list[Emission] = []
        self._relations: list[Relation] = []
        self._expressions: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def inject(
        self,
        name: str,
        source: Any,
        *,
        timestamp: Any = None,
        id: Any = None,
        value: str | type[V] | None = None,
        watermark: Policy | None = None,
        dedup: Duration | Dedup | None = "10m",
    ) -> Stream[V]:
        """Brings records in from a source: one of `ms.sources`, any streaming DataFrame, or a function that makes one of the Spark session.

        timestamp: a column (milliseconds as long, or a Spark timestamp), SQL text or a Column; without it, records get the time at which their
        epoch was planned. id: a column, SQL text or Column that names a record; without it, the id follows from the row's content.
        value: one column to be the record's value, or a dataclass or Struct to be made of the row; else it is the row as a dict. watermark: one of
        `ms.watermarks`; by default bounded with no delay: what is older than the newest may be late. dedup: for how long (of arrival time) ids are held, so
        that a repeated record counts once; `ms.dedup(horizon, slack=)` says more, None switches it off. Without id= there is nothing to go by.
        """
        _checked(name, "stream")
        if any(i.name == name for i in self._injectors):
            raise DefinitionError(f"two injected streams are called {name!r}")
        known = as_source(source)
        if known is None:
            raise DefinitionError(
                f"inject({name!r}, ...): {type(source).__name__} is no source. Give one of ms.sources, a streaming DataFrame, or a function that makes one "
                f"of the session, such as lambda spark: spark.readStream.format('kafka')..."
            )
        if not isinstance(watermark or bounded(0), Policy):
            raise DefinitionError(f"inject({name!r}, watermark=...): use one of ms.watermarks, such as ms.watermarks.bounded('2s')")
        if isinstance(watermark, Partitions):
            known, column = known.partitioned()
            watermark = msgspec.structs.replace(watermark, sub_column=column)
        rule = None if dedup is None or id is None else dedup if isinstance(dedup, Dedup) else rules_of_ids.dedup(dedup)
        self._injectors.append(
            Injector(
                name=name,
                source=known,
                timestamp=as_text(timestamp),
                id=as_text(id),
                value=None if is_class_of_values(value) else value,  # type: ignore[arg-type]
                typed=value if is_class_of_values(value) else None,  # type: ignore[arg-type]
                watermark=watermark or Bounded(delay=0, is_given=False),
                dedup=rule,
            )
        )
        check_injector(self._injectors[-1])
        return Stream(name, self)

    def compute(
        self,
        computation: Callable[[], Computation],
        *inputs: Stream | Keyed | Via | str,
        key: Any = None,
        produces: str | Sequence[str] | None = None,
        name: str | None = None,
        codec: Codec | None = None,
        renamed_from: str | None = None,
        production: str | Mapping[str, str] | None = None,
        slow_after: Duration = "1s",
        late: str | Mapping[str, str] | None = None,
        on_error: str = FAIL,
        expire: Duration | tuple[Duration, str] | None = None,
    ) -> Any:
        """Runs a computation on one or several streams.

        computation: a subclass of `ms.Computation`, or anything that makes an instance when called. inputs: streams, also with their key (`by(...)`).
        key: for an injected stream a column name, SQL text such as "coalesce(user, '?')", what `ms.col("user")` makes, a list of those (the key is a
        tuple), or a Spark Column; for an internal stream a field's name, SQL text, what ms.col makes, a list of those, a callable on the record, or None
        for the producer's key, which needs no shuffle. A dict gives each stream its own.
        produces: the name of the output stream, or several. name: the identity of its state in the checkpoint, by default the
        class's name. Returns the output stream, or a tuple of streams.

        production: how its productions reach other computations: `ms.WEAK` (the default: in the same epoch), `ms.STRONG` (stored in the
        commit, delivered in the next epoch), `ms.ADAPTIVE` (weak, stored while a consumer takes longer than slow_after or fails); a dict gives
        each stream its own, and `stream.via(...)` one consumer. late: for late records, `ms.DROP`, or the name of a stream
        that gets them; without it they go to `process_late_record`; a dict gives each input its own. on_error: `ms.DEAD_LETTER` sends what makes a hook
        raise, and records that no hook can be called with (a null key or timestamp, a row that does not fit its source's schema), to the stream
        `<name>.dead-letters`; without it the epoch fails. expire: for how long a key is kept that no record comes to, by event time, or, as
        ("30d", ms.WALL_CLOCK), by the clock.
        """
        name = self._name_of(computation, name)
        given = self._inputs(name, inputs, key, late)
        outputs = (name,) if produces is None else (produces,) if isinstance(produces, str) else tuple(produces)
        for output in (*outputs, *[i.late for i in given if i.late not in (DROP, HOOK)]):
            _checked(output, "stream")
        check_on_error(f"computation {name!r}", on_error)
        spec = ComputationSpec(
            name=name,
            factory=computation,
            inputs=given,
            produces=outputs,
            codec=codec,
            renamed_from=renamed_from,
            production={
                stream: production_kind(kind, f"computation {name!r}")
                for stream, kind in _by_stream(name, "production", production, outputs, "produce").items()
            },
            slow_after=duration(slow_after),
            dead_letters=dead_letters(name) if on_error == DEAD_LETTER else None,
            expire=expiry(name, expire),
        )
        self._computations.append(spec)
        made = tuple(Stream(output, self) for output in outputs)
        return made[0] if len(made) == 1 else made

    def _chained(self, branches: tuple[Branch, ...]) -> str:
        """The stream of what is done to records on their way: a computation that nobody has named."""
        names = [spec.name for spec in self._computations if spec.hidden]
        self._computations.append(stateless(distinct(branches, self._chained), self._is_injected, names))
        return self._computations[-1].name

    def _operate(
        self, name: str, factory: Callable[[], Computation], inputs: Mapping[str, Any], late: str | None, **options: Any
    ) -> Stream:
        """Adds an operator, whose output stream has its name unless `stream` is given. inputs: streams with their keys."""
        self._check_free(name, "operator")
        given = self._inputs(name, [Stream(stream, self) for stream in inputs], dict(inputs), late)
        on_error = options.pop("on_error", FAIL)
        check_on_error(f"operator {name!r}", on_error)
        letters = dead_letters(name) if on_error == DEAD_LETTER else None
        stream = options.pop("stream", name)
        self._computations.append(ComputationSpec(name, factory, given, (stream,), dead_letters=letters, **options))
        return Stream(stream, self)

    def _changing(self, operator: str, stream: str, is_one_group: bool) -> WindowChanges:
        return WindowChanges(operator, stream, is_one_group, self)

    def _running(self, name: str, inputs: Mapping[str, Any], links: Mapping[str, Any], reducer: Any, expire: Any, **options: Any) -> Any:
        given = self._inputs(name, [Stream(stream, self) for stream in inputs], dict(inputs), None)
        return RunningView(name, self, given, links, reducer, expire=expiry(name, expire), **options)

    def _looked_up(self, name: str, stream: str, key: Any, right: Any, how: str, on_error: str) -> Stream:
        (left,) = self._inputs(name, [Stream(stream, self)], {stream: key}, None)
        Lookups(name, self, left, right, how, on_error)
        return Stream(name, self)

    def _name_of(self, computation: Any, name: str | None) -> str:
        """A computation's name: the one given, or that of its class."""
        if name is None:
            name = getattr(computation, "__name__", None) or getattr(getattr(computation, "func", None), "__name__", None)
        if not name or not callable(computation):
            raise DefinitionError(f"compute({computation!r}): give a subclass of ms.Computation, or a callable that makes one, with name=")
        if isinstance(computation, type) and not issubclass(computation, Computation):
            raise DefinitionError(f"compute({computation.__name__}): it is not a subclass of ms.Computation")
        self._check_free(name, "computation")
        return name

    def _check_free(self, name: str, what: str) -> None:
        _checked(name, what)
        if name in self._names:
            is_plain = what == "computation" and all(one.name != name for one in self._relations)
            both = "computations" if is_plain else "computations, tables or views"
            raise DefinitionError(f"two {both} are called {name!r}: give one of them another name=")

    @property
    def _names(self) -> set[str]:
        return {spec.name for spec in self._computations} | {relation.name for relation in self._relations}

    def _inputs(self, name: str, inputs: Sequence[Any], key: Any, late: str | Mapping[str, str] | None) -> tuple[Input, ...]:
        """The streams that a computation reads, each with its key and its way."""
        if not inputs:
            raise DefinitionError(f"computation {name!r} reads no stream")
        inputs, key = keyed_inputs(inputs, f"computation {name!r}", key)
        ways = [i if isinstance(i, Via) else None for i in inputs]
        streams = [self._stream_name(i.stream if isinstance(i, Via) else i, f"computation {name!r}") for i in inputs]
        if len(set(streams)) < len(streams):
            raise DefinitionError(f"computation {name!r} reads a stream twice: {streams}")
        keys, lates = _by_stream(name, "key", key, streams, "read"), _by_stream(name, "late", late, streams, "read")
        found = tuple(
            Input(
                stream=stream,
                key=as_key(as_text(keys.get(stream))),
                production=via.production if via else None,
                slow_after=via.slow_after if via else None,
                late=lates.get(stream, HOOK),
            )
            for stream, via in zip(streams, ways, strict=True)
        )
        check_keys(f"key of computation {name!r}", found, self._injectors)
        return found

    def dead_letters(self, computation: str) -> Stream:
        """The stream of what made a computation's hooks raise. Its values are dicts: stream, value, timestamp, id, computation, error, traceback."""
        for relation in self._relations:
            if relation.name == computation and isinstance(relation, PipelineTable | View) and relation.on_error == DEAD_LETTER:
                return Stream(dead_letters(computation), self)
        specs = [spec for spec in self._computations if spec.name == computation or spec.about.get("joined by") == computation]
        letters = tuple(Branch(spec.dead_letters) for spec in specs if spec.dead_letters is not None)
        if not letters:
            raise DefinitionError(
                f"computation {computation!r} has no dead letters: there is none, or it was not given on_error=ms.DEAD_LETTER"
            )
        return Stream(letters[0].stream if len(letters) == 1 else "", self, letters)

    def late_records(self, stream: str) -> Stream:
        """A stream of late records, as named with `late=`. Its values are dicts: stream, value, timestamp, id, low_watermark."""
        if all(stream not in spec.late_streams.values() for spec in self._computations):
            raise DefinitionError(f"no computation was given late={stream!r}")
        return Stream(stream, self)

    def emit(self, stream: Stream | str, sink: Sink, *, ids: bool = False, name: str | None = None) -> None:
        """Sends a stream to a sink. A stream may go to several sinks. ids: rows carry `id`, the same on every retry, for whoever deduplicates downstream.
        name: of what is sent, in the names of files and in the checkpoint, by default that of the stream."""
        found = self._stream_name(stream, "emit")
        self._emit_as(found if name is None else _checked(name, "output"), found, sink, ids)

    def _emit_as(self, name: str, stream: str, sink: Sink, ids: bool) -> None:
        if not isinstance(sink, Sink):
            raise DefinitionError(f"{type(sink).__name__} is no sink. Use one of ms.sinks.")
        taken = sum(e.name.partition("~")[0] == name for e in self._emissions)
        self._emissions.append(Emission(f"{name}~{taken}" if taken else name, stream, sink, ids))

    # --- tables and views

    def table(
        self,
        name: str,
        *sources: Any,
        key: Any,
        version: Any = None,
        deleted: Any = None,
        change: Feed | None = None,
        columns: Sequence[str] | None = None,
        tombstones: Duration | None = "7d",
        timestamp: Any = None,
        on_error: str = FAIL,
        renamed_from: str | None = None,
    ) -> PipelineTable:
        """Keeps the latest document of every key, and tells everybody who derives from it what has changed.

        sources: what `inject` takes, or streams. A snapshot and its changes may be two of them; then version= is a must. A source of one's own is
        injected under the table's name, further ones under name.2, name.3, ... key: a column, or several; on streams of computations a field, or a
        function. version: a field, several, or a function of the row: the greatest counts, whatever the order of arrival. Without it epochs count in
        their order. deleted: a field or a function that says that a document is gone. change: one of `ms.changes`, for rows that are not documents
        themselves. columns: the fields that are kept, all unless given. tombstones: for how long a deletion keeps older versions from coming
        back, None for ever. timestamp: the event time of records, by default that of their epoch. on_error: as in `compute`.

        >>> import millstream as ms
        >>> pipeline = ms.Pipeline("people")
        >>> pipeline.table("users", ms.sources.files("in/", schema="id long, name string, ts long"), key="id", version="ts")
        PipelineTable('users')
        """
        self._check_free(name, "table")
        if not sources:
            raise DefinitionError(f"table {name!r}: give at least one source or stream")
        only: Any = sources[0] if len(sources) == 1 and change is version is deleted is None else None
        if getattr(only, "version", None) is not None:  # it knows its documents
            version, deleted, columns = only.version, only.deleted, only.documents() if columns is None else columns
        if deleted is not None and change is not None:
            raise DefinitionError(f"table {name!r}: give deleted= or change=, not both: a form of change says itself what is a deletion")
        check_on_error(f"table {name!r}", on_error)
        feed = change or cdc.upserts(deleted=deleted)
        if not isinstance(feed, Feed):
            raise DefinitionError(f"table {name!r}: change={change!r}: use one of ms.changes, such as ms.changes.debezium()")
        versioned = version is not None or feed.version is not None
        if len(sources) > 1 and not versioned:
            raise DefinitionError(
                f"table {name!r} has {len(sources)} sources and no version=. Nobody could tell which of two documents is the newer one: name the field that "
                f"says it, such as version='ts'."
            )
        inputs = [
            self._table_input(name, given, name if not at else f"{name}.{at + 1}", key, feed, timestamp) for at, given in enumerate(sources)
        ]
        is_sorted = len(sources) > 1 or not self._is_injected(inputs[0].stream)
        rules = TableRules(
            read=cdc.reader(name, feed, version, is_sorted),
            versioned=versioned,
            columns=None if columns is None else tuple(columns),
            tombstones=None if tombstones is None else duration(tombstones),
            said=cdc.said_by_fields(feed, version),
            is_sorted=is_sorted,
        )
        fields = table_fields(name, inputs, self._injectors, feed, version, columns)
        return PipelineTable(name, self, inputs, rules, on_error, renamed_from, fields)

    def _table_input(self, table: str, given: Any, stream: str, key: Any, feed: Feed, timestamp: Any) -> Input:
        if isinstance(given, (Stream, str)):
            stream = self._stream_name(given, f"table {table!r}")
        elif isinstance(given, Via):
            stream = self._stream_name(given.stream, f"table {table!r}")
            return Input(stream, as_key(as_text(key)), given.production, given.slow_after)
        else:
            self.inject(stream, given, timestamp=timestamp)
        if self._is_injected(stream) and feed.kind != "upserts":
            return Input(stream, self._keyed(key, feed))
        return Input(stream, as_key(as_text(key)))

    def _injector(self, stream: str) -> Injector | None:
        return next((injector for injector in self._injectors if injector.name == stream), None)

    def _is_injected(self, stream: str) -> bool:
        return self._injector(stream) is not None

    def _keyed(self, key: Any, feed: Feed) -> Any:
        """The key of rows that are not documents themselves, as SQL, and what that means without Spark."""
        if not isinstance(key, str):
            return tuple(self._keyed(one, feed) for one in key)
        text = feed.key_expression(key)
        self._expressions[text] = partial(feed.key_of, key)
        return text

    def publish(self, relation: Relation, sink: Sink, *, mode: str = "changes", ids: bool = False) -> None:
        """Sends the changes of a table, a view or a join to a sink: at most one row per key and epoch.

        mode: "changes" gives rows whose value has `prev` and `next` (null: there was, or is, no such row); "latest" gives what is now, null when it is gone.
        """
        if not isinstance(relation, Relation):
            raise DefinitionError(f"publish({relation!r}): give a table, a view or a join; streams go to sinks with emit")
        if relation.pipeline is not self:
            raise DefinitionError(f"publish: {relation!r} belongs to another pipeline")
        if mode not in (CHANGES, LATEST):
            raise DefinitionError(f'publish({relation.name!r}, mode={mode!r}): use "changes" or "latest"')
        shown = relation.collected() if isinstance(relation, Joined) else relation
        self._emit_as(relation.title, shown.show(CHANGELOG if mode == CHANGES else LATEST), sink, ids)

    def _define(self, relation: Relation) -> None:
        self._check_free(relation.name, "table or view")
        self._relations.append(relation)

    def _changes_of(self, relation: Relation) -> Stream:
        shown = relation.collected() if isinstance(relation, Joined) else relation
        return Stream(shown.show(CHANGES), self)

    def topology(self) -> Topology:
        """The checked graph. Raises DefinitionError if something does not fit."""
        injected = {i.name for i in self._injectors}
        computations = [*self._computations, *compiled(self._relations, msgpack)]
        # Only computations have sinks, so a forwarder stands in between.
        forwarded = {one.stream: _FORWARD + one.stream for one in self._emissions if one.stream in injected}
        computations += [ComputationSpec(to, Forward, (Input(stream, key=()),), (to,), hidden=True) for stream, to in forwarded.items()]
        emissions = [msgspec.structs.replace(one, stream=forwarded.get(one.stream, one.stream)) for one in self._emissions]
        if not self._injectors:
            raise DefinitionError(f"pipeline {self.name!r} has no injector: nothing would ever come in")
        if not computations:
            raise DefinitionError(f"pipeline {self.name!r} has no computation and no sink: nothing would ever happen")
        return Topology(self._injectors, [with_record_keys(spec, injected) for spec in computations], emissions)

    def program(self) -> Program:
        """The pipeline, ready for an engine."""
        program = Program(self.name, self.topology(), self.codec)
        program.expressions.update(self._expressions)
        return program

    def explain(self) -> str:
        """The plan, for people: stages and tasks, which operators work on columns and why others do not, and what each keeps."""
        from millstream.status.explain import explained

        return explained(self.topology())

    def run(
        self,
        spark: Any = None,
        *,
        checkpoint: str | os.PathLike[str],
        trigger: Duration | None = None,
        available_now: bool = False,
        drain: bool = True,
        shards: int | None = None,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        drop: Sequence[str] = (),
        quiet: bool = False,
        serve: str | None = None,
        resident: bool = False,
        tasks: int | None = None,
        ui: str | None = None,
        metrics: str | None = None,
    ) -> Handle:
        """Starts the pipeline on Spark and returns a handle (`await_termination`, `stop`, `status`, `state`, `output`).

        spark: a session; without one, a local one is made. checkpoint: a directory or a URL (s3://, gs://, az://, abfss://) that is this pipeline's alone.
        available_now: process what is there and end; `drain` then ends event time, so that every window closes. trigger: how often an epoch begins
        ("500ms"). shards: fixed when the checkpoint is made, by default one per core. spark_checkpoint: where Spark keeps its offsets, by default there.
        drop: computations whose state may go. quiet: say nothing. resident: tasks stay, and epochs commit in tens of milliseconds; trigger is then the least
        time between two (0); tasks: how many. HOST:PORT of what is served: serve, its state; ui, a page that shows the run; metrics, for Prometheus.
        """
        from millstream.handle import launch
        from millstream.status.narrator import Narrator

        return launch(
            self.program(),
            Narrator(self.name, quiet),
            spark=spark,
            serve=serve,
            ui=ui,
            metrics=metrics,
            checkpoint=os.fspath(checkpoint),
            trigger=trigger,
            available_now=available_now,
            drain=drain,
            shards=shards,
            spark_checkpoint=None if spark_checkpoint is None else os.fspath(spark_checkpoint),
            storage_options=storage_options,
            drop=tuple(drop),
            resident=resident,
            tasks=tasks,
        )

    def _stream_name(self, stream: Stream | str, who: str) -> str:
        if isinstance(stream, str):
            return stream
        if not isinstance(stream, Stream):
            raise DefinitionError(f"{who}: {type(stream).__name__} is no stream. Give what inject or compute returned, or a stream's name.")
        if stream.pipeline is not self:
            raise DefinitionError(f"{who}: stream {stream.name!r} belongs to pipeline {stream.pipeline.name!r}")
        return stream.name


def dead_letters(computation: str) -> str:
    """The name of a computation's stream of dead letters."""
    return f"{computation}.dead-letters"


def _by_stream(computation: str, option: str, given: Any, streams: Sequence[str], does: str) -> dict[str, Any]:
    """An option that is one for all streams of a computation, or a dict that gives each its own."""
    if not isinstance(given, Mapping):
        return {} if given is None else dict.fromkeys(streams, given)
    unknown = sorted(set(given) - set(streams))
    if unknown:
        raise DefinitionError(f"computation {computation!r}: {option}= names the streams {unknown}, which it does not {does}")
    return dict(given)


def _checked(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 100:
        raise DefinitionError(
            f"{name!r} cannot name a {what}: use letters, digits, '_', '-' and '.', beginning with a letter or digit, at most 100"
        )
    return name
