"""What tables and views of the local engine hold, and whether it is what a recomputation gives."""

from __future__ import annotations

from typing import Any

from millstream.core.keys import key_of, key_text
from millstream.errors import DefinitionError
from millstream.simulation.local import LocalEngine
from millstream.views import audit
from millstream.views.audit import Discrepancy, Expected
from millstream.views.group import ViewGroup
from millstream.views.join import Join
from millstream.views.sender import Sender


def _sender(engine: LocalEngine, name: str) -> Sender:
    if name not in engine.topology.by_name:
        raise DefinitionError(f"no view is called {name!r}; there are: {', '.join(engine.topology.by_name)}")
    made, _ = engine.compiled.make(name)
    if not isinstance(made, Sender):
        raise DefinitionError(f"{name!r} is a computation, and neither a table nor a view: see runner.state({name!r})")
    return made


def shown(engine: LocalEngine, name: str) -> dict[Any, Any]:
    """What a table, view or join shows, by key. Of a build that is being filled, what the last complete one showed."""
    sender = _sender(engine, name)
    build = engine.builds.get(name)
    found: dict[Any, Any] = {}
    if build is not None and not build.active:
        return found
    for key, state in engine.state(name).items():
        if isinstance(sender, ViewGroup) and build is not None:
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
    sender = _sender(engine, view)
    if not isinstance(sender, ViewGroup):
        raise DefinitionError(f"{view!r} is no view: only views have contributions")
    row = engine.state(view).get(group)
    return {} if row is None else {key_of(origin): parts for origin, parts in sender.contributions(row).items()}


def differences(engine: LocalEngine) -> list[Discrepancy]:
    """All that is wrong in any view or join that is complete. One behind a strong edge is looked at when nothing is on its way to it."""
    waiting = {consumer for _, consumer, _, _ in engine.stored}
    complete = [
        name
        for name, one in engine.topology.derived.items()
        if name not in waiting and not any(engine.builds[other].is_filling for other in (name, *one.senders) if other in engine.builds)
    ]
    found: list[Discrepancy] = []
    given: list[audit.Gift] = []
    for name in {sender: None for one in complete for sender in engine.topology.derived[one].senders}:
        sender = _sender(engine, name)
        for key, state in engine.state(name).items():
            for one in audit.gifts(sender, key, state, complete):
                (found if isinstance(one, Discrepancy) else given).append(one)  # type: ignore[arg-type]
    expected = audit.collected(given)
    for name in complete:
        consumer = _sender(engine, name)
        assert isinstance(consumer, (ViewGroup, Join))
        rows = {key_text(key): state for key, state in engine.state(name).items()}
        should = expected.get(name, {})
        for text in sorted(rows.keys() | should.keys()):
            found += audit.compared(consumer, text, rows.get(text), should.get(text, Expected()), engine.builds[name].active)
    return found
