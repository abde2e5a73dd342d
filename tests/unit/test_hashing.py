"""Spark's hashes, without Spark: values that Spark has said once, and a dumb model of one row at a time."""

from __future__ import annotations

import struct
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.core.keys import key_text, shard_of
from millstream.engine.columns import casts
from millstream.engine.columns.hashing import SEED, Unhashable, hash_one, hasher, shards_of, xxhash64

#: By type and value, what `xxhash64` said in Spark 4.3.
SAID: list[tuple[Any, Any, int]] = [
    (pa.string(), "", -7444071767201028348),
    (pa.string(), "a", -8582455328737087284),
    (pa.string(), "millstream", 4613902463384673219),
    (pa.string(), "é\U0001f600", -597902685397653203),
    (pa.string(), "x" * 31, -1716462135722163746),
    (pa.string(), "x" * 32, 1299777543150008824),
    (pa.large_string(), "abcdefg" * 20, -8644238935828707299),
    (pa.binary(), b"\x00\xff\x10", 5415089035989094387),
    (pa.bool_(), True, -6698625589789238999),
    (pa.bool_(), False, 3614696996920510707),
    (pa.int8(), -1, 2017008487422258757),
    (pa.int16(), -32768, -904511417458573795),
    (pa.int32(), 7, 2786828215451145335),
    (pa.int32(), -7, 4987848727247274714),
    (pa.int64(), 7, -2864211556195259663),
    (pa.int64(), -(2**63), -8619748838626508300),
    (pa.float32(), 1.5, 6163473420726370430),
    (pa.float32(), float("nan"), 2692338816207849720),
    (pa.float64(), -0.0, -5252525462095825812),
    (pa.float64(), 0.0, -5252525462095825812),
    (pa.float64(), float("nan"), -3127944061524951246),
    (pa.float64(), 1.5, 7738255526519901366),
    (pa.date32(), date(2024, 2, 29), 4183429117450946631),
    (pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, 12, 34, 56, 789012, timezone.utc), -2021281541725647388),
    (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 999999), 3858142552250413010),
    (pa.time64("ns"), 1, -7001672635703045582),
    (pa.decimal128(9, 2), Decimal("-12.34"), -1614697014534150208),
    (pa.decimal128(38, 2), Decimal("-12.34"), -5902959860576184235),
    (pa.decimal128(20, 0), Decimal(128), 6715097930120473301),
    (pa.string(), None, 42),
    (pa.null(), None, 42),
    (pa.list_(pa.int32()), [1, 2, None], -8133857028838179022),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": "x"}, 8510603489595372987),
    (pa.list_(pa.struct([("a", pa.list_(pa.string()))])), [{"a": ["x", "y"]}], -3274121240623841382),
]


@pytest.mark.parametrize("kind, value, said", SAID, ids=str)
@pytest.mark.parametrize("count", [1, 50])
def test_hashes_are_those_that_spark_has_said(kind: Any, value: Any, said: int, count: int) -> None:
    assert xxhash64([pa.array([value] * count, kind)]).tolist() == [said] * count
    assert value is None or xxhash64([pa.array([value] * count, kind)], seed=0).tolist() != [said] * count


def test_a_hash_of_several_columns_is_that_of_spark() -> None:
    columns = [pa.array(["a", None]), pa.array([1, 2], pa.int64())]
    assert xxhash64(columns).tolist() == [-1010403264180844141, -3341702809300393011]


M = 2**64
PRIMES = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def rotl(value: int, by: int) -> int:
    value %= M
    return (value * 2**by + value // 2 ** (64 - by)) % M


def model_bytes(data: bytes, seed: int) -> int:
    """XXH64 as its specification says it, step by step."""
    p1, p2, p3, p4, p5 = PRIMES
    left = data
    if len(data) >= 32:
        lanes = [seed + p1 + p2, seed + p2, seed, seed - p1]
        while len(left) >= 32:
            lanes = [rotl(lane + word * p2, 31) * p1 % M for lane, word in zip(lanes, struct.unpack("<4Q", left[:32]), strict=True)]
            left = left[32:]
        value = rotl(lanes[0], 1) + rotl(lanes[1], 7) + rotl(lanes[2], 12) + rotl(lanes[3], 18)
        for lane in lanes:
            value = ((value % M) ^ (rotl(lane * p2, 31) * p1 % M)) * p1 + p4
    else:
        value = seed + p5
    value = (value + len(data)) % M
    while len(left) >= 8:
        value = (rotl(value ^ (rotl(struct.unpack("<Q", left[:8])[0] * p2, 31) * p1 % M), 27) * p1 + p4) % M
        left = left[8:]
    if len(left) >= 4:
        value = (rotl(value ^ (struct.unpack("<I", left[:4])[0] * p1 % M), 23) * p2 + p3) % M
        left = left[4:]
    for byte in left:
        value = rotl(value ^ (byte * p5 % M), 11) * p1 % M
    value ^= value >> 33
    value = value * p2 % M
    value ^= value >> 29
    value = value * p3 % M
    return value ^ (value >> 32)


def model(value: Any, kind: Any, seed: int) -> int:
    """The hash of one value, by its type."""
    types = pa.types
    if value is None:
        return seed
    if types.is_string(kind):
        return model_bytes(value.encode(), seed)
    if types.is_binary(kind):
        return model_bytes(value, seed)
    if types.is_boolean(kind) or kind in (pa.int8(), pa.int16(), pa.int32()):
        return model_bytes(struct.pack("<i", int(value)), seed)
    if kind == pa.int64():
        return model_bytes(struct.pack("<q", value), seed)
    if types.is_floating(kind):
        code = "<d" if kind == pa.float64() else "<f"
        bits = struct.pack(code, 0.0 if value == 0 else value)
        nan = struct.pack("<Q", 0x7FF8000000000000) if code == "<d" else struct.pack("<I", 0x7FC00000)
        return model_bytes(nan if value != value else bits, seed)
    if types.is_decimal(kind):
        unscaled = int(format(value, "f").replace(".", ""))  # exactly: arithmetic would round to 28 digits
        if kind.precision <= 18:
            return model_bytes(struct.pack("<q", unscaled), seed)
        size = next(size for size in range(1, 17) if -(2 ** (8 * size - 1)) <= unscaled < 2 ** (8 * size - 1))
        return model_bytes(unscaled.to_bytes(size, "big", signed=True), seed)
    if types.is_struct(kind):
        for field in kind:
            seed = model(value[field.name], field.type, seed)
        return seed
    for one in value:
        seed = model(one, kind.value_type, seed)
    return seed


def values(kind: Any) -> Any:
    types = pa.types
    if types.is_string(kind):
        found: Any = st.text(max_size=80)
    elif types.is_binary(kind):
        found = st.binary(max_size=80)
    elif types.is_boolean(kind):
        found = st.booleans()
    elif types.is_integer(kind):
        found = st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    elif types.is_floating(kind):
        found = st.floats(width=32 if kind == pa.float32() else 64)
    elif types.is_decimal(kind):
        top = 10**kind.precision - 1
        found = st.integers(-top, top).map(lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale)))
    elif types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    else:
        found = st.lists(values(kind.value_type), max_size=4)
    return st.none() | found


FLAT = [pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
FLAT += [pa.decimal128(5, 2), pa.decimal128(18, 0), pa.decimal128(19, 0), pa.decimal128(30, 10)]
kinds = st.recursive(
    st.sampled_from(FLAT),
    lambda inner: (
        inner.map(pa.list_) | st.lists(inner, min_size=1, max_size=3).map(lambda of: pa.struct([(f"f{i}", k) for i, k in enumerate(of)]))
    ),
    max_leaves=4,
)


@given(st.data())
@settings(max_examples=some(100), deadline=None)
def test_oracle_columns_of_any_type_are_hashed_as_the_model_does(data: st.DataObject) -> None:
    of = data.draw(st.lists(kinds, min_size=1, max_size=3))
    count = data.draw(st.sampled_from([1, 3, 25, 40]))
    rows = data.draw(st.lists(st.tuples(*map(values, of)), min_size=count, max_size=count))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), of, strict=True)]
    wanted = []
    for at in range(count):
        seed = SEED
        for column, kind in zip(columns, of, strict=True):
            seed = model(column[at].as_py(), kind, seed)
        wanted.append(seed)
    assert xxhash64(columns).view(np.uint64).tolist() == wanted
    first = data.draw(st.integers(0, count - 1))
    assert xxhash64([column.slice(first) for column in columns]).view(np.uint64).tolist() == wanted[first:], "a slice of a column"
    if count > 1:
        broken = [pa.chunked_array([column.slice(0, 1), column.slice(1)]) for column in columns]
        assert xxhash64(broken).view(np.uint64).tolist() == wanted, "a column in pieces"


def texts(count: int, longest: int) -> list[bytes | None]:
    """Many texts, of all lengths, a few of them null."""
    draw = np.random.default_rng(count)
    return [None if size == 0 and draw.random() < 0.5 else draw.bytes(size) for size in draw.integers(0, longest, count).tolist()]


@pytest.mark.parametrize("count, longest", [(1000, 40), (9000, 20), (400, 300), (30, 5000), (3, 40_000)])
def test_oracle_many_and_long_texts_are_hashed_as_the_model_does(count: int, longest: int) -> None:
    rows = texts(count, longest)
    wanted = [SEED if one is None else model_bytes(one, SEED) for one in rows]
    assert xxhash64([pa.array(rows, pa.binary())]).view(np.uint64).tolist() == wanted
    assert [SEED if one is None else hash_one(one, SEED) for one in rows] == wanted


@pytest.mark.parametrize("count, longest", [(5, 40), (3000, 40), (9000, 13), (400, 300)])
@pytest.mark.parametrize("shards", [1, 7, 4096])
def test_oracle_shards_are_those_of_the_core(count: int, longest: int, shards: int) -> None:
    rows = texts(count, longest)
    column = pa.array(rows, pa.binary())
    wanted = [0 if one is None else shard_of(one, shards) for one in rows]
    assert shards_of(column, shards).tolist() == wanted
    assert shards_of(column.slice(2), shards).tolist() == wanted[2:]


parts = st.sampled_from([pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int32(), pa.int64()])


@given(st.data())
@settings(max_examples=some(100), deadline=None)
def test_oracle_texts_of_keys_are_those_of_the_core(data: st.DataObject) -> None:
    of = data.draw(st.lists(parts, min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(*map(values, of)), min_size=1, max_size=20))
    if data.draw(st.booleans()):
        rows = [tuple("\0" + part if isinstance(part, str) else part for part in row) for row in rows]
    columns = [pa.array([None, *column], kind)[1:] for column, kind in zip(zip(*rows, strict=True), of, strict=True)]
    made: list[Any] = [casts.key_text(kind) for kind in of]
    found = [cast(column) for cast, column in zip(made, columns, strict=True)]
    assert found[0].to_pylist() == [None if row[0] is None else key_text(row[0]) for row in rows]
    assert casts.tuple_key(found).to_pylist() == [None if None in row else key_text(row) for row in rows]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.string())), pa.uint8(), pa.float16()])
def test_what_spark_cannot_hash_is_said_at_once(kind: Any) -> None:
    with pytest.raises(Unhashable):
        hasher(kind)
