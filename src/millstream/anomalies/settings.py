"""What a detector is told: the length of a bucket and of a season, and when a series is remarkable.

Rules
1. A series is cut into buckets of one length. A record belongs to the bucket that its timestamp falls into, so the result of a window, whose timestamp is
   its last moment, belongs to that of its window. Buckets are numbered from the beginning of 1970, UTC.
2. A season has a whole number of buckets, of which there are at least eight. Its history is kept in slots, at most `MOST_SLOTS` of them: hours, where the
   season is a day.
3. What follows from the rest is worked out once, here, and not in each bucket.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import msgspec

from millstream.core.time import END, Duration, duration
from millstream.errors import DefinitionError

COUNTS, GAUGE = "counts", "gauge"
MOST_SLOTS = 24
DAYS = 7  # seasons in a week
PARTS = 8  # of a season, in the history of the week
MOST_PATIENCE = 100  # buckets that are told to be zero, one after the other, if nobody says how many
MOST_CAUGHT_UP = 10_000  # buckets that are taken for zero when a series comes back


class SeriesRules(msgspec.Struct, frozen=True, dict=True):
    """Lengths are in milliseconds of event time.

    patience: for how many buckets a series of counts that falls silent gets zeros, before anybody knows whether it comes back. until: when the traffic ends,
    if that is known: from there on there are no zeros. rarity: how many buckets there are, of what is usual, for one alarm (gauges).
    """

    kind: str
    width: int
    season: int
    weekly: bool = False
    patience: int = 0
    until: int = END
    rarity: float = 2_000.0

    @staticmethod
    def of(
        kind: str,
        bucket: Duration,
        season: Duration = "1d",
        *,
        weekly: bool = False,
        patience: Duration | None = None,
        until: int | None = None,
        rarity: float = 2_000,
    ) -> SeriesRules:
        """The rules, checked."""
        if kind not in (COUNTS, GAUGE):
            raise DefinitionError(
                f"detect(kind={kind!r}): use {COUNTS!r}, for numbers of events, or {GAUGE!r}, for values that are measured"
            )
        width, whole = duration(bucket), duration(season)
        if width <= 0 or whole % width or whole < 8 * width:
            raise DefinitionError(f"detect(bucket={bucket!r}, season={season!r}): a season is a whole number of buckets, at least eight")
        if rarity < 20:
            raise DefinitionError(f"detect(rarity={rarity!r}): one alarm in so many buckets, at least 20")
        silent = min(whole // width // 4, MOST_PATIENCE) if patience is None else -(-duration(patience) // width)
        return SeriesRules(kind, width, whole, weekly, silent, END if until is None else until, float(rarity))

    @cached_property
    def buckets(self) -> int:
        """In a season."""
        return self.season // self.width

    @cached_property
    def slots(self) -> int:
        """In a season: the largest number that divides it, if there is one that is large enough."""
        fitting = [count for count in range(PARTS, MOST_SLOTS + 1) if self.buckets % count == 0]
        return max(fitting, default=min(MOST_SLOTS, self.buckets))

    def slot(self, bucket: int) -> int:
        """The number of a bucket's slot, counted from 1970."""
        return bucket * self.slots // self.buckets

    def slot_end(self, bucket: int) -> int:
        """The first bucket behind a bucket's slot."""
        return -(-(self.slot(bucket) + 1) * self.buckets // self.slots)

    def caught_up_from(self, bucket: int) -> int:
        """The oldest bucket that is taken for zero when a series comes back at this one."""
        return bucket - min(self.buckets, MOST_CAUGHT_UP)


def as_fields(fields: Any, key: Any) -> dict[str, Any]:
    """What a result says of its key: the fields that the key was made of, or `key`."""
    if not fields:
        return {"key": key}
    return {fields[0]: key} if len(fields) == 1 else dict(zip(fields, key, strict=True))


def tracked(forecasts: bool | Collection[Any], key: Any) -> bool:
    """Whether forecasts of a key are told."""
    return forecasts if isinstance(forecasts, bool) else key in forecasts
