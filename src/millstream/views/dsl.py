"""What users write: tables, views and joins, and how they become computations.

    table    one Gateway, keyed by the document's key. The maps of all that derive from it run inside
    view     one Group, keyed by the group
    join     one Join, keyed by the right side's key

A definition is data until the pipeline is run: only then is it known who derives from whom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from millstream.core.backfill import Derivation
from millstream.core.codec import Codec
from millstream.core.topology import DEAD_LETTER, FAIL, PRODUCED, STRONG, WEAK, ComputationSpec, Input, check_columns
from millstream.errors import DefinitionError
from millstream.reducers import Reducer, any, as_reducer
from millstream.reducers.base import spelled
from millstream.views.aggregate import INLINE_BYTES, ViewGroup, ViewRules
from millstream.views.change import Document, ViewCodec
from millstream.views.distinct import by_reference
from millstream.views.fingerprint import fingerprint
from millstream.views.join import INNER, LEFT, Join, JoinRules
from millstream.views.mapper import FILTER, FLAT_MAP, MAP, Link, check_link
from millstream.views.operator import CHANGES, LATEST, Outlet, Sending, Shown
from millstream.views.table import Gateway, TableRules

TOLD = "told"  # changes as rows of a sink have them
TABLE, VIEW, JOIN = "table", "view", "join"  # kinds, as manifests say them


class Definitions(Protocol):
    """The pipeline, as definitions see it."""

    def _define(self, relation: Relation) -> None:
        """Takes a relation in, if its name is free."""

    def _changes_of(self, relation: Relation) -> Any:
        """A relation's changes as a stream."""


class Mapped:
    """Documents, and what is done to them on the way to a group."""

    def __init__(self, of: Relation, links: tuple[Link, ...] = ()) -> None:
        self._of = of
        self._links = links

    def map(self, f: Callable[[Document], Any]) -> Mapped:
        """Every document with another value: what f gives of it."""
        return self._and(MAP, f)

    def flat_map(self, f: Callable[[Document], Any]) -> Mapped:
        """Every document as several values, or none: what f gives of it, one after the other."""
        return self._and(FLAT_MAP, f)

    def filter(self, f: Callable[[Document], Any]) -> Mapped:
        """Only the documents for which f is true."""
        return self._and(FILTER, f)

    def _and(self, kind: str, f: Any) -> Mapped:
        return Mapped(self._of, (*self._links, check_link(kind, f, self._of.name)))

    def by(self, *group: str | Callable[[Document], Any]) -> Grouped:
        """The group of every document: a field, several (the group is a tuple), a function of the document, or nothing: one group for all."""
        if len(group) == 1 and callable(group[0]):
            return Grouped(self, group[0])
        wrong = [one for one in group if not isinstance(one, str)]
        if wrong:
            raise DefinitionError(f"{self._of.name}.by({wrong[0]!r}): give names of fields, or one function of the document")
        if all(kind == FILTER for kind, _ in self._links):  # what a map gives, nobody knows
            check_columns(f"{self._of.name}.by", group, self._of.fields)
        return Grouped(self, tuple(str(one) for one in group))

    def join(self, right: Relation | Mapped, *, how: str = INNER, name: str | None = None) -> Joined:
        """Every document with the one of another table or view that has the same key."""
        return self.by(_own_key).join(right, how=how, name=name)


def _own_key(document: Document) -> Any:
    return document.key


class Grouped:
    """Documents with their groups."""

    def __init__(self, of: Mapped, by: Any) -> None:
        self._of = of
        self._by = by

    def reduce(
        self,
        reducer: Reducer | None = None,
        /,
        *,
        name: str,
        origins: bool = True,
        version: str | int = "",
        keep: bool = False,
        on_error: str = FAIL,
        production: str = WEAK,
        renamed_from: str | None = None,
        inline: int = INLINE_BYTES,
        **named: Reducer,
    ) -> View:
        """The total of every group, always that of the current documents.

        reducer: one of `ms.count() ms.sum() ...`, or several by name; a view shows then a dict. name: the identity of its state in the checkpoint.
        origins: what each document gives is kept apart, so that a change sets it and repairs are possible; False is smaller and faster, for reducers that
        have an inverse. version: another one has the view filled anew, beside what it shows. keep: the code has changed, and gives the same.
        on_error: `ms.DEAD_LETTER` sends documents whose map raises to the stream `<name>.dead-letters`; they give nothing until they map
        again. production: `ms.STRONG` has the view follow an epoch later. inline: up to so many bytes of contributions stand in a group's row.

        >>> import millstream as ms
        >>> pipeline = ms.Pipeline("people")
        >>> users = pipeline.table("users", ms.sources.files("in/", schema="id long, name string, ts long"), key="id", version="ts")
        >>> users.by("name").reduce(ms.count(), name="names")
        View('names')
        """
        return View(self, as_reducer(reducer, named), name, origins, str(version), keep, on_error, production, renamed_from, inline)

    def join(self, right: Relation | Mapped, *, how: str = INNER, name: str | None = None) -> Joined:
        """Every document with the one of another table or view whose key is its group: {"left": ..., "right": ...}.

        how: "inner" leaves documents without a right one out, "left" gives them None. name: of its state, by default made of both names.
        """
        return Joined(self, right, how, name)


class Relation(Mapped):
    """Rows that others can derive from: a table, a view or a join."""

    name: str
    fields: Collection[str] | None = None  # of its rows, where that can be told

    def __init__(self, name: str, pipeline: Definitions) -> None:
        super().__init__(self)
        self.name = name
        self.pipeline = pipeline
        self.shown: dict[str, str] = {}  # how, to the stream
        pipeline._define(self)

    @property
    def changes(self) -> Any:
        """Its changes as a stream of [prev, next] under the row's key, for `compute`."""
        return self.pipeline._changes_of(self)

    @property
    def senders(self) -> tuple[Relation, ...]:
        """Who speaks to it."""
        return ()

    def show(self, how: str) -> str:
        """The stream on which it tells its changes in a way."""
        stream = f"{self.name}.changes" if how == CHANGES else f"{self.name}~{how}"
        self.shown[how] = stream
        return stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class PipelineTable(Relation):
    """The latest document per key."""

    def __init__(
        self,
        name: str,
        pipeline: Definitions,
        inputs: Sequence[Input],
        rules: TableRules,
        on_error: str,
        renamed_from: str | None,
        fields: Collection[str] | None,
    ) -> None:
        super().__init__(name, pipeline)
        self.fields = fields
        self.inputs = tuple(inputs)
        self.rules = rules
        self.on_error = on_error
        self.renamed_from = renamed_from


class View(Relation):
    """The total of every group."""

    def __init__(
        self,
        of: Grouped,
        reducer: Reducer,
        name: str,
        origins: bool,
        version: str,
        keep: bool,
        on_error: str,
        production: str,
        renamed_from: str | None,
        inline: int,
    ) -> None:
        source = of._of._of
        if not origins and by_reference(reducer).remove is None:
            raise DefinitionError(f"view {name!r}: origins=False needs a reducer with an inverse, and {reducer!r} has none. Leave it out.")
        if reducer.wants_order and not (isinstance(source, PipelineTable) and source.rules.versioned):
            raise DefinitionError(
                f"view {name!r}: {reducer!r} goes by the version of documents, and {source!r} has none: say by=, or give the table a version="
            )
        if on_error not in (FAIL, DEAD_LETTER):
            raise DefinitionError(f"view {name!r}: on_error={on_error!r}: use ms.FAIL or ms.DEAD_LETTER")
        if production not in (WEAK, STRONG):
            raise DefinitionError(f"view {name!r}: production={production!r}: use ms.WEAK or ms.STRONG")
        self.of = of
        self.reducer = by_reference(reducer)
        self.origins = origins
        self.version = version
        self.keep = keep
        self.on_error = on_error
        self.production = production
        self.renamed_from = renamed_from
        self.inline = inline
        super().__init__(name, source.pipeline)

    @property
    def senders(self) -> tuple[Relation, ...]:
        return (self.of._of._of,)


class Joined(Relation):
    """Documents of a left side beside those of a right side."""

    def __init__(self, left: Grouped, right: Relation | Mapped, how: str, name: str | None) -> None:
        if not isinstance(right, Mapped):
            raise DefinitionError(f"join({right!r}): give a table or a view, or one with map or filter behind it")
        if isinstance(right._of, Joined):
            raise DefinitionError(
                f"join: the right side is the join {right._of.name!r}, whose rows are many per key. Collect them first: "
                f"joined.by(lambda row: row.key).reduce(ms.any(), name=...), and join that."
            )
        if any_flat(right._links):
            raise DefinitionError("join: a flat_map on the right side would give several documents for one key")
        if how not in (INNER, LEFT):
            raise DefinitionError(f'join(how={how!r}): use "inner" or "left"')
        source = left._of._of
        self.left = left
        self.right = right
        self.how = how
        self.collector: View | None = None
        super().__init__(name or f"{source.name}-{right._of.name}", source.pipeline)

    @property
    def senders(self) -> tuple[Relation, ...]:
        return (self.left._of._of, self.right._of)

    def collected(self) -> View:
        """The joined rows by the left document's key, for whoever reads or publishes them."""
        if self.collector is None:
            self.collector = self.by(_own_key).reduce(any(), name=f"{self.name}.rows")
        return self.collector


def any_flat(links: Sequence[Link]) -> bool:
    """Whether a chain may give several values."""
    return FLAT_MAP in [kind for kind, _ in links]


def compiled(relations: Sequence[Relation], codec: Codec) -> list[ComputationSpec]:
    """The computations of a pipeline's tables, views and joins."""
    outlets: dict[str, list[Outlet]] = {relation.name: [] for relation in relations}
    inputs: dict[str, list[Input]] = {relation.name: [] for relation in relations}
    for relation in relations:
        if isinstance(relation, View):
            _wire_view(relation, outlets, inputs)
        elif isinstance(relation, Joined):
            _wire_join(relation, outlets, inputs)
    return [_specified(relation, outlets[relation.name], inputs[relation.name], codec) for relation in relations]


def _wire_view(view: View, outlets: dict[str, list[Outlet]], inputs: dict[str, list[Input]]) -> None:
    mapped = view.of._of
    lift = view.reducer.lift_at
    letters = f"{view.name}.dead-letters" if view.on_error == DEAD_LETTER else None
    stream = f"{view.name}~"
    outlets[mapped._of.name].append(Outlet(view.name, stream, mapped._links, view.of._by, lift, origins=view.origins, dead_letters=letters))
    inputs[view.name].append(Input(stream, PRODUCED, None if view.production == WEAK else view.production))


def _wire_join(join: Joined, outlets: dict[str, list[Outlet]], inputs: dict[str, list[Input]]) -> None:
    left, right = join.left._of, join.right
    streams = [f"{join.name}~left", f"{join.name}~right"]
    outlets[left._of.name].append(Outlet(join.name, streams[0], left._links, join.left._by))
    outlets[right._of.name].append(Outlet(join.name, streams[1], right._links, right=True))
    inputs[join.name] += [Input(stream, PRODUCED) for stream in streams]


def _specified(relation: Relation, outlets: Sequence[Outlet], inputs: Sequence[Input], codec: Codec) -> ComputationSpec:
    sending = Sending(relation.name, codec, tuple(outlets), tuple(Shown(stream, how) for how, stream in relation.shown.items()))
    streams = [outlet.stream for outlet in outlets] + list(relation.shown.values()) + [o.dead_letters for o in outlets if o.dead_letters]
    derives: Derivation | None = None
    letters: str | None = None
    renamed: str | None = None
    senders = tuple(dict.fromkeys(sender.name for sender in relation.senders))
    if isinstance(relation, PipelineTable):
        factory: Any = partial(Gateway, sending, relation.rules)
        inputs = relation.inputs
        letters = f"{relation.name}.dead-letters" if relation.on_error == DEAD_LETTER else None
        renamed = relation.renamed_from
    elif isinstance(relation, View):
        factory = partial(ViewGroup, sending, ViewRules(relation.reducer, relation.origins, relation.inline))
        chain = relation.of._of
        seen = fingerprint(chain._links, relation.of._by, relation.reducer, relation.origins)
        derives = Derivation(senders, relation.version, seen, relation.keep)
        renamed = relation.renamed_from
    else:
        assert isinstance(relation, Joined)
        factory = partial(Join, sending, JoinRules(f"{relation.name}~left", relation.how))
        seen = fingerprint(relation.left._of._links, relation.left._by, relation.right._links, relation.how)
        derives = Derivation(senders, "", seen, is_join=True)
    return ComputationSpec(
        name=relation.name,
        factory=factory,
        inputs=tuple(inputs),
        produces=tuple(dict.fromkeys(streams)),
        codec=ViewCodec(codec),
        renamed_from=renamed,
        dead_letters=letters,
        derives=derives,
        refines=True,
        kind=TABLE if isinstance(relation, PipelineTable) else VIEW if isinstance(relation, View) else JOIN,
        about=_about(relation),
    )


def _about(relation: Relation) -> dict[str, str]:
    """What was written, for whoever reads a checkpoint without the code."""
    if isinstance(relation, PipelineTable):
        rules = relation.rules
        found = {"reads": ", ".join(one.stream for one in relation.inputs), "key": _spelled_key(relation.inputs[0].key)}
        found["versions"] = "the greatest counts" if rules.versioned else "none: epochs count in their order"
        return found if rules.columns is None else {**found, "columns": ", ".join(rules.columns)}
    if isinstance(relation, View):
        found = {"of": _spelled(relation.of._of), "by": _spelled_by(relation.of._by), "reducer": relation.reducer.describe()}
        found["origins"] = "kept" if relation.origins else "not kept"
        found["nodes"] = "none, because the reducer has an inverse" if relation.reducer.remove is not None else "of partial results"
        return {**found, "inline": str(relation.inline), "production": relation.production}
    assert isinstance(relation, Joined)
    left = f"{_spelled(relation.left._of)} by {_spelled_by(relation.left._by)}"
    return {"of": left, "with": _spelled(relation.right), "how": relation.how}


def _spelled(mapped: Mapped) -> str:
    """The relation and the chain behind it, such as users.filter(adult)."""
    return mapped._of.name + "".join(f".{kind}({spelled(f)})" for kind, f in mapped._links)


def _spelled_by(by: Any) -> str:
    if by is _own_key:
        return "its key"
    return spelled(by) if callable(by) else ", ".join(map(repr, by)) or "nothing: one group for all"


def _spelled_key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, (list, tuple)) else str(key) if isinstance(key, str) else spelled(key)


__all__ = ["CHANGES", "LATEST", "TOLD", "Definitions", "Grouped", "Joined", "Mapped", "PipelineTable", "Relation", "View", "compiled"]
