"""Stretches of sessions in columns: one row for a key's records that belong together, or for a part of them; how they are joined, found, and become bytes.

Rules
1. Two rows of a key belong to one session if they overlap: first < the other's end, both ways. A row's end is its newest record plus the gap.
2. Rows stand in the order of (hash of the key, key bytes, first), so the bytes follow from what is in them. A key is found by the hash, and told by its text.
3. `due` is when somebody has to look at a row again: at its end, or later, where something that is known prolongs its session until then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from millstream.operators.partials import Labels, Partials, decoded, encoded
from millstream.operators.vectors import grouped

_BIAS = 2**63
NOTHING_DUE = -_BIAS
TOLD = b"P"  # the entry that says what is told; entries of rows begin with it


class Spans(msgspec.Struct, eq=False):
    """Rows of (key, first, end, due) and the columns of their parts. A key is a place in `names`, of which `hashes` has the hash."""

    names: Any
    hashes: Any
    codes: Any
    firsts: Any
    ends: Any
    dues: Any
    columns: list[Any]

    def __len__(self) -> int:
        return len(self.codes)

    def where(self, chosen: Any) -> Spans:
        """Some rows: a mask, or places in ascending order."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        if len(at) == len(self):
            return self
        known, codes = np.unique(self.codes[at], return_inverse=True)
        columns = [column.take(pa.array(at)) for column in self.columns]
        return Spans(self.names.take(pa.array(known)), self.hashes[known], codes, self.firsts[at], self.ends[at], self.dues[at], columns)

    def of_names(self, chosen: Any) -> Spans:
        """The rows of some names (a mask)."""
        return self.where(chosen[self.codes])

    def row_hashes(self) -> Any:
        return self.hashes[self.codes]

    def chunk(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> bytes:
        """As bytes."""
        order = np.argsort(self.dues, kind="stable")
        columns = [pa.array(self.ends), pa.array(self.row_hashes()), pa.array(order), *self.columns]
        return encoded(Partials(self.dues, self.codes, self.names, columns, self.firsts), encode, decode, with_ends=True)


class StoredSpans:
    """Rows as they were stored, of which some are wanted. Nothing is copied before."""

    def __init__(self, data: bytes) -> None:
        table = decoded(data)
        self.dues, self.codes, self.names, self.firsts = table.ends, table.codes, table.names, table.starts
        ends, hashes, order, *self.columns = table.columns
        self.ends, self._hashes, self._order = ends.to_numpy(), hashes.to_numpy(), order.to_numpy()

    def __len__(self) -> int:
        return len(self.codes)

    def row_hashes(self) -> Any:
        return self._hashes

    def due(self, after: int, until: int | None = None) -> Any:
        """The places of the rows with after < due <= until, ascending."""
        return np.sort(self._order[self._first_due(after) : None if until is None else self._first_due(until)])

    def count_after(self, due: int) -> int:
        return len(self) - self._first_due(due)

    def next_due(self, after: int) -> int | None:
        at = self._first_due(after)
        return int(self.dues[self._order[at]]) if at < len(self) else None

    def _first_due(self, after: int) -> int:
        return bisect_right(range(len(self)), after, key=lambda at: self.dues[self._order[at]])

    def where(self, at: Any) -> Spans:
        known, codes = np.unique(self.codes[at], return_inverse=True)
        hashes = np.empty(len(known), np.int64)
        hashes[codes] = self._hashes[at]
        columns = [column.take(pa.array(at)) for column in self.columns]
        return Spans(self.names.take(pa.array(known)), hashes, codes, self.firsts[at], self.ends[at], self.dues[at], columns)

    def whole(self) -> Spans:
        return self.where(np.arange(len(self)))

    def of_keys(self, names: Any, hashes: Any) -> Any:
        """The places of the rows of some keys, ascending. hashes: of the names, ascending."""
        which, at = matches(hashes, self._hashes)
        return np.unique(at[_same(names, which, self.names, self.codes[at])])


def hashed(names: Any) -> Any:
    """A hash of each key text."""
    texts = names.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(xxh64_intdigest, texts), np.uint64, len(texts)).view(np.int64)


def ordered_names(names: Any, hashes: Any) -> tuple[Any, Any, Any]:
    """Different key texts in the order of rule 2, their hashes, and the place that each has now."""
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    if len(order) > 1 and (ascending[1:] == ascending[:-1]).any():
        order = np.array(sorted(order.tolist(), key=lambda at: (hashes[at], names[at].as_py().encode())))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return names.take(pa.array(order)), hashes[order], place


def chained(codes: Any, firsts: Any, ends: Any) -> tuple[Any, Any, Any]:
    """Rows that overlap, key by key (rule 1): their order, where each group of it begins, and the end of each group."""
    order = _order(codes, firsts)
    codes, firsts, ends = codes[order], firsts[order], ends[order]
    is_next = codes[1:] == codes[:-1]
    if (is_next & (ends[1:] < ends[:-1])).any():  # the newest end of the key's rows up to here
        known, rank = np.unique(ends, return_inverse=True)
        wide = np.int64(len(known))
        ends = known[np.maximum.accumulate(rank + codes * wide) - codes * wide]
    begins = np.ones(len(order), bool)
    begins[1:] = ~is_next | (firsts[1:] >= ends[:-1])
    starts = np.flatnonzero(begins)
    return order, starts, ends[np.append(starts[1:], len(order)) - 1]


def _order(codes: Any, times: Any) -> Any:
    """The order of rows by (code, time)."""
    least, most = int(times.min()), int(times.max())
    wide = most - least + 1
    if (int(codes.max()) + 1) * wide < _BIAS:
        return np.argsort(codes * np.int64(wide) + (times - least))
    return np.lexsort((times, codes))


def matches(wanted: Any, stored: Any) -> tuple[Any, Any]:
    """Pairs of places with equal hashes, the stored ones ascending for each wanted one."""
    low, high = np.searchsorted(stored, wanted, "left"), np.searchsorted(stored, wanted, "right")
    count = high - low
    which = np.repeat(np.arange(len(wanted)), count)
    return which, np.arange(len(which)) + np.repeat(low - (np.cumsum(count) - count), count)


def longest_due(ending: Spans, others: Spans | StoredSpans, after: int) -> Any:
    """For each row, the latest due > after of others that overlap it; NOTHING_DUE: there is none."""
    found = np.full(len(ending), NOTHING_DUE)
    which, at = matches(ending.row_hashes(), others.row_hashes())
    near = (others.dues[at] > after) & (others.firsts[at] < ending.ends[which]) & (others.ends[at] > ending.firsts[which])
    which, at = which[near], at[near]
    same = _same(ending.names, ending.codes[which], others.names, others.codes[at])
    np.maximum.at(found, which[same], others.dues[at[same]])
    return found


def _same(names: Any, codes: Any, others: Any, other_codes: Any) -> Any:
    """Whether key texts are the same, pair by pair: nearly always, because their hashes are."""
    return pc.equal(names.take(pa.array(codes)), others.take(pa.array(other_codes))).to_numpy(zero_copy_only=False)


def joined(tables: Iterable[Spans], combine: Callable[[Sequence[Sequence[Any]], Labels], list[Any]]) -> Spans | None:
    """Rows that overlap become one (rule 1). combine: what makes one part of several, as `Merging.combined` does. None: there are no rows."""
    some = [table for table in tables if len(table)]
    if not some:
        return None
    found = pa.concat_arrays([table.names for table in some]).dictionary_encode()
    places, hashes = found.indices.to_numpy(), np.empty(len(found.dictionary), np.int64)
    hashes[places] = np.concatenate([table.hashes for table in some])
    names, hashes, rank = ordered_names(found.dictionary, hashes)
    first = np.cumsum([0, *(len(table.names) for table in some)])
    codes = rank[places[np.concatenate([table.codes + at for table, at in zip(some, first, strict=False)])]]
    firsts, ends, dues = (np.concatenate([getattr(table, what) for table in some]) for what in ("firsts", "ends", "dues"))
    order, starts, ends = chained(codes, firsts, ends)
    columns = combine([table.columns for table in some], groups_of(order, starts))
    return Spans(names, hashes, codes[order][starts], firsts[order][starts], ends, np.maximum.reduceat(dues[order], starts), columns)


def groups_of(order: Any, starts: Any) -> Labels:
    """Rows by the group of `chained` that each belongs to."""
    of, count = np.empty(len(order), np.int64), np.diff(np.append(starts, len(order)))
    of[order] = np.repeat(np.arange(len(starts)), count)
    return grouped(of, count)


def told_bytes(low: int) -> bytes:
    return (low + _BIAS).to_bytes(8, "big")


def told_in(data: bytes) -> int:
    return int.from_bytes(data, "big") - _BIAS
