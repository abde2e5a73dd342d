"""A view: its groups, each the total of what documents contribute to it.

Rules
1. A contribution is kept per origin, the row that sent it. A message sets or removes it, so what is said twice counts once. Without origins, parts are
   only added and taken out, which is leaner, and repairs nothing.
2. Up to a kilobyte of contributions stands in the row: one read and one write per group and epoch. More go into leaves (`agg_tree.py`), and come back when
   few are left.
3. Reducers with an inverse keep their total in the row, with the number of parts inside: it tells a total of nothing from one of values that cancel out.
   Others keep partial results in inner nodes, or are folded anew while all stands in the row.
4. A group whose last contribution has gone is deleted. What it showed goes to null.
5. One change (prev, next) is told per group and epoch, and none where nothing has changed.
6. A row of an older generation keeps showing what it showed until the cutover; then all rows tell the difference in one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from millstream.core.backfill import Build, cutover_name
from millstream.core.keys import key_text
from millstream.core.mapstate import MapState
from millstream.core.record import Record
from millstream.errors import HookError
from millstream.reducers.base import Reducer
from millstream.views.agg_tree import DoesNotReduce, Tree, compact_all, depth
from millstream.views.change import INSERT, RESTATED, UPDATE, Document, counted, unchanged, unpacked
from millstream.views.distinct import ReferenceIndex
from millstream.views.operator import Sending, ViewOperator

INLINE_BYTES = 1024
_DEPTH = "groups of depth "  # a tally
FEW = 4  # contributions whose size is not looked at
BACK = 16  # so many or fewer return into the row


class GroupRow(msgspec.Struct):
    generation: int = 0
    leaves: int = 0
    count: int = 0  # contributions; without origins, values
    total: Any = None
    shown: list[Any] = []  # what it shows, as a list of one, or nothing
    inline: dict[str, list[Any]] = {}
    old: list[Any] = []  # what an older generation showed
    sizes: list[int] = []  # how many different values there are, where they are counted by reference
    nodes: MapState = msgspec.field(default_factory=MapState)
    restated: bool = False  # in this visit

    is_plain: ClassVar[bool] = False

    def pack(self) -> list[Any]:
        kept = [self.generation, self.leaves, self.count, self.total, self.shown, self.inline]
        return [*kept, self.old, self.sizes] if self.sizes else [*kept, self.old] if self.old else kept

    def essence(self) -> Any:
        return [self.count, self.shown]


class Aggregate(ViewOperator):
    State = GroupRow

    def __init__(self, sending: Sending, reducer: Reducer, origins: bool = True, inline: int = INLINE_BYTES) -> None:
        """inline: the most bytes of contributions in a row."""
        super().__init__(sending)
        self.reducer, self.origins, self.inline = reducer, origins, inline
        self.inverts = reducer.remove is not None
        self.index = ReferenceIndex(reducer)

    def process_record(self, record: Record) -> None:
        generation, entries = unpacked(record.value, self.decode)
        row = self.state
        if generation < self.build(self.sending.name).generation:
            return  # under way (on a strong edge) when another build was begun: its parts are those of other code
        if generation != row.generation:
            self._begin_anew(row, generation)
        if self.origins:
            self._set(row, entries)
        else:
            self._add(row, entries)

    def _begin_anew(self, row: GroupRow, generation: int) -> None:
        if row.generation:
            if not self.build(self.sending.name).active < row.generation < generation:  # else it is of a fill that was given up
                row.old = row.shown
            self._counted(row, -1)
            self.tally("contributions", -row.count)
        row.nodes.clear()  # whatever is there: another reducer may have left it
        row.generation, row.leaves, row.count, row.total, row.shown, row.inline, row.sizes = generation, 0, 0, None, [], {}, []

    # --- contributions

    def _tree(self, row: GroupRow) -> Tree:
        return Tree(row.nodes, row.leaves, None if self.inverts else self.reducer, self.encode, self.decode)

    def _set(self, row: GroupRow, entries: Sequence[Any]) -> None:
        """Contributions of origins, set or removed."""
        tree = self._tree(row) if row.leaves else None
        inline = row.inline
        added: list[Any] = []
        removed: list[Any] = []
        wrong = 0
        count = row.count
        adds = not self._visit.guards.origins
        for origin, how, parts in entries:
            if adds and parts is not None and how != UPDATE:
                parts = [*((inline.get(origin) if tree is None else tree.get(origin)) or ()), *parts]
            if tree is not None:
                old = tree.put(origin, parts)
            else:
                old = inline.get(origin)
                if parts is not None:
                    inline[origin] = parts
                elif old is not None:
                    del inline[origin]
            if how & RESTATED:
                row.restated = True
            elif (old is None) != (how == INSERT):
                wrong += 1
            if old is not None:
                removed += old
                count -= 1
            if parts is not None:
                added += parts
                count += 1
        if wrong:
            self.tally("mismatches", wrong)
        if count != row.count:
            self.tally("contributions", count - row.count)
            row.count = count
        if self.inverts:
            row.total = self._moved(row.total, added, removed)
        if tree is not None:
            if self.index:
                self._refer(row, added, removed)
            self._close(row, tree)

    def _close(self, row: GroupRow, tree: Tree) -> None:
        """Brings the leaves to their number, and writes what has changed."""
        self._counted(row, -1)
        if row.count > FEW and (row.count > BACK or len(self.encode(dict(tree.items()))) > self.inline):
            tree.resize(row.count)
            self._write(row, tree)
            return
        row.inline = tree.dissolve()
        row.leaves = 0
        if self.index:
            self._refer(row, (), [part for parts in row.inline.values() for part in parts])
            row.sizes = []
        if not self.inverts:
            row.total = None

    def _write(self, row: GroupRow, tree: Tree) -> None:
        row.leaves = tree.leaves
        self._counted(row, 1)
        try:
            total = tree.flush(row.total)
        except DoesNotReduce as error:
            raise HookError(f"view {self.sending.name!r}, group {self.key!r}: {error}") from None
        if not self.inverts:
            row.total = total

    def _add(self, row: GroupRow, entries: Sequence[Any]) -> None:
        """Values added and taken out, of nobody in particular."""
        if len(entries[0]) == 5:
            ((parts, *moved),) = entries
            row.total = self.moved(row.total, *moved)
            self._count(row, parts)
            return
        added = [part for _, new in entries if new for part in new]
        removed = [part for old, _ in entries if old for part in old]
        self._count(row, len(added) - len(removed))
        row.total = self._moved(row.total, added, removed)
        if self.index:
            self._refer(row, added, removed)

    def _count(self, row: GroupRow, contributions: int) -> None:
        row.count += contributions
        self.tally("contributions", contributions)

    def _refer(self, row: GroupRow, added: Sequence[Any], removed: Sequence[Any]) -> None:
        """Counts the references to values that have come and gone."""
        moved: dict[str, int] = {}
        for parts, n in ((added, 1), (removed, -1)):
            for part in parts:
                for value in self.index.values(part):
                    moved[value] = moved.get(value, 0) + n
        row.sizes = self.index.change(row.nodes, row.sizes, moved)

    def _moved(self, total: list[Any] | None, added: Sequence[Any], removed: Sequence[Any]) -> list[Any] | None:
        """A total of a reducer with an inverse, with some parts more and some fewer: how many are inside, and the reducer's own total."""
        return self.moved(total, *counted(self.reducer, added), *counted(self.reducer, removed))

    def moved(self, total: list[Any] | None, more: int, put: Any, less: int, taken: Any) -> list[Any] | None:
        """A total with so many parts more, which are folded, and so many fewer."""
        count, inside = (0, None) if total is None else total
        count += more - less
        reducer = self.reducer
        if more:
            inside = put if inside is None else reducer.combine(inside, put)
        if less and inside is not None:
            assert reducer.remove is not None
            inside = reducer.remove(inside, taken)
        return [count, inside] if count > 0 else None

    def bare(self, total: Any) -> Any:
        """The reducer's own total."""
        return total[1] if self.inverts and total is not None else total

    def contributions(self, row: GroupRow) -> dict[str, list[Any]]:
        return dict(self._tree(row).items()) if row.leaves else row.inline

    def total_of(self, parts: Sequence[Any]) -> Any:
        """The total that a row of such parts keeps."""
        return self._moved(None, parts, ()) if self.inverts else self.reducer.fold(parts)

    def documents(self, key: Any, state: GroupRow) -> Iterator[tuple[str, list[Document]]]:
        if state.shown:
            yield key_text(key), [Document(key, state.shown[0])]

    # --- the end of a visit

    def finish_key(self) -> None:
        row, build = self.state, self.build(self.sending.name)
        if row.generation == 0:
            return
        is_current = row.generation == build.generation  # what an older one left is not for this reducer
        if is_current and not row.leaves and len(row.inline) > FEW and len(self.encode(row.inline)) > self.inline:
            self._grow(row)
        if cutover_name(self.sending.name, build.generation) in self._visit.scans:
            self._cut_over(row, build)
        elif build.generation == build.active:
            prev, row.shown = row.shown, self.shown_of(row)
            self.say(prev, row.shown, row.restated)
        elif is_current:
            row.shown = self.shown_of(row)  # nobody is told before the cutover
        row.restated = False
        if not row.count and not row.old and not (row.generation == build.active and row.shown):
            self.state = GroupRow(nodes=row.nodes)

    def shown_of(self, row: GroupRow) -> list[Any]:
        if row.count <= 0:
            return []
        total = row.total if self.inverts or row.leaves else compact_all(self.reducer, row.inline.values())
        shown = self.reducer.show(total[1] if self.inverts and total is not None else total)
        if self.index:
            is_inline = not row.leaves and self.origins
            sizes = self.index.counted(part for parts in row.inline.values() for part in parts) if is_inline else row.sizes
            shown = self.index.told(shown, sizes or self.index.sizes(()))
        return [shown]

    def say(self, prev: list[Any], next: list[Any], restated: bool) -> None:
        is_same = len(prev) == len(next) and unchanged(prev, next, self.encode)
        if is_same and not restated and not self.is_scanned:
            return
        was = [Document(self.key, value) for value in prev]
        now = was if is_same else [Document(self.key, value) for value in next]
        self.send(self.origin, was, now, unchanged=is_same, restated=restated)
        if not is_same:
            self.tally("changes")
            if bool(prev) != bool(next):
                self.tally("groups", 1 if next else -1)
            before, after = prev[0] if prev else None, next[0] if next else None
            if self.sending.shown and not (before is None and after is None):  # a group that shows nothing is for others like none
                self.show(before, after)

    def _cut_over(self, row: GroupRow, build: Build) -> None:
        """Rule 6: this row's part of the cutover to a new generation."""
        prev = row.old if build.active < row.generation <= build.generation else row.shown
        if row.generation != build.generation:  # nothing has come for it
            self._begin_anew(row, build.generation)
        row.shown, row.old = self.shown_of(row), []
        self.say(prev, row.shown, row.restated)

    def _grow(self, row: GroupRow) -> None:
        contributions, row.inline = row.inline, {}
        tree = self._tree(row)
        tree.begin(contributions)
        self._write(row, tree)
        if self.index:
            self._refer(row, [part for parts in contributions.values() for part in parts], ())

    def _counted(self, row: GroupRow, n: int) -> None:
        if row.leaves:
            self.tally(f"{_DEPTH}{1 if self.inverts else 1 + depth(row.leaves)}", n)


def depths(tallies: Mapping[str, int]) -> dict[int, int]:
    """By depth, how many groups have leaves, of what a view has counted."""
    return {int(name[len(_DEPTH) :]): count for name, count in sorted(tallies.items()) if name.startswith(_DEPTH) and count}
