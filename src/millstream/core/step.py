"""The step: one epoch of one computation on one shard. Value in, value out.

In: the committed entries of the shard, the epoch's times, the records that arrived. Out: a delta, productions, counts.

Rules
1. A key is visited once per epoch, with all its records and due timers, so its row changes once (MillWheel §6.2: rows are atomic).
2. Canonical order within a key is event time: a timer at t fires after every record older than t and before the rest; ties among
   records go by id, then stream. Keys with records come first, then those with due timers alone, each in the order of the row keys.
   A retry is therefore deterministic.
3. A record is late if it is older than the low watermark *before* the epoch; timers fire up to the low watermark *of* the epoch.
   What came in with the very records that move time is not late, and no timer fires before them.
4. Wall-clock timers fire after event time has moved, in order of time, against the epoch's fixed clock. Whatever a hook makes
   due is fired in the same visit, up to `MAX_FIRINGS`, where a loop is assumed.
5. A row that equals a fresh one (default state, no timers, no sub-rows, no hold) is deleted.
6. At most `MAX_DUE` keys are visited for their timers alone, those with the earliest timers; the rest has its turn in the next epoch, and
   holds the output watermark until then. So a jump of the watermark over millions of keys needs no more memory than an epoch.
7. A late record goes where its input says: nowhere, to `process_late_record`, or to a stream. It is counted in any case. A computation that judges
   lateness itself gets it as any other, and sends it the same way with `late`; if its hook then raises, the record is a dead letter and not in that stream.
8. A hook that raises fails the epoch; or, where the computation has a stream of dead letters, the record or timer goes there and all
   that it changed (state, timers, holds, productions) is undone. The visit is then begun anew, this time with a copy of the state before each
   hook, and with values that no hook has changed: pipelines pay for that only where something fails.
9. A state that would not come back equal in the next epoch is an error of the hook that left it. It is noticed at the end of the visit;
   a second visit, with a look after each hook, then finds the one that did it.
10. A hook returns nothing. One that returns something, or yields, was meant to call `produce`.
11. `finish_key` ends a visit, and is part of it. `finish_epoch` ends the step, if anything was gathered; it is about no single record, so it fails the
    epoch if it raises, and finds nothing gathered by what a dead letter has undone.
12. A scan visits every row once, in the order of row keys, a chunk per epoch. How far it comes in an epoch is settled before the first visit, so
    that a hook can tell a row that the scan has been at from one that it will come to. A row that is visited anyway is not visited twice.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import msgspec

from millstream.core.arrivals import Arrivals, Rejected, wrong_time
from millstream.core.backfill import scan_entry, settled
from millstream.core.computation import RETURNED, Computation
from millstream.core.expiry import EXPIRE, Expiry
from millstream.core.keys import key_of
from millstream.core.keyspace import (
    HOLD,
    LOW_TIMER,
    ROW,
    WALL_TIMER,
    Row,
    Store,
    decode_row,
    due_timers,
    encode_fields,
    stored,
    sub_prefix,
)
from millstream.core.mapstate import MapState
from millstream.core.outcome import DROP, HOOK, Counts, LateRecord, Outcome, Times, Wiring
from millstream.core.record import Production, Record, Timer, described, shown
from millstream.core.record_runs import process_runs
from millstream.core.statekind import StateKind
from millstream.core.time import BEGINNING, END
from millstream.core.timer_index import TimerIndex
from millstream.core.visit import Saved, Visit
from millstream.errors import HookError, InputError

MAX_FIRINGS = 1_000_000
MAX_DUE = 200_000
LAST_LATE = 5  # late records that are shown
_PORTION = 512  # rows that are read at once


class Step:
    """Runs one computation on one shard for one epoch. Use once."""

    def __init__(
        self,
        wiring: Wiring,
        computation: Computation,
        kind: StateKind,
        store: Store,
        times: Times,
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
    ) -> None:
        self.wiring = wiring
        self.name = wiring.name
        self.computation = computation
        self.kind = kind
        self.store = store
        self.times = times
        self.delta: dict[bytes, bytes | None] = {}
        self.index = TimerIndex(store)
        self.counts = Counts()
        self.has_maps = kind.is_map or bool(kind.map_fields)
        self.careful = False  # a hook of the key at hand has raised, or left a state that cannot be kept
        self.searching = False  # which of them it was
        # A key as it was before a hook: its visit, its state, the changes of its maps.
        self.saved: tuple[Saved, bytes, list[dict[bytes, Any]]] | None = None
        self.visit = Visit(wiring, times, encode_value, decode_value)
        self.expiry = None if wiring.expire is None else Expiry(self, *wiring.expire)
        kind_of = type(computation)
        self.loops = kind_of.process_records is not Computation.process_records
        self.finishes = kind_of.finish_key is not Computation.finish_key
        self.late_before = BEGINNING if computation.judges_lateness else times.late_before
        self.visit.judge_late = self._judge_late
        computation._visit = self.visit
        if kind_of.produce is Computation.produce:
            computation.produce = self.visit.produce  # type: ignore[method-assign]  # one call less for every production
        if self.finishes:
            computation.later, computation.tally = self.visit.later, self.visit.tally  # type: ignore[method-assign]
        computation.low_watermark = times.low_watermark
        computation.late_before = times.late_before
        computation.now = times.now

    def run(self, arrivals: Arrivals) -> Outcome:
        """Visits every key that has records or a due timer."""
        due, left = self.due_keys()
        visit = self._visit if self.wiring.dead_letters is None else self._forgiving
        if arrivals.rejected:
            self.reject(arrivals.rejected)
        if self.times.scans:
            due.update(self._backfill_scans())
        row_keys = [text.encode() for text in arrivals.keys]
        for text, (row_key, raw), (at, stop) in zip(arrivals.keys, self._stored(row_keys), pairwise(arrivals.bounds), strict=True):
            visit(row_key, text, raw, arrivals, at, stop)
        none, alone = Arrivals.none(), sorted(due.keys() - set(row_keys) if due else ())
        for row_key, raw in self._stored(alone):
            visit(row_key, row_key.decode(), raw, none, 0, 0)
        if self.visit.gathered:
            self._finish_epoch()
        return self.concluded(len(arrivals.timestamps), len(row_keys) + len(alone), left)

    def _stored(self, row_keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """Row keys with their rows, as they are stored."""
        for at in range(0, len(row_keys), _PORTION):
            some = row_keys[at : at + _PORTION]
            yield from zip(some, stored(self.store, [ROW + row_key for row_key in some]), strict=True)

    def due_keys(self) -> tuple[dict[bytes, None], dict[bytes, bytes]]:
        """The keys with due timers, and where the index goes on behind them."""
        times = self.times
        low, low_left = due_timers(self.store, LOW_TIMER, times.low_watermark, MAX_DUE)
        wall, wall_left = due_timers(self.store, WALL_TIMER, times.now, MAX_DUE)
        return dict.fromkeys([*low, *wall]), {LOW_TIMER: low_left, WALL_TIMER: wall_left}

    def concluded(self, records: int, touched: int, left: dict[bytes, bytes]) -> Outcome:
        """What the step has come to. left: where the index of timers goes on behind what was visited."""
        counts, times = self.counts, self.times
        counts.tallies = self.visit.tallies
        counts.records = records
        counts.touched = touched
        counts.next_low, next_key = self.index.earliest(LOW_TIMER, left[LOW_TIMER])
        counts.next_wall, _ = self.index.earliest(WALL_TIMER, left[WALL_TIMER])
        counts.held, held_by = self.index.earliest(HOLD, HOLD)
        if held_by is not None:
            counts.holder = self._holder(held_by)
        elif counts.next_low is not None and counts.next_low <= times.low_watermark and next_key is not None:
            counts.holder = f"key {key_of(next_key.decode())!r}"
        self.delta.update(self.index.changes)
        return Outcome(self.delta, self.visit.productions, counts)

    def _backfill_scans(self) -> dict[bytes, None]:
        """Rule 12: settles how far every scan comes in this epoch, and gives the rows that are to be visited for it."""
        rows: dict[bytes, None] = {}
        for name, limit in self.times.scans.items():
            one = settled(self.store, name, limit)
            self.visit.scans[name] = one.chunk
            self.counts.scanned[name] = (len(one.rows), one.ended)
            if one.says is not None:
                self.delta[scan_entry(name)] = one.says
            rows.update(dict.fromkeys(one.rows))
        return rows

    def _finish_epoch(self) -> None:
        """Rule 11."""
        c, visit = self.computation, self.visit
        c.key = c.state = None
        visit.finish_step()
        try:
            if c.finish_epoch(visit.gathered) is not None:  # type: ignore[func-returns-value]
                raise TypeError(RETURNED)
            if visit.low or visit.wall or visit.holds:
                raise ValueError("finish_epoch is called for no key: it cannot set timers or holds")
        except Exception as error:
            raise self._blame(error) from error

    def _forgiving(self, row_key: bytes, text: str, raw: bytes | None, arrivals: Arrivals, at: int, stop: int) -> None:
        """A visit in which what makes a hook raise becomes a dead letter."""
        counts, productions = self.counts, self.visit.productions
        before = (
            len(productions),
            msgspec.structs.replace(
                counts, late_by=dict(counts.late_by), last_late=list(counts.last_late), last_dead=list(counts.last_dead)
            ),
        )
        gathered, tallies = len(self.visit.gathered), dict(self.visit.tallies)
        try:
            self._visit(row_key, text, raw, arrivals, at, stop)
            return
        except HookError:
            pass  # once more, outside of the handler: what is raised then has no past
        del productions[before[0] :]
        del self.visit.gathered[gathered:]
        self.counts, self.visit.tallies = before[1], tallies
        self.careful = True
        try:
            self._visit(row_key, text, raw, arrivals.anew(), at, stop)
        finally:
            self.careful = False
            self.saved = None

    def _visit(self, row_key: bytes, text: str, raw: bytes | None, arrivals: Arrivals, at: int, stop: int) -> None:
        """raw: the key's row as it is stored."""
        c, visit, kind = self.computation, self.visit, self.kind
        begin, writing = at, False
        row = None if raw is None else decode_row(raw)
        c.key = key = text if text > "\1" else key_of(text)  # those of any other type begin with NUL
        visit.begin(key, row_key, row)
        stored = row
        try:
            c.state = kind.fresh() if row is None or kind.is_map else kind.decode(row.state)
            stored = None
            if self.has_maps:
                for field, sub in kind.maps(c.state):
                    sub.bind(self.store, sub_prefix(row_key, field), kind.encode_sub, kind.decode_sub)
            if self.expiry is not None:
                self.expiry.begin(row)
            if at < stop:
                timestamps, index, batches, source = arrivals.timestamps, arrivals.index, arrivals.batches, arrivals.source
                late_before = self.late_before
                while at < stop and timestamps[at] < late_before:
                    self._late(Record(key, timestamps[at], batches[source[at] if source else 0], index[at]))
                    at += 1
                if self.loops and not self.careful and self.expiry is None:
                    at = process_runs(self, arrivals, at, stop)
                process: Callable[[Record], Any] = c.process_record if not self.careful else partial(self._carefully, c.process_record)
                process = process if self.expiry is None else self.expiry.guarded(process)
                batch = batches[0]
                for position in range(at, stop):
                    time = timestamps[position]
                    if visit.next_due <= time:
                        self.fire_until(time)
                    if source is not None:
                        batch = batches[source[position]]
                    visit.cause = record = Record(key, time, batch, index[position])
                    if process(record) is not None:
                        raise TypeError(RETURNED)
            if visit.next_due != END or visit.wall:
                self._fire_rest()
            if self.finishes:
                self.call(lambda _: c.finish_key(), visit.finish(arrivals.timestamps[stop - 1] if begin < stop else BEGINNING))
            writing = True
            self._write(row_key, raw, row)
        except HookError:
            raise
        except Exception as error:
            if stored is not None:
                raise HookError(f"computation {self.name!r}, key {key!r}: {kind.older(stored.state, error)}") from error
            if writing and not self.careful and self.wiring.dead_letters is None:  # rule 9; with dead letters the second visit comes anyway
                self.careful = self.searching = True
                self._visit(row_key, text, raw, arrivals.anew(), begin, stop)
            raise self._blame(error) from error

    def call(self, hook: Callable[[Any], None], cause: Record | Timer) -> None:
        """Calls a hook, with or without a look at what it does."""
        if self.careful:
            self._carefully(hook, cause)
        elif hook(cause) is not None:  # type: ignore[func-returns-value]
            raise TypeError(RETURNED)

    def _judge_late(self, record: Record) -> None:
        if not self.computation.judges_lateness or record is not self.visit.cause:
            raise ValueError(
                "self.late(record) is for the record at hand, in process_record of a class with judges_lateness = True: others get late records in "
                "process_late_record"
            )
        self._late(record, judged=True)

    def _late(self, record: Record, judged: bool = False) -> None:
        """judged: a hook is under way, which says so."""
        c, counts = self.computation, self.counts
        stream = record.stream
        counts.late += 1
        counts.late_by[stream] = counts.late_by.get(stream, 0) + 1
        counts.last_late = [
            *counts.last_late[1 - LAST_LATE :],
            LateRecord(stream, repr(c.key)[:100], record.timestamp, self.times.late_before, shown(record)),
        ]
        self.visit.cause = record
        way = self.wiring.late.get(stream, HOOK)
        if way == HOOK:
            if self.careful and not judged:
                self._carefully(c.process_late_record, record)
            elif c.process_late_record(record) is not None:  # type: ignore[func-returns-value]
                raise TypeError(RETURNED)
        elif way != DROP:
            self._emit(way, {**described(record), "low_watermark": self.times.late_before})
            if not judged:
                self.saved = None

    # --- dead letters

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Records that no hook can be called with: dead letters under the key "", or the end of the epoch."""
        visit, times = self.visit, self.times
        known: dict[bytes, int] = {}
        for one in sorted(rejected, key=Rejected.place):
            if self.wiring.dead_letters is None:
                raise InputError(
                    f"stream {one.stream!r} into computation {self.name!r}: {one.why}, in the record {repr(one.value)[:500]}. Nothing of this epoch was "
                    f"committed. Correct the source, or send such records to a stream with compute(..., on_error=ms.DEAD_LETTER)."
                )
            record = {"stream": one.stream, "value": one.value, "timestamp": one.timestamp, "id": one.id}
            body = self._encoded({**record, "computation": self.name, "error": f"InputError: {one.why}", "traceback": ""})
            nth = known[body] = known.get(body, -1) + 1
            name = blake2b(f"{self.name}\0rejected\0{nth}\0".encode() + body, digest_size=16).hexdigest()
            caused = one.timestamp if wrong_time(one.timestamp) is None else times.low_watermark
            if not BEGINNING < caused < END:  # type: ignore[operator]
                caused = times.now
            visit.productions.append(Production(self.wiring.dead_letters, "", max(visit.least, caused), name, body))  # type: ignore[type-var, arg-type]
            self.counts.add_dead(one.stream, "", one.timestamp, f"InputError: {one.why}")

    def _carefully(self, hook: Callable[[Any], None], cause: Record | Timer) -> None:
        """Calls a hook; if it raises, or leaves a state that cannot be encoded, undoes what it did and writes a dead letter."""
        visit = self.visit
        if self.saved is None or self.saved[0].row_key != visit.row_key:
            self.saved = self._save()
        try:
            if hook(cause) is not None:  # type: ignore[func-returns-value]
                raise TypeError(RETURNED)
            self.saved = self._save()
        except Exception as error:
            if self.searching:
                raise
            self._restore(*self.saved)
            if isinstance(cause, Timer):
                visit.forget(cause)
            self.write_dead_letter(cause, error)
            self.saved = self._save()

    def write_dead_letter(self, cause: Record | Timer, error: Exception) -> None:
        """Sends what made a hook raise to the stream for that."""
        visit = self.visit
        assert self.wiring.dead_letters is not None
        visit.counted, visit.cause = None, cause
        about, why = described(cause), f"{type(error).__name__}: {error}"
        self.counts.add_dead(about["stream"] or "", repr(visit.key), about["timestamp"], why)
        told = {"computation": self.name, "error": why, "traceback": "".join(traceback.format_exception(error))}
        self._emit(self.wiring.dead_letters, {**about, **told})

    def _save(self) -> tuple[Saved, bytes, list[dict[bytes, Any]]]:
        c, kind = self.computation, self.kind
        maps = [sub.copied() for sub in self._maps()] if self.has_maps else []
        encoded = b"" if kind.is_map else kind.encode(c.state)
        if kind.check is not None:
            kind.check(c.state, encoded)
        return Saved(self.visit), encoded, maps

    def _restore(self, saved: Saved, state: bytes, maps: list[dict[bytes, Any]]) -> None:
        c, kind = self.computation, self.kind
        c.state = MapState() if kind.is_map else kind.decode(state)
        if self.has_maps:
            for (field, sub), changes in zip(kind.maps(c.state), maps, strict=True):
                sub.bind(self.store, sub_prefix(self.visit.row_key, field), kind.encode_sub, kind.decode_sub)
                sub.put_back(changes)
        saved.put_back(self.visit)

    def _emit(self, stream: str, value: dict[str, Any]) -> None:
        """A production of the system's own, caused by what is at hand."""
        visit, body = self.visit, self._encoded(value)
        caused = visit.wall_time if value["timestamp"] is None else value["timestamp"]
        visit.productions.append(Production(stream, visit.key, max(visit.least, caused), visit.production_id(stream), body))

    def _encoded(self, value: dict[str, Any]) -> bytes:
        """A value that cannot be encoded is told as a text."""
        try:
            return self.visit.encode(value)
        except Exception:
            return self.visit.encode({**value, "value": repr(value.get("value"))})

    def _write(self, row_key: bytes, raw: bytes | None, row: Row | None) -> None:
        c, visit, kind, counts, delta = self.computation, self.visit, self.kind, self.counts, self.delta
        if self.expiry is not None:
            self.expiry.lift()
        low = sorted(visit.low) if visit.low else []
        wall = sorted(visit.wall) if visit.wall else []
        holds = sorted((hold, *of) for of, hold in visit.holds.items()) if visit.holds else []
        maps = self._maps() if self.has_maps else ()
        encoded = b"" if kind.is_map else kind.encode(c.state)
        if kind.check is not None and encoded != (kind.empty if row is None else row.state):
            kind.check(c.state, encoded)
        alive = bool(low or wall or holds) or encoded != kind.empty
        for sub in maps:
            delta.update(sub.changes())
            alive = alive or not sub.is_empty()  # asked last: it is dear to say
        newest = self.expiry.keep(low, wall) if alive and self.expiry is not None else None
        counts.fired += visit.firings
        counts.timers += len(low) + len(wall)
        if row is not None:
            counts.timers -= len(row.low) + len(row.wall)
        if alive:
            new = encode_fields((encoded, low, wall, holds) if newest is None else (encoded, low, wall, holds, newest))
            if new != raw:
                delta[ROW + row_key] = new
                counts.keys += raw is None
        elif raw is not None:
            delta[ROW + row_key] = None
            counts.keys -= 1
        low_now = low[0][0] if low else None
        low_before = row.low[0][0] if row is not None and row.low else None
        if low_now != low_before:
            self.index.move(LOW_TIMER, row_key, low_before, low_now)
        if wall or (row is not None and row.wall):
            self._index(WALL_TIMER, row_key, row.wall if row is not None else (), wall)
        if holds or (row is not None and row.holds):
            self._index(HOLD, row_key, row.holds if row is not None else (), holds)

    def _maps(self) -> list[MapState]:
        """The state's maps, each bound to its place."""
        c, kind = self.computation, self.kind
        found = []
        for field, sub in kind.maps(c.state):
            prefix = sub_prefix(self.visit.row_key, field)
            if not sub.is_bound:
                sub.take_over(self.store, prefix, kind.encode_sub, kind.decode_sub)
            elif not sub.belongs_to(prefix):
                raise ValueError(f"the MapState in {field!r} is another field's: maps cannot change places. Copy the entries instead.")
            found.append(sub)
        return found

    def _index(self, kind: bytes, row_key: bytes, before: Sequence[tuple[Any, ...]], now: Sequence[tuple[Any, ...]]) -> None:
        """Does what `_write` does for low-watermark timers, for the rarer kinds."""
        old = before[0][0] if before else None
        new = now[0][0] if now else None
        if new != old:
            self.index.move(kind, row_key, old, new)

    def _fire_rest(self) -> None:
        visit = self.visit
        while True:
            self.fire_until(END - 1)
            timer = visit.next_wall() if visit.wall else None
            if timer is None:
                return
            self._fire(timer)

    def fire_until(self, time: int) -> None:
        """Fires the low-watermark timers that are due up to a time, and what they make due up to it."""
        visit, process = self.visit, self.computation.process_timer
        is_plain = not self.careful and self.expiry is None
        while visit.next_due <= time:
            timer = visit.next_low()
            if timer is None:
                continue  # it was cancelled since
            if is_plain and timer.tag != EXPIRE and visit.firings < MAX_FIRINGS:
                visit.cause = timer
                visit.firings += 1
                if process(timer) is not None:  # type: ignore[func-returns-value]
                    raise TypeError(RETURNED)
            else:
                self._fire(timer)

    def _fire(self, timer: Timer) -> None:
        visit = self.visit
        visit.cause = timer
        visit.firings += 1
        if visit.firings > MAX_FIRINGS:
            raise RuntimeError(f"more than {MAX_FIRINGS} timers fired in one visit: a timer keeps setting one that is already due")
        if timer.tag != EXPIRE:
            self.call(self.computation.process_timer, timer)
        elif self.expiry is not None:
            self.expiry.fire(timer)

    def _holder(self, row_key: bytes) -> str:
        """For people: what of a key holds the output watermark."""
        raw = self.delta.get(ROW + row_key) or self.store.get(ROW + row_key)
        key = f"key {key_of(row_key.decode())!r}"
        if raw is None:
            return key
        _, kind, time, tag = decode_row(raw).holds[0]
        return f"the timer {tag!r} at {time} of {key}" if kind else f"the state of {key}"

    def _blame(self, error: Exception) -> HookError:
        trace = "".join(traceback.format_exception(error))
        cause, handling = self.visit.cause, ""
        if cause is not None:
            try:
                handling = f"  while handling: {cause.anew() if isinstance(cause, Record) else cause!r}\n"
            except Exception as unreadable:
                handling = f"  while handling a record at {getattr(cause, 'timestamp', None)} whose value cannot be read: {unreadable}\n"
        return HookError(
            f"computation {self.name!r}, key {self.visit.key!r}: {type(error).__name__}: {error}\n{handling}"
            f"  The epoch was not committed; nothing is lost. Fix the code or the input and run again.\n{trace}"
        )
