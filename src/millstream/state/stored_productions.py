"""Parcels: stored productions of one task over one edge, cut by the consumer's shard.

They lie in the producer's unit and are named by its manifest, so they are committed with the producer's state. The consumer's task
reads its own slice in the next epoch; no shuffle carries it. When the manifest that consumed them is there, nobody names them.

A slice is a CRC-32 and an Arrow stream with the columns key, ts, id, body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa

from millstream.errors import DamageError
from millstream.state.manifest import Parcel
from millstream.state.storage import Storage

StoredRow = tuple[str, int, str, bytes]

SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.int64()), ("id", pa.string()), ("body", pa.binary())])
_HEAD = struct.Struct(">I")


def encode_slice(rows: Sequence[StoredRow]) -> bytes:
    """The bytes of one shard's slice."""
    columns = zip(*rows, strict=True)
    batch = pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return _HEAD.pack(crc32(data)) + data


def read_slice(storage: Storage, parcel: Parcel, shard: int) -> Any:
    """What a parcel holds for a shard, as an Arrow table; None if nothing."""
    where = parcel.slices.get(shard)
    if where is None:
        return None
    offset, length, count = where
    data = storage.read(parcel.name, offset, length)
    body = memoryview(data)[_HEAD.size :]
    if len(data) != length or _HEAD.unpack_from(data)[0] != crc32(body):
        raise DamageError(
            f"productions of stream {parcel.stream!r} stored in {parcel.name} of {storage.url} are damaged: {parcel.computation!r} cannot consume them. "
            f"Restore that object from a copy."
        )
    table = pa.ipc.open_stream(body).read_all()
    assert len(table) == count
    return table
