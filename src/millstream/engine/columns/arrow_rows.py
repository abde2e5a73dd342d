"""Keyed rows in the task, as the task wants them: Arrow batches to arrivals, with what must be rejected taken out. The columns are those of
`spark/keyed_rows.py`.

Rules
1. The table is never copied as a whole. A selection of its rows is an array of positions, or ALL.
2. Records become Python objects only when a hook asks for the first of them (`batches.py`).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core import dedup
from millstream.core.arrivals import Arrivals, OperatorInput, Rejected, unwrapped, wrong_time
from millstream.core.dedup import IdRows
from millstream.core.record import Batch
from millstream.core.time import BEGINNING, END
from millstream.core.topology import Injector, Route, Topology
from millstream.core.watermark import Seen, lags_of
from millstream.engine.program import Compiled
from millstream.engine.routing import SentRows
from millstream.operators.rows import StreamRows
from millstream.sources.base import BETWEEN

from .batches import ColumnBatch, EncodedBatch, ValueColumn, record_ids, to_list, whole

RECEIPT = -1
ALL = slice(None)  # every row of a table
_FEW = 16  # rows that are put in order sooner as objects

_NUL = "\0"

#: The columns of every keyed row.
KEYED = (("part", pa.int32()), ("route", pa.int32()), ("key", pa.string()), ("ts", pa.int64()), ("id", pa.string()), ("ord", pa.int64()))
_SENT = pa.schema([*KEYED, ("body", pa.binary()), ("unit", pa.int64())])


class FoldedRows(msgspec.Struct, array_like=True):
    """What stands in a row's body. records: how many are in it."""

    records: int
    table: bytes
    seen: Seen | None = None


encode_folded = msgspec.msgpack.Encoder().encode
decode_folded = msgspec.msgpack.Decoder(FoldedRows).decode


def sent_table(rows: SentRows, offsets: Any, unit: int) -> Any:
    """Productions of one attempt at one shard, as keyed rows. offsets: by route, where the parts of its group begin."""
    routes = np.array(rows.routes, np.int32)
    part = np.array(rows.shards, np.int32) + offsets[routes]
    order, units = np.zeros(len(routes), np.int64), np.full(len(routes), unit, np.int64)
    columns = (part, routes, rows.keys, rows.times, rows.ids, order, rows.bodies, units)
    return pa.Table.from_arrays([pa.array(one, field.type) for one, field in zip(columns, _SENT, strict=True)], schema=_SENT)


def rejections(table: Any, topology: Topology, batch: Callable[[Route], Batch]) -> tuple[Any, dict[str, list[Rejected]]]:
    """A table without the rows that no hook can be called with, and those rows by computation. `batch` reads the rows of a route."""
    times = table.column("ts")
    suspect = (
        any(table.column(name).null_count for name in ("key", "ts"))
        or (table.column("id").null_count and any(injector.id is not None for injector in topology.injectors.values()))
        or ("bad" in table.column_names and table.column("bad").null_count < len(table))
        or (limits := times.to_numpy()).max() == END
        or limits.min() == BEGINNING
    )
    if not suspect:
        return table, {}
    routes = table.column("route").to_numpy()
    promised = [r.index for r in topology.routes if r.stream in topology.injectors and topology.injectors[r.stream].id is not None]
    no_id = whole(table.column("id").is_null()).to_numpy(zero_copy_only=False) & np.isin(routes, promised)
    wrong = whole(pc.or_(table.column("key").is_null(), times.is_null())).to_numpy(zero_copy_only=False) | no_id
    wrong |= whole(pc.fill_null(pc.is_in(times, pa.array([BEGINNING, END])), False)).to_numpy(zero_copy_only=False)
    bad = table.column("bad") if "bad" in table.column_names else None
    if bad is not None:
        wrong |= whole(bad.is_valid()).to_numpy(zero_copy_only=False)
    found: dict[str, list[Rejected]] = {}
    for at in np.flatnonzero(wrong).tolist():
        route = topology.routes[routes[at]]
        id = None if no_id[at] else table.column("id")[at].as_py()
        one = _rejected(route, batch(route), at, table, id, "" if bad is None else bad[at].as_py() or "", bool(no_id[at]))
        if one is None:  # what is bad in it is the key of another consumer
            wrong[at] = False
        else:
            found.setdefault(route.computation, []).append(one)
    return (table.filter(pa.array(~wrong)) if wrong.any() else table), found


def _rejected(route: Route, batch: Batch, at: int, table: Any, id: str | None, bad: str, no_id: bool) -> Rejected | None:
    time = table.column("ts")[at].as_py()
    value = batch.anew().value(at)
    if "body" in table.column_names and table.column("body")[at].is_valid:
        return unwrapped(route.stream, time, id, value) if not table.column("key")[at].is_valid else None
    file, _, text = bad.partition(BETWEEN)
    text, _, unread = text.partition(BETWEEN * 2)
    if text:
        why, value = unread or "its row does not fit the schema", text
    elif wrong_time(time):
        why = wrong_time(time) or ""
    elif no_id:
        why = "its id is null"
    elif table.column("key")[at].as_py() is None:
        why = f"its key ({route.key!r}) is null"
    else:
        return None
    path = urllib.parse.unquote(re.sub(r"^file:/+", "/", file))
    return Rejected(route.stream, time, id, value, why + (f" (file {path})" if file else ""))


def to_arrivals(table: Any, batches: dict[int, Batch], positions: Any) -> Arrivals:
    """The rows at some positions (or ALL) of a table, grouped by key in canonical order: sorted by (key, timestamp), as numbers; only rows that tie are
    compared by id."""
    keys = whole(table.column("key"))
    if len(keys) <= _FEW:
        return _few_arrivals(table, batches, positions)
    times = table.column("ts").to_numpy()[positions]
    if positions is not ALL:
        keys = keys.take(pa.array(positions))
    coded = keys.dictionary_encode()
    ranked = pc.sort_indices(coded.dictionary)  # by bytes, which is the order of code points
    names = to_list(coded.dictionary.take(ranked))
    rank = np.empty(len(names), dtype=np.int64)
    rank[ranked.to_numpy()] = np.arange(len(names))
    codes = rank[coded.indices.to_numpy()]
    low = int(times.min())
    span = int(times.max()) - low + 1
    bits = len(codes).bit_length()
    if span * (len(names) + 1) << bits < 2**62:  # the place goes with them: to sort numbers is faster than to sort their places
        packed = (codes * span + (times - low)) << bits | np.arange(len(codes))
        packed.sort()
        order = packed & ((1 << bits) - 1)
    else:
        order = np.lexsort((times, codes))
    codes, times = codes[order], times[order]
    where = order if positions is ALL else positions[order]
    tied = (codes[1:] == codes[:-1]) & (times[1:] == times[:-1])
    if tied.any():
        _break_ties(table, where, tied, {route: batch.stream for route, batch in batches.items()})
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    bounds = [0, *starts.tolist(), len(codes)]
    source = None
    if len(batches) > 1:
        place = {route: at for at, route in enumerate(batches)}
        source = [place[route] for route in table.column("route").to_numpy()[where].tolist()]
    return Arrivals(names, bounds, times.tolist(), where.tolist(), list(batches.values()), source)


def _few_arrivals(table: Any, batches: dict[int, Batch], positions: Any) -> Arrivals:
    """What `to_arrivals` gives for rows so few that columns would cost more than objects."""
    keys, times, ids, routes = (to_list(table.column(name)) for name in ("key", "ts", "id", "route"))
    if None in ids:
        ids = record_ids(table)
    where = list(range(len(keys))) if positions is ALL else positions.tolist()
    streams = {route: batch.stream for route, batch in batches.items()}
    where.sort(key=lambda at: (keys[at], times[at], ids[at], streams[routes[at]], at))
    starts = [at for at, row in enumerate(where) if not at or keys[row] != keys[where[at - 1]]]
    source = None
    if len(batches) > 1:
        place = {route: at for at, route in enumerate(batches)}
        source = [place[routes[row]] for row in where]
    return Arrivals(
        [keys[where[at]] for at in starts], [*starts, len(where)], [times[row] for row in where], where, list(batches.values()), source
    )


def _break_ties(table: Any, where: Any, tied: Any, streams: dict[int, str]) -> None:
    """Puts runs of rows with equal key and timestamp into the order of their ids (and streams), in place."""
    member = np.zeros(len(where), dtype=bool)
    member[1:] = tied
    member[:-1] |= tied
    positions = np.flatnonzero(member)
    rows = where[positions]
    run = np.cumsum(~np.concatenate(([False], tied))[positions])  # of equal key and timestamp, in their order
    few = table.select(["id", "ord", "route"]).take(pa.array(rows))
    names = pa.array(record_ids(few), pa.string()) if few.column("id").null_count else few.column("id")
    columns, order = [pa.array(run), names], [("run", "ascending"), ("id", "ascending")]
    if len(streams) > 1:
        known = sorted(set(streams.values()))
        place = {route: known.index(stream) for route, stream in streams.items()}
        columns.append(pa.array([place[route] for route in to_list(few.column("route"))]))
        order.append(("stream", "ascending"))
    columns.append(pa.array(rows))  # equal ids stay as they came
    order.append(("row", "ascending"))
    sorted_by = pc.sort_indices(pa.table(columns, names=[name for name, _ in order]), sort_keys=order)
    where[positions] = rows[sorted_by.to_numpy()]


def seen(injector: Injector, table: Any, positions: Any, newest_before: int | None) -> Seen:
    """What a watermark policy wants to know of an injector's rows (at some positions, or ALL)."""

    def column(name: str) -> Any:
        found = whole(table.column(name))
        return found if positions is ALL else found.take(pa.array(positions))

    times = column("ts").to_numpy()
    found = Seen(len(times), int(times.max()))
    policy = injector.watermark
    mark = column("mark").to_numpy(zero_copy_only=False) if policy.mark_column else None
    if policy.sub_column:
        names = column("sub").dictionary_encode()
        codes = names.indices.fill_null(-1).to_numpy()
        for at, name in enumerate(names.dictionary.to_pylist()):
            which = codes == at
            found.subs[name] = (int(times[which].max()), _largest(mark[which]) if mark is not None else None)
    elif mark is not None:
        found.mark = _largest(mark)
    if policy.wants_lags and newest_before is not None:
        found.lags = lags_of(newest_before - times)
    return found


def _largest(values: Any) -> int | None:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return int(known.max()) if len(known) else None


class ArrowInputs:
    """The rows of one task. Implements the task's Inputs. values: per injector, how its value lies in the columns."""

    def __init__(self, compiled: Compiled, values: Sequence[Sequence[ValueColumn]], table: Any) -> None:
        self._compiled, self._values, self._table = compiled, values, table
        self._rejected: dict[str, list[Rejected]] = {}
        self._routes: dict[str, list[Route]] = {}  # those that have rows, by computation
        self._present: list[int] = []
        self._chunks: dict[str, list[tuple[str, FoldedRows]]] = {}  # by computation: stream, and what was folded before the exchange

    def consumed(self) -> list[int]:
        if self._table is None or "unit" not in self._table.column_names:
            return []
        return sorted(self._table.column("unit").drop_null().unique().to_pylist())

    def take(self, stored: Iterable[tuple[Route, Any]]) -> None:
        pieces = [] if self._table is None else [self._table]
        for route, rows in stored:
            rows = rows.append_column("route", pa.array(np.full(len(rows), route.index, np.int32)))
            pieces.append(rows.append_column("ord", pa.array(np.zeros(len(rows), np.int64))))
        table = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces, promote_options="default") if pieces else None
        if table is not None and "body" in table.column_names:
            table = self._take_chunks(table)
        if table is not None and len(table):
            table, self._rejected = rejections(table, self._compiled.topology, partial(self._batch, table=table))
        self._table = table if table is not None and len(table) else None
        if self._table is not None:
            self._present = np.unique(self._table.column("route").to_numpy()).tolist()
            for index in self._present:
                route = self._compiled.topology.routes[index]
                self._routes.setdefault(route.computation, []).append(route)

    def is_empty(self) -> bool:
        return self._table is None and not self._chunks and not self._rejected

    def _take_chunks(self, table: Any) -> Any:
        """Sets aside the rows that are partial results of an injected stream (`folding.py`)."""
        routes = self._compiled.topology.routes
        injected = [route.index for route in routes if route.stream in self._compiled.topology.injectors]
        mask = np.isin(table.column("route").to_numpy(), injected) & whole(table.column("body").is_valid()).to_numpy(zero_copy_only=False)
        if not mask.any():
            return table
        for row in table.filter(pa.array(mask)).select(["route", "body"]).to_pylist():
            self._chunks.setdefault(routes[row["route"]].computation, []).append((routes[row["route"]].stream, decode_folded(row["body"])))
        return table.filter(pa.array(~mask))

    def seen(self, newest: Mapping[str, int | None]) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        for stream, chunk in (one for chunks in self._chunks.values() for one in chunks):
            if chunk.seen is not None:
                found.setdefault(stream, Seen()).add(chunk.seen)
        for route in (one for routes in self._routes.values() for one in routes):
            injector = self._compiled.topology.injectors.get(route.stream)
            if injector is not None and self._compiled.routes_of[route.stream][0] is route:  # all its routes carry the same records
                found.setdefault(route.stream, Seen()).add(seen(injector, self._table, self._at([route]), newest[route.stream]))
        return found

    def ids(self, computation: str, stream: str) -> IdRows | None:
        mine = [route for route in self._routes.get(computation, ()) if route.stream == stream]
        return Identified(self._table, self._at(mine)) if mine else None

    def arrivals(self, computation: str, keep: Mapping[str, Any]) -> Arrivals | OperatorInput:
        routes = self._routes.get(computation, [])
        rejected = self._rejected.get(computation, ())
        positions: Any = self._at(routes) if routes else ()
        for stream, mask in keep.items():
            of_stream = self._at([route for route in routes if route.stream == stream])
            dropped = np.flatnonzero(~mask) if of_stream is ALL else of_stream[~mask]
            positions = np.setdiff1d(np.arange(len(self._table)) if positions is ALL else positions, dropped, assume_unique=True)
        in_order = partial(self._in_order, routes, positions, rejected)
        if self._compiled.topology.by_name[computation].in_columns:
            found = self._input_rows(computation, routes, positions, rejected)
            found.ordered = in_order
            return found
        return in_order()

    def _in_order(self, routes: Sequence[Route], positions: Any, rejected: Sequence[Rejected]) -> Arrivals:
        if positions is not ALL and not len(positions):
            found = Arrivals.none()
        else:
            found = to_arrivals(self._table, {route.index: self._batch(route, table=self._table) for route in routes}, positions)
        return found if not rejected else msgspec.structs.replace(found, rejected=rejected)

    def _input_rows(self, computation: str, routes: Sequence[Route], positions: Any, rejected: Sequence[Rejected]) -> OperatorInput:
        found = []
        for route in routes:
            mine = positions
            if len(routes) > 1:
                mine = np.intersect1d(self._at([route]), np.arange(len(self._table))[positions], assume_unique=True)
            keys, times = whole(self._table.column("key")), self._table.column("ts").to_numpy()
            batch = self._batch(route, table=self._table)
            found.append(StreamRows(batch, keys, times) if mine is ALL else StreamRows(batch, keys.take(pa.array(mine)), times[mine], mine))
        chunks = self._chunks.get(computation, ())
        by_stream: dict[str, int] = {}
        for stream, chunk in chunks:
            by_stream[stream] = by_stream.get(stream, 0) + chunk.records
        return OperatorInput(found, rejected, [chunk.table for _, chunk in chunks], sum(by_stream.values()), folded_by=by_stream)

    def _at(self, routes: Sequence[Route]) -> Any:
        if len(routes) == len(self._present):
            return ALL
        column = self._table.column("route").to_numpy()
        return np.flatnonzero(column == routes[0].index if len(routes) == 1 else np.isin(column, [route.index for route in routes]))

    def _batch(self, route: Route, *, table: Any) -> Batch:
        injector = self._compiled.topology.injectors.get(route.stream)
        if injector is None:
            return EncodedBatch(route.stream, table, self._compiled.decode_value)
        at = list(self._compiled.topology.injectors).index(route.stream)
        return ColumnBatch(route.stream, table, f"v{at}", self._values[at], injector.value is not None, injector.typed)


class Identified:
    """The rows of one route, as deduplication sees them. A row is named by its key and its id."""

    def __init__(self, table: Any, positions: Any) -> None:
        self.table, self.positions = table, positions
        self.hashes = table.column("ord").to_numpy()[positions].view(np.uint64)

    def _where(self, chosen: Any) -> Any:
        return chosen if self.positions is ALL else self.positions[chosen]

    def ids(self, positions: Any) -> list[bytes]:
        if len(positions) <= _FEW:
            at = self._where(positions).tolist()
            key, id = ([column[row].as_py() for row in at] for column in map(whole, self.table.select(["key", "id"]).columns))
            return [f"{one}\x1f{own}".encode() for one, own in zip(key, id, strict=True)]
        return self._joined(positions).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    def packed(self, positions: Any) -> bytes:
        """Names of records as one Packed, without a Python object for each."""
        if len(positions) <= _FEW:
            return dedup.pack(self.ids(positions))
        joined = self._joined(positions)
        _, offsets, data = joined.buffers()
        where = np.frombuffer(offsets, np.int32, len(joined) + 1, joined.offset * 4)
        return dedup.packed(where - where[0], memoryview(data)[where[0] : where[-1]])

    def _joined(self, chosen: Any) -> Any:
        at = pa.array(self._where(chosen))
        key, id = (whole(self.table.column(name)).take(at).cast(pa.binary()) for name in ("key", "id"))
        return whole(pc.binary_join_element_wise(key, id, b"\x1f"))

    def in_order(self, positions: Any) -> Any:
        times = self.table.column("ts").to_numpy()[self._where(positions)]
        return positions[np.lexsort((positions, times))]
