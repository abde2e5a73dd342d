"""The open panes of a window operator as rows: a key, and for each of its panes start, end and what every reducer shows of it so far.

Rules
1. A row is a pane. Of tumbling and calendar windows that is a window; of hopping ones a part of several windows. Of sessions it is a session; they are
   stored in the order of hashes, so whoever wants all keys of a shard has them in memory.
2. Rows come in the order of their keys' bytes, those of a key in the order of time.
3. The keys of an entry are sorted: what is asked for is found by binary search, and nothing else is looked at. Memory holds the entries as they are stored,
   and some rows.
4. Entries of one pane are merged by the operator's own code (`merging.py`).
5. Without the program, the manifest says which reducers there are (`core/topology.WindowShape`). Builtin ones that merge and show alike however they were
   made are made anew. Parts of others are given as they are, one for every entry of the pane: `UnmergedParts`. So are those that somebody else's codec wrote.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.keyspace import after
from millstream.core.statekind import StateKind
from millstream.core.time import BEGINNING
from millstream.core.topology import WindowShape
from millstream.operators.merging import Merging
from millstream.operators.panes import PANE, WindowOperator, end_of
from millstream.operators.partials import PACKED, Partials, column_of
from millstream.operators.spans import TOLD, StoredSpans, joined, told_in
from millstream.operators.vectors import Vector, vector_of
from millstream.operators.window_spec import REMADE
from millstream.operators.windows import Calendar, Fixed, Same, Session, WindowKind
from millstream.reducers.base import Reducer

PANES = (PANE, after(PANE))  # where the entries of panes are
AT_ONCE = 16_384  # rows
KeyPanes = tuple[str, list[dict[str, Any]]]  # a key's text, and its panes


class UnmergedParts(msgspec.Struct, frozen=True):
    """Parts of a reducer that only the pipeline can merge and show."""

    parts: list[Any]


class _Unmerged(Reducer):
    """Stands for a reducer that is not here. A part is a list of the other's parts; those that a codec wrote are bytes. decode: for these."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self.decode = decode

    def combine(self, a: Any, b: Any) -> Any:
        return [*a, *b]

    def finish(self, total: Any) -> Any:
        return UnmergedParts([self._shown(part) for part in total])

    def _shown(self, part: Any) -> Any:
        return [self._shown(one) for one in part] if isinstance(part, list) else self.decode(part) if isinstance(part, bytes) else part


class PaneReader:
    """Reads what a window operator keeps."""

    entries = PANES

    def __init__(
        self,
        kind: WindowKind,
        reducers: Mapping[str, Reducer | None],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        unmerged: Callable[[bytes], Any] | None = None,
    ) -> None:
        """reducers: None where one is not here. encode, decode: of parts. unmerged: what is shown of parts that decode must not read; None: it may read all."""
        self.kind, self.reducers, self.encode, self.decode, self.unmerged = kind, reducers, encode, decode, unmerged
        self.at_once = AT_ONCE

    @classmethod
    def of_operator(cls, operator: WindowOperator, kind: StateKind) -> PaneReader:
        """With the program."""
        return cls(operator.spec.kind, operator.spec.reducers, kind.encode_sub, kind.decode_sub)

    @classmethod
    def of_shape(
        cls,
        shape: WindowShape,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        unmerged: Callable[[bytes], Any] | None = None,
    ) -> PaneReader:
        """Without it (rule 5)."""
        kind: WindowKind = msgspec.convert(shape.window, Fixed | Calendar | Same | Session)
        reducers = {name: REMADE[known]() if known in REMADE else None for name, known in shape.reducers.items()}
        return cls(kind, reducers, encode, decode, unmerged)

    def rows(self, entries: Iterable[tuple[bytes, bytes]], start: bytes = b"", stop: bytes | None = None) -> Iterator[KeyPanes]:
        """The keys with start <= key < stop, as bytes, that have open panes. entries: those within `PANES`, of one shard or of several."""
        if isinstance(self.kind, Session):
            yield from self._sessions(entries, start, stop)
            return
        stored = _Stored(self, entries)
        runs = [run for table in stored.tables for run in _sorted_runs(table, start, stop)]
        while runs:
            each = max(1, self.at_once // len(runs))
            last = min(run.keys[min(run.at + each, run.stop) - 1].as_py() for run in runs)
            yield from stored.by_key([run.take_until(last) for run in runs])
            runs = [run for run in runs if run.at < run.stop]

    def of_key(self, entries: Iterable[tuple[bytes, bytes]], key: bytes) -> list[dict[str, Any]] | None:
        """The panes of one key; None if it has none. entries: those of its shard."""
        return next((panes for _, panes in self.rows(entries, key, key + b"\0")), None)

    def size(self, entries: Iterable[tuple[bytes, bytes]]) -> tuple[int, int]:
        """How many keys have open panes, and how many panes are open."""
        if isinstance(self.kind, Session):
            counts = [len(found) for _, found in self._sessions(entries)]
            return len(counts), sum(counts)
        tables = _Stored(self, entries).tables
        keys = pa.chunked_array([table.names for table in tables], pa.string()).unique()
        return len(keys), len({(int(table.ends[0]), start) for table in tables for start in _starts(table)})

    def _sessions(self, entries: Iterable[tuple[bytes, bytes]], start: bytes = b"", stop: bytes | None = None) -> Iterator[KeyPanes]:
        """The keys that have open sessions."""
        stored = _StoredSessions(self, entries)
        chosen = [table.where(_within(table.names, start, stop)[table.codes]) for table in stored.tables]
        found = joined(map(stored.unmerged, chosen), stored.merging.combined)
        if found is not None:
            told = {name: one if isinstance(one, list) else one.to_pylist() for name, one in stored.merging.shown(found.columns).items()}
            by_key: dict[str, list[dict[str, Any]]] = {}
            for at, text in enumerate(found.names.take(pa.array(found.codes)).to_pylist()):
                own = {"start": int(found.firsts[at]), "end": int(found.ends[at])}
                by_key.setdefault(text, []).append({**own, **{name: column[at] for name, column in told.items()}})
            yield from sorted(by_key.items(), key=lambda one: one[0].encode())


def _within(names: Any, start: bytes, stop: bytes | None) -> Any:
    texts = names.cast(pa.binary())
    found = pc.greater_equal(texts, pa.scalar(start))
    return (found if stop is None else pc.and_(found, pc.less(texts, pa.scalar(stop)))).to_numpy(zero_copy_only=False)


def _starts(table: Partials) -> Iterable[Any]:
    return (None,) if table.starts is None else np.unique(table.starts).tolist()


class _Stored:
    """Entries that were read, and how they are merged."""

    def __init__(self, reader: PaneReader, entries: Iterable[tuple[bytes, bytes]]) -> None:
        self._kind = reader.kind
        known = {name: reducer for name, reducer in reader.reducers.items() if reducer is not None}
        self._stored = [vector_of(known[name]) if name in known else Vector(Reducer()) for name in reader.reducers]
        as_stored = Merging(known, self._stored, reader.encode, reader.decode)
        self.tables = self._read(as_stored, entries)
        reducers = dict(known)
        at = 0
        for (name, reducer), vector in zip(reader.reducers.items(), self._stored, strict=True):
            is_foreign = reader.unmerged is not None and any(
                column.type == PACKED for table in self.tables for column in table.columns[at : at + vector.width]
            )
            at += vector.width
            if reducer is None or is_foreign:
                reducers[name] = _Unmerged(reader.unmerged or reader.decode)
        self._unmerged = [isinstance(reducers[name], _Unmerged) for name in reader.reducers]
        ordered = {name: reducers[name] for name in reader.reducers}
        self.merging = Merging(ordered, list(map(vector_of, ordered.values())), reader.encode, reader.decode)

    def _read(self, as_stored: Merging, entries: Iterable[tuple[bytes, bytes]]) -> list[Any]:
        return [table for name, data in entries if name != PANE and len(table := as_stored.table(data, end_of(name)))]

    def by_key(self, tables: Sequence[Partials]) -> Iterator[KeyPanes]:
        """All that tables say, merged and by key."""
        table = self.merging.folded([self.unmerged(one) for one in tables if len(one)])
        order = np.argsort(table.codes, kind="stable")
        ends = table.ends.tolist()
        if table.starts is not None:
            starts = table.starts.tolist()
        else:
            assert isinstance(self._kind, Fixed | Calendar)
            start_of = {end: self._kind.pane_start(end) for end in set(ends)}
            starts = [start_of[end] for end in ends]
        columns = {name: one if isinstance(one, list) else one.to_pylist() for name, one in self.merging.shown(table.columns).items()}
        names, codes = table.names.to_pylist(), table.codes.tolist()
        panes: list[dict[str, Any]] = []
        last = -1
        for at in order.tolist():
            if codes[at] != last:
                if panes:
                    yield names[last], panes
                last, panes = codes[at], []
            panes.append({"start": starts[at], "end": ends[at], **{name: column[at] for name, column in columns.items()}})
        if panes:
            yield names[last], panes

    def unmerged(self, table: Any) -> Any:
        """A table whose parts stand in lists where they are not merged (rule 5)."""
        if not any(self._unmerged):
            return table
        columns: list[Any] = []
        at = 0
        for vector, is_unmerged in zip(self._stored, self._unmerged, strict=True):
            mine = table.columns[at : at + vector.width]
            at += vector.width
            if is_unmerged:
                parts = map(vector.join, zip(*(column.to_pylist() for column in mine), strict=True))
                mine = [column_of([None if part is None else [part] for part in parts], self.merging.encode)]
            columns += mine
        return msgspec.structs.replace(table, columns=columns)


class _StoredSessions(_Stored):
    """Rows of sessions that are not over."""

    def _read(self, as_stored: Merging, entries: Iterable[tuple[bytes, bytes]]) -> list[Any]:
        told, found = BEGINNING, []
        for name, data in entries:
            if name == TOLD:
                told = max(told, told_in(data))
            else:
                found.append(StoredSpans(data))
                as_stored.check_columns(found[-1].columns)
        return [stored.where(stored.due(told)) for stored in found]


class _Run:
    """Rows of a stored table whose keys ascend, from a place to another."""

    def __init__(self, table: Partials, at: int, stop: int) -> None:
        self.table, self.at, self.stop = table, at, stop
        self.keys = table.names.view(pa.binary())

    def place(self, key: bytes, search: Callable[..., int] = bisect_left) -> int:
        return self.at + search(range(self.at, self.stop), key, key=lambda at: self.keys[at].as_py())

    def take_until(self, key: bytes) -> Partials:
        """The rows up to a key, and this one. They are taken away."""
        at, self.at = self.at, self.place(key, bisect_right)
        table, count = self.table, self.at - at
        columns = [column.slice(at, count) for column in table.columns]
        starts = None if table.starts is None else table.starts[at : self.at]
        return Partials(table.ends[at : self.at], np.arange(count), table.names.slice(at, count), columns, starts)


def _sorted_runs(table: Partials, start: bytes, stop: bytes | None) -> Iterator[_Run]:
    """The rows of a stored table with start <= key < stop: one run, or one for every start of a window."""
    cuts = [] if table.starts is None else (np.flatnonzero(table.starts[1:] != table.starts[:-1]) + 1).tolist()
    for first, last in pairwise([0, *cuts, len(table)]):
        run = _Run(table, first, last)
        run.at, run.stop = run.place(start) if start else first, last if stop is None else run.place(stop)
        if run.at < run.stop:
            yield run
