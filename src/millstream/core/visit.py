"""A visit: one key in one epoch, with all its records and due timers. What hooks ask for is kept here until the row is written.

The step owns one Visit and binds it to key after key; a computation's methods are its public face. Rules that this file keeps:

1. A production's timestamp is not older than its cause's (MillWheel §4.5: otherwise it could be late behind its own cause), unless a
   hold has kept time back for it, or the cause is a low-watermark timer: one at t may say t - 1, the last moment of a window that ends at t. It fires
   first in an epoch in which the low watermark went from at most t - 1 to at least t, so that is late for nobody. And it is never older than what the
   computation's streams have promised, unless it says that it may be late. Where none is given and the cause is older than that (a late record, a
   timer set in the past), it is what was promised.
2. A production's id follows from computation, key, cause and ordinal, so a retry makes the same id. A hook that gives one itself answers for that.
3. Timers are a set of (time, tag) per kind: setting one twice is setting it once.
4. A hold keeps the output watermark at a timestamp until it is released, or its timer fires. It cannot take back what was promised:
   an older one is moved up to that. When event time ends, that is still what was promised before: the end itself is no timestamp.
5. A call that is refused changes nothing.
6. What `later` gathers belongs to the step. A visit that is undone takes its part out again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any

from millstream.core.backfill import Chunk
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_text
from millstream.core.keyspace import STATE_HOLD, Holds, Row, TimerSet
from millstream.core.outcome import Times, Wiring
from millstream.core.record import Production, Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK

OWN: Any = object()  # the key at hand
NO_TAG: Any = object()
FINISH = "finish"  # the kind of cause that finish_key has
EPOCH = "epoch"  # the kind of cause that finish_epoch has

BEHIND = "behind"  # a scan has been at this row
NOW = "now"  # it is at this row in this epoch
AHEAD = "ahead"  # it will come


class Visit:
    """The key at hand. What `__init__` sets stays from key to key, what `begin` sets is the key's."""

    __slots__ = (
        "builds",
        "cause",  # the record or timer at hand
        "circling",  # part of a cycle
        "counted",  # the cause that ordinals count for
        "decode",
        "default_stream",
        "due",  # low-watermark timers that are due, latest first; may hold some cancelled since
        "encode",
        "epoch",
        "firings",  # of this key so far
        "gathered",  # (name, value, timestamp) for finish_epoch
        "gatherer",  # the row that gathered first
        "guards",  # those that are on
        "held",  # the oldest hold of this key that was in force in this epoch, or END
        "holds",  # (kind, time, tag) of a timer, or STATE_HOLD: what it holds
        "judge_late",  # for computations that judge lateness themselves: what becomes of the record at hand
        "key",
        "last_tag",  # of the low-watermark timer without a hold that was set last; NO_TAG: there is none, or it may be gone
        "last_time",
        "least",  # no production may be older
        "low",  # timers by low watermark
        "low_watermark",
        "name",
        "named_streams",  # those whose records need an id
        "next_due",  # the time of the last of `due`, or END
        "now",
        "ordinals",  # productions per stream so far
        "productions",
        "promised",  # no hold may be older
        "row_key",
        "same_key_streams",
        "scans",  # by name: what a scan comes to in this epoch
        "streams",
        "tallies",
        "wall",  # timers by wall clock
        "wall_time",  # the event time that a wall-clock timer, or the end of a visit, stands for
    )

    def __init__(self, wiring: Wiring, times: Times, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.builds = times.builds
        self.circling = wiring.circling
        self.default_stream = wiring.streams[0] if len(wiring.streams) == 1 else None
        self.encode, self.decode = encode, decode  # values, as the pipeline's codec has it
        self.epoch = times.epoch
        self.gathered: list[tuple[Hashable, Any, int]] = []
        self.gatherer = b""
        self.guards: Guards = ALL_GUARDS
        self.scans: dict[str, Chunk] = {}
        self.tallies: dict[str, int] = {}
        self.judge_late: Callable[[Record], None]
        self.last_time = END
        self.least = times.least
        self.low_watermark = times.low_watermark
        self.name = wiring.name
        self.named_streams = frozenset(wiring.streams) if wiring.named is None else wiring.named
        self.now = times.now
        self.productions: list[Production] = []
        self.promised = times.promised
        self.same_key_streams = wiring.same_key
        self.streams = frozenset(wiring.streams)

    def begin(self, key: Any, row_key: bytes, row: Row | None) -> None:
        """Binds a key: its timers and holds as its row has them."""
        self.key = key
        self.row_key = row_key
        self.cause: Any = None
        self.counted: Any = None
        self.ordinals: dict[str, int]
        self.firings = 0
        self.due: list[tuple[int, str]] = []
        self.next_due = END
        self.last_tag: Any = NO_TAG
        self.held = END
        if row is None:
            self.low: TimerSet = set()
            self.wall: TimerSet = set()
            self.holds: Holds = {}
            return
        low = row.low
        self.low = set(low)
        self.wall = set(row.wall)
        if low and low[0][0] <= self.low_watermark:
            due = self.due = low[: bisect_left(low, (self.low_watermark + 1,))]
            due.reverse()
            self.next_due = low[0][0]
        if row.holds:
            self.holds = {(of, time, tag): hold for hold, of, time, tag in row.holds}
            self.held = row.holds[0][0]
        else:
            self.holds = {}

    # --- what hooks ask for

    def set_timer(self, tag: str, time: int, kind: str, hold: int | None) -> None:
        if time.__class__ is not int or tag.__class__ is not str or not BEGINNING < time < END:
            _check_timer("set_timer", tag, time)
        entry = (time, tag)
        if kind == LOW_WATERMARK:
            if hold is not None:
                self._hold_timer(entry, kind, hold, time <= self.low_watermark)
            else:
                self.last_time, self.last_tag = entry
            if entry not in self.low:
                self.low.add(entry)
                if time <= self.low_watermark:
                    due = self.due
                    due.append(entry)
                    if len(due) > 1:
                        due.sort(reverse=True)
                    self.next_due = due[-1][0]
        elif kind == WALL_CLOCK:
            if hold is not None:
                self._hold_timer(entry, kind, hold, time <= self.now)
            self.wall.add(entry)
        else:
            raise ValueError(f"kind={kind!r}: use ms.LOW_WATERMARK or ms.WALL_CLOCK")

    def _hold_timer(self, entry: tuple[int, str], kind: str, hold: int, due: bool) -> None:
        """A timer's hold, if all of it is in order. A timer that is due fires in this visit, so it may hold what productions of this epoch may have."""
        time, tag = entry
        if not _is_time(hold):
            raise ValueError(f"set_timer({tag!r}, {time}, hold={hold!r}): the hold must be an int, milliseconds since 1970")
        if self.circling and (hold < time or kind != LOW_WATERMARK):
            raise ValueError(
                f"set_timer({tag!r}, {time}, hold={hold}): {self.name} is part of a cycle, whose low watermark would wait for the hold, and the timer "
                f"for the low watermark. In a cycle a timer can hold its own time at the earliest."
            )
        hold = max(hold, self.least if due else self.promised)
        self.holds[kind, time, tag] = hold
        self.held = min(self.held, hold)

    def cancel_timer(self, tag: str, time: int | None, kind: str) -> None:
        if kind not in (LOW_WATERMARK, WALL_CLOCK):
            raise ValueError(f"kind={kind!r}: use ms.LOW_WATERMARK or ms.WALL_CLOCK")
        _check_timer("cancel_timer", tag, 0 if time is None else time)
        timers = self.low if kind == LOW_WATERMARK else self.wall
        gone = [(time, tag)] if time is not None else [entry for entry in timers if entry[1] == tag]
        timers.difference_update(gone)
        self.last_tag = NO_TAG
        if self.holds:
            for entry in gone:
                self.holds.pop((kind, *entry), None)

    def hold(self, timestamp: int) -> int:
        if not _is_time(timestamp):
            raise ValueError(f"hold({timestamp!r}): the timestamp must be an int, milliseconds since 1970")
        if self.circling:
            raise ValueError(f"hold({timestamp}): {self.name} is part of a cycle, whose low watermark would wait for the hold")
        timestamp = max(timestamp, self.promised if self.promised < END else self.least)
        self.holds[STATE_HOLD] = timestamp
        self.held = min(self.held, timestamp)
        return timestamp

    def release(self) -> None:
        self.holds.pop(STATE_HOLD, None)

    def later(self, name: Hashable, value: Any) -> None:
        if not self.gathered:
            self.gatherer = self.row_key
        cause = self.cause
        if cause.__class__ is Record:
            caused = cause.timestamp
        else:
            caused = cause.time if cause.kind == LOW_WATERMARK else self.wall_time
        self.gathered.append((name, value, caused))

    def tally(self, name: str, n: int = 1) -> None:
        self.tallies[name] = self.tallies.get(name, 0) + n

    def scanned(self, name: str) -> str:
        """Where a scan is, seen from the key at hand."""
        begins, comes = self.scans[name]
        if begins is None or self.row_key < begins:
            return BEHIND
        return NOW if comes is None or self.row_key <= comes else AHEAD

    def caused(self) -> int:
        cause = self.cause
        if cause.__class__ is Record:
            return cause.timestamp  # type: ignore[no-any-return]
        return cause.time if cause.kind == LOW_WATERMARK else self.wall_time  # type: ignore[no-any-return]

    def produce(
        self,
        value: Any,
        *,
        key: Any = OWN,
        timestamp: int | None = None,
        stream: str | None = None,
        id: str | Record | None = None,
        late: bool = False,
    ) -> None:
        cause = self.cause
        if cause.__class__ is Record:
            caused = cause.timestamp
        else:
            caused = cause.time if cause.kind == LOW_WATERMARK else self.wall_time
        if timestamp is None:
            timestamp = caused if late or caused >= self.least else self.least
        elif timestamp.__class__ is not int or not BEGINNING < timestamp < END:
            raise ValueError(f"produce(timestamp={timestamp!r}): give milliseconds as an int")
        elif (
            timestamp < caused
            and timestamp < self.held
            and not (timestamp == caused - 1 and cause.__class__ is Timer and cause.kind == LOW_WATERMARK)
        ):
            raise ValueError(
                f"produce(timestamp={timestamp}) is older than what caused it ({caused}): a production may not go back in event time, "
                f"unless a hold (set_timer(..., hold=), self.hold) has kept time back for it"
            )
        elif timestamp < self.least and not late:
            raise ValueError(
                f"produce(timestamp={timestamp}) is below the low watermark that {self.name} has promised ({self.least}): it would be late wherever "
                f"it goes. Give a newer timestamp, or hold the watermark back in time (set_timer(..., hold=), self.hold)"
            )
        if stream is None:
            if self.default_stream is None:
                known = ", ".join(sorted(self.streams)) or "none"
                raise ValueError(f"{self.name} has several streams or none ({known}): say which with produce(..., stream=)")
            stream = self.default_stream
        elif stream not in self.streams:
            known = ", ".join(sorted(self.streams)) or "none"
            raise ValueError(f"{self.name} does not produce a stream {stream!r}; it produces: {known}")
        if key is OWN:
            key = self.key
        elif key is not self.key and (
            (None if key is None else key_text(key).encode()) != self.row_key
            and stream in self.same_key_streams  # (1,) == (True,), but their texts differ
        ):
            raise ValueError(
                f"produce(key={key!r}) on stream {stream!r}: its consumer gives no key of its own and so runs on the producer's. "
                f"Give that consumer key=lambda record: record.key; it then goes through the shuffle."
            )
        encode = self.encode  # on a line of its own: Python calls a slot's function faster that way
        try:
            body = encode(value)
        except Exception as error:
            raise ValueError(f"the value produced on stream {stream!r} cannot be encoded: {error}") from error
        if id is not None:
            id = self._given_id(id, stream)
        else:
            id = self.production_id(stream) if stream in self.named_streams else ""
        self.productions.append(Production(stream, key, timestamp, id, body))

    def _given_id(self, id: str | Record, stream: str) -> str:
        """An id that a hook has given, or that of a record, which is read only where somebody needs it."""
        if id.__class__ is Record:
            return id.id if stream in self.named_streams else ""  # type: ignore[union-attr]
        if id.__class__ is not str or not id:
            raise ValueError(f"produce(id={id!r}): an id is a str that is not empty, or a record")
        return id  # type: ignore[return-value]

    def production_id(self, stream: str) -> str:
        """Rule 2."""
        cause = self.cause
        if self.counted is not cause:
            self.counted, self.ordinals = cause, {}
        ordinal = self.ordinals[stream] = self.ordinals.get(stream, -1) + 1
        if cause.__class__ is Record:
            of = f"record/{cause.stream}/{cause.id}"
        else:  # the same timer may be set and fire again, in the same epoch or a later one
            of = f"timer/{cause.kind}/{cause.time}/{cause.tag}/{self.epoch}/{self.firings}"
        digest = blake2b(self.row_key, digest_size=16)
        digest.update(f"\0{self.name}\0{stream}\0{of}\0{ordinal}".encode())
        return digest.hexdigest()

    # --- what the step asks for

    def finish(self, newest: int) -> Timer:
        """Begins the end of the visit. newest: the timestamp of the newest record."""
        cause = self.cause
        if cause.__class__ is Timer:
            newest = max(newest, self.caused())
        elif cause is None and newest == BEGINNING:  # neither records nor timers: a scan
            newest = self.low_watermark if BEGINNING < self.low_watermark < END else self.now
        self.wall_time = newest
        self.cause = end = Timer(newest, "", FINISH)
        return end

    def finish_step(self) -> None:
        """Begins the end of the step: no key, and a cause that is as old as the oldest and as new as the newest of what was gathered."""
        self.begin(None, self.gatherer, None)
        times = [timestamp for _, _, timestamp in self.gathered]
        self.wall_time, self.held = max(times), min(times)
        self.cause = Timer(self.wall_time, "", EPOCH)

    def next_low(self) -> Timer | None:
        """Takes out the earliest low-watermark timer that is due; None if it was cancelled since."""
        due = self.due
        self.last_tag = NO_TAG
        entry = due.pop()
        self.next_due = due[-1][0] if due else END
        try:
            self.low.remove(entry)
        except KeyError:
            return None
        time, tag = entry
        return Timer(time, tag, LOW_WATERMARK, self.holds.pop((LOW_WATERMARK, time, tag), None) if self.holds else None)

    def next_wall(self) -> Timer | None:
        """Takes out the earliest wall-clock timer that is due; None if there is none."""
        entry = min(self.wall, default=None)
        if entry is None or entry[0] > self.now:
            return None
        self.wall.discard(entry)
        self.wall_time = self.low_watermark if BEGINNING < self.low_watermark < END else entry[0]
        hold = self.holds.pop((WALL_CLOCK, *entry), None) if self.holds else None
        return Timer(entry[0], entry[1], WALL_CLOCK, hold)

    def forget(self, timer: Timer) -> None:
        """A timer has fired, whatever came of it."""
        (self.low if timer.kind == LOW_WATERMARK else self.wall).discard((timer.time, timer.tag))
        self.holds.pop((timer.kind, timer.time, timer.tag), None)


class Saved:
    """A visit as it was before a hook."""

    __slots__ = ("_due", "_gathered", "_held", "_holds", "_low", "_next_due", "_productions", "_tallies", "_wall", "row_key")

    def __init__(self, visit: Visit) -> None:
        self.row_key = visit.row_key
        self._low, self._wall, self._due = set(visit.low), set(visit.wall), list(visit.due)
        self._next_due, self._holds, self._held = visit.next_due, dict(visit.holds), visit.held
        self._productions, self._gathered, self._tallies = len(visit.productions), len(visit.gathered), dict(visit.tallies)

    def put_back(self, visit: Visit) -> None:
        visit.low, visit.wall, visit.due = set(self._low), set(self._wall), list(self._due)
        visit.next_due, visit.holds, visit.held, visit.last_tag = self._next_due, dict(self._holds), self._held, NO_TAG
        del visit.productions[self._productions :]
        del visit.gathered[self._gathered :]
        visit.tallies = dict(self._tallies)


def _check_timer(call: str, tag: str, time: int) -> None:
    if not _is_time(time):
        raise ValueError(f"{call}({tag!r}, {time!r}): the time must be an int, milliseconds since 1970")
    if not isinstance(tag, str):
        raise ValueError(f"{call}({tag!r}, ...): the tag must be a str")


def _is_time(given: Any) -> bool:
    return given.__class__ is int and BEGINNING < given < END
