"""Rows keyed in Arrow and numpy, against those that the JVM keys: the same bits, for every type that a source can bring.

The hash of a row without an id is not Spark's, so what is made of it is not compared: `ord`, and the key and the shard of records that have no key.
"""

from __future__ import annotations

import random
import struct
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sparkkit import Echo

import millstream as ms
from effort import some
from millstream.core.keys import key_of, key_text, shard_of
from millstream.core.time import BEGINNING, END
from millstream.engine.columns.keying import Keying
from millstream.errors import DefinitionError

pytestmark = pytest.mark.spark

SHARDS = 7
UNREADABLE = "_millstream_unreadable"
TEXTS = ["", "a", "\0", "\0s", "\0i7", "é", "日本語", "\U0001f600", "x\0y", "￿", " ", "0", "-0", "null", "\x1f"]
INTS = [0, 1, -1, 9, 10, -10, 99, 127, -128]
KEYS = {"s": pa.string(), "b": pa.binary(), "t": pa.int8(), "h": pa.int16(), "i": pa.int32(), "l": pa.int64(), "o": pa.bool_()}
OTHERS = {
    "f": pa.float32(),
    "d": pa.float64(),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "ntz": pa.timestamp("us"),
    "d9": pa.decimal128(9, 2),
    "d18": pa.decimal128(18, 18),
    "d19": pa.decimal128(19, 0),
    "d38": pa.decimal128(38, 18),
    "wide": pa.decimal128(38, 0),
    "void": pa.null(),
    "took": pa.duration("us"),
    "clock": pa.time64("ns"),
    "st": pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string()), ("d", pa.float64())]))]),
    "ls": pa.list_(pa.string()),
    "ll": pa.list_(pa.list_(pa.int64())),
    "lst": pa.list_(pa.struct([("a", pa.decimal128(20, 1)), ("b", pa.date32())])),
}
EXPRESSIONS = [
    "lower(s)",
    ["i + 1", "substring(s, 2, 3)"],
    "o and l > 3",
    "l % 7",
    ms.col("i") * 3,
    "case when o then s else cast(t as string) end",
]
DOCUMENT = pa.struct([("l", pa.int64()), ("s", pa.string()), ("o", pa.bool_())])
IDS = ["s", "b", "t", "h", "i", "l", "o", "d9", "d18", "d19", "d38", "wide", "void"]


def value(draw: random.Random, kind: Any, nulls: float = 0.1) -> Any:
    """A hostile value of a type."""
    types = pa.types
    if types.is_null(kind) or draw.random() < nulls:
        return None
    if types.is_string(kind):
        return (
            draw.choice(TEXTS)
            if draw.random() < 0.3
            else "".join(draw.choice(["a", "é", "日", "\U0001f600", "\0"]) for _ in range(length(draw)))
        )
    if types.is_binary(kind):
        return draw.randbytes(length(draw))
    if types.is_boolean(kind):
        return draw.random() < 0.5
    if types.is_integer(kind):
        top = 2 ** (kind.bit_width - 1)
        return draw.choice([top - 1, -top, *INTS]) if draw.random() < 0.3 else draw.randrange(-top, top)
    if types.is_floating(kind):
        some_bits = struct.unpack("<d", draw.randbytes(8))[0] if kind == pa.float64() else struct.unpack("<f", draw.randbytes(4))[0]
        return draw.choice([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, 5e-324, 1e-45, some_bits, some_bits])
    if types.is_date(kind):  # Python knows the years from 1 to 9999 alone, so these are numbers
        return draw.choice([0, -1, -719529, -719528, -719162, 2932896, 2932897, -141428]) if draw.random() < 0.3 else any_day(draw)
    if types.is_timestamp(kind):
        part = draw.choice([0, 1, 999, 1000, 120_000, 999_999, draw.randrange(1_000_000)])
        return any_day(draw) * 86_400_000_000 + draw.choice([0, 1, 3599, 86_399, draw.randrange(86_400)]) * 1_000_000 + part
    if types.is_time(kind):
        return draw.randrange(86_400_000_000_000)
    if types.is_duration(kind):
        return timedelta(microseconds=draw.randrange(-(10**15), 10**15))
    if types.is_decimal(kind):
        top = 10 ** draw.randrange(1, kind.precision + 1)
        number = draw.choice([0, 1, -1, 127, 128, -128, -129, 255, 256, top - 1, 1 - top, draw.randrange(-top + 1, top)])
        number = max(min(number, 10**kind.precision - 1), 1 - 10**kind.precision)
        return Decimal((0 if number >= 0 else 1, tuple(map(int, str(abs(number)))), -kind.scale))
    if types.is_struct(kind):
        return {field.name: value(draw, field.type, 0.3) for field in kind}
    return [value(draw, kind.value_type, 0.3) for _ in range(draw.choice([0, 1, 2, 3, 9]))]


def any_day(draw: random.Random) -> int:
    return draw.choice([draw.randrange(-719162, 2932897), draw.randrange(-36_000_000, 36_000_000), draw.randrange(20_000)])


def length(draw: random.Random) -> int:
    return draw.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 100])


def rows_of(kinds: dict[str, Any], count: int, seed: int) -> Any:
    draw = random.Random(seed)
    columns = {name: pa.array([value(draw, kind) for _ in range(count)], kind) for name, kind in kinds.items()}
    times = [draw.choice([None, BEGINNING, END, 0, -1, draw.randrange(-(10**12), 10**13), draw.randrange(10**12)]) for _ in range(count)]
    return pa.table({**columns, "ms": pa.array(times, pa.int64())})


class Unread(ms.sources.Source):
    """A source that this test reads itself."""

    def describe(self) -> str:
        return "a table"


class Case(NamedTuple):
    """A pipeline with one injector, and what comes in."""

    pipeline: ms.Pipeline
    table: Any
    unreadable: str | None = None

    def keying(self, keying: type[Keying] = Keying) -> Keying:
        program = self.pipeline.program()
        schema = self.table.schema
        if self.unreadable:
            schema = schema.remove(schema.get_field_index(self.unreadable))
        return keying(program, next(iter(program.topology.injectors.values())), schema, SHARDS, self.unreadable)

    def durable(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """A keyed row without what is made of the hash of the whole row."""
        topology = self.pipeline.program().topology
        if next(iter(topology.injectors.values())).id is not None:
            return row
        part, route, key, ts, id, _, *others = row
        return (route, ts, id, *others) if topology.routes[route].spread else (part, route, key, ts, id, *others)

    def frame(self, source: Any) -> Any:
        from millstream.engine.spark import keyed_rows

        topology = self.pipeline.program().topology
        injector = next(iter(topology.injectors.values()))
        types = [keyed_rows.value_type(injector, source, topology)]
        return keyed_rows.KeyedColumns(injector, 0, source, topology, SHARDS, types).of(source)


def files() -> Any:
    return ms.sources.files("nowhere", schema="s string, b binary, i int, l long, o boolean, ms long")


def pipeline(keys: list[Any], source: Any = None, *, spread: bool = False, later: Any = None, **options: Any) -> ms.Pipeline:
    made = ms.Pipeline("p")
    stream = made.inject("in", source or Unread(), **options)
    outputs = [made.compute(Echo, stream, key=key, name=f"c{at}", produces=f"o{at}") for at, key in enumerate(keys)]
    if later is not None:
        made.compute(Echo, outputs[0], stream, key={"o0": lambda record: record.key, "in": later}, name="later", produces="z")
    if spread:
        made.emit(stream, ms.sinks.files("nowhere"))
    return made


def changes(key: Any) -> ms.Pipeline:
    """A table of changes, whose key is SQL that we know in Python."""
    made = ms.Pipeline("p")
    made.table("t", Unread(), key=key, change=ms.changes.debezium(), timestamp="ms")
    return made


def cases(count: int, seed: int, thorough: bool) -> list[Case]:
    """Every type as key, as id, as time, as sub-source, and in the hash of the row."""
    kinds = {**KEYS, **OTHERS}
    tuples = [["s", "l"], ["o", "b", "s"], ["h"]]
    marked = ms.watermarks.sub_sources("s", ["x"], ms.watermarks.declared("ntz"))
    found = [
        Case(pipeline([*KEYS, *tuples], spread=True, later=["s", "i"], timestamp="ms"), rows_of(kinds, count, seed)),
        Case(
            pipeline(["s"], timestamp="at", watermark=marked), rows_of({**KEYS, "at": OTHERS["at"], "ntz": OTHERS["ntz"]}, count, seed + 1)
        ),
        Case(
            pipeline(["s"], timestamp="ntz", watermark=ms.watermarks.declared("h")),
            rows_of({"s": pa.string(), "h": pa.int16(), "ntz": OTHERS["ntz"]}, count, seed + 2),
        ),
        Case(pipeline(["b", "o"], files(), timestamp="i", value="s", id="s"), rows_of(KEYS, count, seed + 3)),
        Case(pipeline(["s"], files(), timestamp="ms"), rows_of({"s": pa.string(), UNREADABLE: pa.string()}, count, seed + 4), UNREADABLE),
        Case(pipeline(["s"], timestamp="ms", id="l", dedup=None, spread=True), rows_of(KEYS, count, seed + 5)),
        Case(pipeline(["s"], timestamp="ms", id="l", dedup=None), rows_of(KEYS, count, seed + 6)),
        Case(changes("l"), rows_of({"before": DOCUMENT, "after": DOCUMENT, "op": pa.string()}, count, seed + 7)),
        Case(changes(["s", "o"]), rows_of({"before": DOCUMENT, "after": DOCUMENT, "op": pa.string()}, count, seed + 8)),
        Case(
            pipeline(EXPRESSIONS, timestamp="coalesce(ms, 0) % 1000", id="cast(h as string) || coalesce(s, '')"),
            rows_of(KEYS, count, seed + 9),
        ),
        Case(pipeline(["`st`.a + 1"], timestamp="ms", id=ms.col("st.b.c")), rows_of({"st": OTHERS["st"]}, count, seed + 9)),
    ]
    for at in range(0, len(IDS), 1 if thorough else 2):  # ids and sub-sources have their texts from the same place
        id, sub = IDS[at], IDS[(at + 1) % len(IDS)]
        table = rows_of({"s": pa.string(), id: kinds[id], sub: kinds[sub]}, count, seed + 10 + at)
        watermark = ms.watermarks.sub_sources(sub, ["x"], ms.watermarks.bounded(0))
        found.append(Case(pipeline(["s"], timestamp="ms", id=id, spread=at % 4 == 0, watermark=watermark), table))
    return found


COLUMNS = ("part", "route", "key", "ts", "id", "ord", "bad", "sub", "mark")


def in_the_jvm(spark: Any, given: list[Case]) -> list[list[tuple[Any, ...]]]:
    """The keyed rows of all cases, without their values, in one job."""
    from pyspark.sql import functions as F

    def common(at: int, frame: Any) -> Any:
        columns = [F.col(name) if name in frame.columns else F.lit(None) for name in COLUMNS]
        texts = {"key", "id", "bad", "sub"}
        return frame.select(
            F.lit(at).alias("case"), *[c.cast("binary" if n in texts else "long").alias(n) for n, c in zip(COLUMNS, columns, strict=True)]
        )

    frames = [common(at, case.frame(spark.createDataFrame(case.table))) for at, case in enumerate(given)]
    answer = reduce(lambda one, other: one.unionAll(other), frames).toArrow()
    found: list[list[tuple[Any, ...]]] = [[] for _ in given]
    for case, *row in zip(*(answer.column(name).to_pylist() for name in ("case", *COLUMNS)), strict=True):
        found[case].append(tuple(row))
    return [sorted(rows, key=lambda row: row[1]) for rows in found]  # by route; else as they came


def in_columns(case: Case, keying: type[Keying] = Keying) -> list[tuple[Any, ...]]:
    table = case.keying(keying).keyed(case.table, 0)
    columns = []
    for name in COLUMNS:
        column = table.column(name) if name in table.column_names else pa.nulls(len(table))
        columns.append(column.combine_chunks().view(pa.binary()).to_pylist() if column.type == pa.string() else column.to_pylist())
    return list(zip(*columns, strict=True))


def agrees(given: list[Case], wanted: list[list[tuple[Any, ...]]], keying: type[Keying] = Keying) -> list[Any]:
    """What differs: the number of the case, our row, the JVM's."""
    return [
        (at, found, other)
        for at, (case, rows) in enumerate(zip(given, wanted, strict=True))
        for found, other in zip(in_columns(case, keying), rows, strict=True)
        if case.durable(found) != case.durable(other)
    ]


def tried(spark: Any, count: int, seed: int, thorough: bool) -> None:
    given = cases(count, seed, thorough)
    wanted = in_the_jvm(spark, given)
    differs = agrees(given, wanted)
    assert not differs, (len(differs), differs[:3])
    unseeded = type("Unseeded", (Keying,), {"seed": 0})
    twin = {at for at, *_ in agrees(given[-2:], wanted[-2:], unseeded)}
    assert twin == {0, 1}, "with another seed of the hash nothing is known again"
    for case, rows in zip(given, wanted, strict=True):
        for part, route, key, *_ in rows:
            to = case.pipeline.program().topology.routes[route]
            shard = 0 if key is None else shard_of(key, SHARDS)
            assert part == (shard + to.group * SHARDS if to.level == 0 else shard)
            assert key is None or key_text(key_of(key.decode())) == key.decode()


def test_oracle_rows_are_keyed_as_the_jvm_keys_them(spark: Any) -> None:
    tried(spark, some(300), 0, thorough=False)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 11000, 1000))
def test_oracle_many_rows_are_keyed_as_the_jvm_keys_them(spark: Any, seed: int) -> None:
    tried(spark, 5000, seed, thorough=True)


def test_oracle_values_and_files_are_as_the_jvm_has_them(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from millstream.engine.spark import keyed_rows

    unlike = ("void", "took", "clock")  # Parquet has them not, or otherwise
    table = rows_of({name: kind for name, kind in {**KEYS, **OTHERS}.items() if name not in unlike}, 40, 7)
    pq.write_table(table, tmp_path / "a b é.parquet")
    source = spark.read.parquet(str(tmp_path))
    origin = source.select(F.input_file_name()).first()[0]
    assert origin.endswith("a%20b%20é.parquet")
    for options in ({"timestamp": "ms"}, {"timestamp": "ms", "id": "s"}, {"value": "s", "id": "b"}):
        case = Case(pipeline(["s"] if "value" in options else ["s", "l"], files(), **options), table)
        wanted = case.frame(source).toArrow()
        wanted = wanted.take(np.argsort(wanted.column("route").to_numpy(), kind="stable"))
        found = case.keying().keyed(table, wanted.column("ts")[0].as_py(), origin)
        topology = case.pipeline.program().topology
        assert case.keying().layout == keyed_rows.value_layout(topology.injectors["in"], source, topology)
        assert found.column_names == wanted.column_names
        ours, theirs = found.flatten(), wanted.cast(found.schema).flatten()
        assert ours.column_names == theirs.column_names
        for name in ours.column_names:
            if name == "ord" and "id" not in options:
                continue
            if name in ("v0.f", "v0.d", "v0.st"):  # NaN
                assert repr(ours.column(name).to_pylist()) == repr(theirs.column(name).to_pylist())
            else:
                assert ours.column(name).equals(theirs.column(name)), name
        assert 0 < ours.column("bad").null_count < len(ours)


def test_columns_are_refused_with_the_way_out(spark: Any) -> None:
    from pyspark.sql import functions as F

    table = rows_of(KEYS, 1, 0)
    for made in (pipeline([F.col("s")]), pipeline(["s"], timestamp=F.col("l") + 1), pipeline(["s"], id=F.col("s"))):
        with pytest.raises(
            DefinitionError, match=r"only Spark can work out a Spark Column: give column names, add .* or run without resident=True"
        ):
            Case(made, table).keying()
