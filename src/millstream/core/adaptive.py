"""Adaptive edges: weak while the consumer keeps up, stored while it is slow or has failed (MillWheel §6.1.3: a straggler's producers checkpoint).

Rules
1. An edge begins to store in the epoch after one in which its consumer took longer than `slow_after`; at once, within the same epoch, if the
   consumer failed.
2. It goes back to weak delivery after `CALM` epochs with records in a row in which the consumer took less than half of that: no
   flapping around the limit.
3. The decision is kept in the manifest with its reason. It changes when productions arrive, never what they are.
"""

from __future__ import annotations

import msgspec

CALM = 3


class EdgeState(msgspec.Struct):
    """An adaptive edge after an epoch: whether it stores in the next one, why, and for how many epochs its consumer has been quick."""

    stored: bool = False
    why: str = ""
    calm: int = 0
    was_stored: bool = False  # in this epoch


def decide(before: EdgeState, stored: bool, why: str, millis: float | None, slow_after: int) -> EdgeState:
    """What an edge does in the next epoch. `stored` and `why`: what it did in this one; `millis`: the consumer's longest task, None if it had no records."""
    if millis is None:
        return EdgeState(stored, why, before.calm, stored)
    if millis > slow_after:
        return EdgeState(True, f"its consumer took {millis:.0f} ms, more than {slow_after} ms", 0, stored)
    if not stored:
        return EdgeState(False, "", 0, stored)
    calm = before.calm + 1 if millis < slow_after / 2 else 0
    return EdgeState(calm < CALM, why if calm < CALM else "", calm if calm < CALM else 0, stored)
