"""A view's step on columns: one epoch of one shard. Messages, contributions and sums are worked on for all groups at once; only what a group shows is worked
out group by group, without a visit.

Rules
1. A group goes by columns if all that has come for it is of the build that is shown, and its row has no timers and nothing of an older build. With origins
   also only if its contributions stay where they are (in the row, or in leaves that are split and not merged), and reducers without an inverse only in the
   row. All else is visited.
2. What is not known before the contributions have been looked up (how many there are then) may still send a group to its visit: nothing of it is written
   before that.
3. A shard that is scanned, is being filled or cuts over, and one with a message that cannot be read, is visited as a whole.
4. Different values that are counted by reference have entries of their own: such views are visited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from millstream.columnviews.column_step import ColumnStep
from millstream.columnviews.contributing import Effects, chained, contained, leaf_numbers, looked_up, part_column, rewritten
from millstream.columnviews.hearing import Hearing
from millstream.columnviews.packing import BINARY, MOST_BYTES, SingleRows
from millstream.columnviews.part_sums import Folded, folded
from millstream.columnviews.unpacking import Field
from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keys import key_of
from millstream.core.keyspace import ROW, encode_fields, sub_prefix
from millstream.core.keyspace import stored as stored_entries
from millstream.core.outcome import Outcome
from millstream.core.step import Step
from millstream.operators.rows import StreamRows
from millstream.views.agg_tree import LEAST, LOAD, Tree
from millstream.views.aggregate import BACK, FEW, Aggregate, GroupRow
from millstream.views.change import INSERT, RESTATED

_LEAF = b"\x10\x80\x00\x00\x00"  # what the sub-key of a leaf begins with; its number follows in four bytes
_MIX = np.uint64(0x9E3779B97F4A7C15)
_NODES = "nodes"


class GroupAsStored(msgspec.Struct, array_like=True, gc=False):
    """A group's row as it lies. What may be large is not decoded."""

    generation: int
    leaves: int
    count: int
    total: msgspec.Raw
    shown: msgspec.Raw
    inline: msgspec.Raw
    old: list[Any] = []
    sizes: list[int] = []


class RowAsStored(msgspec.Struct, array_like=True, gc=False):
    state: bytes
    low: list[Any] = []
    wall: list[Any] = []
    holds: list[Any] = []
    newest: int | None = None


_decode_row = msgspec.msgpack.Decoder(RowAsStored).decode
_decode_group = msgspec.msgpack.Decoder(GroupAsStored).decode


class ViewStep(ColumnStep):
    """Runs one view."""

    computation: Aggregate
    few = 32

    def may_go_by_columns(self) -> bool:
        """Rules 3 and 4."""
        view, guards = self.computation, self.visit.guards
        build = view.build(view.sending.name)
        return super().may_go_by_columns() and build.generation == build.active and guards.origins and guards.order and not view.index

    def run_rows(self, given: OperatorInput, inputs: Sequence[StreamRows], ordered: Callable[[], Arrivals]) -> Outcome:
        heard = Groups(self, inputs)
        due, left = self.due_besides(given, heard.row_keys)
        heard.settle(ordered)
        for row_key in due:
            self.visit_key(row_key, Arrivals.none(), None)
        if self.visit.gathered:
            self._finish_epoch()
        return self.concluded(len(heard.heard.group), len(heard.row_keys) + len(due), left)


class Groups:
    """The groups of a shard to which something has come. What is by group stands in the order of keys."""

    def __init__(self, step: ViewStep, inputs: Sequence[StreamRows]) -> None:
        self.step, self.view = step, step.computation
        self.heard = heard = Hearing(inputs, self.view.origins, self.view.decode)
        self.row_keys = self.heard.row_keys
        self._read_rows()
        if self.view.origins:
            self._read_contributions()
            there = np.flatnonzero(heard.sets)
            self.more = self._folded(heard.entries.column_of_rows(there, heard.parts), there)
        else:
            self.more, self.less, self.change = heard.more, heard.less, heard.change

    def _folded(self, lists: Any, entries: Any) -> Folded:
        message = self.heard.message[entries]
        return folded(self.view.reducer, self.view.decode, lists, message, len(self.heard.group))

    # --- what is stored

    def _read_rows(self) -> None:
        step, generation = self.step, self.view.build(self.view.sending.name).generation
        self.generation = generation
        entries = [ROW + row_key for row_key in self.row_keys]
        self.raws = stored_entries(step.store, entries)
        self.rows: list[GroupAsStored | None] = []
        self.is_visited = np.zeros(len(self.row_keys), bool)
        self.is_visited[self.heard.group[self.heard.generations != generation]] = True
        for at, raw in enumerate(self.raws):
            found = None
            if raw is not None:
                row = _decode_row(raw)
                found = _decode_group(row.state)
                is_plain = not (row.low or row.wall or row.holds or found.old or found.sizes) and row.newest is None
                in_columns = not found.leaves or (self.view.inverts and self.view.origins)
                self.is_visited[at] |= not (is_plain and in_columns and found.generation == generation)
            self.rows.append(found)
        self.leaves = np.array([0 if row is None else row.leaves for row in self.rows], np.int64)

    def _read_contributions(self) -> None:
        """Looks up what entries speak of (rule 1)."""
        heard = self.heard
        restated = (heard.how & RESTATED) != 0
        self.restated = np.bincount(heard.group[heard.message[restated]], minlength=len(self.row_keys)) > 0
        self.entry_group = heard.group[heard.message]
        leaf = np.zeros(len(self.entry_group), np.int64)
        in_leaves = np.flatnonzero(self.leaves[self.entry_group] > 0)
        if len(in_leaves):
            head = heard.entries.head(heard.origin.begin)
            texts = heard.entries.column_of_rows(in_leaves, heard.entries.payload(Field(heard.origin, head)))
            hashes = np.fromiter(map(crc32, texts.to_numpy(zero_copy_only=False).tolist()), np.uint64, len(texts))
            mixed = ((hashes * _MIX) >> np.uint64(24) & np.uint64(0xFFFFFFFF)).astype(np.int64)
            leaf[in_leaves] = leaf_numbers(mixed, self.leaves[self.entry_group[in_leaves]])
        # containers: (group, leaf), in that order
        names = self.entry_group << 32 | leaf
        known, self.entry_container = np.unique(names, return_inverse=True)
        self.container_group, self.container_leaf = known >> 32, known & 0xFFFFFFFF
        stored = self._containers()
        self.kept = contained(stored)
        self.is_visited[self.container_group[~self.kept.ok]] = True
        self.spoken = looked_up(self.kept, heard.entries, heard.origin, self.entry_container)
        effects = self.effects = chained(self.spoken, heard.sets)
        messages, there = len(heard.group), effects.there
        self.less = self._folded(*self._removed(effects))
        self.wrong = np.bincount(heard.message[~restated & (~there != (heard.how == INSERT))], minlength=messages).tolist()
        self.change = np.zeros(messages, np.int64)
        np.add.at(self.change, heard.message, heard.sets.astype(np.int64) - there)
        effective = heard.sets | there
        self.is_dirty = np.bincount(self.entry_container[effective], minlength=len(known)) > 0

    def _removed(self, effects: Effects) -> tuple[Any, Any]:
        """The parts that entries replace or remove, and these entries."""
        heard = self.heard
        stored = np.flatnonzero(effects.there & (effects.prior < 0))
        again = np.flatnonzero(effects.there & (effects.prior >= 0))
        lists = part_column(self.kept, self.spoken.old[stored])
        if not len(again):
            return lists, stored
        said = heard.entries.column_of_rows(self._setter(effects, again), heard.parts)
        entries = np.concatenate([stored, again])
        order = np.argsort(entries)
        return pa.concat_arrays([lists, said]).take(pa.array(order)), entries[order]

    def _setter(self, effects: Effects, entries: Any) -> Any:
        """Of entries that find what one before them has set: that one."""
        found = effects.prior[entries]
        while True:
            open_ = ~self.heard.sets[found]
            if not open_.any():
                return found
            found = np.where(open_, effects.prior[found], found)

    def _containers(self) -> Any:
        """The containers that entries speak of, as they are stored, in the order of `container_group` and `container_leaf`."""
        in_row = self.leaves[self.container_group] == 0
        self.leaf_keys: list[bytes] = []
        found: list[Any] = [b"\x80"] * len(in_row)
        for at in np.flatnonzero(in_row).tolist():
            row = self.rows[self.container_group[at]]
            if row is not None:
                found[at] = bytes(row.inline)
        in_leaves = np.flatnonzero(~in_row)
        if len(in_leaves):
            groups = self.container_group[in_leaves]
            prefixes = [sub_prefix(row_key, _NODES) for row_key in self.row_keys]
            numbers = self.container_leaf[in_leaves].astype(">u4").tobytes()
            self.leaf_keys = [prefixes[group] + _LEAF + numbers[4 * nth : 4 * nth + 4] for nth, group in enumerate(groups.tolist())]
            for at, raw in zip(in_leaves.tolist(), stored_entries(self.step.store, self.leaf_keys), strict=True):
                found[at] = raw or b"\x80"
        self.leaf_key = dict(zip(in_leaves.tolist(), self.leaf_keys, strict=True))
        if sum(map(len, found)) + len(self.heard.entries.data) > MOST_BYTES:
            raise SingleRows("they are too large for columns")
        return pa.array(found, BINARY)

    # --- what groups come to

    def settle(self, ordered: Callable[[], Arrivals]) -> None:
        """Visits, and what goes without, in the order of keys. ordered: makes the arrivals of all groups."""
        step, view, heard = self.step, self.view, self.heard
        arrivals: Arrivals | None = None
        states: list[_Settled | None] = [
            None if is_visited else self._settled(at) for at, is_visited in enumerate(self.is_visited.tolist())
        ]
        if view.origins:
            self._rewrite(states)
        for at, state in enumerate(states):
            if state is None or not self._shows(at, state):
                arrivals = arrivals or ordered()
                step.visit_key(self.row_keys[at], arrivals, at)
            else:
                self._tell(at, state, heard.times[at])

    def _shows(self, at: int, state: _Settled) -> bool:
        """Works out what a group shows. False if the reducer raises, which the visit says, or its contributions do not fit into the row any more."""
        row, stored = state.row, self.rows[at]
        if state.inline is None:
            state.inline = b"\x80" if stored is None else bytes(stored.inline)
        if not row.leaves and len(state.inline) > self.view.inline and _entries_in(state.inline) > FEW:
            return False
        try:
            if not self.view.inverts:
                row.inline = self.view.decode(state.inline)
            state.shown = self.view.shown_of(row)
        except Exception:
            return False
        return True

    def _settled(self, at: int) -> _Settled | None:
        """What becomes of a group's count and total, message by message; None if it must be visited (rule 2)."""
        view, more, less, stored = self.view, self.more, self.less, self.rows[at]
        row = (
            GroupRow(self.generation)
            if stored is None
            else GroupRow(stored.generation, stored.leaves, stored.count, view.decode(stored.total), view.decode(stored.shown))
        )
        row.restated = view.origins and self.restated[at].item()
        contributions = wrong = 0
        is_moved = not view.origins
        leaves = row.leaves
        for message in range(self.heard.bounds[at], self.heard.bounds[at + 1]):
            moved = self.change[message].item()
            row.count += moved
            contributions += moved
            is_moved = is_moved or moved != 0
            if view.origins:
                wrong += self.wrong[message]
            if view.inverts:
                try:
                    row.total = view.moved(row.total, more.known[message], more.totals[message], less.known[message], less.totals[message])
                except Exception:  # the visit says what is wrong
                    return None
            if leaves:
                if row.count <= BACK or row.count > 2 * LOAD * leaves or 2 * row.count < LEAST * leaves or row.count < LEAST * leaves:
                    return None
                leaves = max(leaves, -(-row.count // LOAD))
        return _Settled(row, contributions if is_moved else None, wrong, leaves)

    def _rewrite(self, states: list[_Settled | None]) -> None:
        """Containers anew."""
        there = np.array([state is not None for state in states], bool)
        chosen = np.flatnonzero(self.is_dirty & there[self.container_group])
        if not len(chosen):
            return
        heard = self.heard
        origins, parts = (heard.entries.column(one) for one in (heard.origin, heard.parts))
        made = rewritten(self.kept, self.effects, self.entry_container, origins, parts, chosen)
        delta = self.step.delta
        leaves: dict[int, dict[int, bytes | None]] = {}
        for container, data, group, leaf in zip(
            chosen.tolist(), made, self.container_group[chosen].tolist(), self.container_leaf[chosen].tolist(), strict=True
        ):
            state = states[group]
            assert state is not None
            if not state.row.leaves:
                state.inline = data or b"\x80"
            elif state.leaves > state.row.leaves:
                leaves.setdefault(group, {})[leaf] = data
            else:
                delta[self.leaf_key[container]] = data
        for group, state in enumerate(states):
            if state is not None and state.leaves > state.row.leaves:
                self._split(group, state, leaves.get(group, {}))

    def _split(self, group: int, state: _Settled, changed: dict[int, bytes | None]) -> None:
        """More leaves for a group."""
        entries = _Leaves(self.step, sub_prefix(self.row_keys[group], _NODES), changed)
        tree = Tree(entries, state.row.leaves, None, self.view.encode, self.view.decode)  # type: ignore[arg-type]
        tree.split_to(state.leaves)
        tree.flush(None)
        state.row.leaves = state.leaves
        entries.write(self.step.delta)

    def _tell(self, at: int, state: _Settled, time: int) -> None:
        """Writes a group's row, and says what it shows."""
        step, view, row, visit = self.step, self.view, state.row, self.step.visit
        row_key = self.row_keys[at]
        if state.wrong:
            visit.tally("mismatches", state.wrong)
        if state.contributions is not None:
            visit.tally("contributions", state.contributions)
        if row.leaves:
            visit.tally("groups of depth 1", 0)
        assert state.inline is not None
        prev, row.shown = row.shown, state.shown
        view.key = key_of(row_key.decode())
        visit.begin(view.key, row_key, None)
        visit.finish(time)
        try:
            view.say(prev, row.shown, row.restated)
        except Exception as error:
            raise SingleRows("a map raises") from error
        raw = self.raws[at]
        if not row.count and not row.shown:
            if raw is not None:
                step.delta[ROW + row_key] = None
                step.counts.keys -= 1
            return
        head = view.encode([row.generation, row.leaves, row.count, row.total, row.shown])
        new = encode_fields((b"\x96" + head[1:] + state.inline, [], [], []))
        if new != raw:
            step.delta[ROW + row_key] = new
            step.counts.keys += raw is None


def _entries_in(map: bytes) -> int:
    return map[0] & 0x0F if map[0] < 0x90 else int.from_bytes(map[1:3], "big")


class _Settled:
    """A group after its messages. contributions: how many more, None if none has come or gone. inline: its contributions in the row, None where they are as
    they were. leaves: how many it needs."""

    __slots__ = ("contributions", "inline", "leaves", "row", "shown", "wrong")

    def __init__(self, row: GroupRow, contributions: int | None, wrong: int, leaves: int) -> None:
        self.row, self.contributions, self.wrong, self.leaves = row, contributions, wrong, leaves
        self.inline: bytes | None = None
        self.shown: list[Any] = []


class _Leaves:
    """The leaves of a group, some of which have changed. Stands for the map that a tree writes to."""

    def __init__(self, step: Step, prefix: bytes, changed: dict[int, bytes | None]) -> None:
        self._step, self._prefix, self._changed = step, prefix, changed

    def _key(self, at: int) -> bytes:
        return self._prefix + _LEAF + at.to_bytes(4, "big")

    def get(self, at: int) -> bytes | None:
        return self._changed[at] if at in self._changed else self._step.store.get(self._key(at))

    def set(self, at: int, data: bytes) -> None:
        self._changed[at] = data

    def delete(self, at: int) -> None:
        self._changed[at] = None

    def write(self, delta: dict[bytes, bytes | None]) -> None:
        delta.update((self._key(at), data) for at, data in self._changed.items())
