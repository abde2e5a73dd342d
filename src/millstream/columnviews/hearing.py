"""What has come for a view, in columns: the messages of every group in canonical order, and the entries in them.

Rule: entries lie where the lengths in front of them say (`views/change.py`). A message that lies in another way is `SingleRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnviews.packing import BINARY, SingleRows
from millstream.columnviews.part_sums import Folded, values_of
from millstream.columnviews.unpacking import Field, PackedRows, Slices, is_text
from millstream.operators.rows import StreamRows


class Hearing:
    """Messages and entries. By group: `row_keys`, `times` of the newest message, `bounds` of its messages. By message: `generations`, `firsts` and `counts` of
    its entries."""

    def __init__(self, inputs: Sequence[StreamRows], origins: bool, decode: Callable[[bytes], Any]) -> None:
        table = pa.table(
            {
                "key": pa.concat_arrays([_plain(rows.keys) for rows in inputs]),
                "time": np.concatenate([rows.times for rows in inputs]),
                "id": pa.array([id for rows in inputs for id in rows.ids()], pa.string()),
                "stream": pa.array([rows.stream for rows in inputs for _ in range(len(rows))], pa.string()),
            }
        )
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names]).to_numpy()
        keys = table.column("key").take(pa.array(order)).combine_chunks().dictionary_encode()
        codes = keys.indices.to_numpy()
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        self.row_keys: list[bytes] = [text.encode() for text in keys.dictionary.to_pylist()]
        times = table.column("time").to_numpy()[order]
        self.times = np.maximum.reduceat(times, starts).tolist()
        self.bounds = [*starts.tolist(), len(codes)]
        self.group = codes.astype(np.int64)  # of every message
        bodies = [body for rows in inputs for body in rows.values()]
        self.where = order.tolist()
        messages = pa.array([bodies[at] for at in self.where], BINARY)
        if origins:
            self._read(PackedRows.of(messages))
        else:
            self._read_sums(values_of(messages, decode))

    def _read_sums(self, found: list[Any]) -> None:
        """One entry in each message, which says all."""
        if any(len(message) != 3 or len(message[2]) != 5 for message in found):
            raise SingleRows("a message lies in another way")
        self.generations = np.array([message[0] for message in found])
        change, more, put, less, taken = map(list, zip(*(message[2] for message in found), strict=True))
        self.change = np.array(change, np.int64)
        self.more, self.less = Folded(more, put), Folded(less, taken)

    def _read(self, rows: PackedRows) -> None:
        at = rows.expect(rows.begin, b"\xdd")
        self.counts = rows.number(at, np.full(len(rows), 4)).astype(np.int64) - 2
        self.generations, at = rows.ints(at + 4)
        said = rows.bytes_at(at)
        width = said.length // np.maximum(self.counts, 1)
        rows.ok &= np.isin(width, (1, 2, 4)) & (width * self.counts == said.length) & (self.counts > 0)
        if not rows.ok.all():
            raise SingleRows("a message lies in another way")
        self.firsts = np.cumsum(self.counts) - self.counts
        self.message = np.repeat(np.arange(len(rows)), self.counts)  # of every entry
        nth = np.arange(len(self.message)) - self.firsts[self.message]
        wide = width[self.message]
        lengths = _little(rows.data, said.begin[self.message] + nth * wide, wide)
        ends = np.cumsum(lengths)
        shift = (said.begin + said.length) - (ends[self.firsts] - lengths[self.firsts])
        begin = ends - lengths + shift[self.message]
        if (begin[self.firsts + self.counts - 1] + lengths[self.firsts + self.counts - 1] != rows.end).any():
            raise SingleRows("a message lies in another way")
        self.entries = PackedRows(rows.data, begin, begin + lengths)
        self._read_origins(self.entries)
        if not self.entries.ok.all():
            raise SingleRows("an entry lies in another way")

    def _read_origins(self, rows: PackedRows) -> None:
        """Entries [origin, how, parts]."""
        at = rows.expect(rows.begin, b"\x93")
        head, length = rows.skip_value(at)
        self.origin = Slices(at, length)
        rows.ok &= is_text(Field(self.origin, head))
        self.how = rows.head(at + length).astype(np.int64)
        begin = at + length + 1
        self.parts = Slices(begin, rows.end - begin)
        self.sets = rows.head(begin) != 0xC0


def _plain(keys: Any) -> Any:
    return keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys


def _little(data: Any, at: Any, width: Any) -> Any:
    """Numbers of some widths, little end first."""
    found = data[at].astype(np.int64)
    for nth in (1, 2, 3):
        wide = width > nth
        if wide.any():
            found = np.where(wide, found + (data[np.minimum(at + nth, len(data) - 1)].astype(np.int64) << (8 * nth)), found)
    return found
