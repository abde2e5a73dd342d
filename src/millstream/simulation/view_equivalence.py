"""Tables, views and joins in different epochs: what must be equal.

They merge what one epoch brings, so what they send, and how their rows lie, depends on how records fall into epochs, by design
(`ComputationSpec.refines`). What must be equal at the end is what they say:

1. The essence of every row. A row that says nothing counts as absent.
2. What a published stream leads to: the last row of every key, and of changes what they end with. A key whose last row is null counts as absent.
3. Not of a table without versions, nor of what derives from it: there the order of arrival counts, and within an epoch there is none.
4. A table's own dead letters, as far as they are of records. Those of a view are of documents, and a document that is overtaken within its epoch has
   never been.
"""

from __future__ import annotations

from typing import Any

from millstream.core.keys import key_of, key_text
from millstream.engine.program import Compiled, Program
from millstream.simulation.diff import same, short
from millstream.simulation.local import LocalEngine
from millstream.simulation.view_checks import EpochRead
from millstream.views.operator import CHANGES, LATEST, ViewOperator
from millstream.views.table import DocumentTable


def by_arrival(epoch: EpochRead) -> set[str]:
    """Rule 3: the computations of which the order of arrival says what they are."""
    refined = [epoch.sender(spec.name) for spec in epoch.topology.computations if spec.refines]
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
    """The first row whose essence is another (rule 1)."""
    ones, others = (essences(name, epoch) for epoch in (got, expected))
    for text in sorted(ones.keys() | others.keys()):
        if text not in ones or text not in others or not same(ones[text], others[text]):
            return f"state of {name!r}, key {key_of(text)!r}: {_told(ones, text)} instead of {_told(others, text)}"
    return None


def essences(name: str, epoch: EpochRead) -> dict[str, Any]:
    """What every row says, by the text of its key."""
    nothing = epoch.sender(name).State().essence()
    return {text: essence for text, state in epoch.states(name) if (essence := state.essence()) != nothing}


def first_of_streams(sender: ViewOperator, got: dict[str, list[tuple[Any, Any]]], expected: dict[str, list[tuple[Any, Any]]]) -> str | None:
    """The first key of a published stream that leads to something else (rule 2). got, expected: by stream, keys and values in order."""
    for one in sender.sending.shown:
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
