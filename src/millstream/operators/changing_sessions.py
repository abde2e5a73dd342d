"""The session operator with results that change, key by key: `early=` tells what there is before a session ends, `lateness=` goes on telling behind its end.

Rules
1. Which records belong together, and which are late, is as for sessions that are told once (`session.py`), but that a session stays open for `lateness`
   after its end.
2. A session is told when it ends, with `early` also that long by the wall clock after the first record that is not told, and with `lateness` when a record
   comes to it after its end. A change is [prev, next, version]; nothing is told where nothing is new (`changing_panes.py`).
3. The identity of a session is the key and its start. Where sessions become one, the oldest start lives on: the others go, [prev, None], when it is told.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.links import linked
from millstream.core.record import Record, Timer, with_value
from millstream.core.time import END, WALL_CLOCK
from millstream.operators.panes import over_at
from millstream.operators.waking import Waking
from millstream.operators.window_spec import WindowSpec

_EARLY = "early"


class Sessions(msgspec.Struct):
    """Those of a key, in order of time, each as [first, last, starts that it has taken over, part of each reducer, ...]. news: the starts of those of which
    something is to be told, in order. told: by start, what was told last. said: how many changes."""

    open: list[list[Any]] = []
    news: list[int] = []
    told: dict[int, Any] = {}
    said: int = 0


def _first(session: Sequence[Any]) -> int:
    return session[0]  # type: ignore[no-any-return]


class ChangingSessions(Waking):
    State = Sessions
    judges_lateness = True

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.gap = spec.kind.gap  # type: ignore[union-attr]
        self._chains = {stream: linked(links, with_value) for stream, links in spec.links.items()}

    def process_record(self, record: Record) -> None:
        chain = self._chains.get(record.stream)
        made = list(chain(record)) if chain is not None else [record]
        if made and self._is_late(record.timestamp):
            self.late(record)
            return
        for one in made:
            self._take(one)

    def _is_late(self, time: int) -> bool:
        at = bisect_right(self.state.open, time, key=_first)
        return time < over_at(self.late_before, self.spec.lateness) and not (at and time < self._end(self.state.open[at - 1]))

    def _take(self, record: Record) -> None:
        time, sessions, news = record.timestamp, self.state.open, self.state.news
        at = bisect_right(sessions, time, key=_first)
        order = [time, record.id]
        parts = [
            reducer.lift_at(record.value, order) if getattr(reducer, "of", None) in (None, record.stream) else None
            for reducer in self.spec.reducers.values()
        ]
        session: list[Any] = [time, time, [], *parts]
        start, stop = at, at
        if at and time < self._end(sessions[at - 1]):
            start = at - 1
            session = self._joined(sessions[start], session)
        if at < len(sessions) and sessions[at][0] < self._end(session):
            session = self._joined(session, sessions[at])
            stop = at + 1
        for gone in sessions[start:stop]:
            if (known := bisect_left(news, gone[0])) < len(news) and news[known] == gone[0]:
                del news[known]
        insort(news, session[0])
        sessions[start:stop] = [session]
        self._wake()
        if self.spec.early is not None and self._end(session) > self.low_watermark and not self._visit.wall:
            self.set_timer(_EARLY, self.now + self.spec.early, WALL_CLOCK)

    def _joined(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        """Two sessions as one. one: the older. Its start lives on (rule 3)."""
        reducers = self.spec.reducers.values()
        parts = [
            b if a is None else a if b is None else reducer.combine(a, b)
            for reducer, a, b in zip(reducers, one[3:], other[3:], strict=True)
        ]
        starts = dict.fromkeys((*one[2], other[0], *other[2]))  # a record may have the time of any of them
        gone = [start for start in starts if start != one[0] and start in self.state.told]
        return [one[0], max(one[1], other[1]), gone, *parts]

    def _end(self, session: Sequence[Any]) -> int:
        return min(int(session[1]) + self.gap, END)

    def _wake(self) -> None:
        """Sets the timer for the next thing to do, unless there is an earlier one. One that has ended is told behind the late records of the visit."""
        state, times = self.state, []
        if state.news:
            times.append(max(self._end(self._session(state.news[0])), self.late_before))
        if state.open:
            times.append(self._end(state.open[0]) + self.spec.lateness)
        if times:
            self.wake_at(min(times))

    def _session(self, start: int) -> list[Any]:
        return self.state.open[bisect_left(self.state.open, start, key=_first)]  # type: ignore[no-any-return]

    def process_timer(self, timer: Timer) -> None:
        state, is_early = self.state, timer.kind == WALL_CLOCK
        time = timer.time if timer.time < END - 1 else END
        while state.news and (is_early or self._end(self._session(state.news[0])) <= time):
            self._tell(self._session(state.news.pop(0)))
        if is_early:
            return
        over = 0
        while over < len(state.open) and self._end(state.open[over]) <= over_at(time, self.spec.lateness):
            state.told.pop(state.open[over][0], None)
            over += 1
        del state.open[:over]
        if not state.open:
            self.cancel_timer(_EARLY, kind=WALL_CLOCK)
            state.said = 0
        self._wake()

    def _tell(self, session: list[Any]) -> None:
        told, end = self.state.told, self._end(session)
        for start in session[2]:
            self._change(told.pop(start), None, end)
        session[2] = []
        parts = zip(self.spec.reducers.items(), session[3:], strict=True)
        key, names = self.key, self.spec.key_fields
        values = (key,) if len(names) == 1 else key if names else ()
        now = {**dict(zip(names, values, strict=True)), "start": session[0], "end": end, **{n: r.show(part) for (n, r), part in parts}}
        before = told.get(session[0])
        if before is None or self._visit.encode(before) != self._visit.encode(now):
            told[session[0]] = now
            self._change(before, now, end)

    def _change(self, prev: Any, next: Any, end: int) -> None:
        self.state.said += 1
        self.produce([prev, next, [self._visit.epoch, self.state.said]], timestamp=max(min(end, END) - 1, self.least))
