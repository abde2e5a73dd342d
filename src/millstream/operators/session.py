"""The session operator: the records of a key that follow each other with less than a gap between two, in columns.

    P                                → the low watermark up to which everything is told
    P <latest due> <class> <epoch>   → stretches of sessions that came in one epoch, or in several (`spans.py`). class: how many rows, roughly

Rules
1. A record joins a session if it is less than the gap away from one of its records. A session ends at its last record plus the gap: a record at just that
   time begins the next one.
2. What comes in an epoch is cut at the gaps and kept as it is; it is joined with what is stored when its end has come, and where entries are merged. So an
   epoch reads and writes what it has to do with, and the result does not depend on how records fall into epochs.
3. When the low watermark reaches the end of a stretch, it is joined with all others of its key that have ended. If one that overlaps it has not, it waits
   for that one, under its due. Else the session is told, once, with the timestamp `end - 1`. A row that is due before what is told is over: it was told, or
   stands elsewhere.
4. A record older than the low watermark before the epoch is late, unless a session that was open then holds it (first <= t < end). So sessions of a key
   never overlap, nothing is remembered about closed ones, and no record that an open one has room for is lost.
5. An entry goes when all of it is over, and is written anew when most of it is. `MERGED` entries of one class become one, as panes do (`panes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.operator_step import OperatorStep
from millstream.core.outcome import Outcome
from millstream.core.time import BEGINNING, END
from millstream.operators.panes import AFTER, FIRST, MERGED, PaneStep, WindowOperator, attempted, class_of, entry_name, row_class
from millstream.operators.partials import Labels, Partials, coded
from millstream.operators.results import Results
from millstream.operators.rows import StreamRows, rows_of
from millstream.operators.spans import (
    NOTHING_DUE,
    TOLD,
    Spans,
    StoredSpans,
    chained,
    groups_of,
    hashed,
    joined,
    longest_due,
    ordered_names,
    told_bytes,
    told_in,
)
from millstream.operators.windows import Session


class SessionWindow(WindowOperator):
    """Reduces the records of each session."""

    State = type(None)

    def late_times(self, times: Any, before: int) -> Any:
        """Which records may be late, as a mask; None: none. Whether an open session holds them, only its shard can say."""
        found = times < before
        return found if found.any() else None

    def ahead(self, rows: StreamRows) -> tuple[Spans, Any]:
        """Stretches of rows of which none is late, and how many rows are in each. Raises NotInColumns."""
        spans, groups = stretched(rows, self.spec.kind.gap)  # type: ignore[union-attr]
        spans.columns = self.lifted(rows, groups)
        return spans, groups.count

    def run_columns(self, step: OperatorStep, given: Arrivals | OperatorInput) -> Outcome:
        return SessionStep(self, step).run(given if isinstance(given, OperatorInput) else rows_of(given))


class SessionStep(PaneStep):
    """One epoch of a session operator on one shard."""

    def run(self, given: OperatorInput) -> Outcome:
        step, low = self.step, self.times.low_watermark
        assert isinstance(self.spec.kind, Session)
        self._gap = self.spec.kind.gap
        raw = step.store.get(TOLD)
        self._told_until = BEGINNING if raw is None else told_in(raw)
        self._entries = {name: self._stored_spans(name) for name in step.store.keys(FIRST, AFTER)}  # type: ignore[attr-defined]
        self.prepare(given)
        came = [made for rows in given.rows for made in self._stretches(self._on_time(self.linked(rows, given.one_by_one)))]
        fresh = self.joined_spans([*came, *(StoredSpans(chunk).whole() for chunk in given.chunks)])
        ending, kept = self._due(low), []
        if fresh is not None:
            ending.append(fresh.where(fresh.dues <= low))
            kept.append(fresh.where(fresh.dues > low))
        results = []
        done = self.joined_spans(ending)
        if done is not None:
            dues = np.full(len(done), NOTHING_DUE)
            near: list[Spans | StoredSpans] = [*kept, *self._entries.values()]
            for others in near:
                dues = np.maximum(dues, longest_due(done, others, low))
            is_over = dues == NOTHING_DUE
            if is_over.any():
                results.append(self._results_of(done.where(is_over)))
            done.dues = dues
            kept.append(done.where(~is_over))
        step.counts.fired += sum(map(len, results))
        step.counts.next_low = self._store(self.joined_spans(kept), low)
        return Outcome(step.delta, step.visit.productions, step.counts, results=results)

    # --- records to stretches

    def _stretches(self, rows: StreamRows) -> Iterable[Spans]:
        """Records that belong together."""
        if not len(rows):
            return
        spans, groups = stretched(rows, self._gap)
        columns = attempted(self._lifted, rows, groups)
        if columns is None:
            yield from self._stretches(self.without_failing(rows, groups))
            return
        spans.columns = columns
        yield spans

    def _on_time(self, rows: StreamRows) -> StreamRows:
        """Rule 4: puts late records aside."""
        before = self.times.late_before
        if not len(rows) or int(rows.times.min()) >= before:
            return rows
        old = np.flatnonzero(rows.times < before)
        late = np.zeros(len(rows), bool)
        late[old] = ~self._held(rows.keys.take(pa.array(old)), rows.times[old])
        if not late.any():
            return rows
        for record in rows.where(late).records():
            self.step.put_late(record)
        return rows.where(~late)

    def _held(self, keys: Any, times: Any) -> Any:
        """Which times of keys an open session holds."""
        codes, names = coded(keys)
        names, hashes, place = ordered_names(names, hashed(names))
        found = []
        for stored in self._entries.values():
            at = stored.of_keys(names, hashes)
            found.append(stored.where(at[stored.dues[at] > self._told_until]))
        open_now = self.joined_spans(found)
        held = np.zeros(len(times), bool)
        if open_now is not None:
            asked = Spans(names, hashes, place[codes], times, times + 1, times, [])
            held = longest_due(asked, open_now, self._told_until) != NOTHING_DUE
        return held

    # --- what is stored

    def _stored_spans(self, name: bytes) -> StoredSpans:
        data = self.step.store.get(name)
        assert data is not None
        found = StoredSpans(data)
        self.check_columns(found.columns)
        return found

    def _due(self, low: int) -> list[Spans]:
        """The rows that are due in this epoch."""
        return [stored.where(at) for stored in self._entries.values() if len(at := stored.due(self._told_until, low))]

    def joined_spans(self, tables: Iterable[Spans]) -> Spans | None:
        return joined(tables, self.combined)

    def _store(self, rows: Spans | None, low: int) -> int | None:
        """Rule 5. The next time at which a row is due."""
        step, left = self.step, dict(self._entries)
        mostly_over = [name for name, stored in left.items() if 2 * stored.count_after(low) < len(stored)]
        while True:
            tables = [] if rows is None else [rows]
            for name in mostly_over:
                stored = left.pop(name)
                step.delta[name] = None
                step.counts.keys -= len(stored)
                if len(at := stored.due(low)):
                    tables.append(stored.where(at))
            rows = self.joined_spans(tables)
            alike = [name for name in left if rows is not None and class_of(name) == row_class(len(rows))]
            if len(alike) < MERGED - 1:
                break
            mostly_over = alike
        if rows is not None:
            step.counts.keys += len(rows)
            name = entry_name(int(rows.dues.max()), row_class(len(rows)), self.times.epoch)
            step.delta[name] = rows.chunk(self.encode, self.decode)
        if (rows is not None or left) and low > self._told_until:
            step.delta[TOLD] = told_bytes(low)
        elif not left and rows is None and self._told_until > BEGINNING:
            step.delta[TOLD] = None
        dues = [stored.next_due(low) for stored in left.values()] + ([] if rows is None else [int(rows.dues.min())])
        return min((due for due in dues if due is not None), default=None)

    def _results_of(self, rows: Spans) -> Results:
        """What is told of some sessions, in the order of (key, start)."""
        rank = np.empty(len(rows.names), np.int64)
        rank[pc.sort_indices(rows.names).to_numpy()] = np.arange(len(rows.names))
        order = np.lexsort((rows.firsts, rank[rows.codes]))
        columns = [column.take(pa.array(order)) for column in rows.columns]
        table = Partials(rows.ends[order], rows.codes[order], rows.names, columns)
        return self.results(table, np.arange(len(rows)), rows.firsts[order], table.ends)


def stretched(rows: StreamRows, gap: int) -> tuple[Spans, Labels]:
    """Records that belong together (rule 1), their parts yet to be made."""
    codes, names = coded(rows.keys)
    names, hashes, place = ordered_names(names, hashed(names))
    codes = place[codes]
    order, starts, ends = chained(codes, rows.times, np.minimum(rows.times, END - gap) + gap)
    return Spans(names, hashes, codes[order][starts], rows.times[order][starts], ends, ends, []), groups_of(order, starts)
