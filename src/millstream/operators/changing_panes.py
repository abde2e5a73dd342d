"""The window operator with results that change: `early=` tells what there is before a window ends, `lateness=` goes on telling behind its end.

    P   → the epoch up to which open windows are told, and when they are told again (`early=`)

Rules
1. A change is [prev, next, version]: what was told of a key and window before, and what there is now; None: nothing. The changes of a window chain, there is
   at most one in an epoch, and none where nothing is new. Versions ascend: the epoch, and a number within it.
2. A window is told when it ends, if something of it is not told yet; with `early`, also that long by the wall clock after the first record that is not told;
   with `lateness`, in every epoch that brings a record to it after its end. It goes when the low watermark has reached its end plus `lateness`.
3. What was told is not stored: it is worked out from the entries up to the epoch of the last telling. Of a window that has ended, that is all of them. So
   entries of before and after a telling are not merged while a window is open that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.outcome import Outcome
from millstream.core.record import Production
from millstream.core.time import END
from millstream.operators.panes import PANE, PaneStep, PaneWindow, at_end, epoch_of
from millstream.operators.partials import Partials
from millstream.operators.results import Results
from millstream.operators.rows import rows_of

MARKS = PANE  # the entry that says what is told of open windows
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int | None]).decode
NEVER = -1


class ChangingWindow(PaneWindow):
    """Tells the changes of each key and window."""

    def run_columns(self, step: Any, given: Arrivals | OperatorInput) -> Outcome:
        return ChangingStep(self, step).run(given if isinstance(given, OperatorInput) else rows_of(given))


class ChangingStep(PaneStep):
    """One epoch of it on one shard."""

    def _close(self, new: Partials) -> list[Results]:
        step, times, early = self.step, self.times, self.spec.early
        raw = self.store.get(MARKS)
        said, tick = (NEVER, None) if raw is None else _decode(raw)
        fresh, stored = dict(new.by_end()), self._stored(END)
        is_tick = tick is not None and tick <= times.now
        for start, end in self._untold(fresh, stored, said, is_tick):
            changes = list(self._changes(start, end, fresh, stored, said))
            step.counts.fired += len(changes)
            step.visit.productions += changes
        self._said, tick = (times.epoch, None) if is_tick else (said, tick)
        low, over = times.low_watermark, self.over(times.low_watermark)
        if early is not None and not is_tick and tick is None and any(self._last_end(end) > low for end in fresh):
            tick = times.now + early
        for end, names in stored.items():
            if self._last_end(end) <= over:
                for name in names:
                    self._drop(name)
        for end, table in fresh.items():
            if self._last_end(end) > over:
                self._keep(end, table)
        self._panes = [end for end in {*fresh, *stored} if self._last_end(end) > over]
        marks = _encode((self._said, tick)) if self._panes and (self._said, tick) != (NEVER, None) else None
        if marks != raw:
            step.delta[MARKS] = marks
        step.counts.next_wall = tick if self._panes else None
        return []

    def _untold(
        self, fresh: Mapping[int, Partials], stored: Mapping[int, Sequence[bytes]], said: int, is_tick: bool
    ) -> Iterator[tuple[int, int]]:
        """The windows of which something is to be told, in order of time."""
        kind, low, after = self.spec.kind, self.times.low_watermark, self.times.late_before
        panes = {*fresh, *(end for end, names in stored.items() if any(epoch_of(name) > said for name in names))}
        until = max(map(self._last_end, panes), default=low) if is_tick else low
        over = self.over(after)
        for start, end in kind.closing(panes, over, max(until, low)):  # type: ignore[union-attr]
            if end > after or any(start < pane <= end for pane in fresh):  # what has ended is told but for what is fresh
                yield start, end

    def _changes(
        self, start: int, end: int, fresh: Mapping[int, Partials], stored: Mapping[int, Sequence[bytes]], said: int
    ) -> Iterator[Production]:
        has_ended = end <= self.times.late_before
        old: list[Partials] = []
        new = [table for pane, table in fresh.items() if start < pane <= end]
        for pane in sorted(stored):
            if start < pane <= end:
                for name in stored[pane]:
                    (old if has_ended or epoch_of(name) <= said else new).append(self._table(name))
        changed = self.folded([at_end(table, end) for table in new])
        if not len(changed):
            return
        texts = changed.names.take(pa.array(np.unique(changed.codes)))
        known = (table.of_names(_among(table.names, texts)) for table in old)
        told = self.folded([at_end(table, end) for table in known if len(table)])
        before = dict(self._values(told, start, end)) if len(told) else {}
        encode = self.step.visit.encode
        stream = self.step.wiring.streams[0]
        for text, (key, time, value) in self._rows(self.folded([told, changed]) if len(told) else changed, start, end):
            prev = before.get(text)
            if prev is not None and encode(prev) == encode(value):
                continue
            about = f"\0{self.step.name}\0{stream}\0change/{start}/{end}/{self.times.epoch}"
            body = encode([prev, value, [self.times.epoch, 0]])
            yield Production(stream, key, time, blake2b(text.encode() + about.encode(), digest_size=16).hexdigest(), body)

    def _rows(self, table: Partials, start: int, end: int) -> Iterator[tuple[str, tuple[Any, int, Any]]]:
        results = self.results(table, np.zeros(len(table), np.int64), np.array([start]), np.array([end]))
        rows = zip(results.python_keys(), results.times.tolist(), results.values(), strict=True)
        return zip(table.keys.to_pylist(), rows, strict=True)

    def _values(self, table: Partials, start: int, end: int) -> Iterator[tuple[str, Any]]:
        return ((text, value) for text, (_, _, value) in self._rows(table, start, end))

    def _may_merge(self, name: bytes, end: int) -> bool:
        """Rule 3."""
        return self._said == self.times.epoch or epoch_of(name) > self._said or self._last_end(end) <= self.times.low_watermark

    def _next_end(self) -> int | None:
        """When the next window ends, or goes."""
        low, lateness = self.times.low_watermark, self.spec.lateness
        found = []
        for end in self._panes:
            ahead = self.spec.kind.next_end(end, low)  # type: ignore[union-attr]
            found.append(ahead if ahead > low else min(ahead + lateness, END))
        return min(found, default=None)


def _among(names: Any, texts: Any) -> Any:
    return pc.is_in(names, value_set=texts).to_numpy(zero_copy_only=False)
