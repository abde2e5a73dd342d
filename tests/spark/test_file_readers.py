"""The rows that Millstream's own readers make of a file are those that Spark's make, or both refuse it."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import itertools
import os
import random
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filecases
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.engine.spark.versions import arrow_schema
from millstream.sources.filereading.csv_rows import values_of
from millstream.sources.filereading.json_rows import JsonRows
from millstream.sources.filereading.reader import FileReader
from millstream.sources.filereading.settings import settings
from millstream.sources.filereading.text_rows import BETWEEN, BadLine, TextRows

pytestmark = pytest.mark.spark

BAD = "_unreadable"
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 60))]
FILES = 100


def arrow(schema: Any) -> pa.Schema:
    from pyspark.sql import types as T

    return arrow_schema(T.StructType.fromDDL(schema) if isinstance(schema, str) else schema)


def rows(table: Any) -> list[Any]:
    """The rows of a table or batch as values that can be compared; times as numbers, since Python has not all of them."""
    columns = [_numbers(table.column(at)) for at in range(table.num_columns)]
    return [filecases.plain(row) for row in zip(*columns, strict=True)] if columns else []


def _numbers(column: Any) -> list[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return _bare(array).to_pylist()


def _bare(array: Any) -> Any:
    kind, t = array.type, pa.types
    if t.is_timestamp(kind):
        return array.cast(pa.int64())
    if t.is_date(kind):
        return array.cast(pa.int32())
    if t.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _bare(array.values), mask=array.is_null())
    if t.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, _bare(array.keys), _bare(array.items), mask=array.is_null())
    if t.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_bare(array.field(at)) for at in range(kind.num_fields)], names=names, mask=array.is_null())
    return array


def by_spark(spark: Any, folder: Path, source: Any, unreadable: str | None) -> dict[str, list[Any]]:
    """By file, the rows that Spark's reader gives for a source, in one job."""
    from pyspark.sql import functions as F

    schema = f"{source.schema}, {unreadable} string" if unreadable else source.schema
    reader = spark.read.format(source.format).schema(schema)
    if unreadable:
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", unreadable)
    for name, value in source.options.items():
        reader = reader.option(name, value)
    frame = reader.load(str(folder))
    table = frame.select(*[F.col(f"`{name}`") for name in frame.columns], F.input_file_name().alias("_file")).toArrow().combine_chunks()
    names = table.column("_file").to_pylist()
    found: dict[str, list[Any]] = {}
    for name, row in zip(names, rows(table.drop_columns(["_file"])), strict=True):
        found.setdefault(name, []).append(row)
    return found


def by_us(source: Any, unreadable: str | None) -> Iterator[tuple[str, str, list[Any]]]:
    """Path, origin and rows of every file."""
    assert source.unplanned() is None
    reader = source.reader(arrow, unreadable)
    assert isinstance(reader, FileReader)
    reader.begin({}, True)
    for split in reader.plan(reader.first()).splits:
        batches = list(reader.read(split))
        assert all(batch.schema == reader.schema for batch in batches)
        yield split.path, reader.origin(split), [row for batch in batches for row in rows(batch)]


def rows_or_refusal(source: Any) -> Iterator[tuple[str, list[Any] | ms.errors.InputError]]:
    """By origin, the rows of every file, or the error that it is."""
    reader = source.reader(arrow)
    reader.begin({}, True)
    for split in reader.plan(reader.first()).splits:
        try:
            yield reader.origin(split), [row for batch in reader.read(split) for row in rows(batch)]
        except ms.errors.InputError as error:
            assert reader.origin(split) in str(error) and "Fix or remove the file" in str(error)
            yield reader.origin(split), error


def is_only_sparks(error: ms.errors.InputError) -> bool:
    return "only Spark reads this" in str(error)


def compare(spark: Any, folder: Path, source: Any, certain: bool = False) -> int:
    """How many files are read as Spark reads them, or refused by name: a row that we read is Spark's row, a line that is malformed for Spark is for us too,
    and a line that we take for malformed, and not for Spark's alone, is so for Spark. certain: no line may be left to Spark."""
    theirs = by_spark(spark, folder, source, BAD)
    dropping = ms.sources.files(folder, schema=source.schema, format=source.format, options={**source.options, "mode": "DROPMALFORMED"})
    left = by_spark(spark, folder, dropping, None)
    bad, count = set(), 0
    for path, origin, ours in by_us(source, BAD):
        count += 1
        wanted, said = theirs.get(origin, []), (source.schema, Path(path).read_bytes())
        if any(row[-1] is not None for row in ours):
            bad.add(origin)
        if any("only Spark reads this" in (row[-1] or "") for row in ours):
            assert not certain, said
            if len(ours) != len(wanted):  # an array is several rows
                continue
        assert len(ours) == len(wanted), said
        for mine, row in zip(ours, wanted, strict=True):
            text, _, why = (mine[-1] or "").partition(BETWEEN * 2)
            assert mine == row if mine[-1] is None else why or (text == row[-1]), said
    assert {origin for origin, found in rows_or_refusal(source) if not isinstance(found, list)} == bad
    for origin, found in rows_or_refusal(dropping):
        assert is_only_sparks(found) if not isinstance(found, list) else found == left.get(origin, []), origin
    return count


@pytest.mark.parametrize("seed", SEEDS)
def test_json_lines(spark: Any, tmp_path: Path, seed: int) -> None:
    for round_ in range(4):
        chance = random.Random(f"{seed} {round_}")
        schema = filecases.json_schema(chance)
        folder = tmp_path / f"in {round_}"
        folder.mkdir()
        for at in range(FILES):
            (folder / f"{at:03}.json").write_bytes(filecases.text_file(chance, partial(filecases.json_line, chance, schema)))
        source = ms.sources.files(folder, schema=filecases.ddl(schema), format="json")
        assert compare(spark, folder, source) == FILES


def test_every_value_of_every_type_in_json(spark: Any, tmp_path: Path) -> None:
    """One column of each type, one line for each value that the pools have for it. Values of a plain form are read."""
    schema = {f"c{at}": kind for at, kind in enumerate(filecases.JSON_VALUES)}
    for name, kind in schema.items():
        for folder, pool in zip(("plain", "unusual"), filecases.JSON_VALUES[kind], strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            for at, value in enumerate(pool):
                (tmp_path / folder / f"{name} {at:02}.json").write_text(f'{{"{name}":{value},"z":8}}\n')
    for at, line in enumerate(filecases.JSON_LINES):
        (tmp_path / "unusual" / f"{at:02}.json").write_text(line + "\n")
    for folder in ("plain", "unusual"):
        source = ms.sources.files(tmp_path / folder, schema=filecases.ddl(schema), format="json")
        assert compare(spark, tmp_path / folder, source, folder == "plain") == len(os.listdir(tmp_path / folder))


CSV_OPTIONS: list[dict[str, str]] = [
    {},
    {"header": "true"},
    {"sep": ";", "nullValue": "null"},
    {"escape": '"'},
    {"quote": "'", "sep": "\t"},
    {"emptyValue": "x"},
]


@pytest.mark.parametrize("seed", SEEDS)
def test_csv(spark: Any, tmp_path: Path, seed: int) -> None:
    for round_, options in enumerate(CSV_OPTIONS):
        chance = random.Random(f"{seed} {round_}")
        schema = filecases.csv_schema(chance) if round_ else {"c0": "string", "c1": "string", "c2": "string"}
        signs = options.get("sep", ","), options.get("quote", '"'), options.get("escape", "\\")
        folder = tmp_path / f"in {round_}"
        folder.mkdir()
        for at in range(FILES):
            (folder / f"{at:03}.csv").write_bytes(filecases.text_file(chance, partial(filecases.csv_line, chance, schema, *signs)))
        source = ms.sources.files(folder, schema=filecases.ddl(schema), format="csv", options=options)
        assert compare(spark, folder, source) == FILES


def test_every_value_of_every_type_in_csv(spark: Any, tmp_path: Path) -> None:
    schema = {f"c{at}": kind for at, kind in enumerate(filecases.CSV_VALUES)}
    for place, kind in enumerate(schema.values()):
        for folder, pool in zip(("plain", "unusual"), filecases.CSV_VALUES[kind], strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            for at, value in enumerate(pool):
                (tmp_path / folder / f"{place} {at:02}.csv").write_text("," * place + value + "," * (len(schema) - 1 - place) + "\n")
    for folder in ("plain", "unusual"):
        source = ms.sources.files(tmp_path / folder, schema=filecases.ddl(schema), format="csv")
        assert compare(spark, tmp_path / folder, source, folder == "plain") == len(os.listdir(tmp_path / folder))


@pytest.mark.parametrize("escape", ["\\", '"'])
def test_every_short_line_of_csv(spark: Any, tmp_path: Path, escape: str) -> None:
    """All lines of up to five signs that have a quote in them."""
    signs = sorted({*'a", ', escape})
    lines = ["".join(line) for length in range(1, 6) for line in itertools.product(signs, repeat=length) if '"' in line]
    (tmp_path / "a.csv").write_text("".join(f"{at},{line}\n" for at, line in enumerate(lines)))
    options = {"escape": escape, "nullValue": "none", "emptyValue": "empty"}
    frame = spark.read.schema(", ".join(f"c{at} string" for at in range(7))).options(**options).csv(str(tmp_path))
    values = values_of(settings("csv", options))
    left, found = 0, frame.collect()
    assert len(found) == len(lines)
    for row in found:
        line = lines[int(row[0])]
        try:
            ours = ["empty" if value == "" else value for value in values(line)]
        except BadLine as error:
            assert error.only_spark
            left += 1
            continue
        assert tuple(ours) == tuple(row)[1 : len(ours) + 1] and not any(tuple(row)[len(ours) + 1 :]), line
    assert 0 < left < len(lines) / 2


@pytest.mark.parametrize("format", ["json", "csv"])
def test_usual_files_are_read_the_quick_way(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("this file was read line by line")

    monkeypatch.setattr(TextRows, "_by_line", never)
    schema = "s string, n long, i int, x double, f float, ok boolean, d date, at timestamp, m decimal(10,2)"
    text = {
        "json": '{"s":"a\\"b","n":1,"i":2,"x":1.5,"f":2.5,"ok":true,"d":"2020-01-02","at":"2020-01-02T03:04:05Z","m":1.25}\n{"s":null}\r\n\n {"i":3} ',
        "csv": 'ab,1,2,1.5,2.5,true,2020-01-02,2020-01-02T03:04:05Z,1.25\n"a,b",,,,,,,,\n',
    }[format]
    (tmp_path / "a").write_text(text)
    found = [found for *_, found in by_us(ms.sources.files(tmp_path, schema=schema, format=format), None)]
    assert len(found[0]) == (3 if format == "json" else 2)
    (tmp_path / "a").write_text(text.replace("2020-01-02T", "2020-1-2T"))  # the twin: an unusual form
    with pytest.raises(AssertionError, match="line by line"):
        list(by_us(ms.sources.files(tmp_path, schema=schema, format=format), None))


def test_a_reader_that_trusted_arrow_would_be_found_out(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects in a line are one row for Spark, and two for Arrow."""
    (tmp_path / "a.json").write_text('{"a":1} {"a":2}\n')
    source = ms.sources.files(tmp_path, schema="a long", format="json")
    compare(spark, tmp_path, source)
    quick = JsonRows.quick

    def trusting(self: JsonRows, block: bytes) -> Any:
        return quick(self, block.replace(b"} {", b"}\n{"))

    monkeypatch.setattr(JsonRows, "quick", trusting)
    with pytest.raises(AssertionError):
        compare(spark, tmp_path, source)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_modes(spark: Any, tmp_path: Path, format: str) -> None:
    text = {"json": '{"a":1,"b":"x"}\n{"a":"y","b":"z"}\nnothing\n{"a":2}\n', "csv": "1,x\ny,z\n1\n2,\n"}[format]
    (tmp_path / f"a.{format}").write_text(text)
    dropping = ms.sources.files(tmp_path, schema="a long, b string", format=format, options={"mode": "DROPMALFORMED"})
    theirs = by_spark(spark, tmp_path, dropping, None)
    assert [found for *_, found in by_us(dropping, "_bad")] == list(theirs.values()) == [[(1, "x"), (2, None)]]
    strict = ms.sources.files(tmp_path, schema="a long, b string", format=format)
    with pytest.raises(ms.errors.InputError, match=f"a.{format}, line 2: column 'a'"):
        list(by_us(strict, None))
    lenient = ms.sources.files(tmp_path, schema="a long, b string", format=format, options={"mode": "PERMISSIVE"})
    assert "mode='PERMISSIVE'" in str(lenient.unplanned())


FILE_TYPES: dict[str, Any] = {
    "bool": pa.array([True, None]),
    "int8": pa.array([-5, None], pa.int8()),
    "int16": pa.array([-300, 7], pa.int16()),
    "int32": pa.array([-70000, None], pa.int32()),
    "int64": pa.array([-(2**40), 5], pa.int64()),
    "uint8": pa.array([200, None], pa.uint8()),
    "uint16": pa.array([60000, None], pa.uint16()),
    "uint32": pa.array([4_000_000_000, None], pa.uint32()),
    "uint64": pa.array([2**63 + 5, None], pa.uint64()),
    "float": pa.array([0.1, float("nan")], pa.float32()),
    "double": pa.array([0.1, -0.0]),
    "string": pa.array(["1", None]),
    "large": pa.array(["x", None], pa.large_string()),
    "dictionary": pa.array(["x", None]).dictionary_encode(),
    "binary": pa.array([b"ab", None]),
    "fixed": pa.array([b"abcd", None], pa.binary(4)),
    "date": pa.array([datetime.date(1200, 1, 2), None]),
    "us_utc": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678901), None], pa.timestamp("us", "UTC")),
    "us": pa.array([datetime.datetime(1200, 1, 2, 3, 4, 5, 678901), None], pa.timestamp("us")),
    "ms": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678000), None], pa.timestamp("ms")),
    "ms_berlin": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678000), None], pa.timestamp("ms", "Europe/Berlin")),
    "ns": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678901), None], pa.timestamp("ns")),
    "s": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5), None], pa.timestamp("s")),
    "decimal5": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)),
    "decimal18": pa.array([decimal.Decimal("1.2500"), None], pa.decimal128(18, 4)),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
}
READ_TYPES = [
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(5,2)",
    "decimal(10,4)",
    "decimal(18,4)",
    "decimal(20,0)",
    "decimal(38,2)",
    "array<long>",
    "array<string>",
    "struct<a:long,b:string>",
    "struct<A:long,c:int>",
    "struct<c:int>",
    "map<string,long>",
    "map<string,string>",
]


def test_parquet_of_other_types_is_read_as_spark_does_or_refused(spark: Any, tmp_path: Path) -> None:
    """All pairs of types that we take are in one file, and Spark takes them too, with the same values."""
    taken = {}
    for name, array in FILE_TYPES.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"c": array}), tmp_path / name / "f.parquet")
        for kind in READ_TYPES:
            source = ms.sources.files(tmp_path / name, schema=f"c {kind}", format="parquet")
            try:
                list(by_us(source, None))
            except ms.errors.InputError as error:
                assert "column 'c' is" in str(error)
            else:
                taken[f"{name} {kind}".translate(str.maketrans(" <>,():", "_" * 7))] = (array, kind)
    assert 60 < len(taken) < len(FILE_TYPES) * len(READ_TYPES) / 4
    folder = tmp_path / "all"
    folder.mkdir()
    pq.write_table(pa.table({name: array for name, (array, _) in taken.items()}), folder / "f.parquet")
    source = ms.sources.files(folder, schema=", ".join(f"{name} {kind}" for name, (_, kind) in taken.items()), format="parquet")
    assert [found for *_, found in by_us(source, None)] == list(by_spark(spark, folder, source, None).values())


def test_parquet_columns_are_found_by_name_and_row_groups_are_pieces(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.sources.filereading.reader._SPLIT", 1000)
    numbers = pa.array(range(5000), pa.int64())
    table = pa.table({"N": numbers, "extra": numbers, "s": pa.array([{"Y": at} for at in range(5000)])})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    pq.write_table(pa.table({"other": numbers.slice(0, 3)}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"n": numbers.slice(0, 0)}), tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"")
    source = ms.sources.files(tmp_path, schema="n long, s struct<y:long,z:string>, missing array<string>", format="parquet")
    theirs = by_spark(spark, tmp_path, source, None)
    ours: dict[str, list[Any]] = {}
    found = list(by_us(source, None))
    for _, origin, some in found:
        ours.setdefault(origin, []).extend(some)
    assert {origin: some for origin, some in ours.items() if some} == theirs
    assert len(found) > 9


@pytest.mark.parametrize("seed", SEEDS)
def test_parquet(spark: Any, tmp_path: Path, seed: int) -> None:
    for round_ in range(3):
        chance = random.Random(f"{seed} {round_}")
        schema = filecases.json_schema(chance)
        kinds = arrow(filecases.ddl(schema))
        folder = tmp_path / f"in {round_}"
        folder.mkdir()
        for at in range(20):
            count = chance.randint(0, 30)
            there = [field for field in kinds if chance.random() < 0.9] or list(kinds)
            chance.shuffle(there)
            columns = {
                field.name.upper() if chance.random() < 0.3 else field.name: pa.array(
                    [filecases.arrow_value(chance, field.type) for _ in range(count)], field.type
                )
                for field in there
            }
            pq.write_table(pa.table(columns), folder / f"{at:02}.parquet", row_group_size=chance.choice([1, 7, 100]))
        source = ms.sources.files(folder, schema=filecases.ddl(schema), format="parquet")
        ours = {origin: found for _, origin, found in by_us(source, None) if found}
        assert ours == by_spark(spark, folder, source, None)


def test_compressed_files(spark: Any, tmp_path: Path) -> None:
    text = "".join(f'{{"a":{at}}}\n' for at in range(1000)).encode()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text) + gzip.compress(b'{"a":-1}'))
    (tmp_path / "b.json.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "c.json.deflate").write_bytes(zlib.compress(text))
    source = ms.sources.files(tmp_path, schema="a long", format="json")
    assert {origin: found for _, origin, found in by_us(source, None)} == by_spark(spark, tmp_path, source, None)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text)[:-20])
    assert [os.path.basename(origin) for origin, found in rows_or_refusal(source) if not isinstance(found, list)] == ["a.json.gz"]
    os.rename(tmp_path / "c.json.deflate", tmp_path / "c.json.snappy")
    read = {os.path.basename(origin)[:1]: isinstance(found, list) for origin, found in rows_or_refusal(source)}
    assert read == {"a": False, "b": True, "c": False}


def test_files_that_are_no_parquet_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is no parquet PAR1")
    with pytest.raises(ms.errors.InputError, match=r"bad\.parquet: this is not a Parquet file"):
        list(by_us(ms.sources.files(tmp_path, schema="a long", format="parquet"), None))
    pq.write_table(pa.table({"a": [1], "A": [2]}), tmp_path / "bad.parquet")
    with pytest.raises(ms.errors.InputError, match="'a' and 'A'"):
        list(by_us(ms.sources.files(tmp_path, schema="a long", format="parquet"), None))
