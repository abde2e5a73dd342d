"""Keyed rows on their way between resident tasks: as Arrow tables, split by the task that owns them, and as bytes.

Rules
1. A row belongs to the task of its shard: `shard % slots`. Its column `part` says the shard (`part % shards`).
2. Bytes are an Arrow IPC stream, or, for few rows, a schema and a batch, of which the schema is written and read once; no bytes are no rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.core.topology import Group, Topology
from millstream.engine.columns.arrow_rows import sent_table
from millstream.engine.columns.folding import Folding
from millstream.engine.columns.keying import Keying
from millstream.engine.routing import SentRows
from millstream.engine.task import Inputs
from millstream.sources.splits import PlannedReader

_FEW = 1024  # rows
_ONE_BATCH = 1  # a stream begins with other four bytes
_SCHEMA = struct.Struct("<II")
_last_schema: tuple[Any, bytes] | None = None


def to_bytes(table: Any) -> Any:
    """A table as bytes (a buffer of Arrow's, without a copy)."""
    if table is None or not len(table):
        return b""
    if len(table) <= _FEW and (schema := _encoded_schema(table.schema)) and len(batches := table.to_batches()) == 1:
        return memoryview(b"".join([_SCHEMA.pack(_ONE_BATCH, len(schema)), schema, batches[0].serialize()]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def from_bytes(data: Any) -> Any:
    """The table again; None if there are no rows. It lies where the bytes lie."""
    if not len(data):
        return None
    kind, size = _SCHEMA.unpack_from(data)
    if kind == _ONE_BATCH:
        view = memoryview(data)[_SCHEMA.size :]
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(view[size:]), _decoded_schema(bytes(view[:size])))])
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def _encoded_schema(schema: Any) -> bytes:
    """A schema as bytes; none for one with dictionaries, which a batch alone does not carry."""
    global _last_schema
    last = _last_schema  # another thread may be at it, too
    if last is None or not last[0].equals(schema, check_metadata=True):
        plain = not any(_has_dictionaries(field.type) for field in schema)
        last = _last_schema = schema, schema.serialize().to_pybytes() if plain else b""
    return last[1]


def _has_dictionaries(kind: Any) -> bool:
    return pa.types.is_dictionary(kind) or any(_has_dictionaries(kind.field(at).type) for at in range(kind.num_fields))


@lru_cache(64)
def _decoded_schema(data: bytes) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(data))


def joined(tables: Sequence[Any]) -> Any:
    """Several tables as one; None if there are none. A column that one of them lacks is null there."""
    tables = [table for table in tables if table is not None]
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


class ArrowRows:
    """The rows of a resident run, as Arrow tables. Implements the round's RowFormat."""

    def __init__(self, topology: Topology, shards: int, slots: int, inputs: Callable[[Any], Inputs] | None = None) -> None:
        """inputs: what a task gets of its rows (in a task)."""
        self._levels = np.array([route.level for route in topology.routes], np.int32)
        self._offsets = np.array([route.group * shards for route in topology.routes], np.int32)
        self._shards = shards
        self._slots = slots
        self._slot_of = np.arange(max(self._offsets, default=0) + shards) % shards % slots  # by part
        self._inputs = inputs
        self._all_first = not self._levels.any()

    def by_level(self, table: Any) -> dict[int, Any]:
        """Keyed rows of a source by the level that they go to, with the part of that level (group and shard)."""
        if table is None or not len(table):
            return {}
        if self._all_first:
            return {0: table}
        route = table.column("route").to_numpy()
        level = self._levels[route]
        found = {}
        for one in np.unique(level).tolist():
            which = level == one
            rows = table if which.all() else table.filter(pa.array(which))
            if one:  # keyed rows for later levels say their shard alone
                numbers = rows.column("route").to_numpy()
                part = (rows.column("part").to_numpy() % self._shards + self._offsets[numbers]).astype(np.int32)
                rows = rows.set_column(rows.schema.get_field_index("part"), "part", pa.array(part))
            found[one] = rows
        return found

    def sent(self, rows: SentRows, unit: int) -> Any:
        return sent_table(rows, self._offsets, unit)

    def by_slot(self, table: Any) -> dict[int, Any]:
        if table is None or not len(table):
            return {}
        if self._slots == 1:
            return {0: table}
        return _split(table, self._slot_of[table.column("part").to_numpy()])

    def inputs(self, received: Sequence[Any]) -> Callable[[Group, int, int], Inputs]:
        assert self._inputs is not None
        make, table = self._inputs, joined(received)
        parts = {} if table is None or not len(table) else _split(table, table.column("part").to_numpy())
        return lambda group, shard, number: make(parts.get(group.index * self._shards + shard))


def _split(table: Any, where: Any) -> dict[int, Any]:
    """A table by a number per row, in few passes: rows are put in order once, and then sliced."""
    counts = np.bincount(where)
    numbers = np.flatnonzero(counts).tolist()
    if len(numbers) == 1:
        return {numbers[0]: table}
    narrow = where.astype(np.uint16) if len(counts) <= 1 << 16 else where  # numpy has a faster way for small numbers
    ordered = table.take(pa.array(np.argsort(narrow, kind="stable")))
    ends = np.cumsum(counts).tolist()
    return {number: ordered.slice(ends[number] - int(counts[number]), int(counts[number])) for number in numbers}


def read_keyed(
    reader: PlannedReader, keying: Keying, rows: ArrowRows, split: Any, now: int, folding: Folding | None = None
) -> list[tuple[int, Any]]:
    """What a split has, keyed, by level. On the driver, where it is little, or in a task, which makes partial results of it where it can."""
    batches = list(reader.read(split))
    if not batches:
        return []
    table, origin = pa.Table.from_batches(batches), reader.origin(split)
    tables = [keying.keyed(table, now, origin)] if folding is None else keying.folded(table, now, origin, folding)
    return [one for table in tables for one in rows.by_level(table).items()]
