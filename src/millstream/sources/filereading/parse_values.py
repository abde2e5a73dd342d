"""Values written as text, read where their form is plain: one, or a column at once. Pure.

Rules
1. Plain forms are: a number as digits, with a point or an exponent where the type has one; a date as 2020-01-31; a time as 2020-01-31T23:59:59.123 (or with
   a blank in the middle, without seconds, or a date alone), with nothing, Z or an offset such as +02:00 behind the seconds; true and false. Fractions of a
   second beyond the sixth digit are cut off.
2. A text of a plain form that has no such value (2020-02-30, a number that is too large), and one without any digit, is `Malformed`: Spark refuses it too.
3. Everything else ("2020-1-2", "1d", "PST", years beyond 9999) is `OnlySpark`: Spark may read it, by rules of its own.
4. A whole column is taken (`cast`) if every text in it is null or of the plainest form of its type: a number as digits, a date, a time with seconds and with
   Z or nothing behind them. Otherwise `OnlySpark` is raised, and the caller reads value by value. A decimal is rounded half up to its scale.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from millstream.sources.filereading.errors import Malformed, OnlySpark

_INTEGER = re.compile(r"-?[0-9]{1,40}")
_NUMBER = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"(?!0000)([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    _DATE.pattern + r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?)?",
)
_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_WIDE = decimal.Context(prec=1500)
_COLUMN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_COLUMN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_COLUMN_NUMBER = r"^-?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,2})?$"
_COLUMN_INTEGER = r"^-?[0-9]{1,18}$"
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)

Parser = Callable[[str], Any]


def parser(kind: pa.DataType, zone: str) -> Parser:
    """What makes a value of a type, by rules 1 to 3, of a text. zone: for times that name none."""
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind):
        return lambda text: text
    if t.is_signed_integer(kind):
        most = (1 << kind.bit_width - 1) - 1
        return lambda text: integer(text, most)
    if t.is_floating(kind):
        return double if t.is_float64(kind) else single
    if t.is_boolean(kind):
        return boolean
    if t.is_decimal(kind):
        return lambda text: fixed_point(text, kind.precision, kind.scale)
    if t.is_date(kind):
        return date
    if t.is_timestamp(kind):
        own = None if kind.tz is None else ZoneInfo(zone)
        return lambda text: timestamp(text, own)
    raise AssertionError(kind)


def _unusual(text: str) -> ValueError:
    return OnlySpark() if any(sign.isdigit() for sign in text) else Malformed()


def integer(text: str, most: int) -> int:
    """A whole number up to `most`, and down to -most - 1."""
    if not _INTEGER.fullmatch(text):
        raise _unusual(text)
    value = int(text)
    if not -most - 1 <= value <= most:
        raise Malformed
    return value


def double(text: str) -> float:
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        raise OnlySpark if "inf" in text.lower() or "nan" in text.lower() else _unusual(text)
    return float(text)


def single(text: str) -> float:
    """One of 32 bits, rounded once, from the text."""
    if not _NUMBER.fullmatch(text):
        return double(text)
    try:
        return float(pa.scalar(text).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        raise OnlySpark from None


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise Malformed
    return text.lower() == "true"


def fixed_point(text: str, precision: int, scale: int) -> decimal.Decimal:
    """A decimal number, fitted to a column."""
    if not _NUMBER.fullmatch(text):
        raise _unusual(text)
    try:
        value = decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _WIDE)
    except decimal.InvalidOperation:  # more digits than anything has
        raise OnlySpark from None
    if value and value.adjusted() + 1 + scale > precision:
        raise Malformed
    return value if value else value.copy_abs()


def date(text: str) -> int:
    """Days since 1970."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise _unusual(text)
    try:
        return datetime.date(*map(int, match.groups())).toordinal() - 719_163
    except ValueError:
        raise Malformed from None


def timestamp(text: str, zone: datetime.tzinfo | None) -> int:
    """Microseconds since 1970. zone: for a text that names none; None: the time is of no zone, and a text that names one does not fit.

    >>> timestamp("1970-01-01T01:00:01.5+01:00", ZoneInfo("UTC")), timestamp("1970-01-01 01:00", ZoneInfo("Europe/Berlin"))
    (1500000, 0)
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise _unusual(text)
    *parts, fraction, offset = match.groups()
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        at = datetime.datetime(year, month, day, hour, minute, second, int((fraction or "")[:6].ljust(6, "0")))
    except ValueError:
        raise Malformed from None
    if offset is not None:
        if zone is None:
            raise Malformed
        sign = -1 if offset[0] == "-" else 1
        ahead = datetime.timedelta() if offset == "Z" else sign * datetime.timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
    else:
        ahead = datetime.timedelta() if zone is None else zone.utcoffset(at) or datetime.timedelta()
    return (at - _EPOCH - ahead) // _MICROSECOND


def cast(array: pa.Array, wanted: pa.DataType, zone: str) -> pa.Array:
    """A column of strings as another type. zone: for times that name none.

    >>> cast(pa.array(["2020-01-31", None]), pa.date32(), "UTC").to_pylist()
    [datetime.date(2020, 1, 31), None]
    """
    t = pa.types
    if array.type == wanted:
        return array
    if t.is_timestamp(wanted):
        _check(array, _COLUMN_TIME + ("$" if wanted.tz is None else "Z?$" if zone == "UTC" else "Z$"))
        return pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us")).cast(wanted)
    if t.is_date(wanted):
        _check(array, _COLUMN_DATE)
        return array.cast(wanted)
    if t.is_boolean(wanted):
        lower = pc.utf8_lower(array)
        if not pc.all(pc.is_in(lower, pa.array(["true", "false", None])), min_count=0).as_py():
            raise OnlySpark
        return pc.equal(lower, "true")
    if t.is_large_string(wanted):
        return array.cast(wanted)
    if not (t.is_signed_integer(wanted) or t.is_floating(wanted) or t.is_decimal(wanted)):
        raise OnlySpark
    _check(array, _COLUMN_INTEGER if t.is_signed_integer(wanted) else _COLUMN_NUMBER)
    return checked(array.cast(wanted)) if t.is_decimal(wanted) else array.cast(wanted)


def checked(array: pa.Array) -> pa.Array:
    """A column of decimals, none of which has more digits than its type allows. (Arrow does not look when it reads one from JSON.)"""
    kind = array.type
    most = pa.scalar(decimal.Decimal(10**kind.precision - 1).scaleb(-kind.scale, _WIDE), kind)
    if not pc.all(pc.less_equal(pc.abs(array), most), min_count=0).as_py():
        raise OnlySpark
    return array


def _check(array: pa.Array, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(array, pattern), min_count=0).as_py():
        raise OnlySpark
