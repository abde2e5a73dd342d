"""IntervalJoin: the records of two streams that are near each other in event time, in columns.

Rules
1. A pair is a left and a right record of one key with -before <= right - left <= after, both ends included.
2. A record is late if it is older than the low watermark before the epoch, less the lateness. It is counted, goes where `late=` says, and has no partner.
3. Every pair of two records that were not late comes exactly once, at the arrival of the second. Its timestamp is that of the newer one; where lateness
   has let in a record that is older than what was promised, the oldest that is still allowed.
4. With how="left" a left record that has had no partner gives one row with None when the low watermark has passed left + after + lateness: then none can
   come any more, so no such row is followed by a pair. Its timestamp is left + after + lateness. "right" does the same for right + before +
   lateness; "outer" for both. It needs no further record of that key, or of any, but time that goes on.
5. A record goes when no partner of it can come any more, with its time bucket, a sixteenth of the interval (`waiting.py`). After the last one nothing is left.
6. The next look stands in an entry of its own. It is when the first record without a partner may have to be told, or a bucket goes; it is not moved when
   that is no longer so, and is worked out again when it comes: then, what would have been told before it has been. Until then nothing is read that cannot be
   a partner.
7. Values are kept as the pipeline's codec has encoded them: what comes out is what a production of them would have carried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.computation import Computation
from millstream.core.outcome import Outcome
from millstream.core.time import END
from millstream.errors import DefinitionError
from millstream.operators.pairs import PairResults
from millstream.operators.rows import StreamRows, rows_of
from millstream.operators.waiting import NOTHING, WAITING, Side, WaitingRecords, bucket_of, joined, matched, plus, waiting

if TYPE_CHECKING:
    from millstream.core.operator_step import OperatorStep

INNER, LEFT, RIGHT, OUTER = "inner", "left", "right", "outer"
HOWS = (INNER, LEFT, RIGHT, OUTER)
LOOK = WAITING + b"N"  # when the next look is (rule 6)

_LEFT, _RIGHT = 0, 1
_SIDES = (b"l", b"r")
_LONGEST = 2**31  # of a bucket


class IntervalJoin(Computation):
    """Two inputs on one key, whose pairs come as {"left": value, "right": value}. Times are in milliseconds."""

    State = type(None)
    in_columns = True
    judges_lateness = True
    folds_ahead = False
    keeps = "the records of both sides, in columns by side and span of time; no timers"
    links: Mapping[str, Any] = {}

    def __init__(self, left_stream: str, after: int, before: int = 0, how: str = INNER, lateness: int = 0) -> None:
        if how not in HOWS:
            raise DefinitionError(f"a join with how={how!r}: use one of {', '.join(HOWS)}")
        if min(after, before, lateness) < 0:
            raise DefinitionError(f"a join with after={after}, before={before}, lateness={lateness}: none of them can be negative")
        self.left_stream = left_stream
        self.lateness = lateness
        self.reach = (after, before)  # by side: how much newer a partner may be
        self.tells = (how in (LEFT, OUTER), how in (RIGHT, OUTER))  # by side: whether a record without partner gives a row
        self.width = min(max(1, (before + after) // 16), _LONGEST)

    def stays(self, side: int) -> int:
        """How long a record of a side waits; it goes a millisecond later."""
        return min(self.reach[side] + self.lateness, END)

    def explain(self, types: Mapping[str, str]) -> list[tuple[str, str]]:
        return [("pairs", "")]

    def run_columns(self, step: OperatorStep, given: Arrivals | OperatorInput) -> Outcome:
        return JoinStep(self, step).run(given if isinstance(given, OperatorInput) else rows_of(given))


class JoinStep:
    """One epoch of a join on one shard."""

    def __init__(self, operator: IntervalJoin, step: OperatorStep) -> None:
        self.operator, self.step, self.times = operator, step, step.times
        store: Any = step.store
        self.sides = [Side(side, operator.width, store, step.delta, step.times.epoch, self._changed) for side in _SIDES]
        look = store.get(LOOK)
        self._look = None if look is None else int.from_bytes(look, "big", signed=True)

    def _changed(self, records: int) -> None:
        self.step.counts.keys += records

    def run(self, given: OperatorInput) -> Outcome:
        step = self.step
        if given.rejected:
            step.reject(given.rejected)
        step.counts.records = sum(map(len, given.rows))
        if not step.counts.records and (self._look is None or self._look > self.times.low_watermark):
            step.counts.next_low = self._look
            return Outcome(step.delta, step.visit.productions, step.counts)
        fresh = [joined([self._arrived(rows) for rows in given.rows if self._side_of(rows) == side]).in_order() for side in (_LEFT, _RIGHT)]
        found = self._pairs(fresh)
        is_due = self._look is not None and self._look <= self.times.low_watermark
        alone = [self._expired(side, fresh[side], is_due) for side in (_LEFT, _RIGHT)]
        kept = [some.take(self._expiries(side, some.times) > self.times.low_watermark) for side, some in enumerate(fresh)]
        for side, some in zip(self.sides, kept, strict=True):
            side.keep(some)
        self._look_again(kept, is_due)
        results = [self._alone(side, some) for side, some in enumerate(alone) if len(some)]
        return Outcome(step.delta, step.visit.productions, step.counts, results=[*found, *results])

    # --- records

    def _side_of(self, rows: StreamRows) -> int:
        return _LEFT if rows.stream == self.operator.left_stream else _RIGHT

    def _arrived(self, rows: StreamRows) -> WaitingRecords:
        """Records that are on time, their values encoded."""
        before = self.times.late_before
        late = rows.times < before - self.operator.lateness if before - self.operator.lateness >= -END else np.zeros(len(rows), bool)
        if late.any():
            for record in rows.where(late).records():
                self.step.put_late(record)
            rows = rows.where(~late)
        encode = self.step.visit.encode
        try:
            bodies = list(map(encode, rows.values()))
        except Exception:
            rows, bodies = self._without_failing(rows)
        return waiting(rows.keys.to_pylist(), rows.times, rows.ids(), bodies) if len(rows) else NOTHING

    def _without_failing(self, rows: StreamRows) -> tuple[StreamRows, list[bytes]]:
        """The rows without those whose value cannot be had or kept, which are dead letters, or the end of the epoch."""
        keep, bodies = np.ones(len(rows), bool), []
        for at, record in enumerate(rows.records()):
            try:
                bodies.append(self.step.visit.encode(record.value))
            except Exception as error:
                self.step.put_failed(record, error)
                keep[at] = False
        return rows.where(keep), bodies

    # --- pairs

    def _pairs(self, fresh: Sequence[WaitingRecords]) -> list[PairResults]:
        """Rule 3: new records with each other and with those that wait."""
        reach = self.operator.reach
        lefts, left_stands = self.sides[_LEFT].near(fresh[_RIGHT], reach[_LEFT], reach[_RIGHT])
        rights, right_stands = self.sides[_RIGHT].near(fresh[_LEFT], reach[_RIGHT], reach[_LEFT])
        after, before = reach
        left_of, right_of = matched(fresh[_LEFT], joined([fresh[_RIGHT], rights]), before, after)
        others_of, own_of = matched(fresh[_RIGHT], lefts, after, before)  # right records, each with the left ones that wait
        left_of = np.concatenate([left_of, own_of + len(fresh[_LEFT])])
        right_of = np.concatenate([right_of, others_of])
        both = joined([fresh[_LEFT], lefts]), joined([fresh[_RIGHT], rights])
        for side, (of, stands) in enumerate(((left_of, left_stands), (right_of, right_stands))):
            if self.operator.tells[side]:
                self._mark(side, both[side], of, fresh[side], stands)
        if not len(left_of):
            return []
        order = np.argsort(np.maximum(both[_LEFT].times[left_of], both[_RIGHT].times[right_of]), kind="stable")
        left, right = both[_LEFT].take(left_of[order]), both[_RIGHT].take(right_of[order])
        return [self._told(left.keys, np.maximum(left.times, right.times), left, right)]

    def _mark(self, side: int, some: WaitingRecords, of: Any, fresh: WaitingRecords, stands: Sequence[tuple[bytes, Any]]) -> None:
        """Notes who has had a partner: in the records themselves where they are new, else beside their chunk."""
        has = np.zeros(len(some), bool)
        has[of] = True
        fresh.paired |= has[: len(fresh)]
        new = has & ~some.paired
        at = len(fresh)
        for name, places in stands:
            mine = new[at : at + len(places)]
            at += len(places)
            if mine.any():
                self.sides[side].mark(name, places[mine])

    # --- records whose time is over

    def _expiries(self, side: int, times: Any) -> Any:
        """When records without a partner are told."""
        return plus(plus(times, self.operator.stays(side)), 1)

    def _bucket_goes(self, side: int, bucket: int) -> int:
        return min((bucket + 1) * self.operator.width + self.operator.stays(side), END)

    def _expired(self, side: int, fresh: WaitingRecords, is_due: bool) -> WaitingRecords:
        """Takes out what has expired. What has to be told of it."""
        low, found = self.times.low_watermark, []
        tells, store = self.operator.tells[side], self.sides[side]
        if is_due:
            assert self._look is not None
            last = (low - self.operator.stays(side) - 1) // self.operator.width  # the bucket of the newest that has expired
            for name in store.until(last if low < END else END):
                goes = self._bucket_goes(side, bucket_of(name)) <= low
                if tells:
                    chunk, paired = store.chunk(name), store.paired(name)
                    expiries = self._expiries(side, chunk.times)
                    found.append(chunk.take(np.flatnonzero(~paired & (expiries <= low) & (expiries >= self._look)), paired))
                    goes = goes or int(expiries.max()) <= low
                if goes:
                    store.drop(name)
        if tells:
            found.append(fresh.take(~fresh.paired & (self._expiries(side, fresh.times) <= low)))
        return joined(found)

    def _alone(self, side: int, some: WaitingRecords) -> PairResults:
        """Rule 4."""
        some = some.in_order()
        some = some.take(np.argsort(some.times, kind="stable"))
        self.step.counts.fired += len(some)
        times = np.minimum(plus(some.times, self.operator.stays(side)), END - 1)
        return self._told(some.keys, times, *((some, None) if side == _LEFT else (None, some)))

    def _told(self, keys: Any, times: Any, left: WaitingRecords | None, right: WaitingRecords | None) -> PairResults:
        step = self.step
        stream = step.wiring.streams[0]
        with_ids = stream in step.visit.named_streams
        return PairResults(step.name, stream, keys, np.maximum(times, step.visit.least), left, right, step.visit.decode, with_ids)

    # --- the next look

    def _look_again(self, kept: Sequence[WaitingRecords], is_due: bool) -> None:
        """Rule 6."""
        looks = [] if is_due or self._look is None else [self._look]
        for side, some in enumerate(kept):
            if is_due:
                looks += self._first_look(side)
            elif len(some):
                looks.append(self._bucket_goes(side, int(some.times.min()) // self.operator.width))
                if self.operator.tells[side] and not some.paired.all():
                    looks.append(int(self._expiries(side, some.times[~some.paired].min())))
        look = min(looks, default=None)
        self.step.counts.next_low = look
        if look != self._look:
            self.step.delta[LOOK] = None if look is None else look.to_bytes(8, "big", signed=True)

    def _first_look(self, side: int) -> list[int]:
        """What the oldest bucket of a side waits for."""
        store, looks = self.sides[side], []
        for name in store.oldest():
            looks.append(self._bucket_goes(side, bucket_of(name)))
            if self.operator.tells[side]:
                expiries = self._expiries(side, store.chunk(name).times[~store.paired(name)])
                ahead = expiries[expiries > self.times.low_watermark]
                if len(ahead):
                    looks.append(int(ahead.min()))
        return looks
