"""Dates, times and decimals written as text, read by Spark's rules where no format is given. Pure.

Rules
1. What Spark's casts accept is accepted: "2020-1-2", "2020-05", "2020-01-02T03:04", zones such as "Z", "+2", "GMT+01:00", "Europe/Berlin", "PST";
   years beyond 9999. What they refuse is None here.
2. A date is a number of days since 1970, a timestamp one of microseconds, as Arrow keeps them. Fractions beyond the sixth digit are cut off.
3. A time without a date is of today. (So says Spark; it is not wise.)
4. A decimal is rounded half up to its scale; one that has too many digits then is refused.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import zoneinfo

_BLANK = "".join(map(chr, range(0x21))) + "\x7f"
_DAY = 86_400_000_000
_MOST = (1 << 63) - 1
_GREGORIAN = -141_427  # 1582-10-15
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:(-[0-9]{1,2})(?:-([0-9]{1,2})([ T].*)?)?)?", re.DOTALL)
_TIME = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*|(?<=\.)[^0-9].*)?)?)?"
_MOMENT = re.compile(r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]" + _TIME + r")?)?)?", re.DOTALL)
_TODAY = re.compile(r"(?:T" + _TIME + r"|([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)", re.DOTALL)
_OFFSET = re.compile(
    r"(?:(?:UTC|GMT|UT)(?=[+-]))?([+-])(?:([0-9]{1,2})|([0-9]{2}):?([0-9]{2})|([0-9]{2}):([0-9]{2}):([0-9]{2})|([0-9]{2})([0-9]{2})([0-9]{2}))"
)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_SHORT = {
    **{"ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo"},
    **{"AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns"},
    **{
        "CST": "America/Chicago",
        "CTT": "Asia/Shanghai",
        "EAT": "Africa/Addis_Ababa",
        "ECT": "Europe/Paris",
        "IET": "America/Indiana/Indianapolis",
    },
    **{"IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland"},
    **{"PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles"},
    **{"SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00"},
}


def days(year: int, month: int, day: int) -> int | None:
    """Days since 1970 of a date of the Gregorian calendar, which is continued in both directions; None if there is no such day.

    >>> days(1970, 1, 2), days(2023, 2, 29)
    (1, None)
    """
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    years = year - (month <= 2)
    return (
        years * 365
        + years // 4
        - years // 100
        + years // 400
        + (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
        + day
        - 1
        - 719_468
    )


def date(text: str) -> int | None:
    """A date as Spark casts it.

    >>> date("1970-1-2"), date("1971"), date("1970-02-30")
    (1, 365, None)
    """
    text = text.strip(_BLANK)
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    sign, year, month, day, _ = match.groups()
    return days(int(sign + year), int((month or "-1")[1:]), int(day or 1))


def old_date(text: str) -> int | None:
    """A date in JSON: as Spark casts it, else a number of days.

    >>> old_date("20200102")
    20200102
    """
    found = date(text)
    if found is None and "GMT" in text:
        found = date(text.strip(_BLANK).replace("GMT", "", 1))
    if found is None and re.fullmatch(r"[+-]?[0-9]{1,10}", text) and -(1 << 31) <= int(text) < 1 << 31:
        found = int(text) if int(text) >= _GREGORIAN else _julian(int(text))
    return found


def _julian(number: int) -> int | None:
    """The day that has the name which the old calendar gave to a day before 1582-10-15."""
    shifted = number + 719_470  # days since 0000-03-01 of the old calendar
    years, rest = divmod(shifted, 1461)
    year = min(rest // 365, 3)
    inside = rest - 365 * year
    month = (5 * inside + 2) // 153
    return days(years * 4 + year + (month >= 10), month + 3 if month < 10 else month - 9, inside - (153 * month + 2) // 5 + 1)


def timestamp(text: str, zone: str = "UTC") -> int | None:
    """A point in time as Spark casts it. zone: for texts that name none.

    >>> timestamp("1970-01-01T00:00:01.5+00:00"), timestamp("1970-01-01 01:00", "Europe/Berlin"), timestamp("soon")
    (1500000, 0, None)
    """
    read = _moment(text, zone)
    return None if read is None else read[0]


def local_timestamp(text: str) -> int | None:
    """A time of no zone as Spark casts it: a zone in the text is refused, and so is a time without a date.

    >>> local_timestamp("1970-01-01 00:00:01"), local_timestamp("1970-01-01 00:00:01Z")
    (1000000, None)
    """
    read = _moment(text, "UTC")
    return None if read is None or read[1] else read[0]


def _moment(text: str, zone: str) -> tuple[int, bool] | None:
    """Microseconds, and whether a zone was named or the date left out."""
    stripped = text.strip(_BLANK)
    match = _MOMENT.fullmatch(stripped)
    if match is not None:
        sign, year, month, day, *time = match.groups()
        at = days(int(sign + year), int(month or 1), int(day or 1))
        today = False
    else:
        match = (
            _TODAY.fullmatch(text.rstrip(_BLANK)) or _TODAY.fullmatch(stripped)
            if not stripped.startswith("T") or stripped == text.rstrip(_BLANK)
            else None
        )
        if match is None:
            return None
        time = list(match.groups()[:5] if match.group(1) else match.groups()[5:])
        at, today = 0, True
    hour, minute, second, fraction, named = time
    offset: datetime.tzinfo | int | None = _zone(named.strip(_BLANK)) if named is not None else _zone(zone)
    if at is None or offset is None or int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        return None
    if today:
        now = datetime.datetime.now(datetime.timezone(datetime.timedelta(seconds=offset)) if isinstance(offset, int) else offset)
        at = now.date().toordinal() - 719_163
    local = (
        at * _DAY + (int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)) * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))
    )
    found = local - _seconds(offset, local) * 1_000_000
    return (found, today or named is not None) if -_MOST - 1 <= found <= _MOST else None


@functools.lru_cache(maxsize=1024)
def _zone(name: str) -> datetime.tzinfo | int | None:
    """A zone by its name, or its offset in seconds; None if there is none."""
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])([0-9]{2}):([0-9])$", r"\1\2:0\3", name, count=1)
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    match = _OFFSET.fullmatch(name)
    if match is not None:
        sign, *parts = match.groups()
        hours, minutes, seconds = ([int(part) for part in parts if part is not None] + [0, 0])[:3]
        total = hours * 3600 + minutes * 60 + seconds
        return None if total > 18 * 3600 or minutes > 59 or seconds > 59 else -total if sign == "-" else total
    try:
        return zoneinfo.ZoneInfo(name) if re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", name) else None
    except (OSError, ValueError, KeyError):
        return None


def _seconds(zone: datetime.tzinfo | int, local: int) -> int:
    """How far a zone is ahead of UTC at a local time. In a gap the former offset counts, in an overlap the earlier one, as in Java."""
    if isinstance(zone, int):
        return zone
    day = min(max(local // _DAY + 719_163, 1), 3_652_000)
    at = datetime.datetime.fromordinal(day) + datetime.timedelta(microseconds=local % _DAY)
    found = zone.utcoffset(at)
    return 0 if found is None else found.days * 86_400 + found.seconds


def decimal_text(text: str, precision: int, scale: int) -> decimal.Decimal | None:
    """A decimal number as Java reads it, fitted to a column.

    >>> decimal_text("1.555", 10, 2), decimal_text("1e9", 10, 2)
    (Decimal('1.56'), None)
    """
    if _DECIMAL.fullmatch(text) is None:
        return None
    value = decimal.Decimal(text)
    if value and (value.adjusted() > precision or value.adjusted() < -scale - 2):
        return None if value.adjusted() > precision else decimal.Decimal(0).scaleb(-scale)
    wide = decimal.Context(prec=len(text) + precision + 80)
    value = value.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP, context=wide)
    return None if value and value.adjusted() + 1 + scale > precision else value if value else value.copy_abs()
