"""Arrivals: the records for one shard of one computation in one epoch, in canonical order.

*Rejected* records are those that reach a computation, and that no key's hooks can be called with.

Rules
1. A record is rejected if it has no usable key (a column that is null, a key function that raises), no usable timestamp, no id although one was
   promised, or if its row could not be read with the source's schema.
2. What becomes of it is its computation's choice, as for a hook that raises: the epoch fails, or, with dead letters, the record goes there once
   and everything else goes on. Such a dead letter has the key "".
3. A rejected record moves no watermark and is not deduplicated.
4. On its way it has no key (None), and its value is wrapped together with the reason. So it passes through shuffles and stored productions like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.core.record import Batch
from millstream.core.time import BEGINNING, END


class Rejected(msgspec.Struct, frozen=True):
    """A record that cannot be given to a hook, and why not."""

    stream: str
    timestamp: int | None
    id: str | None
    value: Any
    why: str

    def place(self) -> tuple[str, int, str, str]:
        """Where it stands among others."""
        return self.stream, BEGINNING if self.timestamp is None else self.timestamp, self.id or "", repr(self.value)


class OperatorInput(msgspec.Struct):
    """What came for an operator that works on columns (`operators/`): the records of each input in no order, and what others have made of records already.
    folded: how many records are in the chunks. one_by_one: columns are not used, for tests of the other path. by_lot: the path was drawn, and is taken even
    where it is not worth it. ordered: makes arrivals of all records, where whoever has brought them can do that faster."""

    rows: Sequence[Any]
    rejected: Sequence[Rejected] = ()
    chunks: Sequence[bytes] = ()
    folded: int = 0
    folded_by: dict[str, int] = {}  # those, by stream
    one_by_one: bool = False
    by_lot: bool = False
    ordered: Callable[[], Arrivals] | None = None

    def by_stream(self) -> dict[str, int]:
        """How many records there are, by stream."""
        found = dict(self.folded_by)
        for one in self.rows:
            found[one.stream] = found.get(one.stream, 0) + len(one)
        return found


def wrapped(value: Any, why: str) -> dict[str, Any]:
    """A rejected record's value on its way (rule 4)."""
    return {"rejected": why, "value": value}


def unwrapped(stream: str, timestamp: int | None, id: str | None, value: dict[str, Any]) -> Rejected:
    """What `wrapped` was made of, where it has arrived."""
    return Rejected(stream, timestamp, id or None, value["value"], value["rejected"])


def wrong_time(time: Any) -> str | None:
    if time is None:
        return "its timestamp is null"
    if not BEGINNING < time < END:
        return f"its timestamp {time} is the {'beginning' if time <= BEGINNING else 'end'} of time, which no record can have"
    return None


class Arrivals(msgspec.Struct):
    """The records for one shard in canonical order, by position: i is the record `index[i]` of `batches[source[i]]`."""

    keys: Sequence[str]  # the key text of every group
    bounds: Sequence[int]  # the records of group g stand at positions bounds[g] to bounds[g+1]
    timestamps: Sequence[int]
    index: Sequence[int]
    batches: Sequence[Batch]
    source: Sequence[int] | None = None  # None: all are of batches[0]
    rejected: Sequence[Rejected] = ()

    def by_stream(self) -> dict[str, int]:
        """How many records there are, by stream."""
        counted = Counter(self.source) if self.source is not None else {0: len(self.timestamps)}
        found: dict[str, int] = {}
        for at, batch in enumerate(self.batches):
            found[batch.stream] = found.get(batch.stream, 0) + counted.get(at, 0)
        return found

    def anew(self) -> Arrivals:
        """A copy, with values that no hook has changed."""
        return msgspec.structs.replace(self, batches=[batch.anew() for batch in self.batches])

    @classmethod
    def none(cls) -> Arrivals:
        return cls([], [0], [], [], [])

    @classmethod
    def of(cls, records: Iterable[tuple[Any, Any, Any, Batch, int]], ordered: bool = True) -> Arrivals:
        """From (key text, timestamp, id, batch, index) in any order. Those without a key text are rejected, and their values wrapped. Without `ordered`, a
        key's records stay as they come."""
        records = list(records)
        rejected = [unwrapped(b.stream, time, id, b.anew().value(at)) for text, time, id, b, at in records if text is None]
        if rejected:
            records = [row for row in records if row[0] is not None]
        rows = sorted(records, key=lambda row: (row[0], row[1], row[2], row[3].stream) if ordered else (row[0],))
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
            keys,
            bounds,
            [row[1] for row in rows],
            [row[4] for row in rows],
            [batch for _, batch in batches.values()],
            [batches[id(row[3])][0] for row in rows],
            rejected,
        )
