"""The options of the file source that Millstream's own readers understand, and why others are Spark's business.

Rules
1. An option that is not in these tables, or has a value that is not, is not guessed at: the source is then read by Spark alone, or not at all.
2. Names are told apart without regard to case, as Spark does.
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
    """Of options with their values, all in lower case."""
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
_AGE = re.compile(r"([0-9]+)\s*([a-z]*)$")
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
        """Whether a file of this name is read."""
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
        reading = _READ.get(key) if format == "csv" or key not in _CSV_ONLY else None
        known = reading(value) if reading is not None else {} if key in _IDLE or value.lower() in same.get(key, ()) else None
        if known is None:
            raise OnlySpark(f"the option {name}={value!r}")
        read.update(known)
        if key == "mode":
            read["drops"] = value.lower() == "dropmalformed" and format != "parquet"
    return Settings(**read)


def _age(value: str) -> dict[str, Any] | None:
    match = _AGE.match(value.strip().lower())
    unit = None if match is None else _UNITS.get(match.group(2))
    return None if match is None or unit is None else {"max_age": int(int(match.group(1)) * unit)}


def _files(value: str) -> dict[str, Any] | None:
    return {"limit": int(value)} if value.isdecimal() and int(value) > 0 else None


def _pattern(value: str) -> dict[str, Any] | None:
    """Names with * and ? only: what else may stand in such a pattern is Hadoop's own."""
    if re.search(r"[^\w.*?=-]", value):
        return None
    return {"pattern": re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")}


def _zone(value: str) -> dict[str, Any] | None:
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError):
        return None
    return {"zone": value}


def _flag(value: str) -> dict[str, Any] | None:
    return {"header": value.lower() == "true"} if value.lower() in ("true", "false") else None


def _sign(field: str) -> Callable[[str], dict[str, Any] | None]:
    def read(value: str) -> dict[str, Any] | None:
        value = {"\\t": "\t"}.get(value, value)
        return {field: value} if len(value) == 1 and value.isascii() and value not in "\r\n\0 " else None

    return read


_READ: dict[str, Callable[[str], dict[str, Any] | None]] = {
    "maxfileage": _age,
    "maxfilespertrigger": _files,
    "pathglobfilter": _pattern,
    "timezone": _zone,
    "header": _flag,
    "sep": _sign("separator"),
    "delimiter": _sign("separator"),
    "quote": _sign("quote"),
    "escape": _sign("escape"),
    "nullvalue": lambda value: {"null": value},
    "emptyvalue": lambda value: {"empty": value},
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
