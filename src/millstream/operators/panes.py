"""The window operator: tumbling, hopping and calendar windows, and those that results came from, on a store of panes.

    P <end of the pane> <class> <epoch>   → partial results of one pane that came in one epoch, or in several (`partials.py`). class: how many rows, roughly

Rules
1. A record touches one pane. Panes are kept by their ends, so the order of the entries is the order of time: there is no timer, and no entry per key.
2. A window is told once, when the low watermark reaches its end, with the timestamp `end - 1`: no record of it is expected any more, and a window behind it
   takes the result in the same epoch. A window that was told before the epoch (its end is not above the low watermark before it) is not told again.
3. A record is late if all its windows were told before the epoch. It touches no pane.
4. A pane goes when the last window that has it is told.
5. `MERGED` entries of one pane and class become one, so that a pane has few of them, however many epochs it lasts. Which, follows from what is stored and
   what came in: every attempt at an epoch does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.computation import Computation
from millstream.core.outcome import Outcome
from millstream.core.time import BEGINNING, END
from millstream.operators.chain import applied, explained_links
from millstream.operators.expressions import NotInColumns
from millstream.operators.merging import NOTHING, Merging
from millstream.operators.partials import Labels, Partials, coded, decoded, encoded, labels
from millstream.operators.results import Results, WindowResults
from millstream.operators.rows import StreamRows, rows_of
from millstream.operators.vectors import OneByOne, Vector, vector_of
from millstream.operators.window_spec import WindowSpec
from millstream.operators.windows import Calendar, Fixed, Same
from millstream.reducers.base import Reducer

if TYPE_CHECKING:
    from millstream.core.operator_step import OperatorStep

PANE = b"P"
_NAME = struct.Struct(">cQBQ")
_BIAS = 2**63
MERGED = 16


class WindowOperator(Computation):
    """What all window operators are."""

    in_columns = True
    judges_lateness = True

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.vectors: list[Vector] = [vector_of(reducer) for reducer in spec.reducers.values()]
        is_plain = all(type(vector) is not Vector and not vector.reducer.functions for vector in self.vectors)
        #: Whether partial results may be made before the shard's task sees the records.
        self.folds_ahead = not isinstance(spec.kind, Same) and not spec.links and is_plain

    def lifted(self, rows: StreamRows, groups: Labels) -> list[Any]:
        """The parts of all reducers, by group. Raises NotInColumns."""
        found: list[Any] = []
        for vector in self.vectors:
            found += vector.lifted(rows, groups) if reads(vector.reducer, rows) else unread(vector, groups)
        return found

    def explain(self, types: Mapping[str, str]) -> list[tuple[str, str]]:
        """By part, why it does not work on columns; "" where it does. types: of the columns that it reads, where they are known."""
        return explained_parts(self.spec, self.vectors, types)


class PaneWindow(WindowOperator):
    """Reduces the records of each key and window."""

    State = type(None)

    def late_times(self, times: Any, before: int) -> Any:
        """Which records are late, as a mask; None: none is."""
        kind = self.spec.kind
        assert isinstance(kind, Fixed | Calendar)
        return late_panes(kind, kind.pane_ends(times), over_at(before, self.spec.lateness))

    def ahead(self, rows: StreamRows) -> tuple[Partials, Any]:
        """Partial results of rows of which none is late, and how many rows are in each. Raises NotInColumns."""
        window = self.spec.kind
        assert isinstance(window, Fixed | Calendar)
        groups = labels(window.pane_ends(rows.times), *coded(rows.keys), ordered=False)
        return groups.with_columns(self.lifted(rows, groups)), groups.count

    def run_columns(self, step: OperatorStep, given: Arrivals | OperatorInput) -> Outcome:
        return PaneStep(self, step).run(given if isinstance(given, OperatorInput) else rows_of(given))


class PaneStep(Merging):
    """One epoch of a window operator on one shard."""

    def __init__(self, operator: Any, step: OperatorStep) -> None:
        super().__init__(operator.spec.reducers, operator.vectors, step.kind.encode_sub, step.kind.decode_sub)
        self.spec, self.step, self.store, self.times = operator.spec, step, step.store, step.times
        self._read: dict[bytes, Partials] = {}

    def run(self, given: OperatorInput) -> Outcome:
        step = self.step
        self.prepare(given)
        made = [table for rows in given.rows if len(table := self._partials(self.linked(rows, given.one_by_one)))]
        is_one = len(made) == 1 and not given.chunks  # and in order already
        results = self._close(made[0] if is_one else self.folded([*made, *map(decoded, given.chunks)]))
        step.counts.fired += sum(map(len, results))
        step.counts.next_low = self._next_end()
        return Outcome(step.delta, step.visit.productions, step.counts, results=results)

    def prepare(self, given: OperatorInput) -> None:
        """What comes before everything else."""
        if given.one_by_one:
            self.vectors = [OneByOne(vector) for vector in self.vectors]
        if given.rejected:
            self.step.reject(given.rejected)
        self.step.counts.records = sum(map(len, given.rows)) + given.folded

    def over(self, low: int) -> int:
        return over_at(low, self.spec.lateness)

    # --- records to partial results

    def _partials(self, rows: StreamRows) -> Partials:
        """The partial results of some records. Late ones are put aside."""
        if not len(rows):
            return NOTHING
        ends, starts, late = self._placed(rows)
        if late is not None:
            for record in rows.where(late).records():
                self.step.put_late(record)
            keep = np.flatnonzero(~late)
            rows, ends, starts = rows.where(~late), ends[keep], None if starts is None else starts[keep]
            if not len(rows):
                return NOTHING
        groups = labels(ends, *coded(rows.keys), starts)
        columns = attempted(self._lifted, rows, groups)
        if columns is None:
            return self._partials(self.without_failing(rows, groups))
        return groups.with_columns(columns)

    def without_failing(self, rows: StreamRows, groups: Labels) -> StreamRows:
        """The rows without those for which a reducer raises, which are dead letters, or the end of the epoch."""
        keep = np.ones(len(rows), bool)
        totals: dict[tuple[int, int], Any] = {}
        ids = rows.ids()
        for at, (record, group) in enumerate(zip(rows.records(), groups.of.tolist(), strict=True)):
            found = {}
            try:
                for number, vector in enumerate(self.vectors):
                    reducer = vector.reducer
                    part = reducer.lift_at(record.value, [record.timestamp, ids[at]]) if reads(reducer, rows) else None
                    total = totals.get((group, number))
                    if part is not None:
                        found[group, number] = part if total is None else reducer.combine(total, part)
            except Exception as error:
                self.step.put_failed(record, error)
                keep[at] = False
            else:
                totals.update(found)
        assert not keep.all(), "a reducer raised, and does not for any single record"
        return rows.where(keep)

    def linked(self, rows: StreamRows, one_by_one: bool) -> StreamRows:
        """Rows behind what is done to them before."""
        links = self.spec.links.get(rows.stream)
        return applied(links, rows, self.step.put_failed, one_by_one) if links else rows

    def _lifted(self, rows: StreamRows, groups: Labels) -> list[Any]:
        """The parts of all reducers, by group, in columns."""
        columns: list[Any] = []
        for vector in self.vectors:
            if not reads(vector.reducer, rows):
                columns += unread(vector, groups)
                continue
            try:
                columns += vector.lifted(rows, groups)
            except NotInColumns:
                columns += self.columns_of(vector, self._one_by_one(vector, rows, groups))
        return columns

    def _placed(self, rows: StreamRows) -> tuple[Any, Any, Any]:
        """The pane of every record, by end (and start), and which of them are late; None: none is."""
        kind, over = self.spec.kind, self.over(self.times.late_before)
        if isinstance(kind, Same):
            try:
                ends, starts = (np.array([value[name] for value in rows.values()], np.int64) for name in ("end", "start"))
            except (KeyError, TypeError, OverflowError):
                raise ValueError("window(same()) reads results of a window: their values have `start` and `end`") from None
            late = ends <= over
            return ends, starts, late if late.any() else None
        ends = kind.pane_ends(rows.times)
        return ends, None, late_panes(kind, ends, over)

    def _one_by_one(self, vector: Vector, rows: StreamRows, groups: Labels) -> list[Any]:
        """The parts that a reducer makes of each value."""
        reducer = vector.reducer
        totals: list[Any] = [None] * len(groups)
        combine = reducer.combine
        if reducer.wants_order:
            order = zip(rows.times.tolist(), rows.ids(), strict=True)
            parts: Iterable[Any] = (reducer.lift_at(value, list(at)) for value, at in zip(rows.values(), order, strict=True))
        else:
            parts = map(reducer.lift, rows.values())
        for at, part in zip(groups.of.tolist(), parts, strict=True):
            if part is not None:
                total = totals[at]
                totals[at] = part if total is None else combine(total, part)
        return totals

    # --- panes

    def _close(self, new: Partials) -> list[Results]:
        """Tells the windows that have ended, and keeps what is left in the store."""
        low, after = self.times.low_watermark, self.times.late_before
        stored = self._stored(low) if low > after else {}
        is_hopping = isinstance(self.spec.kind, Fixed) and self.spec.kind.size != self.spec.kind.every
        results = self._told_hopping(new, stored, after, low) if is_hopping else self._told(new, stored, low)
        for end, names in stored.items():
            if self._last_end(end) <= low:
                for name in names:
                    self._drop(name)
        for end, table in new.by_end():
            if self._last_end(end) > low:
                self._keep(end, table)
        return results

    def _last_end(self, pane_end: int) -> int:
        return pane_end if isinstance(self.spec.kind, Same) else self.spec.kind.last_end(pane_end)

    def _stored(self, until: int) -> dict[int, list[bytes]]:
        """The entries of panes with ends up to a time, by end."""
        found: dict[int, list[bytes]] = {}
        for name in self.store.keys(FIRST, entry_name(until + 1) if until < END else AFTER):  # type: ignore[attr-defined]
            found.setdefault(end_of(name), []).append(name)
        return found

    def _told(self, new: Partials, stored: Mapping[int, Sequence[bytes]], low: int) -> list[Results]:
        """Where every pane is a window."""
        table = new.slice(0, int(np.searchsorted(new.ends, low, "right")))
        if stored:
            table = self.folded([*(self._table(name) for names in stored.values() for name in names), *([table] if len(table) else [])])
        if not len(table):
            return []
        kind = self.spec.kind
        if isinstance(kind, Same):
            return [self.results(table, np.arange(len(table)), table.starts, table.ends)]
        ends, window = np.unique(table.ends, return_inverse=True)
        return [self.results(table, window, np.array([kind.start_of(end) for end in ends.tolist()], np.int64), ends)]

    def _told_hopping(self, new: Partials, stored: Mapping[int, Sequence[bytes]], after: int, low: int) -> list[Results]:
        kind = self.spec.kind
        assert isinstance(kind, Fixed)
        fresh = dict(new.by_end())
        panes = sorted({*fresh, *stored})
        results = []
        for start, end in kind.closing(panes, after, low):
            tables = [self._table(name) for at in panes if start < at <= end for name in stored.get(at, ())]
            tables += [fresh[at] for at in panes if start < at <= end and at in fresh]
            table = self.folded([at_end(one, end) for one in tables])
            results.append(self.results(table, np.zeros(len(table), np.int64), np.array([start]), np.array([end])))
        return results

    def _table(self, name: bytes) -> Partials:
        """A stored entry, decoded once."""
        found = self._read.get(name)
        if found is None:
            data = self.store.get(name)
            assert data is not None
            found = self._read[name] = self.table(data, end_of(name))
        return found

    def _keep(self, end: int, table: Partials) -> None:
        """Puts partial results of a pane that stays open into the store (rule 5)."""
        stored = list(self.store.keys(entry_name(end), entry_name(end, 255)))  # type: ignore[attr-defined]
        stored = [name for name in stored if self._may_merge(name, end)]
        while len(alike := [name for name in stored if class_of(name) == row_class(len(table))]) >= MERGED - 1:
            table = self.folded([*map(self._table, alike), table])
            stored = [name for name in stored if name not in alike]
            for name in alike:
                self._drop(name)
        self.step.counts.keys += len(table)
        self.step.delta[entry_name(end, row_class(len(table)), self.times.epoch)] = encoded(table, self.encode, self.decode)

    def _may_merge(self, name: bytes, end: int) -> bool:
        return True

    def _drop(self, name: bytes) -> None:
        self.step.counts.keys -= len(self._table(name))
        self.step.delta[name] = None

    def _next_end(self) -> int | None:
        """The end of the next window that has anything."""
        delta = self.step.delta
        ahead = next((end_of(name) for name in self.store.keys(FIRST, AFTER) if delta.get(name, b"") is not None), None)  # type: ignore[attr-defined]
        ends = [end_of(name) for name, data in delta.items() if data is not None and name.startswith(PANE)]
        pane = min((end for end in (ahead, min(ends, default=None)) if end is not None), default=None)
        if pane is None or isinstance(self.spec.kind, Same):
            return pane
        return int(self.spec.kind.next_end(pane, self.times.low_watermark))

    # --- results

    def results(self, table: Partials, window: Any, starts: Any, ends: Any) -> Results:
        """What is told of some windows. window: the place of each row's in starts and ends."""
        step, spec = self.step, self.spec
        stream = step.wiring.streams[0]
        windows = (window, starts, ends)
        with_ids = stream in step.visit.named_streams
        columns = self.shown(table.columns, spec.tells_parts)
        return WindowResults(step.name, stream, table.codes, table.names, windows, spec.key_fields, columns, step.visit.least, with_ids)


def explained_parts(spec: WindowSpec, vectors: Sequence[Vector], types: Mapping[str, str]) -> list[tuple[str, str]]:
    """The steps and reducers of a window, each with the reason why it does not work on columns."""
    found = explained_links([link for links in spec.links.values() for link in links])
    for name, vector in zip(spec.reducers, vectors, strict=True):
        why = vector.reason if type(vector) is Vector else "it has a Python function" if vector.reducer.functions else ""
        kind = types.get(getattr(vector.reducer, "field", None) or "")
        if not why and kind is not None:
            why = vector.why_not(kind)
        found.append((f"{name} = {vector.reducer.describe()}", why))
    return found


def late_panes(kind: Any, ends: Any, over: int) -> Any:
    """Which panes are over with all their windows, as a mask; None: none is."""
    return None if kind.last_end(int(ends.min())) > over else kind.last_ends(ends) <= over


def over_at(low: int, lateness: int) -> int:
    """Windows that end up to then are over for good."""
    return low if low == END else max(low - lateness, BEGINNING)


def attempted(lift: Callable[[StreamRows, Labels], Any], rows: StreamRows, groups: Labels) -> Any:
    """What a function makes of rows; None where a reducer raises: for which record, is found one by one."""
    try:
        return lift(rows, groups)
    except Exception:
        return None


def reads(reducer: Reducer, rows: StreamRows) -> bool:
    """Whether a reducer reads records of a stream: all do, unless of= says another."""
    return getattr(reducer, "of", None) in (None, rows.stream)


def unread(vector: Vector, groups: Labels) -> list[Any]:
    """The columns of a reducer that does not read these rows."""
    return [pa.nulls(len(groups), pa.int64())] * vector.width


def entry_name(end: int, rows: int = 0, epoch: int = 0) -> bytes:
    return _NAME.pack(PANE, end + _BIAS, rows, epoch)


FIRST = PANE + b"\0"  # the entry PANE itself is no pane: what is to be noted of all
AFTER = PANE + b"\xff" * 18


def end_of(name: bytes) -> int:
    return int.from_bytes(name[1:9], "big") - _BIAS


def epoch_of(name: bytes) -> int:
    return int.from_bytes(name[10:18], "big")


def class_of(name: bytes) -> int:
    return name[9]


def row_class(rows: int) -> int:
    """Entries of about as many rows are of one class."""
    return rows.bit_length() // 4


def at_end(table: Partials, end: int) -> Partials:
    """A pane's partial results, as those of a window."""
    return msgspec.structs.replace(table, ends=np.full(len(table), end, np.int64))
