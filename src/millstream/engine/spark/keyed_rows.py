"""Rows on the move: source columns to keyed rows, in the JVM. What becomes of them in a task is in `columns/arrow_rows.py`; the same without a JVM in
`columns/keying.py`.

A row on its way to level L has these columns:

    part   the partition of level L that it goes to (or, for a later level, any with the same shard)
    route  which stream into which computation; -1 marks a receipt or an empty tick
    key    the key's text (core/keys.py; the expressions here build the same text)
    ts     event time in milliseconds
    id     the record's id, or null where it has none of its own
    ord    a hash of the whole row, which stands in for a missing id; or, where ids are deduplicated, of key and id
    body   an encoded production, or a receipt
    unit   the digest of the attempt that produced it
    v<i>   the value of injector i, as a struct of those columns that do not stand in key, ts or id already
    sub    the sub-source that an injector's watermark policy asks for   } only where some injector's policy
    mark   the watermark that the record itself carries                 } needs them
    bad    of a record that is to be rejected: the file it came from, and its text where the schema did not fit; only where files are read
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.core.time import BEGINNING, END
from millstream.core.topology import Injector, Route, Topology, is_expression
from millstream.engine.columns import casts
from millstream.engine.columns.arrow_rows import RECEIPT
from millstream.engine.columns.batches import ValueColumn
from millstream.engine.columns.keying import marks, value_columns
from millstream.errors import DefinitionError
from millstream.operators.expressions import NotUnderstood, parse
from millstream.sources.base import BETWEEN

from .error_text import reason

KEYED = "part int, route int, key string, ts long, id string, ord long"
PRODUCED = "body binary, unit long"

_NUL = "\0"
UNREADABLE = "_millstream_unreadable"  # a column of a source: the text of a row that does not fit the schema


def _text(column: Column, kind: T.DataType, name: str) -> Column:
    if isinstance(kind, (T.StringType, T.VarcharType, T.CharType)):
        return F.when(F.startswith(column, F.lit(_NUL)), F.concat(F.lit(_NUL + "s"), column)).otherwise(column)
    if isinstance(kind, T.IntegralType):
        return F.concat(F.lit(_NUL + "i"), column.cast("string"))
    if isinstance(kind, T.BooleanType):
        return F.when(column, F.lit(_NUL + "b1")).when(~column, F.lit(_NUL + "b0"))
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit(_NUL + "x"), F.lower(F.hex(column)))
    raise DefinitionError(casts.NO_KEY.format(name, kind.simpleString()))


class KeyedColumns:
    """The columns that make keyed rows of an injector's DataFrame, one per record and consumer: worked out once, for any frame with the columns of `source`."""

    def __init__(
        self, injector: Injector, index: int, source: DataFrame, topology: Topology, shards: int, value_types: list[T.DataType]
    ) -> None:
        who = f"injected stream {injector.name!r}"
        routes = [route for route in topology.routes if route.stream == injector.name]
        id_column = F.lit(None).cast("string") if injector.id is None else _column(source, injector.id, f"{who}, id")[0].cast("string")
        now = F.unix_millis(F.current_timestamp())
        time = now if injector.timestamp is None else _millis(source, injector.timestamp, f"{who}, timestamp")
        keys = {route.index: _route_key(source, route, who) for route in routes if not route.spread}
        rejectable = [
            time.isNull(),
            time == F.lit(END),
            time == F.lit(BEGINNING),
            *([] if injector.id is None else [id_column.isNull()]),
            *[key.isNull() for key in keys.values()],
        ]
        self._first = [
            _value_struct(injector, source, topology).alias(f"v{index}"),
            time.alias("ts"),
            id_column.alias("id"),
            *[key.alias(f"k{index}") for index, key in keys.items()],
            *[
                (_bad(source, injector, rejectable) if name == "bad" else _mark(source, injector, name, kind, who)).alias(name)
                for name, kind in marks(topology).items()
            ],
            _content_hash(source, injector, id_column, any(route.spread for route in routes)).alias("ord"),
        ]

        def target(route: Route) -> Column:
            key = F.concat(F.lit(_NUL + "i"), F.col("ord").cast("string")) if route.spread else F.col(f"k{route.index}")
            shard = F.coalesce(F.pmod(F.crc32(key.cast("binary")), F.lit(shards)), F.lit(0)).cast("int")
            part = (shard + F.lit(route.group * shards) if route.level == 0 else shard).cast("int")
            order = F.xxhash64(key, F.col("id")) if injector.dedup is not None else F.col("ord")
            return F.struct(part.alias("part"), F.lit(route.index).cast("int").alias("route"), key.alias("key"), order.alias("ord"))

        if not routes:
            self._to = F.explode(F.array().cast("array<struct<part:int,route:int,key:string,ord:bigint>>"))
        elif len(routes) == 1:
            self._to = target(routes[0])
        else:
            self._to = F.explode(F.array(*[target(route) for route in routes]))
        value = F.col(f"v{index}")
        values = [value if at == index else F.lit(None).cast(kind).alias(f"v{at}") for at, kind in enumerate(value_types)]
        self._last = ["to.part", "to.route", "to.key", "ts", "id", "to.ord", *marks(topology), *values]

    def of(self, source: DataFrame) -> DataFrame:
        return source.select(*self._first).withColumn("to", self._to).select(*self._last)


def value_layout(injector: Injector, source: DataFrame, topology: Topology) -> list[ValueColumn]:
    """How an injector's value travels."""
    if injector.value:
        _column(source, injector.value, f"injected stream {injector.name!r}, value")
    routes = [route for route in topology.routes if route.stream == injector.name]
    return value_columns(
        injector, routes, {name: type(source.schema[name].dataType) for name in _columns(source)}, T.StringType, T.LongType
    )


def _value_struct(injector: Injector, source: DataFrame, topology: Topology) -> Column:
    sent = [_quoted(c.name) for c in value_layout(injector, source, topology) if not c.carrier]
    return F.struct(*sent) if sent else F.struct(F.lit(None).cast("boolean").alias("nothing"))


def value_type(injector: Injector, source: DataFrame, topology: Topology) -> T.DataType:
    """The struct that carries what is left of an injector's value."""
    return source.select(_value_struct(injector, source, topology).alias("v")).schema["v"].dataType


def _content_hash(source: DataFrame, injector: Injector, id_column: Column, spread: bool) -> Column:
    if injector.id is not None:
        return F.xxhash64(id_column) if spread else F.lit(0).cast("long")
    columns = [_quoted(c) for c in _columns(source)]
    return F.xxhash64(F.to_json(F.struct(*columns)) if _has_map(source.schema) else F.struct(*columns))


def _columns(source: DataFrame) -> list[str]:
    return [name for name in source.columns if name != UNREADABLE]


def _bad(source: DataFrame, injector: Injector, rejectable: list[Column]) -> Column:
    """Null for almost every row."""
    if not injector.source.reads_files:
        return F.lit(None).cast("string")
    file, text = F.input_file_name(), F.lit("")  # _metadata.file_path costs a fifth of all CPU, also where nobody reads it
    if UNREADABLE in source.columns:
        rejectable = [*rejectable, F.col(UNREADABLE).isNotNull()]
        text = F.coalesce(F.col(UNREADABLE), text)
    return F.when(reduce(operator.or_, rejectable), F.concat(file, F.lit(BETWEEN), text))


def tick_frame(spark: Any, partitions: int, topology: Topology, value_types: list[T.DataType]) -> DataFrame:
    """One empty row per partition: what the tasks get when only time has moved."""
    types = {"key": "string", "ts": "long", "id": "string", "ord": "long", **marks(topology)}
    values = [F.lit(None).cast(kind).alias(f"v{at}") for at, kind in enumerate(value_types)]
    return spark.range(0, partitions, 1, partitions).select(
        F.col("id").cast("int").alias("part"),
        F.lit(RECEIPT).alias("route"),
        *[F.lit(None).cast(kind).alias(name) for name, kind in types.items()],
        *values,
    )


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _column(source: DataFrame, given: Any, what: str) -> tuple[Column, T.DataType, str]:
    """A column of the source by name or expression, with its type."""
    if isinstance(given, str):
        if given in _columns(source):
            return _quoted(given), source.schema[given].dataType, f"{what} column {given!r}"
        if not is_expression(given):
            raise DefinitionError(casts.NO_COLUMN.format(what, given, ", ".join(_columns(source))))
        try:
            given = F.expr(_as_known(source, given))
        except Exception as error:
            raise DefinitionError(f"{what}: Spark cannot read {given!r} as SQL: {reason(error)}") from error
    if not isinstance(given, Column):
        raise DefinitionError(casts.NO_COLUMN_AT_ALL.format(what, type(given).__name__))
    try:
        return given, source.select(given.alias("x")).schema["x"].dataType, f"{what} expression"
    except Exception as error:
        raise DefinitionError(f"{what}: Spark cannot resolve the expression: {reason(error)}") from error


_KNOWN = (T.StringType, T.IntegralType, T.FloatType, T.DoubleType, T.BooleanType)


def _as_known(source: DataFrame, text: str) -> str:
    """An SQL text in the words that leave no doubt (`operators/expressions.py`), so that it gives what it gives without Spark. A text that only Spark
    understands, or on columns of other types, as it is."""
    try:
        expression = parse(text)
    except NotUnderstood:
        return text
    kinds = []
    for path in expression.paths:
        kind: Any = source.schema
        for name in path:
            kind = kind[name].dataType if isinstance(kind, T.StructType) and name in kind.names else None
        kinds.append(kind)
    return expression.sql if all(isinstance(kind, _KNOWN) for kind in kinds) else text


def _route_key(source: DataFrame, route: Route, who: str) -> Column:
    """The key's text, in the JVM. Null where a part of the key is null."""
    what = f"{who}, key of computation {route.computation!r}"
    if not isinstance(route.key, tuple):
        return _text(*_column(source, route.key, what))
    texts = [_text(*_column(source, part, what)) for part in route.key]
    return F.concat(F.lit(_NUL + "t"), *[F.concat(F.length(text).cast("string"), F.lit(":"), text) for text in texts])


def _mark(source: DataFrame, injector: Injector, name: str, kind: str, who: str) -> Column:
    wanted = injector.watermark.sub_column if name == "sub" else injector.watermark.mark_column
    if wanted is None:
        return F.lit(None).cast(kind)
    if name == "mark":
        return _millis(source, wanted, f"{who}, watermark")
    return _column(source, wanted, f"{who}, sub-source")[0].cast("string")


def _millis(source: DataFrame, given: Any, what: str) -> Column:
    column, kind, name = _column(source, given, what)
    if isinstance(kind, T.IntegralType):
        return column.cast("long")
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType):
        return F.unix_millis(column.cast("timestamp"))
    raise DefinitionError(casts.NO_TIME.format(name, kind.simpleString()))


def _has_map(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, (T.MapType, T.VariantType))
