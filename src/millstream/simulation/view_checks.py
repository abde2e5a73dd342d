"""What tables and views hold after an epoch, and whether it is what a recomputation gives.

Rules
1. An epoch is read from its entries alone, wherever they come from: the local engine's stores, or segments that a manifest names.
2. A view is looked at when it is whole: not while it is being filled, and behind a strong edge when nothing is on its way to it.
3. A judge looks at the same entries once. Epochs that are run again, or change nothing in a view, cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from millstream.core.backfill import BuildState
from millstream.core.keys import key_of
from millstream.core.keyspace import ROW, after, decode_row
from millstream.core.topology import Topology
from millstream.engine.program import Compiled
from millstream.errors import DefinitionError
from millstream.simulation.local import LocalEngine
from millstream.state.memory_storage import MemoryStore
from millstream.state.queries import bound
from millstream.views import check
from millstream.views.aggregate import Aggregate
from millstream.views.check import Discrepancy, Expected
from millstream.views.join import Join
from millstream.views.operator import ViewOperator


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
        """The derived computations that can be looked at (rule 2)."""
        for name, one in self.topology.derived.items():
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
