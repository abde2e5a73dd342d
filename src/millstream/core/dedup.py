"""Deduplication: a record of an injected stream counts once, however often its source brings it (MillWheel §6.1.1).

A record is (stream, key, id). Ids are kept per shard and consumer, in spans of arrival time:

    D <stream> 0 <end of the span> <epoch> h      → the hashes of the ids that came up to this epoch, ascending, 8 bytes each
    D <stream> 0 <end of the span> <epoch> i      → the ids themselves, in the same order

Rules
1. A record is a duplicate if its id is held. A filter per span answers for almost every new record that it is not; where the filter
   says maybe, the stored hashes decide, and where a hash is equal, the ids themselves. Nothing is ever dropped because of a hash.
2. Of several with one id in one epoch, the first in canonical order stays.
3. Arrival time is the epoch's wall clock, the same on every retry. A span is dropped whole once it ended longer ago than
   horizon and slack, so ids never pile up; until then every one of its ids is held.
4. The filter lives in the worker's memory and follows from the stored hashes: losing it costs time only. It covers at least what is stored, and is made
   anew for every run, because only within a run an entry of a name has one content.
5. An epoch adds an entry. `MERGED` small entries of about one size become one, under the name of the youngest, so that a span has few, however many epochs
   it lasts: at tens of epochs a second there would be thousands to look at. An id is written again a few times in all; large entries stay as they are.
   What is merged follows from what is stored alone, so every attempt at an epoch does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from millstream.core.keyspace import OpenStore
from millstream.core.time import Duration, duration
from millstream.errors import DefinitionError

IDS = b"D"
_WHEN = struct.Struct(">QQ")
_SPANS = 10  # per horizon
_BITS = 24  # per id
_SMALLEST = 12  # a filter begins with 2**12 words
MERGED = 16  # entries of about one size that become one
_SMALL = 1 << 16  # ids of an entry that may be written again


class Packed:
    """Byte strings one behind the other, with their offsets in front: what Arrow has in memory anyway, so that no Python object is made of it.

    >>> [Packed(pack([b"a", b"", b"bcd"]))[at] for at in range(3)]
    [b'a', b'', b'bcd']
    """

    def __init__(self, data: bytes) -> None:
        self.count = int.from_bytes(data[:4], "little")
        self._offsets = np.frombuffer(data, np.int32, self.count + 1, 4)
        self._data = memoryview(data)[4 * (self.count + 2) :]

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._data[self._offsets[at] : self._offsets[at + 1]])

    @property
    def lengths(self) -> Any:
        return np.diff(self._offsets)

    @property
    def data(self) -> memoryview:
        return self._data[: int(self._offsets[-1])]


def packed(offsets: Any, data: bytes | memoryview) -> bytes:
    """The bytes of a Packed, from offsets (int32, beginning with 0) and data."""
    return b"".join([(len(offsets) - 1).to_bytes(4, "little"), offsets.tobytes(), data])


def pack(ids: Sequence[bytes]) -> bytes:
    return packed(np.cumsum([0, *map(len, ids)], dtype=np.int32), b"".join(ids))


class Dedup(msgspec.Struct, frozen=True):
    """How long ids are held: `horizon` plus `slack`, in milliseconds, by spans."""

    horizon: int
    slack: int = 0
    span: int = 60_000

    def span_of(self, now: int) -> int:
        """The span of an arrival, named by its end: a time, so that it means the same after the horizon has been changed."""
        return (now // self.span + 1) * self.span

    def is_over(self, span: int, now: int) -> bool:
        return span + self.horizon + self.slack <= now


def dedup(horizon: Duration = "10m", *, slack: Duration = 0) -> Dedup:
    """Ids are held for a horizon of arrival time, plus slack for injectors that deliver late.

    >>> dedup("10m", slack="1m")
    Dedup(horizon=600000, slack=60000, span=60000)
    """
    millis = duration(horizon)
    if millis <= 0:
        raise DefinitionError(f"dedup={horizon!r}: give a time longer than nothing, or None to switch deduplication off")
    return Dedup(millis, duration(slack), max(1, millis // _SPANS))


class IdRows(Protocol):
    """The records of one stream that are asked about: a hash of each one's name (uint64), names by position, as a list or a Packed, and canonical order."""

    hashes: Any

    def ids(self, positions: Any) -> list[bytes]: ...
    def packed(self, positions: Any) -> bytes: ...
    def in_order(self, positions: Any) -> Any: ...


class DedupCounts(msgspec.Struct):
    """What deduplication did. `filtered`: answered by the filter alone. `held`: ids added minus ids dropped with their span."""

    checked: int = 0
    filtered: int = 0
    dropped: int = 0
    held: int = 0

    def add(self, other: DedupCounts) -> None:
        self.checked += other.checked
        self.filtered += other.filtered
        self.dropped += other.dropped
        self.held += other.held


class Filter:
    """A Bloom filter in which all bits of an id lie in one 64-bit word: one memory access per question, all of a batch at once. The
    hash's upper bits choose the word, five groups of six lower bits the bits in it."""

    def __init__(self, capacity: int) -> None:
        self.power = max(_SMALLEST, (max(1, capacity) * _BITS // 64).bit_length())
        self.words = np.zeros(1 << self.power, np.uint64)
        self.capacity = (64 << self.power) // _BITS
        self.count = 0

    def _where(self, hashes: Any) -> tuple[Any, Any]:
        one, six = np.uint64(1), np.uint64(63)
        mask = one << (hashes & six)
        for shift in (6, 12, 18, 24):
            mask |= one << ((hashes >> np.uint64(shift)) & six)
        return (hashes >> np.uint64(64 - self.power)).astype(np.int64), mask

    def add(self, hashes: Any) -> None:
        at, mask = self._where(hashes)
        np.bitwise_or.at(self.words, at, mask)
        self.count += len(hashes)

    def may_have(self, hashes: Any) -> Any:
        """For each hash: False if it was never added."""
        at, mask = self._where(hashes)
        return (self.words[at] & mask) == mask


class SpanFilters:
    """The filters of one stream in one shard, kept between epochs by the worker process that happens to run the shard."""

    def __init__(self) -> None:
        self._filters: dict[int, Filter] = {}
        self._known: dict[int, set[bytes]] = {}
        self._run = ""
        self.sizes: dict[bytes, int] = {}  # how many ids an entry has
        self._nothing_over: tuple[str, int] = "", 0  # in which run, and until when, no span is over

    def note_oldest(self, run: str, until: int) -> None:
        """No span of the shard is over before a moment: spans that are added later end later."""
        self._nothing_over = run, until

    def may_be_over(self, run: str, now: int) -> bool:
        """Whether ids may have to go. The clock of a run never goes back."""
        known, until = self._nothing_over
        return known != run or not run or now >= until

    def follow(self, store: OpenStore, entries: Mapping[int, Sequence[bytes]], run: str = "") -> None:
        """Makes the filters cover the entries that the store has. Rule 4: whoever knows an entry knows all that were merged into it under its name."""
        if run != self._run:
            self._filters, self._known, self._run, self.sizes = {}, {}, run, {}
        for span in [span for span in self._filters if span not in entries]:
            for key in self._known[span]:
                self.sizes.pop(key, None)
            del self._filters[span], self._known[span]
        for span, keys in entries.items():
            known = self._known.setdefault(span, set())
            if not known <= set(keys):  # entries were merged: those that may have grown are looked at again
                for key in keys:
                    if key in known and self.sizes[key] <= _SMALL:
                        self.sizes[key] = len(_hashes(store, key))
                self._known[span] = known = known & set(keys)
            missing = [key for key in keys if key not in known]
            if not missing:
                continue
            hashes = [_hashes(store, key) for key in missing]
            self.sizes.update(zip(missing, map(len, hashes), strict=True))
            more = sum(len(h) for h in hashes)
            filter = self._filters.get(span)
            if filter is None or filter.count + more > filter.capacity:
                old = [_hashes(store, key) for key in keys if key in known]
                filter = self._filters[span] = Filter(2 * (sum(len(h) for h in old) + more))
                hashes = [*old, *hashes]
            for each in hashes:
                filter.add(each)
            self._known[span] = set(keys)

    def may_have(self, span: int, hashes: Any) -> Any:
        return self._filters[span].may_have(hashes)


def _hashes(store: OpenStore, key: bytes) -> Any:
    data = store.get(key)
    assert data is not None
    return np.frombuffer(data, np.uint64)


def check(
    rule: Dedup, stream: str, store: OpenStore, filters: SpanFilters, rows: IdRows | None, now: int, epoch: int, run: str = ""
) -> tuple[Any, dict[bytes, bytes | None], DedupCounts]:
    """Which records of one stream stay (a mask), what changes in the store, and the counts. rows: None if none came in. run: whose epoch it is."""
    prefix = IDS + stream.encode() + b"\0"
    hashes = np.zeros(0, np.uint64) if rows is None else rows.hashes
    delta: dict[bytes, bytes | None] = {}
    counts = DedupCounts(checked=len(hashes))
    entries: dict[int, list[bytes]] = {}
    for key in store.keys(prefix, prefix + b"\xff" * 20):
        span, _ = _WHEN.unpack_from(key, len(prefix))
        if rule.is_over(span, now):
            delta[key] = None
            if key.endswith(b"h"):
                counts.held -= len(store.get(key) or b"") // 8
        elif key.endswith(b"h"):
            entries.setdefault(span, []).append(key)
    filters.note_oldest(run, min([*entries, rule.span_of(now)]) + rule.horizon + rule.slack)
    keep = np.ones(len(hashes), bool)
    if rows is None or not len(hashes):
        return keep, delta, counts
    filters.follow(store, entries, run)
    doubtful = np.zeros(len(hashes), bool)
    for span in entries:
        maybe = filters.may_have(span, hashes)
        if maybe.any():
            doubtful |= maybe
            _drop_held(keep, np.flatnonzero(maybe & keep), hashes, rows, store, entries[span])
    counts.filtered = int(len(hashes) - doubtful.sum())
    sorted_at = np.argsort(hashes, kind="stable")
    in_order = hashes[sorted_at]
    equal = in_order[1:] == in_order[:-1]
    if equal.any():
        _drop_repeated(keep, sorted_at, equal, rows)
    if not keep.all():
        sorted_at = sorted_at[keep[sorted_at]]
    counts.dropped = int(len(hashes) - len(sorted_at))
    if len(sorted_at):
        _merge(store, entries.get(rule.span_of(now), ()), filters.sizes, delta)
        key = prefix + _WHEN.pack(rule.span_of(now), epoch)
        delta[key + b"h"] = hashes[sorted_at].tobytes()
        delta[key + b"i"] = rows.packed(sorted_at)
        counts.held += len(sorted_at)
    return keep, delta, counts


def _merge(store: OpenStore, keys: Sequence[bytes], sizes: Mapping[bytes, int], delta: dict[bytes, bytes | None]) -> None:
    """Rule 5. Which epoch an id came in does not matter within its span, so any entries may become one."""
    if len(keys) < MERGED:
        return
    alike: dict[int, list[bytes]] = {}
    for key in keys:
        if sizes[key] <= _SMALL:
            alike.setdefault((sizes[key].bit_length() - 1) // 4, []).append(key)
    chosen = next((some for _, some in sorted(alike.items()) if len(some) >= MERGED), [])[::-1]  # the youngest first
    if not chosen:
        return
    hashes = [_hashes(store, key) for key in chosen]
    ids = [Packed(store.get(key[:-1] + b"i") or pack([])) for key in chosen]
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    lengths = np.concatenate([one.lengths for one in ids])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    offsets = np.zeros(len(order) + 1, np.int32)
    np.cumsum(lengths[order], out=offsets[1:])
    data = np.frombuffer(b"".join([bytes(one.data) for one in ids]), np.uint8)
    moved = data[np.repeat(starts[order] - offsets[:-1], lengths[order]) + np.arange(int(offsets[-1]))]
    for key in chosen[1:]:
        delta[key] = delta[key[:-1] + b"i"] = None
    delta[chosen[0]] = joined[order].tobytes()
    delta[chosen[0][:-1] + b"i"] = packed(offsets, moved.tobytes())


def _drop_held(keep: Any, asked: Any, hashes: Any, rows: IdRows, store: OpenStore, entries: Iterable[bytes]) -> None:
    """Takes out of `keep` those of the records asked about whose ids are stored."""
    for key in entries:
        if not len(asked):
            return
        held = _hashes(store, key)
        wanted = hashes[asked]
        left = np.searchsorted(held, wanted, "left")
        alike = np.flatnonzero(held[np.minimum(left, len(held) - 1)] == wanted)
        if not len(alike):
            continue
        stored = Packed(store.get(key[:-1] + b"i") or b"")
        for position, name in zip(asked[alike].tolist(), rows.ids(asked[alike]), strict=True):
            at = int(np.searchsorted(held, hashes[position], "left"))
            while at < len(held) and held[at] == hashes[position]:
                if stored[at] == name:
                    keep[position] = False
                    break
                at += 1
        asked = asked[keep[asked]]


def _drop_repeated(keep: Any, sorted_at: Any, equal: Any, rows: IdRows) -> None:
    """Of records with one id in this epoch, leaves the first in canonical order."""
    member = np.zeros(len(sorted_at), bool)
    member[1:] |= equal
    member[:-1] |= equal
    positions = rows.in_order(sorted_at[member])
    seen: set[bytes] = set()
    for position, name in zip(positions.tolist(), rows.ids(positions), strict=True):
        if keep[position]:
            if name in seen:
                keep[position] = False
            seen.add(name)
