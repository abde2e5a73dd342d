"""The options of the file source that Millstream's own readers understand. Names are told apart without regard to case, as Spark does. An option that is not
in these tables, or has a value that is not, is not guessed at: the source is then read by Spark alone, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from millstream.sources.filereading.errors import OnlySpark
from millstream.sources.schema import Kind, columns


def _values(text: str) -> dict[str, set[str]]:
    return {option: set(values.split("|")) for option, _, values in (word.partition("=") for word in text.split())}


#: What decides only what Spark infers or keeps in memory: any value does, because a schema is given.
_IDLE = _values(
    "inferschema samplingratio prefersdecimal primitivesasstring dropfieldifallnull preferdate mergeschema ignorenullfields maxcachedfiles "
    "discardcachedinputratio filenameonly enforceschema"
)
#: By option, the values (in lower case) that are Spark's default, or the same to us.
_SAME = _values(
    "latestfirst=false cleansource=off recursivefilelookup=false ignorecorruptfiles=false ignoremissingfiles=false multiline=false "
    "encoding=utf-8|utf8 charset=utf-8|utf8 locale=en-us mode=failfast|dropmalformed"
)
_SAME_JSON = _values(
    "allowcomments=false allowunquotedfieldnames=false allowsinglequotes=true allownumericleadingzeros=false "
    "allowbackslashescapinganycharacter=false allowunquotedcontrolchars=false allownonnumericnumbers=true"
)
_SAME_CSV = _values(
    "ignoreleadingwhitespace=false ignoretrailingwhitespace=false columnpruning=true|false unescapedquotehandling=stop_at_delimiter"
)
_UNITS = {"us": 1e-3, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}
_AGE = re.compile(r"^([0-9]+)\s*([a-z]*)$")
_WEEK = 7 * 86_400_000


class Settings(msgspec.Struct, frozen=True):
    """The options, read. max_age: in ms. zone: for texts that name none. header, separator, quote, escape, null: of CSV."""

    format: str
    max_age: int = _WEEK
    limit: int | None = None
    pattern: str | None = None
    drops: bool = False
    zone: str = "UTC"
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    empty: str = ""

    def accepts(self, name: str) -> bool:
        return self.pattern is None or re.fullmatch(self.pattern, name, re.DOTALL) is not None


def settings(format: str, options: Mapping[str, Any], limit: int | None = None) -> Settings:
    """The options of a source. Raises OnlySpark.

    >>> settings("json", {"maxFileAge": "1h"}).max_age
    3600000
    """
    read: dict[str, Any] = {"format": format, "limit": limit}
    same = {**_SAME, **(_SAME_JSON if format == "json" else _SAME_CSV if format == "csv" else {})}
    for name, given in options.items():
        key, value = name.lower(), str(given)
        field, convert = _READ.get(key, ("", str)) if format == "csv" or key not in _CSV_ONLY else ("", str)
        try:
            if field:
                read[field] = convert(value)
            elif key not in _IDLE and value.lower() not in same.get(key, ()):
                raise ValueError
        except (ValueError, LookupError, OSError):
            raise OnlySpark(f"the option {name}={value!r}") from None
        if key == "mode":
            read["drops"] = value.lower() == "dropmalformed" and format != "parquet"
    return Settings(**read)


def _age(value: str) -> int:
    number, unit = _AGE.findall(value.strip().lower())[0]
    return int(int(number) * _UNITS[unit])


def _files(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError
    return int(value)


def _pattern(value: str) -> str:
    if re.search(r"[^\w.*?=-]", value):  # what else than * and ? may stand in a pattern is Hadoop's own
        raise ValueError
    return re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")


def _sign(value: str) -> str:
    sign = "\t" if value == "\\t" else value
    if len(sign) != 1 or not sign.isascii() or sign in "\r\n\0 ":
        raise ValueError
    return sign


#: By option, its field and what makes a value of its text; an error says that only Spark knows it.
_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "maxfileage": ("max_age", _age),
    "maxfilespertrigger": ("limit", _files),
    "pathglobfilter": ("pattern", _pattern),
    "timezone": ("zone", lambda value: ZoneInfo(value).key),
    "header": ("header", lambda value: {"true": True, "false": False}[value.lower()]),
    "sep": ("separator", _sign),
    "delimiter": ("separator", _sign),
    "quote": ("quote", _sign),
    "escape": ("escape", _sign),
    "nullvalue": ("null", str),
    "emptyvalue": ("empty", str),
}
_CSV_ONLY = {"header", "sep", "delimiter", "quote", "escape", "nullvalue", "emptyvalue"}


def check_types(format: str, schema: Any) -> None:
    """Raises OnlySpark if a schema has what these readers do not."""
    known = columns(schema)
    if known is None or re.search(r"char\s*\(", schema if isinstance(schema, str) else schema.simpleString(), re.IGNORECASE):
        raise OnlySpark("a type in its schema")
    if format != "parquet" and "_corrupt_record" in known:
        raise OnlySpark("the column _corrupt_record")
    for name, kind in known.items():
        if format == "csv" and kind.name in ("array", "struct", "map", "binary"):
            raise OnlySpark(f"the type {kind.name} of column {name!r}")
        if format == "json" and _has_other_keys(kind):
            raise OnlySpark(f"the type of column {name!r}, a map whose keys are not strings")


def _has_other_keys(kind: Kind) -> bool:
    return (kind.name == "map" and kind.of[0].name != "string") or any(_has_other_keys(inner) for inner in kind.of)
