"""Rows of a computation for people: state, MapStates, timers and holds made readable. Data only.

Rules
1. One listing is of one epoch: that of the reader that it is given.
2. Memory follows from what is asked for, not from the number of rows.
3. Nothing that was pickled is loaded unless the caller says so: loading a pickle runs code.
4. A row of an operator that keeps columns has for its state the panes that the key has open, or the records of it that wait (`readable/open_windows.py`). How
   many keys there are is counted where all entries are read anyway, and else not said.
"""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from millstream.core.keys import key_bytes, key_of
from millstream.core.keyspace import Row
from millstream.core.record import Timer
from millstream.operators.pane_rows import UnmergedParts
from millstream.readable import open_windows
from millstream.readable.open_windows import KeptReader
from millstream.state.codec import msgpack
from millstream.state.manifest import ComputationState
from millstream.state.queries import Reader, hold_of, timers_of
from millstream.views.dsl import TABLE


class Opaque(msgspec.Struct, frozen=True):
    """Bytes that are not shown, and why."""

    codec: str
    size: int
    hint: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes of {self.codec}; {self.hint}"


class MapView(msgspec.Struct):
    """A MapState of a row."""

    field: str  # empty if it is the whole state
    entries: int  # how many there are
    first: list[tuple[Any, Any]]


class RowView(msgspec.Struct):
    """A row, its state with MapStates kept apart."""

    key: Any
    shard: int
    state: Any
    is_map: bool  # the state is one MapState and nothing else
    maps: list[MapView]
    timers: list[Timer]  # by kind and time, each with what it holds
    hold: int | None = None  # the state's own


class OpenWindows(msgspec.Struct):
    """What a listing is of, if it is of a window operator. panes: how many are open; None where nobody has counted. is_hopping: a pane is a part of several
    windows, else it is a window."""

    window: str
    is_hopping: bool
    panes: int | None


class Listing(msgspec.Struct):
    computation: str
    epoch: int
    keys: int | None  # how many there are in all; None where nobody has counted
    rows: list[RowView]
    windows: OpenWindows | None = None


def listed(
    cut: Reader, computation: str, limit: int, *, entries: int = 3, unpickle: bool = False, reader: KeptReader | None = None
) -> Listing:
    """The first rows of a computation in the order of their keys' bytes, each with the first entries of its MapStates. reader: of a window operator, for
    whoever has the program."""
    state = cut.computation(computation)
    if state.keeps_columns:
        reader = reader or open_windows.reader_of(state, decoder(state.codec, unpickle), unpickle)
        found = islice(open_windows.panes(cut, computation, reader), limit)
        rows = [_open_row(cut, computation, text.encode(), panes) for text, panes in found]
        keys, count = open_windows.size(cut, computation, reader)
        return Listing(computation, cut.epoch, keys, rows, _about(state, count))
    return _listing(cut, computation, islice(cut.rows(computation), limit), entries, unpickle)


def looked_up(
    cut: Reader, computation: str, keys: Sequence[Any], *, entries: int = 20, unpickle: bool = False, reader: KeptReader | None = None
) -> Listing:
    """The rows of those of the keys that have one, in the order given. reader: as in `listed`."""
    if cut.computation(computation).keeps_columns:
        views = [open_view(cut, computation, key_bytes(key), unpickle, reader) for key in keys]
        rows = [view for view in views if view is not None]
        return Listing(computation, cut.epoch, None, rows, _about(cut.computation(computation), None))
    found = ((key_bytes(key), row) for key in keys if (row := cut.get(computation, key)) is not None)
    return _listing(cut, computation, found, entries, unpickle)


def views_of(cut: Reader, computation: str, keys: Sequence[Any] | None = None, *, unpickle: bool = False) -> Iterator[RowView]:
    """All rows, or those of some keys, one after another, without the entries of their MapStates. What an operator keeps in columns, too."""
    state = cut.computation(computation)
    decode = decoder(state.codec, unpickle)
    if state.keeps_columns and keys is None:
        found = open_windows.panes(cut, computation, open_windows.reader_of(state, decode, unpickle))
        yield from (_open_row(cut, computation, text.encode(), panes) for text, panes in found)
    elif state.keeps_columns:
        yield from (view for key in keys or () if (view := open_view(cut, computation, key_bytes(key), unpickle)) is not None)
    elif keys is None:
        yield from (_row(cut, computation, row_key, row, 0, decode) for row_key, row in cut.rows(computation))
    else:
        some = ((key_bytes(key), row) for key in keys if (row := cut.get(computation, key)) is not None)
        yield from (_row(cut, computation, row_key, row, 0, decode) for row_key, row in some)


def keys_of(text: str) -> list[Any]:
    """The keys that somebody may mean by a text: the string itself, then what it says as JSON or as a Python literal.

    >>> keys_of("tea"), keys_of("7"), keys_of('["a", 7]'), keys_of("b'x'")
    (['tea'], ['7', 7], ['["a", 7]', ('a', 7)], ["b'x'", b'x'])
    """
    found: list[Any] = [text]
    for parse in (json.loads, ast.literal_eval):
        try:
            key = _tuples(parse(text))
            key_bytes(key)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if all((type(key), key) != (type(other), other) for other in found):
            found.append(key)
    return found


def plain(value: Any) -> Any:
    """The value as JSON can say it: tuples as lists, keys of dicts as strings, anything unknown as its repr."""
    if isinstance(value, Opaque):
        return {"codec": value.codec, "bytes": value.size, "hint": value.hint}
    if isinstance(value, UnmergedParts):
        return {"parts": plain(value.parts)}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError):
        return repr(value)


def plain_listing(found: Listing) -> dict[str, Any]:
    fields = msgspec.to_builtins(msgspec.structs.replace(found, rows=[]))
    if found.windows is None:
        del fields["windows"]
    return {**fields, "rows": [plain_view(row) for row in found.rows]}


def plain_view(row: RowView) -> dict[str, Any]:
    return {
        "key": plain(row.key),
        "shard": row.shard,
        "state": plain(row.state),
        "maps": [{**msgspec.structs.asdict(one), "first": [[plain(key), plain(value)] for key, value in one.first]} for one in row.maps],
        "timers": msgspec.to_builtins(row.timers),
        "hold": row.hold,
    }


def row_view(cut: Reader, computation: str, row_key: bytes, row: Row, *, entries: int = 20, unpickle: bool = False) -> RowView:
    """One row, made readable, with the first entries of its MapStates."""
    return _row(cut, computation, row_key, row, entries, decoder(cut.computation(computation).codec, unpickle))


def open_view(cut: Reader, computation: str, row_key: bytes, unpickle: bool = False, reader: KeptReader | None = None) -> RowView | None:
    """What an operator keeps in columns of a key; None if that is nothing."""
    state = cut.computation(computation)
    reader = reader or open_windows.reader_of(state, decoder(state.codec, unpickle), unpickle)
    panes = open_windows.panes_of_key(cut, computation, reader, row_key)
    return None if panes is None else _open_row(cut, computation, row_key, panes)


def open_views(cut: Reader, computation: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, RowView]]:
    """What it keeps of the keys with start <= key < stop, in their order."""
    state = cut.computation(computation)
    reader = open_windows.reader_of(state, decoder(state.codec, False))
    for text, panes in open_windows.panes(cut, computation, reader, start, stop):
        yield text.encode(), _open_row(cut, computation, text.encode(), panes)


def _open_row(cut: Reader, computation: str, row_key: bytes, panes: list[dict[str, Any]]) -> RowView:
    return RowView(key_of(row_key.decode()), cut.shard_of(computation, row_key), panes, False, [], [])


def _about(state: ComputationState, panes: int | None) -> OpenWindows | None:
    if state.window is None:
        return None
    return OpenWindows(state.about.get("window", ""), state.window.is_hopping, panes)


def _listing(cut: Reader, computation: str, found: Iterable[tuple[bytes, Row]], entries: int, unpickle: bool) -> Listing:
    state = cut.computation(computation)
    decode = decoder(state.codec, unpickle)
    rows = [_row(cut, computation, row_key, row, entries, decode) for row_key, row in found]
    return Listing(computation, cut.epoch, sum(shard.keys for shard in state.shards), rows)


def _row(cut: Reader, computation: str, row_key: bytes, row: Row, entries: int, decode: Callable[[bytes], Any]) -> RowView:
    key, is_map = key_of(row_key.decode()), not row.state
    state = None if is_map else decode(row.state)
    if cut.computation(computation).kind == TABLE and isinstance(state, list):
        version, body, *_ = state
        state = {"document": None if body is None else decode(body), "version": version, "deleted": body is None}
    maps: list[MapView] = []
    for field, sub_key, raw in cut.maps(computation, key):
        if not maps or maps[-1].field != field:
            maps.append(MapView(field, 0, []))
            if isinstance(state, dict) and state.get(field, field) is None:
                del state[field]  # what a codec writes in the place of a MapState
        maps[-1].entries += 1
        if len(maps[-1].first) < entries:
            maps[-1].first.append((sub_key, decode(raw)))
    return RowView(key, cut.shard_of(computation, row_key), state, is_map, maps, timers_of(row), hold_of(row))


def decoder(codec: str, unpickle: bool) -> Callable[[bytes], Any]:
    """How values that were written with a codec of this name are made readable, or why they are not."""
    loads: Callable[[bytes], Any]
    if codec == "msgpack":
        loads = msgpack.decoder(object)
    elif codec == "pickle" and unpickle:
        loads = pickle.loads
    elif codec == "pickle":
        return lambda raw: Opaque(codec, len(raw), "--unpickle loads it, which runs code")
    else:
        return lambda raw: Opaque(codec, len(raw), "only the pipeline knows this codec")

    def decode(raw: bytes) -> Any:
        try:
            return loads(raw)
        except Exception as error:
            return Opaque(codec, len(raw), f"cannot be loaded here: {type(error).__name__}: {error}")

    return decode


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, (list, tuple)) else value
