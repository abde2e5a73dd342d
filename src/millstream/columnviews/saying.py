"""Entries and messages in columns: what a shard's changed documents say to the groups of one consumer, and how it is packed.

What is said, in which order and under which id, is what `views/operator.py` and `views/change.py` say of it; here it is made for many documents at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnviews.mapping import MappedColumns
from millstream.columnviews.packing import BINARY, joined, packed_texts, parts_of
from millstream.columnviews.part_sums import folded
from millstream.core.keys import key_of
from millstream.core.record import Production, Timer
from millstream.core.step import Step
from millstream.core.visit import EPOCH
from millstream.reducers.base import Reducer
from millstream.views.change import INSERT, REMOVE, UPDATE, packed, packed_head, width_of
from millstream.views.operator import ViewOperator

KEY, CONSUMER = 1 << 36, 1 << 20  # in an entry's place: its key, then its consumer


class SaidEntries(NamedTuple):
    """What is said to one consumer: entries, or for a view without origins parts (each a list of one) that all are put in, or all taken out. places: the order
    in which visits would say it."""

    at: int  # the consumer's number
    texts: Any
    entries: Any
    places: Any
    times: Any
    is_removed: bool = False


def said_by(
    at: int, origins: bool, names: Any, was: MappedColumns | None, now: MappedColumns, places: Any, times: Any
) -> list[SaidEntries]:
    """What documents say that have changed, or come (was: None). names: their keys' texts. All columns have a row per document."""
    if was is None:
        return [SaidEntries(at, now.texts, _set(names, now.parts, INSERT) if origins else joined(b"\x91", now.parts), places + 1, times)]
    same = pc.equal(was.texts, now.texts).to_numpy(zero_copy_only=False)
    alike = pc.equal(was.parts, now.parts).to_numpy(zero_copy_only=False)
    moved, updated = (~same, same & ~alike) if origins else (~(same & alike), np.zeros(len(same), bool))
    found = []
    for chosen, side, how in ((moved, was, REMOVE), (moved, now, INSERT), (updated, now, UPDATE)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            picked = pa.array(rows)
            parts = side.parts.take(picked)
            entries = _set(names.take(picked), parts, how) if origins else joined(b"\x91", parts)
            is_removed = how == REMOVE
            found.append(SaidEntries(at, side.texts.take(picked), entries, places[rows] + (not is_removed), times[rows], is_removed))
    return found


def _set(names: Any, parts: Any, how: int) -> Any:
    """Entries of origins."""
    return joined(b"\x93", packed_texts(names), bytes([how]), *([b"\xc0"] if how == REMOVE else [b"\x91", parts]))


class Messages:
    """Packs what was said, and sends it."""

    def __init__(self, step: Step, operator: ViewOperator) -> None:
        self._step, self._operator = step, operator
        self._found: dict[int, list[SaidEntries]] = {}
        self._loose: dict[int, list[tuple[str, bytes, int, int]]] = {}
        self._first: tuple[int, bytes] | None = None  # the place of the first entry, and the row that it is of

    def add(self, found: Sequence[SaidEntries], row_keys: Sequence[bytes]) -> None:
        """Entries in columns. row_keys: of the keys that places name."""
        for one in found:
            self._found.setdefault(one.at, []).append(one)
            place = int(one.places.min())
            self._come_first(place, row_keys[place // KEY])

    def add_gathered(self, gathered: Sequence[tuple[Any, Any, int]], place: int, row_key: bytes) -> None:
        """What a visit has gathered."""
        if gathered:
            self._come_first(place, row_key)
        for nth, ((at, text), entry, time) in enumerate(gathered):
            self._loose.setdefault(at, []).append((text, entry, place + nth, time))

    def _come_first(self, place: int, row_key: bytes) -> None:
        if self._first is None or place < self._first[0]:
            self._first = place, row_key

    def send(self) -> None:
        """Does what `finish_epoch` of the operator does."""
        if self._first is None:
            return
        visit = self._step.visit
        for at, some in self._loose.items():
            self._found.setdefault(at, []).extend(self._in_columns(at, some))
        every = [one for some in self._found.values() for one in some]
        newest, oldest = (pick(int(pick_of(one.times)) for one in every) for pick, pick_of in ((max, np.max), (min, np.min)))
        visit.begin(None, self._first[1], None)
        visit.wall_time, visit.held, visit.cause = newest, oldest, Timer(newest, "", EPOCH)
        found: list[tuple[int, str, int, bytes, int]] = []
        for at, said in self._found.items():
            reducer = self._operator.downstreams[at].reducer
            messages = self._packed(_together(said)) if reducer is None else self._added_up(reducer, said)
            found += [(*message, at) for message in messages]
        found.sort(key=lambda message: message[0])
        visit.productions += self._productions(found)
        visit.tally("messages", len(found))

    def _in_columns(self, at: int, some: Sequence[tuple[str, bytes, int, int]]) -> Iterator[SaidEntries]:
        """What visits have said to one consumer."""
        operator = self._operator
        if operator.downstreams[at].reducer is None:
            yield _said(at, some)
            return
        changes = [(text, operator.decode(entry), place, time) for text, entry, place, time in some]
        for side, is_removed in ((0, True), (1, False)):
            rows = [(text, operator.encode([part]), place, time) for text, change, place, time in changes for part in change[side] or ()]
            if rows:
                yield _said(at, rows, is_removed)

    def _added_up(self, reducer: Reducer, some: Sequence[SaidEntries]) -> list[tuple[int, str, int, bytes]]:
        """The messages to a consumer without origins, which do not depend on the order of entries (`views/change.py`, rule 2)."""
        operator = self._operator
        texts = pa.concat_arrays([one.texts for one in some]).dictionary_encode()
        codes = texts.indices.to_numpy()
        count = len(texts.dictionary)
        first, newest = np.full(count, np.iinfo(np.int64).max), np.full(count, self._step.visit.least)
        np.minimum.at(first, codes, np.concatenate([one.places for one in some]))
        np.maximum.at(newest, codes, np.concatenate([one.times for one in some]))
        is_removed = np.repeat([one.is_removed for one in some], [len(one.places) for one in some])
        added, removed = (
            folded(reducer, operator.decode, _lists([one for one in some if one.is_removed is side]), codes[is_removed == side], count)
            for side in (False, True)
        )
        more = np.bincount(codes, 1 - 2 * is_removed, minlength=count).astype(np.int64).tolist()
        generation, encode = operator.build(operator.downstreams[some[0].at].consumer).generation, operator.encode
        entries = map(list, zip(more, added.known, added.totals, removed.known, removed.totals, strict=True))
        bodies = [packed(generation, [encode(entry)]) for entry in entries]
        return list(zip(first.tolist(), texts.dictionary.to_pylist(), newest.tolist(), bodies, strict=True))

    def _packed(self, one: SaidEntries) -> list[tuple[int, str, int, bytes]]:
        """The messages to a consumer, each with the place of its first entry, its group's text and its timestamp."""
        coded = one.texts.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.lexsort((one.places, codes))
        codes = codes[order]
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        firsts = one.places[order[starts]]
        texts = coded.dictionary.take(pa.array(codes[starts])).to_pylist()
        newest = np.maximum(np.maximum.reduceat(one.times[order], starts), self._step.visit.least).tolist()
        data, where = parts_of(one.entries.take(pa.array(order)))
        bounds = [*starts.tolist(), len(codes)]
        lengths = np.diff(where)
        said = [lengths.astype(kind) for kind in ("<u1", "<u2", "<u4")]
        wide = [width_of(most) // 2 for most in np.maximum.reduceat(lengths, starts).tolist()]
        generation = self._operator.build(self._operator.downstreams[one.at].consumer).generation
        view, cuts = memoryview(data), where[bounds].tolist()
        return [
            (
                firsts[nth].item(),
                texts[nth],
                newest[nth],
                packed_head(generation, bounds[nth + 1] - bounds[nth], said[wide[nth]][bounds[nth] : bounds[nth + 1]].tobytes())
                + view[cuts[nth] : cuts[nth + 1]],
            )
            for nth in np.argsort(firsts).tolist()
        ]

    def _productions(self, found: Sequence[tuple[int, str, int, bytes, int]]) -> list[Production]:
        step, visit = self._step, self._step.visit
        encode = visit.encode
        made = []
        digests: dict[str, Any] = {}
        ordinals: dict[str, int] = {}
        for _, text, timestamp, body, at in found:
            stream = self._operator.downstreams[at].stream
            id = ""
            if stream in visit.named_streams:
                digest = digests.get(stream)
                if digest is None:
                    digest = digests[stream] = blake2b(visit.row_key, digest_size=16)
                    digest.update(f"\0{step.name}\0{stream}\0timer/{EPOCH}/{visit.wall_time}//{visit.epoch}/0\0".encode())
                ordinal = ordinals[stream] = ordinals.get(stream, -1) + 1
                digest = digest.copy()
                digest.update(b"%d" % ordinal)
                id = digest.hexdigest()
            made.append(Production(stream, key_of(text), timestamp, id, encode(body)))
        return made


def _said(at: int, some: Sequence[tuple[str, bytes, int, int]], is_removed: bool = False) -> SaidEntries:
    texts, entries, places, times = zip(*some, strict=True)
    columns = (pa.array(texts, pa.string()), pa.array(entries, BINARY), np.array(places, np.int64), np.array(times, np.int64))
    return SaidEntries(at, *columns, is_removed)


def _lists(some: Sequence[SaidEntries]) -> Any:
    return pa.concat_arrays([one.entries for one in some]) if some else pa.array([], BINARY)


def _together(some: Sequence[SaidEntries]) -> SaidEntries:
    if len(some) == 1:
        return some[0]
    columns = (pa.concat_arrays([one.texts for one in some]), pa.concat_arrays([one.entries for one in some]))
    return SaidEntries(some[0].at, *columns, np.concatenate([one.places for one in some]), np.concatenate([one.times for one in some]))
