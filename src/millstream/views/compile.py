"""How tables, views and joins become computations.

table    one DocumentTable, keyed by the document's key. The maps of all that derive from it run inside
view     one Aggregate, keyed by the group
join     one Join, keyed by the right side's key
windows  for windows that change, a WindowRelay in the task of their operator, or a WindowTable where a view derives from them
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from millstream.core.backfill import Derivation
from millstream.core.statekind import Codec
from millstream.core.topology import DEAD_LETTER, PRODUCED, STRONG, WEAK, ComputationSpec, Input, RelationSpec
from millstream.reducers.base import spelled
from millstream.views.aggregate import Aggregate
from millstream.views.change import ViewCodec
from millstream.views.dsl import (
    JOIN,
    TABLE,
    VIEW,
    Joined,
    Lookups,
    Mapped,
    PipelineTable,
    Relation,
    RunningView,
    View,
    WindowChanges,
    own_key,
)
from millstream.views.fingerprint import fingerprint
from millstream.views.join import Join
from millstream.views.lookup import Lookup
from millstream.views.operator import Downstream, Sending, Shown
from millstream.views.running import RunningTotal
from millstream.views.table import DocumentTable
from millstream.views.window_relay import WindowRelay, WindowTable, window_identity, window_start


def compiled(relations: Sequence[Relation], codec: Codec) -> list[ComputationSpec]:
    downstreams: dict[str, list[Downstream]] = {relation.name: [] for relation in relations}
    inputs: dict[str, list[Input]] = {relation.name: [] for relation in relations}
    for relation in relations:
        if isinstance(relation, View):
            _wire_view(relation, downstreams, inputs)
        elif isinstance(relation, Joined):
            _wire_join(relation, downstreams, inputs)
        elif isinstance(relation, Lookups):
            downstreams[relation.right.source.name].append(
                Downstream(relation.name, f"{relation.name}~right", relation.right.links, right=True)
            )
    return [_specified(relation, downstreams[relation.name], inputs[relation.name], codec) for relation in relations]


def _wire_view(view: View, downstreams: dict[str, list[Downstream]], inputs: dict[str, list[Input]]) -> None:
    mapped, options, stream = view.of.mapped, view.options, f"{view.name}~"
    letters = f"{view.name}.dead-letters" if options.on_error == DEAD_LETTER else None
    downstreams[mapped.source.name].append(
        Downstream(view.name, stream, mapped.links, view.of.group, view.reducer.lift_at, origins=options.origins, dead_letters=letters)
    )
    inputs[view.name].append(Input(stream, PRODUCED, None if options.production == WEAK else options.production))


def _wire_join(join: Joined, downstreams: dict[str, list[Downstream]], inputs: dict[str, list[Input]]) -> None:
    left, right = join.left.mapped, join.right
    streams = [f"{join.name}~left", f"{join.name}~right"]
    downstreams[left.source.name].append(Downstream(join.name, streams[0], left.links, join.left.group))
    downstreams[right.source.name].append(Downstream(join.name, streams[1], right.links, right=True))
    inputs[join.name] += [Input(stream, PRODUCED) for stream in streams]


def _specified(relation: Relation, downstreams: Sequence[Downstream], inputs: Sequence[Input], codec: Codec) -> ComputationSpec:
    name = relation.name
    sending = Sending(name, codec, tuple(downstreams), tuple(Shown(stream, how) for how, stream in relation.shown.items()))
    own = f"{name}.dead-letters" if getattr(relation, "on_error", "") == DEAD_LETTER else None
    if isinstance(relation, Lookups):
        right = f"{name}~right"
        derives = Derivation((relation.right.source.name,), "", fingerprint(relation.right.links, relation.how), is_join=True)
        both = (relation.left, Input(right, PRODUCED))
        factory: Any = partial(Lookup, name, right, relation.how, codec)
        return ComputationSpec(name, factory, both, (name,), dead_letters=own, derives=derives, about=_about(relation))
    letters = [one.dead_letters for one in downstreams if one.dead_letters]
    streams = dict.fromkeys([*(one.stream for one in downstreams), *relation.shown.values(), *letters])
    about, renamed = _about(relation), relation.renamed_from
    made = partial(ComputationSpec, name, produces=tuple(streams), codec=ViewCodec(codec), refines=True, about=about, renamed_from=renamed)
    if isinstance(relation, PipelineTable):
        factory = partial(DocumentTable, sending, relation.rules)
        return made(factory=factory, inputs=relation.inputs, kind=TABLE, relation=RelationSpec(), dead_letters=own, in_columns=True)
    if isinstance(relation, RunningView):
        factory = partial(RunningTotal, sending, relation.reducer, relation.steps)
        options: Any = {"kind": VIEW, "relation": RelationSpec(origins=False, inverts=True), "expire": relation.expire, "dead_letters": own}
        return made(factory=factory, inputs=relation.inputs, **options)
    if isinstance(relation, WindowChanges):
        if not downstreams:
            inputs = [Input(relation.stream, None)]
            return made(factory=partial(WindowRelay, sending, relation.is_one_group), inputs=tuple(inputs), hidden=True)
        inputs = [Input(relation.stream, window_start if relation.is_one_group else window_identity)]
        return made(factory=partial(WindowTable, sending), inputs=tuple(inputs), kind=TABLE, relation=RelationSpec())
    senders = tuple(dict.fromkeys(sender.name for sender in relation.senders))
    if isinstance(relation, View):
        options, reducer, of = relation.options, relation.reducer, relation.of
        spec = RelationSpec(options.origins, reducer.remove is not None, is_strong=options.production == STRONG)
        factory = partial(Aggregate, sending, reducer, options.origins, options.inline)
        seen = fingerprint(of.mapped.links, of.group, reducer, options.origins)
        derives = Derivation(senders, options.version, seen, options.keep)
        return made(factory=factory, inputs=tuple(inputs), kind=VIEW, relation=spec, derives=derives, in_columns=True)
    assert isinstance(relation, Joined)
    factory = partial(Join, sending, f"{name}~left", relation.how)
    seen = fingerprint(relation.left.mapped.links, relation.left.group, relation.right.links, relation.how)
    derives = Derivation(senders, "", seen, is_join=True)
    return made(factory=factory, inputs=tuple(inputs), kind=JOIN, relation=RelationSpec(how=relation.how), derives=derives)


def _about(relation: Relation) -> dict[str, str]:
    """What was written, for people who read a checkpoint without the code. Nothing is decided by it."""
    if isinstance(relation, PipelineTable):
        rules = relation.rules
        found = {"reads": ", ".join(one.stream for one in relation.inputs), "key": _spelled_key(relation.inputs[0].key)}
        found["versions"] = "the greatest counts" if rules.versioned else "none: epochs count in their order"
        return found if rules.columns is None else {**found, "columns": ", ".join(rules.columns)}
    if isinstance(relation, RunningView):
        return {"reads": ", ".join(one.stream for one in relation.inputs), "reducer": relation.reducer.describe()}
    if isinstance(relation, Lookups):
        return {"join": f"{relation.left.stream} with {_spelled(relation.right)}, how={relation.how!r}"}
    if isinstance(relation, WindowChanges):
        return {"reads": relation.operator}
    if isinstance(relation, View):
        found = {"of": _spelled(relation.of.mapped), "by": _spelled_by(relation.of.group), "reducer": relation.reducer.describe()}
        found["origins"] = "kept" if relation.options.origins else "not kept"
        found["nodes"] = "none, because the reducer has an inverse" if relation.reducer.remove is not None else "of partial results"
        return {**found, "inline": str(relation.options.inline)}
    assert isinstance(relation, Joined)
    left = f"{_spelled(relation.left.mapped)} by {_spelled_by(relation.left.group)}"
    return {"of": left, "with": _spelled(relation.right), "how": relation.how}


def _spelled(mapped: Mapped) -> str:
    """The relation and the chain behind it, such as users.filter(adult)."""
    return mapped.source.name + "".join(f".{kind}({spelled(f)})" for kind, f in mapped.links)


def _spelled_by(by: Any) -> str:
    if by is own_key:
        return "its key"
    return spelled(by) if callable(by) else ", ".join(map(repr, by)) or "nothing: one group for all"


def _spelled_key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, (list, tuple)) else str(key) if isinstance(key, str) else spelled(key)
