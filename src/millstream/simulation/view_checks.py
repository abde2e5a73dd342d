"""What tables and views hold after an epoch, and whether it is what a recomputation gives.

Rules
1. An epoch is read from its entries alone, wherever they come from: the local engine's stores, or segments that a manifest names.
2. A view is looked at when it is whole: not while it is being filled, and behind a strong edge when nothing is on its way to it.
3. A judge looks at the same entries once. Epochs that are run again, or change nothing in a view, cost next to nothing.

Tables, views and joins merge what one epoch brings, so what they send, and how their rows lie, depends on how records fall into epochs, by design
(`ComputationSpec.refines`). What must be equal in different epochs is what they say in the end:
4. The essence of every row, and what a published stream leads to: the last row of every key, and of changes what they end with. What says nothing counts as
   absent.
5. Not of a table without versions, nor of what derives from it: there the order of arrival counts, and within an epoch there is none.
6. A table's own dead letters, as far as they are of records. Those of a view are of documents, and a document that is overtaken within its epoch never was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from millstream.core.backfill import BuildState
from millstream.core.keys import key_of, key_text
from millstream.core.keyspace import ROW, after, decode_row
from millstream.core.topology import ComputationSpec, Topology
from millstream.engine.program import Compiled, Program
from millstream.errors import DefinitionError
from millstream.simulation.diff import same, short
from millstream.simulation.local import LocalEngine
from millstream.state.memory_storage import MemoryStore
from millstream.state.queries import bound
from millstream.views import check
from millstream.views.aggregate import Aggregate
from millstream.views.check import Discrepancy, Expected
from millstream.views.join import Join
from millstream.views.operator import CHANGES, LATEST, ViewOperator
from millstream.views.table import DocumentTable
from millstream.views.window_relay import WindowRelay


class EpochRead(msgspec.Struct):
    """What an epoch has left. waiting: computations to which something is on its way."""

    compiled: Compiled
    stores: Mapping[tuple[str, int], MemoryStore]
    builds: Mapping[str, BuildState]
    waiting: Collection[str]

    @property
    def topology(self) -> Topology:
        return self.compiled.topology

    def sender(self, name: str) -> ViewOperator:
        """A table, view or join, as a fresh instance."""
        if name not in self.topology.by_name:
            raise DefinitionError(f"no view is called {name!r}; there are: {', '.join(self.topology.by_name)}")
        made, _ = Compiled.make(self.compiled, name)  # fresh, however instances are shared
        if not isinstance(made, ViewOperator):
            raise DefinitionError(f"{name!r} is a computation, and neither a table nor a view: see runner.state({name!r})")
        return made

    def states(self, name: str) -> Iterator[tuple[str, Any]]:
        """The state of every key, by the key's text."""
        kind = self.compiled.make(name)[1]
        for (computation, _), store in self.stores.items():
            if computation == name:
                for entry, raw in store.scan(ROW, after(ROW)):
                    yield entry[len(ROW) :].decode(), bound(kind, entry[len(ROW) :], decode_row(raw), store)

    def whole(self) -> Iterator[str]:
        """The views and joins that can be looked at (rule 2)."""
        for name, one in self.topology.derived.items():
            if self.topology.by_name[name].relation is None:
                continue  # a stream: what it has told is no state
            builds = [self.builds[other] for other in (name, *one.senders) if other in self.builds]
            if name not in self.waiting and not any(build.is_filling for build in builds):
                yield name

    def differences(self, name: str) -> Iterator[Discrepancy]:
        """All that is wrong in one of them."""
        consumer = self.sender(name)
        assert isinstance(consumer, (Aggregate, Join))
        given: list[check.Contribution] = []
        for sender in self.topology.derived[name].senders:
            made = self.sender(sender)
            for text, state in self.states(sender):
                for one in check.contributed(made, key_of(text), state, (name,)):
                    if isinstance(one, Discrepancy):
                        yield one
                    else:
                        given.append(one)
        should, rows = check.collected(given).get(name, {}), dict(self.states(name))
        active = self.builds[name].active
        for text in sorted(rows.keys() | should.keys()):
            yield from check.compared(consumer, text, rows.get(text), should.get(text, Expected()), active)


def read(engine: LocalEngine) -> EpochRead:
    """The last epoch of the local engine."""
    return EpochRead(engine.compiled, engine.stores, engine.builds, {consumer for _, consumer, _, _ in engine.stored})


class EpochJudge:
    """Looks at views epoch after epoch."""

    def __init__(self) -> None:
        self._right: set[tuple[str, int]] = set()

    def first(self, epoch: EpochRead) -> Discrepancy | None:
        """The first thing that is wrong in any view; None if nothing is."""
        for name in epoch.whole():
            of = (name, *epoch.topology.derived[name].senders)
            seen = (name, hash(frozenset((key, frozenset(store.entries.items())) for key, store in epoch.stores.items() if key[0] in of)))
            if seen not in self._right:
                found = next(epoch.differences(name), None)
                if found is not None:
                    return found
                self._right.add(seen)
        return None


def shown(engine: LocalEngine, name: str) -> dict[Any, Any]:
    """What a table, view or join shows, by key. Of a build that is being filled, what the last complete one showed."""
    sender = read(engine).sender(name)
    build = engine.builds.get(name)
    found: dict[Any, Any] = {}
    if build is not None and not build.active:
        return found
    for key, state in engine.state(name).items():
        if isinstance(sender, Aggregate) and build is not None:
            told = state.shown if state.generation == build.active else state.old if state.generation > build.active else []
            if told:
                found[key] = told[0]
            continue
        for _, documents in sender.documents(key, state):
            for document in documents:
                found[document.key] = document.value
    return found


def contributions(engine: LocalEngine, view: str, group: Any) -> dict[Any, list[Any]]:
    """What each origin gives to a group, by the origin's key."""
    sender = read(engine).sender(view)
    if not isinstance(sender, Aggregate):
        raise DefinitionError(f"{view!r} is no view: only views have contributions")
    row = engine.state(view).get(group)
    return {} if row is None else {key_of(origin): parts for origin, parts in sender.contributions(row).items()}


def differences(engine: LocalEngine) -> list[Discrepancy]:
    """All that is wrong in any view."""
    epoch = read(engine)
    return [one for name in epoch.whole() for one in epoch.differences(name)]


# --- in different epochs


def has_documents(spec: ComputationSpec) -> bool:
    """Whether it is a table, a view, a join, or what hands on windows that change. The operator of these only refines."""
    return spec.refines and (spec.relation is not None or spec.hidden)


def by_arrival(epoch: EpochRead) -> set[str]:
    """Rule 5: the computations of which the order of arrival says what they are."""
    refined = [epoch.sender(spec.name) for spec in epoch.topology.computations if has_documents(spec)]
    found = {one.sending.name for one in refined if isinstance(one, DocumentTable) and not one.rules.versioned}
    while True:
        more = {name for name, one in epoch.topology.derived.items() if name not in found and found & set(one.senders)}
        if not more:
            return found
        found |= more


def only_refined(program: Program) -> bool:
    """Whether a pipeline has tables with versions, and what derives from them, and nothing else: a record that comes again changes nothing that it says."""
    return all(spec.refines for spec in program.topology.computations) and not by_arrival(EpochRead(Compiled(program), {}, {}, ()))


def first_of_state(name: str, got: EpochRead, expected: EpochRead) -> str | None:
    """The first row whose essence is another (rule 4)."""
    ones, others = (essences(name, epoch) for epoch in (got, expected))
    for text in sorted(ones.keys() | others.keys()):
        if text not in ones or text not in others or not same(ones[text], others[text]):
            return f"state of {name!r}, key {key_of(text)!r}: {_told(ones, text)} instead of {_told(others, text)}"
    return None


def essences(name: str, epoch: EpochRead) -> dict[str, Any]:
    """What every row says, by the text of its key."""
    kept = epoch.sender(name).State
    if kept is type(None):
        return {}
    nothing = kept().essence()
    return {text: essence for text, state in epoch.states(name) if (essence := state.essence()) != nothing}


def first_of_streams(sender: ViewOperator, got: dict[str, list[tuple[Any, Any]]], expected: dict[str, list[tuple[Any, Any]]]) -> str | None:
    """The first key of a published stream that leads to something else (rule 4). got, expected: by stream, keys and values in order."""
    for one in sender.sending.shown:
        if isinstance(sender, WindowRelay) and one.how == CHANGES:
            continue  # of all windows of a key: what is published says which one
        ends, others = (led_to(rows[one.stream], one.how) for rows in (got, expected))
        for text in sorted(ends.keys() | others.keys()):
            if text not in ends or text not in others or not same(ends[text], others[text]):
                return f"stream {one.stream!r}, key {key_of(text)!r}: it leads to {_told(ends, text)} instead of {_told(others, text)}"
    return None


def led_to(rows: list[tuple[Any, Any]], how: str) -> dict[str, Any]:
    """What the rows of a published stream end with, by the text of their keys."""
    found = {key_text(key): value if how == LATEST else value[1] if how == CHANGES else value["next"] for key, value in rows}
    return {text: value for text, value in found.items() if value is not None}


def outputs(engine: LocalEngine) -> dict[str, list[tuple[Any, Any]]]:
    """What the streams of the local engine have carried."""
    return {stream: [(row.key, row.value) for row in rows] for stream, rows in engine.outputs.items()}


def _told(of: dict[str, Any], text: str) -> str:
    return short(of[text]) if text in of else "nothing"
