"""Rejected records: those that reach a computation, and that no key's hooks can be called with.

Rules
1. A record is rejected if it has no usable key (a column that is null, a key function that raises), no usable timestamp, no id although one was
   promised, or if its row could not be read with the source's schema.
2. What becomes of it is its computation's choice, as for a hook that raises: the epoch fails, or, with dead letters, the record goes there once
   and everything else goes on. Such a dead letter has the key "".
3. A rejected record moves no watermark and is not deduplicated.
4. On its way it has no key (None), and its value is wrapped together with the reason. So it passes through shuffles and stored productions like any other.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.time import BEGINNING, END


class Rejected(msgspec.Struct, frozen=True):
    """A record that cannot be given to a hook, and why not."""

    stream: str
    timestamp: int | None
    id: str | None
    value: Any
    why: str

    @property
    def order(self) -> tuple[str, int, str, str]:
        """Canonical order, so that a retry is deterministic."""
        return self.stream, BEGINNING if self.timestamp is None else self.timestamp, self.id or "", repr(self.value)


def wrapped(value: Any, why: str) -> dict[str, Any]:
    """A rejected record's value on its way (rule 4)."""
    return {"rejected": why, "value": value}


def unwrapped(stream: str, timestamp: int | None, id: str | None, value: dict[str, Any]) -> Rejected:
    """What `wrapped` was made of, where it has arrived."""
    return Rejected(stream, timestamp, id or None, value["value"], value["rejected"])


def wrong_time(time: Any) -> str | None:
    """What is wrong with a timestamp; None if nothing is."""
    if time is None:
        return "its timestamp is null"
    if not BEGINNING < time < END:
        return f"its timestamp {time} is the {'beginning' if time <= BEGINNING else 'end'} of time, which no record can have"
    return None
