"""What operators produce, as columns: records of one stream. Here too are window results, whose values are dicts with the same fields.

Rule: a production's id follows from operator, stream, key and window, so a retry makes the same id. It is made only where somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.keys import key_of
from millstream.core.record import Production
from millstream.operators.partials import INT, TEXT, Partials, column_of, encoded

if TYPE_CHECKING:
    from millstream.operators.rows import StreamRows

_NUL = "\0"


class Results:
    """Productions of one stream, in their order. times: their timestamps, a numpy array."""

    times: Any

    def __init__(self, computation: str, stream: str, with_ids: bool) -> None:
        self.computation, self.stream, self.with_ids = computation, stream, with_ids

    def __len__(self) -> int:
        raise NotImplementedError

    def python_keys(self) -> list[Any]:
        raise NotImplementedError

    def values(self) -> Iterator[Any]:
        """The values, as Python objects."""
        raise NotImplementedError

    def made_ids(self) -> list[str]:
        raise NotImplementedError

    def content(self, encode: Callable[[Any], bytes]) -> bytes:
        """Bytes that are equal for equal results, for digests."""
        raise NotImplementedError

    def rows(self) -> StreamRows | None:
        """The productions as an operator in the same task reads them; None: they are handed over one by one."""
        return None

    def ids(self) -> list[str]:
        return self.made_ids() if self.with_ids else [""] * len(self)

    def productions(self, encode: Callable[[Any], bytes]) -> list[Production]:
        """Each result as a record of its own."""
        rows = zip(self.python_keys(), self.times.tolist(), self.ids(), self.values(), strict=True)
        return [Production(self.stream, key, time, id, encode(value)) for key, time, id, value in rows]

    def json_lines(self, encode: Callable[[Any], bytes]) -> bytes:
        """A line for every result, as `sinks.files` writes it. encode: one value, as JSON."""
        rows = zip(self.python_keys(), self.times.tolist(), self.values(), strict=True)
        return b"".join(encode({"key": key, "timestamp": time, "value": value}) + b"\n" for key, time, value in rows)


class WindowResults(Results):
    """What windows tell. A key is a place in `names`, which are key texts; a window a place in `starts` and `ends`. fields: what the key is made
    of. columns: the rest of the value, by name, Arrow arrays or lists of Python values. least: no timestamp is older."""

    def __init__(
        self,
        computation: str,
        stream: str,
        codes: Any,
        names: Any,
        windows: tuple[Any, Any, Any],
        fields: Sequence[str],
        columns: dict[str, Any],
        least: int,
        with_ids: bool,
    ) -> None:
        super().__init__(computation, stream, with_ids)
        self.codes, self.names = codes, names
        self.window, self.starts, self.ends = windows
        self.fields, self.columns = fields, columns
        self.times_of_windows = np.maximum(self.ends - 1, least)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def times(self) -> Any:  # type: ignore[override]
        return self.times_of_windows[self.window]

    def python_keys(self) -> list[Any]:
        known = self._known_keys()
        return [known[code] for code in self.codes.tolist()]

    def _known_keys(self) -> list[Any]:
        return list(map(key_of, self.names.to_pylist()))

    def values(self) -> Iterator[dict[str, Any]]:
        lists: list[Any] = []
        if len(self.fields) == 1:
            lists.append(self.python_keys())
        elif self.fields:
            lists += zip(*self.python_keys(), strict=True)
        lists += [times[self.window].tolist() for times in (self.starts, self.ends)]
        lists += [column if isinstance(column, list) else column.to_pylist() for column in self.columns.values()]
        names = [*self.fields, "start", "end", *self.columns]
        return (dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True))

    def made_ids(self) -> list[str]:
        about = [
            f"\0{self.computation}\0{self.stream}\0window/{a}/{b}".encode()
            for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        ]
        texts = [text.encode() for text in self.names.to_pylist()]
        pairs = zip(self.codes.tolist(), self.window.tolist(), strict=True)
        return [blake2b(texts[code] + about[window], digest_size=16).hexdigest() for code, window in pairs]

    def content(self, encode: Callable[[Any], bytes]) -> bytes:
        columns = [column_of(column, encode) if isinstance(column, list) else column for column in self.columns.values()]
        table = Partials(self.ends[self.window], self.codes, self.names, columns, self.starts[self.window])
        return encoded(table, _as_it_is, _as_it_is, with_ends=True)

    def json_lines(self, encode: Callable[[Any], bytes]) -> bytes:
        """What is the same for all results of a window is made once."""
        names = [encode(name).decode() for name in self.fields]
        keys = self.names if is_plain(self.names) else self._known_keys()
        parts = [keys] if len(names) == 1 else [[key[at] for key in keys] for at in range(len(names))]
        opening = f"{names[0]}:" if names else ""
        before = _texts(',"timestamp":', self.times_of_windows, f',"value":{{{opening}')
        behind = _texts(f'{"," if names else ""}"start":', self.starts, ',"end":', self.ends)
        pieces: list[Any] = [pa.scalar('{"key":'), self._by_key(keys, encode), self._by_window(before)]
        for at, part in enumerate(parts):
            pieces += [pa.scalar(f",{names[at]}:")] if at else []
            pieces.append(pieces[1] if part is keys else self._by_key(part, encode))
        pieces.append(self._by_window(behind))
        for name, column in self.columns.items():
            pieces += [pa.scalar(f",{encode(name).decode()}:"), _json(column, encode)]
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}}\n"), pa.scalar(""))
        _, offsets, data = lines.buffers()
        where = np.frombuffer(offsets, np.int32, len(lines) + 1, lines.offset * 4)
        return bytes(memoryview(data)[where[0] : where[-1]])

    def _by_key(self, column: Any, encode: Callable[[Any], bytes]) -> Any:
        return _json(column, encode).take(pa.array(self.codes))

    def _by_window(self, texts: Any) -> Any:
        return texts[0] if len(texts) == 1 else texts.take(pa.array(self.window))


def is_plain(keys: Any) -> bool:
    """Whether all key texts are the keys themselves."""
    return not pc.any(pc.starts_with(keys, _NUL)).as_py()


def _texts(*pieces: Any) -> Any:
    """Texts and columns of numbers, one behind the other."""
    columns = (pa.scalar(one) if isinstance(one, str) else pa.array(one).cast(TEXT) for one in pieces)
    return pc.binary_join_element_wise(*columns, pa.scalar(""))


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
