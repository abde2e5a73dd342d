"""The session operator with results that change, key by key: `early=` tells what there is before a session ends, `lateness=` goes on telling behind its end.

Rules
1. Which records belong together, and which are late, is as for sessions that are told once (`session.py`), but that a session stays open for `lateness`
   after its end.
2. A session is told when it ends, with `early` also that long by the wall clock after the first record that is not told, and with `lateness` when a record
   comes to it after its end. A change is [prev, next, version]; nothing is told where nothing is new (`changing_panes.py`).
3. The identity of a session is the key and its start. Where sessions become one, the oldest start lives on: the others go, [prev, None], when it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.computation import Computation
from millstream.core.links import linked
from millstream.core.record import Record, Timer, with_value
from millstream.core.time import END, WALL_CLOCK
from millstream.operators.panes import over_at
from millstream.operators.window_spec import WindowSpec

_WAKE, _EARLY = "wake", "early"


class Sessions(msgspec.Struct):
    """Those of a key, in order of time, each as [first, last, part of each reducer, ...]. told: by start, what was told last. said: how many changes."""

    open: list[list[Any]] = []
    told: dict[int, Any] = {}
    said: int = 0


class ChangingSessions(Computation):
    State = Sessions
    judges_lateness = True

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.gap = spec.kind.gap  # type: ignore[union-attr]
        self._chains = {stream: linked(links, with_value) for stream, links in spec.links.items()}

    def process_record(self, record: Record) -> None:
        chain = self._chains.get(record.stream)
        for one in chain(record) if chain is not None else (record,):
            self._take(one)

    def _take(self, record: Record) -> None:
        time = record.timestamp
        is_held = any(one[0] <= time < self._end(one) for one in self.state.open)
        if time < over_at(self.late_before, self.spec.lateness) and not is_held:
            self.late(record)
            return
        order = [time, record.id]
        parts = [
            reducer.lift_at(record.value, order) if getattr(reducer, "of", None) in (None, record.stream) else None
            for reducer in self.spec.reducers.values()
        ]
        session: list[Any] = [time, time, *parts]
        others = []
        for one in self.state.open:
            if one[0] < self._end(session) and session[0] < self._end(one):
                session = self._joined(one, session)
            else:
                others.append(one)
        self.state.open = sorted([*others, session], key=lambda one: one[0])
        end = self._end(session)
        # One that has ended is told behind all records of the visit that are as old; one that ends now, at its end.
        self._wake_at(max(end, self.late_before))
        if self.spec.early is not None and end > self.low_watermark and not self._visit.wall:
            self.set_timer(_EARLY, self.now + self.spec.early, WALL_CLOCK)

    def _joined(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        reducers = self.spec.reducers.values()
        parts = [
            b if a is None else a if b is None else reducer.combine(a, b)
            for reducer, a, b in zip(reducers, one[2:], other[2:], strict=True)
        ]
        return [min(one[0], other[0]), max(one[1], other[1]), *parts]

    def _end(self, session: Sequence[Any]) -> int:
        return min(int(session[1]) + self.gap, END)

    def _wake_at(self, time: int) -> None:
        self.set_timer(_WAKE, min(time, END - 1))

    def process_timer(self, timer: Timer) -> None:
        state = self.state
        if timer.kind == WALL_CLOCK:
            for session in state.open:
                self._tell(session)
            return
        time, kept = timer.time if timer.time < END - 1 else END, []
        for session in state.open:
            end = self._end(session)
            if end <= time:
                self._tell(session)
            if end <= over_at(time, self.spec.lateness):
                state.told.pop(session[0], None)
            else:
                kept.append(session)
                self._wake_at(end if end > time else end + self.spec.lateness)
        state.open = kept
        if not kept:
            self.cancel_timer(_EARLY, kind=WALL_CLOCK)
            state.said = 0

    def _tell(self, session: Sequence[Any]) -> None:
        told, end = self.state.told, self._end(session)
        for start in sorted(start for start in told if session[0] < start < end):
            self._change(told.pop(start), None, end)
        parts = zip(self.spec.reducers.items(), session[2:], strict=True)
        key, fields = self.key, self.spec.fields
        names = ("key",) if fields is None else fields
        values = (key,) if len(names) == 1 else key if names else ()
        now = {**dict(zip(names, values, strict=True)), "start": session[0], "end": end, **{n: r.show(part) for (n, r), part in parts}}
        before = told.get(session[0])
        if before is None or self._visit.encode(before) != self._visit.encode(now):
            told[session[0]] = now
            self._change(before, now, end)

    def _change(self, prev: Any, next: Any, end: int) -> None:
        cause = self.cause
        least = max(
            self.output_watermark, cause.time - 1 if isinstance(cause, Timer) and cause.kind != WALL_CLOCK else self.output_watermark
        )
        self.state.said += 1
        self.produce([prev, next, [self._visit.epoch, self.state.said]], timestamp=max(min(end, END) - 1, least))
