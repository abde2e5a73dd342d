"""Columns of text made columns of another type, all at once, where the result is certainly Spark's.

Rule: a column is taken if every text in it is null or of the plainest form of its type: a number as digits, a date as 2020-01-31, a time as
2020-01-31T23:59:59.123 (or with a blank in the middle), with Z or nothing behind it. Otherwise `OnlySpark` is raised, and the caller reads value by value
(`parse_values`).
"""

from __future__ import annotations

import decimal

import pyarrow as pa
import pyarrow.compute as pc

from millstream.sources.filereading.errors import OnlySpark

_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_NUMBER = r"^-?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,2})?$"
_INTEGER = r"^-?[0-9]{1,18}$"
_WIDE = decimal.Context(prec=100)


def cast(array: pa.Array, wanted: pa.DataType, zone: str) -> pa.Array:
    """A column of strings as another type. zone: for times that name none.

    >>> cast(pa.array(["2020-01-31", None]), pa.date32(), "UTC").to_pylist()
    [datetime.date(2020, 1, 31), None]
    """
    t = pa.types
    if array.type == wanted:
        return array
    if t.is_timestamp(wanted):
        _check(array, _TIME + ("$" if wanted.tz is None else "Z?$" if zone == "UTC" else "Z$"))
        return pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us")).cast(wanted)
    if t.is_date(wanted):
        _check(array, _DATE)
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
    _check(array, _INTEGER if t.is_signed_integer(wanted) else _NUMBER)
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
