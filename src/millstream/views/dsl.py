"""What users write: tables, views and joins. A definition is data until the pipeline is run: only then is it known who derives from whom (`compile.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from millstream.core.links import FILTER, FLAT_MAP, MAP, Link
from millstream.core.topology import FAIL, STRONG, WEAK, Input, check_columns, check_on_error
from millstream.errors import DefinitionError
from millstream.reducers.base import Reducer
from millstream.reducers.composite import as_reducer
from millstream.reducers.values import any_value
from millstream.views.aggregate import INLINE_BYTES
from millstream.views.change import Document
from millstream.views.distinct import by_reference
from millstream.views.join import INNER, LEFT
from millstream.views.operator import CHANGES
from millstream.views.table import TableRules

TABLE, VIEW, JOIN = "table", "view", "join"  # kinds, as manifests say them


class Definitions(Protocol):
    """The pipeline, as definitions see it."""

    def _define(self, relation: Relation) -> None: ...
    def _changes_of(self, relation: Relation) -> Any: ...


class Mapped:
    """Documents, and what is done to them on the way to a group."""

    def __init__(self, source: Relation, links: tuple[Link, ...] = ()) -> None:
        self.source = source
        self.links = links

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
        if not callable(f):
            raise DefinitionError(f"{self.source.name}.{kind}({f!r}): give a function of the document, such as lambda row: row.value[...]")
        return Mapped(self.source, (*self.links, (kind, f)))

    def by(self, *group: str | Callable[[Document], Any]) -> Grouped:
        """The group of every document: a field, several (the group is a tuple), a function of the document, or nothing: one group for all."""
        if len(group) == 1 and callable(group[0]):
            return Grouped(self, group[0])
        wrong = [one for one in group if not isinstance(one, str)]
        if wrong:
            raise DefinitionError(f"{self.source.name}.by({wrong[0]!r}): give names of fields, or one function of the document")
        if all(kind == FILTER for kind, _ in self.links):  # the fields of what a map gives are not known
            check_columns(f"{self.source.name}.by", group, self.source.fields)
        return Grouped(self, tuple(str(one) for one in group))

    def join(
        self,
        right: Relation | Mapped,
        *,
        on: str | Sequence[str] | Callable[[Document], Any] | None = None,
        how: str = INNER,
        name: str | None = None,
    ) -> Joined:
        """Every document with the one of another table or view whose key it names: {"left": ..., "right": ...}.

        on: the field (or fields, for a key that is a tuple) that holds the other's key, or a function of the document; by default both have the same key.
        how: "inner" leaves documents without a right one out, "left" gives them None. name: of its state, by default made of both names."""
        fields: Sequence[Any] = [own_key] if on is None else [on] if isinstance(on, str) or callable(on) else on
        return self.by(*fields).join(right, how=how, name=name)


def own_key(document: Document) -> Any:
    return document.key


class Grouped:
    """Documents with their groups. group: names of fields, or a function of the document."""

    def __init__(self, mapped: Mapped, group: Any) -> None:
        self.mapped = mapped
        self.group = group

    def reduce(
        self,
        reducer: Reducer | Mapping[str, Reducer] | None = None,
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
        options = ViewOptions(origins, str(version), keep, on_error, production, renamed_from, inline)
        return View(self, as_reducer(reducer, named), name, options)

    def join(self, right: Relation | Mapped, *, how: str = INNER, name: str | None = None) -> Joined:
        """Every document with the one of another table or view whose key is its group, as `join(on=...)` of the documents."""
        return Joined(self, right, how, name)


class Relation(Mapped):
    """Rows that others can derive from: a table, a view or a join."""

    fields: Collection[str] | None = None  # of its rows, where that can be told
    senders: tuple[Relation, ...] = ()
    renamed_from: str | None = None

    def __init__(self, name: str, pipeline: Definitions) -> None:
        super().__init__(self)
        self.name = name
        self.pipeline = pipeline
        self.shown: dict[str, str] = {}  # how, to the stream
        pipeline._define(self)

    @property
    def title(self) -> str:
        """What its published rows are called."""
        return self.name

    @property
    def changes(self) -> Any:
        """Its changes as a stream of [prev, next] under the row's key, for `compute`."""
        return self.pipeline._changes_of(self)

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


class WindowChanges(Relation):
    """Windows that change, as an operator tells of them (`operators/changing_panes.py`). A view that derives from them keeps them all."""

    def __init__(self, operator: str, stream: str, is_one_group: bool, pipeline: Definitions) -> None:
        super().__init__(f"{operator}.windows", pipeline)
        self.operator, self.stream, self.is_one_group = operator, stream, is_one_group

    @property
    def title(self) -> str:
        return self.operator

    def show(self, how: str) -> str:
        self.shown[how] = f"{self.operator}.changes" if how == CHANGES else f"{self.operator}~{how}"
        return self.shown[how]

    def __repr__(self) -> str:
        return f"WindowChanges({self.operator!r})"


class RunningView(Relation):
    """The total of every group of a stream. links: by stream, what is done to its records before."""

    def __init__(
        self, name: str, pipeline: Definitions, inputs: Sequence[Input], links: Mapping[str, Any], reducer: Reducer, **options: Any
    ) -> None:
        if any(getattr(one, "of", None) for one in getattr(reducer, "members", {"": reducer}).values()):
            raise DefinitionError(
                f"view {name!r}: {reducer!r}: of= is for windows. Leave it out, or filter the streams before they are merged."
            )
        super().__init__(name, pipeline)
        self.inputs, self.steps, self.reducer = tuple(inputs), links, by_reference(reducer)
        self.expire, self.on_error, self.renamed_from = options["expire"], options["on_error"], options["renamed_from"]


class Lookups(Relation):
    """Records with the documents of a relation. It has no rows that others could derive from: what comes of it is a stream."""

    def __init__(self, name: str, pipeline: Definitions, left: Input, right: Relation | Mapped, how: str, on_error: str) -> None:
        if how not in (INNER, LEFT):
            raise DefinitionError(f'join {name!r}: how={how!r}: use "inner" or "left"')
        if isinstance(right.source, Joined):
            raise DefinitionError(
                f"join {name!r}: the right side is the join {right.source.name!r}, whose rows are many per key. Collect them first."
            )
        if FLAT_MAP in [kind for kind, _ in right.links]:
            raise DefinitionError(f"join {name!r}: a flat_map on the right side would give several documents for one key")
        self.left, self.right, self.how, self.on_error = left, right, how, on_error
        self.senders = (right.source,)
        super().__init__(name, pipeline)


class ViewOptions(msgspec.Struct, frozen=True):
    origins: bool
    version: str
    keep: bool
    on_error: str
    production: str
    renamed_from: str | None
    inline: int


class View(Relation):
    """The total of every group."""

    def __init__(self, of: Grouped, reducer: Reducer, name: str, options: ViewOptions) -> None:
        source = of.mapped.source
        if any(getattr(one, "of", None) for one in getattr(reducer, "members", {"": reducer}).values()):
            raise DefinitionError(
                f"view {name!r}: {reducer!r}: of= is for operators that read several streams; a view has one source. Leave it out."
            )
        if not options.origins and by_reference(reducer).remove is None:
            raise DefinitionError(f"view {name!r}: origins=False needs a reducer with an inverse, and {reducer!r} has none. Leave it out.")
        if reducer.wants_order and not (isinstance(source, PipelineTable) and source.rules.versioned):
            raise DefinitionError(
                f"view {name!r}: {reducer!r} goes by the version of documents, and {source!r} has none: say by=, or give the table a version="
            )
        check_on_error(f"view {name!r}", options.on_error)
        if options.production not in (WEAK, STRONG):
            raise DefinitionError(f"view {name!r}: production={options.production!r}: use ms.WEAK or ms.STRONG")
        self.of, self.senders = of, (source,)
        self.reducer = by_reference(reducer)
        self.options = options
        self.on_error, self.renamed_from = options.on_error, options.renamed_from
        super().__init__(name, source.pipeline)


class Joined(Relation):
    """Documents of a left side beside those of a right side."""

    def __init__(self, left: Grouped, right: Relation | Mapped, how: str, name: str | None) -> None:
        if not isinstance(right, Mapped):
            raise DefinitionError(f"join({right!r}): give a table or a view, or one with map or filter behind it")
        if isinstance(right.source, Joined):
            raise DefinitionError(
                f"join: the right side is the join {right.source.name!r}, whose rows are many per key. Collect them first: "
                f"joined.by(lambda row: row.key).reduce(ms.any_value(), name=...), and join that."
            )
        if FLAT_MAP in [kind for kind, _ in right.links]:
            raise DefinitionError("join: a flat_map on the right side would give several documents for one key")
        if how not in (INNER, LEFT):
            raise DefinitionError(f'join(how={how!r}): use "inner" or "left"')
        source = left.mapped.source
        self.left, self.right, self.how = left, right, how
        self.senders = (source, right.source)
        self.collector: View | None = None
        super().__init__(name or f"{source.name}-{right.source.name}", source.pipeline)

    def collected(self) -> View:
        """The joined rows by the left document's key, for whoever reads or publishes them."""
        if self.collector is None:
            self.collector = self.by(own_key).reduce(any_value(), name=f"{self.name}.rows")
        return self.collector
