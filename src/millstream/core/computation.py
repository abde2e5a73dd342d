"""Computation: the class that users write. One instance serves one shard for one epoch, one key at a time.

The step binds `key` and `state` before it calls a hook and reads `state`, timers and productions after the key's last hook of the
epoch. Rules that this file enforces:
1. A production's timestamp is not older than its cause's (MillWheel §4.5: otherwise it could be late behind its own cause), unless a
   hold has kept time back for it; and never older than what the computation's streams have promised. Where none is given and
   the cause is older than that (a late record, a timer set in the past), it is what was promised.
2. A production's id follows from computation, key, cause and ordinal, so a retry makes the same id.
3. Timers are a set of (time, tag) per kind: setting one twice is setting it once.
4. A hold keeps the output watermark at a timestamp until it is released, or its timer fires. It cannot take back what was promised:
   an older one is moved up to that. When event time ends, that is still what was promised before: the end itself is no timestamp.
5. A call that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from millstream.core.keys import key_text
from millstream.core.layout import STATE_HOLD, Holds, TimerSet
from millstream.core.record import Production, Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK

_OWN: Any = object()


class Computation:
    """User code in the context of one key.

    Subclass it, say what `State` is, and write `process_record` and, if you set timers, `process_timer`:

    >>> class Count(Computation):
    ...     State = int
    ...     def process_record(self, record):
    ...         self.state += 1
    ...         self.produce(self.state)
    """

    #: What a key's state is: a type that can be called without arguments (dict, list, int, a dataclass with defaults,
    #: a msgspec Struct, MapState). A row whose state equals `State()` and that has no timers is not kept.
    State: Any = dict
    #: How state becomes bytes: `ms.codecs.msgpack` unless this says otherwise.
    codec: Any = None

    #: The key that the hook is called for.
    key: Any
    #: The key's state. Change it in place or assign a new one.
    state: Any
    #: This computation's low watermark: no record with an older timestamp is still expected.
    low_watermark: int
    #: The epoch's wall clock in milliseconds, the same on every retry.
    now: int

    _low: TimerSet
    _wall: TimerSet
    _due: list[tuple[int, str]]  # low-watermark timers that are due, latest first; may hold some cancelled since
    _next_due: int  # the time of the last of them, or END
    _cause: Record | Timer
    _wall_time: int  # the event time that a wall-clock timer stands for
    _counted: Record | Timer | None  # the cause that _ordinals count for
    _ordinals: dict[str, int]  # productions per stream so far
    _row_key: bytes
    _epoch: int
    _nth_firing: int  # firings of the step so far,
    _firings_before: int  # and before this key
    _name: str
    _streams: frozenset[str]
    _same_key_streams: frozenset[str]
    _named_streams: frozenset[str]  # those whose records need an id
    _default_stream: str | None
    _encode: Callable[[Any], bytes]
    _productions: list[Production]
    _least: int  # no production may be older
    _promised: int  # no hold may be older
    _holds: Holds  # (kind, time, tag) of a timer, or STATE_HOLD: what it holds
    _circling: bool  # part of a cycle
    _held: int  # the oldest hold of this key that was in force in this epoch, or END

    def process_record(self, record: Record) -> None:
        """Called for every record on time, in order of (timestamp, id) within the epoch."""
        raise NotImplementedError(f"{type(self).__name__} has inputs but no process_record")

    def process_timer(self, timer: Timer) -> None:
        """Called once for every timer, in order of time."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no process_timer")

    def process_late_record(self, record: Record) -> None:
        """Called for a record older than the low watermark. The default drops it; the engine counts it either way."""

    def set_timer(self, tag: str, time: int, kind: str = LOW_WATERMARK, *, hold: int | None = None) -> None:
        """Asks for `process_timer` at this low watermark, or at this wall-clock time with `kind=ms.WALL_CLOCK`.

        Timers with different tags or times stand side by side; a time that has passed is due at once. hold: until the timer fires, the
        output watermark stays at this timestamp, so that what the timer will produce with it is late for nobody.
        """
        entry = (time, tag)
        if kind == LOW_WATERMARK:
            timers = self._low
            if hold is not None:
                self._hold_timer(entry, kind, hold, time <= self.low_watermark)
            if entry not in timers:
                self._check_timer(tag, time)
                timers.add(entry)
                if time <= self.low_watermark:
                    self._due.append(entry)
                    self._due.sort(reverse=True)
                    self._next_due = self._due[-1][0]
        elif kind == WALL_CLOCK:
            if hold is not None:
                self._hold_timer(entry, kind, hold, time <= self.now)
            if entry not in self._wall:
                self._check_timer(tag, time)
                self._wall.add(entry)
        else:
            raise ValueError(f"kind={kind!r}: use ms.LOW_WATERMARK or ms.WALL_CLOCK")

    def _hold_timer(self, entry: tuple[int, str], kind: str, hold: int, due: bool) -> None:
        """A timer's hold, if all of it is in order. A timer that is due fires in this visit, so it may hold what productions of this epoch may have."""
        time, tag = entry
        self._check_timer(tag, time)
        self._check_timer(tag, hold)
        if self._circling and (hold < time or kind != LOW_WATERMARK):
            raise ValueError(
                f"set_timer({tag!r}, {time}, hold={hold}): {self._name} is part of a cycle, whose low watermark would wait for the hold, and the timer "
                f"for the low watermark. In a cycle a timer can hold its own time at the earliest."
            )
        hold = max(hold, self._least if due else self._promised)
        self._holds[kind, time, tag] = hold
        self._held = min(self._held, hold)

    def cancel_timer(self, tag: str, time: int | None = None, kind: str = LOW_WATERMARK) -> None:
        """Takes back the timer with this tag and time, or all with this tag. Nothing happens if there is none."""
        if kind not in (LOW_WATERMARK, WALL_CLOCK):
            raise ValueError(f"kind={kind!r}: use ms.LOW_WATERMARK or ms.WALL_CLOCK")
        timers = self._low if kind == LOW_WATERMARK else self._wall
        gone = [(time, tag)] if time is not None else [entry for entry in timers if entry[1] == tag]
        timers.difference_update(gone)
        if self._holds:
            for entry in gone:
                self._holds.pop((kind, *entry), None)

    def hold(self, timestamp: int) -> int:
        """Keeps the output watermark at a timestamp on behalf of this key's state, until `release`. Returns the timestamp in force: what has been
        promised already cannot be taken back. A key has one such hold; a second call moves it."""
        self._check_timer("hold", timestamp)
        if self._circling:
            raise ValueError(f"hold({timestamp}): {self._name} is part of a cycle, whose low watermark would wait for the hold")
        timestamp = max(timestamp, self._promised if self._promised < END else self._least)
        self._holds[STATE_HOLD] = timestamp
        self._held = min(self._held, timestamp)
        return timestamp

    def release(self) -> None:
        """Ends this key's hold. Nothing happens if there is none."""
        self._holds.pop(STATE_HOLD, None)

    def produce(self, value: Any, *, key: Any = _OWN, timestamp: int | None = None, stream: str | None = None) -> None:
        """Emits a record. Key and timestamp are those of the record or timer at hand unless given."""
        cause: Any = self._cause
        if cause.__class__ is Record:
            caused = cause.timestamp
        else:
            caused = cause.time if cause.kind == LOW_WATERMARK else self._wall_time
        if timestamp is None:
            timestamp = caused if caused >= self._least else self._least
        elif timestamp.__class__ is not int or not BEGINNING < timestamp < END:
            raise ValueError(f"produce(timestamp={timestamp!r}): give milliseconds as an int")
        elif timestamp < caused and timestamp < self._held:
            raise ValueError(
                f"produce(timestamp={timestamp}) is older than what caused it ({caused}): a production may not go back in event time, "
                f"unless a hold (set_timer(..., hold=), self.hold) has kept time back for it"
            )
        elif timestamp < self._least:
            raise ValueError(
                f"produce(timestamp={timestamp}) is below the low watermark that {self._name} has promised ({self._least}): it would be late wherever "
                f"it goes. Give a newer timestamp, or hold the watermark back in time (set_timer(..., hold=), self.hold)"
            )
        if stream is None:
            if self._default_stream is None:
                known = ", ".join(sorted(self._streams)) or "none"
                raise ValueError(f"{self._name} has several streams or none ({known}): say which with produce(..., stream=)")
            stream = self._default_stream
        elif stream not in self._streams:
            known = ", ".join(sorted(self._streams)) or "none"
            raise ValueError(f"{self._name} does not produce a stream {stream!r}; it produces: {known}")
        if key is _OWN:
            key = self.key
        elif key is not self.key and (
            (None if key is None else key_text(key).encode()) != self._row_key
            and stream in self._same_key_streams  # (1,) == (True,), but their texts differ
        ):
            raise ValueError(
                f"produce(key={key!r}) on stream {stream!r}: its consumer gives no key of its own and so runs on the producer's. "
                f"Give that consumer key=lambda record: record.key; it then goes through the shuffle."
            )
        try:
            body = self._encode(value)
        except Exception as error:
            raise ValueError(f"the value produced on stream {stream!r} cannot be encoded: {error}") from error
        id = self._production_id(stream) if stream in self._named_streams else ""
        self._productions.append(Production(stream, key, timestamp, id, body))

    def _production_id(self, stream: str) -> str:
        cause: Any = self._cause
        if self._counted is not cause:
            self._counted, self._ordinals = cause, {}
        ordinal = self._ordinals[stream] = self._ordinals.get(stream, -1) + 1
        if cause.__class__ is Record:
            of = f"record/{cause.stream}/{cause.id}"
        else:  # the same timer may be set and fire again, in the same epoch or a later one
            of = f"timer/{cause.kind}/{cause.time}/{cause.tag}/{self._epoch}/{self._nth_firing - self._firings_before}"
        digest = blake2b(self._row_key, digest_size=16)
        digest.update(f"\0{self._name}\0{stream}\0{of}\0{ordinal}".encode())
        return digest.hexdigest()

    @staticmethod
    def _check_timer(tag: str, time: int) -> None:
        if time.__class__ is not int or not BEGINNING < time < END:
            raise ValueError(f"set_timer({tag!r}, {time!r}): the time must be an int, milliseconds since 1970")
        if not isinstance(tag, str):
            raise ValueError(f"set_timer({tag!r}, ...): the tag must be a str")
