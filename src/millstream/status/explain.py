"""The plan of a pipeline, for people: `pipeline.explain()` and `millstream run --explain`. It reads the graph, and starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.columnviews import steps
from millstream.columnviews.explained import explained_relation
from millstream.core.links import FILTER
from millstream.core.topology import PRODUCED, WEAK, ComputationSpec, Input, Route, Topology
from millstream.operators.windows import Session
from millstream.sources.schema import columns


def explained(topology: Topology) -> str:
    """Stages, tasks, keys and operators, as lines of text."""
    lines = [f"{len(topology.levels) + 1} stages: one that reads, and {len(topology.levels)} that compute. A task is a shard of a group."]
    lines.append("stage 0: read")
    for injector in topology.injectors.values():
        dedup = "ids are not checked" if injector.dedup is None else "repeated ids are dropped"
        lines.append(f"  {injector.name}: {injector.source.describe() if hasattr(injector.source, 'describe') else 'a source'}; {dedup}")
        for route in topology.routes:
            if route.stream == injector.name:
                lines.append(f"    to {route.computation}{_key(route.key)}; {_ahead(topology, route)}")
    for level, groups in enumerate(topology.levels, 1):
        lines.append(f"stage {level}: {len(groups)} group{'s' if len(groups) > 1 else ''} of tasks")
        for group in groups:
            for at, name in enumerate(group.computations):
                lines += _computation(topology, topology.by_name[name], "  " if not at else "    then, in the same task: ")
    for emission in topology.emissions:
        lines.append(f"sink {emission.name}: {emission.sink.describe()}")
    return "\n".join(lines)


def _key(key: object) -> str:
    if isinstance(key, tuple) and not key:
        return ", without a key"
    return " by the key of its producer" if key is None or key is PRODUCED else f" by {key!r}"


def _ahead(topology: Topology, route: Route) -> str:
    """Where partial results of a route are made."""
    spec = topology.by_name[route.computation]
    if not spec.in_columns or spec.kind in steps.KINDS:
        return "rows travel one by one"
    operator = spec.factory()
    injector = topology.injectors[route.stream]
    if injector.dedup is not None:
        return "rows travel one by one: ids are checked behind the exchange (dedup=None on inject allows partial results before it)"
    if injector.typed is not None:
        return "rows travel one by one: every row is made a typed value"
    if injector.value is not None:
        return "rows travel one by one: the value is a single column"
    parts = operator.explain(_types(topology, spec, operator))  # type: ignore[attr-defined]
    if not operator.folds_ahead or any(why for _, why in parts):  # type: ignore[attr-defined]
        return "rows travel one by one: not all of the operator can be done before the exchange"
    return "partial results are made before the exchange in resident runs"


def _computation(topology: Topology, spec: ComputationSpec, begin: str) -> Iterator[str]:
    about = "; ".join(f"{name} {text}".strip() for name, text in spec.about.items()) or (spec.kind or "hooks")
    yield f"{begin}{spec.name}: {about}"
    indent = " " * (len(begin) - len(begin.lstrip()) + 4)
    for i in spec.inputs:
        if i.stream not in topology.injectors:
            yield f"{indent}reads {i.stream}{_key(i.key)}{_edge(topology, spec, i)}"
    operator = spec.factory()
    if spec.in_columns and spec.kind in steps.KINDS:
        for part, why in explained_relation(operator):  # type: ignore[arg-type]
            yield f"{indent}{part}: {f'row by row: {why}' if why else 'on columns'}"
    elif spec.in_columns:
        for part, why in operator.explain(_types(topology, spec, operator)):  # type: ignore[attr-defined]
            yield f"{indent}{part}: {f'record by record: {why}' if why else 'on columns'}"
        yield f"{indent}keeps: {_keeps(operator)}"
    elif operator.State is type(None):
        yield f"{indent}keeps nothing; record by record"
    else:
        yield f"{indent}keeps a row of state per key, with its timers; record by record"


def _keeps(operator: Any) -> str:
    if not hasattr(operator, "spec"):
        return str(operator.keeps)
    return f"partial results per key and open {'session' if isinstance(operator.spec.kind, Session) else 'pane'}, in columns; no timers"


def _types(topology: Topology, spec: ComputationSpec, operator: Any) -> dict[str, str]:
    """The types of the columns that an operator reads. Those of a stream that is no source, or is mapped before, are not known."""
    found: dict[str, str] = {}
    for i in spec.inputs:
        injector = topology.injectors.get(i.stream)
        known = None if injector is None or injector.value is not None else columns(injector.source.schema)
        if known is None or any(kind != FILTER for kind, _ in getattr(operator, "spec", operator).links.get(i.stream, ())):
            return {}
        found |= {name: kind.name for name, kind in known.items()}
    return found


def _edge(topology: Topology, spec: ComputationSpec, i: Input) -> str:
    kind = topology.edges[i.stream, spec.name]
    return "" if kind == WEAK else f", over a {kind} edge"
