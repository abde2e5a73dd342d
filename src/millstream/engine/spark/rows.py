"""Rows on the move: source columns to keyed rows (in the JVM), and Arrow batches to arrivals (in the task).

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
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.core import dedup
from millstream.core.dedup import Dedup, DedupCounts, SpanFilters
from millstream.core.keys import key_of
from millstream.core.record import Batch
from millstream.core.rejected import Rejected, unwrapped, wrong_time
from millstream.core.step import Arrivals
from millstream.core.time import BEGINNING, END
from millstream.core.topology import Injector, Route, Topology, is_expression
from millstream.core.watermark import Percentile, Seen
from millstream.errors import DefinitionError
from millstream.sources import Files

from .reasons import reason

_KEYED = "part int, route int, key string, ts long, id string, ord long"
PRODUCED = "body binary, unit long"
RECEIPT = -1

_NUL = "\0"
_BETWEEN = "\x1f"
UNREADABLE = "_millstream_unreadable"  # a column of a source: the text of a row that does not fit the schema


def marks(topology: Topology) -> dict[str, str]:
    """The columns that watermark policies and rejected records need, with their types."""
    policies = [injector.watermark for injector in topology.injectors.values()]
    found = {}
    if any(isinstance(injector.source, Files) for injector in topology.injectors.values()):
        found["bad"] = "string"
    if any(policy.sub_column for policy in policies):
        found["sub"] = "string"
    if any(policy.mark_column for policy in policies):
        found["mark"] = "long"
    return found


def keyed_columns(topology: Topology) -> str:
    """The columns of every row, as DDL."""
    return ", ".join([_KEYED, *[f"{name} {kind}" for name, kind in marks(topology).items()]])


def key_expression(columns: Sequence[tuple[Column, T.DataType, str]], as_tuple: bool) -> Column:
    """The key's text, in the JVM. Null where a part of the key is null."""
    texts = [_text(column, kind, name) for column, kind, name in columns]
    if not as_tuple:
        return texts[0]
    parts = [F.concat(F.length(text).cast("string"), F.lit(":"), text) for text in texts]
    return F.concat(F.lit(_NUL + "t"), *parts)


def _text(column: Column, kind: T.DataType, name: str) -> Column:
    if isinstance(kind, (T.StringType, T.VarcharType, T.CharType)):
        return F.when(F.startswith(column, F.lit(_NUL)), F.concat(F.lit(_NUL + "s"), column)).otherwise(column)
    if isinstance(kind, T.IntegralType):
        return F.concat(F.lit(_NUL + "i"), column.cast("string"))
    if isinstance(kind, T.BooleanType):
        return F.when(column, F.lit(_NUL + "b1")).when(~column, F.lit(_NUL + "b0"))
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit(_NUL + "x"), F.lower(F.hex(column)))
    raise DefinitionError(f"{name} is a {kind.simpleString()}, which cannot be a key: use a string, an integer, a boolean or binary, or cast it")


def keyed_frame(injector: Injector, index: int, source: DataFrame, topology: Topology, shards: int, value_types: list[T.DataType]) -> DataFrame:
    """An injector's DataFrame as keyed rows, one per record and consumer."""
    who = f"injected stream {injector.name!r}"
    routes = [route for route in topology.routes if route.stream == injector.name]
    id_column = F.lit(None).cast("string") if injector.id is None else _column(source, injector.id, f"{who}, id")[0].cast("string")
    value_column = F.col(f"v{index}")
    time = _timestamp(source, injector)
    keys = {route.index: _route_key(source, route, who) for route in routes if not route.spread}
    rejectable = [time.isNull(), time == F.lit(END), time == F.lit(BEGINNING), *([] if injector.id is None else [id_column.isNull()]), *[key.isNull() for key in keys.values()]]
    frame = source.select(
        _value_struct(injector, source, topology).alias(f"v{index}"),
        time.alias("ts"),
        id_column.alias("id"),
        *[key.alias(f"k{index}") for index, key in keys.items()],
        *[
            (_bad(source, injector, rejectable) if name == "bad" else _mark(source, injector, name, kind, who)).alias(name)
            for name, kind in marks(topology).items()
        ],
        _content_hash(source, injector, id_column, any(route.spread for route in routes)).alias("ord"),
    )

    def target(route: Route) -> Column:
        key = F.concat(F.lit(_NUL + "i"), F.col("ord").cast("string")) if route.spread else F.col(f"k{route.index}")
        shard = F.coalesce(F.pmod(F.crc32(key.cast("binary")), F.lit(shards)), F.lit(0)).cast("int")
        part = (shard + F.lit(route.group * shards) if route.level == 0 else shard).cast("int")
        order = F.xxhash64(key, F.col("id")) if injector.dedup is not None else F.col("ord")
        return F.struct(part.alias("part"), F.lit(route.index).cast("int").alias("route"), key.alias("key"), order.alias("ord"))

    if not routes:
        targets = F.array().cast("array<struct<part:int,route:int,key:string,ord:bigint>>")
        frame = frame.withColumn("to", F.explode(targets))
    elif len(routes) == 1:
        frame = frame.withColumn("to", target(routes[0]))
    else:
        frame = frame.withColumn("to", F.explode(F.array(*[target(route) for route in routes])))
    values = [value_column if at == index else F.lit(None).cast(kind).alias(f"v{at}") for at, kind in enumerate(value_types)]
    return frame.select("to.part", "to.route", "to.key", "ts", "id", "to.ord", *marks(topology), *values)


class ValueColumn(msgspec.Struct, frozen=True):
    """One column of an injector's value, and where it travels: in "key", "ts" or "id", or in the struct ("")."""

    name: str
    carrier: str


def value_layout(injector: Injector, source: DataFrame, topology: Topology) -> list[ValueColumn]:
    """How an injector's value travels. What the keyed columns say already is not sent twice."""
    carriers: dict[str, str] = {}
    routes = [route for route in topology.routes if route.stream == injector.name]
    for given, kind, carrier in (
        (routes[0].key if len(routes) == 1 else None, T.StringType, "key"),
        (injector.timestamp, T.LongType, "ts"),
        (injector.id, T.StringType, "id"),
    ):
        if isinstance(given, str) and given in source.columns and type(source.schema[given].dataType) is kind:
            carriers.setdefault(given, carrier)
    if injector.value:
        _column(source, injector.value, f"injected stream {injector.name!r}, value")
    names = [injector.value] if injector.value else _columns(source)
    return [ValueColumn(name, carriers.get(name, "")) for name in names]


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
    if not isinstance(injector.source, Files):
        return F.lit(None).cast("string")
    file, text = F.col("_metadata.file_path"), F.lit("")
    if UNREADABLE in source.columns:
        rejectable = [*rejectable, F.col(UNREADABLE).isNotNull()]
        text = F.coalesce(F.col(UNREADABLE), text)
    return F.when(reduce(operator.or_, rejectable), F.concat(file, F.lit(_BETWEEN), text))


def tick_frame(spark: Any, partitions: int, topology: Topology, value_types: list[T.DataType]) -> DataFrame:
    """One empty row per partition: what the tasks get when only time has moved."""
    types = {"key": "string", "ts": "long", "id": "string", "ord": "long", **marks(topology)}
    values = [F.lit(None).cast(kind).alias(f"v{at}") for at, kind in enumerate(value_types)]
    return spark.range(0, partitions, 1, partitions).select(
        F.col("id").cast("int").alias("part"), F.lit(RECEIPT).alias("route"),
        *[F.lit(None).cast(kind).alias(name) for name, kind in types.items()], *values,
    )  # fmt: skip


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _column(source: DataFrame, given: Any, what: str) -> tuple[Column, T.DataType, str]:
    """A column of the source by name or expression, with its type."""
    if isinstance(given, str):
        if given in _columns(source):
            return _quoted(given), source.schema[given].dataType, f"{what} column {given!r}"
        if not is_expression(given):
            raise DefinitionError(f"{what}: there is no column {given!r}; the source has: {', '.join(_columns(source))}")
        try:
            given = F.expr(given)
        except Exception as error:
            raise DefinitionError(f"{what}: Spark cannot read {given!r} as SQL: {reason(error)}") from error
    if not isinstance(given, Column):
        raise DefinitionError(f"{what}: give a column name, SQL text or a Spark Column, not a {type(given).__name__}")
    try:
        return given, source.select(given.alias("x")).schema["x"].dataType, f"{what} expression"
    except Exception as error:
        raise DefinitionError(f"{what}: Spark cannot resolve the expression: {reason(error)}") from error


def _route_key(source: DataFrame, route: Route, who: str) -> Column:
    what = f"{who}, key of computation {route.computation!r}"
    if isinstance(route.key, tuple):
        return key_expression([_column(source, part, what) for part in route.key], True)
    return key_expression([_column(source, route.key, what)], False)


def _mark(source: DataFrame, injector: Injector, name: str, kind: str, who: str) -> Column:
    wanted = injector.watermark.sub_column if name == "sub" else injector.watermark.mark_column
    if wanted is None:
        return F.lit(None).cast(kind)
    if name == "mark":
        return _millis(source, wanted, f"{who}, watermark")
    return _column(source, wanted, f"{who}, sub-source")[0].cast("string")


def _timestamp(source: DataFrame, injector: Injector) -> Column:
    if injector.timestamp is None:
        return F.unix_millis(F.current_timestamp())
    return _millis(source, injector.timestamp, f"injected stream {injector.name!r}, timestamp")


def _millis(source: DataFrame, given: Any, what: str) -> Column:
    column, kind, name = _column(source, given, what)
    if isinstance(kind, T.IntegralType):
        return column.cast("long")
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType):
        return F.unix_millis(column.cast("timestamp"))
    raise DefinitionError(f"{name} is a {kind.simpleString()}: give milliseconds as a long, or a timestamp")


def _has_map(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, (T.MapType, T.VariantType))


# --- in the task -----------------------------------------------------------------------------------------------------------------


def whole(column: Any) -> Any:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    return column


def to_list(column: Any) -> list[Any]:
    """An Arrow column as Python objects, by the fastest way its type has."""
    column = whole(column)
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


class ColumnBatch(Batch):
    """Rows of an injector, made Python values when somebody asks for the first one."""

    __slots__ = ("_ids", "_layout", "_single", "_table", "_values", "_vector")

    def __init__(self, stream: str, table: Any, vector: str, layout: Sequence[ValueColumn], single: bool) -> None:
        super().__init__(stream)
        self._table = table
        self._vector = vector
        self._layout = layout
        self._single = single
        self._values: list[Any] | None = None
        self._ids: list[str] | None = None

    def value(self, index: int) -> Any:
        values = self._values
        if values is None:
            values = self._values = self._load()
        return values[index]

    def _load(self) -> list[Any]:
        columns = [made(to_list(column)) for column, made in self._columns()]
        if self._single:
            return columns[0]
        names = [column.name for column in self._layout]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _columns(self) -> Iterator[tuple[Any, Callable[[list[Any]], list[Any]]]]:
        """The Arrow column of each column of the value, and how its Python objects become the column's."""
        sent = iter(whole(self._table.column(self._vector)).flatten())
        for column in self._layout:
            if column.carrier == "key":
                yield self._table.column("key"), _key_values
            else:
                yield self._table.column(column.carrier) if column.carrier else next(sent), _as_they_are

    def anew(self) -> Batch:
        return RowBatch(self)

    def id(self, index: int) -> str:
        ids = self._ids
        if ids is None:
            ids = self._ids = record_ids(self._table)
        return ids[index]


def _as_they_are(values: list[Any]) -> list[Any]:
    return values


def _key_values(texts: list[Any]) -> list[Any]:
    return [text if text is None or not text.startswith(_NUL) else key_of(text) for text in texts]


class RowBatch(Batch):
    """The rows of a ColumnBatch, each made a Python value whenever somebody asks."""

    __slots__ = ("_columns", "_of")

    def __init__(self, of: ColumnBatch) -> None:
        super().__init__(of.stream)
        self._of = of
        self._columns = list(of._columns())

    def value(self, index: int) -> Any:
        values = [made(to_list(column.slice(index, 1)))[0] for column, made in self._columns]
        return values[0] if self._of._single else {column.name: value for column, value in zip(self._of._layout, values, strict=True)}

    def id(self, index: int) -> str:
        return self._of.id(index)


class EncodedBatch(Batch):
    """Productions that came through the shuffle."""

    __slots__ = ("_bodies", "_decode", "_ids", "_table")

    def __init__(self, stream: str, table: Any, decode: Callable[[bytes], Any]) -> None:
        super().__init__(stream)
        self._table = table
        self._decode = decode
        self._bodies: list[bytes] | None = None
        self._ids: list[str] | None = None

    def value(self, index: int) -> Any:
        if self._bodies is None:
            self._bodies = to_list(self._table.column("body"))
        return self._decode(self._bodies[index])

    def id(self, index: int) -> str:
        if self._ids is None:
            self._ids = record_ids(self._table)
        return self._ids[index]


def record_ids(table: Any) -> list[str]:
    """The id of every row: its own, or the hash of its content."""
    ids = table.column("id")
    if ids.null_count == 0:
        return to_list(ids)
    orders = to_list(table.column("ord"))
    return [own if own is not None else f"{order & 0xFFFFFFFFFFFFFFFF:016x}" for own, order in zip(to_list(ids), orders, strict=True)]


def rejections(table: Any, topology: Topology, batch: Callable[[Route], Batch]) -> tuple[Any, dict[str, list[Rejected]]]:
    """A table without the rows that no hook can be called with, and those rows by computation. `batch` reads the rows of a route."""
    times = table.column("ts")
    limits = pc.min_max(times)
    suspect = (
        any(table.column(name).null_count for name in ("key", "ts"))
        or (table.column("id").null_count and any(injector.id is not None for injector in topology.injectors.values()))
        or ("bad" in table.column_names and table.column("bad").null_count < len(table))
        or limits["max"].as_py() == END
        or limits["min"].as_py() == BEGINNING
    )
    if not suspect:
        return table, {}
    routes = table.column("route").to_numpy()
    promised = [r.index for r in topology.routes if r.stream in topology.injectors and topology.injectors[r.stream].id is not None]
    no_id = whole(table.column("id").is_null()).to_numpy(zero_copy_only=False) & np.isin(routes, promised)
    wrong = whole(pc.or_(table.column("key").is_null(), times.is_null())).to_numpy(zero_copy_only=False) | no_id
    wrong |= whole(pc.fill_null(pc.is_in(times, pa.array([BEGINNING, END])), False)).to_numpy(zero_copy_only=False)
    bad = table.column("bad") if "bad" in table.column_names else None
    if bad is not None:
        wrong |= whole(bad.is_valid()).to_numpy(zero_copy_only=False)
    found: dict[str, list[Rejected]] = {}
    for at in np.flatnonzero(wrong).tolist():
        route = topology.routes[routes[at]]
        id = None if no_id[at] else table.column("id")[at].as_py()
        one = _rejected(route, batch(route), at, table, id, "" if bad is None else bad[at].as_py() or "", bool(no_id[at]))
        if one is None:  # what is bad in it is the key of another consumer
            wrong[at] = False
        else:
            found.setdefault(route.computation, []).append(one)
    return (table.filter(pa.array(~wrong)) if wrong.any() else table), found


def _rejected(route: Route, batch: Batch, at: int, table: Any, id: str | None, bad: str, no_id: bool) -> Rejected | None:
    time = table.column("ts")[at].as_py()
    value = batch.anew().value(at)
    if "body" in table.column_names and table.column("body")[at].is_valid:
        return unwrapped(route.stream, time, id, value)
    file, _, text = bad.partition(_BETWEEN)
    if text:
        why, value = "its row does not fit the schema", text
    elif wrong_time(time):
        why = wrong_time(time) or ""
    elif no_id:
        why = "its id is null"
    elif table.column("key")[at].as_py() is None:
        why = f"its key ({route.key!r}) is null"
    else:
        return None
    return Rejected(route.stream, time, id, value, why + (f" (file {_plain(file)})" if file else ""))


def _plain(file: str) -> str:
    """A file as people write it."""
    return urllib.parse.unquote(re.sub(r"^file:/+", "/", file))


def to_arrivals(table: Any, batches: dict[int, Batch], positions: Any) -> Arrivals:
    """The rows at some positions (None: all) of a table, grouped by key in canonical order.

    Sorted by (key, timestamp), as numbers; only rows that tie are compared by id.
    """
    keys = whole(table.column("key"))
    times = table.column("ts").to_numpy()
    if positions is not None:
        keys = keys.take(pa.array(positions))
        times = times[positions]
    coded = keys.dictionary_encode()
    names = to_list(coded.dictionary)
    ranked = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[ranked] = np.arange(len(names))
    codes = rank[coded.indices.to_numpy()]
    low = int(times.min())
    span = int(times.max()) - low + 1
    if span * (len(names) + 1) < 2**62:
        order = np.argsort(codes * span + (times - low))
    else:
        order = np.lexsort((times, codes))
    codes, times = codes[order], times[order]
    where = order if positions is None else positions[order]
    tied = (codes[1:] == codes[:-1]) & (times[1:] == times[:-1])
    if tied.any():
        _break_ties(table, where, tied, {route: batch.stream for route, batch in batches.items()})
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    bounds = [0, *starts.tolist(), len(codes)]
    source = None
    if len(batches) > 1:
        place = {route: at for at, route in enumerate(batches)}
        source = [place[route] for route in table.column("route").to_numpy()[where].tolist()]
    return Arrivals([names[i] for i in ranked], bounds, times.tolist(), where.tolist(), list(batches.values()), source)


def _break_ties(table: Any, where: Any, tied: Any, streams: dict[int, str]) -> None:
    """Puts runs of rows with equal key and timestamp into the order of their ids (and streams), in place."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], tied, [False])).astype(np.int8)))
    starts, stops = edges[::2], edges[1::2] + 1
    member = np.zeros(len(where), dtype=bool)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        member[start:stop] = True
    rows = where[member]
    few = table.select(["id", "ord", "route"]).take(pa.array(rows))
    ids = dict(zip(rows.tolist(), zip(record_ids(few), map(streams.get, to_list(few.column("route"))), strict=True), strict=True))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        where[start:stop] = sorted(where[start:stop].tolist(), key=ids.__getitem__)


def seen(injector: Injector, table: Any, positions: Any, newest_before: int | None) -> Seen:
    """What a watermark policy wants to know of an injector's rows (at some positions, or all)."""

    def column(name: str) -> Any:
        found = whole(table.column(name))
        return found if positions is None else found.take(pa.array(positions))

    times = column("ts").to_numpy()
    found = Seen(len(times), int(times.max()))
    policy = injector.watermark
    mark = column("mark").to_numpy(zero_copy_only=False) if policy.mark_column else None
    if policy.sub_column:
        names = column("sub").dictionary_encode()
        codes = names.indices.fill_null(-1).to_numpy()
        for at, name in enumerate(names.dictionary.to_pylist()):
            which = codes == at
            found.subs[name] = (int(times[which].max()), _largest(mark[which]) if mark is not None else None)
    elif mark is not None:
        found.mark = _largest(mark)
    if isinstance(policy, Percentile) and newest_before is not None:
        lags = newest_before - times
        behind = lags > 0
        counts = np.bincount(1 + np.floor(4 * np.log2(lags[behind])).astype(np.int64)) if behind.any() else np.zeros(1, np.int64)
        found.lags = {int(b): int(counts[b]) for b in np.flatnonzero(counts)}
        if not behind.all():
            found.lags[0] = int(len(lags) - behind.sum())
    return found


def _largest(values: Any) -> int | None:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return int(known.max()) if len(known) else None


class NoNames:
    """Where no record came in."""

    def ids(self, chosen: Any) -> list[bytes]:
        return []

    def packed(self, chosen: Any) -> bytes:
        return dedup.pack([])

    def in_order(self, chosen: Any) -> Any:
        return chosen


class Identified:
    """The rows of one route, as deduplication sees them. A row is named by its key and its id."""

    def __init__(self, table: Any, positions: Any) -> None:
        self.table = table
        self.positions = positions
        orders = table.column("ord").to_numpy()
        self.hashes = (orders if positions is None else orders[positions]).view(np.uint64)

    def at(self, chosen: Any) -> Any:
        """Positions in the table."""
        return chosen if self.positions is None else self.positions[chosen]

    def ids(self, chosen: Any) -> list[bytes]:
        """What names the rows."""
        return self._joined(chosen).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    def packed(self, chosen: Any) -> bytes:
        """The same, without a Python object for each."""
        joined = self._joined(chosen)
        _, offsets, data = joined.buffers()
        where = np.frombuffer(offsets, np.int32, len(joined) + 1, joined.offset * 4)
        return dedup.packed(where - where[0], memoryview(data)[where[0] : where[-1]])

    def _joined(self, chosen: Any) -> Any:
        at = pa.array(self.at(chosen))
        key, id = (whole(self.table.column(name)).take(at).cast(pa.binary()) for name in ("key", "id"))
        return whole(pc.binary_join_element_wise(key, id, b"\x1f"))

    def in_order(self, chosen: Any) -> Any:
        """The same rows in canonical order."""
        times = self.table.column("ts").to_numpy()[self.at(chosen)]
        return chosen[np.lexsort((chosen, times))]


def deduplicated(
    rule: Dedup, stream: str, view: Any, filters: SpanFilters, rows: Identified | None, now: int, epoch: int
) -> tuple[Any, dict[bytes, bytes | None], DedupCounts]:
    """The positions of duplicates in the table (None: there are none), what changes in the store, and the counts."""
    if rows is None:
        return None, *dedup.check(rule, stream, view, filters, np.zeros(0, np.uint64), NoNames(), now, epoch)[1:]
    keep, delta, counts = dedup.check(rule, stream, view, filters, rows.hashes, rows, now, epoch)
    return (rows.at(np.flatnonzero(~keep)) if counts.dropped else None), delta, counts
