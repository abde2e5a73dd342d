"""Spark's hashes of texts, without Spark: values that Spark has said once, and a dumb model of one row at a time. And hashes of whole rows."""

from __future__ import annotations

import struct
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
from millstream.engine.columns.hashing import SEED, hash_rows, hash_texts, shards_of

#: What `xxhash64` said of texts in Spark 4.3.
SAID: list[tuple[str | None, int]] = [
    ("", -7444071767201028348),
    ("a", -8582455328737087284),
    ("millstream", 4613902463384673219),
    ("é\U0001f600", -597902685397653203),
    ("x" * 31, -1716462135722163746),
    ("x" * 32, 1299777543150008824),
    ("abcdefg" * 20, -8644238935828707299),
    (None, 42),
]


def hashed(column: Any, seed: int = SEED) -> list[int]:
    found: list[int] = hash_texts(column, np.full(len(column), seed, np.uint64)).view(np.int64).tolist()
    return found


@pytest.mark.parametrize("value, said", SAID, ids=str)
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_hashes_are_those_that_spark_has_said(kind: Any, value: str | None, said: int, count: int) -> None:
    assert hashed(pa.array([value] * count, kind)) == [said] * count
    assert value is None or hashed(pa.array([value] * count, kind), seed=0) != [said] * count


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
def test_a_row_has_the_same_hash_wherever_it_stands_and_another_row_another(data: st.DataObject) -> None:
    of = data.draw(st.lists(kinds, min_size=1, max_size=3))
    count = data.draw(st.sampled_from([1, 3, 25, 40]))
    rows = data.draw(st.lists(st.tuples(*map(values, of)), min_size=count, max_size=count))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), of, strict=True)]
    found = hash_rows(columns).tolist()
    first = data.draw(st.integers(0, count - 1))
    assert hash_rows([column.slice(first) for column in columns]).tolist() == found[first:], "a slice of a column"
    assert hash_rows([column.take(pa.array([first])) for column in columns]).tolist() == [found[first]], "a row alone"
    assert hash_rows([*columns, pa.array(range(count))]).tolist() != found, "the twin: a column more"


def test_rows_that_differ_in_one_value_have_different_hashes() -> None:
    for kind, one, other in [
        (pa.int8(), 1, 2),
        (pa.bool_(), True, False),
        (pa.float64(), 0.1, 0.2),
        (pa.date32(), 1, 2),
        (pa.timestamp("us", "UTC"), 1, 2),
        (pa.decimal128(38, 2), Decimal(1), Decimal(2**70)),
        (pa.list_(pa.int32()), [1, 2], [2, 1]),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": "x"}, {"a": 1, "b": "y"}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", 2)]),
        (pa.string(), "", None),
    ]:
        found = hash_rows([pa.array([one, other, one], kind), pa.array([7, 7, 7])]).tolist()
        assert found[0] == found[2] != found[1], kind


def texts(count: int, longest: int) -> list[bytes | None]:
    """Many texts, of all lengths, a few of them null."""
    draw = np.random.default_rng(count)
    return [None if size == 0 and draw.random() < 0.5 else draw.bytes(size) for size in draw.integers(0, longest, count).tolist()]


@pytest.mark.parametrize("count, longest", [(1000, 40), (9000, 20), (400, 300), (30, 5000), (3, 40_000)])
def test_oracle_many_and_long_texts_are_hashed_as_the_model_does(count: int, longest: int) -> None:
    rows = texts(count, longest)
    wanted = [SEED if one is None else model_bytes(one, SEED) for one in rows]
    assert hash_texts(pa.array(rows, pa.binary()), np.full(count, SEED, np.uint64)).tolist() == wanted


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
