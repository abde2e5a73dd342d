"""Records of one side of a join that wait for partners, in chunks of columns.

    J <side> h <bucket> <epoch> <piece> <hash> <rows>    → a chunk of so many records: the hashes of their keys, and their timestamps
    J <side> p <bucket> <epoch> <piece> <hash> <rows>    → which of them have had a partner, a bit each; nothing where none has
    J <side> t <bucket> <epoch> <piece> <hash> <rows>    → their key texts, ids and encoded values

Rules
1. A bucket is a span of event time, and the order of the entries is the order of time: what has expired is known by its names, and goes without being read.
   A chunk is called by the first of its names.
2. Records of a chunk are in the order of (hash, timestamp, key, id, value). So its bytes follow from what is in it.
3. What an epoch brings to a bucket is a run: one chunk or, where it is large, several, cut in that order. `hash` is that of the first record: where a key's
   records can be, is known from the names alone. Of those chunks hashes and timestamps are read, and the rest of those that have such a record.
4. A chunk is never changed. That a record of it has had a partner stands beside it, in at most `ROWS` bits.
5. `MERGED` runs of like size in a bucket become one, so that there are few of them, however many epochs it lasts; large runs stay as they are. Which, follows
   from what is stored and what came in: every attempt at an epoch does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from millstream.core.time import BEGINNING, END

WAITING = b"J"
MERGED = 8
ROWS, BYTES = 1024, 256 << 10  # of a chunk, about
LARGEST = 1 << 15  # runs with more rows are not merged

_NAME = struct.Struct(">cccQQIII")
HEAD, PAIRED, TEXTS = b"h", b"p", b"t"
_HEADS = np.dtype([("hash", "<u4"), ("time", "<i8")])
_BIAS = 2**63
_LAST = 2**32 - 1


class WaitingRecords(msgspec.Struct, eq=False):
    """Some records, by place: numpy arrays. Key texts, ids and encoded values are bytes."""

    hashes: Any
    times: Any
    keys: Any
    ids: Any
    bodies: Any
    paired: Any  # whether they have had a partner

    def __len__(self) -> int:
        return len(self.times)

    def take(self, places: Any) -> WaitingRecords:
        return WaitingRecords(*(getattr(self, name)[places] for name in self.__struct_fields__))

    def in_order(self) -> WaitingRecords:
        """Rule 2."""
        order = np.lexsort((self.times, self.hashes))
        hashes, times = self.hashes[order], self.times[order]
        tied = np.flatnonzero((hashes[1:] == hashes[:-1]) & (times[1:] == times[:-1]))
        if len(tied):
            first = tied[np.diff(tied, prepend=-2) > 1]
            last = tied[np.diff(tied, append=len(order) + 1) > 1]
            for start, stop in zip(first.tolist(), (last + 2).tolist(), strict=True):
                order[start:stop] = sorted(order[start:stop].tolist(), key=lambda at: (self.keys[at], self.ids[at], self.bodies[at]))
        return self.take(order)


def _objects(texts: Sequence[Any]) -> Any:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def waiting(keys: Sequence[str], times: Any, ids: Sequence[str], bodies: Sequence[bytes]) -> WaitingRecords:
    """Records in any order, none of which has had a partner."""
    texts = [key.encode() for key in keys]
    hashes = np.fromiter(map(crc32, texts), np.uint32, len(texts))
    names = [id.encode() for id in ids]
    return WaitingRecords(hashes, times, _objects(texts), _objects(names), _objects(bodies), np.zeros(len(texts), bool))


NOTHING = waiting([], np.zeros(0, np.int64), [], [])


def joined(some: Sequence[WaitingRecords]) -> WaitingRecords:
    """Records one behind the other."""
    if len(some) == 1:
        return some[0]
    return WaitingRecords(*map(np.concatenate, zip(*map(msgspec.structs.astuple, some), strict=True))) if some else NOTHING


def plus(times: Any, span: int) -> Any:
    """Times and a span, no further than time goes."""
    return np.minimum(times, END - span) + span if span >= 0 else np.maximum(times, BEGINNING - span) + span


def matched(some: WaitingRecords, others: WaitingRecords, before: int, after: int) -> tuple[Any, Any]:
    """The places of all pairs of the same key in which the other is at most `before` older and at most `after` newer."""
    if not len(some) or not len(others):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    known = np.unique(others.times)
    place = others.hashes.astype(np.uint64) << np.uint64(32) | np.searchsorted(known, others.times).astype(np.uint64)
    order = np.argsort(place, kind="stable")
    place, high = place[order], some.hashes.astype(np.uint64) << np.uint64(32)
    bounds = np.searchsorted(known, plus(some.times, -before)), np.searchsorted(known, plus(some.times, after), "right")
    start, stop = (np.searchsorted(place, high | bound.astype(np.uint64)) for bound in bounds)
    count = stop - start
    of = np.repeat(np.arange(len(some)), count)
    partner = order[np.arange(len(of)) + np.repeat(start - np.cumsum(count) + count, count)]
    same = some.keys[of] == others.keys[partner]  # keys may share a hash
    return (of, partner) if np.all(same) else (of[same], partner[same])


# --- chunks


class RecordChunk:
    """A chunk: hashes and timestamps, and the rest, which is read where somebody asks for a record."""

    __slots__ = ("_load", "_read", "hashes", "times")

    def __init__(self, head: bytes, load: Callable[[], bytes]) -> None:
        self.hashes, self.times = (np.ascontiguousarray(np.frombuffer(head, _HEADS)[field]) for field in ("hash", "time"))
        self._load = load
        self._read: tuple[bytes, list[Any]] | None = None

    def _texts(self) -> tuple[bytes, list[Any]]:
        """Keys, ids and values: the bytes, and where each text of the three begins."""
        if self._read is None:
            data: bytes = self._load()
            at, texts, count = 0, [], len(self.times) + 1
            for _ in range(3):
                offsets = np.frombuffer(data, "<u4", count, at).astype(np.int64) + at + 4 * count
                texts.append(offsets)
                at = int(offsets[-1])
            self._read = data, texts
        return self._read

    @property
    def keys(self) -> list[bytes]:
        data, (keys, _, _) = self._texts()
        return [data[a:b] for a, b in pairwise(keys.tolist())]

    def take(self, places: Any, paired: Any) -> WaitingRecords:
        if not len(places):
            return NOTHING
        data, texts = self._texts()
        keys, ids, bodies = (
            _objects([data[a:b] for a, b in zip(offsets[places].tolist(), offsets[places + 1].tolist(), strict=True)]) for offsets in texts
        )
        return WaitingRecords(self.hashes[places], self.times[places], keys, ids, bodies, paired[places])


def _head(some: WaitingRecords) -> bytes:
    found = np.empty(len(some), _HEADS)
    found["hash"], found["time"] = some.hashes, some.times
    data: bytes = found.tobytes()
    return data


def _texts(some: WaitingRecords) -> bytes:
    pieces: list[bytes] = []
    for texts in (some.keys, some.ids, some.bodies):
        offsets = np.zeros(len(some) + 1, "<u4")
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        pieces += [offsets.tobytes(), *texts]
    return b"".join(pieces)


# --- names


def first_name(side: bytes, bucket: int) -> bytes:
    return _NAME.pack(WAITING, side, HEAD, min(max(bucket + _BIAS, 0), 2**64 - 1), 0, 0, 0, 0)


def other_name(name: bytes, kind: bytes) -> bytes:
    """What else there is of a chunk."""
    return name[:2] + kind + name[3:]


def bucket_of(name: bytes) -> int:
    return int.from_bytes(name[3:11], "big") - _BIAS


def epoch_of(name: bytes) -> int:
    return int.from_bytes(name[11:19], "big")


def rows_of(name: bytes) -> int:
    return int.from_bytes(name[27:31], "big")


def paired_of(data: bytes | None, count: int) -> Any:
    if data is None:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little").view(bool)


class Side:
    """What is kept of one side, and how an epoch changes it. changed: gets the number of records that were added, less those that went."""

    def __init__(
        self, side: bytes, width: int, store: Any, delta: dict[bytes, bytes | None], epoch: int, changed: Callable[[int], None]
    ) -> None:
        self.side, self.width, self._store, self._delta, self._epoch, self._changed = side, width, store, delta, epoch, changed
        self._chunks: dict[bytes, RecordChunk] = {}

    # --- reading

    def near(self, others: WaitingRecords, before: int, after: int) -> tuple[WaitingRecords, list[tuple[bytes, Any]]]:
        """What the store has of the keys of some records, at most `before` older or `after` newer than any of them; and where it stands: chunks, and the
        places in them."""
        if not len(others):
            return NOTHING, []
        oldest, newest = int(plus(others.times.min(), -before)), int(plus(others.times.max(), after))
        hashes = np.unique(others.hashes)
        names = self._holding(hashes, oldest // self.width, newest // self.width)
        if not names:
            return NOTHING, []
        heads = list(map(self._store.get, names))
        theirs = np.frombuffer(b"".join(heads), _HEADS)
        at = np.minimum(np.searchsorted(hashes, theirs["hash"]), len(hashes) - 1)
        places = np.flatnonzero((hashes[at] == theirs["hash"]) & (theirs["time"] >= oldest) & (theirs["time"] <= newest))
        if not len(places):
            return NOTHING, []
        ends = np.cumsum(list(map(len, heads))) // _HEADS.itemsize
        of, first = np.unique(np.searchsorted(ends, places, "right"), return_index=True)
        found, stands = [], []
        for which, mine in zip(of.tolist(), np.split(places, first[1:]), strict=False):
            mine = mine - (int(ends[which - 1]) if which else 0)
            found.append(self.chunk(names[which]).take(mine, self.paired(names[which])))
            stands.append((names[which], mine))
        return joined(found), stands

    def _holding(self, hashes: Any, first: int, last: int) -> list[bytes]:
        """The chunks of some buckets that can have records with one of some hashes, by their names (rule 3)."""
        names = self._names(first_name(self.side, first), first_name(self.side, last + 1))
        if not names:
            return []
        parts = np.frombuffer(b"".join(names), np.uint8).reshape(len(names), _NAME.size)
        begins = parts[:, 23:27].copy().view(">u4")[:, 0].astype(np.int64)
        is_same_run = (parts[1:, :19] == parts[:-1, :19]).all(1)
        ends = np.append(np.where(is_same_run, begins[1:], _LAST), _LAST)
        may = np.searchsorted(hashes, ends, "right") > np.searchsorted(hashes, begins)
        return [names[at] for at in np.flatnonzero(may).tolist()]

    def _names(self, start: bytes, stop: bytes) -> list[bytes]:
        """The names of stored chunks that this epoch has not deleted."""
        delta = self._delta
        return [name for name in self._store.keys(start, stop) if delta.get(name, b"") is not None]

    def chunk(self, name: bytes) -> RecordChunk:
        found = self._chunks.get(name)
        if found is None:
            found = self._chunks[name] = RecordChunk(self._get(name), partial(self._get, other_name(name, TEXTS)))  # type: ignore[arg-type]
        return found

    def paired(self, name: bytes) -> Any:
        """Which records of a chunk have had a partner."""
        return paired_of(self._get(other_name(name, PAIRED)), rows_of(name))

    def _get(self, name: bytes) -> bytes | None:
        return self._delta[name] if name in self._delta else self._store.get(name)

    def until(self, bucket: int) -> Iterator[bytes]:
        """The names of stored chunks up to a bucket."""
        yield from self._names(first_name(self.side, -_BIAS), first_name(self.side, bucket + 1))

    def oldest(self) -> list[bytes]:
        """The chunks of the oldest bucket, as this epoch leaves them."""
        prefix, delta = WAITING + self.side + HEAD, self._delta
        stored = next((name for name in self._store.keys(prefix, WAITING + self.side + PAIRED) if delta.get(name, b"") is not None), None)
        new = [name for name, data in delta.items() if data is not None and name.startswith(prefix)]
        first = min((name[:11] for name in ([] if stored is None else [stored]) + new), default=None)
        if first is None:
            return []
        bucket = bucket_of(first)
        return sorted(
            {*self._names(first_name(self.side, bucket), first_name(self.side, bucket + 1)), *(n for n in new if n[:11] == first)}
        )

    # --- writing

    def mark(self, name: bytes, places: Any) -> None:
        """Notes that records of a chunk have had a partner."""
        paired = self.paired(name).copy()
        paired[places] = True
        self._write_paired(name, paired)

    def _write_paired(self, name: bytes, paired: Any) -> None:
        self._delta[other_name(name, PAIRED)] = np.packbits(paired, bitorder="little").tobytes()

    def drop(self, name: bytes) -> None:
        self._delta[name] = self._delta[other_name(name, TEXTS)] = None
        if self._store.get(other_name(name, PAIRED)) is not None:
            self._delta[other_name(name, PAIRED)] = None
        else:
            self._delta.pop(other_name(name, PAIRED), None)
        self._changed(-rows_of(name))

    def keep(self, some: WaitingRecords) -> None:
        """Puts records, which are in order, into their buckets."""
        if not len(some):
            return
        buckets = some.times // self.width
        order = np.argsort(buckets, kind="stable")
        buckets = buckets[order]
        cuts = [0, *(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1).tolist(), len(order)]
        for start, stop in pairwise(cuts):
            self._keep(int(buckets[start]), some.take(order[start:stop]))

    def _keep(self, bucket: int, some: WaitingRecords) -> None:
        """Rule 5."""
        runs: dict[int, list[bytes]] = {}
        for name in self._names(first_name(self.side, bucket), first_name(self.side, bucket + 1)):
            runs.setdefault(epoch_of(name), []).append(name)
        while len(some) <= LARGEST:
            alike = [epoch for epoch, run in runs.items() if _class(sum(map(rows_of, run))) == _class(len(some))]
            if len(alike) < MERGED - 1:
                break
            names = [name for epoch in alike for name in runs.pop(epoch)]
            stored = [self.chunk(name).take(np.arange(rows_of(name)), self.paired(name)) for name in names]
            some = joined([*stored, some]).in_order()
            for name in names:
                self.drop(name)
        self._changed(len(some))
        for piece, (start, stop) in enumerate(_cuts(some)):
            part = some.take(slice(start, stop))
            name = _NAME.pack(WAITING, self.side, HEAD, bucket + _BIAS, self._epoch, piece, int(part.hashes[0]), len(part))
            self._delta[name], self._delta[other_name(name, TEXTS)] = _head(part), _texts(part)
            if part.paired.any():
                self._write_paired(name, part.paired)


def _cuts(some: WaitingRecords) -> Iterator[tuple[int, int]]:
    """Where a run is cut into chunks."""
    sizes = np.cumsum([len(body) for body in some.bodies])
    start = 0
    while start < len(some):
        stop = int(np.searchsorted(sizes, (sizes[start - 1] if start else 0) + BYTES, "right"))
        stop = min(max(stop, start + 1), start + ROWS, len(some))
        yield start, stop
        start = stop


def _class(rows: int) -> int:
    return rows.bit_length() // 3
