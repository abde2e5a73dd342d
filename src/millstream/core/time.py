"""Time: integer milliseconds, event time and wall clock alike.

Event time has a beginning and an end. A low watermark that stands at `BEGINNING` has not moved yet (nothing was seen);
one at `END` says that the input is over and every timer may fire. Both are ordinary points of the time line, so that
minimum and comparison need no special case.
"""

from __future__ import annotations

import re

from millstream.errors import DefinitionError

BEGINNING = -(2**63)
END = 2**63 - 1

LOW_WATERMARK = "low_watermark"
WALL_CLOCK = "wall_clock"

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$")


def duration(text: str | int | float) -> int:
    """Milliseconds of a duration.

    >>> duration("500ms"), duration("2s"), duration("1.5m"), duration(250)
    (500, 2000, 90000, 250)
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return int(text)
    match = _DURATION.match(str(text).lower())
    unit = match and _UNITS.get(match.group(2))
    if not match or not unit:
        raise DefinitionError(f"{text!r} is not a duration. Write a number and a unit, such as '500ms', '2s', '10m', '1h', '1d'.")
    return int(float(match.group(1)) * unit)


def describe(time: int | None) -> str:
    """A point in time for people: ISO 8601, or 'beginning' and 'end'."""
    if time is None:
        return "-"
    if time <= BEGINNING:
        return "beginning"
    if time >= END:
        return "end"
    import datetime

    try:
        at = datetime.datetime.fromtimestamp(time / 1000, tz=datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{time} ms"
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time % 1000:03d}Z"
