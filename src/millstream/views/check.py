"""Is a view right? Every document is mapped again, and what views and joins keep is compared with it, down to every node.

Rules
1. What should be follows from the rows of the senders alone: contributions by group and origin, then totals, what is shown, and every partial result; of
   a join, the left documents and the right one.
2. A difference names view, group and document (or node), what is there and what should be.
3. Nothing here reads a checkpoint or needs all rows at once: callers bring the rows, group by group.
4. Tables have nothing to be compared with. A document that cannot be read, or that a map stumbles over, is named.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from millstream.core.keys import key_of, key_text
from millstream.views.agg_tree import FAN, address, compact_all, depth, hashed, leaf_of
from millstream.views.aggregate import Aggregate, GroupRow
from millstream.views.change import unchanged
from millstream.views.join import Join, JoinRow
from millstream.views.mapper import MapFailed
from millstream.views.operator import ViewOperator

_SHORT = 300  # characters of a value that is told


class Discrepancy(msgspec.Struct, frozen=True):
    """Something that is not as it should be. With what="document", view is the table (or the view or join that is the sender), and group the document's key."""

    view: str
    group: Any
    what: str  # of a view: contribution, total, shown, node, count, generation, group; of a join: left, right, count; row: it cannot be read; document
    origin: Any = None
    found: Any = None
    expected: Any = None

    def __str__(self) -> str:
        if self.what == "document":
            return f"{self.view!r}, document {self.group!r}: {self.found}"
        if self.what == "row":
            return f"view {self.view!r}, group {self.group!r}: its row {self.found}"
        of = f" of {self.origin!r}" if self.origin is not None else ""
        return f"view {self.view!r}, group {self.group!r}: the {self.what}{of} is {self.found!r} instead of {self.expected!r}"

    def brief(self) -> Discrepancy:
        """A short form: values that are long are cut."""
        return msgspec.structs.replace(self, found=_brief(self.found), expected=_brief(self.expected))


def _brief(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= _SHORT else f"{text[:_SHORT]}…"


class Expected(msgspec.Struct):
    """What the senders' rows come to for one group. contributions: by origin; of a join, the left values. right: of a join, the right value or nothing."""

    contributions: dict[str, list[Any]] = {}
    right: list[Any] = []


class Contribution(NamedTuple):
    """What an origin gives to a group of a consumer. right: it is a join's right value."""

    consumer: str
    group: str
    origin: str
    parts: list[Any]
    right: bool


def contributed(sender: ViewOperator, key: Any, state: Any, consumers: Container[str]) -> Iterator[Contribution | Discrepancy]:
    """What a row of a sender gives to some consumers, as it travels; and what is wrong with its documents."""
    downstreams = [(at, downstream) for at, downstream in enumerate(sender.downstreams) if downstream.consumer in consumers]
    encode, decode = sender.encode, sender.decode
    try:
        for origin, found in sender.documents(key, state):
            for at, downstream in downstreams:
                try:
                    if downstream.right:
                        values = [document.value for document in sender.rights(downstream, found)][:1]
                        pairs = {key_text(key): values} if values else {}
                    else:
                        pairs = sender.pairs[at](found)
                except MapFailed as error:
                    if downstream.dead_letters is None:
                        yield Discrepancy(
                            sender.sending.name, found[0].key, "document", None, f"the map of {downstream.consumer!r} raises: {error.why}"
                        )
                    continue
                for text, parts in pairs.items():
                    yield Contribution(downstream.consumer, text, origin, decode(encode(parts)), downstream.right)
    except Exception as error:
        yield Discrepancy(sender.sending.name, key, "document", None, f"cannot be read: {type(error).__name__}: {error}")


def compared(consumer: Aggregate | Join, text: str, row: Any, expected: Expected, generation: int | None = None) -> Iterator[Discrepancy]:
    """What is wrong in one group. row: None if there is none. generation: the one that a row must be of."""
    try:
        if isinstance(consumer, Join):
            yield from _join_differences(consumer, key_of(text), row, expected)
        else:
            yield from differences(consumer, text, row, expected.contributions, generation)
    except Exception as error:
        yield unreadable(consumer, text, error)


def unreadable(consumer: ViewOperator, text: str, error: Exception) -> Discrepancy:
    return Discrepancy(consumer.sending.name, key_of(text), "row", None, f"cannot be read: {type(error).__name__}: {error}")


def differences(
    view: Aggregate, text: str, row: GroupRow | None, expected: Mapping[str, list[Any]], generation: int | None = None
) -> Iterator[Discrepancy]:
    """What is wrong in one group of a view. expected: by origin, what its documents give."""
    name, group = view.sending.name, key_of(text)
    if row is None or not row.count:
        yield from _unlike(view, group, "contribution", {}, expected, key_of)
        if row is not None and (row.shown or not expected):
            yield Discrepancy(name, group, "group", None, row.shown[0] if row.shown else "empty", None)
        return
    if generation is not None and row.generation != generation:
        yield Discrepancy(name, group, "generation", None, row.generation, generation)
    if view.origins:
        found = view.contributions(row) if row.leaves <= row.count else {}
        yield from _unlike(view, group, "contribution", found, expected, key_of)
        if row.count != len(found):
            yield Discrepancy(name, group, "count", None, row.count, len(found))
    elif row.count != sum(len(parts) for parts in expected.values()):
        yield Discrepancy(name, group, "count", None, row.count, sum(len(parts) for parts in expected.values()))
    yield from _results(view, group, row, expected)
    if row.leaves > row.count:
        yield Discrepancy(name, group, "node", "the number of leaves", row.leaves, f"at most {row.count}")
    elif row.leaves:
        yield from _nodes(view, group, row)


def _results(view: Aggregate, group: Any, row: GroupRow, expected: Mapping[str, list[Any]]) -> Iterator[Discrepancy]:
    """The total, what is shown, and what is counted by reference."""
    name = view.sending.name
    parts = [part for of in expected.values() for part in of]
    should = view.total_of(parts)
    kept = should if view.inverts or row.leaves else None
    if not _same(view, row.total, kept):
        yield Discrepancy(name, group, "total", None, view.bare(row.total), view.bare(kept))
    shown = [view.reducer.show(view.bare(should))] if expected else []
    if shown and view.index:
        shown = [view.index.told(shown[0], view.index.counted(parts))]
    if not _same(view, row.shown, view.decode(view.encode(shown))):
        yield Discrepancy(name, group, "shown", None, row.shown[0] if row.shown else None, shown[0] if shown else None)
    if view.index and (row.leaves or not view.origins):
        yield from _references(view, group, row, parts)


def _same(sender: ViewOperator, found: Any, expected: Any) -> bool:
    """Alike, types included; the order of a dict does not count."""
    if found.__class__ is dict and found == expected:
        return True
    return unchanged(found, expected, sender.encode)


def _unlike(
    sender: ViewOperator, group: Any, what: str, found: Mapping[Any, Any], expected: Mapping[Any, Any], told: Callable[[Any], Any]
) -> Iterator[Discrepancy]:
    """What differs between what is there and what should be, each under its name."""
    for at in sorted(found.keys() | expected.keys()):
        if not _same(sender, found.get(at), expected.get(at)):
            yield Discrepancy(sender.sending.name, group, what, told(at), found.get(at), expected.get(at))


def _nodes(view: Aggregate, group: Any, row: GroupRow) -> Iterator[Discrepancy]:
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
        below: list[Any] = [compact_all(view.reducer, entries.get(at, {}).values()) for at in range(row.leaves)]
        for level in range(1, depth(row.leaves) + 1):
            nodes = [_trimmed(below[at : at + FAN]) for at in range(0, len(below), FAN)]
            expected.update({address(level, at): decode(view.encode(node)) for at, node in enumerate(nodes) if node})
            below = [view.reducer.fold(node) for node in nodes]
    yield from _unlike(view, group, "node", entries, expected, lambda at: f"level {at >> 40}, node {at & (1 << 40) - 1}")


def _references(view: Aggregate, group: Any, row: GroupRow, parts: Iterable[Any]) -> Iterator[Discrepancy]:
    """Every value is counted as often as a contribution has it."""
    expected: dict[str, int] = {}
    for part in parts:
        for value in view.index.values(part):
            expected[value] = expected.get(value, 0) + 1
    found = {at: int.from_bytes(data, "big") for at, data in row.nodes.items() if at.__class__ is str}
    yield from _unlike(view, group, "node", found, expected, lambda value: f"references to {value}")
    if row.sizes != view.index.sizes(expected):
        yield Discrepancy(view.sending.name, group, "node", "numbers of different values", row.sizes, view.index.sizes(expected))


def _trimmed(node: list[Any]) -> list[Any]:
    while node and node[-1] is None:
        node = node[:-1]
    return node


def _join_differences(join: Join, group: Any, row: JoinRow | None, expected: Expected) -> Iterator[Discrepancy]:
    name = join.sending.name
    right = [] if row is None else row.right
    if not _same(join, right, expected.right):
        yield Discrepancy(name, group, "right", None, *[side[0] if side else None for side in (right, expected.right)])
    found = {} if row is None else join.lefts_of(row)
    yield from _unlike(join, group, "left", found, expected.contributions, key_of)
    if row is not None and row.count != len(found):
        yield Discrepancy(name, group, "count", None, row.count, len(found))
    if row is not None and row.beside and row.inline:
        yield Discrepancy(name, group, "left", "those in the row", list(row.inline), [])


def has_entries(consumer: ViewOperator, row: GroupRow | JoinRow) -> bool:
    """Whether a row of a view or a join has entries beside it."""
    if isinstance(row, JoinRow):
        return row.beside
    return bool(row.leaves) or (isinstance(consumer, Aggregate) and bool(consumer.index) and not consumer.origins)


def collected(given: Iterable[Contribution]) -> dict[str, dict[str, Expected]]:
    """Contributions that fit into memory, by consumer and group."""
    found: dict[str, dict[str, Expected]] = {}
    for one in given:
        add(found.setdefault(one.consumer, {}).setdefault(one.group, Expected()), one.origin, one.parts, one.right)
    return found


def add(expected: Expected, origin: str, parts: list[Any], right: bool) -> None:
    if right:
        expected.right = parts
    else:
        expected.contributions[origin] = parts
