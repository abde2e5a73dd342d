"""The session operator: the records of a key that follow each other with less than a gap between two.

A key's open sessions stand in its row, each as [first, last, part of each reducer, ...], in order of time; the row's one timer is the end of the first.

Rules
1. A record joins a session if it is less than the gap away from one of its records. A session ends at its last record plus the gap: a record at just that
   time begins the next one.
2. Records are first joined with each other, in columns: sorted by key and time, and cut at the gaps. What comes of them is joined with what is stored, key by
   key. The result does not depend on how records fall into epochs.
3. A session is told once, when the low watermark reaches its end, with the timestamp `end - 1`. What is left of a key without sessions is nothing.
4. A record older than the low watermark before the epoch is late, unless a session that was open then holds it (first <= t < end). So sessions of a key
   never overlap, nothing is remembered about closed ones, and no record that an open one has room for is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keyspace import (
    LOW_TIMER,
    ROW,
    Row,
    after,
    decode_row,
    encode_row,
    timer_entry,
    timer_row_key,
    timer_time,
    timers_until,
)
from millstream.core.operator_step import OperatorStep
from millstream.core.outcome import Outcome
from millstream.core.time import BEGINNING, END
from millstream.operators.merging import OTHER_REDUCERS, OtherReducers
from millstream.operators.panes import PaneStep, WindowOperator, attempted
from millstream.operators.partials import Labels, Partials, coded
from millstream.operators.results import Results
from millstream.operators.rows import StreamRows, rows_of
from millstream.operators.windows import Session

_TAG = "session"
Sessions = list[list[Any]]  # [first, last, parts ...]


class SessionWindow(WindowOperator):
    """Reduces the records of each session."""

    State = list

    def run_columns(self, step: OperatorStep, given: Arrivals | OperatorInput) -> Outcome:
        return SessionStep(self, step).run(given if isinstance(given, OperatorInput) else rows_of(given))


class SessionStep(PaneStep):
    """One epoch of a session operator on one shard."""

    def run(self, given: OperatorInput) -> Outcome:
        step, times = self.step, self.times
        assert isinstance(self.spec.kind, Session)
        self._gap = self.spec.kind.gap
        self._rows: dict[str, tuple[bytes | None, Sessions]] = {}  # by key text, as stored
        self.prepare(given)
        fresh: dict[str, Sessions] = {}
        for rows in given.rows:
            for text, first, last, parts in self._fragments(self._on_time(self.linked(rows, given.one_by_one))):
                fresh.setdefault(text, []).append([first, last, *parts])
        due = self._due()
        closed: list[tuple[str, list[Any]]] = []
        moved: dict[bytes, bytes | None] = {}
        for text in sorted({*fresh, *due}, key=str.encode):
            raw, stored = self._stored_sessions(text)
            open_sessions = []
            for session in self._joined_sessions(stored, fresh.get(text, ())):
                if self._end(session) <= times.low_watermark:
                    closed.append((text, session))
                else:
                    open_sessions.append(session)
            self._write(text, raw, stored, open_sessions, moved)
        step.counts.touched = len({*fresh, *due})
        step.counts.next_low = self._next_timer(moved)
        step.delta.update(moved)
        return Outcome(step.delta, step.visit.productions, step.counts, results=[self._tell(closed)] if closed else [])

    def _end(self, session: Sequence[Any]) -> int:
        return min(int(session[1]) + self._gap, END)

    # --- records to fragments of sessions

    def _fragments(self, rows: StreamRows) -> list[tuple[str, int, int, list[Any]]]:
        """Records that belong together: (key text, first, last, parts)."""
        if not len(rows):
            return []
        codes, names = coded(rows.keys)
        order = np.lexsort((rows.times, codes))
        sorted_codes, sorted_times = codes[order], rows.times[order]
        cut = np.ones(len(order), bool)
        cut[1:] = (sorted_codes[1:] != sorted_codes[:-1]) | (sorted_times[1:] - sorted_times[:-1] >= self._gap)
        starts = np.flatnonzero(cut)
        lasts = sorted_times[np.append(starts[1:], len(order)) - 1]
        of = np.empty(len(order), np.int64)
        of[order] = np.cumsum(cut) - 1
        groups = Labels(of, np.diff(np.append(starts, len(order))), Partials(lasts, sorted_codes[starts], names, []))
        lists = attempted(self.lifted_parts, rows, groups)
        if lists is None:
            return self._fragments(self.without_failing(rows, groups))
        texts = groups.table.keys.to_pylist()
        return list(zip(texts, sorted_times[starts].tolist(), lasts.tolist(), map(list, zip(*lists, strict=True)), strict=True))

    def _on_time(self, rows: StreamRows) -> StreamRows:
        """Rule 4: puts late records aside."""
        before = self.times.late_before
        if not len(rows) or int(rows.times.min()) >= before:
            return rows
        late = np.zeros(len(rows), bool)
        old = np.flatnonzero(rows.times < before)
        for at, text in zip(old.tolist(), rows.keys.take(pa.array(old)).to_pylist(), strict=True):
            time = int(rows.times[at])
            late[at] = not any(session[0] <= time < self._end(session) for session in self._stored_sessions(text)[1])
        if not late.any():
            return rows
        for record in rows.where(late).records():
            self.step.put_late(record)
        return rows.where(~late)

    # --- what is stored

    def _stored_sessions(self, text: str) -> tuple[bytes | None, Sessions]:
        found = self._rows.get(text)
        if found is None:
            raw = self.store.get(ROW + text.encode())
            sessions = [] if raw is None else self.decode(decode_row(raw).state)
            width = 2 + len(self.vectors)
            if any(len(session) != width for session in sessions):
                raise OtherReducers(OTHER_REDUCERS)
            found = self._rows[text] = (raw, sessions)
        return found

    def _due(self) -> set[str]:
        """Keys that have a session which ends now."""
        low = self.times.low_watermark
        if low == BEGINNING:
            return set()
        return {timer_row_key(entry).decode() for entry, _ in self.store.scan(*timers_until(LOW_TIMER, low))}

    def _joined_sessions(self, stored: Sessions, fresh: Sequence[list[Any]]) -> Sessions:
        """Rule 1, on sessions: those that are less than the gap apart become one."""
        if not fresh:
            return stored
        found: Sessions = []
        for session in sorted([*stored, *fresh], key=lambda one: (one[0], one[1])):
            if found and session[0] - found[-1][1] < self._gap:
                before = found[-1]
                parts = [
                    b if a is None else a if b is None else vector.reducer.combine(a, b)
                    for vector, a, b in zip(self.vectors, before[2:], session[2:], strict=True)
                ]
                found[-1] = [before[0], max(before[1], session[1]), *parts]
            else:
                found.append(session)
        return found

    def _write(self, text: str, raw: bytes | None, stored: Sessions, now: Sessions, moved: dict[bytes, bytes | None]) -> None:
        row_key, counts = text.encode(), self.step.counts
        was, is_ = (self._end(some[0]) if some else None for some in (stored, now))
        if now:
            new = encode_row(Row(self.encode(now), [(is_, _TAG)]))  # type: ignore[list-item]
            if new != raw:
                self.step.delta[ROW + row_key] = new
        elif raw is not None:
            self.step.delta[ROW + row_key] = None
        counts.keys += bool(now) - (raw is not None)
        counts.timers += bool(now) - bool(stored)
        if was != is_:
            if was is not None:
                moved[timer_entry(LOW_TIMER, was, row_key)] = None
            if is_ is not None:
                moved[timer_entry(LOW_TIMER, is_, row_key)] = b""

    def _next_timer(self, moved: dict[bytes, bytes | None]) -> int | None:
        stored = next((entry for entry, _ in self.store.scan(LOW_TIMER, after(LOW_TIMER)) if moved.get(entry, b"") is not None), None)
        fresh = min((entry for entry, value in moved.items() if value is not None), default=None)
        return min((timer_time(entry) for entry in (stored, fresh) if entry is not None), default=None)

    def _tell(self, closed: Sequence[tuple[str, list[Any]]]) -> Results:
        codes, names = coded(pa.array([text for text, _ in closed], pa.string()))
        starts = np.array([session[0] for _, session in closed], np.int64)
        ends = np.array([self._end(session) for _, session in closed], np.int64)
        columns: list[Any] = []
        for at, vector in enumerate(self.vectors):
            columns += self.columns_of(vector, [session[2 + at] for _, session in closed])
        return self.results(Partials(ends, codes, names, columns), np.arange(len(closed)), starts, ends)
