"""The intake as a planned source: the server in this process wakes the planner, and says what is durable; tasks read rows from the intake's files.

Rules
1. An offset is `{"position": n}`, as Spark's source writes it too: a position in the intake's log. What is between two of them never changes.
2. `committed` tells the pushers that everything before is published, and writes that down. A thread does so beside the epochs: only the last position
   counts. What it could not write is raised where the next epoch is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connector.intake import reader as intake_reader
from millstream.connector.intake.format import MESSAGE, Head, columns, decode_marks
from millstream.sources.pushed import IntakeOffset, PushedSource
from millstream.sources.splits import PlannedReader, SplitPlan

_TEXT, _NUMBER = pa.string(), pa.int64()
SCHEMA = pa.schema({"stream": _TEXT, "id": _NUMBER, "event_time": _NUMBER, "key": _TEXT, "payload": pa.binary(), "record_id": _TEXT})
_ROWS = 20_000
_BYTES = 8 << 20
_SPLIT = 256 << 10  # bytes that are worth a task of their own


class IntakeReader(PlannedReader):
    schema = SCHEMA
    counts = "bytes"

    def __init__(self, source: PushedSource, messages: int | None, size: int | None, partitions: int | None) -> None:
        self._source: PushedSource | None = source
        self._folder = Path(source.folder)
        self._messages, self._size, self._partitions = messages, size, partitions or 64
        self._target: int | None = None
        self._telling: ThreadPoolExecutor | None = None
        self._told = ""
        self._error: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_telling": None}  # the server stays on the driver

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        if bounded:
            self._target = intake_reader.durable_end(self._folder) or 0

    def first(self) -> str:
        return IntakeOffset(intake_reader.acknowledged(self._folder).position).text()

    def plan(self, start: str) -> SplitPlan:
        if self._error is not None:
            raise self._error
        begin = IntakeOffset.read(start).position
        there = end = intake_reader.readable_end(self._folder, begin, self._target)
        if begin == end:
            return SplitPlan(start)
        most = self.most if self._messages is None and self._size is None else self._size
        if most is None or self._messages is not None or end - begin > most:
            end = intake_reader.until(self._folder, begin, end, self._messages, most)
        return SplitPlan(
            IntakeOffset(end).text(),
            intake_reader.split(self._folder, begin, end, self._partitions, _SPLIT),
            end - begin,
            takes=end - begin,
            left=there - end,
        )

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        return rows_between(self._folder, *split)

    def committed(self, end: str) -> None:
        if self._source is None:
            return
        if self._telling is None:
            self._telling = ThreadPoolExecutor(1, "millstream-acknowledgements")
        self._told = end
        self._telling.submit(self._tell, end)

    def _tell(self, end: str) -> None:
        if end is self._told and self._source is not None:
            try:
                self._source.acknowledge(end)
            except BaseException as error:
                self._error = error

    def close(self) -> None:
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.shutdown()

    def wake(self, call: Callable[[], None]) -> bool:
        assert self._source is not None
        self._source.start().on_durable(call)
        return True


def rows_between(folder: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    held: list[tuple[Head, bytes]] = []
    rows = size = 0
    for head, batch in intake_reader.batches(folder, start, end):
        if head.messages:
            held.append((head, batch))
            rows, size = rows + head.messages, size + head.size
        if rows >= _ROWS or size >= _BYTES:
            yield to_arrow(held)
            held, rows, size = [], 0, 0
    if held:
        yield to_arrow(held)


def to_arrow(held: list[tuple[Head, bytes]]) -> pa.RecordBatch:
    """The messages of some batches; declared watermarks and ends of streams are not rows. Columns are put together before Arrow sees them."""
    n = sum(head.entries for head, _ in held)
    ids, times, kinds, keys, payloads = [], [], [], [], []
    key_sizes, payload_sizes, numbers = [], [], []
    names: dict[str, int] = {}
    for head, batch in held:
        at, count, view = columns(head), head.entries, memoryview(batch)
        ids.append(view[at.ids : at.times])
        times.append(view[at.times : at.key_ends])
        kinds.append(view[at.kinds : at.keys])
        keys.append(view[at.keys : at.payloads])
        payloads.append(view[at.payloads : at.payloads + head.payloads])
        key_sizes.append(np.diff(np.frombuffer(batch, np.int32, count + 1, at.key_ends)))
        payload_sizes.append(np.diff(np.frombuffer(batch, np.int32, count + 1, at.payload_ends)))
        own = [names.setdefault(mark.name, len(names)) for mark in decode_marks(batch, head)]
        streams = np.frombuffer(batch, np.uint32, count, at.streams)
        numbers.append(np.full(count, own[0], np.int32) if len(own) == 1 else np.array(own, np.int32)[streams])
    key_lengths = np.concatenate(key_sizes)
    stream = pa.DictionaryArray.from_arrays(pa.array(np.concatenate(numbers)), pa.array(list(names), pa.string())).dictionary_decode()
    id = pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(_joined(ids))])
    time = pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(_joined(times))])
    key = _texts(pa.string(), n, key_lengths, keys, key_lengths != 0)
    payload = _texts(pa.binary(), n, np.concatenate(payload_sizes), payloads)
    record_id = pc.binary_join_element_wise(stream, pc.cast(id, pa.string()), "/")
    found = pa.RecordBatch.from_arrays([stream, id, time, key, payload, record_id], schema=SCHEMA)
    messages = np.frombuffer(_joined(kinds), np.uint8) == MESSAGE
    return found if messages.all() else found.filter(pa.array(messages))


def _joined(pieces: list[memoryview]) -> memoryview | bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _texts(kind: pa.DataType, n: int, lengths: Any, pieces: list[memoryview], valid: Any = None) -> pa.Array:
    ends = np.zeros(n + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    mask = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, n, [mask, pa.py_buffer(ends.tobytes()), pa.py_buffer(_joined(pieces))])
