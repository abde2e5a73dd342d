"""Computation: the class that users write. One instance serves one shard for one epoch, one key at a time.

The step binds `key` and `state` before it calls a hook and reads `state`, timers and productions after the key's last hook of the
epoch. The rules of timers, holds and productions are kept by `core/visit.py`.

Hooks, in their order: `process_record` (or `process_late_record`), `process_timer` and `process_expiry` as time has it; `finish_key` once per
visited key, behind them; `finish_epoch` once per shard and epoch, behind all keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from millstream.core.record import Record, Timer
from millstream.core.time import LOW_WATERMARK
from millstream.core.visit import OWN, Visit

RETURNED = "a hook returned a value, or is a generator: hooks return nothing. To send something on, call self.produce(value)."


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
    #: True: records older than the low watermark come to `process_record` like all others, and count as late only if it says so (`late`).
    judges_lateness: bool = False

    #: True: the whole shard's rows come at once, to `run_columns`, and no hook is called (`operators/`).
    in_columns: bool = False

    #: The key that the hook is called for.
    key: Any
    #: The key's state. Change it in place or assign a new one.
    state: Any
    #: This computation's low watermark: no record with an older timestamp is still expected.
    low_watermark: int
    #: The low watermark before the epoch: what is older was late when it came. BEGINNING where nothing can be.
    late_before: int
    #: The epoch's wall clock in milliseconds, the same on every retry.
    now: int

    _visit: Visit  # of the step that binds this instance

    def process_record(self, record: Record) -> None:
        """Called for every record on time, in order of (timestamp, id) within the epoch."""
        if type(self).process_records is Computation.process_records:
            raise NotImplementedError(f"{type(self).__name__} has inputs but no process_record")
        self.process_records(iter((record,)))

    def process_records(self, records: Iterator[Record]) -> None:
        """Instead of `process_record`, for those who loop themselves: called with the records of the key up to the next timer that is due, in order, at least
        one. Calls of `produce` and the like are about the record that was taken last. All must be taken. How records are cut into calls must not matter: where
        rows expire or dead letters are looked for, they come one by one."""
        raise NotImplementedError

    def process_timer(self, timer: Timer) -> None:
        """Called once for every timer, in order of time."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no process_timer")

    def process_late_record(self, record: Record) -> None:
        """Called for a record older than the low watermark. The default drops it; the engine counts it either way."""

    def late(self, record: Record) -> None:
        """Says that the record at hand is late, where `judges_lateness` leaves that to the hook: it is counted and goes where `late=` of its input says
        (`process_late_record` where that says nothing), as any late record does. It must not have touched the state."""
        self._visit.judge_late(record)

    def finish_key(self) -> None:
        """Called once for every key that was visited in the epoch, behind its records and timers: for what is to be said once, however many records came.

        What it produces has by default the timestamp of the newest of them. If it raises and there are dead letters, what it did is undone, and what
        the records did stays."""

    def process_expiry(self) -> None:
        """Called before a row goes that nothing has come to for the time that `expire=` says. It may read the state and produce; its cause is a timer of
        that time. All that it leaves in the state goes."""

    def finish_epoch(self, gathered: Sequence[tuple[Hashable, Any, int]]) -> None:
        """Called once per shard and epoch, if any key has called `later`: for what is to be sent once for many keys.

        gathered: (name, value, timestamp of the cause), in the order of the calls. There is no key and no state here: it may only produce, and not on
        a stream whose consumer takes over the producer's key. It is about no single record, so what it raises fails the epoch."""

    def later(self, name: Hashable, value: Any) -> None:
        """Hands something to `finish_epoch`. It belongs to the epoch: a retry begins with nothing, and what a dead letter undoes is taken out again.
        The value must not change any more."""
        self._visit.later(name, value)

    def tally(self, name: str, n: int = 1) -> None:
        """Adds to a number that `status` shows for this computation. It is committed with the epoch, so a retry counts once."""
        self._visit.tally(name, n)

    def set_timer(self, tag: str, time: int, kind: str = LOW_WATERMARK, *, hold: int | None = None) -> None:
        """Asks for `process_timer` at this low watermark, or at this wall-clock time with `kind=ms.WALL_CLOCK`.

        Timers with different tags or times stand side by side; a time that has passed is due at once. hold: until the timer fires, the
        output watermark stays at this timestamp, so that what the timer will produce with it is late for nobody."""
        visit = self._visit
        if time == visit.last_time and tag == visit.last_tag and hold is None and kind == LOW_WATERMARK and time.__class__ is int:
            return  # nearly always, where many records share a timer
        visit.set_timer(tag, time, kind, hold)

    def cancel_timer(self, tag: str, time: int | None = None, kind: str = LOW_WATERMARK) -> None:
        """Takes back the timer with this tag and time, or all with this tag. Nothing happens if there is none."""
        self._visit.cancel_timer(tag, time, kind)

    def hold(self, timestamp: int) -> int:
        """Keeps the output watermark at a timestamp on behalf of this key's state, until `release`. Returns the timestamp in force: what has been
        promised already cannot be taken back. A key has one such hold; a second call moves it."""
        return self._visit.hold(timestamp)

    def release(self) -> None:
        """Ends this key's hold. Nothing happens if there is none."""
        self._visit.release()

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
        """Emits a record. Key and timestamp are those of the record or timer at hand unless given.

        id: instead of the one that follows from the cause: a text, which must be the same on every retry and no other record's, or a record, whose id
        it takes over.
        late: the production may be older than `output_watermark`; whoever reads it then has a late record.
        """
        self._visit.produce(value, key=key, timestamp=timestamp, stream=stream, id=id, late=late)

    @property
    def cause(self) -> Record | Timer:
        """The record or timer that the hook at hand was called for. In `finish_key` and `finish_epoch`, a Timer whose kind is "finish" or "epoch"."""
        return self._visit.cause  # type: ignore[no-any-return]

    @property
    def output_watermark(self) -> int:
        """What this computation's streams have promised: a production with an older timestamp is refused, unless it says late=True."""
        return self._visit.least


class Forward(Computation):
    """Hands an injected stream on to its sinks, keeping nothing."""

    State = type(None)

    def process_record(self, record: Record) -> None:
        self.produce(record.value, key=None, timestamp=record.timestamp, id=record)

    def process_late_record(self, record: Record) -> None:
        self.produce(record.value, key=None, timestamp=record.timestamp, id=record, late=True)  # to a sink a record is what it is
