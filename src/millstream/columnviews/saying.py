"""Entries and messages in columns: what a shard's changed documents say to the groups of one consumer, and how it is packed.

What is said, in which order and under which id, is what `views/operator.py` and `views/change.py` say of it; here it is made for many documents at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnviews.mapping import MappedColumns
from millstream.columnviews.packing import BINARY, joined, packed_texts, parts_of
from millstream.core.keys import key_of
from millstream.core.record import Production, Timer
from millstream.core.step import Step
from millstream.core.visit import EPOCH
from millstream.views.change import INSERT, REMOVE, UPDATE, packed_head, width_of
from millstream.views.operator import ViewOperator

KEY, CONSUMER = 1 << 36, 1 << 20  # in an entry's place: its key, then its consumer


class SaidEntries(NamedTuple):
    """What is said to one consumer. places: the order in which visits would say it."""

    at: int  # the consumer's number
    texts: Any
    entries: Any
    places: Any
    times: Any


def said_by(
    at: int, origins: bool, names: Any, was: MappedColumns | None, now: MappedColumns, places: Any, times: Any
) -> list[SaidEntries]:
    """What documents say that have changed, or come (was: None). names: their keys' texts. All columns have a row per document."""
    if was is None:
        return [SaidEntries(at, now.texts, _said(origins, names, None, now.parts, INSERT), places + 1, times)]
    same = pc.equal(was.texts, now.texts).to_numpy(zero_copy_only=False)
    alike = pc.equal(was.parts, now.parts).to_numpy(zero_copy_only=False)
    found = []
    moved, other = np.flatnonzero(~same), np.flatnonzero(same & ~alike)
    for chosen, sides, old, new, how, nth in (
        (moved, was, was.parts, None, REMOVE, 0),
        (moved, now, None, now.parts, INSERT, 1),
        (other, now, was.parts, now.parts, UPDATE, 1),
    ):
        if len(chosen):
            rows = pa.array(chosen)
            old, new = (None if part is None else part.take(rows) for part in (old, new))
            said = _said(origins, names.take(rows), old, new, how)
            found.append(SaidEntries(at, sides.texts.take(rows), said, places[chosen] + nth, times[chosen]))
    return found


def _said(origins: bool, names: Any, old: Any, new: Any, how: int) -> Any:
    if origins:
        return joined(b"\x93", packed_texts(names), bytes([how]), *([b"\xc0"] if new is None else [b"\x91", new]))
    pieces: list[Any] = [b"\x92"]
    for part in (old, new):
        pieces += [b"\xc0"] if part is None else [b"\x91", part]
    return joined(*pieces)


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
            texts, entries, places, times = zip(*some, strict=True)
            columns = (pa.array(texts, pa.string()), pa.array(entries, BINARY), np.array(places, np.int64), np.array(times, np.int64))
            self._found.setdefault(at, []).append(SaidEntries(at, *columns))
        whole = [_together(some) for some in self._found.values()]
        newest, oldest = (pick(int(pick_of(one.times)) for one in whole) for pick, pick_of in ((max, np.max), (min, np.min)))
        visit.begin(None, self._first[1], None)
        visit.wall_time, visit.held, visit.cause = newest, oldest, Timer(newest, "", EPOCH)
        found = [(*message, one.at) for one in whole for message in self._packed(one)]
        if len(whole) > 1:
            found.sort(key=lambda message: message[0])
        visit.productions += self._productions(found)
        visit.tally("messages", len(found))

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


def _together(some: Sequence[SaidEntries]) -> SaidEntries:
    if len(some) == 1:
        return some[0]
    columns = (pa.concat_arrays([one.texts for one in some]), pa.concat_arrays([one.entries for one in some]))
    return SaidEntries(some[0].at, *columns, np.concatenate([one.places for one in some]), np.concatenate([one.times for one in some]))
