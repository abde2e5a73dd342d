"""Contributions in columns: what origins set and remove, in the rows and leaves of many groups at once.

A *container* is a map of contributions, {origin: parts}: the one in a group's row, or a leaf. Containers are read into one list of contributions, what is set
and removed is looked up in it, and what has changed is written anew, in the order in which the visit would leave it: what was there keeps its place, what is
new stands behind it.

Rule: an origin is spoken of once in a group. Groups for which that does not hold are not for columns; their numbers are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.columnviews.packing import column_of, parts_of
from millstream.columnviews.unpacking import PackedRows

_MOST = 4096  # contributions of one container


class Contained(NamedTuple):
    """The contributions in some containers, in order. pieces: for each container what stands before its first, then origin and parts by turns."""

    container: Any  # of each contribution
    head: Any  # by container: its place in pieces
    place: Any  # of each contribution: the place of its origin in pieces; its parts are behind it
    pieces: Any
    ok: Any  # by container


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
    return Contained(container, *_cut(rows, container, count, firsts, origins, values), rows.ok)


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
    """What entries come to. old: of each entry the contribution that it replaces, -1 for none. again: entries of origins that were spoken of before in their
    group."""

    old: Any
    again: Any


def looked_up(kept: Contained, origins: Any, container: Any, group: Any) -> Spoken:
    """The contributions that entries speak of. origins: of entries, as they are encoded; container, group: theirs."""
    known = kept.pieces.take(pa.array(kept.place))
    codes = pa.concat_arrays([known, origins]).dictionary_encode()
    of = codes.indices.to_numpy().astype(np.int64)
    ours, theirs = of[: len(known)], of[len(known) :]
    many = len(codes.dictionary)
    again = _repeated(theirs, group, many)
    times = np.bincount(ours, minlength=many)
    where = np.full(many, -1, np.int64)
    where[ours] = np.arange(len(ours))
    old = where[theirs]
    hit = (old >= 0) & (kept.container[np.maximum(old, 0)] == container) if len(ours) else np.zeros(len(theirs), bool)
    old = np.where(hit, old, -1)
    open_ = np.flatnonzero(~hit & (times[theirs] > 1))  # an origin that is in several containers
    if len(open_):
        rows = np.flatnonzero(times[ours] > 1)
        names = kept.container[rows] * np.int64(many) + ours[rows]
        order = np.argsort(names)
        wanted = container[open_] * np.int64(many) + theirs[open_]
        at = np.minimum(np.searchsorted(names[order], wanted), len(order) - 1)
        found = rows[order[at]]
        old[open_] = np.where(names[order[at]] == wanted, found, -1)
    return Spoken(old, again)


def _repeated(codes: Any, group: Any, many: int) -> Any:
    """The groups in which an origin is spoken of more than once."""
    rows = np.flatnonzero(np.bincount(codes, minlength=many)[codes] > 1)
    names = np.sort(group[rows] * np.int64(many) + codes[rows])
    return np.unique(names[1:][names[1:] == names[:-1]] // many)


def rewritten(kept: Contained, old: Any, sets: Any, container: Any, origins: Any, parts: Any, chosen: Any) -> list[bytes | None]:
    """Some containers with what entries set and remove; None for those that are empty then. old, sets, container: of entries. origins, parts: theirs, as
    columns. chosen: containers, ascending."""
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
    parts_at[old[updated]] = base + len(origins) + updated
    stays[old[entry_there & ~sets]] = False
    stays = np.flatnonzero(stays)
    fresh = np.flatnonzero(~entry_there & sets & wanted[container])
    of = np.concatenate([kept.container[stays], container[fresh]])
    origin_at = np.concatenate([kept.place[stays], base + fresh])
    part_at = np.concatenate([parts_at[stays], base + len(origins) + fresh])
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
