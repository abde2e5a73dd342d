"""What is said of columns that cannot be what they are to be: the same words, whoever makes the keyed rows.

Types are named as Spark names them, since that is how people write schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.errors import DefinitionError

_NAMES = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.duration("us"): "interval day to second",
    pa.time64("ns"): "time",
}


def spark_name(kind: Any) -> str:
    """The name that Spark has for an Arrow type; Arrow's own where Spark has none.

    >>> spark_name(pa.list_(pa.struct([("a", pa.int64()), ("b", pa.decimal128(10, 2))])))
    'array<struct<a:bigint,b:decimal(10,2)>>'
    """
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{spark_name(kind.key_type)},{spark_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in kind)}>"
    return str(kind)


def no_column(what: str, given: str, columns: Sequence[str]) -> DefinitionError:
    return DefinitionError(f"{what}: there is no column {given!r}; the source has: {', '.join(columns)}")


def no_column_at_all(what: str, given: Any) -> DefinitionError:
    return DefinitionError(f"{what}: give a column name, SQL text or a Spark Column, not a {type(given).__name__}")


def no_key(name: str, kind: str) -> DefinitionError:
    return DefinitionError(f"{name} is a {kind}, which cannot be a key: use a string, an integer, a boolean or binary, or cast it")


def no_time(name: str, kind: str) -> DefinitionError:
    return DefinitionError(f"{name} is a {kind}: give milliseconds as a long, or a timestamp")


def only_spark(what: str, given: Any) -> DefinitionError:
    """An expression, where there is no JVM to work it out."""
    shown = f"the SQL text {given!r}" if isinstance(given, str) else f"a Spark {type(given).__name__}"
    return DefinitionError(
        f"{what}: only Spark can work out {shown}: give column names, add the column in the source, or run without resident=True"
    )


def no_text(name: str, kind: str) -> DefinitionError:
    """A type whose text we do not make as Spark does."""
    return DefinitionError(f"{name} is a {kind}, and only Spark can make its text: give a string column, or run without resident=True")
