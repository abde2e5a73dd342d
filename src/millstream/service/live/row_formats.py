"""What can be asked of one pinned epoch: rows, timers, holds and entries of MapStates, as bytes or as JSON.

Rules
1. Keys are row keys as bytes (`core/keys.py`: a string's is its UTF-8), values what the pipeline keeps, as it is: a row is msgpack.
2. As JSON a row is what `millstream state --key K --json` shows, and that of a table or view what `millstream view --json` shows. A join shows its rows by
   the keys of left documents, several of one perhaps: so its value is a list, looking one up means looking at all, and a scan has no order.
3. Nothing that was pickled is ever loaded.
4. A window operator keeps entries of many keys, so a key's value is made when it is asked for: as JSON as above, as bytes the list of its open panes in
   msgpack, each a map of `start`, `end` and what the reducers show. It has no timers and no holds.
5. Everything comes in the order of the keys' bytes, over all shards.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.core.keys import key_bytes, key_of, shard_of
from millstream.core.keyspace import ROW, Row, after, decode_row, decode_sub_key, sub_prefix
from millstream.errors import RefusedRequest
from millstream.readable.listing import RowView, decoder, open_view, open_views, plain, plain_view, row_view
from millstream.readable.relations import plain_row, shown, shown_by
from millstream.state.codec import msgpack
from millstream.state.queries import Reader, hold_of, timers_of
from millstream.views.dsl import JOIN, TABLE

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_encode = msgpack.encoder()  # also of integers beyond 64 bits

KeyValues = Iterator[tuple[bytes, bytes]]


def read_row(snapshot: Reader, computation: str, row_key: bytes) -> bytes | None:
    return snapshot.entry(computation, shard_of(row_key, len(snapshot.computation(computation).shards) or 1), ROW + row_key)


def lookup(snapshot: Reader, computation: str, row_key: bytes, as_json: bool) -> bytes | None:
    """The value of one key, in the form that is wanted; None if there is none."""
    if as_json and snapshot.computation(computation).kind == JOIN:
        return _join_json(snapshot, computation, row_key)
    if snapshot.computation(computation).keeps_columns:
        view = open_view(snapshot, computation, row_key)
        return None if view is None else _open_bytes(view, as_json)
    raw = read_row(snapshot, computation, row_key)
    return raw if raw is None or not as_json else row_json(snapshot, computation, row_key, decode_row(raw))


def row_json(snapshot: Reader, computation: str, row_key: bytes, row: Row) -> bytes | None:
    """A row as JSON; None if it is there and shows nothing. Not for joins."""
    kind = snapshot.computation(computation).kind
    if not kind:
        return _json(plain_view(row_view(snapshot, computation, row_key, row)))
    for one in shown_by(row_key, row, kind, snapshot.manifest.builds.get(computation)):
        return _json(plain_row(one, kind == TABLE))
    return None


def rows(snapshot: Reader, computation: str, start: bytes, stop: bytes | None, as_json: bool) -> KeyValues:
    if as_json and snapshot.computation(computation).kind == JOIN:
        for one in shown(snapshot, computation):
            key = key_bytes(one.key)
            if start <= key and (stop is None or key < stop):
                yield key, _json(plain_row(one, False))
        return
    if snapshot.computation(computation).keeps_columns:
        for key, view in open_views(snapshot, computation, start, stop):
            yield key, _open_bytes(view, as_json)
        return
    size = len(ROW)
    for entry, raw in snapshot.scan(computation, ROW + start, after(ROW) if stop is None else ROW + stop):
        if not as_json:
            yield entry[size:], raw
        elif (value := row_json(snapshot, computation, entry[size:], decode_row(raw))) is not None:
            yield entry[size:], value


def _open_bytes(view: RowView, as_json: bool) -> bytes:
    """Rule 4."""
    return _json(plain_view(view)) if as_json else _encode(plain(view.state))


def timers(snapshot: Reader, computation: str, start: bytes, stop: bytes | None, as_json: bool) -> KeyValues:
    """The timers of each row that has some: a list of [time, tag, kind, what it holds] in msgpack, or as `millstream state` shows them."""
    for row_key, row in snapshot.rows(computation, start, stop):
        if found := timers_of(row):
            yield row_key, _json(found) if as_json else _pack([[one.time, one.tag, one.kind, one.hold] for one in found])


def holds(snapshot: Reader, computation: str, start: bytes, stop: bytes | None, as_json: bool) -> KeyValues:
    """What each row holds that holds something: as the row has it, or its state's own hold and the timers that hold."""
    for row_key, row in snapshot.rows(computation, start, stop):
        if row.holds:
            held = [one for one in timers_of(row) if one.hold is not None]
            yield row_key, _json({"hold": hold_of(row), "timers": held}) if as_json else _pack(row.holds)


def map_entries(
    snapshot: Reader, computation: str, row_key: bytes, field: str, start: bytes, stop: bytes | None, as_json: bool
) -> KeyValues:
    """The entries of a key's MapState whose sub-keys, as bytes, are between start and stop."""
    prefix = sub_prefix(row_key, field)
    decode = decoder(snapshot.computation(computation).codec, False)
    shard = snapshot.shard_of(computation, row_key)
    for entry, raw in snapshot.scan(computation, prefix + start, after(prefix) if stop is None else prefix + stop, shard=shard):
        sub_key = entry[len(prefix) :]
        yield sub_key, _json({"key": plain(decode_sub_key(sub_key)), "value": plain(decode(raw))}) if as_json else raw


def scan_part(snapshot: Reader, computation: str, part: str, start: bytes, end: bytes, prefix: bytes, as_json: bool) -> KeyValues:
    """What a scan asks for. An empty end is none; a prefix narrows the range, or for a MapState names the key."""
    if part.startswith("map:"):
        return map_entries(snapshot, computation, prefix, part.removeprefix("map:"), start, end or None, as_json)
    stop = end or None
    if prefix:
        start, stop = max(start, prefix), after(prefix) if stop is None else min(stop, after(prefix))
    way = {"": rows, "timers": timers, "holds": holds}.get(part)
    if way is None:
        raise RefusedRequest(f'part={part!r}: live state has the parts "" (rows), "timers", "holds", "map:FIELD" and "epochs"')
    return way(snapshot, computation, start, stop, as_json)


def _join_json(snapshot: Reader, computation: str, row_key: bytes) -> bytes | None:
    try:
        key = key_of(row_key.decode())
    except ValueError:
        return None  # nothing can be kept under it
    found = [plain_row(one, False) for one in shown(snapshot, computation, key=key)]
    return _json(found) if found else None
