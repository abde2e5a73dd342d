"""What one shard of a computation keeps, as flat rows of texts and numbers: what Spark and other programs make a table of.

Rules
1. A row's key is the text that the command line takes for it (`keys_of`): a string is its own text, another key is JSON or a Python literal. So a text is
   looked for under the few keys that it may mean, each in the shard that has it.
2. Values are JSON text: rows of one computation need not have a type in common.
3. Whatever is read passes through one shard and one row after another. A MapState is read entry by entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from millstream.core.keys import BadKey, key_bytes, key_of
from millstream.core.keyspace import Row
from millstream.errors import CheckpointError, DefinitionError
from millstream.readable.listing import decoder, keys_of, plain, views_of
from millstream.readable.relations import relations, shown
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.queries import Reader, timers_of
from millstream.views.dsl import JOIN

#: What can be read, and its columns in the words of SQL. Times are milliseconds.
COLUMNS = {
    "state": "key string, shard int, value string, timers int, hold bigint",
    "timers": "key string, shard int, kind string, time bigint, tag string, hold bigint",
    "maps": "key string, shard int, field string, entry string, value string",
    "view": "key string, shard int, value string, version string",
}


class Asked(NamedTuple):
    """What is to be read. keys: texts of the only keys that are wanted (rule 1); None: all."""

    computation: str
    what: str
    keys: Sequence[str] | None = None
    unpickle: bool = False


class OneShard(Reader):
    """Committed state of which one shard is to be seen."""

    def __init__(self, cut: Reader, shard: int) -> None:
        self._cut, self._shard = cut, shard
        self.manifest = cut.manifest

    def entry(self, computation: str, shard: int, key: bytes) -> bytes | None:
        return self._cut.entry(computation, shard, key) if shard == self._shard else None

    def scan(self, computation: str, start: bytes, stop: bytes, *, shard: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(()) if shard not in (None, self._shard) else self._cut.scan(computation, start, stop, shard=self._shard)


def chosen(manifest: Manifest, computation: str | None, what: str | None, where: str) -> Asked:
    """What somebody means who may leave out the only computation, and what it is natural to see of it."""
    known = [name for name, state in manifest.computations.items() if not state.hidden]
    if computation is None and len(known) != 1:
        raise DefinitionError(f"{where}: say which computation. It has: {', '.join(known) or 'none'}.")
    name = known[0] if computation is None else computation
    if name not in manifest.computations:
        raise CheckpointError(f"{where} has no computation called {name!r}. It has: {', '.join(known) or 'none'}.")
    is_relation = name in relations(manifest)
    what = what or ("view" if is_relation else "state")
    if what not in COLUMNS:
        raise DefinitionError(f"what={what!r}: use {', '.join(map(repr, COLUMNS))}")
    if what == "view" and not is_relation:
        raise DefinitionError(f"{where}: computation {name!r} is no table, view or join: it has 'state', 'timers' and 'maps'")
    return Asked(name, what)


def shards_of(state: ComputationState, asked: Asked, cut: Reader) -> list[int]:
    """The shards that may have rows that are wanted. A join keeps its rows elsewhere than it shows them, so all of them may."""
    if asked.keys is None or (asked.what == "view" and state.kind == JOIN):
        return list(range(len(state.shards)))
    return sorted({cut.shard_of(asked.computation, key_bytes(key)) for key in _meant(asked.keys)})


def rows(cut: OneShard, asked: Asked) -> Iterator[tuple[Any, ...]]:
    """The rows of a shard, with the columns of `COLUMNS`."""
    keys = None if asked.keys is None else _meant(asked.keys)
    for key, *cells in _READ[asked.what](cut, asked, keys):
        yield (text_of(key), cut._shard, *cells)


def text_of(key: Any) -> str:
    """The text of a key (rule 1).

    >>> text_of("tea"), text_of(7), text_of(("a", 7)), text_of((b"x", True))
    ('tea', '7', '["a", 7]', "(b'x', True)")
    """
    if isinstance(key, str):
        return key
    try:
        return json.dumps(key, ensure_ascii=False)
    except TypeError:  # bytes
        return repr(key)


def _meant(texts: Sequence[str]) -> list[Any]:
    found = {}
    for text in texts:
        for key in keys_of(text):
            try:
                found[key_bytes(key)] = key
            except BadKey:
                continue
    return list(found.values())


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(plain(value), ensure_ascii=False)


def _state(cut: OneShard, asked: Asked, keys: Sequence[Any] | None) -> Iterator[tuple[Any, ...]]:
    for view in views_of(cut, asked.computation, keys, unpickle=asked.unpickle):
        yield view.key, None if view.is_map else _text(view.state), len(view.timers), view.hold


def _rows(cut: OneShard, asked: Asked, keys: Sequence[Any] | None) -> Iterator[tuple[Any, Row]]:
    if keys is None:
        yield from ((key_of(row_key.decode()), row) for row_key, row in cut.rows(asked.computation))
    else:
        yield from ((key, row) for key in keys if (row := cut.get(asked.computation, key)) is not None)


def _timers(cut: OneShard, asked: Asked, keys: Sequence[Any] | None) -> Iterator[tuple[Any, ...]]:
    for key, row in _rows(cut, asked, keys):
        yield from ((key, timer.kind, timer.time, timer.tag, timer.hold) for timer in timers_of(row))


def _maps(cut: OneShard, asked: Asked, keys: Sequence[Any] | None) -> Iterator[tuple[Any, ...]]:
    decode = decoder(cut.computation(asked.computation).codec, asked.unpickle)
    for key, _ in _rows(cut, asked, keys):
        yield from ((key, field, text_of(sub_key), _text(decode(raw))) for field, sub_key, raw in cut.maps(asked.computation, key))


def _view(cut: OneShard, asked: Asked, keys: Sequence[Any] | None) -> Iterator[tuple[Any, ...]]:
    for key in [None] if keys is None else keys:
        for row in shown(cut, asked.computation, key=key):
            yield row.key, _text(row.value), _text(row.version)


_READ = {"state": _state, "timers": _timers, "maps": _maps, "view": _view}
