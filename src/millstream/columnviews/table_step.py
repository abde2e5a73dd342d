"""A table's step on columns: one epoch of one shard, with a visit only for keys that need one.

Rules
1. A key goes by columns if it is new or has a document, and all that came for it is newer than what is stored, and its newest is one document. All else is
   visited: deletions and what was deleted, ties, repeated and stale versions, timers. So the visit (`views/table.py`) says what is right, and this does it
   faster for the most frequent case.
2. A consumer's map works in columns where `mapping.reason` is empty; else the operator's own functions are called for rows that have changed.
3. Entries, productions, counts and tallies are those of the visits, in their order. Places say the order: the key's place among all, then the consumer's.
4. A shard that is scanned, or speaks to a build that waits, and one with a record that cannot be read or mapped, is visited as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnviews.arriving import Arriving
from millstream.columnviews.column_step import ColumnStep
from millstream.columnviews.mapping import MapInColumns, MappedColumns, reason
from millstream.columnviews.packing import BINARY, MOST_BYTES, SingleRows, heads_of_bytes, joined, lengths_of, packed_ints, parts_of
from millstream.columnviews.saying import CONSUMER, KEY, Messages, said_by
from millstream.columnviews.unpacking import PackedRows, Slices
from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keys import key_of
from millstream.core.keyspace import ROW, stored
from millstream.core.outcome import Outcome
from millstream.operators.rows import StreamRows, arrivals_of
from millstream.views.change import Document
from millstream.views.table import DocumentTable

_NO_TIMERS = b"\x90\x90\x90"  # how a row ends that has no timers and holds nothing


class TableStep(ColumnStep):
    """Runs one table."""

    computation: DocumentTable

    def may_go_by_columns(self) -> bool:
        return super().may_go_by_columns() and self.visit.guards.versions

    def run_rows(self, given: OperatorInput, inputs: Sequence[StreamRows], ordered: Callable[[], Arrivals]) -> Outcome:
        news = News(self, inputs)
        due, left = self.due_besides(given, news.row_keys)
        news.tell(due)
        return self.concluded(len(news.arriving), len(news.row_keys) + len(due), left)


class News:
    """What came for the keys of a shard, beside what is stored of them. Everything here has a row per key, in the order of keys."""

    def __init__(self, step: TableStep, inputs: Sequence[StreamRows]) -> None:
        self.step, self.table = step, step.computation
        self.arriving = arriving = Arriving(step.computation, inputs)
        self._group(arriving)
        entries = [ROW + row_key for row_key in self.row_keys]
        raws = stored(step.store, entries)
        if sum(len(raw) for raw in raws if raw is not None) + len(parts_of(arriving.bodies)[0]) > MOST_BYTES:
            raise SingleRows("they are too large for columns")
        self.entries = entries
        self._look_at(raws)

    def _group(self, arriving: Arriving) -> None:
        """By key: the records, and the newest of them."""
        coded = arriving.keys.dictionary_encode()
        ranked = pc.sort_indices(coded.dictionary).to_numpy()  # by bytes
        rank = np.empty(len(ranked), np.int64)
        rank[ranked] = np.arange(len(ranked))
        of = rank[coded.indices.to_numpy()]
        order = np.lexsort((arriving.versions, of))
        of = of[order]
        starts = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
        lasts = np.append(starts[1:], len(of)) - 1
        versions = arriving.versions[order]
        self.names = coded.dictionary.take(pa.array(ranked))
        self.row_keys: list[bytes] = self.names.cast(BINARY).to_numpy(zero_copy_only=False).tolist()
        self.order, self.starts, self.lasts = order, starts, lasts
        self.oldest, self.version = versions[starts], versions[lasts]
        self.winner = order[lasts]
        several = lasts > starts
        self.times = np.maximum.reduceat(arriving.times[order], starts)
        self.is_tied = several & (versions[np.maximum(lasts - 1, 0)] == self.version)
        self.goes = arriving.deleted[self.winner]

    def _look_at(self, raws: list[bytes | None]) -> None:
        """What is stored, and which keys go by columns (rule 1)."""
        is_stored = np.fromiter((raw is not None for raw in raws), bool, len(raws))
        kept = PackedRows.of(pa.array([raw for raw in raws if raw is not None], BINARY))
        version, body = _read_rows(kept, self.table.rules.versioned)
        self.was_at = np.cumsum(is_stored) - 1  # where a key's stored row is among those
        at = self.was_at[is_stored]
        assert len(at) == len(kept)
        self.kept, self.kept_body, self.kept_version = kept, body, version
        newer = np.ones(len(raws), bool)
        if self.table.rules.versioned:
            newer[is_stored] = self.oldest[is_stored] > version
        usable = np.ones(len(raws), bool)
        usable[is_stored] = kept.ok
        self.stored = is_stored
        self.is_visited = ~newer | ~usable | self.is_tied | self.goes

    # --- what they come to

    def tell(self, due: Sequence[bytes]) -> None:
        """Writes the rows that change, and tells their consumers. due: keys without records that are to be visited."""
        step, table = self.step, self.table
        quick = np.flatnonzero(~self.is_visited)
        bodies = self.arriving.bodies.take(pa.array(self.winner[quick]))
        was_there = self.stored[quick]
        differs = np.ones(len(quick), bool)
        before = self.kept.column_of_rows(self.was_at[quick[was_there]], self.kept_body)
        differs[was_there] = pc.not_equal(before, bodies.filter(pa.array(was_there))).to_numpy(zero_copy_only=False)
        is_news = differs | table.rules.versioned  # a newer version is looked at by maps, even of the same document
        messages = Messages(step, table)
        self._write(quick[is_news], bodies.filter(pa.array(is_news)))
        self._tally(int(differs.sum()), int((~was_there).sum()))
        single = self._in_columns(quick[is_news], bodies.filter(pa.array(is_news)), messages)
        shows = quick[differs] if table.sending.shown else quick[:0]
        self._one_by_one(single, shows, due, messages)
        messages.send()

    def _tally(self, changes: int, documents: int) -> None:
        for name, count in (("changes", changes), ("documents", documents)):
            if count:
                self.step.visit.tally(name, count)

    def _write(self, chosen: Any, bodies: Any) -> None:
        if not len(chosen):
            return
        versions: Any = packed_ints(self.version[chosen]) if self.table.rules.versioned else b"\xc0"
        sizes = lengths_of(bodies)
        heads = heads_of_bytes(sizes)
        whole = 1 + (1 if isinstance(versions, bytes) else lengths_of(versions)) + lengths_of(heads) + sizes
        rows = joined(b"\x94", heads_of_bytes(whole), b"\x92", versions, heads, bodies, _NO_TIMERS)
        values = rows.to_numpy(zero_copy_only=False).tolist()
        entries = self.entries
        self.step.delta.update(zip([entries[at] for at in chosen.tolist()], values, strict=True))
        self.step.counts.keys += int((~self.stored[chosen]).sum())

    def _in_columns(self, chosen: Any, bodies: Any, messages: Messages) -> dict[int, list[int]]:
        """Tells what can be told in columns. Gives, by key, the consumers to which the rest must be told."""
        left: dict[int, list[int]] = {}
        if not len(chosen):
            return left
        now_rows = PackedRows.of(bodies)
        was = self.stored[chosen]
        was_rows = self.kept.take(self.was_at[chosen[was]], self.kept_body)
        for at, downstream in enumerate(self.table.downstreams):
            if reason(downstream):
                for key in chosen.tolist():
                    left.setdefault(key, []).append(at)
                continue
            made = MapInColumns(downstream)
            now, before = made.mapped(now_rows), made.mapped(was_rows)
            ok = now.ok.copy()
            ok[was] &= before.ok
            for key in chosen[~ok].tolist():
                left.setdefault(key, []).append(at)
            places = chosen * KEY + at * CONSUMER
            for mask, side in ((ok & ~was, None), (ok & was, before)):
                some = np.flatnonzero(mask)
                if not len(some):
                    continue
                rows = pa.array(some)
                if side is not None:
                    old = pa.array((np.cumsum(was) - 1)[some])
                    side = MappedColumns(side.texts.take(old), side.parts.take(old), None)
                new = MappedColumns(now.texts.take(rows), now.parts.take(rows), None)
                names = self.names.take(pa.array(chosen[some]))
                found = said_by(at, downstream.origins, names, side, new, places[some], self.times[chosen[some]])
                messages.add(found, self.row_keys)
        return left

    def _one_by_one(self, single: dict[int, list[int]], shows: Any, due: Sequence[bytes], messages: Messages) -> None:
        """Visits, and what is told of single rows, in the order of keys."""
        step, visit = self.step, self.step.visit
        visited = np.flatnonzero(self.is_visited).tolist()
        arrivals = self._arrivals_of(visited)
        numbers = {key: group for group, key in enumerate(visited)}
        shown = set(shows.tolist())
        for key in sorted({*visited, *single, *shown}):
            row_key = self.row_keys[key]
            mark = len(visit.gathered)
            if key in numbers:
                step.visit_key(row_key, arrivals, numbers[key])
                messages.add_gathered(visit.gathered[mark:], key * KEY, row_key)
                continue
            for at, gathered in self._told(key, single.get(key, ()), key in shown):
                messages.add_gathered(gathered, key * KEY + at * CONSUMER, row_key)
        none = Arrivals.none()
        for nth, row_key in enumerate(due, len(self.row_keys)):
            mark = len(visit.gathered)
            step.visit_key(row_key, none, None)
            messages.add_gathered(visit.gathered[mark:], nth * KEY, row_key)
        visit.gathered.clear()

    def _told(self, key: int, consumers: Sequence[int], is_shown: bool) -> Iterator[tuple[int, Sequence[Any]]]:
        """What one changed row tells to some consumers."""
        table, visit = self.table, self.step.visit
        row_key = self.row_keys[key]
        table.key = key_of(row_key.decode())
        visit.begin(table.key, row_key, None)
        visit.finish(int(self.times[key]))
        prev = []
        if self.stored[key]:
            at = self.was_at[key]
            begin, length = int(self.kept_body.begin[at]), int(self.kept_body.length[at])
            old = int(self.kept_version[at]) if table.rules.versioned else None
            prev = [Document(table.key, table.decode(self.kept.data[begin : begin + length].tobytes()), old)]
        version = int(self.version[key]) if table.rules.versioned else None
        next = [Document(table.key, self.arriving.document(int(self.winner[key])), version)]
        for at in consumers:
            mark = len(visit.gathered)
            try:
                table.send_to(at, table.origin, prev, next)
            except Exception as error:
                raise SingleRows("a map raises") from error
            yield at, visit.gathered[mark:]
        if is_shown:
            table.show(prev[0].value if prev else None, next[0].value)

    def _arrivals_of(self, keys: Sequence[int]) -> Arrivals:
        """The records of some keys in canonical order."""
        if not keys:
            return Arrivals.none()
        chosen = np.zeros(len(self.arriving), bool)
        for key in keys:
            chosen[self.order[self.starts[key] : self.lasts[key] + 1]] = True
        starts = self.arriving.starts
        rows = []
        for at, some in enumerate(self.arriving.inputs):
            mine = some.where(chosen[starts[at] : starts[at + 1]])
            batch, places = mine.batch.only(mine.places().tolist())
            rows.append(StreamRows(batch, mine.keys, mine.times, np.array(places, np.int64)))
        return arrivals_of(OperatorInput(rows), self.step.visit.guards.order)


def _read_rows(rows: PackedRows, versioned: bool) -> tuple[Any, Slices]:
    """The versions and the bodies of stored rows. Those with timers, without a document, and those that lie in another way are not `ok`."""
    if not len(rows):
        return np.zeros(0, np.int64), Slices(rows.begin, rows.end)
    at = rows.expect(rows.begin, b"\x94")
    state = rows.bytes_at(at)
    end = state.begin + state.length
    rows.ok &= rows.expect(end, _NO_TIMERS) == rows.end
    at = rows.expect(state.begin, b"\x92")
    if versioned:
        version, at = rows.ints(at)
    else:
        version, at = np.zeros(len(rows), np.int64), rows.expect(at, b"\xc0")
    body = rows.bytes_at(at)
    rows.ok &= body.begin + body.length == end
    return version, body
