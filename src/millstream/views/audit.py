"""Is a view right? Every document is mapped again, and what the view keeps is compared with it, down to every node.

Rules
1. What is compared follows from the rows of the senders alone: contributions by group and origin, then totals, what is shown, and every partial result.
2. A difference names view, group and document (or node), what is there and what should be.
3. Nothing here reads a checkpoint or needs all rows at once: callers bring the rows, group by group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from millstream.core.keys import key_of
from millstream.views import totals
from millstream.views.chain import MapFailed
from millstream.views.change import Document
from millstream.views.group import GroupRow, ViewGroup
from millstream.views.leaves import FAN, address, depth, fold_all, hashed, leaf_of
from millstream.views.sender import Sender


class Discrepancy(msgspec.Struct, frozen=True):
    """Something in a view that is not as it should be. what: "contribution", "total", "shown", "node", "count" or "group"."""

    view: str
    group: Any
    what: str
    origin: Any = None
    found: Any = None
    expected: Any = None

    def __str__(self) -> str:
        of = f" of {self.origin!r}" if self.origin is not None else ""
        return f"view {self.view!r}, group {self.group!r}: the {self.what}{of} is {self.found!r} instead of {self.expected!r}"


def given(sender: Sender, outlet: int, origin: str, found: list[Document]) -> dict[str, list[Any]]:
    """What one origin gives to a consumer, by group. A document whose map raises gives nothing."""
    try:
        pairs = sender.pairs[outlet](found)
    except MapFailed:
        return {}
    encode, decode = sender.encode, sender.decode
    return {text: decode(encode(parts)) for text, parts in pairs.items()}  # as they travel


def outlet_to(sender: Sender, view: str) -> int | None:
    """Which outlet of a sender leads to a view."""
    return next((at for at, outlet in enumerate(sender.outlets) if outlet.consumer == view and not outlet.right), None)


def differences(view: ViewGroup, text: str, row: GroupRow | None, expected: Mapping[str, list[Any]]) -> Iterator[Discrepancy]:
    """What is wrong in one group. expected: by origin, what its documents give. row: None if the view has no such group."""
    name, group = view.sending.name, key_of(text)
    if row is None or not row.count:
        for origin, parts in expected.items():
            yield Discrepancy(name, group, "contribution", key_of(origin), None, parts)
        if row is not None and row.shown:
            yield Discrepancy(name, group, "group", None, row.shown[0], None)
        return
    if view.rules.origins:
        found = view.contributions(row)
        for origin in sorted(found.keys() | expected.keys()):
            if found.get(origin) != expected.get(origin):
                yield Discrepancy(name, group, "contribution", key_of(origin), found.get(origin), expected.get(origin))
        if row.count != len(found):
            yield Discrepancy(name, group, "count", None, row.count, len(found))
    elif row.count != sum(len(parts) for parts in expected.values()):
        yield Discrepancy(name, group, "count", None, row.count, sum(len(parts) for parts in expected.values()))
    should = view.total_of(expected.values())
    if view.inverts and row.total != should:
        yield Discrepancy(name, group, "total", None, totals.bare(row.total), totals.bare(should))
    elif not view.inverts and row.leaves and row.total != should:
        yield Discrepancy(name, group, "total", None, row.total, should)
    parts = [part for of in expected.values() for part in of]
    shown = [view.reducer.show(totals.bare(should) if view.inverts else should)] if expected else []
    if shown and view.index:
        shown = [view.index.told(shown[0], view.index.counted(parts))]
    shown = view.decode(view.encode(shown))
    if row.shown != shown:
        yield Discrepancy(name, group, "shown", None, row.shown[0] if row.shown else None, shown[0] if shown else None)
    if row.leaves:
        yield from _nodes(view, group, row)
    if view.index and (row.leaves or not view.rules.origins):
        yield from _references(view, group, row, parts)


def _nodes(view: ViewGroup, group: Any, row: GroupRow) -> Iterator[Discrepancy]:
    """Every leaf holds what belongs there, every node what its children fold to, and nothing else is there."""
    name, decode = view.sending.name, view.decode
    entries = {at: decode(data) for at, data in row.nodes.items() if at.__class__ is int}
    expected: dict[int, Any] = {}
    for at in range(row.leaves):
        leaf = entries.get(at, {})
        for origin in leaf:
            if leaf_of(hashed(origin), row.leaves) != at:
                yield Discrepancy(name, group, "node", f"leaf {at}", origin, None)
        if leaf:
            expected[at] = leaf
    if not view.inverts:
        below: list[Any] = [fold_all(view.reducer, entries.get(at, {}).values()) for at in range(row.leaves)]
        for level in range(1, depth(row.leaves) + 1):
            nodes = [_trimmed(below[at : at + FAN]) for at in range(0, len(below), FAN)]
            expected.update({address(level, at): decode(view.encode(node)) for at, node in enumerate(nodes) if node})
            below = [view.reducer.fold(node) for node in nodes]
    for at in sorted(entries.keys() | expected.keys()):
        if entries.get(at) != expected.get(at):
            where = f"level {at >> 40}, node {at & (1 << 40) - 1}"
            yield Discrepancy(name, group, "node", where, entries.get(at), expected.get(at))


def _references(view: ViewGroup, group: Any, row: GroupRow, parts: Iterable[Any]) -> Iterator[Discrepancy]:
    """Every value is counted as often as a contribution has it."""
    expected: dict[str, int] = {}
    for part in parts:
        for value in view.index.values(part):
            expected[value] = expected.get(value, 0) + 1
    found = {at: int.from_bytes(data, "big") for at, data in row.nodes.items() if at.__class__ is str}
    for value in sorted(found.keys() | expected.keys()):
        if found.get(value) != expected.get(value):
            yield Discrepancy(view.sending.name, group, "node", f"references to {value}", found.get(value), expected.get(value))
    if row.sizes != view.index.sizes(expected):
        yield Discrepancy(view.sending.name, group, "node", "numbers of different values", row.sizes, view.index.sizes(expected))


def _trimmed(node: list[Any]) -> list[Any]:
    while node and node[-1] is None:
        node = node[:-1]
    return node


def audited(view: ViewGroup, sender: Sender, sent: Iterable[tuple[Any, Any]], rows: Mapping[str, GroupRow]) -> Iterator[Discrepancy]:
    """All differences of a view whose rows fit into memory. sent: keys and states of the sender's rows. rows: by the text of the group."""
    outlet = outlet_to(sender, view.sending.name)
    assert outlet is not None
    expected: dict[str, dict[str, list[Any]]] = {}
    for key, state in sent:
        for origin, found in sender.documents(key, state):
            for text, parts in given(sender, outlet, origin, found).items():
                expected.setdefault(text, {})[origin] = parts
    for text in sorted(expected.keys() | rows.keys()):
        yield from differences(view, text, rows.get(text), expected.get(text, {}))
