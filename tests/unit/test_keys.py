"""Keys: a value, its text, its shard."""

from __future__ import annotations

import enum
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.keys import MAX_SHARDS, BadKey, check_shards, key_bytes, key_of, key_text, shard_of
from millstream.errors import DefinitionError

tricky = st.text(alphabet="\0sibxt0123456789:-a\xe9\U0001f375", max_size=8)
atoms = st.one_of(tricky, st.text(), st.integers(), st.booleans(), st.binary(max_size=8))
keys = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


def shape(key: Any) -> Any:
    """The dumb twin of identity: value and type, all the way down."""
    return ("tuple", tuple(shape(part) for part in key)) if isinstance(key, tuple) else (type(key).__name__, key)


@given(keys)
def test_a_key_comes_back_from_its_text_with_its_types(key):
    assert shape(key_of(key_text(key))) == shape(key)


@given(keys)
def test_a_key_comes_back_from_its_bytes(key):
    assert shape(key_of(key_bytes(key).decode())) == shape(key)


@given(keys, keys)
def test_two_keys_share_a_text_only_if_value_and_types_are_equal(one, other):
    assert (key_text(one) == key_text(other)) == (shape(one) == shape(other))


@given(keys)
def test_what_a_text_could_be_taken_for_has_a_text_of_its_own(key):
    text = key_text(key)
    if text != key:  # the string that looks like the text of another key
        assert key_text(text) != text
        assert key_of(key_text(text)) == text


def test_values_that_look_alike_are_different_keys():
    alike = ["1", 1, True, b"1", ("1",), (1,), (True,), "\0i1", ("1", ""), ((1,),), "", (), b""]
    assert len({key_text(key) for key in alike}) == len(alike)


def test_texts_are_what_checkpoints_already_hold():
    assert key_text("tea") == "tea"
    assert key_text("\0tea") == "\0s\0tea"
    assert key_text(-7) == "\0i-7"
    assert key_text(True) == "\0b1"
    assert key_text(b"\xff\x00") == "\0xff00"
    assert key_text(("é", 7)) == "\0t1:é3:\0i7"


def test_subclasses_of_str_and_int_are_the_keys_they_equal():
    class Word(str):
        pass

    class Level(enum.IntEnum):
        HIGH = 3

    assert key_text(Word("tea")) == key_text("tea")
    assert key_text(Level.HIGH) == key_text(3)


def test_a_string_enum_is_the_string_that_it_equals():
    class Colour(str, enum.Enum):
        RED = "red"

    assert Colour.RED == "red"
    assert key_text(Colour.RED) == key_text("red")


@pytest.mark.parametrize(
    "key",
    [None, 1.0, float("nan"), [1], {"a": 1}, {1}, Decimal(1), object(), (1, None), (1, 2.0), (("a", [1]),), bytearray(b"a")],
    ids=lambda key: repr(key).split(" at ")[0],
)
def test_what_cannot_name_a_row_is_a_bad_key(key):
    with pytest.raises(BadKey):
        key_text(key)


@pytest.mark.parametrize("key", ["\ud800", ("a", "\ud800")])
def test_a_lone_surrogate_is_a_bad_key(key):
    with pytest.raises(BadKey, match="Unicode"):
        key_bytes(key)


def test_a_bad_key_says_what_was_wrong():
    with pytest.raises(BadKey, match="None"):
        key_text(None)
    with pytest.raises(BadKey, match="float"):
        key_text(("a", 1.5))


def test_a_text_that_no_key_has_is_refused():
    with pytest.raises(ValueError, match="not a key's text"):
        key_of("\0?1")


def test_the_shard_of_a_row_never_changes():
    # CRC-32's published check value is 0xCBF43926 for "123456789"
    assert shard_of(b"123456789", 4096) == 0xCBF43926 % 4096
    assert shard_of(b"", 7) == 0
    assert [shard_of(key_bytes(k), 16) for k in ("tea", 7, True, b"x", ("a", 7))] == [
        __import__("zlib").crc32(t) % 16 for t in (b"tea", b"\0i7", b"\0b1", b"\0x78", b"\0t1:a3:\0i7")
    ]


@given(keys, st.integers(1, MAX_SHARDS))
def test_every_row_has_a_shard(key, shards):
    assert 0 <= shard_of(key_bytes(key), shards) < shards


def test_rows_spread_over_all_shards():
    assert {shard_of(key_bytes(f"key-{i}"), 16) for i in range(1000)} == set(range(16))


@pytest.mark.parametrize("shards", [1, 2, MAX_SHARDS])
def test_a_usable_number_of_shards_is_taken(shards):
    assert check_shards(shards) == shards


@pytest.mark.parametrize("shards", [0, -1, MAX_SHARDS + 1, True, 2.0, "2", None])
def test_an_unusable_number_of_shards_is_a_definition_error(shards):
    with pytest.raises(DefinitionError, match="shards="):
        check_shards(shards)
