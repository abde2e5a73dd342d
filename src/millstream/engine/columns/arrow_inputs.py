"""What Spark's shuffle brought to a task, as the task wants it: one Arrow table, or none.

Rules
1. The table is never copied as a whole. A selection of its rows is an array of positions, or ALL.
2. Records become Python objects only when a hook asks for the first of them (`arrow.ColumnBatch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core import dedup
from millstream.core.arrivals import Arrivals
from millstream.core.dedup import NO_IDS, IdRows
from millstream.core.record import Batch
from millstream.core.rejected import Rejected
from millstream.core.topology import Route
from millstream.core.watermark import Seen
from millstream.engine.program import Compiled

from . import arrow_rows
from .arrow_rows import ALL, whole


class ArrowInputs:
    """The rows of one task. Implements the task's Inputs. values: per injector, how its value lies in the columns."""

    def __init__(self, compiled: Compiled, values: Sequence[Sequence[arrow_rows.ValueColumn]], table: Any) -> None:
        self._compiled = compiled
        self._values = values
        self._table = table
        self._rejected: dict[str, list[Rejected]] = {}
        self._routes: dict[str, list[Route]] = {}  # those that have rows, by computation
        self._present: list[int] = []

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
        if table is not None:
            table, self._rejected = arrow_rows.rejections(table, self._compiled.topology, partial(self._batch, table=table))
        self._table = table if table is not None and len(table) else None
        if self._table is not None:
            self._present = np.unique(self._route_column()).tolist()
            for index in self._present:
                route = self._compiled.topology.routes[index]
                self._routes.setdefault(route.computation, []).append(route)

    def seen(self, newest: Mapping[str, int | None]) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        for routes in self._routes.values():
            for route in routes:
                injector = self._compiled.topology.injectors.get(route.stream)
                if injector is not None and self._compiled.routes_of[route.stream][0] is route:  # all its routes carry the same records
                    found[route.stream] = arrow_rows.seen(injector, self._table, self._at([route]), newest[route.stream])
        return found

    def ids(self, computation: str, stream: str) -> IdRows:
        mine = [route for route in self._routes.get(computation, ()) if route.stream == stream]
        return Identified(self._table, self._at(mine)) if mine else NO_IDS

    def arrivals(self, computation: str, keep: Mapping[str, Any]) -> Arrivals:
        routes = self._routes.get(computation, [])
        rejected = self._rejected.get(computation, ())
        positions: Any = self._at(routes) if routes else ()
        for stream, mask in keep.items():
            of_stream = self._at([route for route in routes if route.stream == stream])
            dropped = np.flatnonzero(~mask) if of_stream is ALL else of_stream[~mask]
            positions = np.setdiff1d(np.arange(len(self._table)) if positions is ALL else positions, dropped, assume_unique=True)
        if positions is not ALL and not len(positions):
            return Arrivals.none() if not rejected else msgspec.structs.replace(Arrivals.none(), rejected=rejected)
        batches = {route.index: self._batch(route, table=self._table) for route in routes}
        found = arrow_rows.to_arrivals(self._table, batches, positions)
        return found if not rejected else msgspec.structs.replace(found, rejected=rejected)

    def _route_column(self) -> Any:
        return self._table.column("route").to_numpy()

    def _at(self, routes: Sequence[Route]) -> Any:
        if len(routes) == len(self._present):
            return ALL
        column = self._route_column()
        return np.flatnonzero(column == routes[0].index if len(routes) == 1 else np.isin(column, [route.index for route in routes]))

    def _batch(self, route: Route, *, table: Any) -> Batch:
        injector = self._compiled.topology.injectors.get(route.stream)
        if injector is None:
            return arrow_rows.EncodedBatch(route.stream, table, self._compiled.decode_value)
        at = list(self._compiled.topology.injectors).index(route.stream)
        return arrow_rows.ColumnBatch(route.stream, table, f"v{at}", self._values[at], injector.value is not None)


class Identified:
    """The rows of one route, as deduplication sees them. A row is named by its key and its id."""

    def __init__(self, table: Any, positions: Any) -> None:
        self.table = table
        self.positions = positions
        self.hashes = table.column("ord").to_numpy()[positions].view(np.uint64)

    def _where(self, chosen: Any) -> Any:
        return chosen if self.positions is ALL else self.positions[chosen]

    def ids(self, positions: Any) -> list[bytes]:
        return self._joined(positions).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    def packed(self, positions: Any) -> bytes:
        """Names of records as one Packed, without a Python object for each."""
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
