"""Sub-keys: the order of their bytes is the order of their values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.keyspace import decode_sub_key as decode
from millstream.core.keyspace import encode_sub_key as encode

ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
texts = st.one_of(st.text(), st.text(alphabet="\0\x01a\xff\U0001f375", max_size=5))
blobs = st.one_of(st.binary(), st.lists(st.sampled_from([b"\0", b"\xff", b"\x01", b"a"]), max_size=5).map(b"".join))
atoms = st.one_of(ints, st.integers(-3, 3), floats, texts, blobs)
sub_keys = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


def rank(value: Any) -> Any:
    """The dumb twin: something Python orders as the docstring says."""
    if isinstance(value, tuple):
        return (4, tuple(rank(part) for part in value))
    if isinstance(value, str):
        return (2, [ord(c) for c in value])
    return ({int: 0, float: 1, bytes: 3}[type(value)], value)


@pytest.mark.parametrize("kind", [ints, floats, texts, blobs], ids=["int", "float", "str", "bytes"])
def test_values_of_one_type_sort_as_python_sorts_them(kind):
    @given(st.lists(kind, max_size=10))
    def check(values):
        assert sorted(values, key=encode) == sorted(values)

    check()


@given(sub_keys, sub_keys)
def test_any_two_sub_keys_compare_as_their_values_do(one, other):
    assert (encode(one) < encode(other)) == (rank(one) < rank(other))
    assert (encode(one) == encode(other)) == (rank(one) == rank(other))


@given(st.lists(atoms, max_size=3), st.lists(atoms, min_size=1, max_size=3))
def test_a_prefix_of_a_tuple_stands_before_it(prefix, rest):
    assert encode(tuple(prefix)) < encode((*prefix, *rest))


@given(sub_keys)
def test_a_sub_key_comes_back_from_its_bytes(sub_key):
    assert rank(decode(encode(sub_key))) == rank(sub_key)


@pytest.mark.slow
@given(sub_keys, st.data())
def test_bytes_are_a_sub_key_only_if_it_makes_these_very_bytes(sub_key, data):
    raw = encode(sub_key)
    torn = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        found = decode(torn)
    except ValueError:
        return
    assert encode(found) == torn


@given(st.one_of(ints, floats, st.lists(ints, max_size=3).map(tuple)), st.data())
def test_a_torn_number_or_tuple_is_refused(sub_key, data):
    raw = encode(sub_key)
    with pytest.raises(ValueError):
        decode(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(sub_keys)
def test_bytes_behind_a_sub_key_are_refused(sub_key):
    with pytest.raises(ValueError):
        decode(encode(sub_key) + b"\x01")


def test_both_zeros_are_one_sub_key():
    assert encode(-0.0) == encode(0.0)
    assert encode(0) != encode(0.0)


def test_integers_end_at_64_bits():
    assert encode(-(2**63)) < encode(2**63 - 1)
    for beyond in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            encode(beyond)


@pytest.mark.parametrize("sub_key", [None, True, [1], {}, (1, None), (True,), object()], ids=lambda key: repr(key).split(" at ")[0])
def test_what_has_no_place_in_the_order_is_refused(sub_key):
    with pytest.raises(TypeError, match="cannot be a sub-key"):
        encode(sub_key)


def test_bytes_that_are_no_sub_key_are_refused():
    with pytest.raises(ValueError):
        decode(b"\x99abc")
