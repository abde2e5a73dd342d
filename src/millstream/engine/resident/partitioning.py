"""Keyed rows on their way between processes: split by the task that owns them, and as bytes.

Rules
1. A row belongs to the task of its shard: `shard % seats`. Its column `part` says the shard (`part % shards`).
2. Bytes are an Arrow IPC stream; no bytes are no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.core.topology import Route
from millstream.engine.routing import Sent

_OPTIONS = pa.ipc.IpcWriteOptions()

_SENT = pa.schema(
    [
        ("part", pa.int32()),
        ("route", pa.int32()),
        ("key", pa.string()),
        ("ts", pa.int64()),
        ("id", pa.string()),
        ("ord", pa.int64()),
        ("body", pa.binary()),
        ("unit", pa.int64()),
    ]
)


def to_bytes(table: Any) -> Any:
    """A table as bytes (a buffer of Arrow's, without a copy)."""
    if table is None or not len(table):
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def from_bytes(data: Any) -> Any:
    """The table again; None if there are no rows. It lies where the bytes lie."""
    if not len(data):
        return None
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def joined(tables: Sequence[Any]) -> Any:
    """Several tables as one; None if there are none. A column that one of them lacks is null there."""
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


class RouteArrays:
    """The routes of a topology as arrays: level and group of each."""

    def __init__(self, routes: Sequence[Route], shards: int) -> None:
        self.levels = np.array([route.level for route in routes], np.int32)
        self.offsets = np.array([route.group * shards for route in routes], np.int32)
        self.shards = shards
        self._all_first = not self.levels.any()

    def by_level(self, table: Any) -> dict[int, Any]:
        """Keyed rows of a source by the level that they go to, with the part of that level (group and shard)."""
        if table is None or not len(table):
            return {}
        if self._all_first:
            return {0: table}
        route = table.column("route").to_numpy()
        level = self.levels[route]
        found = {}
        for one in np.unique(level).tolist():
            which = level == one
            rows = table if which.all() else table.filter(pa.array(which))
            if one:  # keyed rows for later levels say their shard alone
                numbers = rows.column("route").to_numpy()
                part = (rows.column("part").to_numpy() % self.shards + self.offsets[numbers]).astype(np.int32)
                rows = rows.set_column(rows.schema.get_field_index("part"), "part", pa.array(part))
            found[one] = rows
        return found

    def sent(self, rows: Sequence[Sent], unit: int) -> Any:
        """Productions of one attempt at one shard, as keyed rows of their level."""
        shard, route, key, ts, ids, body = zip(*rows, strict=True)
        numbers = np.array(route, np.int32)
        count = len(rows)
        arrays = [
            pa.array(np.array(shard, np.int32) + self.offsets[numbers]),
            pa.array(numbers),
            pa.array(key, pa.string()),
            pa.array(ts, pa.int64()),
            pa.array(ids, pa.string()),
            pa.array(np.zeros(count, np.int64)),
            pa.array(body, pa.binary()),
            pa.array(np.full(count, unit, np.int64)),
        ]
        return pa.Table.from_arrays(arrays, schema=_SENT)


def by_seat(table: Any, shards: int, seats: int) -> dict[int, Any]:
    """Keyed rows by the task that owns them."""
    if table is None or not len(table):
        return {}
    if seats == 1:
        return {0: table}
    return _split(table, (table.column("part").to_numpy() % shards) % seats)


def by_part(table: Any) -> dict[int, Any]:
    """Rows of one task by their `part`: shard and, where a level has several, group."""
    return {} if table is None or not len(table) else _split(table, table.column("part").to_numpy())


def _split(table: Any, where: Any) -> dict[int, Any]:
    """A table by a number per row, in few passes: rows are put in order once, and then sliced."""
    first = int(where[0])
    if (where == first).all():
        return {first: table}
    order = np.argsort(where, kind="stable")
    ordered = table.take(pa.array(order))
    numbers, starts = np.unique(where[order], return_index=True)
    bounds = [*starts.tolist(), len(where)]
    return {number: ordered.slice(bounds[at], bounds[at + 1] - bounds[at]) for at, number in enumerate(numbers.tolist())}
