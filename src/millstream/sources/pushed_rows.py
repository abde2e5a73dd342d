"""What was pushed, as Arrow rows: from the intake's files, in any process, whoever has planned what is read.

Rule: the columns of the files are used in place; small batches are put together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connector.intake import reader as intake_reader
from millstream.connector.intake.format.batch import Head, columns, decode_marks
from millstream.connector.intake.format.entries import MESSAGE

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("id", pa.int64()),
        ("event_time", pa.int64()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("record_id", pa.string()),
    ]
)
_ROWS = 20_000
_BYTES = 8 << 20


def rows_between(folder: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The messages between two positions."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for head, batch in intake_reader.batches(folder, start, end):
        if head.messages:
            held.append(to_arrow(head, batch))
            rows, size = rows + head.messages, size + head.size
        if rows >= _ROWS or size >= _BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.Table.from_batches(held, SCHEMA).combine_chunks().to_batches()[0]


def to_arrow(head: Head, batch: bytes) -> pa.RecordBatch:
    """The messages of a batch; declared watermarks and ends of streams are not rows."""
    at, n, buffer = columns(head), head.entries, pa.py_buffer(batch)
    ids = pa.Array.from_buffers(pa.int64(), n, [None, buffer.slice(at.ids, 8 * n)])
    times = pa.Array.from_buffers(pa.int64(), n, [None, buffer.slice(at.times, 8 * n)])
    keys = pa.Array.from_buffers(pa.string(), n, [None, buffer.slice(at.key_ends, 4 * (n + 1)), buffer.slice(at.keys, head.keys)])
    payloads = pa.Array.from_buffers(
        pa.binary(), n, [None, buffer.slice(at.payload_ends, 4 * (n + 1)), buffer.slice(at.payloads, head.payloads)]
    )
    numbers = pa.Array.from_buffers(pa.int32(), n, [None, buffer.slice(at.streams, 4 * n)])
    names = pa.array([mark.name for mark in decode_marks(batch, head)], pa.string())
    streams = pa.DictionaryArray.from_arrays(numbers, names).dictionary_decode()
    keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, pa.string()), keys)
    record_ids = pc.binary_join_element_wise(streams, pc.cast(ids, pa.string()), "/")
    found = pa.RecordBatch.from_arrays([streams, ids, times, keys, payloads, record_ids], schema=SCHEMA)
    if head.messages < n:
        kinds = pa.Array.from_buffers(pa.uint8(), n, [None, buffer.slice(at.kinds, n)])
        found = found.filter(pc.equal(kinds, MESSAGE))
    return found
