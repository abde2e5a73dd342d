"""Computation: the class that users write. One instance serves one shard for one epoch, one key at a time.

The step binds `key` and `state` before it calls a hook and reads `state`, timers and productions after the key's last hook of the
epoch. The rules of timers, holds and productions are kept by `core/visit.py`.
"""

from __future__ import annotations

from typing import Any

from millstream.core.record import Record, Timer
from millstream.core.time import LOW_WATERMARK
from millstream.core.visit import OWN, Visit


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

    _visit: Visit  # of the step that binds this instance

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
        if kind == LOW_WATERMARK and hold is None and (time, tag) in self._visit.low:
            return  # nearly always, where many records share a timer
        self._visit.set_timer(tag, time, kind, hold)

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

        >>> class Raw(Computation):
        ...     def process_record(self, record):
        ...         self.produce(record.value, id=record)
        """
        self._visit.produce(value, key=key, timestamp=timestamp, stream=stream, id=id, late=late)

    def _is_plain(self) -> bool:
        """Whether `produce` is the one above, so that the step may bind the visit's in its place."""
        return type(self).produce is Computation.produce

    @property
    def cause(self) -> Record | Timer:
        """The record or timer that the hook at hand was called for."""
        return self._visit.cause  # type: ignore[no-any-return]

    @property
    def output_watermark(self) -> int:
        """What this computation's streams have promised: a production with an older timestamp is refused, unless it says late=True."""
        return self._visit.least
