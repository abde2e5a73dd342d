"""Reading a checkpoint for people: what the latest manifest says, and the rows behind it. Data only; `view` shows it.

Rules
1. Only the log is read, never a replica: what is shown is committed, whether the pipeline runs, has stopped, or has crashed.
2. A pipeline that runs goes on while it is looked at. Objects that an older manifest names may be collected at any time, so every
   reading may be repeated on a newer manifest (`steady`); if the newest one names an object that is missing, that is damage.
3. Memory follows from what is asked for and from the size of one shard's segments, not from the number of rows.
4. Nothing that was pickled is loaded unless the caller says so: loading a pickle runs code.
"""

from __future__ import annotations

import ast
import heapq
import json
import pickle
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from millstream.core import subkeys
from millstream.core.keys import key_bytes, key_of, shard_of
from millstream.core.layout import ROW, STATE_HOLD, SUB, Holds, after, decode_row
from millstream.core.record import Timer
from millstream.core.time import LOW_WATERMARK, WALL_CLOCK
from millstream.errors import CheckpointError, DamageError
from millstream.state.alive import Alive, last_sign
from millstream.state.codec import msgpack
from millstream.state.manifest import ComputationState, Manifest, ManifestLog
from millstream.state.segment import SegmentRef, read_blocks, runs
from millstream.state.storage import Storage
from millstream.status.report import Status, status_of

TRIES = 5

_T = TypeVar("_T")


class Overview(msgspec.Struct):
    """A checkpoint at a glance: its identity, the run that wrote the latest manifest, the status as of it, and its driver's last sign of life.

    alive: whether that sign is so young that the driver is at work.
    """

    checkpoint: str
    id: str
    shards: int
    token: str | None
    status: Status
    alive: bool = False
    last_sign: Alive | None = None


class Opaque(msgspec.Struct, frozen=True):
    """Bytes that are not shown, and why."""

    codec: str
    size: int
    hint: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes of {self.codec}; {self.hint}"


class MapView(msgspec.Struct):
    """A MapState of a row: the field it is (empty if it is the whole state), how many entries it has, and the first of them."""

    field: str
    entries: int
    first: list[tuple[Any, Any]]


class RowView(msgspec.Struct):
    """A row: its key, its state with MapStates kept apart, its timers by kind and time, each with what it holds, and the state's own hold.

    `is_map` says that the state is one MapState and nothing else.
    """

    key: Any
    shard: int
    state: Any
    is_map: bool
    maps: list[MapView]
    timers: list[Timer]
    hold: int | None = None


class Listing(msgspec.Struct):
    """Rows of a computation as of an epoch; `keys` is how many there are in all."""

    computation: str
    epoch: int
    keys: int
    rows: list[RowView]


def overview(log: ManifestLog) -> Overview:
    """What the checkpoint says of itself and of its latest epoch."""
    identity = log.identity()
    manifest = latest(log)
    status = status_of(identity.pipeline, manifest)
    if manifest is not None:
        status.state = "drained" if manifest.drained else "committed"
    sign = last_sign(log.storage)
    if sign is not None:
        status.records_per_second, status.epoch_millis = sign.records_per_second, sign.epoch_millis
    return Overview(
        log.storage.url,
        identity.id,
        identity.shards,
        None if manifest is None else manifest.token,
        status,
        sign is not None and sign.is_alive(now()),
        sign,
    )


def now() -> int:
    """The wall clock, in milliseconds."""
    return int(time.time() * 1000)


def latest(log: ManifestLog) -> Manifest | None:
    """The newest manifest, also while older ones are collected."""
    for _ in range(TRIES - 1):
        epochs = log.epochs()
        try:
            return log.read(epochs[-1]) if epochs else None
        except DamageError:
            if log.epochs()[-1:] == epochs[-1:]:
                raise
    return log.latest()


def steady(log: ManifestLog, read: Callable[[Manifest], _T]) -> _T:
    """What `read` makes of the latest manifest, begun anew if the manifest was overtaken and its objects went meanwhile."""
    log.identity()
    for attempt in range(TRIES):
        manifest = latest(log)
        if manifest is None:
            raise CheckpointError(f"{log.storage.url} has no committed epoch yet.")
        try:
            return read(manifest)
        except DamageError:
            newer = latest(log)
            if attempt == TRIES - 1 or newer is None or newer.epoch == manifest.epoch:
                raise
    raise AssertionError("unreachable")


def listed(storage: Storage, manifest: Manifest, computation: str, limit: int, *, entries: int = 3, unpickle: bool = False) -> Listing:
    """The first rows of a computation in the order of their keys' bytes, each with the first entries of its MapStates."""
    state = _computation(manifest, computation)
    found: list[tuple[bytes, int, bytes]] = []
    for shard, one in enumerate(state.shards):
        stop = ROW + found[-1][0] if len(found) == limit else after(ROW)
        rows = islice(scan(storage, one.segments, ROW, stop), limit)
        found = sorted([*found, *((entry[len(ROW) :], shard, raw) for entry, raw in rows)])[:limit]
    decode = _decoder(state.codec, unpickle)
    views = {row_key: _row(row_key, shard, raw, decode) for row_key, shard, raw in found}
    for shard in sorted({shard for _, shard, _ in found}):
        here = {row_key: views[row_key] for row_key, at, _ in found if at == shard}
        _add_maps(storage, state.shards[shard].segments, here, entries, decode)
    return Listing(computation, manifest.epoch, sum(one.keys for one in state.shards), list(views.values()))


def looked_up(
    storage: Storage, manifest: Manifest, computation: str, keys: Sequence[Any], *, entries: int = 20, unpickle: bool = False
) -> Listing:
    """The rows of those of the keys that have one, in the order given."""
    state = _computation(manifest, computation)
    decode = _decoder(state.codec, unpickle)
    views = []
    for key in keys:
        row_key = key_bytes(key)
        shard = shard_of(row_key, len(state.shards))
        chain = state.shards[shard].segments
        for _, raw in scan(storage, chain, ROW + row_key, ROW + row_key + b"\0"):
            view = _row(row_key, shard, raw, decode)
            _add_maps(storage, chain, {row_key: view}, entries, decode)
            views.append(view)
    return Listing(computation, manifest.epoch, sum(one.keys for one in state.shards), views)


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


def scan(storage: Storage, chain: Sequence[SegmentRef], start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a chain with start <= key < stop, in order, the newest of each key, without the deleted ones."""

    def tagged(age: int, run: Sequence[SegmentRef]) -> Iterator[tuple[bytes, int, bytes | None]]:
        for ref in run:
            for keys, values in read_blocks(storage, ref):
                if keys[0] >= stop:
                    return
                for at in range(bisect_left(keys, start), bisect_left(keys, stop)):
                    yield keys[at], age, values[at]

    previous: bytes | None = None
    newest_first = [tagged(age, run) for age, run in enumerate(reversed(runs(chain)))]
    for key, _, value in heapq.merge(*newest_first, key=lambda entry: (entry[0], entry[1])):
        if key != previous and value is not None:
            yield key, value
        previous = key


def plain(value: Any) -> Any:
    """The value as JSON can say it: tuples as lists, keys of dicts as strings, anything unknown as its repr."""
    if isinstance(value, Opaque):
        return {"codec": value.codec, "bytes": value.size, "hint": value.hint}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError):
        return repr(value)


def plain_listing(found: Listing) -> dict[str, Any]:
    """A listing as JSON can say it."""
    return {
        "computation": found.computation,
        "epoch": found.epoch,
        "keys": found.keys,
        "rows": [
            {
                "key": plain(row.key),
                "shard": row.shard,
                "state": plain(row.state),
                "maps": [
                    {"field": one.field, "entries": one.entries, "first": [[plain(key), plain(value)] for key, value in one.first]}
                    for one in row.maps
                ],
                "timers": msgspec.to_builtins(row.timers),
                "hold": row.hold,
            }
            for row in found.rows
        ],
    }


def _computation(manifest: Manifest, name: str) -> ComputationState:
    if name not in manifest.computations:
        known = ", ".join(sorted(manifest.computations)) or "none"
        raise CheckpointError(f"the checkpoint has no computation called {name!r}. It has: {known}.")
    return manifest.computations[name]


def _row(row_key: bytes, shard: int, raw: bytes, decode: Callable[[bytes], Any]) -> RowView:
    row = decode_row(raw)
    holds: Holds = {(kind, time, tag): hold for hold, kind, time, tag in row.holds}
    timers = [
        Timer(time, tag, kind, holds.get((kind, time, tag)))
        for kind, entries in ((LOW_WATERMARK, row.low), (WALL_CLOCK, row.wall))
        for time, tag in entries
    ]
    is_map = not row.state
    state = None if is_map else decode(row.state)
    return RowView(key_of(row_key.decode()), shard, state, is_map, [], timers, holds.get(STATE_HOLD))


def _add_maps(
    storage: Storage, chain: Sequence[SegmentRef], rows: Mapping[bytes, RowView], entries: int, decode: Callable[[bytes], Any]
) -> None:
    """Adds to the rows, all of one shard, the MapStates that they have."""
    prefixes = sorted(SUB + len(row_key).to_bytes(4, "big") + row_key for row_key in rows)
    for entry, raw in scan(storage, chain, prefixes[0], after(prefixes[-1])):
        end = 5 + int.from_bytes(entry[1:5], "big")
        row = rows.get(entry[5:end])
        if row is None:
            continue
        field, _, sub_key = entry[end:].partition(b"\0")
        name = field.decode()
        if not row.maps or row.maps[-1].field != name:
            row.maps.append(MapView(name, 0, []))
            if isinstance(row.state, dict) and row.state.get(name, name) is None:
                del row.state[name]  # what a codec writes in the place of a MapState
        view = row.maps[-1]
        view.entries += 1
        if len(view.first) < entries:
            view.first.append((subkeys.decode(sub_key), decode(raw)))


def _decoder(codec: str, unpickle: bool) -> Callable[[bytes], Any]:
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
