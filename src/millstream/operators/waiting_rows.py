"""The records that wait in a join of streams, as rows: a key, and for each of its records side, timestamp, id, whether it has had a partner, and value.

Rules
1. Rows come in the order of their keys' bytes, the records of a key in order of (timestamp, side, id).
2. A record is shown for as long as it is kept: up to a sixteenth of the interval longer than a partner of it can come (`interval_join.py`).
3. Memory holds the entries as they are stored, the keys that are asked for, and the values of one of them. Of one key, only chunks with its hash are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np

from millstream.core.keyspace import after
from millstream.operators.waiting import HEAD, PAIRED, TEXTS, WAITING, RecordChunk, other_name, paired_of, rows_of

RECORDS = (WAITING + b"l", after(WAITING))  # where the entries of records are
KeyRecords = tuple[str, list[dict[str, Any]]]  # a key's text, and its records
_SIDES = {b"l": "left", b"r": "right"}


class WaitingReader:
    """Reads what a join of streams keeps. decode: of a value."""

    entries = RECORDS

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def rows(self, entries: Iterable[tuple[bytes, bytes]], start: bytes = b"", stop: bytes | None = None) -> Iterator[KeyRecords]:
        """The keys with start <= key < stop, as bytes, of which records wait. entries: those within `RECORDS`, of one shard or of several."""
        chunks = _read(entries)
        found = [
            (key, at, place)
            for at, (_, chunk, _) in enumerate(chunks)
            for place, key in enumerate(chunk.keys)
            if start <= key and (stop is None or key < stop)
        ]
        for key, places in groupby(sorted(found), key=lambda one: one[0]):
            yield key.decode(), self._records(chunks, [(at, place) for _, at, place in places])

    def of_key(self, entries: Iterable[tuple[bytes, bytes]], key: bytes) -> list[dict[str, Any]] | None:
        """The records of one key; None if none waits. entries: those of its shard."""
        chunks = _read(entries)
        found = []
        for at, (_, chunk, _) in enumerate(chunks):
            places = np.flatnonzero(chunk.hashes == crc32(key)).tolist()
            if places:
                keys = chunk.keys
                found += [(at, place) for place in places if keys[place] == key]
        return self._records(chunks, found) if found else None

    def size(self, entries: Iterable[tuple[bytes, bytes]]) -> tuple[int, int]:
        """Of how many keys records wait, and how many records."""
        chunks = _read(entries)
        return len({key for _, chunk, _ in chunks for key in chunk.keys}), sum(len(chunk.times) for _, chunk, _ in chunks)

    def _records(self, chunks: list[tuple[str, RecordChunk, Any]], places: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        found = []
        for at, place in places:
            side, chunk, paired = chunks[at]
            one = chunk.take(np.array([place]), paired)
            record = {"side": side, "timestamp": int(one.times[0]), "id": one.ids[0].decode(), "paired": bool(one.paired[0])}
            found.append({**record, "value": self._decode(one.bodies[0])})
        return sorted(found, key=lambda record: (record["timestamp"], record["side"], record["id"]))


def _read(entries: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, RecordChunk, Any]]:
    """The chunks, each with its side and which of its records have had a partner."""
    heads: dict[bytes, bytes] = {}  # by name. No other shard has the same: the hash of a key decides its shard
    paired: dict[bytes, bytes] = {}
    texts: dict[bytes, bytes] = {}
    of_kind = {HEAD: heads, PAIRED: paired, TEXTS: texts}
    for name, data in entries:
        of_kind[name[2:3]][other_name(name, HEAD)] = data
    return [
        (_SIDES[name[1:2]], RecordChunk(head, partial(bytes, texts[name])), paired_of(paired.get(name), rows_of(name)))
        for name, head in heads.items()
    ]
