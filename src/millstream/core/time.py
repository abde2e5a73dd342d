"""Time: integer milliseconds, event time and wall clock alike.

Event time has a beginning and an end. A low watermark that stands at `BEGINNING` has not moved yet (nothing was seen);
one at `END` says that the input has ended and every timer may fire. Both are ordinary points of the time line, so that
minimum and comparison need no special case.
"""

from __future__ import annotations

import datetime
import re

from millstream.errors import DefinitionError

BEGINNING = -(2**63)
END = 2**63 - 1

LOW_WATERMARK = "low_watermark"
WALL_CLOCK = "wall_clock"

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAMES = {"ms": ("millisecond", "milli", "msec"), "s": ("second", "sec"), "m": ("minute", "min"), "h": ("hour", "hr"), "d": ("day",)}
_UNITS |= {name + plural: _UNITS[unit] for unit, names in _NAMES.items() for name in names for plural in ("", "s")}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$")

Duration = str | datetime.timedelta | int


def duration(given: Duration) -> int:
    """Milliseconds of a duration: a number with its unit, or a timedelta. A bare number is refused (but 0): nobody can tell its unit.

    >>> duration("500ms"), duration("2 seconds"), duration("1.5m"), duration(datetime.timedelta(seconds=3))
    (500, 2000, 90000, 3000)
    """
    if isinstance(given, datetime.timedelta):
        return given // datetime.timedelta(milliseconds=1)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if given == 0:
            return 0
        raise DefinitionError(
            f"{given!r} is not a duration, because its unit is missing: write '{given}ms', '{given}s' or timedelta(seconds={given})."
        )
    match = _DURATION.match(str(given).lower())
    if not match or match.group(2) not in _UNITS:
        raise DefinitionError(
            f"{given!r} is not a duration. Write a number and a unit, such as '500ms', '2s', '10 minutes', '1h', '1d', or give a timedelta."
        )
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def describe(time: int | None) -> str:
    """A point in time for people: ISO 8601, or 'beginning' and 'end'."""
    if time is None:
        return "-"
    if time <= BEGINNING:
        return "beginning"
    if time >= END:
        return "end"
    try:
        at = datetime.datetime.fromtimestamp(time / 1000, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{time} ms"
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time % 1000:03d}Z"
