"""What operators produce, as columns: records of one stream whose values are dicts with the same fields.

Rule: a production's id follows from operator, stream, key and window, so a retry makes the same id. It is made only where somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.keys import key_of
from millstream.core.record import Production
from millstream.operators.partials import INT, TEXT, Partials, column_of, encoded

_NUL = "\0"


class Results:
    """Records of one stream. keys: their texts. columns: by field of the value, Arrow arrays or lists of Python values. of: what names each, for ids."""

    def __init__(
        self, computation: str, stream: str, keys: Any, times: Any, columns: dict[str, Any], of: Sequence[str], with_ids: bool
    ) -> None:
        self.computation, self.stream, self.keys, self.times, self.columns = computation, stream, keys, times, columns
        self._of, self._with_ids = of, with_ids

    def __len__(self) -> int:
        return len(self.times)

    def python_keys(self) -> list[Any]:
        return self.keys.to_pylist() if is_plain(self.keys) else [key_of(text) for text in self.keys.to_pylist()]

    def values(self) -> Iterator[dict[str, Any]]:
        names = list(self.columns)
        lists = [column if isinstance(column, list) else column.to_pylist() for column in self.columns.values()]
        for row in zip(*lists, strict=True):
            yield dict(zip(names, row, strict=True))

    def ids(self) -> list[str]:
        if not self._with_ids:
            return [""] * len(self)
        about = f"\0{self.computation}\0{self.stream}\0"
        return [
            blake2b(text.encode() + f"{about}{of}".encode(), digest_size=16).hexdigest()
            for text, of in zip(self.keys.to_pylist(), self._of, strict=True)
        ]

    def productions(self, encode: Callable[[Any], bytes]) -> list[Production]:
        """The same, one by one."""
        rows = zip(self.python_keys(), self.times.tolist(), self.ids(), self.values(), strict=True)
        return [Production(self.stream, key, time, id, encode(value)) for key, time, id, value in rows]

    def content(self, encode: Callable[[Any], bytes]) -> bytes:
        """Bytes that are equal for equal records, for digests."""
        columns = [column_of(column, encode) if isinstance(column, list) else column for column in self.columns.values()]
        return encoded(Partials(self.times, self.keys, columns), _as_it_is, _as_it_is, with_ends=True)

    def json_lines(self, encode: Callable[[Any], bytes]) -> bytes:
        """A line for every record, as `sinks.files` writes it. encode: one value, as JSON."""
        key = _json(self.keys if is_plain(self.keys) else self.python_keys(), encode)
        pieces: list[Any] = [pa.scalar('{"key":'), key, pa.scalar(',"timestamp":'), pa.array(self.times).cast(TEXT)]
        begin = ',"value":{'
        for name, column in self.columns.items():
            pieces += [pa.scalar(f"{begin}{encode(name).decode()}:"), key if column is self.keys else _json(column, encode)]
            begin = ","
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}}\n"), pa.scalar(""))
        _, offsets, data = lines.buffers()
        where = np.frombuffer(offsets, np.int32, len(lines) + 1, lines.offset * 4)
        return bytes(memoryview(data)[where[0] : where[-1]])


def is_plain(keys: Any) -> bool:
    """Whether all key texts are the keys themselves."""
    return not pc.any(pc.starts_with(keys, _NUL)).as_py()


def _json(column: Any, encode: Callable[[Any], bytes]) -> Any:
    """Every value as JSON, as an array of texts."""
    if not isinstance(column, list):
        if column.type == INT:
            texts = column.cast(TEXT)
            return texts.fill_null("null") if texts.null_count else texts
        if column.type == TEXT and not column.null_count and not _needs_escapes(column):
            return pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar('"'), pa.scalar(""))
        column = column.to_pylist()
    return pa.array([encode(value).decode() for value in column], TEXT)


def _needs_escapes(column: Any) -> bool:
    _, offsets, data = column.buffers()
    if data is None:
        return False
    where = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    used = np.frombuffer(data, np.uint8)[where[0] : where[-1]]
    return bool(((used < 0x20) | (used == 0x22) | (used == 0x5C)).any())


def _as_it_is(data: Any) -> Any:
    return data
