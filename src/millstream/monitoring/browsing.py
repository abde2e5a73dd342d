"""What somebody looks for on the page: rows of a computation, of a table or view, and rows that a sink has published. Read from the checkpoint, changed never.

Rules
1. What is pickled stays so: nothing is loaded that could run code.
2. Every answer is bounded: `MOST_ROWS`, and `MOST_TEXT` characters of a value. What is left out is said.
3. Values are texts when they leave: the page shows them as text, whatever is in them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.readable import listing, relations
from millstream.sinks.published import PublishedFiles, batch
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import steady
from millstream.state.storage import Storage
from millstream.views.dsl import VIEW

MOST_ROWS = 50
MOST_TEXT = 4000
_MOST_FILES = 300
_CACHED = 600  # files whose rows are known: a file never changes
_MOST_PUBLISHED = 600
_MOST_TIMERS = 8
_MOST_BYTES = 512 << 10  # of a file that is read


def state(log: ManifestLog, computation: str, key: str = "") -> dict[str, Any]:
    """Rows of a computation: the first, or those of a key, as somebody writes it. Each with its state, MapStates, timers and hold."""
    manifest = _manifest(log)
    if computation not in manifest.computations:
        raise CheckpointError(f"no computation is called {computation!r} in epoch {manifest.epoch}")
    if key:
        found = steady(log, lambda cut: listing.looked_up(cut, computation, listing.keys_of(key), entries=MOST_ROWS))
    else:
        found = steady(log, lambda cut: listing.listed(cut, computation, MOST_ROWS))
    rows = [_state_row(one) for one in found.rows]
    return {
        "computation": computation,
        "epoch": found.epoch,
        "keys": found.keys,
        "rows": rows,
        "is_cut": not key and len(rows) == MOST_ROWS,
    }


def _state_row(row: listing.RowView) -> dict[str, Any]:
    view = listing.plain_view(row)
    return {
        "key": text(view["key"]),
        "shard": view["shard"],
        "state": text(view["state"]),
        "maps": [
            {"field": one["field"], "entries": one["entries"], "first": [[text(k), text(v)] for k, v in one["first"]]}
            for one in view["maps"]
        ],
        "timers": view["timers"][:_MOST_TIMERS],
        "more_timers": max(0, len(view["timers"]) - _MOST_TIMERS),
        "hold": view["hold"],
    }


def view(log: ManifestLog, name: str, key: str = "") -> dict[str, Any]:
    """Rows of a table, view or join: the first, or those of a key; of a view's key, also the documents that make it."""
    keys: list[Any] = listing.keys_of(key) if key else [None]

    def read(cut: Any) -> dict[str, Any]:
        kind = relations.relation(cut, name)
        rows: list[dict[str, Any]] = []
        origins: list[list[Any]] = []
        more = 0
        for one in keys:
            rows += [
                {"key": text(listing.plain(row.key)), "value": text(listing.plain(row.value)), "version": text(listing.plain(row.version))}
                for row in islice(relations.shown(cut, name, key=one), MOST_ROWS - len(rows))
            ]
            if key and kind.kind == VIEW and (kind.relation is None or kind.relation.origins):
                given = relations.given(cut, name, one)
                more += max(0, len(given) - MOST_ROWS)
                origins += [
                    [text(listing.plain(document)), text(listing.plain(values))] for document, values in islice(given.items(), MOST_ROWS)
                ]
        return {"name": name, "kind": kind.kind, "epoch": cut.epoch, "rows": rows, "origins": origins, "more_origins": more}

    return steady(log, read)


def published(log: ManifestLog, sink: str) -> dict[str, Any]:
    """The last rows of a sink whose files can be read from here."""
    manifest = _manifest(log)
    output = manifest.outputs.get(sink)
    if output is None:
        raise CheckpointError(f"no sink gets {sink!r} in epoch {manifest.epoch}")
    found: dict[str, Any] = {"sink": sink, "place": output.place, "rows": [], "why": ""}
    if not output.files:
        found["why"] = f"Rows go to {output.place}: look at them there."
        return found
    try:
        files = PublishedFiles(output.place, stream=sink, pipeline=log.identity().pipeline)
        for file in reversed(files.files(-1, 1 << 62)[-_MOST_FILES:]):
            found["rows"] = _cached_rows(files.storage, file.name) + found["rows"]
            if len(found["rows"]) >= _MOST_PUBLISHED:
                break
    except OSError as error:
        found["why"] = f"{output.place} cannot be read from here: {error}"
    found["rows"] = found["rows"][-_MOST_PUBLISHED:]
    return found


_known: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()


def _cached_rows(storage: Storage, name: str) -> list[dict[str, Any]]:
    where = (storage.url, name)
    rows = _known.pop(where, None)
    _known[where] = rows = _last_rows(storage, name) if rows is None else rows
    while len(_known) > _CACHED:
        _known.popitem(last=False)
    return rows


def _last_rows(storage: Storage, name: str) -> list[dict[str, Any]]:
    """The last rows of a file; of one that is large, none that is not in JSON lines."""
    size = storage.size(name)
    if size <= _MOST_BYTES:
        schema = pa.schema([("key", pa.string()), ("timestamp", pa.int64()), ("value", pa.string())])
        return [_published_row(row) for row in batch(storage, name, schema).to_pylist()[-_MOST_PUBLISHED:]]
    if not name.endswith(".jsonl"):
        return []
    _, _, whole = storage.read(name, size - _MOST_BYTES, _MOST_BYTES).partition(b"\n")
    return [_published_row(msgspec.json.decode(line, type=dict)) for line in whole.splitlines()[-_MOST_PUBLISHED:]]


def _published_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": text(row["key"]), "timestamp": row["timestamp"], "value": text(row["value"])}


def _manifest(log: ManifestLog) -> Manifest:
    manifest = log.latest()
    if manifest is None:
        raise CheckpointError("no epoch is committed yet")
    return manifest


def text(value: Any) -> str:
    """A value as text, cut to a bearable length."""
    found = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return found if len(found) <= MOST_TEXT else f"{found[:MOST_TEXT]} ... ({len(found):,} characters)"
