"""A source's schema without Spark: its text read into columns, and Python rows made what Spark would deliver. Pure.

Rules
1. A text that this parser does not understand is Spark's business: there are then no known columns, nothing is checked, nothing converted. But a type
   that Spark has not either is refused.
2. A converted row has the columns of the schema and no others: one that is missing is None, one that the schema does not name is dropped.
3. The Python types are those that a hook sees on Spark: int, float, str, bool, bytes, Decimal with the column's scale, date, datetime in UTC,
   list, dict for a struct, a list of pairs for a map.
4. A timestamp may be given as a datetime (one without a time zone is in UTC), as text in ISO 8601, or as milliseconds.
5. What does not fit its column is an InputError that names column, value and type.
6. Columns that a pipeline names are compared with the schemas of its sources when it is defined. Only what is certainly wrong is refused.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any

import msgspec

from millstream.core.topology import Injector, Input, check_columns
from millstream.errors import DefinitionError, InputError
from millstream.views.cdc import Feed

_TOKEN = re.compile(
    r"\s*(?:`(?P<name>(?:[^`]|``)+)`|(?P<literal>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z_0-9.-]+)|(?P<sign>[<>(),:]))"
)
_STRUCT = re.compile(r"\s*struct\s*<", re.IGNORECASE)
_SYNONYMS = dict(
    re.findall(
        r"(\w+)=(\w+)",
        "integer=int bigint=long tinyint=byte smallint=short real=float dec=decimal numeric=decimal bool=boolean "
        "timestamp_ltz=timestamp varchar=string char=string",
    )
)
_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
_SIMPLE = {*_BITS, "float", "double", "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz", "decimal"}
#: Spark knows what they are.
_OTHER = set(re.findall(r"\w+", "interval void null variant character object udt time geometry geography timestamp_nanos"))
_UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)


class Kind(msgspec.Struct, frozen=True):
    """A column's type. of: element, key and value, or fields; names: of a struct's fields; scale: of a decimal."""

    name: str
    of: tuple[Kind, ...] = ()
    names: tuple[str, ...] = ()
    scale: int = 0


class _Unknown(Exception):
    """What this parser does not understand; _NoSuchType: nor does Spark."""


class _NoSuchType(_Unknown):
    pass


def columns(schema: Any) -> dict[str, Kind] | None:
    """The columns of a schema given as DDL text or as a Spark StructType; None if it cannot be told.

    >>> {name: kind.name for name, kind in columns("term string, at long, tags array<string>").items()}
    {'term': 'string', 'at': 'long', 'tags': 'array'}
    """
    try:
        if isinstance(schema, str):
            table = _Parser(schema if _STRUCT.match(schema) else f"struct<{schema}>").whole()
            return dict(zip(table.names, table.of, strict=True)) or None
        if hasattr(schema, "fields"):
            return {field.name: _Parser(field.dataType.simpleString()).whole() for field in schema.fields}
    except _NoSuchType as error:
        if not isinstance(schema, str):
            return None
        word = str(error)
        near = get_close_matches(word.lower(), [*_SIMPLE, *_SYNONYMS, "array", "map", "struct"], 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DefinitionError(f"schema={schema!r}: Spark has no type {word!r}.{hint}") from None
    except _Unknown:
        pass
    return None


class _Parser:
    def __init__(self, text: str) -> None:
        if _TOKEN.sub("", text).strip():
            raise _Unknown
        self.tokens = [(str(match.lastgroup), match[str(match.lastgroup)].replace("``", "`")) for match in _TOKEN.finditer(text)]
        self.at = 0

    def whole(self) -> Kind:
        found = self._kind()
        if self.at < len(self.tokens):
            raise _Unknown
        return found

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def _next(self, wanted: str | None = None) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end" or (wanted is not None and token[1] != wanted):
            raise _Unknown
        self.at += 1
        return token

    def _kind(self) -> Kind:
        what, word = self._next()
        if what != "word":
            raise _Unknown
        name = _SYNONYMS.get(word.lower(), word.lower())
        if name in ("array", "map", "struct"):
            self._next("<")
            of: list[tuple[str, Kind]] = []
            while self._peek()[1] != ">" or (name != "struct" and not of):
                if of:
                    self._next(",")
                of.append(self._field() if name == "struct" else ("", self._kind()))
            self._next(">")
            if len(of) != {"array": 1, "map": 2, "struct": len(of)}[name]:
                raise _Unknown
            return Kind(name, tuple(kind for _, kind in of), tuple(field for field, _ in of if field))
        if name not in _SIMPLE:
            raise _Unknown if name in _OTHER else _NoSuchType(word)
        numbers = self._numbers()
        return Kind(name, scale=numbers[1] if name == "decimal" and len(numbers) > 1 else 0)

    def _field(self) -> tuple[str, Kind]:
        what, name = self._next()
        if what not in ("name", "word"):
            raise _Unknown
        if self._peek()[1] == ":":
            self._next()
        kind = self._kind()
        while self._peek()[0] == "word":
            word, (what, follows) = self._next()[1].lower(), self._next()
            if (word, follows.lower()) != ("not", "null") and (word, what) != ("comment", "literal"):
                raise _Unknown
        return name, kind

    def _numbers(self) -> list[int]:
        found: list[int] = []
        while self._peek()[1] == ("," if found else "("):
            self._next()
            word = self._next()[1]
            if not word.isdecimal():
                raise _Unknown
            found.append(int(word))
        if found:
            self._next(")")
        return found


def converted(row: dict[str, Any], known: dict[str, Kind], stream: str) -> dict[str, Any]:
    """A row as Spark would deliver it.

    >>> converted({"at": "2024-05-01T12:00:00Z", "n": 1}, columns("at timestamp, n double, word string"), "in")["n"]
    1.0
    """
    return {name: _value(row.get(name), kind, stream, name) for name, kind in known.items()}


def _value(value: Any, kind: Kind, stream: str, column: str) -> Any:
    if value is None:
        return None
    name = kind.name
    try:
        if name in _BITS and value.__class__ is int and -(1 << _BITS[name] - 1) <= value < 1 << _BITS[name] - 1:
            return value
        if name == "string" and isinstance(value, str):
            return value
        if name in ("float", "double") and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value) if name == "double" else float(struct.unpack("f", struct.pack("f", value))[0])
        if name == "boolean" and isinstance(value, bool):
            return value
        if name == "binary" and isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if name == "decimal" and isinstance(value, (int, float, str, Decimal)) and not isinstance(value, bool):
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
        if name == "date" and isinstance(value, str):
            return datetime.date.fromisoformat(value)
        if name == "date" and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value
        if name in ("timestamp", "timestamp_ntz"):
            at = moment(value)
            return at if name == "timestamp" else at.replace(tzinfo=None)
        if name == "array" and isinstance(value, (list, tuple)):
            return [_value(one, kind.of[0], stream, column) for one in value]
        if name == "struct" and isinstance(value, dict):
            return {field: _value(value.get(field), of, stream, f"{column}.{field}") for field, of in zip(kind.names, kind.of, strict=True)}
        if name == "map" and isinstance(value, (dict, list, tuple)):
            pairs = value.items() if isinstance(value, dict) else value
            return [(_value(k, kind.of[0], stream, column), _value(v, kind.of[1], stream, column)) for k, v in pairs]
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        pass
    raise InputError(
        f"stream {stream!r}, column {column!r}: {value!r} (a {type(value).__name__}) does not fit the type {name} that the source's schema gives it"
    )


def moment(value: Any) -> datetime.datetime:
    """A point in time (rule 4) as a datetime in UTC.

    >>> moment(1_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    elif value.__class__ is int:
        value = _EPOCH + datetime.timedelta(milliseconds=value)
    if not isinstance(value, datetime.datetime):
        raise ValueError
    return value.astimezone(_UTC) if value.tzinfo is not None else value.replace(tzinfo=_UTC)


def millis(value: datetime.datetime) -> int:
    """Milliseconds since 1970 of a datetime, rounded down, as Spark's unix_millis does."""
    return (moment(value) - _EPOCH) // datetime.timedelta(milliseconds=1)


def check_injector(injector: Injector) -> None:
    injector.check(columns(injector.source.schema))


def check_keys(what: str, inputs: Sequence[Input], injectors: Sequence[Injector]) -> None:
    for one in inputs:
        keys = one.key if isinstance(one.key, tuple) else (one.key,)
        known = next((columns(injector.source.schema) for injector in injectors if injector.name == one.stream), None)
        check_columns(f"injected stream {one.stream!r}, {what}", keys, known)


def table_fields(
    name: str, inputs: Sequence[Input], injectors: Sequence[Injector], feed: Feed, version: Any, wanted: Sequence[str] | None
) -> Collection[str] | None:
    """The fields of a table's documents; None if that cannot be told. Its rows must be documents themselves, of sources with a schema.
    Raises DefinitionError if the table names one that is not there."""
    check_keys(f"key of table {name!r}", inputs, injectors)
    by_name = {injector.name: injector for injector in injectors if injector.value is None}
    known = [columns(by_name[one.stream].source.schema) if one.stream in by_name else None for one in inputs]
    told = list(dict.fromkeys(column for some in known for column in some or ()))
    if feed.kind == "upserts" and None not in known:
        versions = version if isinstance(version, (list, tuple)) else [version]
        for what, given in (("version", versions), ("deleted", [feed.deleted])):
            plain = [one for one in given if not isinstance(one, str) or "." not in one]  # a path leads into a field
            check_columns(f"table {name!r}, {what}", plain, told)
        check_columns(f"table {name!r}, columns", wanted or (), told)
    elif wanted is None:
        return None
    return told if wanted is None else list(wanted)
