"""Arrivals: the records for one shard of one computation in one epoch, in canonical order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millstream.core.record import Batch
from millstream.core.rejected import Rejected, unwrapped


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
    rejected: Sequence[Rejected] = ()

    def anew(self) -> Arrivals:
        """A copy, with values that no hook has changed."""
        return msgspec.structs.replace(self, batches=[batch.anew() for batch in self.batches])

    @classmethod
    def none(cls) -> Arrivals:
        """No records: an epoch in which only time moves."""
        return cls([], [0], [], [], [])

    @classmethod
    def of(cls, records: Iterable[tuple[Any, Any, Any, Batch, int]], ordered: bool = True) -> Arrivals:
        """From (key text, timestamp, id, batch, index) in any order. Without `ordered`, a key's records stay as they come.

        A record without a key text is a rejected one, and its value is wrapped.
        """
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
