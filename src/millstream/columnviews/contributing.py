"""Contributions in columns: what origins set and remove, in the rows and leaves of many groups at once.

A *container* is a map of contributions, {origin: parts}: the one in a group's row, or a leaf. Containers are read into one list of contributions, what is set
and removed is looked up in it, and what has changed is written anew, in the order in which the visit would leave it: what was there keeps its place, what is
new stands behind it.

Rules
1. An entry finds the contribution of its origin by a table of hashes, and what is found is compared.
2. Where an origin is spoken of several times (`chained`), each entry finds what the one before has left. What is left in the end stands where the visit would
   leave it: a contribution that was removed and set again is a new one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.columnviews.packing import SingleRows, column_of, parts_of
from millstream.columnviews.unpacking import PackedRows, Slices

_MOST = 4096  # contributions of one container
_WORDS = 4  # of eight bytes, in an origin that is compared as numbers
_TURNS = 100
_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)


class Contained(NamedTuple):
    """The contributions in some containers, in order. pieces: for each container what stands before its first, then origin and parts by turns."""

    container: Any  # of each contribution
    head: Any  # by container: its place in pieces
    place: Any  # of each contribution: the place of its origin in pieces; its parts are behind it
    pieces: Any
    ok: Any  # by container
    rows: PackedRows  # the containers
    origins: Slices  # in them


def contained(column: Any) -> Contained:
    """What is in containers, each of them a row of a column."""
    rows = PackedRows.of(column)
    first = rows.head(rows.begin)
    is_small, is_wide = (first & 0xF0) == 0x80, first == 0xDE
    count = np.where(is_small, first & 0x0F, rows.number(rows.begin + 1, np.full(len(rows), 2)).astype(np.int64))
    rows.ok &= (is_small | is_wide) & (count <= _MOST)
    count = np.where(rows.ok, count, 0).astype(np.int64)
    at = rows.begin + np.where(is_wide, 3, 1)
    firsts = np.cumsum(count) - count
    total = int(count.sum())
    origins, values = np.zeros(total, np.int64), np.zeros(total, np.int64)
    left = np.flatnonzero(count)
    here = at[left]
    nth = 0
    behind = at.copy()
    while len(left):
        some = PackedRows(rows.data, here, rows.end[left])
        _, length = some.skip_value(here)
        value = here + length
        end = some.skip_nested(value)
        slots = firsts[left] + nth
        origins[slots], values[slots] = here, value
        rows.ok[left] &= some.ok
        behind[left] = end
        nth += 1
        stays = some.ok & (count[left] > nth)
        left, here = left[stays], end[stays]
    rows.ok &= behind == rows.end
    container = np.repeat(np.arange(len(rows)), count)
    if not rows.ok.all():
        read = rows.ok[container]
        container, origins, values = container[read], origins[read], values[read]
        count = np.where(rows.ok, count, 0)
        firsts = np.cumsum(count) - count
    return Contained(container, *_cut(rows, container, count, firsts, origins, values), rows.ok, rows, Slices(origins, values - origins))


def _cut(rows: PackedRows, container: Any, count: Any, firsts: Any, origins: Any, values: Any) -> tuple[Any, Any, Any]:
    """Cuts the bytes of containers, which lie one behind the other, where their contributions begin and where parts do."""
    width = 2 * count + 1
    head = np.cumsum(width) - width
    place = head[container] + 1 + 2 * (np.arange(len(container)) - firsts[container])
    cuts = np.empty(int(width.sum()) + 1, np.int64)
    cuts[head], cuts[place], cuts[place + 1] = rows.begin, origins, values
    cuts[-1] = rows.end[-1] if len(rows) else 0
    base = int(cuts[0])
    pieces = column_of(rows.data[base : int(cuts[-1])], np.diff(cuts))
    return head, place, pieces


class Spoken(NamedTuple):
    """What entries come to. old: of each entry the contribution that it speaks of, -1 for none. first: the entry that spoke of it first."""

    old: Any
    first: Any


def looked_up(kept: Contained, entries: PackedRows, origins: Slices, container: Any) -> Spoken:
    """The contributions that entries speak of. origins: where they lie in entries; container: of each entry."""
    most = max(int(one.length.max()) if len(one.length) else 0 for one in (kept.origins, origins))
    if most > 8 * _WORDS:
        known = [kept.pieces.take(pa.array(kept.place)), entries.column(origins)]
        codes = pa.concat_arrays(known).dictionary_encode().indices.to_numpy().astype(np.uint64)
        ours, theirs = [codes[: len(known[0])]], [codes[len(known[0]) :]]
    else:
        ours, theirs = (_words(*one, -(-most // 8)) for one in ((kept.rows, kept.origins), (entries, origins)))
    return _matched([container.astype(np.uint64), *theirs], [kept.container.astype(np.uint64), *ours])


def _words(rows: PackedRows, slices: Slices, count: int) -> list[Any]:
    """Short texts as numbers: as many as the longest needs. What is encoded says its length, so texts differ where their numbers do."""
    words, found = rows.words("<u8"), []
    for nth in range(count):
        left = np.clip(slices.length - 8 * nth, 0, 8)
        word = words[np.minimum(slices.begin + 8 * nth, len(words) - 1)]
        shift = ((8 - np.maximum(left, 1)) * 8).astype(np.uint64)
        found.append(np.where(left > 0, (word << shift) >> shift, np.uint64(0)))
    return found


def _matched(wanted: list[Any], known: list[Any]) -> Spoken:
    """For rows of some columns, the row of others that equals each, of which no two are equal. A table of places, made anew for those that found theirs
    taken."""
    hashes = [_hashed(columns) for columns in (wanted, known)]
    old, first = (np.full(len(wanted[0]), -1, np.int64) for _ in range(2))
    rows, others = np.arange(len(wanted[0])), np.arange(len(known[0]))
    bits = max(4, len(rows).bit_length() + 2)
    for turn in range(_TURNS):
        if not len(rows):
            break
        places, theirs = (
            ((one[some] * np.uint64(2 * turn + 0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)).astype(np.int64)
            for one, some in zip(hashes, (rows, others), strict=True)
        )
        table = np.full(1 << bits, -1, np.int64)
        table[places[::-1]] = rows[::-1]  # the first to come stays
        at = table[places]
        is_here = _equal(wanted, rows, wanted, at)
        first[rows[is_here]] = at[is_here]
        there = table[theirs]
        hit = there >= 0
        hit[hit] = _equal(wanted, there[hit], known, others[hit])
        old[there[hit]] = others[hit]
        rows, others = rows[~is_here], others[~hit]
    if len(rows):
        raise SingleRows("too many origins look alike")
    return Spoken(old[first], first)


def _hashed(columns: list[Any]) -> Any:
    found = np.full(len(columns[0]), 42, np.uint64)
    for column in columns:
        found = (found ^ column) * _PRIME
        found ^= found >> np.uint64(29)
    return found


def _equal(ones: list[Any], at: Any, others: list[Any], where: Any) -> Any:
    found = np.ones(len(at), bool)
    for one, other in zip(ones, others, strict=True):
        found &= one[at] == other[where]
    return found


class Effects(NamedTuple):
    """What is to be done for entries in the end. prior: the entry before it of the same origin, -1 for none. there: whether the entry finds a contribution.
    old, sets: as if each origin was spoken of once. parts: the entry that has the parts; -1 where nothing is to be done."""

    prior: Any
    there: Any
    old: Any
    sets: Any
    parts: Any


def chained(spoken: Spoken, sets: Any) -> Effects:
    """Rule 2."""
    count = len(sets)
    prior = np.full(count, -1, np.int64)
    there, old, sets_last, parts = spoken.old >= 0, spoken.old.copy(), sets.copy(), np.arange(count)
    later = np.flatnonzero(spoken.first != np.arange(count))
    chains: dict[int, list[int]] = {}
    for at, first in zip(later.tolist(), spoken.first[later].tolist(), strict=True):
        chains.setdefault(first, [first]).append(at)
    for chain in chains.values():
        kept = int(old[chain[0]])
        is_there, removed, begun, last = kept >= 0, -1, -1, -1
        for before, at in zip([-1, *chain], chain, strict=False):
            prior[at], there[at] = before, is_there
            if sets[at]:
                begun = at if not is_there else begun
                is_there, last = True, at
            elif is_there:
                is_there, removed, begun = False, at, -1
        parts[chain] = old[chain] = -1
        if removed < 0 and kept >= 0:  # it keeps its place
            old[last], parts[last] = kept, last
            continue
        if kept >= 0:
            old[removed], parts[removed] = kept, removed
        if is_there:
            parts[begun] = last
    return Effects(prior, there, old, sets_last, parts)


def rewritten(kept: Contained, effects: Effects, container: Any, origins: Any, parts: Any, chosen: Any) -> list[bytes | None]:
    """Some containers with what entries set and remove; None for those that are empty then. container: of entries. origins, parts: theirs, as columns.
    chosen: containers, ascending."""
    old, sets = effects.old, effects.sets & (effects.parts >= 0)
    count = len(kept.head)
    wanted = np.zeros(count, bool)
    wanted[chosen] = True
    entry_there = old >= 0
    # each contribution: the pieces of its origin and of its parts; those of entries are numbered behind those that are kept
    base = len(kept.pieces)
    parts_at = kept.place + 1
    stays = wanted[kept.container]
    updated = np.flatnonzero(entry_there & sets)
    parts_at = parts_at.copy()
    parts_at[old[updated]] = base + len(origins) + effects.parts[updated]
    stays[old[entry_there & ~sets]] = False
    stays = np.flatnonzero(stays)
    fresh = np.flatnonzero(~entry_there & sets & wanted[container])
    of = np.concatenate([kept.container[stays], container[fresh]])
    origin_at = np.concatenate([kept.place[stays], base + fresh])
    part_at = np.concatenate([parts_at[stays], base + len(origins) + effects.parts[fresh]])
    order = np.argsort(of, kind="stable")
    of, origin_at, part_at = of[order], origin_at[order], part_at[order]
    sizes = np.bincount(of, minlength=count)[chosen]
    rank = np.cumsum(wanted) - 1  # of a container among those that are chosen
    heads = map_heads(sizes)
    # in a row: a container's head, then origins and parts
    width = 2 * sizes + 1
    head = np.cumsum(width) - width
    index = np.empty(int(width.sum()), np.int64)
    nth = np.arange(len(of)) - (np.cumsum(sizes) - sizes)[rank[of]]
    spot = head[rank[of]] + 1 + 2 * nth
    index[spot], index[spot + 1] = origin_at, part_at
    index[head] = base + 2 * len(origins) + np.arange(len(chosen))
    data, where = parts_of(pa.concat_arrays([kept.pieces, origins, parts, heads]).take(pa.array(index)))
    view, bounds = memoryview(data), where[np.append(head, len(index))].tolist()
    return [bytes(view[begin:end]) if size else None for begin, end, size in zip(bounds[:-1], bounds[1:], sizes.tolist(), strict=True)]


def map_heads(sizes: Any) -> Any:
    """What stands before maps of so many."""
    wide = sizes >= 16
    cells = np.zeros((len(sizes), 3), np.uint8)
    cells[:, 0] = np.where(wide, 0xDE, 0x80 | sizes)
    cells[:, 1], cells[:, 2] = sizes >> 8, sizes & 0xFF
    kept = np.ones((len(sizes), 3), bool)
    kept[:, 1:] = wide[:, None]
    return column_of(cells[kept], np.where(wide, 3, 1))


def leaf_numbers(hashes: Any, leaves: Any) -> Any:
    """The leaf of each origin, by its hash and the number of leaves of its group (`views/agg_tree.py`)."""
    top = np.int64(1) << np.floor(np.log2(np.maximum(leaves, 1))).astype(np.int64)
    at = hashes & (2 * top - 1)
    return np.where(at < leaves, at, at - top)


def part_column(kept: Contained, old: Any) -> Any:
    """The parts of some contributions, as they are encoded."""
    return kept.pieces.take(pa.array(kept.place[old] + 1))
