"""The step: one epoch of one computation on one shard. Value in, value out.

In: the committed entries of the shard, the epoch's times, the records that arrived. Out: a delta, productions, counts.

Rules
1. A key is visited once per epoch, with all its records and due timers, so its row changes once (MillWheel §4.1: rows are atomic).
2. Canonical order within a key is event time: a timer at t fires after every record older than t and before the rest; ties among
   records go by id, then stream. Keys with records come first, then those with due timers alone, each in the order of the row keys.
   A retry therefore repeats itself.
3. A record is late if it is older than the low watermark *before* the epoch; timers fire up to the low watermark *of* the epoch.
   What came in with the very records that move time is not late, and no timer fires before them.
4. Wall-clock timers fire after event time has moved, in order of time, against the epoch's fixed clock. Whatever a hook makes
   due is fired in the same visit, up to `MAX_FIRINGS`, where a loop is assumed.
5. A row that equals a fresh one (default state, no timers, no sub-rows) is deleted.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.core.codec import Codec
from millstream.core.computation import Computation
from millstream.core.keys import key_of
from millstream.core.layout import (
    LOW_TIMER,
    ROW,
    WALL_TIMER,
    NoEntries,
    Row,
    Store,
    after,
    decode_row,
    encode_row,
    sub_prefix,
    timer_entry,
    timer_row_key,
    timer_time,
    timers_until,
)
from millstream.core.mapstate import MapState
from millstream.core.record import Batch, Production, Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK
from millstream.errors import HookError

MAX_FIRINGS = 1_000_000


class Times(msgspec.Struct, frozen=True):
    """The times of one computation in one epoch. Invariant: late_before <= low_watermark."""

    now: int
    late_before: int
    low_watermark: int
    epoch: int = 0


class Arrivals(msgspec.Struct):
    """The records for one shard in canonical order.

    keys[g] is the key text of group g, whose records stand at positions bounds[g] to bounds[g+1]; position i is the record
    `index[i]` of `batches[source[i]]` (of `batches[0]` where source is None).
    """

    keys: Sequence[str]
    bounds: Sequence[int]
    timestamps: Sequence[int]
    index: Sequence[int]
    batches: Sequence[Batch]
    source: Sequence[int] | None = None

    @classmethod
    def none(cls) -> Arrivals:
        """No records: an epoch in which only time moves."""
        return cls([], [0], [], [], [])

    @classmethod
    def of(cls, records: Iterable[tuple[str, int, str, Batch, int]]) -> Arrivals:
        """From (key text, timestamp, id, batch, index) in any order."""
        rows = sorted(records, key=lambda row: (row[0], row[1], row[2], row[3].stream))
        keys: list[str] = []
        bounds: list[int] = []
        batches: dict[int, tuple[int, Batch]] = {}
        for at, row in enumerate(rows):
            if not keys or keys[-1] != row[0]:
                keys.append(row[0])
                bounds.append(at)
            batches.setdefault(id(row[3]), (len(batches), row[3]))
        bounds.append(len(rows))
        return cls(
            keys, bounds, [row[1] for row in rows], [row[4] for row in rows],
            [batch for _, batch in batches.values()], [batches[id(row[3])][0] for row in rows],
        )  # fmt: skip


class Counts(msgspec.Struct):
    """What a step did, for status and manifest."""

    records: int = 0
    late: int = 0
    fired: int = 0
    touched: int = 0
    keys: int = 0  # rows added minus rows removed
    timers: int = 0  # timers added minus timers removed
    next_low: int | None = None  # earliest timer left, if any
    next_wall: int | None = None


class Outcome(msgspec.Struct):
    """The result of a step: the delta (None deletes), the productions in order, the counts."""

    delta: dict[bytes, bytes | None]
    productions: list[Production]
    counts: Counts


class StateKind:
    """How the state of a computation class is made, encoded and decoded. Worked out once per worker process."""

    def __init__(self, computation: type[Computation] | Computation, codec: Codec) -> None:
        self.fresh: Callable[[], Any] = computation.State
        self.encode = codec.encoder()
        self.is_map = computation.State is MapState
        sample = self.fresh()
        fields: Any = getattr(sample, "__struct_fields__", None) or getattr(sample, "__dataclass_fields__", ())
        self.map_fields = [name for name in fields if isinstance(getattr(sample, name), MapState)]
        for name in self.map_fields:
            getattr(sample, name).bind(NoEntries(), b"", self.encode, self.encode)
        self.decode = codec.decoder(object if self.is_map else computation.State)
        self.decode_sub = codec.decoder(object)
        self.empty = b"" if self.is_map else self.encode(sample)

    def maps(self, state: Any) -> list[tuple[str, MapState]]:
        """The MapStates in a state, with the names of their fields."""
        if self.is_map:
            return [("", state)]
        return [(name, getattr(state, name)) for name in self.map_fields]


class Step:
    """Runs one computation on one shard for one epoch. Use once."""

    def __init__(
        self,
        name: str,
        computation: Computation,
        kind: StateKind,
        store: Store,
        times: Times,
        streams: Sequence[str],
        encode_value: Callable[[Any], bytes],
        same_key_streams: frozenset[str] = frozenset(),
        named_streams: frozenset[str] | None = None,
    ) -> None:
        self.name = name
        self.computation = computation
        self.kind = kind
        self.store = store
        self.times = times
        self.delta: dict[bytes, bytes | None] = {}
        self.counts = Counts()
        self.firings_until = MAX_FIRINGS
        self.has_maps = kind.is_map or bool(kind.map_fields)
        c = computation
        c.low_watermark = times.low_watermark
        c.now = times.now
        c._name = name
        c._epoch = times.epoch
        c._streams = frozenset(streams)
        c._default_stream = streams[0] if len(streams) == 1 else None
        c._encode = encode_value
        c._same_key_streams = same_key_streams
        c._named_streams = frozenset(streams) if named_streams is None else named_streams
        c._productions = []

    def run(self, arrivals: Arrivals) -> Outcome:
        """Visits every key that has records or a due timer."""
        times, counts = self.times, self.counts
        due: dict[bytes, None] = {}
        for kind, until in ((LOW_TIMER, times.low_watermark), (WALL_TIMER, times.now)):
            if until > BEGINNING:
                due.update((timer_row_key(entry), None) for entry, _ in self.store.scan(*timers_until(kind, until)))
        bounds = arrivals.bounds
        visit = self._visit
        for group, text in enumerate(arrivals.keys):
            row_key = text.encode()
            due.pop(row_key, None)
            visit(row_key, text, arrivals, bounds[group], bounds[group + 1])
        none = Arrivals.none()
        for row_key in sorted(due):
            visit(row_key, row_key.decode(), none, 0, 0)
        counts.records = len(arrivals.timestamps)
        counts.touched = len(arrivals.keys) + len(due)
        counts.next_low = self._earliest(LOW_TIMER, times.low_watermark)
        counts.next_wall = self._earliest(WALL_TIMER, times.now)
        return Outcome(self.delta, self.computation._productions, counts)

    def _visit(self, row_key: bytes, text: str, arrivals: Arrivals, at: int, stop: int) -> None:
        c, kind, counts = self.computation, self.kind, self.counts
        row_entry = ROW + row_key
        raw = self.store.get(row_entry)
        if raw is None:
            before = kind.empty
            low: set[tuple[int, str]] = set()
            wall: set[tuple[int, str]] = set()
            low_before = wall_before = None
            timers_before = 0
        else:
            row = decode_row(raw)
            before = row.state
            low, wall = set(row.low), set(row.wall)
            low_before = row.low[0][0] if row.low else None
            wall_before = row.wall[0][0] if row.wall else None
            timers_before = len(low) + len(wall)
        c.key = key = key_of(text)
        c._row_key = row_key
        c._low, c._wall = low, wall
        c._counted = None
        c._cause = None  # type: ignore[assignment]
        c._firings_before = counts.fired
        self.firings_until = counts.fired + MAX_FIRINGS
        until = c.low_watermark
        if low_before is not None and low_before <= until:
            c._due = sorted([entry for entry in low if entry[0] <= until], reverse=True)
            c._next_due = low_before
        else:
            c._due = []
            c._next_due = END
        try:
            c.state = kind.fresh() if raw is None or kind.is_map else kind.decode(before)
            if self.has_maps:
                for field, sub in kind.maps(c.state):
                    sub.bind(self.store, sub_prefix(row_key, field), kind.encode, kind.decode_sub)
            if at < stop:
                timestamps, index, batches, source = arrivals.timestamps, arrivals.index, arrivals.batches, arrivals.source
                late_before = self.times.late_before
                while at < stop and timestamps[at] < late_before:
                    c._cause = record = Record(key, timestamps[at], batches[source[at] if source else 0], index[at])
                    counts.late += 1
                    c.process_late_record(record)
                    at += 1
                process = c.process_record
                batch = batches[0]
                for position in range(at, stop):
                    time = timestamps[position]
                    while c._next_due <= time:
                        self._fire_low()
                    if source is not None:
                        batch = batches[source[position]]
                    c._cause = record = Record(key, time, batch, index[position])
                    process(record)
            if c._next_due != END or c._wall:
                self._fire_rest()
            self._write(row_key, row_entry, raw, low_before, wall_before, timers_before)
        except HookError:
            raise
        except Exception as error:
            raise self._blame(error) from error

    def _write(
        self, row_key: bytes, row_entry: bytes, raw: bytes | None, low_before: int | None, wall_before: int | None, timers_before: int
    ) -> None:
        c, kind, counts, delta = self.computation, self.kind, self.counts, self.delta
        low, wall = sorted(c._low), sorted(c._wall)
        alive = bool(low or wall)
        if self.has_maps:
            for field, sub in kind.maps(c.state):
                prefix = sub_prefix(row_key, field)
                if not sub.is_bound:
                    sub.take_over(self.store, prefix, kind.encode, kind.decode_sub)
                elif not sub.belongs_to(prefix):
                    raise ValueError(f"the MapState in {field!r} is another field's: maps cannot change places. Copy the entries instead.")
                delta.update(sub.changes())
                alive = alive or not sub.is_empty()
        encoded = b"" if kind.is_map else kind.encode(c.state)
        alive = alive or encoded != kind.empty
        counts.timers += len(low) + len(wall) - timers_before
        if alive:
            new = encode_row(Row(encoded, low, wall))
            if new != raw:
                delta[row_entry] = new
                counts.keys += raw is None
        elif raw is not None:
            delta[row_entry] = None
            counts.keys -= 1
        low_now = low[0][0] if low else None
        if low_now != low_before:
            if low_before is not None:
                delta[timer_entry(LOW_TIMER, low_before, row_key)] = None
            if low_now is not None:
                delta[timer_entry(LOW_TIMER, low_now, row_key)] = b""
        wall_now = wall[0][0] if wall else None
        if wall_now != wall_before:
            if wall_before is not None:
                delta[timer_entry(WALL_TIMER, wall_before, row_key)] = None
            if wall_now is not None:
                delta[timer_entry(WALL_TIMER, wall_now, row_key)] = b""

    def _fire_low(self) -> None:
        """Fires the earliest low-watermark timer that is due, unless it was cancelled, and says when the next one is."""
        c = self.computation
        entry = c._due.pop()
        c._next_due = c._due[-1][0] if c._due else END
        if entry in c._low:
            c._low.discard(entry)
            self._fire(Timer(entry[0], entry[1], LOW_WATERMARK))

    def _fire_rest(self) -> None:
        c = self.computation
        while True:
            if c._next_due != END:
                self._fire_low()
            else:
                entry = min(c._wall, default=None)
                if entry is None or entry[0] > c.now:
                    return
                c._wall.discard(entry)
                c._wall_time = c.low_watermark if BEGINNING < c.low_watermark < END else entry[0]
                self._fire(Timer(entry[0], entry[1], WALL_CLOCK))

    def _fire(self, timer: Timer) -> None:
        self.computation._cause = timer
        self.counts.fired += 1
        self.computation._nth_firing = self.counts.fired
        if self.counts.fired > self.firings_until:
            raise RuntimeError(f"more than {MAX_FIRINGS} timers fired in one visit: a timer keeps setting one that is already due")
        self.computation.process_timer(timer)

    def _earliest(self, kind: bytes, fired_until: int) -> int | None:
        """The earliest timer left: in the store beyond what was fired, and not deleted; or new in the delta."""
        delta = self.delta
        start = timers_until(kind, fired_until)[1] if fired_until > BEGINNING else kind
        stored = next((e for e, _ in self.store.scan(start, after(kind)) if delta.get(e, b"") is not None), None)
        fresh = min((e for e, value in delta.items() if value is not None and e.startswith(kind)), default=None)
        left = [timer_time(entry) for entry in (stored, fresh) if entry is not None]
        return min(left, default=None)

    def _blame(self, error: Exception) -> HookError:
        c = self.computation
        trace = "".join(traceback.format_exception(error))
        handling = ""
        if c._cause is not None:
            try:
                handling = f"  while handling: {c._cause!r}\n"
            except Exception as unreadable:
                handling = f"  while handling a record at {getattr(c._cause, 'timestamp', None)} whose value cannot be read: {unreadable}\n"
        return HookError(
            f"computation {self.name!r}, key {c.key!r}: {type(error).__name__}: {error}\n{handling}"
            f"  The epoch was not committed; nothing is lost. Mend the code or the input and run again.\n{trace}"
        )
